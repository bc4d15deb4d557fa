"""Listings of NumPy and PyTorch constructors, interpreted by a closed list of names; nothing is executed."""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..findings import Finding
from .literals import MOST_ENTRIES, read_array, split_outside

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Argument", "Call", "Interpreted", "interpret", "read_array"]

_MOST_CODE = 4_000_000  # characters
_MOST_STATEMENTS = 2000
_MOST_FINDINGS = 20


@dataclass(frozen=True)
class Argument:
    """An argument of a call: its keyword, its source text ("Q", "[1, 2]"), and its value where it is known."""

    text: str
    value: Any = None
    keyword: str = ""


@dataclass(frozen=True)
class Call:
    """A call of a function that is not interpreted.

    `targets` are the names that it is assigned to; `printed` says whether its result, or its only target, is printed
    or is the last expression of the code; `digits` is the number of decimals of a `round` around it.
    """

    function: str
    arguments: tuple[Argument, ...] = ()
    targets: tuple[str, ...] = ()
    printed: bool = False
    digits: int | None = None


@dataclass(frozen=True)
class Interpreted:
    """What a listing says: the values of its names as nested lists of numbers, the calls that are left, findings."""

    values: dict[str, Any] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    findings: tuple[Finding, ...] = ()


def interpret(code: str) -> Interpreted:
    """Interpret assignments of numbers and NumPy or PyTorch constructors; nothing is executed.

    >>> found = interpret("n = 2; X = np.arange(n * n).reshape(n, n); print(attend(X, scale=True))")
    >>> found.values["X"], found.calls[0].function, [argument.text for argument in found.calls[0].arguments]
    ([[0, 1], [2, 3]], 'attend', ['X', 'True'])
    """
    import numpy as np

    if len(code) > _MOST_CODE:
        return Interpreted(findings=(_unread(code, f"longer than {_MOST_CODE:,} characters"),))
    reader = _Reader()
    with np.errstate(all="ignore"):
        for statement in reader.statements(code):
            reader.statement(statement)
    values = {name: plain for name, value in reader.names.items() if (plain := _plain(value)) is not None}
    return Interpreted(values, tuple(reader.calls), tuple(reader.findings[:_MOST_FINDINGS]))


class _Unknown(Exception):
    """A value that the closed list does not give."""


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.MatMult: operator.matmul, ast.Pow: operator.pow,
}  # fmt: skip
# Names that NumPy has too are themselves; names of PyTorch have NumPy's.
_FUNCTIONS = {name: name for name in (
    "array", "eye", "ones", "zeros", "full", "ones_like", "zeros_like", "arange", "linspace", "reshape", "dot", "triu",
    "transpose", "tril", "diag", "matmul", "outer", "concatenate", "stack", "vstack", "hstack", "column_stack", "sqrt",
    "exp", "log", "sin", "cos", "abs", "expand_dims",
)} | {"tensor": "array", "asarray": "array", "Tensor": "array", "identity": "eye", "cat": "concatenate"}  # fmt: skip
_METHODS = {"flatten": "ravel", "ravel": "ravel", "squeeze": "squeeze", "transpose": "transpose", "t": "transpose",
            "dot": "dot", "reshape": "reshape", "view": "reshape", "permute": "transpose", "swapaxes": "swapaxes",
            "tolist": "tolist"} | dict.fromkeys(("copy", "clone", "numpy", "float", "to"), "copy")  # fmt: skip
# Where each draw has its size among its arguments; -1: all of them are sizes, None: the first is the array.
_DRAWS = {"rand": -1, "randn": -1, "randint": 2, "integers": 2, "normal": 2, "uniform": 2, "choice": 1, "random": 0,
          "random_sample": 0, "standard_normal": 0, "permutation": None, "shuffle": None}  # fmt: skip
_CONSTANTS = {"inf": math.inf, "pi": math.pi, "e": math.e, "nan": math.nan}
_LIBRARIES = ("np", "numpy", "torch", "math", "jnp")
_FAILURES = (ValueError, TypeError, IndexError, ZeroDivisionError, OverflowError, AttributeError, MemoryError)


