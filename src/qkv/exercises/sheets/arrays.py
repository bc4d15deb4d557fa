"""Listings of NumPy and PyTorch constructors, interpreted by a closed list of names; nothing is executed."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
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
_LARGEST_POWER = 64


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


class _Unknown(Exception):  # noqa: N818 (control flow: a value that is not known)
    """A value that the closed list does not give."""


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.MatMult: operator.matmul,
}  # fmt: skip
_SHAPED = {"ones", "zeros", "full", "rand", "randn", "random", "random_sample", "standard_normal"}
_FUNCTIONS = {
    "array": "array", "tensor": "array", "asarray": "array", "Tensor": "array", "FloatTensor": "array", "eye": "eye",
    "identity": "eye", "ones": "ones", "zeros": "zeros", "full": "full", "ones_like": "ones_like",
    "zeros_like": "zeros_like", "arange": "arange", "linspace": "linspace", "reshape": "reshape", "dot": "dot",
    "transpose": "transpose", "triu": "triu", "tril": "tril", "diag": "diag", "matmul": "matmul", "outer": "outer",
    "concatenate": "concatenate", "cat": "concatenate", "stack": "stack", "vstack": "vstack", "hstack": "hstack",
    "column_stack": "column_stack", "sqrt": "sqrt", "exp": "exp", "log": "log", "sin": "sin", "cos": "cos",
    "abs": "abs", "float32": "float64", "float64": "float64", "expand_dims": "expand_dims",
}  # fmt: skip
_METHODS = {"flatten": "ravel", "ravel": "ravel", "transpose": "transpose", "squeeze": "squeeze", "copy": "copy",
            "clone": "copy", "numpy": "copy", "float": "copy", "double": "copy", "detach": "copy", "astype": "copy",
            "to": "copy", "contiguous": "copy", "dot": "dot", "matmul": "matmul"}  # fmt: skip
_DRAWS = {"randn", "rand", "randint", "normal", "uniform", "permutation", "choice", "random", "random_sample",
          "standard_normal", "integers", "shuffle"}  # fmt: skip
_CONSTANTS = {"inf": math.inf, "pi": math.pi, "e": math.e, "nan": math.nan, "newaxis": None}
_LIBRARIES = {"np", "numpy", "torch", "math", "jnp"}
_FAILURES = (ValueError, TypeError, IndexError, ZeroDivisionError, OverflowError, AttributeError, KeyError, MemoryError)


class _Reader:
    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.legacy: np.random.RandomState | None = None
        self.calls: list[Call] = []
        self.findings: list[Finding] = []

    def statements(self, code: str) -> list[ast.stmt]:
        """The statements of a listing; where it is no Python as a whole, of those of its lines that are."""
        code = re.sub(r"^\s*(?:>>>|\.\.\.|In \[\d*\]:) ?", "", code, flags=re.MULTILINE)
        if (whole := _parsed(code)) is not None:
            found = whole
        else:
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
                self.expression(node.value)
        except (RecursionError, *_FAILURES) as error:
            self.findings.append(_unread(_source(node), str(error) or type(error).__name__))

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
        before = len(self.calls)
        try:
            found = self.value(value)
        except _Unknown:
            for name in names:
                self.names.pop(name, None)
            # The call that is evaluated last is the outermost.
            if len(self.calls) > before and isinstance(value, ast.Call):
                self.calls[-1] = replace(self.calls[-1], targets=tuple(names))
            return
        if isinstance(target, ast.Name):
            self.names[target.id] = found
        elif isinstance(target, ast.Tuple | ast.List) and len(found) == len(target.elts):
            for each, item in zip(target.elts, found, strict=True):
                if isinstance(each, ast.Name):
                    self.names[each.id] = item

    def expression(self, node: ast.expr) -> None:
        """A statement that is an expression: a print, a call, or a result that a notebook would show."""
        if isinstance(node, ast.Call) and _name(node.func) == "print":
            for argument in node.args:
                self.shown(argument)
        else:
            self.shown(node)

    def shown(self, node: ast.expr, digits: int | None = None) -> None:
        if isinstance(node, ast.Call) and (rounded := self.rounding(node)) is not None:
            return self.shown(rounded[0], rounded[1])
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("tolist", "numpy", "item")
        ):
            return self.shown(node.func.value, digits)
        if isinstance(node, ast.Name):
            for at, call in enumerate(self.calls):
                if node.id in call.targets:
                    self.calls[at] = replace(call, printed=True, digits=digits if call.digits is None else call.digits)
            return None
        before = len(self.calls)
        try:
            self.value(node)
        except _Unknown:
            if len(self.calls) > before:
                self.calls[-1] = replace(self.calls[-1], printed=True, digits=digits)
        return None

    def rounding(self, node: ast.Call) -> tuple[ast.expr, int] | None:
        """What a call of `round` rounds, and to how many decimals."""
        if not node.args and not (isinstance(node.func, ast.Attribute) and node.func.attr == "round"):
            return None
        if _name(node.func) in ("round", "np.round", "numpy.round", "np.around", "torch.round"):
            inner, rest = node.args[0], node.args[1:]
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "round":
            inner, rest = node.func.value, node.args
        else:
            return None
        rest = [*rest, *(each.value for each in node.keywords if each.arg in ("decimals", "ndigits"))]
        digits = self.value(rest[0]) if rest else 0
        return (inner, digits) if isinstance(digits, int) else None

    # --- values

    def value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            if node.id in self.names:
                return self.names[node.id]
            raise _Unknown
        if isinstance(node, ast.Tuple | ast.List):
            return type_of(node)(self.value(each) for each in node.elts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            operand = self.value(node.operand)
            return -operand if isinstance(node.op, ast.USub) else operand
        if isinstance(node, ast.BinOp):
            return self.operation(node)
        if isinstance(node, ast.Attribute):
            return self.attribute(node)
        if isinstance(node, ast.Subscript):
            return self.value(node.value)[self.index(node.slice)]
        if isinstance(node, ast.Call):
            return self.call(node)
        raise _Unknown

    def operation(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(left, str | dict) or isinstance(right, str | dict):
            raise _Unknown
        if isinstance(node.op, ast.Pow):
            if isinstance(left, int) and isinstance(right, int) and (abs(right) > _LARGEST_POWER or abs(left) > 10**12):
                raise OverflowError("a power that is too large")
            return left**right
        if type(node.op) not in _OPERATORS:
            raise _Unknown
        if isinstance(left, list | tuple) or isinstance(right, list | tuple):
            if not (isinstance(left, int) or isinstance(right, int) or type(left) is type(right)):
                left, right = _array(left), _array(right)
            elif isinstance(node.op, ast.Mult) and _count(left) * _count(right) > MOST_ENTRIES:
                raise OverflowError("more than 10^6 entries")
        elif max(_entries(left), 1) * max(_entries(right), 1) > MOST_ENTRIES and _entries(left) != _entries(right):
            _bounded(_broadcast(left, right, isinstance(node.op, ast.MatMult)))
        return _OPERATORS[type(node.op)](left, right)

    def attribute(self, node: ast.Attribute) -> Any:
        if _name(node.value) in _LIBRARIES:
            if node.attr in _CONSTANTS:
                return _CONSTANTS[node.attr]
            raise _Unknown
        value = self.value(node.value)
        if node.attr in ("T", "mT"):
            return _array(value).T
        if node.attr in ("shape", "size", "ndim") and hasattr(value, "shape"):
            return getattr(value, node.attr)
        raise _Unknown

    def index(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Slice):
            parts = [None if part is None else self.value(part) for part in (node.lower, node.upper, node.step)]
            return slice(*parts)
        return tuple(self.index(each) for each in node.elts) if isinstance(node, ast.Tuple) else self.value(node)

    def call(self, node: ast.Call) -> Any:
        name = _name(node.func)
        library, _, function = name.rpartition(".")
        if library in ("np.random", "numpy.random"):
            return self.random(function, node)
        if library in ("np", "numpy", "torch", "math", "jnp") and function in _FUNCTIONS:
            return self.build(function, *self.arguments(node))
        if name in ("float", "int", "list", "tuple", "range") and len(node.args) >= 1:
            return self.convert(name, node)
        if isinstance(node.func, ast.Attribute) and library not in _LIBRARIES and not library.startswith("torch."):
            try:
                owner = self.value(node.func.value)
            except _Unknown:
                owner = None
            if owner is not None:
                return self.method(owner, node.func.attr, node)
        self.record(name, node)
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
        self.calls.append(Call(name or _source(node.func), tuple(arguments)))

    def arguments(self, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a constructor; dtypes and devices change no number here."""
        keywords = {each.arg: self.value(each.value) for each in node.keywords
                    if each.arg not in ("dtype", "device", "requires_grad", None)}  # fmt: skip
        chosen = [
            each
            for each in node.args
            if not _name(each).startswith(("np.float", "torch.", "np.int", "jnp.", "float", "int"))
        ]
        return [self.value(each) for each in chosen], {name or "": value for name, value in keywords.items()}

    def build(self, function: str, args: list[Any], keywords: dict[str, Any]) -> Any:
        import numpy as np

        name = _FUNCTIONS[function]
        if name in _SHAPED:
            shape = keywords.pop("size", None) or keywords.pop("shape", None)
            if shape is None:
                # torch.ones(2, 3) has its sizes apart, np.ones((2, 3)) together.
                apart = name != "full" and len(args) > 1
                shape, args = (tuple(args), []) if apart else (args[0], args[1:])
            args = [_bounded(shape), *args]
        elif name == "eye":
            args = [*args[:1], *args[1:]]
            _bounded((args[0], args[1] if len(args) > 1 else args[0]))
        elif name == "arange":
            ends = [*args, 0] if len(args) == 1 else args
            _bounded(abs(ends[1] - ends[0]) / abs(args[2] if len(args) > 2 else 1))
        elif name == "linspace":
            _bounded(args[2] if len(args) > 2 else keywords.get("num", 50))
        elif name == "outer":
            _bounded((_entries(_array(args[0])), _entries(_array(args[1]))))
        if "diagonal" in keywords:
            keywords["k"] = keywords.pop("diagonal")
        if function in ("cat", "stack") and "dim" in keywords:
            keywords["axis"] = keywords.pop("dim")
        if name == "transpose" and len(args) == 3:
            return np.swapaxes(*args)
        found = getattr(np, name)(*args, **keywords)
        if getattr(found, "dtype", None) == object or _entries(found) > MOST_ENTRIES:
            raise ValueError("rows of different lengths, or more than 10^6 entries")
        return found if getattr(found, "ndim", 0) else found.item() if hasattr(found, "item") else found

    def convert(self, name: str, node: ast.Call) -> Any:
        args = [self.value(each) for each in node.args]
        if name == "float":
            return float(args[0])
        if name == "int":
            return int(args[0])
        if name == "range":
            _bounded(abs(args[1] - args[0]) if len(args) > 1 else args[0])
            return list(range(*args))
        return list(args[0]) if name == "list" else tuple(args[0])

    def method(self, owner: Any, name: str, node: ast.Call) -> Any:
        import numpy as np

        if isinstance(owner, np.random.Generator | np.random.RandomState):
            return self.draw(owner, name, node)
        args, keywords = self.arguments(node)
        value = _array(owner)
        if name in ("reshape", "view"):
            return value.reshape(*args)
        if name == "astype" and node.args and _name(node.args[0]) in ("int", "np.int32", "np.int64"):
            return value.astype(int)
        if name == "unsqueeze":
            return np.expand_dims(value, args[0])
        if name in ("t", "permute", "swapaxes") or (name == "transpose" and len(args) == 2 and value.ndim > 2):
            return (
                value.T if name == "t" else value.transpose(*args) if name == "permute" else np.swapaxes(value, *args)
            )
        if name == "size":
            return value.shape[args[0]] if args else value.shape
        if name == "tolist":
            return value.tolist()
        if name == "transpose" and len(args) == 2 and value.ndim == 2:
            return value.T if sorted(axis % 2 for axis in args) == [0, 1] and args[0] != 0 else value.transpose(*args)
        if name in _METHODS:
            return (
                getattr(value, _METHODS[name])(*args)
                if name in ("transpose", "dot")
                else getattr(value, _METHODS[name])()
            )
        self.record(f"{_source(node.func)}", node)
        raise _Unknown

    def random(self, function: str, node: ast.Call) -> Any:
        """The functions of np.random: a private stream, so that NumPy's is not touched."""
        import numpy as np

        if function in ("seed", "RandomState", "default_rng"):
            args, _ = self.arguments(node)
            if not args or not isinstance(args[0], int) or not 0 <= args[0] < 2**32:
                self.findings.append(_unread(_source(node), "a seed is needed"))
                raise _Unknown
            if function == "default_rng":
                return np.random.default_rng(args[0])
            stream = np.random.RandomState(args[0])
            if function == "RandomState":
                return stream
            self.legacy = stream
            return None
        if self.legacy is None:
            self.findings.append(_unread(_source(node), "a draw without a seed"))
            raise _Unknown
        return self.draw(self.legacy, function, node)

    def draw(self, stream: Any, function: str, node: ast.Call) -> Any:
        if function not in _DRAWS or not hasattr(stream, function):
            self.findings.append(_unread(_source(node), "a draw that is not known"))
            self.legacy = None  # what follows in the stream is not known either
            raise _Unknown
        args, keywords = self.arguments(node)
        if function in ("rand", "randn"):
            _bounded(tuple(args))
        elif function in ("permutation", "shuffle"):
            _bounded(args[0] if isinstance(args[0], int) else _entries(_array(args[0])))
        for each in (*args, keywords.get("size")):
            if isinstance(each, tuple) or each is keywords.get("size", ()):
                _bounded(each if each is not None else 1)
        if function in (
            "normal",
            "uniform",
            "integers",
            "randint",
            "choice",
            "random",
            "standard_normal",
            "random_sample",
        ):
            place = {"choice": 1, "random": 0, "standard_normal": 0, "random_sample": 0}.get(function, 2)
            _bounded(args[place] if len(args) > place and args[place] is not None else 1)
        if function == "shuffle" and isinstance(args[0], list):
            stream.shuffle(args[0])
            return None
        return getattr(stream, function)(*args, **keywords)


