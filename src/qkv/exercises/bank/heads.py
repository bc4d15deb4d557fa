"""Multi-head attention: how far it sees, which masks it needs, what it costs, and which part dominates."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import permutations
from typing import Any, NamedTuple

from ..record import Given, Structure
from .family import BankExercise, Question, built, filled, given_sizes, given_values, listed, question, spread, words_of

NAME = "heads"
_WORDS = words_of("heads")
_ROMAN = ("i", "ii", "iii")


class Sizes(NamedTuple):
    """The letters of the lengths, the head's width, the heads, the model's width, and the heads of keys."""

    queries: str
    keys: str
    head_width: str
    heads: str
    model: str
    groups: str = ""

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters of a cost: all but the model's width."""
        return tuple(dict.fromkeys((*self[:4], *filter(None, [self.groups]))))


_LETTERS = tuple(Sizes(*each) for each in _WORDS["letters"])


def make(seed: int | None) -> BankExercise:
    """The printed exercise, or the variant of a seed."""
    if seed is None:
        asked = [_reach(f"a({sign})", heads, "n") for sign, heads in zip(_ROMAN, (1, 2, "k"), strict=True)]
        asked += [_masks(f"b({sign})", name) for sign, name in zip(_ROMAN, _WORDS["scenarios"], strict=True)]
        asked += [_cost("c", _LETTERS[0]), _bottleneck("d(i)", "short", "d_model")]
        return _exercise(None, _LETTERS[0], [*asked, _bottleneck("d(ii)", "long", "d_model")], ("printed",))
    shape = spread(
        seed,
        reach=("reach", "capped", "window", "letters"),
        sizes=_LETTERS,
        pair=tuple(permutations(_WORDS["scenarios"], 2)),
        end=("short", "long", "crossing"),
        extra=("none", "pairs"),
        heads=(2, 3, 4),
        layers=(3, 2, 4),
    )
    draw, at = random.Random(f"{NAME}:{seed}"), shape["sizes"]
    asked = [_drawn_reach(shape, draw)]
    asked += [_masks(f"b({sign})", name) for sign, name in zip(_ROMAN[:2], shape["pair"], strict=True)]
    asked.append(_cost("c", at))
    asked.append(_crossing(draw) if shape["end"] == "crossing" else _bottleneck("d", shape["end"], at.model))
    if shape["extra"] == "pairs":
        new, past = draw.randint(3, 5), draw.randint(4, 9)
        changes = given_values(length=new, keys_length=new + past, mask="causal")
        asked.append(question("e", "pairs", "", {"queries": new, "past": past, "first": past + 1}, changes=changes))
    return _exercise(seed, at, asked, shape.values())


FAMILIES = {NAME: make}


def _exercise(seed: int | None, at: Sizes, asked: list[Question], kind: Any) -> BankExercise:
    own = at.queries == at.keys
    data = {"d": at.model, "h": at.heads, "w": at.head_width, "q": at.queries, "k": at.keys, "g": at.groups}
    data |= {
        "shared": f" {filled(_WORDS['shared'], data)}" if at.groups else "",
        "lengths": filled(_WORDS["one_length" if own else "two_lengths"], data),
        "letters": listed([f"${name}$" for name in at.letters]),
    }
    return built(
        NAME, seed, _WORDS, asked,
        givens=given_sizes(length=at.queries, keys_length="" if own else at.keys, head_width=at.head_width,
                           heads=at.heads, width=at.model, kv_heads=at.groups),
        data=data,
        structure=Structure(residual=True, phase="prefill", source="self" if own else "cross",
                            variant="gqa" if at.groups else "mha"),
        symbols={**dict.fromkeys([*at.letters, "n", "k"], "natural"),
                 at.model: f"natural = {at.head_width} {at.heads}"},
        kind=kind,
    )  # fmt: skip


def _reach(label: str, heads: int | str, layers: int | str) -> Question:
    said = {"1": "one head", "2": "two heads"}.get(str(heads), f"${heads}$ heads")
    changes = (_size("heads", heads), _size("layers", layers))
    return question(label, "reach", "", {"heads_said": said, "layers": layers}, changes=changes)


def _size(role: Any, value: int | str) -> Given:
    return Given(role=role, symbol=value) if isinstance(value, str) else Given(role=role, value=value)


def _drawn_reach(shape: Mapping[str, Any], draw: random.Random) -> Question:
    heads, layers, kind = shape["heads"], shape["layers"], shape["reach"]
    if kind in ("letters", "reach"):
        return _reach("a", draw.choice(("k", heads)), "n") if kind == "letters" else _reach("a", heads, layers)
    if kind == "capped":
        length = draw.choice((20, 30, 50))
        mistakes = ("end of the sequence forgotten",) if (heads + 1) ** layers > length else ()
        data = {"heads_said": f"{heads} heads", "layers": layers, "length": length}
        changes = given_values(heads=heads, layers=layers, length=length)
        return question("a", "capped", "", data, changes=changes, mistakes=mistakes)
    window = draw.choice((4, 5, 8, 16))
    changes = given_values(window=window, layers=layers)
    return question("a", "window", "", {"before": window - 1, "layers": layers}, changes=changes)


def _masks(label: str, scenario: str) -> Question:
    data = _WORDS["scenarios"][scenario]
    return question(label, "masks", "", data, object=scenario, mistakes=data["mistakes"])


def _cost(label: str, at: Sizes) -> Question:
    mistakes = () if at.queries == at.keys else ("key length squared",)
    return question(label, "cost", in_terms_of=at.letters, mistakes=mistakes)


def _bottleneck(label: str, end: str, width: str) -> Question:
    regime = _WORDS["regimes"][end]
    return question(label, "bottleneck", "", {"regime": filled(regime["said"], {"d": width})}, object=regime["object"])


def _crossing(draw: random.Random) -> Question:
    width = draw.choice((64, 128, 256, 512, 1024))
    numbers = given_values(width=width, head_width=width, heads=1, kv_heads=1)
    changes = (*given_sizes(length="n", keys_length="n"), *numbers)
    return question("d", "crossing", "", {"width": width}, changes=changes)
