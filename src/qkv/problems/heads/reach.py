"""How many positions a position of layer n sees, when every head looks at one position; and what masks let through."""

from __future__ import annotations

from ..judging.counts import Count, InWords
from ..problem import Misconception, Part, Step

_CUES = (r"receptive field", r"how many positions", r"branching factor", r"\breach\w*")


def symbolic_part(name: str, heads: str, layers: str = "n", residual: bool = True) -> Part:
    """`heads` heads, a number or a letter, over `layers` layers."""
    if not residual:
        return _without_residual(name, heads, layers)
    symbols = {symbol: "natural" for symbol in (heads, layers) if not symbol.isdigit()}
    factor = str(int(heads) + 1) if heads.isdigit() else f"({heads} + 1)"
    found = _power(factor, layers)

    def steps() -> tuple[Step, ...]:
        below = f"{factor}^{{{layers}-1}}"
        one = ("1 + " + heads, factor.strip("()"))
        more = (f"{below} + {heads} \\cdot {below}", f"{factor} \\cdot {below}", found)
        return (
            Step("Count what one layer adds.", "The residual keeps the position itself, and each head brings one more.",
                 one, one[-1], symbols),
            Step("Go from a layer to the next.", "Each position that is seen has seen as many; paths that do not meet "
                 "are counted once each.", more, found, symbols),
        )  # fmt: skip

    said = {"1": "one head", "2": "two heads"}.get(heads, f"${heads}$ heads")
    wrong = {
        "residual forgotten": f"{heads}^{layers}" if heads != "1" else "1",
        "layers added instead of multiplied": f"{factor} {layers}"
        if not heads.isdigit()
        else f"{int(heads) + 1} {layers}",
    }
    return Part(
        name,
        f"How many positions can a position of layer ${layers}$ depend on at most, with {said} in every layer?",
        InWords(found, {"N": "natural"} | symbols, also=(rf"\min(N, {found})",)),
        steps,
        (
            "What does a position of the first layer see? Do not forget the residual.",
            "Find the factor from one layer to the next, and multiply.",
            f"Each layer multiplies by one more than the number of heads: take that to the power ${layers}$.",
        ),
        2,
        tuple(Misconception(mistake, text) for mistake, text in wrong.items()),
        symbols,
        (*_CUES, {"1": r"single head|one head", "2": r"two heads|2 heads"}.get(heads, rf"\b{heads} heads")),
        f"Itself and one position for each head: a factor of ${factor.strip('()')}$ a layer, so ${found}$ where no "
        f"paths meet.",
    )


def _power(base: str, exponent: str) -> str:
    return f"{base}^{exponent}" if len(exponent) == 1 else f"{base}^{{{exponent}}}"


def _without_residual(name: str, heads: str, layers: str, length: int = 0) -> Part:
    """The same where a position does not keep itself, in letters or numbers; `length` is the sequence's end, or 0."""
    symbols = {symbol: "natural" for symbol in (heads, layers) if not symbol.isdigit()}
    kept = f"({int(heads) + 1})" if heads.isdigit() else f"({heads} + 1)"
    free, kept = _power(heads, layers), _power(kept.strip("()") if heads.isdigit() else kept, layers)
    number = int(heads) ** int(layers) if not symbols else None
    number = min(number, length) if number is not None and length else number
    found = str(number) if number is not None else "1" if heads == "1" else free
    capped = rf"\min({length}, {free})" if length else free
    said = {"1": "one head", "2": "two heads"}.get(heads, f"${heads}$ heads")
    end = f" of a sequence of {length} positions" if length else ""
    why = "Each head brings one position and nothing is kept: a layer multiplies by the number of heads."
    answer = (
        Count(number, "positions") if number is not None else
        InWords(found, {"N": "natural"} | symbols, also=(rf"\min(N, {found})",))
    )  # fmt: skip
    return Part(
        name,
        f"There is no residual. How many positions{end} can a position of layer ${layers}$ depend on at most, with "
        f"{said} in every layer?",
        answer,
        lambda: (Step("Count layer by layer.", why, (capped, found) if capped != found else (), found, symbols),),
        (
            "What does a position of the first layer see, when nothing keeps the position itself?",
            "Find the factor from one layer to the next, and multiply.",
            f"Each layer multiplies by the number of heads: take that to the power ${layers}$.",
        ),
        2,
        tuple(
            Misconception("residual counted", text)
            for text in (kept,)
            if not length or (number is not None and number < length)
        ),
        symbols,
        _CUES,
        f"{why} That makes ${found}$.",
    )


def number_part(name: str, kind: str, heads: int, layers: int, length: int, window: int, residual: bool = True) -> Part:
    """The same in numbers; `kind` is "plain", "agreeing", "capped", "neighbours" or "window"."""
    if not residual:
        return _without_residual(name, str(heads), str(layers), length)
    found, chain, ask, why, wrong = _NUMBERED[kind](heads, layers, length, window)

    def steps() -> tuple[Step, ...]:
        return (Step("Count layer by layer.", why, chain, found),)

    return Part(
        name,
        ask,
        Count(found, "positions"),
        steps,
        (
            "What does a position of the first layer see? Do not forget the residual.",
            "Find what one more layer adds or multiplies.",
            f"Work out ${chain[0]}$.",
        ),
        2,
        tuple(Misconception(mistake, str(count)) for mistake, count in wrong.items() if count != found),
        {},
        _CUES,
        f"{why} That makes {found}.",
    )


