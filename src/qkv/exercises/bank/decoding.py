"""Decoding one token with cached keys: the blanks of a listing, and what a step costs."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from ..mistakes import mistake
from ..record import Asked, Exercise, Given, Structure
from ..solving import Answer, answer
from . import family
from .family import BankExercise, built, filled, given_sizes, given_values, letters, question, spread, words_of

NAME = "decoding"
_WORDS = words_of("decoding")
_SHAPES = ("W_q", "W_k", "W_v", "W_o")
_TRIPLES = tuple(
    three
    for three in combinations((*_SHAPES, "q", "k", "v", "o", "y"), 3)
    if 0 < sum(blank in _SHAPES for blank in three) < 3 and not any(f"W_{line}" in three for line in three)
    if not {"W_o", "y"} <= set(three)
)
_COSTS = tuple(combinations(("time", "reading", "bytes", "pairs"), 2))
_PER_HEAD, _SHARED = "per-head keys in multi-query attention", "one key head for all"

# The axes of heads of queries and of keys; with groups, keys may also be those of each query head, or of none.
_HEADS = {"mqa": ("h", ""), "gqa": ("gr", "g"), "mha": ("h", "h"), "each": ("gr", "gr"), "one": ("gr", "")}


@dataclass(frozen=True)
class Setting:
    """How heads share keys and values, and the letters of the sizes; with groups, h = g r."""

    kind: str = "mqa"
    b: str = "b"
    d: str = "d"
    n: str = "n"
    widths: tuple[str, str, str] = ("q", "k", "v")

    def axes(self, name: str) -> str:
        """The axes of a tensor, a letter each."""
        letters = dict(zip("bdnqkvHK", (self.b, self.d, self.n, *self.widths, *_HEADS[self.kind]), strict=True))
        return "".join(letters[sign] for sign in _WORDS["axes"][name])

    def shape(self, name: str) -> str:
        return f"[{', '.join(self.axes(name))}]"

    def spec(self, line: str) -> str:
        """The einsum of a line; a query's components are named as a key's, or they would not be summed."""
        operands = [self.axes(name) for name in _WORDS["operands"][line]]
        if line == "scores":
            operands[0] = operands[0][:-1] + operands[1][-1]
        return f"{','.join(operands)}->{self.axes(line)}"

    def written(self, blank: str) -> str:
        return self.shape(blank) if blank in _SHAPES else self.spec(blank)

    def wrong(self, blank: str) -> dict[str, str]:
        """What a mistake puts into a blank."""
        found: dict[str, str] = {}
        right, grouped = self.written(blank), self.kind == "gqa"
        if blank in ("W_k", "W_v", "k", "v", "o"):
            found[_PER_HEAD] = replace(self, kind="each" if grouped else "mha").written(blank)
            found[_SHARED] = replace(self, kind="one" if grouped else "mqa").written(blank)
        if blank in ("W_q", "q", "W_o"):
            alone = "".join(sign for sign in right if sign not in _HEADS[self.kind][0])
            found["one query head"] = f"[{', '.join(s for s in alone if s.isalpha())}]" if blank in _SHAPES else alone
        if blank in ("W_q", "W_k", "W_v"):
            found["input width forgotten"] = f"[{', '.join(axis for axis in self.axes(blank) if axis != self.d)}]"
        if blank == "y":
            found["heads not added up"] = right[:-2] + self.axes("o")[:-1] + self.d
        if blank in ("q", "k", "v", "o"):
            found["batch forgotten"] = right.replace(self.b, "")
        return {name: text for name, text in found.items() if text != right}

    def listing(self, blanks: Mapping[str, str]) -> str:
        """The step as code; `blanks` are letters by what they leave open."""
        left = {name: f"____{letter}____" for name, letter in blanks.items()}
        shapes = (f"    # {name:<7} {left.get(name, self.shape(name)):<16} {said}"
                  for name, said in _WORDS["comments"].items())  # fmt: skip
        place = len(self.axes("keys")) - 2
        lines = {f"line_{name}": left.get(name, einsum(self, name)) for name in _WORDS["operands"]}
        data = {"shapes": "\n".join(shapes), "new": ":, " * place + "None", "place": place, **lines}
        return filled(_WORDS["code"], {**data, "shape_o": self.shape("o"), "shape_y": self.shape("y")})


LETTERS = (Setting(), Setting(d="m", n="t"), Setting(b="s", widths=("c", "c", "c")),
           Setting(b="a", d="w", n="l", widths=("p", "p", "p")))  # fmt: skip


def einsum(on: Setting, line: str, spec: str = "") -> str:
    return f'einsum("{spec or on.spec(line)}", {", ".join(_WORDS["operands"][line])})'


def make(seed: int | None) -> BankExercise:
    """The printed exercise, or the variant of a seed."""
    if seed is None:
        return _exercise(None, Setting(), _WORDS["printed"], ("time", "reading"), {}, ("printed",))
    draw = random.Random(f"{NAME}:{seed}")
    shape = spread(seed, kind=("mqa", "gqa", "mha"), blanks=_TRIPLES, letters=LETTERS, costs=_COSTS)
    on = replace(shape["letters"], kind=shape["kind"])
    offered = {}
    for blank in shape["blanks"]:
        right = on.written(blank)
        turned = f"[{', '.join(on.axes(blank)[::-1])}]" if blank in _SHAPES else right[:-2] + right[-1] + right[-2]
        three = [right, *list(dict.fromkeys([*on.wrong(blank).values(), turned]))[:2]]
        offered[blank] = draw.sample(three, len(three))
    numbers = {name: draw.choice(among) for name, among in _WORDS["drawn"].items()}
    numbers["key_heads"] = {"mqa": 1, "mha": numbers["heads"], "gqa": numbers["groups"]}[on.kind]
    return _exercise(seed, on, offered, shape["costs"], numbers, shape.values())


FAMILIES = {NAME: make}


def _exercise(seed: int | None, on: Setting, offered: Mapping[str, Sequence[str]], costs: Sequence[str],
              numbers: Mapping[str, int], kind: Any) -> BankExercise:  # fmt: skip
    labels, (q, k, v), signs = letters(), on.widths, dict(zip(offered, "ABCDE", strict=False))
    listing = on.listing(signs)
    data: dict[str, Any] = {"b": on.b, "d": on.d, "n": on.n, "h": "h", "g": "g", "r": "r", "listing": listing}
    data["widths"] = f"${q} = {k} = {v} = {on.d}/h$" if len({q, k, v}) > 1 else f"${q} = {on.d}/h$"
    data |= {"sharing": filled(_WORDS[on.kind], data), "numbers": ""}
    if numbers:
        heads = f"{numbers['key_heads']} head{'' if numbers['key_heads'] == 1 else 's'}"
        one = 2 * numbers["key_heads"] * numbers["wide"] * numbers["size"] * numbers["layers"]
        data |= {**numbers, "token_bytes": one, "first": numbers["past"] + 1}
        data["numbers"] = filled(_WORDS["numbers"], {**data, "key_heads": heads})
    asked = []
    for blank, options in offered.items():
        texts = options if blank in _SHAPES else [einsum(on, blank, spec) for spec in options]
        said = {"letter": signs[blank], "name": blank, "axes": len(on.axes(blank)), "result": on.shape(blank)}
        asked.append(question(next(labels), "shape" if blank in _SHAPES else "line", "", said, object=signs[blank],
                              options=family.numbered(texts), mistakes=tuple(on.wrong(blank))))  # fmt: skip
    terms = (on.b, on.d, on.n, "h", *(("g",) if on.kind == "gqa" else ()))
    known = {**numbers, "all": sum(numbers.get(name, 0) for name in ("new", "past")), "causal": "causal",
             "dtype": "bfloat16" if numbers.get("size") == 2 else "float32"}  # fmt: skip
    replaced = {cost: given_values(**{role: known[name] for role, name in roles.items()})
                for cost, roles in _WORDS["roles"].items() if cost in costs}  # fmt: skip
    fields = {cost: {"changes": replaced[cost], "unit": "B" if cost == "bytes" else ""} if cost in replaced
              else {"in_terms_of": terms} for cost in costs}  # fmt: skip
    sizes = given_sizes(batch=on.b, width=on.d, heads="h", keys_length=on.n, kv_heads="g" if on.kind == "gqa" else "")
    return built(
        NAME, seed, _WORDS, [*asked, *family.questions(labels, costs, **fields)],
        givens=[Given(role="listing", value=listing), *sizes],
        data={**data, "keys_taken": _SHARED if on.kind == "mha" else _PER_HEAD},
        structure=Structure(variant=on.kind, phase="decode"),  # pyright: ignore[reportArgumentType]
        symbols={**dict.fromkeys((on.b, on.d, on.n, "h", "g", "r"), "natural"),
                 **dict.fromkeys(on.widths, f"natural = {on.d}/h")},
        kind=kind,
    )  # fmt: skip


def _plant(name: str) -> None:
    """A mistake in a blank of the listing, which says how heads share keys and which letters the sizes have."""

    def wrong(exercise: Exercise, asked: Asked) -> Answer | None:
        listing = str(getattr(exercise.given("listing"), "value", ""))
        left = re.search(rf"(\w+)\s+=?\s*____{asked.object}____", listing)
        widths = re.findall(r"# (?:keys|values)\s+\[.*?(\w)\]", listing)
        if left is None or len(widths) != 2:
            return None
        b, d, n = (str(exercise.size(role)) for role in ("batch", "width", "keys_length"))
        k, v = widths
        on = Setting(str(exercise.structure.variant), b, d, n, ("q" if k == "k" else k, k, v))
        text = on.wrong(left[1]).get(name, "")
        written = text if left[1] in _SHAPES or not text else einsum(on, left[1], text)
        return replace(answer(exercise, asked), text=written, value=written) if text else None

    mistake(name, quantities=("blank",))(wrong)


for _name in (_PER_HEAD, _SHARED, "one query head", "input width forgotten", "heads not added up", "batch forgotten"):
    _plant(_name)
