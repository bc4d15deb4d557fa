"""The questions on what attention costs, with softmax and with a kernel: each a part."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from ..problem import Misconception, Part, Step
from .answers import Costs, Growth
from .setting import Setting


def _costs(at: Setting, time: str, space: str, within: tuple[str, str], spaces=()) -> Costs:
    d, m = re.escape(at.width), re.escape(at.value)
    condition = f"{at.value} ≈ {at.width}"
    said = rf"\b{m}\s*(?:\\approx|≈|=|~|\\sim|\\simeq|\\leq?|≤|is about)\s*{d}\b|\b{d}\s*(?:\\approx|≈|=|~)\s*{m}\b"
    equal = (condition, "", at.equal_widths, said)
    if at.tied:
        types = at.equal_widths
        return Costs({"time": Growth(time, types), "space": Growth(space, types, assumed=spaces)}, within)
    return Costs(
        {
            "time": Growth(time, at.sizes, assumed=(equal,)),
            "space": Growth(space, at.sizes, assumed=(equal, *spaces)),
        },
        within,
    )


def one_cost(whole: Callable[[Setting, str], Part], which: str) -> Callable[[Setting, str], Part]:
    """The part that asks only for the time, or only for the space, of what another asks both of."""

    def part(at: Setting, name: str) -> Part:
        both = whole(at, name)
        assert isinstance(both.answer, Costs)
        place = list(both.answer.items).index(which)
        known = [each for each in both.misconceptions if each.planted.startswith(f"{which}:")]
        return replace(
            both,
            ask=f"{both.ask} Only the {which} is asked for.",
            answer=Costs({which: both.answer.items[which]}),
            steps=lambda: both.steps()[place : place + 1],
            misconceptions=tuple(known),
            cues=(rf"\b{'how long|time|operations' if which == 'time' else 'space|memory|numbers'}\b", *both.cues),
        )

    return part


def softmax_part(at: Setting, name: str) -> Part:
    n, d, m = at.length, at.width, at.value
    free = replace(at, tied=False)
    time, space = f"O({n}^2 {d} + {n}^2 {m})", f"O({n}^2 + {n} {d} + {n} {m})"

    def steps() -> tuple[Step, ...]:
        return (
            Step(
                "Count the work: the scores, then the weighted values.",
                f"${n}^2$ dot products of ${d}$ terms, and ${n}$ sums of ${n}$ vectors of ${m}$ components; the "
                "exponentials are fewer.",
                (f"O({n}^2 {d} + {n}^2 + {n}^2 {m})", time),
                time,
                at.sizes,
            ),
            Step(
                "Count what is kept.",
                f"The ${n}^2$ weights, $Q$ and $K$ with ${n} {d}$ numbers each, $V$ and the answers with ${n} {m}$.",
                (f"O({n}^2 + 2 {n} {d} + 2 {n} {m})", space),
                space,
                at.sizes,
            ),
        )

    return Part(
        name,
        f"Give the time and the space of softmax attention for all ${n}$ queries, in terms of ${n}$, ${d}$ and ${m}$. "
        "Whatever the backward pass needs is stored, with $Q$, $K$ and $V$.",
        _costs(free, time, space, (r"softmax|standard", r"lineari[sz]ed|linear attention")),
        steps,
        (
            "How many scores are there, and what does each one cost?",
            f"After the scores each query adds ${n}$ values of ${m}$ components. What is stored besides the weights?",
            f"Time: ${n}^2$ scores of ${d}$ products, as many value rows of ${m}$. Space: weights, $Q$, $K$ and $V$.",
        ),
        3,
        (
            Misconception("queries, keys and values not counted in space", f"space: O({n}^2)"),
            Misconception("one query counted", f"time: O({n} {d} + {n} {m})"),
        ),
        at.sizes,
        (r"\bsoftmax attention", r"\btime complexity", r"\bspace complexity", r"\bcomplexity"),
        f"Every pair of a query and a key costs ${d}$ products for its score and ${m}$ for its value; the weights of "
        "all pairs are kept, and so are queries, keys and values.",
    )


def linear_part(at: Setting, name: str) -> Part:
    n, d, m, p = at.length, at.width, at.value, at.degree
    power = f"{d}^{p}"
    if at.tied:
        time, space = f"O({n} {d}^{p + 1})", f"O({n} {power} + {d}^{p + 1})"
        wrong = f"time: O({n} {d}^2)"
        again = f"O({n} {d} + {d}^{p + 1})"
    else:
        time, space = f"O({n} {power} {m})", f"O({n} {power} + {power} {m} + {n} {m})"
        wrong = f"time: O({n} {d} {m})"
        again = f"O({n} {d} + {n} {m} + {power} {m})"
    types = at.equal_widths if at.tied else at.sizes
    recomputed = (
        "the features are made again for the backward pass",
        again,
        types,
        r"recomput|made again|not stor|without stor",
    )

    def steps() -> tuple[Step, ...]:
        return (
            Step(
                "Count the work: features, sums over the keys, answers.",
                f"There are of the order of ${power}$ features. The sum of their products with the values takes "
                f"${n}$ times ${power}$ times ${m}$ products, and the answers as many again.",
                (f"O({n} {power} + {n} {power} {m} + {n} {power} {m})", time),
                time,
                types,
            ),
            Step(
                "Count what is kept.",
                f"The features of all queries and keys, the sums over the keys with ${power}$ times ${m}$ numbers, "
                "$Q$, $K$, $V$ and the answers. No score is kept.",
                (f"O(2 {n} {power} + {power} {m} + {power} + {n} {d} + {n} {m})", space),
                space,
                types,
            ),
        )

    about = f", with ${m}$ about as large as ${d}$" if at.tied else f", in terms of ${n}$, ${d}$ and ${m}$"
    kind = {2: "quadratic", 3: "cubic"}[p]
    return Part(
        name,
        f"With the sums over the keys made once, give time and space of attention with the {kind} kernel{about}. "
        "Whatever the backward pass needs is stored.",
        _costs(at, time, space, (r"lineari[sz]ed|linear (?:kernel )?attention|kernel attention", ""), (recomputed,)),
        steps,
        (
            "How many features has the kernel?",
            f"About ${power}$. The sums over the keys form a table of features by components of the values.",
            f"Time: each of ${n}$ keys adds to that table, every query reads it. Space: all features, and the table.",
        ),
        3,
        (
            Misconception("d features instead of d squared", wrong),
            Misconception("scores still counted", f"time: O({n}^2 {d})"),
        ),
        at.sizes,
        (r"\blineari[sz]ed", r"\bkernel attention", r"\bcomputational cost", r"\bmemory requirement"),
        f"Each position meets a table of about ${power}$ features by ${m}$ components once for the sums and once for "
        "the answers: linear in the length.",
    )


def elu_part(at: Setting, name: str) -> Part:
    n, d, m = at.length, at.width, at.value
    time, space = f"O({n} {d} {m})", f"O({n} {d} + {n} {m} + {d} {m})"
    free = replace(at, tied=False)
    return Part(
        name,
        "Another feature map is $elu(x) + 1$, component by component. Give the time and the space of the linear form "
        f"with it, in terms of ${n}$, ${d}$ and ${m}$.",
        _costs(free, time, space, ("", "")),
        lambda: (
            Step(
                f"There are as many features as components: ${d}$.",
                "The map acts on every component by itself. Sums over the keys and answers take the same work.",
                (f"O({n} {d} + {n} {d} {m} + {n} {d} {m})", time),
                time,
                at.sizes,
            ),
            Step(
                "Count what is kept.",
                "The features, the sums, and $Q$, $K$, $V$.",
                (f"O(2 {n} {d} + 2 {n} {d} + {d} {m} + {d} + {n} {m})", space),
                space,
                at.sizes,
            ),
        ),
        (
            "How many features does a map have that acts on each component by itself?",
            f"${d}$ features: the table of sums over the keys is ${d}$ by ${m}$.",
            f"Every key adds to that table of ${d}$ by ${m}$, every query reads it; features, table, values are kept.",
        ),
        3,
        (
            Misconception("quadratic features assumed", f"time: O({n} {d}^2 {m})"),
            Misconception("scores still counted", f"time: O({n}^2 {d})"),
        ),
        at.sizes,
        (r"\belu\b", r"\bcomponent by component"),
        "As many features as components, so that time and sums are smaller by a factor of the width.",
    )


def streamed_part(at: Setting, name: str) -> Part:
    n, d, m = at.length, at.width, at.value
    space = f"O({n} {d} + {n} {m})"
    return Part(
        name,
        "Softmax attention can go through the keys in blocks and keep, for each query, only a maximum, a sum and the "
        f"answer so far. What is its space then, with $Q$, $K$ and $V$ counted, in terms of ${n}$, ${d}$ and ${m}$?",
        Growth(space, at.sizes),
        lambda: (
            Step(
                "The table of weights is never there as a whole.",
                f"Two numbers and ${m}$ components a query are kept, and $Q$, $K$ and $V$.",
                (f"O(2 {n} + {n} {m} + 2 {n} {d} + {n} {m})", space),
                space,
                at.sizes,
            ),
        ),
        (
            "Which table falls away?",
            f"The ${n}^2$ weights. What is left belongs to single positions.",
            f"Count the entries of $Q$, $K$, $V$ and of the answers; the running numbers are ${n}$ each.",
        ),
        2,
        (
            Misconception("weights still kept", f"O({n}^2 + {n} {d} + {n} {m})"),
            Misconception("queries, keys and values not counted in space", f"O({n})"),
        ),
        at.sizes,
        (r"\bin blocks\b", r"\bstream"),
        "Only tables with one row a position are left: linear in the length.",
    )
