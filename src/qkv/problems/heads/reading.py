"""Reading a question about many heads: is it one, and which letters and numbers does it use."""

from __future__ import annotations

import re

from ..reading.lettered import Asked, lettered
from .costs import Sizes

LONGEST = 60_000

_REACH = (
    r"receptive field|branching factor|\breach\b|how many (?:input )?positions|"
    r"positions? (?:can|does) .{0,60}(?:depend|see|reach)"
)
_MASKS = (
    r"(?:key[- ]?)?padding masks?|causal masks?|pad tokens?|\bmasks?\b[^.]{0,60}\b(?:causal|padding)\b|"
    r"\b(?:causal|padding)\b[^.]{0,30}\bmasks?\b"
)
_COST = (
    r"(?:time )?complexity of (?:a )?(?:multi[- ]?head|self|cross)[- ]?attention|asymptotic "
    r"(?:time )?(?:complexity|cost)"
)
_BOTTLENECK = r"bottleneck|dominat\w+ (?:the )?(?:cost|time)"
_HEADS = r"multi[- ]?head|\bheads?\b"
_OTHERS = r"\bcache|kernel|feature map|\beinsum|layer norm|batch norm|multi[- ]?query"


def likeness(text: str) -> float:
    """How surely a text asks about reach, masks, cost or bottleneck of multi-head attention; 0 where it does not."""
    plain = text[:LONGEST].lower()
    if not re.search(_HEADS + r"|transformer|attention|encoder|decoder", plain):
        return 0.0
    signs = [bool(re.search(pattern, plain)) for pattern in (_REACH, _MASKS, _COST, _BOTTLENECK)]
    heads = bool(re.search(_HEADS, plain))
    encoders = len(set(re.findall(r"\bencoder\b|\bdecoder\b|\bencoder-decoder\b|\bbert\b|\bgpt\b|\bt5\b", plain)))
    score = (
        0.4 * (signs[0] and heads)
        + 0.3 * (signs[1] and encoders > 0)
        + 0.3 * (signs[2] and heads)
        + 0.3 * (signs[3] and heads)
    )
    score += 0.2 * (signs[1] and encoders > 1) + 0.15 * heads
    score -= 0.3 * bool(re.search(_OTHERS, plain)) * (sum(signs) < 3)
    return round(min(score, 1.0), 2) if score >= 0.4 else 0.0


_NAME = r"(?<![A-Za-z_])\$?([A-Za-z](?:_\{?\\?(?:text|mathrm)?\{?\w+\}?\}?)?)(?![A-Za-z_])\$?"
_ROLES = {
    "queries": (rf"query (?:sequence )?length\s+(?:of )?{_NAME}", rf"{_NAME}\s+quer(?:y|ies)\b"),
    "keys": (rf"(?:key|value|key/value|key-value|source) (?:sequence )?length\s+(?:of )?{_NAME}", rf"{_NAME}\s+keys\b"),
    "head_width": (rf"head (?:dimension|width|size)\s+(?:of )?{_NAME}", rf"heads of (?:width|dimension|size) {_NAME}"),
    "heads": (
        rf"number of heads\s+(?:is )?{_NAME}",
        rf"into {_NAME} heads",
        rf"{_NAME}\s+(?:attention )?heads\b(?! only)",
    ),
    "model": (rf"(?:model|embedding|hidden) (?:dimension|width|size)\s+(?:of )?{_NAME}", rf"vectors of width {_NAME}"),
    "groups": (rf"{_NAME} heads only", rf"{_NAME} (?:groups|key[/-]value heads|kv heads)"),
}


def sizes_in(text: str) -> Sizes:
    """The letters of a text for the sizes of attention; where it names none, the documents'."""
    usual = {"queries": "n_t", "keys": "n_s", "head_width": "d_head", "heads": "h", "model": "d_model"}
    found: dict[str, str] = {}
    for role, patterns in _ROLES.items():
        for pattern in patterns:
            match = re.search(pattern, text[:LONGEST])
            if match:
                name = re.sub(r"[{}\\]|text|mathrm", "", match[1])
                if name not in found.values() and name not in ("a", "A", "I", "is", "of"):
                    found[role] = name
                break
    if "queries" not in found and "keys" not in found:
        own = re.search(rf"sequence length\s+(?:of )?{_NAME}|{_NAME} tokens\b", text[:LONGEST])
        if own and (name := re.sub(r"[{}\\]|text|mathrm", "", own[1] or own[2])) not in ("a", "A", "I"):
            found |= {"queries": name, "keys": name}
    if not found:
        return Sizes()
    names = usual | found
    return Sizes(**names)


_KINDS = {
    "seen": r"how many keys|which keys (?:does|can)",
    "crossing": r"at which length|crossover|cross over|(?:cost|take) (?:exactly )?(?:what|as much|the same)",
    "reach": _REACH,
    "bottleneck": _BOTTLENECK,
    "masks": r"\bmask(?:s|ing)?\b",
    "cost": r"complexity|how does the time|time of|asymptotic",
}