def type_of(node: ast.Tuple | ast.List) -> type[tuple[Any, ...]] | type[list[Any]]:
    return tuple if isinstance(node, ast.Tuple) else list


def _parsed(code: str) -> list[ast.stmt] | None:
    import warnings

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
    if isinstance(node, ast.Name):
        return node.id
    owner = _name(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{owner}.{node.attr}" if owner and isinstance(node, ast.Attribute) else ""


def _source(node: ast.AST) -> str:
    try:
        return ast.unparse(node)[:200]
    except (RecursionError, ValueError):
        return "an expression that is too deep"


def _array(value: Any) -> Any:
    import numpy as np

    return np.asarray(value)


def _entries(value: Any) -> int:
    return int(getattr(value, "size", 1))


def _count(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple) else value if isinstance(value, int) else 1


def _broadcast(left: Any, right: Any, product: bool) -> tuple[int, ...]:
    import numpy as np

    if product:
        return (*left.shape[:-1], *right.shape[-1:])
    return np.broadcast_shapes(np.shape(left), np.shape(right))


def _bounded(shape: Any) -> Any:
    """A shape of at most 10⁶ entries; OverflowError otherwise."""
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    if any(not isinstance(size, int | float) or size < 0 for size in sizes) or math.prod(sizes) > MOST_ENTRIES:
        raise OverflowError("a shape that is negative or has more than 10^6 entries")
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
