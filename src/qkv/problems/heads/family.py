"""Multi-head attention (004 2): how far it sees, which masks it needs, what it costs, and where the time goes."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import permutations

from ...render.document import Block, Items, Paragraph, prose
from ..judging.masking import SCENARIOS, Scenario
from ..problem import Part, Problem, Step
from ..reading.inline import on_own_lines
from ..reading.lettered import Asked
from ..variety import digits
from .costs import LETTER_SETS, Sizes, bottleneck_part, cost_part, crossing_part
from .reach import REACHES, number_part, seen_part, symbolic_part
from .reach_told import reach_in
from .reading import asked_in, before_in, crossing_in, kind_of, likeness, long_in, scenario_in, seen_in, sizes_in

NAME = "heads"
DOCUMENT = ("encoder", "decoder", "translation")
PAIRS = tuple(permutations(SCENARIOS, 2))
ENDS = ("short", "long", "crossing", "crossing shared")
EXTRAS = ("none", "past", "prefix")
FOLLOW_UPS = (
    "How many positions do two heads reach that always look at the same place, and why?",
    "Which mask does a decoder need whose prompts are padded on the left?",
    "From which length on is attention dearer than its projections, in a model that you know?",
)


def make(seed: int | None = None) -> Problem:
    """The documents' question, or the variant of a seed."""
    if seed is None:
        return documents_problem()
    draw = random.Random(f"{NAME}:{seed}")
    reach, pair, letters = digits(seed, len(REACHES), len(PAIRS), len(LETTER_SETS))
    end, extra = draw.randrange(len(ENDS)), draw.randrange(len(EXTRAS))
    heads, layers, window = draw.randint(2, 4), draw.randint(2, 5), draw.choice((4, 5, 8, 16))
    length = draw.choice((20, 30, 50, 60, 100))
    scenarios = [SCENARIOS[name] for name in PAIRS[pair]]
    sizes = LETTER_SETS[letters]
    parts = [number_part("a", REACHES[reach], heads, layers, length, window)]
    parts += [masks_part(f"b({sign})", scenario) for sign, scenario in zip(("i", "ii"), scenarios, strict=True)]
    parts.append(cost_part("c", sizes))
    width = draw.choice((64, 128, 256, 512, 1024))
    parts.append({
        "short": partial(bottleneck_part, "d", False, sizes),
        "long": partial(bottleneck_part, "d", True, sizes),
        "crossing": partial(crossing_part, "d", width, 1),
        "crossing shared": partial(crossing_part, "d", width, draw.choice((2, 4, 8))),
    }[ENDS[end]]())  # fmt: skip
    if EXTRAS[extra] != "none":
        queries = draw.randint(3, 5)
        past = draw.randint(4, 9)
        # In a prefix of three to six tokens one of the later ones of the prefix or one behind it is asked.
        prefix = draw.randint(3, queries + past - 2)
        place = draw.randint(2, queries - 1) if EXTRAS[extra] == "past" else draw.randint(2, queries + past - 1)
        parts.append(seen_part("e", EXTRAS[extra], queries, queries + past, place, prefix))
    structure = (REACHES[reach], *PAIRS[pair], sizes.queries + sizes.keys + sizes.model, ENDS[end], EXTRAS[extra])
    return _problem(scenarios, sizes, tuple(parts), seed, structure)


def documents_problem(sizes: Sizes | None = None, layers: str = "n", heads: str = "k") -> Problem:
    """The documents' question, with these letters."""
    sizes = sizes or Sizes()
    scenarios = [SCENARIOS[name] for name in DOCUMENT]
    signs = ("i", "ii", "iii")
    parts = [symbolic_part(f"a({sign})", count, layers) for sign, count in zip(signs, ("1", "2", heads), strict=True)]
    parts += [masks_part(f"b({sign})", scenario) for sign, scenario in zip(signs, scenarios, strict=True)]
    parts += [cost_part("c", sizes), bottleneck_part("d(i)", False, sizes), bottleneck_part("d(ii)", True, sizes)]
    return _problem(scenarios, sizes, tuple(parts), None, ("documents", *DOCUMENT, sizes.queries + sizes.model))


