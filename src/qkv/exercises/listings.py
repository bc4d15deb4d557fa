"""Listings of PyTorch or NumPy code, read line by line and never run.

A listing whose indentation, line numbers or spaces are damaged is still read. Blanks ("___(a)___", "____A____",
"[BLANK]", "?") become names that a candidate may replace.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..cost.polynomial import Polynomial
from .solvers.formulas import split

BLANK = re.compile(r"BLANK_(\w+)")
_BLANKS = (
    re.compile(r"_{2,}\s*\(\s*([A-Za-z0-9]{1,3})\s*\)\s*_{2,}"),
    re.compile(r"_{2,}\s*([A-Za-z0-9]{1,2})\s*_{2,}"),
    re.compile(r"[\[<{]\s*(?:BLANK|blank|Blank)[\s_]*\(?([A-Za-z0-9]{0,2})\)?\s*[\]>}]"),
    re.compile(r"\(\s*([a-z])\s*\)\s*_{3,}"),
)
_PLAIN_BLANK = re.compile(r"(?<![\w_])_{3,}(?![\w_])|(?<=[(,=\s])\?{1,3}(?=[\s,)]|$)")
_SHAPE = r"[\[(][^\[\]()]*[\])]|BLANK_\w+"
_DECLARED = re.compile(rf"(\w+)\s*[:\-–]\s*(?:[^\[\](),:]*?\bshape\b\s*(?:of\s*)?[:=]?\s*)({_SHAPE})")
_COMMENTED = re.compile(rf"^#+\s*(\w+)\s*:?\s+(?:has shape\s+)?({_SHAPE})")
_COMMENT = re.compile(r"""((?:[^#"']|"[^"]*(?:"|$)|'[^']*(?:'|$))*)(#.*)?""")
# Words that lost the space behind them.
_GLUED = re.compile(r"^(class(?=[A-Z])|def(?=[a-z_]+\s*\()|return(?=(?:self|torch|F|np|nn|[a-z_]+)\b)(?!\w*\s*=))")
_PLAIN = str.maketrans("−“”’‘", "-\"\"''")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
             ast.Div: operator.truediv, ast.FloorDiv: operator.truediv}  # fmt: skip
TRAILING = re.compile(rf"^#*\s*(?:->|→|shape\s*[:=]?|\w+\s*:)?\s*({_SHAPE})")


@dataclass(frozen=True)
class Statement:
    number: int
    indent: int
    text: str
    comment: str = ""


@dataclass
class Function:
    name: str
    parameters: tuple[str, ...]
    body: list[Statement] = field(default_factory=list)
    declared: dict[str, str] = field(default_factory=dict)
    owner: str = ""


@dataclass
class Listing:
    """The functions of a listing, its statements outside of them, and the labels of its blanks."""

    functions: dict[str, Function]
    top: Function
    blanks: tuple[str, ...]


def marked(text: str) -> str:
    """A text with its blanks as names: BLANK_a, or BLANK_1, BLANK_2 where they have no letter.

    >>> marked("x = ___(a)___ + [BLANK]")
    'x = BLANK_a + BLANK_1'
    """
    count = 0

    def numbered(label: str) -> str:
        nonlocal count
        if not label:
            count += 1
        return f"BLANK_{label or count}"

    for pattern in _BLANKS:
        text = pattern.sub(lambda found: numbered(found[1]), text)
    return _PLAIN_BLANK.sub(lambda _: numbered(""), text)


def read(text: str) -> Listing:
    """The structure of a listing; what cannot be parsed is left out."""
    text = marked(re.sub(r"```(?:python)?", "", text).translate(_PLAIN)).replace("→", "->")
    top = Function("", ())
    functions: dict[str, Function] = {}
    current, owner, quoted = top, "", False
    pending: Statement | None = None
    for place, line in _numbered(text.splitlines()):
        code, comment = (part or "" for part in _COMMENT.fullmatch(line).groups())  # pyright: ignore[reportOptionalMemberAccess]
        if quoted or '"""' in line or "'''" in line:
            quoted ^= len(re.findall(r'"""|\'\'\'', line)) % 2 == 1
            _declare(current, line)
            continue
        if not code.strip():
            _declare(current, comment)
            continue
        statement = Statement(place, len(code) - len(code.lstrip()), _GLUED.sub(r"\1 ", code.strip()), comment)
        if pending is not None:
            joined = f"{pending.text} {statement.text}".replace("( ", "(")
            statement = replace(pending, text=joined, comment=pending.comment or comment)
            pending = None
        bare = re.sub(r"\"[^\"]*\"|'[^']*'", "", statement.text)
        if sum((sign in "([{") - (sign in ")]}") for sign in bare) > 0 or bare.endswith("\\"):
            pending = replace(statement, text=statement.text.rstrip("\\ "))
        elif found := re.match(r"class\s+(\w+)", statement.text):
            owner, current = found[1], top
        elif found := re.match(r"(?:async\s+)?def\s+(\w+)\s*\((.*)\)", statement.text):
            names = [re.sub(r"[:=].*", "", each).strip(" *") for each in split(found[2])]
            inside = owner if "self" in names or statement.indent else ""
            current = Function(found[1], tuple(name for name in names if name not in ("", "self")), owner=inside)
            functions[found[1]] = current
            _declare(current, comment)
        else:
            current.body.append(statement)
    return Listing(functions, top, tuple(dict.fromkeys(BLANK.findall(text))))


def _numbered(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Lines with their numbers: printed ones are taken off where most lines have one."""
    printed = [re.match(r"\s*(\d{1,3})(?=[\sA-Za-z_#\"'@]|$)", line) for line in lines]
    full = sum(bool(line.strip()) for line in lines)
    if full < 3 or sum(found is not None for found in printed) <= 0.7 * full:
        yield from enumerate(lines, 1)
        return
    last = 0
    for line, found in zip(lines, printed, strict=True):
        last = int(found[1]) if found else last
        yield last, line[found.end() :] if found else line


def _declare(function: Function, text: str) -> None:
    for pattern in (_DECLARED, _COMMENTED):
        for found in pattern.finditer(text.strip()):
            function.declared.setdefault(found[1], found[2])


def size_of(text: str) -> Polynomial | None:
    """A size such as "n+1", "2*d_model", "2 d" or "d//h", or None.

    >>> size_of("2d") == size_of("d + d")
    True
    """
    plain = text.replace("self.", "").replace("^", "**").strip()
    plain = re.sub(r"(?<=[\w)])\s+(?=[\w(])|(?<=\b\d)(?=[A-Za-z_])", "*", plain)
    try:
        return _size(ast.parse(plain, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, LookupError, ZeroDivisionError):
        return None


def _size(node: ast.expr) -> Polynomial:
    match node:
        case ast.Constant(value=int() as value):
            return Polynomial.of(value)
        case ast.Name(id=name) if not BLANK.match(name):
            return Polynomial.name(name)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)) if 0 < power < 9:
            return _size(left) ** power
        case ast.BinOp(left=left, op=sign, right=right):
            return OPERATORS[type(sign)](_size(left), _size(right))
    raise LookupError("not a size")


def shape_of(text: str) -> tuple[Polynomial, ...] | None:
    """A shape such as "[b, h, n+1, d]"."""
    sizes = [size_of(part) for part in split(text.strip()[1:-1].replace("×", ","))] if text[:1] in "[(" else []
    return tuple(size for size in sizes if size is not None) if sizes and None not in sizes else None