def before_in(text: str) -> str:
    """What a text says before its parts; nothing where the whole of it is one part."""
    before, parts = lettered(text)
    return before if parts else ""


def asked_in(text: str) -> list[Asked]:
    """The parts of a text; a text without letters is one part, "a", or lists (i), (ii) …."""
    before, parts = lettered(text)
    if parts:
        return _carried(parts)
    stem, *inline = re.split(r"\((i{1,3}|iv|v)\)\s", before)
    # "Find the complexity. Then name the bottleneck (i) … (ii) …" asks for both.
    *sentences, last = re.split(r"(?<=[.?;])\s+", stem.strip())
    cost = " ".join(sentences)
    both = bool(re.search(_BOTTLENECK, last.lower()) and re.search(_KINDS["cost"], cost.lower()))
    if len(inline) < 4:
        return [Asked("a", cost), Asked("b", last)] if both else [Asked("a", before)]
    listed = zip(inline[::2], inline[1::2], strict=True)
    if both:
        return [Asked("a", cost), *(Asked(f"b({sign})", said, last) for sign, said in listed)]
    return [Asked(f"a({sign})", said, stem) for sign, said in listed]


def _carried(parts: list[Asked]) -> list[Asked]:
    """The parts, where one that only changes the one before, "And without the residual?", has that for its stem."""
    found: list[Asked] = []
    for part in parts:
        short = re.match(
            r"\W*(?:and|now|repeat|what about|how about|(?:the )?same|with|without)\b", part.text, re.IGNORECASE
        )
        if found and short and not part.stem and kind_of(part) is None and re.search(_CHANGED, part.text.lower()):
            part = Asked(part.name, part.text, f"{found[-1].text} {found[-1].stem}")
        found.append(part)
    return found


_CHANGED = r"\bheads?\b|\blayers?\b|residual|skip connection"


def kind_of(asked: Asked) -> str | None:
    """What a part asks: the first of reach, masks, cost … that it, or else its stem, speaks of."""
    plain = re.sub(r"ignore [^.]*masks?[^.]*\.?|leave masks aside", "", asked.text.lower())
    for said in (plain, asked.stem.lower()):
        for kind, signs in _KINDS.items():
            if re.search(signs, said):
                return kind
    return None


def scenario_in(text: str) -> str:
    """The scenario of `masking` that a text describes."""
    plain = text.lower()
    left = bool(re.search(r"(?:padd\w+|pads?)[^.]{0,20} left|left[- ]?padd", plain))
    if re.search(r"encoder[- /]+decoder|translat|\bt5\b|sequence[- ]to[- ]sequence|seq2seq|summar|caption", plain):
        if re.search(r"image|patch|caption", plain):
            return "source in one length"
        if re.search(r"nothing is padded|no padding|without padding|(?:same|one|equal) lengths?", plain):
            return "equal lengths"
        return "targets padded left" if left else "translation"
    if re.search(r"\bdecoder|\bgpt|generat|language model|autoregress", plain) and "encoder" not in plain.replace(
        "decoder", ""
    ):
        return "left padding" if left else "decoder"
    return "encoder"


def long_in(text: str) -> bool:
    """Whether sequences are long and the width small, and not the other way round."""
    return bool(
        re.search(r"(?:sequences?|lengths?|inputs?)[^.;]{0,20} long|long (?:sequences?|inputs?)|is small", text.lower())
    )


def crossing_in(text: str) -> tuple[int, int] | None:
    """The width, and how many heads share keys; None where no width is told."""
    plain = re.sub(r"[$,]", "", text)
    width = re.search(r"(?:width|dimension|d_\{?model\}?|size)\D{0,12}(\d+)", plain)
    shared = re.search(r"(\d+) (?:query )?heads share|shared by (\d+)", plain)
    count = int(next(group for group in shared.groups() if group)) if shared else 1
    return (int(width[1][:7]), max(1, count)) if width else None


def seen_in(text: str) -> tuple[str, int, int, int, int] | None:
    """What a question about visible keys gives: kind, queries, keys, place, prefix."""
    plain = re.sub(r"[$]", "", text.lower())
    place = re.search(r"(?:query|token|position)(?: number)? (\d+)", plain)
    numbers = [int(number) for number in re.findall(r"\b\d{1,6}\b", plain)]
    if not place or len(numbers) < 3:
        return None
    if "prefix" in plain:
        tokens = re.search(r"(\d+) tokens", plain)
        prefix = re.search(r"first (\d+)|prefix of (\d+)", plain)
        if not tokens or not prefix:
            return None
        size = int(next(group for group in prefix.groups() if group))
        return "prefix", 0, int(tokens[1]), int(place[1]), min(size, int(tokens[1]))
    queries = re.search(r"(\d+) (?:new )?(?:queries|tokens)", plain)
    keys = re.search(r"(\d+) keys", plain)
    return ("past", int(queries[1]), int(keys[1]), int(place[1]), 0) if queries and keys else None
