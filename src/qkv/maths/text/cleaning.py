"""From what a caller typed to plain LaTeX in ASCII, with a map back: position by position, to the text as given."""

from __future__ import annotations

import unicodedata

from qkv.errors import Unreadable
from qkv.maths.text.words import LONGEST, LOWERED, RAISED, SIGNS

# Letters of other alphabets that are taken for Latin ones, for the message; any other foreign letter is refused too.
_LOOKS_LIKE = dict(
    zip("аеорсухіјѕԁһӏАВЕКМНОРСТХІЈЅΑΒΕΖΗΙΚΜΝΟΡΤΧο", "aeopcyxijsdhlABEKMHOPCTXIJSABEZHIKMNOPTXo", strict=True)
)


class Clean:
    """`text` in ASCII, and for each of its characters where in `source` it came from."""

    def __init__(self, source: str) -> None:
        if len(source) > LONGEST:
            shown = source[:60]
            raise Unreadable(
                f"{len(source):,} characters are too many: at most {LONGEST:,} are read", shown, (0, len(shown))
            )
        self.source = source
        self._letters: list[str] = []
        self._origin: list[int] = []
        at = 0
        while at < len(source):
            at = self._take(at)
        self.text = "".join(self._letters)
        self._origin.append(len(source))

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Where in the source the characters from `start` to before `stop` came from."""
        first = self._origin[min(start, len(self._origin) - 1)]
        last = self._origin[min(max(stop - 1, start), len(self._origin) - 1)] + 1
        return first, max(first, min(last, len(self.source)))

    def _put(self, letters: str, at: int) -> None:
        self._letters.extend(letters)
        self._origin.extend([at] * len(letters))

    def _take(self, at: int) -> int:
        letter = self.source[at]
        if " " <= letter <= "~":
            self._put(letter, at)
            return at + 1
        for table, mark in ((RAISED, "^"), (LOWERED, "_")):
            if letter in table:
                return self._scripts(at, table, mark)
        if letter in SIGNS:
            self._put(SIGNS[letter], at)
            return at + 1
        if 0x1D400 <= ord(letter) <= 0x1D7FF or 0x2100 <= ord(letter) <= 0x214F:
            plain = unicodedata.normalize("NFKC", letter)
            if len(plain) == 1 and plain.isascii() and plain.isalnum():
                self._put(plain, at)
                return at + 1
            if plain in SIGNS:
                self._put(SIGNS[plain], at)
                return at + 1
        raise Unreadable(_refusal(letter), _printable(self.source), (at, at + 1))

    def _scripts(self, at: int, table: dict[str, str], mark: str) -> int:
        self._put(mark + "{", at)
        while at < len(self.source) and self.source[at] in table:
            self._put(table[self.source[at]], at)
            at += 1
        self._put("}", at - 1)
        return at


def _printable(source: str) -> str:
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in source)


def _refusal(letter: str) -> str:
    code = f"U+{ord(letter):04X}"
    name = unicodedata.name(letter, "a character without a name")
    if letter in _LOOKS_LIKE:
        return f"{letter} is {code} {name}, which only looks like {_LOOKS_LIKE[letter]}: type the Latin letter"
    kind = unicodedata.category(letter)
    if unicodedata.bidirectional(letter) in ("R", "AL", "RLE", "RLO", "LRE", "LRO", "PDF", "RLI", "LRI", "FSI", "PDI"):
        return f"{code} {name} changes or follows the direction of writing, and is not read"
    if kind.startswith(("C", "M")) or kind in ("Zl", "Zp"):
        return f"{code} {name} does not print by itself, and is not read"
    return f"{letter} ({code} {name}) is no sign that qkv reads"
