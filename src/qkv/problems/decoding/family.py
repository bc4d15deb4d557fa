"""Decoding one token with shared keys (003 4): the blanks of a listing, and what a step costs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from ...render.document import Block, Code, Paragraph, prose
from ..problem import Part, Problem, Step
from ..variety import digits
from .costs import COSTS, Numbers, cost_part
from .costs_told import costs_in, numbers_in
from .listing import KINDS, LINES, SHAPES, Setting
from .reading import blanks_in, letters_of, likeness, options_in, setting_in

NAME = "decoding"
DOCUMENT = (("A", "W_q"), ("B", "W_k"), ("C", "q"), ("D", "k"), ("E", "v"))
OFFERED = {  # where the right one stands among the document's three
    "W_q": ("[h, d, q]", "[d, q]", "[h, q]"),
    "W_k": ("[h, d, k]", "[d, k]", "[h, k]"),
    "q": ("bd,dq->bhq", "bd,hdq->bhq", "bhd,dq->bhq"),
    "k": ("bd,dk->bk", "bd,hdk->bhk", "bd,dk->bhk"),
    "v": ("bd,hdv->bhv", "bd,dv->bhv", "bd,dv->bv"),
}
LETTERS: tuple[dict[str, Any], ...] = (
    {},
    {"width": "m", "length": "t"},
    {"batch": "s", "widths": ("c", "c", "c")},
    {"batch": "a", "width": "w", "length": "l", "widths": ("p", "p", "p")},
)
# Which blanks go together: at least one shape and one line.
TRIPLES = tuple(
    three for three in combinations((*SHAPES, *LINES), 3) if 0 < sum(blank in SHAPES for blank in three) < 3
)
PAIRS = tuple(combinations(COSTS, 2))
FOLLOW_UPS = (
    "At which length does reading the keys take longer than reading the weights, with and without sharing?",
    "Which lines of the listing change when two heads of keys serve four query heads each?",
    "Why does sharing keys make decoding faster although the number of operations hardly changes?",
)


def make(seed: int | None = None) -> Problem:
    """The documents' question, or the variant of a seed."""
    if seed is None:
        return problem(Setting(), DOCUMENT, ("time", "reading"), OFFERED)
    draw = random.Random(f"{NAME}:{seed}")
    kind, triple, letters = digits(seed, len(KINDS), len(TRIPLES), len(LETTERS))
    pair, offer = draw.choice(PAIRS), draw.random() < 0.5
    setting = Setting(kind=KINDS[kind], **LETTERS[letters])
    blanks = list(zip("ABC", TRIPLES[triple], strict=True))
    offered: dict[str, tuple[str, ...]] = {}
    if offer:
        for _, blank in blanks:
            three = list(setting.offered(blank))
            draw.shuffle(three)
            offered[blank] = tuple(three)
    return problem(setting, blanks, pair, offered, numbers_for(setting, draw), seed)


def numbers_for(setting: Setting, draw: random.Random) -> Numbers:
    """Sizes of a model that are powers of two and small multiples of them, so that products stay readable."""
    heads = draw.choice((8, 16, 24, 32, 40, 64))
    key_heads = {"multi-query": 1, "multi-head": heads, "grouped": draw.choice((2, 4))}[setting.kind]
    new = draw.choice((3, 4, 5))
    return Numbers(
        layers=draw.choice((12, 16, 24, 32, 48)),
        heads=heads,
        key_heads=key_heads,
        width=draw.choice((32, 64, 128)),
        batch=draw.choice((2, 4, 8, 16)),
        tokens=draw.choice((100, 200, 256, 500, 512, 1000, 1024, 2048)),
        size=draw.choice((1, 2)),
        new=new,
        place=draw.randint(1, new - 1),
    )


def problem(
    setting: Setting,
    blanks: Sequence[tuple[str, str]],
    costs: Sequence[str],
    offered: dict[str, tuple[str, ...]],
    numbers: Numbers | None = None,
    seed: int | None = None,
    names: Sequence[str] = "abcdefghijklmn",
) -> Problem:
    """The problem of a setting: which blanks are left, which costs are asked, with which options and numbers."""
    letters = iter(names)
    parts = [blank_part(next(letters), sign, blank, setting, offered.get(blank, ())) for sign, blank in blanks]
    parts += [cost_part(next(letters), what, setting, numbers or Numbers()) for what in costs]
    return Problem(
        NAME,
        TITLES[setting.kind],
        statement(setting, blanks, costs, numbers),
        tuple(parts),
        make,
        seed,
        (
            setting.kind,
            tuple(blank for _, blank in blanks),
            tuple(costs),
            setting.batch + setting.width + setting.length + "".join(setting.widths),
            "offered" if offered else "open",
        ),
        setting.symbols,
        ("003 4",),
        FOLLOW_UPS,
    )


TITLES = {
    "multi-query": "Decoding with one set of keys for all heads",
    "grouped": "Decoding with keys shared by groups of heads",
    "multi-head": "Decoding with keys for every head",
}


