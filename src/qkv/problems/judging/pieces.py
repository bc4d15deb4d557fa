"""An answer of several pieces, taken apart: labelled equations, tables, stacked rows, or one after the other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..reading.literals import ENVIRONMENT, cells_of, number_of, split_outside
from .dots import undotted

_SMALL = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_TURNED = r"(?:\s*\^\s*(?:T|\\top|\\intercal|\{\s*(?:T|\\top|\\intercal)\s*\})|\s*ᵀ)?"
_TIE = r"[*`$\s)]*&?\s*(?::?=|:|\\approx|≈|→|->|\\rightarrow|\\to\b|\b(?:is|are)\b)\s*&?"
_ENVIRONMENTS = r"\{(?:align|aligned|gather|gathered|equation|split|cases)\*?\}"
_BEHIND = re.compile(
    rf"(?:\\\\(?:\[[^\]]{{0,20}}\])?|\\q?quad|\\[,;!\[\]()]|(?<!\\)\\|\band|\n\s?[-•]|\\text\{{\s?(?:and)?[\s,.]?\}}|\\end{_ENVIRONMENTS})$"
)
_BEFORE = re.compile(rf"(?:[\s,;$&*`]|\|(?=\s)|\\\\|\\q?quad|\\[,;!\[(]|[-•]\s|\\begin{_ENVIRONMENTS})+")
_REMARK = re.compile(
    r"(?<![\s,;.(])[\s,;.(]+(?:because|since|where|which|as (?:the|q|k|so)|so (?:that|the)|by (?:the|def)|using|note"
    r"|from (?:the|part)|hence|therefore|thus|\\text\s?\{|\\q?quad|\\tag)"
    r"|\n\s?\n|\n\s?(?=[A-Za-z]{3,})|[.;]\s(?=[A-Z])|\s--\s|\s#",
    re.IGNORECASE,
)

MOST_TOGETHER = 12  # names of a list of names
_VECTOR = re.compile(ENVIRONMENT.pattern + r"|[\[(][^\[\]()]{1,400}[\])]", re.DOTALL)
_LED_IN = re.compile(r"^[A-Za-z][A-Za-z ]{2,60}\s(?:as|are|is|be|to)\s(?=[-−$(\[\d])")
_BOLD_PRODUCT = re.compile(r"\\(mathbf|boldsymbol|bm)\s?\{([A-Z]{2,3})\}")
_BRACKETS = re.compile(r"[\[(][^\[\]()]{0,2000}[\])]")


def tidy(answer: str) -> str:
    r"""A text whose runs of spaces are short, so that no pattern has long ones to try; bold products and entries that
    are parted by wide spaces are written as the reader of mathematics knows them.

    >>> tidy(r"\mathbf{QK}^\top   =  [2 \quad 3]")
    '\\mathbf{Q}\\mathbf{K}^\\top = [2, 3]'
    """
    answer = undotted(answer)
    answer = re.sub(r"\n\s*\n\s*", "\n\n", re.sub(r"[^\S\n]+", " ", answer))
    answer = _BOLD_PRODUCT.sub(lambda found: "".join(rf"\{found[1]}{{{letter}}}" for letter in found[2]), answer)
    return _BRACKETS.sub(_with_commas, answer)


def _with_commas(found: re.Match[str]) -> str:
    r"""A bracket whose entries are parted by wide spaces, or numbers by any."""
    text = re.sub(r"\s?,?\s?\\q?quad\s?,?\s?", ", ", found[0])
    cells = re.split(r"(?:\s|\\[,;:! ])+", text[1:-1].strip())
    if "," not in text and len(cells) > 1 and all(number_of(cell) is not None for cell in cells):
        return f"{text[0]}{', '.join(cells)}{text[-1]}"
    return text


def name_pattern(name: str) -> str:
    r"""A name in the ways that people write it: q_1, q1, q_{1}, q₁, \mathbf{q}_1, \mathbf q_1^\top, z_{3,1}, z31."""
    letter, _, below = name.partition("_")
    below = below.strip("{}")
    bold = (
        rf"(?:\\(?:mathbf|boldsymbol|bm|vec|mathrm|mathit|hat)\s*\{{?\s*|\{{\s*\\bf\s+)?\\?{re.escape(letter)}\s*\}}?"
    )
    if below:
        digits = r"\s*,?\s*".join(map(re.escape, re.split(r"\s*,\s*", below)))
        small = r"\s*,?\s*".join(map(re.escape, re.split(r"\s*,\s*", below.translate(_SMALL))))
        bold += rf"\s*(?:_?\s*\{{?\s*{digits}\s*\}}?|{small})\s*\}}?"
    return rf"(?<![\w\\]){bold}{_TURNED}(?!\w)"


def cleaned(piece: str) -> str:
    r"""A piece without what stands around it.

    >>> cleaned(r"& (2, 3) \quad \\ "), cleaned("$(1, 2)$, and"), cleaned(r"| |\gamma| |")
    ('(2, 3)', '(1, 2)', '|\\gamma|')
    """
    begun = _BEFORE.match(piece)
    kept = piece[begun.end() :] if begun else piece
    while True:
        # A stroke with a space before it is a table's edge; another may close an absolute value.
        kept = re.sub(r"(?:[\s,;.$&*`]|\s\|)+$", "", kept[-80:]).join((kept[:-80], ""))
        if kept.endswith("|") and kept.count("|") % 2:
            kept = kept[:-1]
            continue
        ending = _BEHIND.search(kept, max(0, len(kept) - 60))
        if ending is None:
            return kept
        kept = kept[: ending.start()]


def without_remarks(answer: str) -> str:
    """What stands before a remark in words.

    >>> without_remarks("(2, 3) because the rows are short")
    '(2, 3)'
    """
    found = _REMARK.search(answer, 1)
    return cleaned(answer[: found.start()]) if found else cleaned(answer)


def labelled(answer: str, names: Sequence[str], aliases: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """Name to what the text gives for it, in the order of the text."""
    places = sorted(
        (found.start(), found.end(), name)
        for name in names
        for pattern in (name_pattern(name), *aliases.get(name, ()))
        for found in re.finditer(pattern + _TIE, answer)
    )
    pieces: dict[str, list[str]] = {}
    done = 0
    for place, (start, end, name) in enumerate(places):
        if start < done:
            continue
        stop = next((later for later, _, _ in places[place + 1 :] if later >= end), len(answer))
        done = end
        if text := cleaned(answer[end:stop]):
            pieces.setdefault(name, []).append(text)
    return pieces


def stacked(answer: str, names: Sequence[str], stems: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """Rows of a matrix, or entries of a vector, for names that belong together: "Q = [[2, 3], [1, 0]]" gives q_1, q_2.

    `stems` maps a label to the names that it holds, in order.
    """
    found: dict[str, list[str]] = {}
    for stem, text in ((stem, text) for stem, texts in labelled(answer, list(stems), {}).items() for text in texts):
        last = split_outside(text.replace(r"\approx", "=").replace("≈", "="), "=")[-1]
        for name, cell in _spread(last, stems[stem]).items():
            found.setdefault(name, []).append(cell)
    return {name: texts for name, texts in found.items() if name in names}


def named_together(answer: str, names: Sequence[str]) -> dict[str, list[str]]:
    """All names in a list of their own, then their values: "(z_1, z_2) = (3, 4)"."""
    if not 1 < len(names) <= MOST_TOGETHER:
        return {}
    listed = r"\s?,?\s?(?:and\s)?".join(map(name_pattern, names))
    begun = re.search(rf"[(\[]?\s?{listed}\s?[)\]]?{_TIE}", answer)
    if begun is None:
        return {}
    cells = _spread(answer[begun.end() :], names) or dict(
        zip(names, in_order(without_remarks(answer[begun.end() :]), len(names)), strict=False)
    )
    return {name: [cell] for name, cell in cells.items()}


def _spread(text: str, names: Sequence[str]) -> dict[str, str]:
    cells = cells_of(cleaned(text)) or cells_of(without_remarks(text))
    if cells is None:
        # Vectors one after the other: "(2, 3), (1, 0) and (4, 5)".
        listed = [found[0] for found in _VECTOR.finditer(text)]
        if len(listed) == len(names):
            return dict(zip(names, listed, strict=True))
        begun = _VECTOR.match(text.lstrip(" $"))
        alone = cells_of(begun[0]) if begun and len(listed) == 1 else None
        if alone and alone[1] and len(alone[0][0]) == len(names):
            return dict(zip(names, alone[0][0], strict=True))
        return {}
    rows, flat = cells
    if flat and len(rows[0]) == len(names):
        return dict(zip(names, rows[0], strict=True))
    if not flat and len(rows) == len(names):
        return {name: f"({', '.join(row)})" for name, row in zip(names, rows, strict=True)}
    return {}


def tabled(answer: str, names: Sequence[str]) -> dict[str, list[str]]:
    """Cells of a Markdown table whose head has the letters and whose rows have the numbers of the names.

    >>> tabled("| i | q | k |\\n|---|---|---|\\n| 1 | (2, 3) | (5, 7) |", ["q_1", "k_1"])
    {'q_1': ['(2, 3)'], 'k_1': ['(5, 7)']}
    """
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")] for line in answer.splitlines() if "|" in line
    ]
    if len(rows) < 2:
        return {}
    found: dict[str, list[str]] = {}
    for row in rows:
        for name in names if len(row) > 1 else ():
            if re.fullmatch(name_pattern(name), row[0].strip("$*` ")):
                found.setdefault(name, []).append(cleaned(row[-1]))
    for row in rows[1:] if not found else ():
        number = re.search(r"[0-9]+|[₁-₉]", row[0])
        for head, cell in zip(rows[0][1:], row[1:], strict=False):
            letter = re.search(r"[A-Za-z]+", re.sub(r"\\\w+|_.*", "", head))
            name = f"{letter[0][0].lower()}_{number[0]}" if letter and number else ""
            if name in names:
                found.setdefault(name, []).append(cleaned(cell))
    return found


def in_order(answer: str, count: int) -> list[str]:
    """The pieces of a text without labels: one a line, or parted by semicolons, or by commas and "and"."""
    for pieces in (
        re.split(r"[;\n]|\\\\(?![^\\]*\\end\{[bpvBV]?matrix)", answer),
        split_outside(re.sub(r",?\s+\band\b\s+|\\q?quad", ", ", answer), ","),
        [found[0] for found in ENVIRONMENT.finditer(answer)],
        split_outside(inner, ",") if (inner := _unwrapped(answer)) else [],
    ):
        kept = [text for text in map(cleaned, pieces) if text]
        if len(kept) == count:
            return [_LED_IN.sub("", kept[0]), *kept[1:]]
    cells = cells_of(cleaned(answer))
    return cells[0][0] if cells and cells[1] and len(cells[0][0]) == count else []


def _unwrapped(answer: str) -> str:
    text = cleaned(answer)
    return text[1:-1] if text[:1] + text[-1:] in ("()", "[]", "{}") else ""