def _each(heads: int) -> str:
    return "The only head" if heads == 1 else f"Every one of {heads} heads"


_Case = tuple[int, tuple[str, ...], str, str, dict[str, int]]


def _plain(heads: int, layers: int, length: int, window: int) -> _Case:
    found = (heads + 1) ** layers
    return (
        found,
        (f"(1 + {heads})^{{{layers}}}", str(found)),
        (
            f"{_each(heads)} looks at one position, there is a residual, and the sequence is long enough. "
            f"How many positions can a position of layer {layers} depend on at most?"
        ),
        f"Each layer multiplies by {heads} + 1: itself, and one position a head.",
        {"residual forgotten": heads**layers, "layers added instead of multiplied": (heads + 1) * layers},
    )


def _agreeing(heads: int, layers: int, length: int, window: int) -> _Case:
    found = 2**layers
    return (
        found,
        (f"(1 + 1)^{{{layers}}}", str(found)),
        (
            f"All {heads} heads of a layer look at the same one position, and there is a residual. How many positions "
            f"can a position of layer {layers} depend on at most, in a sequence that is long enough?"
        ),
        "Heads that agree bring one new position between them: each layer multiplies by 2.",
        {"agreeing heads counted apart": (heads + 1) ** layers, "residual forgotten": 1},
    )


def _capped(heads: int, layers: int, length: int, window: int) -> _Case:
    free = (heads + 1) ** layers
    found = min(length, free)
    return (
        found,
        (rf"\min({length}, (1 + {heads})^{{{layers}}})", str(found)),
        (f"{_each(heads)} looks at one position of a sequence of {length} positions, and there is a "
         f"residual. How many positions can a position of layer {layers} depend on at most?"),
        f"Each layer multiplies by {heads} + 1, up to the length of the sequence.",
        {"residual forgotten": min(length, heads**layers), "end of the sequence forgotten": free,
         "layers added instead of multiplied": (heads + 1) * layers},
    )  # fmt: skip


def _neighbours(heads: int, layers: int, length: int, window: int) -> _Case:
    found = heads * layers + 1
    return (
        found,
        (f"1 + {layers} \\cdot {heads}", str(found)),
        (
            f"In every layer the {heads} heads look 1, 2 and so on up to {heads} positions back, and there is a "
            f"residual. How many positions does a position of layer {layers} depend on, far from the beginning?"
        ),
        f"Paths meet: a layer reaches {heads} positions farther back than the one below.",
        {"layers multiplied in a window": (heads + 1) ** layers, "residual forgotten": heads * layers},
    )


def _window(heads: int, layers: int, length: int, window: int) -> _Case:
    found = 1 + layers * (window - 1)
    return (
        found,
        (f"1 + {layers} ({window} - 1)", str(found)),
        (
            f"With softmax, a causal mask and a window, a position sees itself and the {window - 1} positions before "
            f"it. How many positions does a position of layer {layers} depend on, far from the beginning?"
        ),
        f"Windows overlap: each layer reaches {window - 1} positions farther back.",
        {"layers multiplied in a window": window**layers, "window counted without itself": 1 + layers * window},
    )


_NUMBERED = {"plain": _plain, "agreeing": _agreeing, "capped": _capped, "neighbours": _neighbours, "window": _window}
REACHES = tuple(_NUMBERED)


def seen_part(name: str, kind: str, queries: int, keys: int, place: int, prefix: int) -> Part:
    """How many keys one query sees: `kind` is "past" (a causal mask with a past) or "prefix" (a prefix seen whole)."""
    past = keys - queries
    found = past + place if kind == "past" else max(prefix, place)
    if kind == "past":
        ask = (f"A causal mask is laid over {queries} new queries and {keys} keys, of which the first {past} are "
               f"remembered. How many keys does query number {place} see?")  # fmt: skip
        chain, why = (
            (f"{past} + {place}", str(found)),
            "The queries are the last positions: the mask is aligned at its lower right.",
        )
        wrong = {"top left for bottom right": place, "every new token seen": keys}
    else:
        ask = (f"A decoder reads {keys} tokens, the first {prefix} of which are a prefix that sees itself in both "
               f"directions; all else is causal. How many keys does token number {place} see?")  # fmt: skip
        chain, why = (
            (rf"\max({prefix}, {place})", str(found)),
            "A token sees the whole prefix, and every token up to itself.",
        )
        wrong = {
            "prefix read causally": min(place, prefix) if place <= prefix else place - prefix,
            "every new token seen": keys,
        }

    def steps() -> tuple[Step, ...]:
        return (Step("Count the keys that the mask lets through.", why, chain, found),)

    return Part(
        name,
        ask,
        Count(found, "keys"),
        steps,
        (
            "Draw the mask: queries down, keys across.",
            "Mark the last query first: it sees every key."
            if kind == "past"
            else "Mark the block of the prefix first.",
            f"Work out ${chain[0]}$.",
        ),
        2,
        tuple(Misconception(mistake, str(count)) for mistake, count in wrong.items() if count != found),
        {},
        (r"how many keys", r"which keys"),
        f"{why} That makes {found}.",
    )
