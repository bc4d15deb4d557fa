"""Listings of PyTorch or NumPy code, read line by line and never run.

A listing whose indentation, line numbers or spaces are damaged is still read. Blanks ("___(a)___", "____A____",
"[BLANK]", "?") become names that a candidate may replace.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from .solvers.formulas import Terms, inverse, number, plus, symbol, times

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
    text = marked(text.replace("```python", "").replace("```", ""))
    for sign, plain in {"−": "-", "→": "->", "“": '"', "”": '"', "’": "'", "‘": "'"}.items():
        text = text.replace(sign, plain)
    top = Function("", ())
    functions: dict[str, Function] = {}
    current, owner, quoted = top, "", False
    pending: Statement | None = None
    for place, line in _numbered(text.splitlines()):
        code, comment = _without_comment(line)
        if quoted or '"""' in line or "'''" in line:
            quoted ^= len(re.findall(r'"""|\'\'\'', line)) % 2 == 1
            _declare(current, line)
            continue
        if not code.strip():
            _declare(current, comment)
            continue
        indent = len(code) - len(code.lstrip())
        statement = Statement(place, indent, _mended(code.strip()), comment)
        if pending is not None:
            joined = f"{pending.text} {statement.text}".replace("( ", "(")
            statement = Statement(pending.number, pending.indent, joined, pending.comment or comment)
            pending = None
        if _open_brackets(statement.text) > 0 or statement.text.endswith("\\"):
            pending = Statement(statement.number, statement.indent, statement.text.rstrip("\\ "), statement.comment)
            continue
        if found := re.match(r"class\s+(\w+)", statement.text):
            owner, current = found[1], top
        elif found := re.match(r"(?:async\s+)?def\s+(\w+)\s*\((.*)\)", statement.text):
            names = tuple(re.sub(r"[:=].*", "", each).strip(" *") for each in _split(found[2]))
            inside = owner if "self" in names or indent else ""
            current = functions[found[1]] = Function(
                found[1], tuple(n for n in names if n and n != "self"), owner=inside
            )
            _declare(current, comment)
        else:
            current.body.append(statement)
    labels = tuple(dict.fromkeys(BLANK.findall(text)))
    return Listing(functions, top, labels)


def _numbered(lines: Sequence[str]) -> list[tuple[int, str]]:
    """Lines with their numbers: printed ones are taken off where most lines have one."""
    full = [line for line in lines if line.strip()]
    printed = [re.match(r"\s*(\d{1,3})(?=[\sA-Za-z_#\"'@]|$)", line) for line in full]
    if full and sum(found is not None for found in printed) > 0.7 * len(full) and len(full) > 2:
        kept, last = [], 0
        for line in lines:
            found = re.match(r"\s*(\d{1,3})(?=[\sA-Za-z_#\"'@]|$)", line)
            last = int(found[1]) if found else last
            kept.append((last, line[found.end() :] if found else line))
        return kept
    return list(enumerate(lines, 1))


def _mended(code: str) -> str:
    """Words that lost the space behind them."""
    code = re.sub(r"^class(?=[A-Z])", "class ", code)
    code = re.sub(r"^def(?=[a-z_]+\s*\()", "def ", code)
    return re.sub(r"^return(?=(?:self|torch|F|np|nn|[a-z_]+)\b)(?!\w*\s*=)", "return ", code)


def _without_comment(line: str) -> tuple[str, str]:
    quote = ""
    for place, sign in enumerate(line):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign == "#":
            return line[:place], line[place:]
    return line, ""


def _declare(function: Function, text: str) -> None:
    for pattern in (_DECLARED, _COMMENTED):
        for found in pattern.finditer(text.strip()):
            function.declared.setdefault(found[1], found[2])


def _open_brackets(text: str) -> int:
    bare = re.sub(r"\"[^\"]*\"|'[^']*'", "", text)
    return sum((sign in "([{") - (sign in ")]}") for sign in bare)


def _split(text: str) -> list[str]:
    depth, start, found = 0, 0, []
    for place, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            found.append(text[start:place])
            start = place + 1
    return [*found, text[start:]]


def size_of(text: str) -> Terms | None:
    """A size such as "n+1", "2*d_model", "2 d" or "d//h", or None.

    >>> size_of("2d") == size_of("d + d")
    True
    """
    plain = re.sub(
        r"(?<=[\w)])\s+(?=[\w(])|(?<=\b\d)(?=[A-Za-z_])", "*", text.replace("self.", "").replace("^", "**").strip()
    )
    try:
        return _size(ast.parse(plain, mode="eval").body)
    except (SyntaxError, ValueError):
        return None


def _size(node: ast.expr) -> Terms:
    match node:
        case ast.Constant(value=int() as value):
            return number(value)
        case ast.Name(id=name) if not BLANK.match(name):
            return symbol(name)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)) if 0 < power < 9:
            return times(*[_size(left)] * power)
        case ast.BinOp(left=left, op=op, right=right):
            one, other = _size(left), _size(right)
            if isinstance(op, ast.Add | ast.Sub):
                return plus(one, other if isinstance(op, ast.Add) else times(number(-1), other))
            below = inverse(other) if isinstance(op, ast.Div | ast.FloorDiv) else other
            if isinstance(op, ast.Mult | ast.Div | ast.FloorDiv) and below is not None:
                return times(one, below)
    raise ValueError("not a size")


def shape_of(text: str) -> tuple[Terms, ...] | None:
    """A shape such as "[b, h, n+1, d]"."""
    sizes = [size_of(part) for part in _split(text.strip()[1:-1].replace("×", ","))] if text[:1] in "[(" else []
    return tuple(size for size in sizes if size is not None) if sizes and None not in sizes else None
