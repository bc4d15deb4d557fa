"""Characters and names: a text in ASCII LaTeX with a map back to the source, and the canonical spelling of names."""

from __future__ import annotations

import re
import unicodedata

from qkv.errors import Unreadable
from qkv.maths.parsing import words
from qkv.maths.parsing.words import FUNCTIONS, SIGNS, STYLES, TEXTS


class CleanText:
    """`text` in ASCII LaTeX, and the position in `source` of each of its characters."""

    def __init__(self, source: str) -> None:
        if len(source) > words.LONGEST:
            shown = source[:60]
            raise Unreadable(
                f"{len(source):,} characters are too many: at most {words.LONGEST:,} are read", shown, (0, len(shown))
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
        """The span in the source of the characters from `start` up to `stop`."""
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
        for table, mark in ((words.RAISED, "^"), (words.LOWERED, "_")):
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
    if letter in words.LOOKS_LIKE:
        return f"{letter} is {code} {name}, which only looks like {words.LOOKS_LIKE[letter]}: type the Latin letter"
    kind = unicodedata.category(letter)
    if unicodedata.bidirectional(letter) in ("R", "AL", "RLE", "RLO", "LRE", "LRO", "PDF", "RLI", "LRI", "FSI", "PDI"):
        return f"{code} {name} changes or follows the direction of writing, and is not read"
    if kind.startswith(("C", "M")) or kind in ("Zl", "Zp"):
        return f"{code} {name} does not print by itself, and is not read"
    return f"{letter} ({code} {name}) is not a sign that qkv reads"


_STYLE = re.compile(
    r"\\(?:" + "|".join(sorted(STYLES | TEXTS | words.OLD_STYLES, key=len, reverse=True)) + r")(?![A-Za-z])\*?"
)
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_PRIMES = re.compile(r"\s*(?:'+|\^\s*\\prime(?![A-Za-z])|\^\s*\{\s*(?:\\prime\s*)+\})")
_RUN = re.compile(r"[A-Za-z0-9]+")
TRAILING_DIGITS = re.compile(r"[0-9]+(?![0-9]|\.[0-9]|[eE][+-]?[0-9])")
CANONICAL = re.compile(r"[A-Za-z]+'*(_[A-Za-z0-9]+)?'*")


def greek_name(word: str) -> str | None:
    """The canonical name of a Greek letter, or None."""
    word = words.VARIANTS.get(word, word)
    return word if word in words.GREEK else None


def canonical_name(written: str) -> str | None:
    """The canonical form of a name, or None if the text is not a name.

    >>> canonical_name(r"d_{\\text{model}}"), canonical_name("μ_q"), canonical_name("x'"), canonical_name("2x")
    ('d_model', 'mu_q', "x'", None)
    """
    try:
        text = CleanText(written).text
    except Unreadable:
        return None
    text = _STYLE.sub("", text)
    for accent, name in words.ACCENTS.items():
        text = re.sub(rf"\\{accent}(?![A-Za-z])\s*(?:\{{([^{{}}]*)\}}|(\\?[A-Za-z]+))", rf"\1\2_{name}", text)
    text = text.replace("\\prime", "'").replace("^", "")
    text = re.sub(r"^([^_]*)\\_", r"\1_", text)  # d\_model is d_model, and d_{a\_b} is d_ab
    spelt = _letters_of(text)
    return spelt if spelt and CANONICAL.fullmatch(spelt) else None


def _letters_of(raw: str) -> str | None:
    """`raw` without styles, braces, backslashes and spaces; None if it contains another command."""
    text = _STYLE.sub("", raw)
    for command in _COMMAND.findall(text):
        if greek_name(command) is None and command not in FUNCTIONS:
            return None
    text = _COMMAND.sub(lambda found: greek_name(found[1]) or found[1], text)
    return re.sub(r"[\s{}]|\\_", "", text)


def primes(text: str, at: int) -> tuple[str, int]:
    """The primes at `at`, as a name keeps them, and where they end."""
    found = _PRIMES.match(text, at)
    if not found:
        return "", at
    written = found[0]
    return "'" * (written.count("'") + written.count("\\prime")), found.end()


def closing(text: str, at: int) -> int:
    """The position at which the brace at `at` is closed, or -1."""
    depth = 0
    for place in range(at, len(text)):
        if text[place] == "{" and text[place - 1] != "\\":
            depth += 1
        elif text[place] == "}" and text[place - 1] != "\\":
            depth -= 1
            if depth == 0:
                return place
    return -1


def argument(text: str, at: int) -> tuple[str, int] | None:
    """The argument of a command at `at` (the inside of braces, or one letter or command), and where it ends."""
    while at < len(text) and text[at] == " ":
        at += 1
    if at >= len(text):
        return None
    if text[at] == "{":
        close = closing(text, at)
        return None if close < 0 else (text[at + 1 : close], close + 1)
    if text[at] == "\\":
        found = _COMMAND.match(text, at)
        if not found:
            return None
        if found[1] in STYLES or found[1] in TEXTS:
            inner = argument(text, found.end())
            return inner and (text[at : inner[1]], inner[1])
        return found[0], found.end()
    return text[at], at + 1


def subscripts(text: str, at: int) -> list[tuple[str, int]]:
    """The ways to read a subscript at `at` as part of a name, longest first: its letters, and where it ends."""
    while at < len(text) and text[at] == " ":
        at += 1
    if at >= len(text) or text[at] != "_":
        return []
    at += 1
    while at < len(text) and text[at] == " ":
        at += 1
    run = _RUN.match(text, at)
    if run:
        word = run[0][:40]
        return [(word[:size], at + size) for size in range(len(word), 0, -1)]
    taken = argument(text, at)
    spelt = _letters_of(taken[0]) if taken else None
    return [(spelt, taken[1])] if taken and spelt and spelt.isalnum() else []


def name_readings(text: str, base: str, end: int) -> list[tuple[str, int]]:
    """Every name that begins with `base`, which ends at `end`: with subscript and primes, longest first.

    Digits directly after it may be its subscript: v2 as v_2.
    """
    mark, at = primes(text, end)
    digits = TRAILING_DIGITS.match(text, end)
    found = [(f"{base}_{digits[0]}", digits.end())] if digits else []
    for lower, stop in subscripts(text, at):
        more, last = primes(text, stop)
        found.append((f"{base}{mark}_{lower}{more}", last))
    return [*found, (base + mark, at)]


def is_reserved(word: str) -> bool:
    """Whether a word is reserved for qkv, so that it cannot be a size's name."""
    return (word in FUNCTIONS and word != "mean") or word in ("sqrt", "sum", "prod")