def _problem(
    scenarios: list[Scenario], sizes: Sizes, parts: tuple[Part, ...], seed: int | None, structure: tuple[str, ...]
) -> Problem:
    d, w, h = sizes.model, sizes.head_width, sizes.heads
    shared = f" Keys and values have ${sizes.groups}$ heads only, each of the same width." if sizes.groups else ""
    lengths = (
        f"${sizes.queries}$ tokens that attend to one another"
        if sizes.own
        else f"${sizes.queries}$ queries and ${sizes.keys}$ keys"
    )
    given = (
        f"A layer of multi-head attention takes vectors of width ${d}$: it projects them to queries, keys and values, "
        f"cuts these into ${h}$ heads of width ${w}$, attends in each head, joins the heads and projects the result. "
        f"It has {lengths}, and ${d} = {w} {h}$.{shared} The first part takes every softmax for an argmax, unless it "
        "says otherwise; the second is about batches of these models in training or use:"
    )
    tasks = Items(tuple(scenario.words for scenario in scenarios), ordered=True)
    asked = Paragraph(prose(" ".join(_given(part) for part in parts if part.name in ("a", "e")), sizes.symbols))
    blocks: tuple[Block, ...] = (Paragraph(prose(given, sizes.symbols)), tasks)
    if seed is not None:
        blocks = (*blocks, asked)
    return Problem(
        NAME, "Many heads: reach, masks and "
              "cost", blocks, parts, make, seed, structure, sizes.symbols, ("004 2",), FOLLOW_UPS
    )  # fmt: skip


def _given(part: Part) -> str:
    """What a part is about, without its question: it makes the sheet's head say which layers are meant."""
    return f"For part ({part.name}): {part.ask.rpartition('. ')[0]}."


def masks_part(name: str, scenario: Scenario) -> Part:
    """Which masks a scenario needs, and where."""
    where = ", ".join(scenario.table)
    why = f"{scenario.why[0].upper()}{scenario.why[1:]}"
    return Part(
        name,
        f"{scenario.words} Say for every attention of it which masks are applied, a padding mask, a causal mask, both "
        f"or none.",
        scenario.answer,
        lambda: (Step(f"Go through {where}.", why, value=scenario.answer.text),),
        (
            "For each attention ask two things: are there pads among its keys, and may a query see all keys?",
            f"Go through {where}, one by one. What are the keys of each?",
            f"Remember: {scenario.why}",
        ),
        2,
        scenario.misconceptions(),
        {},
        CUES.get(scenario.name, (r"\bmasks?\b",)),
        why,
    )


CUES = {
    "encoder": (r"text classification|classif\w+|\bBERT\b|encoder[- ]only",),
    "decoder": (r"sequence generation|\bGPT\b|decoder[- ]only|language model",),
    "translation": (r"machine translation|translat\w+|\bT5\b|encoder[- ]decoder",),
}


def recognised(text: str) -> tuple[float, Problem] | None:
    """How surely a text asks this, and the problem with the text's own parts, letters and numbers."""
    score = likeness(text)
    if score == 0:
        return None
    text = on_own_lines(text)
    before, asked = before_in(text), asked_in(text)
    # "With k heads" in a question about reach names no size of the layer whose cost is asked.
    sizes = sizes_in(" ".join([before, *(each.whole for each in asked if kind_of(each) != "reach")]))
    parts = [part for each in asked if (part := _part(each, sizes, before)) is not None]
    if not parts:
        return None
    names = [scenario_in(each.whole) for each in asked if kind_of(each) == "masks"]
    structure = ("read", *(part.ask for part in parts))
    return score, _problem([SCENARIOS[name] for name in names], sizes, tuple(parts), None, structure)


def _part(asked: Asked, sizes: Sizes, before: str) -> Part | None:
    """The bank's part for a part of a text, with what the text says before its parts; None where it has none."""
    kind = kind_of(asked)
    if kind == "masks":
        return masks_part(asked.name, SCENARIOS[scenario_in(asked.text)])
    if kind == "cost":
        return cost_part(asked.name, sizes)
    if kind == "bottleneck":
        return bottleneck_part(asked.name, long_in(asked.text), sizes)
    if kind == "crossing":
        found = crossing_in(f"{before} {asked.whole}")
        return crossing_part(asked.name, *found) if found else None
    if kind == "seen":
        found = seen_in(asked.whole)
        return seen_part(asked.name, *found) if found else None
    if kind == "reach":
        told = reach_in(asked, before)
        if told is None:
            return None
        if not told.in_numbers:
            return symbolic_part(asked.name, told.heads, told.layers, told.residual)
        sizes_told = int(told.heads), int(told.layers), told.length, told.window
        return number_part(asked.name, told.kind, *sizes_told, told.residual)
    return None


PROBLEMS: dict[str, Callable[[int | None], Problem]] = {NAME: make}
