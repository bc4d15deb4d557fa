"""What a step of decoding costs: work, memory that is read, bytes that are kept, and which keys are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..judging.counts import Count, rate
from ..problem import Misconception, Part, Step
from .listing import Setting

COSTS = ("time", "reading", "bytes", "intensity", "mask")


@dataclass(frozen=True)
class Numbers:
    """A model and what it is asked to remember."""

    layers: int = 32
    heads: int = 32
    key_heads: int = 1
    width: int = 128
    batch: int = 4
    tokens: int = 1024
    size: int = 2
    new: int = 3
    place: int = 2

    @property
    def kept(self) -> int:
        """Bytes of all keys and values."""
        return 2 * self.batch * self.layers * self.key_heads * self.tokens * self.width * self.size


def cost_part(letter: str, what: str, setting: Setting, numbers: Numbers) -> Part:
    """The question for one of COSTS, or "cached", which is asked with its own numbers only."""
    return _ASKED[what](letter, setting, numbers)


def _time(letter: str, on: Setting, numbers: Numbers) -> Part:
    b, d, n, h = on.batch, on.width, on.length, on.heads

    def steps() -> tuple[Step, ...]:
        q, k, v = on.widths
        keys = on.key_heads
        share = {"multi-query": f"/{h}", "grouped": f"/{on.members}", "multi-head": ""}[on.kind]
        projections = (
            f"{b} {d} {h} {q} + {keys} {b} {d} {k} + {keys} {b} {d} {v} + {b} {h} {v} {d}",
            f"2 {b} {d}^2 + 2 {b} {d}^2{share}",
        )
        attention = (f"{b} {h} {n} {k} + {b} {h} {n} {v}", f"2 {b} {n} {d}")
        total = (f"O({projections[1]} + {attention[1]})", f"O({b} {d}^2 + {b} {n} {d})")
        return (
            Step("Count the products of the projections.", "Every head of queries has its own matrix; keys and values "
                 "have as many as there are heads of them.", projections, projections[-1], on.symbols),
            Step("Count the products of attention.", f"Each of the ${h}$ query heads meets all ${n}$ keys and sums all "
                 f"${n}$ values, whoever shares them.", attention, attention[-1], on.symbols),
            Step("Add both and keep the rate.", "Sharing keys saves no products in attention, and in the projections "
                 "only a part of what the queries cost anyway.", total, total[-1], on.symbols),
        )  # fmt: skip

    others = {
        "work of attention divided by the heads": f"O({b} {d}^2 + {b} {n} {d}/{h})",
        "projections forgotten": f"O({b} {n} {d})",
        "batch forgotten": f"O({d}^2 + {n} {d})",
    }
    return Part(
        letter,
        f"One new token is computed for each sequence. How does the number of operations grow with ${b}$, ${d}$, ${n}$ "
        f"and ${h}$, in big-O notation?",
        rate(f"{b} {d}^2 + {b} {n} {d}", on.symbols),
        steps,
        (
            "Which lines multiply by a weight matrix, and which by what is remembered?",
            (
                f"Count the products of each einsum: multiply the sizes of all letters in it, then use that a head is "
                f"${d}/{h}$ wide."
            ),
            (
                f"The projections give ${b} {d}^2$ up to a constant; add what ${h}$ query heads of width ${d}/{h}$ do "
                f"with ${n}$ keys in ${b}$ sequences."
            ),
        ),
        4,
        tuple(Misconception(name, text) for name, text in others.items()),
        on.symbols,
        (r"comput\w+ (?:complexity|cost)", r"time complexity", r"number of operations", r"\bflops?\b"),
        f"Projections cost ${b} {d}^2$. Every query head still meets every key, so that attention costs "
        f"${b} {n} {d}$ however many heads share the keys.",
    )


def _reading(letter: str, on: Setting, numbers: Numbers) -> Part:
    b, d, n, h = on.batch, on.width, on.length, on.heads
    share = {"multi-query": f"/{h}", "grouped": f"/{on.members}", "multi-head": ""}[on.kind]
    cached = f"{b} {n} {d}{share}"

    def steps() -> tuple[Step, ...]:
        q, k, v = on.widths
        keys = on.key_heads
        weights = (
            f"O({h} {d} {q} + {keys} {d} {k} + {keys} {d} {v} + {h} {v} {d})",
            f"O(2 {d}^2 + 2 {d}^2{share})",
            f"O({d}^2)",
        )
        kept = (f"O({b} {keys} {n} {k} + {b} {keys} {n} {v})", f"O({cached})")
        tokens = (f"O(4 {b} {d} + 2 {b} {d}{share})", f"O({b} {d})")
        total = (f"O({d}^2 + {b} {d} + 2 {cached})", f"O({d}^2 + {b} {d} + {cached})")
        return (
            Step("Read the weights once.", "They serve the whole batch.", weights, weights[-1], on.symbols),
            Step("Read and write the token's own vectors.", "Input, query, result and output have the model's width; "
                 "the new key and value may have less.", tokens, tokens[-1], on.symbols),
            Step("Read what is remembered.", f"{on.about('keys').capitalize()}; the values likewise.", kept, kept[-1],
                 on.symbols),
            Step("Add all three.", "None of them outgrows the others for all sizes.", total, total[-1], on.symbols),
        )  # fmt: skip

    others = {
        "weights not read": f"O({b} {d} + {cached})",
        "batch forgotten": f"O({d}^2 + {b} {d} + {n} {d}{share})",
    }
    if on.kind == "multi-head":
        others["one key head for all"] = f"O({d}^2 + {b} {d} + {b} {n} {d}/{h})"
    else:
        others["per-head keys in multi-query attention"] = f"O({d}^2 + {b} {d} + {b} {n} {d})"
    everywhere = Misconception("batch forgotten", f"O({d}^2 + {n} {d}{share})")  # in the token's vectors too
    return Part(
        letter,
        f"And how many numbers does this step read from and write to memory, in big-O notation: weights, the token's "
        f"own vectors, and the keys and values of ${n}$ tokens before it?",
        rate(f"{d}^2 + {b} {d} + {cached}", on.symbols),
        steps,
        (
            (
                "Three things are read: weights, vectors of the new token, and what is remembered. Which of them grows "
                "with what?"
            ),
            "Multiply the sizes in each tensor's shape; the batch is in no weight.",
            (
                f"Weights give ${d}^2$ and the token's vectors ${b} {d}$; add the number of entries in `keys` and in "
                f"`values`, with a head ${d}/{h}$ wide."
            ),
        ),
        4,
        (*(Misconception(name, text) for name, text in others.items()), everywhere),
        on.symbols,
        (r"memory[- ]access", r"memory (?:complexity|traffic|cost)", r"read from|reads? and writes?", r"bandwidth"),
        f"Weights are ${d}^2$ numbers, the token's vectors ${b} {d}$, and what is remembered ${cached}$: "
        f"{on.about('keys').partition(';')[0]}.",
    )


def _bytes(letter: str, on: Setting, numbers: Numbers) -> Part:
    factors = (2, numbers.batch, numbers.layers, numbers.key_heads, numbers.tokens, numbers.width, numbers.size)

    def steps() -> tuple[Step, ...]:
        one = numbers.key_heads * numbers.width * 2
        token = one * numbers.layers * numbers.size
        return (
            Step("Count the numbers that one token leaves in one layer.", "A key and a value for every head of keys.",
                 (f"2 \\cdot {numbers.key_heads} \\cdot {numbers.width}", str(one)), one),
            Step("Count the bytes of a token in all layers.", "Every layer keeps its own.",
                 (f"{one} \\cdot {numbers.layers} \\cdot {numbers.size}", str(token)), token),
            Step("Count all tokens of all sequences.", "No two sequences share their past.",
                 (" \\cdot ".join(map(str, factors)), f"{token} \\cdot {numbers.tokens} \\cdot {numbers.batch}",
                  str(numbers.kept)), numbers.kept),
        )  # fmt: skip

    others = {"keys without values": numbers.kept // 2, "batch forgotten": numbers.kept // numbers.batch}
    if numbers.key_heads != numbers.heads:
        others["per-head keys in multi-query attention"] = numbers.kept // numbers.key_heads * numbers.heads
    elif numbers.heads > 1:
        others["one key head for all"] = numbers.kept // numbers.heads
    others = {name: count for name, count in others.items() if count != numbers.kept}
    return Part(
        letter,
        "How many bytes do the keys and values take in all layers, for the whole batch, with the numbers given above?",
        Count(numbers.kept, "bytes"),
        steps,
        (
            "What does one token leave behind in one layer?",
            "Multiply: keys and values, sequences, layers, heads of keys, tokens, width of a head, bytes of a number.",
            (
                f"One token takes {numbers.kept // numbers.tokens // numbers.batch} bytes in all layers; how many "
                f"tokens "
                "are there in the batch?"
            ),
        ),
        3,
        tuple(Misconception(name, str(count)) for name, count in others.items()),
        {},
        (r"\bbytes\b", r"how much memory", r"cache size|size of the (?:kv )?cache"),
        f"2 (keys and values) times {numbers.batch} sequences, {numbers.layers} layers, {numbers.key_heads} heads of "
        f"keys, {numbers.tokens} tokens, {numbers.width} numbers and {numbers.size} bytes.",
    )


def _cached(letter: str, on: Setting, numbers: Numbers) -> Part:
    read = 2 * numbers.batch * numbers.key_heads * numbers.tokens * numbers.width

    def steps() -> tuple[Step, ...]:
        one = 2 * numbers.key_heads * numbers.width
        return (
            Step("Count the numbers that one token has in the cache.", "A key and a value for every head of keys.",
                 (f"2 \\cdot {numbers.key_heads} \\cdot {numbers.width}", str(one)), one),
            Step("Count all tokens of all sequences.", "Each is read once in a step.",
                 (f"{one} \\cdot {numbers.tokens} \\cdot {numbers.batch}", str(read)), read),
        )  # fmt: skip

    others = {"keys without values": read // 2, "batch forgotten": read // numbers.batch}
    if numbers.key_heads != numbers.heads:
        others["per-head keys in multi-query attention"] = read // numbers.key_heads * numbers.heads
    elif numbers.heads > 1:
        others["one key head for all"] = read // numbers.heads
    return Part(
        letter,
        "How many numbers of remembered keys and values does one step read in one layer, for the whole batch, with "
        "the numbers given above?",
        Count(read, "numbers"),
        steps,
        (
            "What does one token leave behind in one layer?",
            "Multiply: keys and values, sequences, heads of keys, tokens, width of a head.",
            f"One token has {read // numbers.tokens // numbers.batch} numbers; how many tokens are there in the batch?",
        ),
        3,
        tuple(Misconception(name, str(count)) for name, count in others.items() if count != read),
        {},
        (r"numbers[^.]{0,30}read", r"read from the cache"),
        f"2 (keys and values) times {numbers.batch} sequences, {numbers.key_heads} heads of keys, {numbers.tokens} "
        f"tokens and {numbers.width} numbers.",
    )


def _intensity(letter: str, on: Setting, numbers: Numbers) -> Part:
    shared = numbers.heads // numbers.key_heads
    found = 2 * shared // numbers.size

    def steps() -> tuple[Step, ...]:
        work = (f"2 \\cdot 2 \\cdot {numbers.heads} \\cdot {numbers.width}", str(4 * numbers.heads * numbers.width))
        read = (f"2 \\cdot {numbers.key_heads} \\cdot {numbers.width} \\cdot {numbers.size}",
                str(2 * numbers.key_heads * numbers.width * numbers.size))  # fmt: skip
        return (
            Step("Count the operations that one remembered token causes.", "Each query head multiplies and adds once "
                 "for every component, for the score and again for the weighted sum.", work, int(work[-1])),
            Step("Count the bytes that are read for it.", "A key and a value for every head of keys.", read,
                 int(read[-1])),
            Step("Divide.", "The width of a head, the batch and the length cancel.",
                 (f"{work[-1]} / {read[-1]}", str(found)), found),
        )  # fmt: skip

    others = {"a multiplication and an addition counted as one": f"{shared}/{numbers.size}"}
    if shared > 1:
        others["per-head keys in multi-query attention"] = f"2/{numbers.size}"
    return Part(
        letter,
        "How many floating-point operations does attention (scores and weighted sum, a multiplication and an addition "
        "counted as two) do for each byte of keys and values that it reads, with the numbers given above?",
        Count(found, "operations a byte"),
        steps,
        (
            "How often is a key used once it has been read?",
            "Count for one remembered token: operations of all query heads above, bytes of all heads of keys below.",
            (
                f"Each number that is read takes {numbers.size} bytes and serves {shared} query heads, with two "
                f"operations "
                "in each."
            ),
        ),
        3,
        tuple(Misconception(name, text) for name, text in others.items()),
        {},
        (r"arithmetic intensity", r"operations? (?:per|for each|a) byte", r"flops? per byte"),
        f"A number that is read serves {shared} query heads with two operations each and takes {numbers.size} bytes.",
    )


def _mask(letter: str, on: Setting, numbers: Numbers) -> Part:
    past, place = numbers.tokens, numbers.place
    seen = past + place

    def steps() -> tuple[Step, ...]:
        return (
            Step("Find the position of the query.", "The new tokens follow those that are remembered.",
                 (f"{past} + {place}", str(seen)), seen),
            Step("Count the positions up to it.", "A token sees itself and everything before it: the last query sees "
                 f"all {past + numbers.new} keys."),
        )  # fmt: skip

    return Part(
        letter,
        f"Now {numbers.new} new tokens of a sequence come at once behind the {past} that are remembered, and attention "
        f"stays causal. How many keys does new token number {place} see?",
        Count(seen, "keys"),
        steps,
        (
            "At which position of the sequence does that token stand?",
            "The mask is aligned so that the last new token sees every key.",
            f"It sees all {past} remembered tokens, and of the new ones those up to itself: how many are these?",
        ),
        2,
        (
            Misconception("top left for bottom right", str(place)),
            Misconception("every new token seen", str(past + numbers.new)),
            Misconception("a token does not see itself", str(seen - 1)),
        ),
        {},
        (r"how many keys", r"causal|mask"),
        f"It stands at position {seen} and sees everything up to itself.",
    )


_ASKED: dict[str, Callable[[str, Setting, Numbers], Part]] = {
    "time": _time,
    "reading": _reading,
    "bytes": _bytes,
    "cached": _cached,
    "intensity": _intensity,
    "mask": _mask,
}
