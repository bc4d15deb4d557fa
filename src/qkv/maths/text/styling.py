"""Commands that style a name or lay out a block: how it looks falls away, what it names stays."""

from __future__ import annotations

import re

from qkv.maths.text import naming
from qkv.maths.text.spelling import Open, Spelling
from qkv.maths.text.words import (
    ACCENTS,
    BLOCKS,
    JOINING,
    MATRICES,
    REFUSALS,
    RELATIONS,
    STYLES,
    TEXTS,
)

_GAP_BELOW = re.compile(r"\s*\[\s*-?[\d.]+\s*[a-z]{2}\s*\]")
_COUNTED = re.compile(r"\s*\{\s*\d+\s*\}")
_STYLED = re.compile(rf"\\({'|'.join(sorted(STYLES | TEXTS, key=len, reverse=True))})\s*\{{([^{{}}]*)\}}")
_SKIPPED_IN_BLOCKS = re.compile(r"&|[.,;]\s*\\(?:\\|end(?![A-Za-z]))")
_BINARY = sorted({*RELATIONS, "cdot", "times", "odot", "otimes", "pm"} - {"=", "<", ">", "<=", ">=", "!=", "==", ":="})
_GOES_ON = re.compile(
    r"(?:[\s&~]|\{\s*\}|\\(?:[,;:! ]|q?quad(?![A-Za-z])))*"
    rf"(?:[-+=<>/*]|!=|:=|\\(?:{'|'.join(_BINARY)})(?![A-Za-z])|\\end(?![A-Za-z])|\Z)"
)
ENDS = frozenset(
    [
        "NUMBER",
        "NAME",
        "CONST",
        "TOP",
        "ONES",
        "ZEROS",
        "REFUSED",
        "RPAR",
        "RBRACK",
        "RBRACE",
        "RSET",
        "BAR_R",
        "NORM_R",
        "RANGLE",
        "END",
        "ALL",
    ]
)


class Styled(Spelling):
    """Styles, accents and environments; letters are Spelling's."""

    def _in_matrix(self) -> bool:
        """Whether & and \\\\ part entries and rows here, and not the lines of a chain."""
        return next((each.kind for each in reversed(self.open) if each.kind in ("BEGIN", "BLOCK")), "") == "BEGIN"

    def _lays_out(self, at: int) -> bool:
        """Whether a & or the stop at the end of a line stands here, which only lay out a chain."""
        if self._in_matrix() or not _SKIPPED_IN_BLOCKS.match(self.text, at):
            return False
        within = any(each.kind == "BLOCK" for each in self.open)
        return within or self._last() not in ENDS or _GOES_ON.match(self.text, at + 1) is not None

    def _environment(self, word: str, at: int, end: int) -> int:
        found = re.match(r"\s*\{([A-Za-z]+)\*?\}(\{[clr| ]*\})?", self.text[end:])
        if found and found[1] in BLOCKS:
            return self._block(word, at, end + found.end())
        if found and found[1].endswith("cases"):
            raise self._unreadable("a value by cases is not read: give one expression", at, end)
        if not found or found[1] not in MATRICES:
            raise self._unreadable("only matrices are read between \\begin and \\end", at, end)
        return self._put("BEGIN" if word == "begin" else "END", found[1], at, end + found.end())

    def _block(self, word: str, at: int, end: int) -> int:
        """An aligned block is a chain: its lines go on from each other."""
        if word == "begin":
            self.open.append(Open("BLOCK", at, ""))
            counted = _COUNTED.match(self.text, end)
            return counted.end() if counted else end
        if not self.open or self.open[-1].kind != "BLOCK":
            raise self._unreadable("this ends no block that is open", at, end)
        self.open.pop()
        return end

    def _row(self, at: int, end: int) -> int:
        """A new line: a row of a matrix, or the same chain in an aligned block."""
        gap = _GAP_BELOW.match(self.text, end)
        end = gap.end() if gap else end
        if self._in_matrix():
            return self._put("ROW", "row", at, end)
        if self._last() in ENDS and not _GOES_ON.match(self.text, end):
            raise self._unreadable("the lines of a block go on from each other, with = or a sign", at, end)
        return end

    def _styled(self, word: str, at: int, end: int) -> int:
        """\\mathbf{q}, \\text{model}, \\mathbb{E}: how it looks falls away, what it names stays."""
        taken = naming.argument(self.text, end)
        if not taken:
            raise self._unreadable(f"\\{word} stands before nothing", at, end)
        inside, stop = taken[0].strip(), taken[1]
        while nested := _STYLED.fullmatch(inside):
            word, inside = nested[1], nested[2].strip()
        if word in TEXTS and inside in JOINING and inside not in self.names:
            raise self._unreadable("words in a sentence are not read, only mathematics", at, stop)
        named = self._named(word, inside, at, stop)
        return named if named > 0 else end

    def _named(self, word: str, inside: str, at: int, stop: int) -> int:
        """What a styled name stands for; -1 where it is none."""
        if word in ("mathbb", "mathbbm", "mathds") and inside == "E":
            return self._put("FUNC", "E", at, stop)
        if word == "mathbb" and inside == "V" and self._opens(stop):
            return self._put("FUNC", "Var", at, stop)
        if word == "mathcal" and inside == "O" and self._opens(stop):
            return self._put("ORDER", "O", at, stop)
        if word == "mathbb" and inside in ("R", "N", "Z", "Q", "C"):
            raise self._unreadable(REFUSALS["mathbb{R}"], at, stop)
        if inside in ("0", "1"):
            return self._put("ONES" if inside == "1" else "ZEROS", inside, at, stop)
        if inside in ("T", "\\top") and self._raised():
            return self._put("TOP", "T", at, stop)
        spelt = inside[1:] if inside.startswith("\\") else inside
        if spelt.isalpha() and (spelt in self.names or len(spelt) == 1 or naming.letter(spelt) or naming.known(spelt)):
            return self._word(spelt, at, stop)
        if re.fullmatch(r"arg\s*(?:\\,)?\s*\\?max", inside):
            return self._put("FUNC", "argmax", at, stop)
        if word in TEXTS and inside.replace("_", "").replace("\\", "").isalnum() and inside[0].isalpha():
            escaped = naming.canonical(inside) if "\\_" in inside else None  # y\_1 is y_1
            return self._word(escaped or inside, at, stop, texted=True)
        if word.startswith("text") and " " in inside:
            raise self._unreadable("words in a sentence are not read, only mathematics", at, stop)
        return -1

    def _raised(self) -> bool:
        return self._last() == "SUP" or self._within("sup")

    def _accented(self, word: str, at: int, end: int) -> int:
        taken = naming.argument(self.text, end)
        base = naming.canonical(taken[0]) if taken else None
        if not taken or not base:
            raise self._unreadable(f"\\{word} goes over one name", at, end)
        return self._word(f"{base}_{ACCENTS[word]}", at, taken[1], texted=True)
