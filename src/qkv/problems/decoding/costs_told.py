"""Which costs a question about decoding asks, and the sizes of the model that it gives in numbers."""

from __future__ import annotations

import re

from ..reading.inline import on_own_lines
from ..reading.lettered import lettered
from .costs import Numbers
from .listing import Setting
from .reading import LONGEST, plain_text

_QUESTION = (
    r"\?|\b(?:what|how (?:many|much|does|large|big)|compute|calculate|determine|derive|find|give|state|write|"
    r"work out)\b"
)
_IT = r"\bwhat (?:is|does) (?:it|this|that)\b"
_SIGNS = {
    "cached": (
        r"(?:numbers|values|entries|elements|scalars|floats)\b[^.?]{0,40}\b(?:read|load\w*|fetch\w*)\b[^.?]{0,30}\bcache"
    ),
    "reading": r"memory[- ]access|memory traffic|memory bandwidth|read from and write to memory",
    "time": (
        r"comput\w+ (?:complexity|cost)|time complexity|number of (?:operations|flops)|"
        r"\bflops?\b(?! (?:per|for each|a)\b)|\b(?:work|time) (?:of|per|in|for) (?:one|a|each|every) (?:\w+ )?step"
    ),
    "bytes": (
        r"(?<!each )\bbytes\b|\bin [kmg]i?b\b|cache size|size of the (?:kv[- ]?)?cache|"
        r"(?:large|big|much memory)?[^.?]{0,30}\bcache\b(?= of a \d| of \d|[^.?]{0,80}\d+ ?-?layer)"
    ),
    "intensity": r"arithmetic intensity|(?:flops?|operations?)(?: [^.?]{0,120})? (?:per|for each|a) byte",
    "mask": r"keys (?:does|can|may|is|are)\b",
}  # fmt: skip
# What must be told in numbers before a number can be the answer.
_NEEDED = {
    "cached": {"heads", "width", "tokens"},
    "bytes": {"heads", "width", "tokens", "size"},
    "intensity": {"heads", "size"},
    "mask": {"tokens", "new", "place"},
    "time": set(),
    "reading": set(),
}


def costs_in(text: str, told: frozenset[str]) -> list[tuple[str, str]]:
    """The costs that a text asks, in its order, each with the name of its part, or ""; `told` are sizes in numbers."""
    _, parts = lettered(on_own_lines(text))
    asked: dict[str, str] = {}
    for name, said in [(part.name, part.whole) for part in parts] or [("", text[:LONGEST])]:
        found = [what for what in _asked(said.lower(), one=bool(parts)) if _NEEDED[what] <= told and what not in asked]
        names = (
            [name]
            if len(found) == 1 or not name
            else [f"{name}({sign})" for sign in ("i", "ii", "iii", "iv", "v", "vi")]
        )
        asked |= {what: names[min(place, len(names) - 1)] for place, what in enumerate(found)}
    return [(name, what) for what, name in asked.items()]


def _asked(said: str, one: bool) -> list[str]:
    """The costs of a text in their order; of a part of a question, `one`, only those of its first asking sentence."""
    found = {
        what: match
        for what, signs in _SIGNS.items()
        if (match := re.search(rf"(?:{_QUESTION})[^.?!]{{0,90}}?(?:{signs})|(?:{signs})[^?]{{0,200}}{_IT}", said))
    }
    # "Operations for each byte" and "read from the cache" ask one thing, not two.
    if "intensity" in found and "time" in found and found["time"].end() < found["intensity"].end():
        del found["time"]
    if "cached" in found and "byte" not in said:
        found.pop("bytes", None)
    places = {what: match.end() for what, match in found.items()}
    order = sorted(places, key=lambda what: places[what])
    if not one or not order:
        return order
    end = re.search(r"[.?!](?:\s|$)", said[places[order[0]] :])
    last = places[order[0]] + end.start() if end else len(said)
    return [what for what in order if places[what] <= last]