def statement(
    on: Setting, blanks: Sequence[tuple[str, str]], costs: Sequence[str], numbers: Numbers | None
) -> tuple[Block, ...]:
    """What is given: the sizes, how heads share keys, the listing with its blanks, and numbers where they are used."""
    q, k, v = on.widths
    widths = f"${q} = {k} = {v} = {on.width}/{on.heads}$" if len({q, k, v}) > 1 else f"${q} = {on.width}/{on.heads}$"
    sharing = {
        "multi-query": f"In multi-query attention the ${on.heads}$ query heads share one set of keys and values.",
        "grouped": f"In grouped-query attention the ${on.heads} = {on.groups} {on.members}$ query heads form "
        f"${on.groups}$ groups of ${on.members}$; a group shares one set of keys and values, and a query head is "
        "addressed by its group and its place in it.",
        "multi-head": f"In multi-head attention each of the ${on.heads}$ heads has keys and values of its own.",
    }[on.kind]
    given = (
        f"A decoder produces one token at a time for ${on.batch}$ sequences at once, and remembers the keys and values "
        f"of the ${on.length}$ tokens before. Vectors have ${on.width}$ components; queries, keys and values of a head "
        f"have {widths}. {sharing} The listing computes attention for the newest token of each sequence."
    )
    blocks: list[Block] = [Paragraph(prose(given, on.symbols)), Code(on.listing(blanks), "python")]
    if numbers is not None:
        heads = "1 head" if numbers.key_heads == 1 else f"{numbers.key_heads} heads"
        blocks.append(
            Paragraph(
                f"Where numbers are asked for: {numbers.layers} layers, {numbers.heads} query heads and {heads} of "
                f"keys and values, each {numbers.width} wide; {numbers.batch} sequences of {numbers.tokens} remembered "
                f"tokens; {numbers.size} {'byte' if numbers.size == 1 else 'bytes'} a number."
            )
        )
    return tuple(blocks)


def blank_part(letter: str, sign: str, blank: str, on: Setting, options: tuple[str, ...]) -> Part:
    """The question for one blank."""
    shape = blank in SHAPES
    wanted = f"the shape of `{blank}`" if shape else f"the line that computes `{blank}`"
    ask = f"What belongs in blank {sign}, {wanted}?"
    shown = (
        options if shape else tuple(f'{on.function}("{spec}", {", ".join(on.einsum(blank)[1])})' for spec in options)
    )
    if shown:
        ask += " Pick one: " + ", or ".join(f"`{option}`" for option in shown) + "."
    answer = on.answer(blank, options)
    about = on.about(blank)
    result = f"[{', '.join(on.shape(blank))}]"
    operands = () if shape else on.einsum(blank)[1]
    hints = (
        (
            "Which axes does each head have for itself, and which do all share?",
            (
                "Name what the tensor takes and what it gives: a matrix has both widths, and an axis in front for each "
                "head that has a matrix of its own."
            ),
            f"It has {len(on.shape(blank))} axes: {about}.",
        )
        if shape
        else (
            (
                f"Write the axes of {' and '.join(f'`{name}`' for name in operands)} below each other. "
                "Which letter is in both?"
            ),
            "A letter that is summed over is missing from the result; all others stay.",
            f"The result has the axes {result}: {about}.",
        )
    )
    return Part(
        letter,
        ask,
        answer,
        partial(_blank_steps, blank, on),
        hints,
        3 if shape else 4,
        on.misconceptions(blank),
        on.symbols,
        cues(sign, blank),
        f"{about[0].upper()}{about[1:]}.",
    )


def cues(sign: str, blank: str) -> tuple[str, ...]:
    """How a chat speaks of a blank where it does not name its letter."""
    loose = blank.replace("_", r"_?\{?")
    words = {"q": "query|queries", "k": "keys?", "v": "values?", "scores": "scores|logits",
             "o": "weighted (?:sum|values)", "y": "output"}  # fmt: skip
    named = (
        rf"\b{loose}\b.{{0,20}}shape|shape.{{0,20}}\b{loose}\b"
        if blank in SHAPES
        else (rf"^\W*{loose}\W*=|\b(?:{words[blank]})\b.{{0,30}}(?:einsum|calc|comput|project|line)")
    )
    return (rf"\bblank {sign}\b", rf"\bwhat is {sign}\b", named)


def _blank_steps(blank: str, on: Setting) -> tuple[Step, ...]:
    about = on.about(blank)
    why = f"{about[0].upper()}{about[1:]}."
    if blank in SHAPES:
        return (Step(f"List the axes of `{blank}`.", why, value=on.answer(blank).text),)
    spec, operands = on.einsum(blank)
    axes = spec.partition("->")[0].split(",")
    shapes = " and ".join(f"`{name}` [{', '.join(axis)}]" for name, axis in zip(operands, axes, strict=True))
    summed = [letter for letter in dict.fromkeys("".join(axes)) if letter not in on.shape(blank)]
    sums = " and ".join(f"${letter}$" for letter in summed)
    return (
        Step(f"Write down the axes: {shapes}.", "Every axis gets its letter; equal letters are equal sizes."),
        Step(f"Sum over {sums} and keep {', '.join(f'${letter}$' for letter in on.shape(blank))}.", why,
             value=on.answer(blank).text),
    )  # fmt: skip


def recognised(text: str) -> tuple[float, Problem] | None:
    """How surely a text asks this, and the problem with the text's own letters, blanks, options and numbers."""
    score = likeness(text)
    if score == 0:
        return None
    setting = setting_in(text)
    if setting is None:
        return None
    blanks = blanks_in(text)
    numbers, told = numbers_in(text, setting) or (None, frozenset())
    asked = costs_in(text, told)
    if not blanks and not asked:
        return None
    offered = {blank: options for sign, blank in blanks if (options := options_in(text, sign, blank))}
    named = [*letters_of(text, blanks), *(name for name, _ in asked)]
    own = named if all(named) and len(set(named)) == len(named) else "abcdefghijklmn"
    return score, problem(setting, blanks, [what for _, what in asked], offered, numbers, names=own)


PROBLEMS: dict[str, Callable[[int | None], Problem]] = {NAME: make}
