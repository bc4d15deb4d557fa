"""Listings of NumPy and PyTorch constructors, interpreted by a closed list of names; nothing is executed."""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ...documents.patterns import Table
from ..findings import Finding
from ..forms.statement import split_outside
from .literals import MOST_ENTRIES, read_array

__all__ = ["Argument", "Call", "Interpreted", "interpret", "read_array"]

_MOST_STATEMENTS = 2000
_MOST_FINDINGS = 20
_LARGEST = 10**100  # whole number
_TABLE = Table("qkv.exercises.sheets", "arrays.toml")
_BUILT_IN = {"float": float, "int": int, "list": list, "tuple": tuple}
_LIBRARIES = ("np", "numpy", "torch", "math", "jnp")
_DTYPE = re.compile(r"(?:np|torch|jnp|numpy)\.(?:float|int|bool|half|double|long)\w*|float|int|bool")
_SHOWING = re.compile(
    r"(?:(?P<library>np|numpy|torch)\.|.*\.|)(?:(?P<round>round|around)|tolist|numpy|item)", re.DOTALL
)
_ASSIGNED = re.compile(r"\s*[A-Za-z_][\w.]*\s*=[^=]")
_FAILURES = (ValueError, TypeError, IndexError, ZeroDivisionError, OverflowError, AttributeError, MemoryError)


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

    reader = _Reader()
    with np.errstate(all="ignore"):
        for statement in reader.statements(code):
            reader.statement(statement)
    values = {name: plain for name, value in reader.names.items() if (plain := _plain(value)) is not None}
    return Interpreted(values, tuple(reader.calls), tuple(reader.findings[:_MOST_FINDINGS]))


class _Unknown(Exception):
    """A value that the closed list does not give."""