def numbers_in(text: str, setting: Setting) -> tuple[Numbers, frozenset[str]] | None:
    """The sizes of a model that a text gives as numbers, and which of them it gives; None where it gives hardly any."""
    plain = plain_text(text).lower()
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", plain) if re.search(r"\d,\d{3}", text) else plain.replace(",", "")
    found = {
        size: int(match[1])
        for size, signs in _sizes(setting).items()
        if (match := next(filter(None, (re.search(sign, plain) for sign in signs)), None)) and len(match[1]) < 9
    }
    model = found.pop("model", 0)
    if model and "width" not in found and found.get("heads") and model % found["heads"] == 0:
        found["width"] = model // found["heads"]
    if len({"layers", "heads", "batch", "tokens", "width"} & set(found)) < 2:
        return None
    for name, size in (
        ("fp16", 2),
        ("bf16", 2),
        ("bfloat16", 2),
        ("float16", 2),
        ("half", 2),
        ("int8", 1),
        ("fp8", 1),
        ("fp32", 4),
        ("float32", 4),
    ):
        if name in plain:
            found.setdefault("size", size)
    told = set(found) | ({"heads"} if setting.kind == "multi-query" else set())
    if setting.kind == "grouped" and "key_heads" not in found:
        told -= {"heads"}
    heads = max(1, found.get("heads", 1))
    usual = {"multi-query": 1, "multi-head": heads, "grouped": found.get("key_heads", 1)}[setting.kind]
    found["key_heads"] = max(1, usual)
    found["heads"] = heads
    return Numbers(**{"layers": 1, "batch": 1, "size": 2, **found}), frozenset(told)


def _sizes(on: Setting) -> dict[str, tuple[str, ...]]:
    """How each size may be given: in words, or as the letter that the text has for it."""
    letters = {"heads": on.heads, "batch": on.batch, "tokens": on.length, "key_heads": on.groups, "model": on.width}
    equal = {size: (rf"(?<![a-z_]){letter.lower()} ?= ?(\d+)",) for size, letter in letters.items()}
    return {
        "layers": (r"(\d+)[- ](?:decoder |transformer )?layers?", r"layers?\s*[=:]?\s*(\d+)"),
        "key_heads": (
            r"(\d+)\s+(?:key[/ -]?(?:and )?value|kv|key)\s+heads",
            r"(\d+)\s+(?:heads? of keys|groups)",
            *equal["key_heads"],
        ),
        "heads": (r"(\d+)\s+(?:query |attention )?heads", r"heads\s*[=:]?\s*(\d+)", *equal["heads"]),
        "width": (
            r"heads?(?: of| has| have)? (?:dimension|width|dim|size)(?: of| is)?\s*[=:]?\s*(\d+)",
            r"\bd_?(?:head|h|k)\s*=\s*(\d+)",
            r"(\d+)\s+wide",
        ),
        "model": (
            (
                r"(?<!head )(?<!heads of )(?:dimension|width|dim|hidden size)(?: of| is)?\s*(?:d_?model|[a-z])?"
                r"\s*[=:]?\s*(\d+)"
            ),
            r"\bd_? ?model\s*=\s*(\d+)",
            r"(\d+)\s+dimensions",
            *equal["model"],
        ),
        "batch": (r"batch (?:size |of )?(?:of |is |= ?)?(\d+)", r"(\d+)\s+sequences", *equal["batch"]),
        "tokens": (
            r"(\d+)\s+(?:remembered |previous |past |cached )?tokens",
            r"(?:length|context)(?: of| is)?\s*[=:]?\s*(\d+)",
            *equal["tokens"],
        ),
        "size": (r"(\d+)\s*[- ]?bytes? (?:a|per|each)", r"(\d+) bytes? a number"),
        "new": (r"(\d+)\s+new (?:tokens|queries)",),
        "place": (r"(?:new )?(?:token|query) (?:number )?(\d+)",),
    }
