"""What multi-head attention costs as lengths and width grow, and which term leads when."""

from __future__ import annotations

from dataclasses import dataclass

from ..judging.choices import Leading, Option
from ..judging.counts import Count, rate
from ..problem import Misconception, Part, Step

_PROJECTIONS = (
    r"projections?", r"\b[qkvo]_proj", r"linear (?:layers?|maps?|transformations?)",
    r"d_?\{?\w*\}? ?(?:\^ ?\{?2\}?|²)", r"weight matri(?:x|ces)", r"\bw_?\{?[qkvo]\}?\b.{1,12}\bw_?\{?[qkvo]\}?\b",
)  # fmt: skip
_ONE_PROJECTION = tuple(rf"\b(?:{one}) projection\b" for one in ("query|q", "key|k", "value|v", "output|o"))
_SCORES = (
    r"(?:attention )?scores?", r"weighted (?:sum|average|combination).{1,40}score", r"linear combination",
    r"attention (?:matrix|weights|computation|itself)", r"q ?k ?(?:\^ ?\{?(?:t|\\top)\}?|ᵀ)", r"\bqkt\b",
    r"n_?\{?\w?\}? ?(?:\^ ?\{?2\}?|²)", r"n_?\{?t\}? ?n_?\{?s\}?", r"dot[- ]product attention",
    r"quadratic (?:term )?(?:in|with)? ?(?:the )?(?:sequence|length)\w*",
)  # fmt: skip
_ONE_PRODUCT = (
    (
        r"weighted (?:sums?|average|combination)|value aggregation|\bav\b|"
        r"(?:product|multipl\w+|combin\w+|averag\w+|weighing|weighting|summing|mixing) "
        r"(?:(?:of|the|with|by|over|up|attention|weights?|scores?|it|them|matrix) ){0,6}(?:v|values?)\b"
        r"(?! (?:projection|matri|weight|layer|map))"
    ),
    r"(?:attention )?scores?|\bq ?k ?(?:\^ ?\{?(?:t|\\top)\}?|ᵀ)|\bqkt\b|softmax",
)
_OTHER_WORK = (
    r"(?:split|merg|join|concat|reshap|transpos)\w* (?:\w+ ){0,3}heads?", r"concatenat\w+", r"\bresiduals?\b",
    r"layer ?norm\w*", r"feed[- ]?forward", r"\bembedding (?:lookup|table)", r"\bmasks?\b|\bmasking\b", r"dropout",
)  # fmt: skip


_LONG = r"\blong(?:er)?\b|\bnarrow|\bsmall (?:d\b|d_|width|model|dim|embedding)|d_?\{?\w*\}? is small"
_SHORT = r"\bshort(?:er)?\b|\bwide\b|\blarge (?:d\b|d_|width|model|dim|embedding)|d_?\{?\w*\}? is large"


@dataclass(frozen=True)
class Sizes:
    """Letters of the lengths, of the width and of the heads: d = head_width · heads."""

    queries: str = "n_t"
    keys: str = "n_s"
    head_width: str = "d_head"
    heads: str = "h"
    model: str = "d_model"
    groups: str = ""

    @property
    def symbols(self) -> dict[str, str]:
        names = (self.queries, self.keys, self.head_width, self.heads, *([self.groups] if self.groups else []))
        found = dict.fromkeys(names, "natural")
        found |= {self.model: f"natural = {self.head_width} {self.heads}"}
        # People shorten these names though the question does not.
        short = {"d": self.model, "d_model": self.model, "d_k": self.head_width, "d_h": self.head_width,
                 "d_head": self.head_width}  # fmt: skip
        return {name: f"natural = {size}" for name, size in short.items() if name not in found} | found

    @property
    def own(self) -> bool:
        """Whether queries and keys are the same sequence."""
        return self.queries == self.keys


LETTER_SETS = (
    Sizes(),
    Sizes("m", "n", "c", "h", "d"),
    Sizes("n", "n", "d_h", "h", "d"),
    Sizes("n_q", "n_k", "d_k", "H", "D", "G"),
    Sizes("T", "S", "w", "H", "D"),
    Sizes("T", "T", "c", "h", "D"),
)


