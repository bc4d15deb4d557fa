"""What an answer assumes of the sizes: "as long as N ≥ D", "if the lengths are equal, n_s = n_t = n"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

MOST_READ = 4_000  # characters in which conditions are looked for
MOST = 6  # conditions of a text

_MORE = r"(?:is |are |gets? |becomes? )?(?:at least|no less than|larger than|greater than|>=|≥|>|≫|exceeds?|outgrows?)"
_LESS = r"(?:is |are |stays? )?(?:at most|no more than|smaller than|less than|<=|≤|<|≪)"
_SIGNS = {
    r"\\geq?(?:slant)?(?![a-z])": "≥",
    r"\\leq?(?:slant)?(?![a-z])": "≤",
    r"\\gg(?![a-z])": "≫",
    r"\\ll(?![a-z])": "≪",
    r"\\(?:approx|simeq|sim)(?![a-z])": "≈",
    r"[${}]": "",
}
_SAME = r"(?:=|≈|~|equals?|is about|is equal to)"


def conditions_in(text: str, symbols: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Every relation of two sizes that a text names: in words, and the types that hold under it.

    >>> [words for words, _ in conditions_in("as long as N is at least D", dict.fromkeys("ND", "natural"))]
    ['N ≥ D']
    """
    plain = _plain(text)
    free = [name for name, kind in symbols.items() if kind == "natural"]
    names = "|".join(sorted((re.escape(name) for name in free), key=len, reverse=True))
    one = rf"(?<![\w^/+*-])({names})(?![\w^/+*-]|\s*[\^/+*])"
    found: dict[str, dict[str, str]] = {}
    spare = next(letter for letter in ("t", "r", "z", "excess") if letter not in symbols)
    for sign, more in ((_MORE, True), (_LESS, False)):
        for pair in re.finditer(rf"{one}\s*{sign}\s*{one}" if names else r"$.", plain):
            large, small = (pair[1], pair[2]) if more else (pair[2], pair[1])
            types = dict(symbols) | {spare: "natural", large: f"natural = {small} + {spare}"}
            found.setdefault(f"{large} ≥ {small}", types)
    for pair in re.finditer(
        rf"{one}\s*{_SAME}\s*({names}|[a-zA-Z])\b(?:\s*{_SAME}\s*([a-zA-Z])\b)?" if names else r"$.", plain
    ):
        last = pair[3] or pair[2]
        equal = [name for name in (pair[1], pair[2]) if name != last and name in free]
        if not equal or (last not in free and len(equal) < 2):
            continue
        types = dict(symbols) | {last: "natural"} | dict.fromkeys(equal, f"natural = {last}")
        found.setdefault(" = ".join(dict.fromkeys([*equal, last])), types)
    yield from list(found.items())[:MOST]


def _plain(text: str) -> str:
    text = re.sub(r"\\(?:text|mathrm|operatorname|mathit)\s*\{([^{}]*)\}", r"\1", text[:MOST_READ])
    for sign, word in _SIGNS.items():
        text = re.sub(sign, word, text)
    return text
