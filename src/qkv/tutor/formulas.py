"""Formulas in running text: where they are, what a displayed one says line by line, and where sentences end."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST = 400  # formulas of one text that are looked at

_FORMULA = re.compile(
    r"\$\$(?P<display>(?:(?!\$\$)[\s\S]){1,6000}?)\$\$"
    r"|\\\[(?P<square>(?:(?!\\\[|\\\])[\s\S]){1,6000}?)\\\]"
    r"|\\\((?P<round>(?:(?!\\\(|\\\))[^\n]){1,2000}?)\\\)"
    r"|(?<![\\$])\$(?!\$)(?P<inline>(?:[^$\n\\]|\\[^\n]){1,2000}?)\$(?!\$)"
    r"|^(?P<environment>\\begin\{(?:equation|align|gather|eqnarray)\*?\}(?:(?!\\begin)[\s\S]){1,6000}?"
    r"\\end\{(?:equation|align|gather|eqnarray)\*?\})",
    re.MULTILINE,
)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{(?:aligned|align|equation|gather|gathered|eqnarray|split)\*?\}")
_ARROWS = re.compile(r"\\(?:Rightarrow|implies|Longrightarrow|therefore|to|iff|Leftrightarrow)\b|⇒|⟹|∴|⟺")
BOLD = re.compile(r"(?<![\w)\]}])\*\*|\*\*(?![\w({-])|__")  # and not the power of "d**2"
FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*\n[\s\S]*?(?:^[ \t]*(?:```|~~~)[ \t]*$|\Z)", re.MULTILINE)


@dataclass(frozen=True)
class Formula:
    """A formula of a text: `start` and `end` include its marks."""

    text: str
    start: int
    end: int
    display: bool


def formulas(text: str) -> list[Formula]:
    """Every formula of a text, as far as `MOST`.

    >>> [each.text for each in formulas(r"so $a = b$ and $$c = d$$")]
    ['a = b', 'c = d']
    """
    found = []
    for match in _FORMULA.finditer(text):
        body = next(group for group in match.groups() if group is not None).strip()
        if body:
            found.append(Formula(body, match.start(), match.end(), match.lastgroup not in ("inline", "round")))
        if len(found) == MOST:
            break
    return found


def without_code(text: str) -> str:
    """The text without fenced code."""
    return FENCE.sub("\n", text) if "```" in text or "~~~" in text else text


def equations(formula: str) -> list[str]:
    """The equations of a formula in order: lines that go on with a sign of relation are joined to those before.

    >>> equations(r"\\begin{aligned} v &= a + b \\\\ &= c \\\\ w &= 2 \\end{aligned}")
    ['v = a + b = c', 'w = 2']
    >>> equations(r"\\Rightarrow s = \\sqrt{d} \\quad (\\text{the positive root})")
    ['s = \\\\sqrt{d}']
    """
    plain = _ENVIRONMENT.sub(" ", formula)
    lines = [line.replace("&", " ") if "matrix" not in line else line for line in _rows(plain)]
    joined: list[str] = []
    for line in lines:
        for piece in _ARROWS.split(line):
            for part in re.split(r"\\qquad\b|\\quad\b", piece):
                part = _trimmed(part)
                if not part:
                    continue
                if re.match(r"(?:=|\\approx|\\le|\\ge|≈)", part) and joined:
                    joined[-1] = f"{joined[-1]} {part}"
                elif re.search(r"\w", part):
                    joined.append(part)
    return joined


def _rows(text: str) -> list[str]:
    r"""A formula cut at \\, not within a matrix."""
    rows, depth, start = [], 0, 0
    for found in re.finditer(r"\\begin\{|\\end\{|\\\\(?:\[[^\]]{0,8}\])?", text):
        if found.group().startswith("\\begin"):
            depth += 1
        elif found.group().startswith("\\end"):
            depth = max(0, depth - 1)
        elif depth == 0:
            rows.append(text[start : found.start()])
            start = found.end()
    return [*rows, text[start:]]


def _trimmed(text: str) -> str:
    """An equation without remarks: text in brackets at the end, tags, punctuation."""
    text = re.sub(r"\\(?:tag|label)\{[^{}]*\}|\\(?:nonumber|notag|displaystyle|,|;|!)(?![a-zA-Z])", " ", text)
    text = re.sub(r"\\(?:bigl|bigr|Bigl|Bigr|big|Big)(?![a-zA-Z])", " ", text)
    text = re.sub(r"[,;]?\s*\(?\s*\\(?:text|mathrm|textrm|mbox)\{\s*\(?(?!Var|Cov|E\b|E\}|Output|softmax|argmax|sim)"
                  r"[^{}]*[ ][^{}]*\}[^=]*$", " ", text)  # fmt: skip
    text = re.sub(r"\(\s*(?:\\text\{[^{}]*\}[^()=]*)+\)\s*$", " ", text)
    return " ".join(text.split()).strip(",;. ")


def sentences(text: str) -> list[tuple[int, int]]:
    """Where sentences begin and end: at full stops, at line breaks before lists, at empty lines; never in a formula."""
    hidden = list(text)
    for each in formulas(text):
        for place in range(each.start, each.end):
            hidden[place] = "x"
        if each.display:
            hidden[each.end - 1] = "y"
    masked = "".join(hidden)
    found, start = [], 0
    for stop in re.finditer(
        r"(?<=[.!?])[)*\"”’]*\s+(?=\S)|\n\s*\n|\n(?=\s*(?:[-*•]|\d+[.)]|\(|#|\|))|\n(?=\s*\*\*)", masked
    ):
        if masked[start : stop.start()].strip() and not re.search(
            r"\b(?:i\.e|e\.g|cf|resp|approx|eq)\.$", masked[start : stop.start()]
        ):
            found.append((start, stop.end()))
            start = stop.end()
    if masked[start:].strip():
        found.append((start, len(text)))
    return found