def growth(on: Sizes) -> str:
    """The rate of multi-head attention, or with keys and values of `groups` heads alone."""
    d, t, s = on.model, on.queries, on.keys
    if on.own:
        return f"{t} {d}^2 + {t}^2 {d}"
    keys = f"{s} {d} {on.groups} {on.head_width}" if on.groups else f"{s} {d}^2"
    return f"{t} {d}^2 + {keys} + {t} {s} {d}"


def _narrow(on: Sizes) -> str:
    """The rate as if a head's projection took only that head's width."""
    d, t, s, w = on.model, on.queries, on.keys, on.head_width
    keys = f"{s} {on.groups} {w}^2" if on.groups else f"{s} {d} {w}"
    return f"{t} {d} {w} + {t}^2 {d}" if on.own else f"{t} {d} {w} + {keys} + {t} {s} {d}"


def cost_part(name: str, on: Sizes) -> Part:
    """How the work of one layer of attention grows."""
    d, t, s, w, h = on.model, on.queries, on.keys, on.head_width, on.heads

    def steps() -> tuple[Step, ...]:
        keys = f"{s} {d} {on.groups} {w}" if on.groups else f"{s} {d}^2"
        projections = (f"{t} {d}^2 + {keys} + {keys} + {t} {d}^2", f"2 {t} {d}^2 + 2 {keys}")
        attention = (f"{h} {t} {s} {w} + {h} {t} {s} {w}", f"2 {t} {s} {d}")
        total = (rf"\Theta({projections[-1]} + {attention[-1]} + {h} {t} {s})", rf"\Theta({growth(on)})")
        reason = "Queries and output are projected for each query, keys and values for each key."
        return (
            Step("Count the products of the four projections.", reason, projections, projections[-1], on.symbols),
            Step("Count those of scores and weighted sums.", f"Each of ${h}$ heads has ${t} {s}$ scores of ${w}$ "
                f"products, "
                 "and as many again for the values.", attention, attention[-1], on.symbols),
            Step("Add them, with the softmax, and keep the rate.", f"Splitting and joining heads moves numbers only; "
                 f"the softmax's ${h} {t} {s}$ are fewer than the scores' products.", total, total[-1], on.symbols),
        )  # fmt: skip

    letters = ", ".join(f"${name}$" for name in dict.fromkeys((t, s, w, h, *([on.groups] if on.groups else []))))
    wrong = {
        "projections forgotten": rf"\Theta({t} {s} {d})",
        "scores forgotten": rf"\Theta({growth(on).rpartition(' + ')[0]})",
        "heads projected one by one": rf"\Theta({_narrow(on)})",
        "model width for head width": rf"\Theta({growth(on).rpartition(' + ')[0]} + {h} {t} {s} {d})",
    }
    if not on.own:
        wrong["key length squared"] = rf"\Theta({growth(on).rpartition(' + ')[0]} + {s}^2 {d})"
    lengths = f"${t}$ tokens attend to themselves" if on.own else f"${t}$ queries attend to ${s}$ keys"
    return Part(
        name,
        f"Leave masks aside. How does the time of one such attention layer grow, where {lengths}, as a function of "
        f"{letters}?",
        rate(growth(on), on.symbols, r"\Theta"),
        steps,
        (
            "Which lines multiply by a weight matrix, and which multiply tokens with tokens?",
            (
                "Count products for each line: a matrix costs its two sizes for each token, scores and weighted sums "
                "cost a head's width for each pair."
            ),
            (
                f"The projections give ${growth(on).rpartition(' + ')[0]}$; add the scores of ${h}$ heads, each ${w}$ "
                f"wide."
            ),
        ),
        4,
        tuple(Misconception(mistake, text) for mistake, text in wrong.items()),
        on.symbols,
        (r"time complexity", r"asymptotic", r"total (?:time|cost)", r"how does the time"),
        f"Projections cost the square of the width for each token, scores and weighted sums the width for each pair "
        f"of tokens: $\\Theta({growth(on)})$.",
    )


