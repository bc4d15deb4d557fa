"""Multi-head attention: how far it sees, which masks it needs, what it costs, and which part dominates."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import permutations
from typing import Any, NamedTuple

from ..record import Given, Structure
from .family import BankExercise, Question, built, listed, question, spread, words_of

NAME = "heads"
_SCENARIOS = ("encoder", "decoder", "encoder-decoder")
_ROMAN = ("i", "ii", "iii")
_WRONG_MASKS = {
    "encoder": ("causal mask in an encoder", "padding mask forgotten"),
    "decoder": ("no causal mask in the decoder",),
    "encoder-decoder": ("causal mask in an encoder", "no causal mask in the decoder", "causal mask in cross-attention",
                        "padding mask forgotten"),
}  # fmt: skip


class Sizes(NamedTuple):
    """The letters of the lengths, the head's width, the heads, the model's width, and the heads of keys."""

    queries: str = "n_t"
    keys: str = "n_s"
    head_width: str = "d_head"
    heads: str = "h"
    model: str = "d_model"
    groups: str = ""


_LETTERS = (
    Sizes(),
    Sizes("m", "n", "c", "h", "d"),
    Sizes("n", "n", "d_h", "h", "d"),
    Sizes("n_q", "n_k", "d_k", "H", "D", "G"),
    Sizes("T", "S", "w", "H", "D"),
    Sizes("T", "T", "c", "h", "D"),
)


def make(seed: int | None) -> BankExercise:
    """The printed exercise, or the variant of a seed."""
    if seed is None:
        asked = [_reach(f"a({sign})", heads, "n") for sign, heads in zip(_ROMAN, (1, 2, "k"), strict=True)]
        asked += [_masks(f"b({sign})", name) for sign, name in zip(_ROMAN, _SCENARIOS, strict=True)]
        asked += [_cost("c", Sizes()), _bottleneck("d(i)", False, Sizes()), _bottleneck("d(ii)", True, Sizes())]
        return _exercise(None, Sizes(), asked, ("printed",))
    shape = spread(
        seed,
        reach=("reach", "capped", "window", "letters"),
        sizes=_LETTERS,
        pair=tuple(permutations(_SCENARIOS, 2)),
        end=("short", "long", "crossing"),
        extra=("none", "pairs"),
        heads=(2, 3, 4),
        layers=(3, 2, 4),
    )
    draw, sizes = random.Random(f"{NAME}:{seed}"), shape["sizes"]
    asked = [_drawn_reach(shape, draw)]
    asked += [_masks(f"b({sign})", name) for sign, name in zip(_ROMAN[:2], shape["pair"], strict=True)]
    asked.append(_cost("c", sizes))
    asked.append(
        _crossing("d", draw) if shape["end"] == "crossing" else _bottleneck("d", shape["end"] == "long", sizes)
    )
    if shape["extra"] == "pairs":
        asked.append(_pairs("e", draw.randint(3, 5), draw.randint(4, 9)))
    return _exercise(seed, sizes, asked, shape.values())


FAMILIES = {NAME: make}


def _exercise(seed: int | None, at: Sizes, asked: list[Question], kind: Any) -> BankExercise:
    own = at.queries == at.keys
    both = f"${at.queries}$ queries and ${at.keys}$ keys"
    shared = f" Keys and values have ${at.groups}$ heads only, each of the same width." if at.groups else ""
    letters = [f"${name}$" for name in dict.fromkeys((*at[:4], *([at.groups] if at.groups else [])))]
    data = {
        "d": at.model, "h": at.heads, "w": at.head_width, "shared": shared,
        "lengths": f"${at.queries}$ tokens that attend to one another" if own else both,
        "letters": listed(letters),
    }  # fmt: skip
    givens = [Given(symbol=at.queries, role="length")]
    givens += [] if own else [Given(symbol=at.keys, role="keys_length")]
    givens += [Given(symbol=at.head_width, role="head_width"), Given(symbol=at.heads, role="heads"),
               Given(symbol=at.model, role="width")]  # fmt: skip
    givens += [Given(symbol=at.groups, role="kv_heads")] if at.groups else []
    symbols: dict[str, str] = dict.fromkeys([*at[:4], *([at.groups] if at.groups else []), "n", "k"], "natural")
    return built(
        NAME, seed, words_of("heads"), asked,
        givens=givens,
        data=data,
        structure=Structure(
            residual=True,
            phase="prefill",
            source="self" if own else "cross",
            variant="gqa" if at.groups else "mha",
        ),
        symbols={**symbols, at.model: f"natural = {at.head_width} {at.heads}"},
        kind=kind,
    )  # fmt: skip


def _reach(label: str, heads: int | str, layers: int | str) -> Question:
    changes = (_size("heads", heads), _size("layers", layers))
    said = {"1": "one head", "2": "two heads"}.get(str(heads), f"${heads}$ heads")
    mistakes = ("residual forgotten", "layers added instead of multiplied")
    return question(label, "reach", "receptive_field", {"heads_said": said, "layers": layers}, object="argmax",
                    changes=changes, mistakes=mistakes)  # fmt: skip


def _size(role: Any, value: int | str) -> Given:
    return Given(role=role, symbol=value) if isinstance(value, str) else Given(role=role, value=value)


def _drawn_reach(shape: Mapping[str, Any], draw: random.Random) -> Question:
    heads, layers, kind = shape["heads"], shape["layers"], shape["reach"]
    if kind == "letters":
        return _reach("a", draw.choice(("k", heads)), "n")
    if kind == "reach":
        return _reach("a", heads, layers)
    if kind == "capped":
        length = draw.choice((20, 30, 50))
        data = {"heads_said": f"{heads} heads", "layers": layers, "length": length}
        mistakes = ("residual forgotten", "layers added instead of multiplied")
        mistakes += ("end of the sequence forgotten",) if (heads + 1) ** layers > length else ()
        changes = (_size("heads", heads), _size("layers", layers), Given(role="length", value=length))
        return question("a", "capped", "receptive_field", data, object="argmax", changes=changes, mistakes=mistakes)
    window = draw.choice((4, 5, 8, 16))
    data = {"before": window - 1, "layers": layers}
    mistakes = ("layers multiplied in a window",)
    changes = (Given(role="window", value=window), _size("layers", layers))
    return question("a", "window", "receptive_field", data, object="window", changes=changes, mistakes=mistakes)


def _masks(label: str, scenario: str) -> Question:
    data = words_of("heads")["scenarios"][scenario]
    return question(label, "masks", "masks_needed", data, object=scenario, mistakes=_WRONG_MASKS[scenario])


def _cost(label: str, at: Sizes) -> Question:
    mistakes = ["projections forgotten", "scores forgotten", "heads projected one by one"]
    mistakes += [] if at.queries == at.keys else ["key length squared"]
    letters = tuple(dict.fromkeys((*at[:4], *([at.groups] if at.groups else []))))
    return question(label, "cost", "growth_time", object="multi-head attention", in_terms_of=letters,
                    mistakes=tuple(mistakes))  # fmt: skip


def _bottleneck(label: str, long: bool, at: Sizes) -> Question:
    said = f"sequences are long and ${at.model}$ is small" if long else f"${at.model}$ is large and sequences are short"
    regime = "sequences long, width small" if long else "width large, sequences short"
    return question(label, "bottleneck", "bottleneck", {"regime": said}, object=regime,
                    mistakes=("bottleneck mixed up",))  # fmt: skip


def _crossing(label: str, draw: random.Random) -> Question:
    width = draw.choice((64, 128, 256, 512, 1024))
    mistakes = ("scores without the weighted sum", "keys and values not projected")
    changes = [Given(role=role, symbol="n") for role in ("length", "keys_length")]  # pyright: ignore
    changes += [Given(role=role, value=width) for role in ("width", "head_width")]  # pyright: ignore
    changes += [Given(role=role, value=1) for role in ("heads", "kv_heads")]  # pyright: ignore
    return question(label, "crossing", "crossing", {"width": width}, object="attention = projections",
                    changes=tuple(changes), mistakes=mistakes)  # fmt: skip


def _pairs(label: str, queries: int, past: int) -> Question:
    changes = (Given(role="length", value=queries), Given(role="keys_length", value=queries + past),
               Given(role="mask", value="causal"))  # fmt: skip
    mistakes = ("top left for bottom right", "every new token seen", "a token does not see itself")
    data = {"queries": queries, "past": past, "first": past + 1}
    return question(label, "pairs", "pairs_count", data, changes=changes, mistakes=mistakes)