class _Reader:
    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.legacy: Any = None  # the stream of np.random, a private one
        self.calls: list[Call] = []
        self.findings: list[Finding] = []

    def statements(self, code: str) -> list[ast.stmt]:
        """The statements of a listing; where it is no Python as a whole, of those of its lines that are."""
        code = re.sub(r"^\s*(?:>>>|\.\.\.|In \[\d*\]:) ?", "", code, flags=re.MULTILINE)
        found = _parsed(code)
        if found is None:
            found = []
            for line in filter(None, map(str.strip, split_outside(code, "\n"))):
                parsed = _parsed(line) or _parsed(_by_semicolons(line))
                if parsed is None:
                    self.findings.append(_unread(line, "no Python"))
                found += parsed or []
        if len(found) > _MOST_STATEMENTS:
            self.findings.append(_unread("", f"after {_MOST_STATEMENTS} statements"))
        return found[:_MOST_STATEMENTS]

    def statement(self, node: ast.stmt) -> None:
        try:
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self.assign(target, value)
                case ast.AugAssign(target=ast.Name(id=name) as target, op=kind, value=value):
                    self.assign(target, ast.BinOp(ast.Name(name), kind, value))
                case ast.Expr(value=ast.Call(func=ast.Name(id="print"), args=printed)):
                    for each in printed:
                        self.shown(each)
                case ast.Expr(value=value):
                    self.shown(value)
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
        if isinstance(node, ast.Call) and (found := _SHOWING.fullmatch(_source(node.func))):
            owner = [node.func.value] if isinstance(node.func, ast.Attribute) and not found["library"] else []
            inner, *decimals = owner + node.args + [each.value for each in node.keywords]
            rounded = self.value(decimals[0]) if decimals else 0
            return self.shown(inner, rounded if found["round"] else digits)
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

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Tuple(elts=items) | ast.List(elts=items):
                found = [self.value(each) for each in items]
                return tuple(found) if isinstance(node, ast.Tuple) else found
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand)
            case ast.BinOp(left=left, op=kind, right=right) if type(kind).__name__ in _TABLE.data["operators"]:
                return self.operation(kind, self.value(left), self.value(right))
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(part and self.value(part) for part in (lower, upper, step)))
            case ast.Subscript(value=owner, slice=index):
                return self.value(owner)[self.value(index)]
            case ast.Attribute(value=ast.Name(id=library), attr=name) if library in _LIBRARIES:
                if name in _TABLE.data["constants"]:
                    return _TABLE.data["constants"][name]
            case ast.Attribute(value=owner, attr="T" | "shape" | "size" | "ndim" as name):
                return getattr(self.value(owner), name)
            case ast.Call():
                return self.call(node)
        raise _Unknown

    def operation(self, kind: ast.operator, left: Any, right: Any) -> Any:
        import numpy as np

        if isinstance(left, str) or isinstance(right, str):
            raise _Unknown
        if isinstance(kind, ast.Pow) and isinstance(left, int) and np.max(np.abs(right)) > 64:
            raise OverflowError("a power that is too large")
        if isinstance(left, list | tuple) or isinstance(right, list | tuple):
            _bounded(*(len(each) if isinstance(each, list | tuple) else _entries(each) for each in (left, right)))
        elif isinstance(kind, ast.MatMult):
            _bounded(*np.shape(left)[:-1], *np.shape(right)[-1:])
        else:
            _bounded(*np.broadcast_shapes(np.shape(left), np.shape(right)))
        found = getattr(operator, _TABLE.data["operators"][type(kind).__name__])(left, right)
        if isinstance(found, int) and abs(found) > _LARGEST:
            raise OverflowError("a number that is too large")
        return found

    def call(self, node: ast.Call) -> Any:
        import numpy as np

        name = _name(node.func)
        library, _, function = name.rpartition(".")
        if library in ("np.random", "numpy.random"):
            return self.draw(self.legacy, function, node)
        if name in _BUILT_IN and len(node.args) == 1:
            return _BUILT_IN[name](self.value(node.args[0]))
        owner: list[Any] = []
        if isinstance(node.func, ast.Attribute) and library.partition(".")[0] not in _LIBRARIES:
            function = node.func.attr
            with suppress(_Unknown):
                owner = [self.value(node.func.value)]
        if owner and isinstance(owner[0], np.random.Generator | np.random.RandomState):
            return self.draw(owner[0], function, node)
        function = _TABLE.data["other_names"].get(function, function)
        if (owner or library in _LIBRARIES) and function in _TABLE.data["functions"]:
            args, keywords = self.arguments(node)
            return _built(function, owner + args, keywords)
        if owner and function == "astype" and node.args:
            return np.asarray(owner[0]).astype(int if "int" in _name(node.args[0]) else float)
        self.record(name or _source(node.func), node)
        raise _Unknown

    def record(self, name: str, node: ast.Call) -> None:
        """Remember a call that the closed list does not know."""
        arguments: list[Argument] = []
        for keyword, each in [*(("", each) for each in node.args), *((each.arg, each.value) for each in node.keywords)]:
            value = None
            with suppress(_Unknown):
                value = _plain(self.value(each))
            arguments.append(Argument(_source(each), value, keyword or ""))
        self.calls.append(Call(name, tuple(arguments)))

    def arguments(self, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a constructor; dtypes and devices change no number here."""
        renamed = _TABLE.data["other_keywords"]
        keywords = {renamed.get(each.arg, each.arg): self.value(each.value) for each in node.keywords
                    if each.arg not in ("dtype", "device", "requires_grad")}  # fmt: skip
        return [self.value(each) for each in node.args if not _DTYPE.fullmatch(_name(each))], keywords

    def draw(self, stream: Any, function: str, node: ast.Call) -> Any:
        """A draw of a stream, or a new stream: private ones, so that NumPy's is not touched."""
        import numpy as np

        args, keywords = self.arguments(node)
        if stream is self.legacy and function in ("seed", "RandomState", "default_rng"):
            if not args or not isinstance(args[0], int):
                raise ValueError("a seed is needed")
            made = np.random.default_rng(args[0]) if function == "default_rng" else np.random.RandomState(args[0])
            self.legacy = made if function == "seed" else self.legacy
            return made
        if function not in _TABLE.data["draws"] or not hasattr(stream, function):
            why = "a draw without a seed" if stream is None else "a draw that is not known"
            self.legacy = None  # what follows in the stream is not known either
            raise ValueError(why)
        _bounded(*_sizes(_TABLE.data["draws"][function], args, keywords))
        return getattr(stream, function)(*args, **keywords)


def _built(name: str, args: list[Any], keywords: dict[str, Any]) -> Any:
    """The value of a function of NumPy."""
    import numpy as np

    if name in ("ones", "zeros"):
        args = [args] if len(args) > 1 else args  # torch.ones(2, 3) has its sizes apart
    elif name == "transpose" and len(args) == 3:
        name = "swapaxes"  # PyTorch's
    elif name in ("reshape", "transpose") and len(args) > 2:
        args = [args[0], args[1:]]
    _bounded(*_sizes(_TABLE.data["sizes"].get(name, ""), args, keywords))
    found = getattr(np, name)(*args, **keywords)
    return found.item() if np.ndim(found) == 0 else found


def _sizes(rule: str | int, args: list[Any], keywords: dict[str, Any]) -> list[float]:
    """Numbers whose product is at least the number of entries that a call makes."""
    if rule == "":
        return [_count(each) for each in args]
    if rule == "range":
        return [(args[1] - args[0] if len(args) > 1 else args[0]) / (args[2] if len(args) > 2 else 1)]
    chosen = [(args * 2)[:2]] if rule == "square" else args if rule == "all" else args[int(rule) : int(rule) + 1]
    return [_entries(each) for each in (*chosen, *(keywords.get(name) or 1 for name in ("size", "shape", "num")))]


def _entries(value: Any) -> float:
    """What a size means: a number is itself, the sizes of a shape are multiplied, an array has so many entries."""
    if isinstance(value, list | tuple):
        return math.prod(map(_entries, value))
    return value if isinstance(value, int | float) else _count(value)


def _count(value: Any) -> int:
    return sum(map(_count, value)) if isinstance(value, list | tuple) else getattr(value, "size", 1)


def _bounded(*sizes: float) -> None:
    if math.prod(map(abs, sizes)) > MOST_ENTRIES:
        raise OverflowError("an array of more than 10^6 entries")


def _parsed(code: str) -> list[ast.stmt] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "invalid escape sequence" is not for the user
            return ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _by_semicolons(line: str) -> str:
    """Assignments that a comma parts, "Q = [1], n = 2", parted by semicolons."""
    first, *rest = split_outside(line, ",")
    return first + "".join(f"; {piece.strip()}" if _ASSIGNED.match(piece) else f",{piece}" for piece in rest)


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
