"""Names: how one is spelt in its canonical form (`mu_q`, `d_model`, `x'`), and where in a text one ends."""

from __future__ import annotations

import re

from qkv.maths.text.words import ACCENTS, FUNCTIONS, GREEK, OLD_STYLES, STYLES, TEXTS, VARIANTS

_STYLE = re.compile(
    r"\\(?:" + "|".join(sorted(STYLES | TEXTS | OLD_STYLES, key=len, reverse=True)) + r")(?![A-Za-z])\*?"
)
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_PRIMES = re.compile(r"\s*(?:'+|\^\s*\\prime(?![A-Za-z])|\^\s*\{\s*(?:\\prime\s*)+\})")
_RUN = re.compile(r"[A-Za-z0-9]+")
DIGITS = re.compile(r"[0-9]+(?![0-9]|\.[0-9]|[eE][+-]?[0-9])")
CANONICAL = re.compile(r"[A-Za-z]+'*(_[A-Za-z0-9]+)?'*")


def letter(word: str) -> str | None:
    """The Greek letter of this name, spelt the one way that names are kept in."""
    word = VARIANTS.get(word, word)
    return word if word in GREEK else None


def canonical(written: str) -> str | None:
    """The canonical form of a name that stands alone, or None where this is no name.

    >>> canonical(r"d_{\\text{model}}"), canonical("μ_q"), canonical("x'"), canonical("2x")
    ('d_model', 'mu_q', "x'", None)
    """
    from qkv.errors import Unreadable
    from qkv.maths.text.cleaning import Clean

    try:
        text = Clean(written).text
    except Unreadable:
        return None
    text = _STYLE.sub("", text)
    for accent, name in ACCENTS.items():
        text = re.sub(rf"\\{accent}(?![A-Za-z])\s*(?:\{{([^{{}}]*)\}}|(\\?[A-Za-z]+))", rf"\1\2_{name}", text)
    text = text.replace("\\prime", "'").replace("^", "")
    text = re.sub(r"^([^_]*)\\_", r"\1_", text)  # d\_model is d_model, and d_{a\_b} is d_ab
    spelt = _spelt(text)
    return spelt if spelt and CANONICAL.fullmatch(spelt) else None


def _spelt(raw: str) -> str | None:
    """`raw` without styles, braces, backslashes and spaces; None where another command stands in it."""
    text = _STYLE.sub("", raw)
    for command in _COMMAND.findall(text):
        if letter(command) is None and command not in FUNCTIONS:
            return None
    text = _COMMAND.sub(lambda found: letter(found[1]) or found[1], text)
    return re.sub(r"[\s{}]|\\_", "", text)


def primes(text: str, at: int) -> tuple[str, int]:
    """The primes at `at`, as they are kept in a name, and where they end."""
    found = _PRIMES.match(text, at)
    if not found:
        return "", at
    written = found[0]
    return "'" * (written.count("'") + written.count("\\prime")), found.end()


def closing(text: str, at: int) -> int:
    """Where the brace that opens at `at` is closed; -1 where it is not."""
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
    """What a command at `at` takes: the inside of braces, or one letter or command; and where it ends."""
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
    """The ways to read a lower index at `at` as part of a name, longest first: its letters, and where it ends."""
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
    spelt = _spelt(taken[0]) if taken else None
    return [(spelt, taken[1])] if taken and spelt and spelt.isalnum() else []


def readings(text: str, base: str, end: int) -> list[tuple[str, int]]:
    """Every name that begins with `base`, which ends at `end`: with its lower index and primes, longest first.

    Digits right behind it may be its lower index: v2 as v_2.
    """
    mark, at = primes(text, end)
    beside = DIGITS.match(text, end)
    found = [(f"{base}_{beside[0]}", beside.end())] if beside else []
    for lower, stop in subscripts(text, at):
        more, last = primes(text, stop)
        found.append((f"{base}{mark}_{lower}{more}", last))
    return [*found, (base + mark, at)]


def known(word: str) -> bool:
    """Whether this is a word of qkv's own, and no name of the caller's."""
    return word in FUNCTIONS or word in ("sqrt", "sum", "prod")
