"""Decoding one token with cached keys: the blanks of a listing, and what a step costs."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from ..mistakes import mistake
from ..record import Asked, Exercise, Given, Option, Structure
from ..solving import Answer, answer
from .family import BankExercise, Question, built, filled, letters, question, spread, words_of

NAME = "decoding"
_SHAPES = ("W_q", "W_k", "W_v", "W_o")
_LINES = ("q", "k", "v", "o", "y")
_TRIPLES = tuple(
    three
    for three in combinations((*_SHAPES, *_LINES), 3)
    if 0 < sum(blank in _SHAPES for blank in three) < 3 and not any(f"W_{line}" in three for line in three)
    if not {"W_o", "y"} <= set(three)
)
_COSTS = tuple(combinations(("time", "reading", "bytes", "pairs"), 2))
_PER_HEAD, _SHARED = "per-head keys in multi-query attention", "one key head for all"

# The axes of heads of queries and of keys; with groups, keys may also be those of each query head, or of none.
_AXES = {"mqa": ("h", ""), "gqa": ("gr", "g"), "mha": ("h", "h"), "each": ("gr", "gr"), "one": ("gr", "")}


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
        q, k, v = self.widths
        heads, of_keys = _AXES[self.kind]
        return {
            "x": self.b + self.d, "W_q": heads + self.d + q, "W_k": of_keys + self.d + k, "W_v": of_keys + self.d + v,
            "W_o": heads + v + self.d, "keys": self.b + of_keys + self.n + k, "values": self.b + of_keys + self.n + v,
            "q": self.b + heads + q, "k": self.b + of_keys + k, "v": self.b + of_keys + v,
            "scores": self.b + heads + self.n, "weights": self.b + heads + self.n, "o": self.b + heads + v,
            "y": self.b + self.d,
        }[name]  # fmt: skip

    def shape(self, name: str) -> str:
        return f"[{', '.join(self.axes(name))}]"

    def spec(self, line: str) -> str:
        """The einsum of a line; a query's components are named as a key's, or they would not be summed."""
        operands = [self.axes(name) for name in _OPERANDS[line]]
        if line == "scores":
            operands[0] = operands[0][:-1] + operands[1][-1]
        return f"{','.join(operands)}->{self.axes(line)}"

    def written(self, blank: str) -> str:
        return self.shape(blank) if blank in _SHAPES else self.spec(blank)

    def wrong(self, blank: str) -> dict[str, str]:
        """What a mistake puts into a blank."""
        found: dict[str, str] = {}
        if blank in ("W_k", "W_v", "k", "v", "o") and self.kind != "mha":
            found[_PER_HEAD] = replace(self, kind="each" if self.kind == "gqa" else "mha").written(blank)
        if blank in ("W_k", "W_v", "k", "v", "o") and self.kind != "mqa":
            found[_SHARED] = replace(self, kind="one" if self.kind == "gqa" else "mqa").written(blank)
        right, heads = self.written(blank), _AXES[self.kind][0]
        if blank in ("W_q", "q", "W_o"):
            alone = "".join(sign for sign in right if sign not in heads)
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
        place = len(self.axes("keys")) - 2
        new = ", ".join([":"] * place + ["None"])

        def line(name: str) -> str:
            return f"____{blanks[name]}____" if name in blanks else einsum(self, name)

        left = {name: f"____{blanks[name]}____" for name in _SHAPES if name in blanks}
        shapes = [
            f"    # {name:<7} {left.get(name, self.shape(name)):<16} {said}"
            for name, said in words_of("decoding")["comments"].items()
        ]
        return "\n".join([
            "def next_token(x, keys, values, W_q, W_k, W_v, W_o):", *shapes,
            *(f"    {name} = {line(name)}" for name in "qkv"),
            f"    keys = concatenate([keys, k[{new}]], axis={place})",
            f"    values = concatenate([values, v[{new}]], axis={place})",
            f"    scores = {line('scores')} / sqrt(keys.shape[-1])",
            "    weights = softmax(scores, axis=-1)",
            *(f"    {name} = {line(name)}  # {self.shape(name)}" for name in "oy"),
            "    return y, keys, values",
        ])  # fmt: skip


_OPERANDS = {"q": ("x", "W_q"), "k": ("x", "W_k"), "v": ("x", "W_v"), "scores": ("q", "keys"),
             "o": ("weights", "values"), "y": ("o", "W_o")}  # fmt: skip
LETTERS = (Setting(), Setting(d="m", n="t"), Setting(b="s", widths=("c", "c", "c")),
            Setting(b="a", d="w", n="l", widths=("p", "p", "p")))  # fmt: skip


def einsum(on: Setting, line: str, spec: str = "") -> str:
    return f'einsum("{spec or on.spec(line)}", {", ".join(_OPERANDS[line])})'


def make(seed: int | None) -> BankExercise:
    """The printed exercise, or the variant of a seed."""
    if seed is None:
        return _exercise(None, Setting(), words_of("decoding")["printed"], ("time", "reading"), {}, ("printed",))
    draw = random.Random(f"{NAME}:{seed}")
    shape = spread(seed, kind=("mqa", "gqa", "mha"), blanks=_TRIPLES, letters=LETTERS, costs=_COSTS)
    on = replace(shape["letters"], kind=shape["kind"])
    offered = {}
    for blank in shape["blanks"]:
        right = on.written(blank)
        turned = f"[{', '.join(on.axes(blank)[::-1])}]" if blank in _SHAPES else right[:-2] + right[-1] + right[-2]
        three = [right, *list(dict.fromkeys([*on.wrong(blank).values(), turned]))[:2]]
        offered[blank] = tuple(draw.sample(three, len(three)))
    return _exercise(seed, on, offered, shape["costs"], _numbers(on, draw), shape.values())


FAMILIES = {NAME: make}


def _numbers(on: Setting, draw: random.Random) -> dict[str, int]:
    heads = draw.choice((8, 16, 24, 32, 64))
    return {
        "heads": heads,
        "key_heads": {"mqa": 1, "mha": heads, "gqa": draw.choice((2, 4))}[on.kind],
        "layers": draw.choice((12, 16, 24, 32, 48)),
        "wide": draw.choice((32, 64, 128)),
        "batch": draw.choice((2, 4, 8, 16)),
        "tokens": draw.choice((256, 512, 1000, 1024, 2048)),
        "size": draw.choice((2, 4)),
        "new": draw.choice((3, 4, 5)),
        "past": draw.choice((4, 6, 7, 10)),
    }


def _exercise(seed: int | None, on: Setting, offered: Mapping[str, Sequence[str]], costs: Sequence[str],
              numbers: Mapping[str, int], kind: Any) -> BankExercise:  # fmt: skip
    words, labels, (q, k, v) = words_of("decoding"), letters(), on.widths
    signs = dict(zip(offered, "ABCDE", strict=False))
    listing = on.listing(signs)
    data: dict[str, Any] = {"b": on.b, "d": on.d, "n": on.n, "h": "h", "g": "g", "r": "r", "listing": listing}
    data["widths"] = f"${q} = {k} = {v} = {on.d}/h$" if len({q, k, v}) > 1 else f"${q} = {on.d}/h$"
    data["sharing"] = filled(words[on.kind], data)
    if numbers:
        heads = f"{numbers['key_heads']} head{'' if numbers['key_heads'] == 1 else 's'}"
        one = 2 * numbers["key_heads"] * numbers["wide"] * numbers["size"] * numbers["layers"]
        data |= {**numbers, "token_bytes": one,
                 "first": numbers["past"] + 1}  # fmt: skip
        data["numbers"] = filled(words["numbers"], {**data, "key_heads": heads})
    questions = [_blank(next(labels), signs[blank], blank, on, options) for blank, options in offered.items()]
    questions += [_cost(next(labels), cost, on, numbers) for cost in costs]
    sizes = [Given(symbol=on.b, role="batch"), Given(symbol=on.d, role="width"), Given(symbol="h", role="heads"),
             Given(symbol=on.n, role="keys_length")]  # fmt: skip
    sizes += [Given(symbol="g", role="kv_heads")] if on.kind == "gqa" else []
    symbols = dict.fromkeys((on.b, on.d, on.n, "h", "g", "r", *on.widths), "natural")
    return built(
        NAME, seed, words, questions,
        givens=[Given(role="listing", value=listing), *sizes],
        data={"numbers": "", **data},
        structure=Structure(variant=on.kind, phase="decode"),  # pyright: ignore[reportArgumentType]
        symbols=symbols,
        kind=kind,
    )  # fmt: skip


def _blank(label: str, sign: str, blank: str, on: Setting, options: Sequence[str]) -> Question:
    texts = options if blank in _SHAPES else [einsum(on, blank, spec) for spec in options]
    data = {"letter": sign, "name": blank, "axes": len(on.axes(blank)), "result": on.shape(blank)}
    return question(
        label, "shape" if blank in _SHAPES else "line", "blank", data,
        object=sign,
        form="blank",
        options=tuple(Option(label=str(place), text=text) for place, text in enumerate(texts, 1)),
        mistakes=tuple(on.wrong(blank)),
    )  # fmt: skip


def _cost(label: str, cost: str, on: Setting, numbers: Mapping[str, int]) -> Question:
    shared = _SHARED if on.kind == "mha" else _PER_HEAD
    terms = (on.b, on.d, on.n, "h", *(("g",) if on.kind == "gqa" else ()))
    if cost == "time":
        mistakes = ("work of attention divided by the heads", "projections forgotten", "batch forgotten")
        return question(label, cost, "growth_time", object="decode", in_terms_of=terms, mistakes=mistakes)
    if cost == "reading":
        mistakes = ("weights not read", "batch forgotten", shared)
        return question(label, cost, "growth_moved", object="decode", in_terms_of=terms, mistakes=mistakes)
    roles = {"layers": "layers", "heads": "heads", "key_heads": "kv_heads", "wide": "head_width", "batch": "batch",
             "tokens": "keys_length"}  # fmt: skip
    changes = [Given(role=role, value=numbers[name]) for name, role in roles.items()]  # pyright: ignore
    changes.append(Given(role="dtype", value="bfloat16" if numbers["size"] == 2 else "float32"))
    if cost == "bytes":
        mistakes = ("keys without values", "batch forgotten", shared)
        return question(label, cost, "cache_bytes", unit="B", changes=tuple(changes), mistakes=mistakes)
    new, past = numbers["new"], numbers["past"]
    changes = [Given(role="length", value=new), Given(role="keys_length", value=new + past),
               Given(role="mask", value="causal")]  # fmt: skip
    mistakes = ("top left for bottom right", "every new token seen", "a token does not see itself")
    return question(label, cost, "pairs_count", changes=tuple(changes), mistakes=mistakes)


def _plant(name: str) -> None:
    """A mistake in a blank of the listing, which says how heads share keys and which letters the sizes have."""

    def wrong(exercise: Exercise, asked: Asked) -> Answer | None:
        given = exercise.given("listing")
        listing = "" if given is None else str(given.value)
        left = re.search(rf"(\w+)\s+=?\s*____{asked.object}____", listing)
        shapes = re.findall(r"# (?:keys|values)\s+\[(.+?)\]", listing)
        if left is None or len(shapes) != 2:
            return None
        b, d, n = (str(exercise.size(role)) for role in ("batch", "width", "keys_length"))
        k, v = (shape[-1] for shape in shapes)
        on = Setting(str(exercise.structure.variant), b, d, n, ("q" if k == "k" else k, k, v))
        text = on.wrong(left[1]).get(name)
        if text is None:
            return None
        written = text if left[1] in _SHAPES else einsum(on, left[1], text)
        return replace(answer(exercise, asked), text=written, value=written)

    mistake(name, quantities=("blank",))(wrong)


for _name in (_PER_HEAD, _SHARED, "one query head", "input width forgotten", "heads not added up", "batch forgotten"):
    _plant(_name)