def bottleneck_part(name: str, long: bool, on: Sizes) -> Part:
    """Which operations lead: `long` sequences in a narrow model, or short ones in a wide one."""
    width = "the width is squared there, and the width is large"
    length = "both lengths are multiplied there, and the lengths are large"
    options = (
        Option("A", "the projections of queries, keys, values and output", not long,
               "they grow with the length only once" if long else width, _PROJECTIONS,
               _ONE_PROJECTION),
        Option("B", "the scores and the weighted sums of values", long,
               length if long else "they grow with the width only once", _SCORES, _ONE_PRODUCT),
        Option("C", "something else", False, "that grows with no size squared, and moves or adds numbers only",
               _OTHER_WORK),
    )  # fmt: skip
    d = on.model

    def steps() -> tuple[Step, ...]:
        n = on.queries
        terms = (f"{n} {d}^2 / ({n}^2 {d})", f"{d}/{n}")
        more = "less than 1: scores and weighted sums lead" if long else "more than 1: projections lead"
        return (
            Step(f"Compare the two terms for sequences of one length "
                 f"${n}$.", f"Their quotient is {more}.", terms, terms[-1],
                 on.symbols),
        )  # fmt: skip

    case = f"sequences are long and ${d}$ is small" if long else f"${d}$ is large and sequences are short"
    right = next(option for option in options if option.right)
    wrong = next(option for option in options if not option.right)
    return Part(
        name,
        f"Which operations of attention are the bottleneck when {case}?",
        Leading(options, (_LONG, _SHORT) if long else (_SHORT, _LONG)),
        steps,
        (
            "Look at the terms of the cost: which of them has the large size squared?",
            "Divide the cost of the projections by that of scores and weighted sums.",
            f"The quotient of the two terms is width over length, and here that is {'small' if long else 'large'}.",
        ),
        2,
        (Misconception("bottleneck mixed up", wrong.text),),
        on.symbols,
        (r"sequences? (?:is|are) long|long sequences?", r"model\w* is small") if long else
        (r"sequences? (?:is|are) short|short sequences?", r"model\w* is large"),
        f"{right.text[0].upper()}{right.text[1:]}: {right.why}.",
    )  # fmt: skip


def crossing_part(name: str, width: int, shared: int) -> Part:
    """The length at which scores cost what projections do; `shared` heads read each head of keys."""
    n = width + width // shared

    def steps() -> tuple[Step, ...]:
        both = (
            f"2 n \\cdot {width}^2 + 2 n \\cdot {width}^2 / {shared}",
            f"{2 * width * width + 2 * width * width // shared} n",
        )
        pairs = (f"2 n^2 \\cdot {width}", f"{2 * width} n^2")
        end = (f"{2 * width * width + 2 * width * width // shared} / {2 * width}", str(n))
        symbols = {"n": "natural"}
        reason = "Queries and output have the full width; keys and values have "
        reason += "it too." if shared == 1 else f"1/{shared} of it."
        return (
            Step("Count the products of the projections.", reason, both, both[-1], symbols),
            Step("Count those of scores and weighted sums.", "Each pair of tokens takes the width, "
                "twice.", pairs, pairs[-1],
                 symbols),
            Step("Set them equal and divide by the length.", "Above that length scores lead.", end, n),
        )  # fmt: skip

    wrong = {"scores without the weighted sum": 2 * n, "keys and values not projected": width}
    return Part(
        name,
        f"Count products only. At which length of the sequence do scores and weighted sums together cost exactly what "
        f"the four projections do, for a width of {width}"
        + (f" and keys and values that {shared} heads share each" if shared > 1 else "")
        + "?",
        Count(n, "tokens"),
        steps,
        (
            "Write both costs with the length as a letter.",
            (
                "Projections: a product of widths for each token, for queries, keys, values and output. Scores and "
                "weighted sums: the width for each pair, twice."
            ),
            f"Solve $2 n^2 \\cdot {width} = {2 * width * width + 2 * width * width // shared} n$ for the length.",
        ),
        3,
        tuple(Misconception(mistake, str(count)) for mistake, count in wrong.items() if count != n),
        {},
        (r"at which length", r"crossover", r"equally expensive|cost the same"),
        f"From {n} tokens on, scores and weighted sums cost more than the projections.",
    )