class _Reader:
    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.legacy: np.random.RandomState | None = None
        self.calls: list[Call] = []
        self.findings: list[Finding] = []

    def statements(self, code: str) -> list[ast.stmt]:
        """The statements of a listing; where it is no Python as a whole, of those of its lines that are."""
        code = re.sub(r"^\s*(?:>>>|\.\.\.|In \[\d*\]:) ?", "", code, flags=re.MULTILINE)
        found = _parsed(code)
        if found is None:
            found = []
            for line in _logical_lines(code):
                parsed = _parsed(line.strip()) or _parsed(_by_semicolons(line.strip()))
                if parsed is None:
                    self.findings.append(_unread(line, "no Python"))
                found += parsed or []
        if len(found) > _MOST_STATEMENTS:
            self.findings.append(_unread("", f"after {_MOST_STATEMENTS} statements"))
        return found[:_MOST_STATEMENTS]

    def statement(self, node: ast.stmt) -> None:
        try:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self.assign(target, node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self.assign(node.target, node.value)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                self.assign(node.target, ast.BinOp(ast.Name(node.target.id), node.op, node.value))
            elif isinstance(node, ast.Expr):
                printed = isinstance(node.value, ast.Call) and _name(node.value.func) == "print"
                for each in node.value.args if printed else [node.value]:  # pyright: ignore[reportAttributeAccessIssue]
                    self.shown(each)
        except (RecursionError, *_FAILURES) as error:
            self.findings.append(_unread(_source(node), str(error) or type(error).__name__))

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
        before = len(self.calls)
        try:
            found = self.value(value)
        except (_Unknown, *_FAILURES) as error:
            for name in names:
                self.names.pop(name, None)
            if not isinstance(error, _Unknown):
                raise
            # The call that is evaluated last is the outermost.
            if len(self.calls) > before and isinstance(value, ast.Call):
                self.calls[-1] = replace(self.calls[-1], targets=tuple(names))
            return
        if isinstance(target, ast.Name):
            self.names[target.id] = found
        elif isinstance(target, ast.Tuple | ast.List) and len(found) == len(names):
            self.names |= dict(zip(names, found, strict=True))

    def shown(self, node: ast.expr, digits: int | None = None) -> None:
        """A result that is printed, or that a notebook would show; `digits` are those of a `round` around it."""
        method = node.func if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        if (
            isinstance(node, ast.Call)
            and _name(node.func) in ("round", "np.round", "numpy.round", "np.around")
            and node.args
        ):
            decimals = [*node.args[1:], *(each.value for each in node.keywords)]
            return self.shown(node.args[0], self.value(decimals[0]) if decimals else 0)
        if method is not None and method.attr in ("tolist", "numpy", "item", "round") and _name(method.value) != "np":
            rounded = method.attr == "round" and isinstance(node, ast.Call) and node.args
            return self.shown(method.value, self.value(node.args[0]) if rounded else digits)  # pyright: ignore
        before = len(self.calls)
        if isinstance(node, ast.Name):
            places = [at for at, call in enumerate(self.calls) if node.id in call.targets]
        else:
            with suppress(_Unknown):
                self.value(node)
            places = range(max(before, len(self.calls) - 1), len(self.calls))
        for at in places:
            self.calls[at] = replace(self.calls[at], printed=True, digits=digits)
        return None

    # --- values

    def value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in self.names:
            return self.names[node.id]
        if isinstance(node, ast.Tuple | ast.List):
            items = [self.value(each) for each in node.elts]
            return tuple(items) if isinstance(node, ast.Tuple) else items
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            return self.value(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return self.operation(node.op, self.value(node.left), self.value(node.right))
        if isinstance(node, ast.Attribute):
            return self.attribute(node)
        if isinstance(node, ast.Subscript):
            return self.value(node.value)[self.index(node.slice)]
        if isinstance(node, ast.Call):
            return self.call(node)
        raise _Unknown

    def operation(self, kind: ast.operator, left: Any, right: Any) -> Any:
        import numpy as np

        if isinstance(left, str | dict) or isinstance(right, str | dict):
            raise _Unknown
        if isinstance(kind, ast.Pow) and isinstance(left, int) and (abs(left) > 10**12 or np.max(np.abs(right)) > 64):
            raise OverflowError("a power that is too large")
        if isinstance(left, list | tuple) and isinstance(right, int):
            _bounded(len(left) * right)
        elif isinstance(kind, ast.MatMult):
            _bounded((*np.shape(left)[:-1], *np.shape(right)[-1:]))
        elif not isinstance(left, list | tuple):
            _bounded(np.broadcast_shapes(np.shape(left), np.shape(right)))
        return _OPERATORS[type(kind)](left, right)

    def attribute(self, node: ast.Attribute) -> Any:
        if _name(node.value) in _LIBRARIES:
            if node.attr in _CONSTANTS:
                return _CONSTANTS[node.attr]
        else:
            value = self.value(node.value)
            if node.attr in ("T", "shape", "size", "ndim") and hasattr(value, "shape"):
                return getattr(value, node.attr)
        raise _Unknown

    def index(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Slice):
            return slice(*(None if part is None else self.value(part) for part in (node.lower, node.upper, node.step)))
        return tuple(self.index(each) for each in node.elts) if isinstance(node, ast.Tuple) else self.value(node)

    def call(self, node: ast.Call) -> Any:
        library, _, function = (name := _name(node.func)).rpartition(".")
        if library in ("np.random", "numpy.random"):
            return self.random(function, node)
        if library in _LIBRARIES and function in _FUNCTIONS:
            return self.build(function, *self.arguments(node))
        if name in ("float", "int", "list", "tuple") and len(node.args) == 1:
            return {"float": float, "int": int, "list": list, "tuple": tuple}[name](self.value(node.args[0]))
        if isinstance(node.func, ast.Attribute) and library.partition(".")[0] not in _LIBRARIES:
            try:
                owner = self.value(node.func.value)
            except _Unknown:
                owner = None
            if owner is not None:
                return self.method(owner, node.func.attr, node)
        self.record(name or _source(node.func), node)
        raise _Unknown

    def record(self, name: str, node: ast.Call) -> None:
        """Remember a call that the closed list does not know."""
        arguments = []
        for keyword, each in [("", each) for each in node.args] + [
            (each.arg or "", each.value) for each in node.keywords
        ]:
            try:
                value = _plain(self.value(each))
            except _Unknown:
                value = None
            arguments.append(Argument(_source(each), value, keyword))
        self.calls.append(Call(name, tuple(arguments)))

    def arguments(self, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a constructor; dtypes and devices change no number here."""
        renamed = {"diagonal": "k", "dim": "axis"}
        keywords = {renamed.get(each.arg or "", each.arg or ""): self.value(each.value) for each in node.keywords
                    if each.arg not in ("dtype", "device", "requires_grad")}  # fmt: skip
        return [self.value(each) for each in node.args if not _DTYPE.fullmatch(_name(each))], keywords

    def build(self, function: str, args: list[Any], keywords: dict[str, Any]) -> Any:
        import numpy as np

        name = _FUNCTIONS[function]
        if name in ("ones", "zeros") and len(args) > 1:
            args = [tuple(args)]  # torch.ones(2, 3) has its sizes apart
        if name in ("ones", "zeros", "full"):
            _bounded(args[0] if args else keywords.get("size", keywords.get("shape")))
        elif name == "eye":
            _bounded((args[0], args[1] if len(args) > 1 else args[0]))
        elif name == "arange":
            _bounded(abs(args[1] - args[0] if len(args) > 1 else args[0]) / abs(args[2] if len(args) > 2 else 1))
        elif name == "linspace":
            _bounded(args[2] if len(args) > 2 else keywords.get("num", 50))
        elif name in ("outer", "diag"):
            _bounded((np.size(args[0]), np.size(args[-1])) if np.ndim(args[0]) == 1 else 1)
        elif name in ("dot", "matmul"):
            return self.operation(ast.MatMult(), np.asarray(args[0]), np.asarray(args[1]))
        found = np.swapaxes(*args) if name == "transpose" and len(args) == 3 else getattr(np, name)(*args, **keywords)
        if _bounded(np.shape(found)) == ():
            return found.item() if hasattr(found, "item") else found
        return found

    def method(self, owner: Any, name: str, node: ast.Call) -> Any:
        import numpy as np

        if isinstance(owner, np.random.Generator | np.random.RandomState):
            return self.draw(owner, name, node)
        args, _ = self.arguments(node)
        value = np.asarray(owner)
        if name == "astype":
            return value.astype(int) if _name(node.args[0]) in ("int", "np.int32", "np.int64") else value.copy()
        if name == "unsqueeze":
            return np.expand_dims(value, args[0])
        if name == "size":
            return value.shape[args[0]] if args else value.shape
        if name == "transpose" and len(args) == 2 and sorted(axis % value.ndim for axis in args) != [0, 1]:
            name = "swapaxes"  # PyTorch's
        if name not in _METHODS:
            self.record(_source(node.func), node)
            raise _Unknown
        method = getattr(value, _METHODS[name])
        return method() if _METHODS[name] in ("copy", "ravel", "squeeze", "tolist") else method(*args)

    def random(self, function: str, node: ast.Call) -> Any:
        """The functions of np.random: a private stream, so that NumPy's is not touched."""
        import numpy as np

        if function not in ("seed", "RandomState", "default_rng"):
            if self.legacy is None:
                self.findings.append(_unread(_source(node), "a draw without a seed"))
                raise _Unknown
            return self.draw(self.legacy, function, node)
        args, _ = self.arguments(node)
        if not args or not isinstance(args[0], int):
            self.findings.append(_unread(_source(node), "a seed is needed"))
            raise _Unknown
        if function == "seed":
            self.legacy = np.random.RandomState(args[0])
            return None
        return getattr(np.random, function)(args[0])

    def draw(self, stream: Any, function: str, node: ast.Call) -> Any:
        import numpy as np

        if function not in _DRAWS or not hasattr(stream, function):
            self.findings.append(_unread(_source(node), "a draw that is not known"))
            self.legacy = None  # what follows in the stream is not known either
            raise _Unknown
        args, keywords = self.arguments(node)
        place = _DRAWS[function]
        if place is None:
            _bounded(args[0] if isinstance(args[0], int) else np.size(args[0]))
        else:
            size = tuple(args) if place < 0 else args[place] if len(args) > place else keywords.get("size")
            _bounded(1 if size is None else size)
        return getattr(stream, function)(*args, **keywords)


_DTYPE = re.compile(r"(?:np|torch|jnp|numpy)\.(?:float|int|bool|half|double|long)\w*|float|int|bool")


def _parsed(code: str) -> list[ast.stmt] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "invalid escape sequence" is not for the user
            return ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _logical_lines(code: str) -> list[str]:
    """Lines, with those joined whose brackets are still open."""
    found: list[str] = []
    depth = 0
    for line in code.splitlines():
        if depth > 0 and found:
            found[-1] += f"\n{line}"
        elif line.strip():
            found.append(line)
        depth = max(0, depth + sum(map(line.count, "([{")) - sum(map(line.count, ")]}")))
    return found


def _by_semicolons(line: str) -> str:
    """Assignments that a comma parts, "Q = [1], n = 2", parted by semicolons; "X.shape = (2, 3)" is dropped."""
    parts: list[str] = []
    for piece in split_outside(line, ","):
        if re.match(r"\s*[A-Za-z_][\w.]*\s*=[^=]", piece) or not parts:
            parts.append(piece.strip())
        else:
            parts[-1] += f",{piece}"
    return "; ".join(part for part in parts if not re.match(r"[\w.]+\.shape\s*=", part))


def _name(node: ast.expr) -> str:
    """A dotted name, or nothing for another expression."""
    if isinstance(node, ast.Attribute):
        owner = _name(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""


def _source(node: ast.AST) -> str:
    try:
        return ast.unparse(node)[:200]
    except (RecursionError, ValueError):
        return "an expression that is too deep"


def _bounded(shape: Any) -> Any:
    """A shape of at most 10⁶ entries; OverflowError otherwise."""
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    if any(not isinstance(size, int | float) for size in sizes) or math.prod(sizes) > MOST_ENTRIES:
        raise OverflowError("an array of more than 10^6 entries, or of unknown size")
    return shape


def _plain(value: Any) -> Any:
    """A value as nested lists of numbers; None for what is no value of a record."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        items = [_plain(each) for each in value]
        return None if any(item is None for item in items) else items
    return value if isinstance(value, int | float | str) else None


def _unread(code: str, why: str) -> Finding:
    return Finding("unread_code", {"code": " ".join(code.split())[:120], "why": why})
