"""Why scores are divided by the root of the width: mean and variance of a dot product, and the divisor."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..record import Given
from .family import BankExercise, Question, built, filled, letters, listed, question, spread, words_of

NAME, SCALAR = "scaling", "scaling-scalar"
_NAMES = {
    "width": ("d", "d_k", "n", "D", "p", "d_h"),
    "means": (("mu", "nu"), ("m", "c"), ("theta", "eta"), ("mu_q", "mu_k")),
    "spreads": (("sigma", "tau"), ("rho", "omega"), ("tau", "kappa")),
    "vectors": (("q", "k"), ("x", "y"), ("u", "v")),
}
_MATRICES = ("S", "C")
# Which questions are put together; "practical" is mean 0 and standard deviation 1.
_ASKED = (
    ("mean", "practical", "divisor"),
    ("mean", "variance", "divisor"),
    ("mean", "wider", "wanted"),
    ("scaled_mean", "scaled_variance", "divisor"),
)
_LAWS = ("one law", "two means", "two deviations", "two laws", "factor", "heads", "uniform", "signs")
_MATRIX_LAWS = ("full covariance", "two covariances")
_DOCUMENT = {"kind": "one law", "asked": _ASKED[0], "means": ("mu", "nu"), "spreads": ("sigma", "tau"),
             "vectors": ("q", "k")}  # fmt: skip


def make(name: str, seed: int | None) -> BankExercise:
    """The printed exercise, or the variant of a seed; means are vectors, or in `scaling-scalar` one number."""
    scalar = name == SCALAR
    if seed is None:
        return _exercise(name, None, {**_DOCUMENT, "width": "D_k" if scalar else "d"}, random.Random(0))
    kinds = _LAWS if scalar else (*_LAWS[:6], *_MATRIX_LAWS)
    return _exercise(name, seed, spread(seed + 1, kind=kinds, asked=_ASKED, **_NAMES), random.Random(f"{name}:{seed}"))


FAMILIES = {NAME: partial(make, NAME), SCALAR: partial(make, SCALAR)}


def _exercise(name: str, seed: int | None, shape: Mapping[str, Any], draw: random.Random) -> BankExercise:
    words, kind, scalar = words_of("scaling"), shape["kind"], name == SCALAR
    (q, k), width = shape["vectors"], shape["width"]
    bare = kind in ("uniform", "signs")
    two = kind in ("two means", "two laws", *_MATRIX_LAWS)
    means = () if bare else tuple(dict.fromkeys((shape["means"][0], shape["means"][1] if two else shape["means"][0])))
    spreads = _spreads(kind, shape["spreads"])
    factor, half = draw.choice((2, 3, 5)) if kind == "factor" else 1, draw.choice((1, 2, 3))
    heads, size = draw.choice((4, 8, 16)), draw.choice((16, 64, 256))
    score = f"{factor} {q}^T {k}" if factor != 1 else f"{q}^T {k}"
    laws = _laws(kind, means, spreads, scalar, width, half)
    shapes: tuple[int | str, ...] = (size,) if kind == "heads" else (width,)
    givens = [Given(symbol=name, role="law", law=law, shape=shapes) for name, law in zip((q, k), laws, strict=True)]
    givens += [Given(symbol=mean, role="other", shape=() if scalar else shapes) for mean in means]
    if kind == "heads":
        givens.append(Given(symbol=width, role="head_width", value=size))
    deviations = [each for each in dict.fromkeys(spreads) if each[0].islower()]
    names = [*([] if kind == "heads" else [width]), *means, *(each for each in dict.fromkeys(spreads) if each != "I")]
    data = {
        "q": q, "k": k, "width": width, "score": _latex(score), "plain_score": score, "half": half,
        "model": heads * size, "head_count": heads, "size": size,
        "terms": "" if bare else f", in terms of {listed([f'${_latex(each)}$' for each in names])}",
        "means": "" if bare else words["scalar_mean" if scalar else "vector_mean"],
        **{f"mean_{side}": f"mean ${_latex(mean)}$" + (" in every component" if scalar else "")
           for side, mean in zip("qk", (means * 2)[:2], strict=False)},
        **{f"spread_{side}": _covariance(each, width) for side, each in zip("qk", (*spreads, *spreads)[:2],
                                                                             strict=False)},
    }  # fmt: skip
    which = kind if bare else "both" if len(means) == 1 and len(set(spreads)) == 1 else "apart"
    data["laws"] = filled(words[which] + (f" {words['heads']}" if kind == "heads" else ""), data)
    wider, wanted = draw.choice((2, 3)), draw.choice((4, 9, 16))
    misread = "mean read as a vector" if scalar else "mean read as a scalar"
    asked = []
    for label, ask in zip(letters(), shape["asked"], strict=False):
        values = {**dict.fromkeys(means, 0), **dict.fromkeys(deviations, wider if ask in ("wider", "wanted") else 1)}
        asked.append(_question(label, ask, kind, values, width, wanted, misread))
    return built(
        name, seed, words, asked,
        givens=givens,
        data=data,
        symbols=_symbols(means, spreads, width, q, k, scalar),
        kind=shape.values(),
    )  # fmt: skip


def _question(label: str, ask: str, kind: str, values: Mapping[str, int], width: str, wanted: int,
              misread: str) -> Question:  # fmt: skip
    named, plain = kind not in ("uniform", "signs"), kind not in _MATRIX_LAWS
    mistakes = {
        "mean": [misread] * named + ["query and key taken for one vector"] * (kind in ("one law", "factor")),
        "scaled_mean": [misread] * (named and plain) + ["no scaling"] * named,
        "variance": [misread] * (named and plain) + ["means left out of the variance"] * named
        + ["standard deviation for variance"],
        "scaled_variance": [misread] * (named and plain) + ["no scaling"],
        "centred": ["terms not added"] * plain + ["factor not squared"] * (kind == "factor"),
        "divisor": [],
    }  # fmt: skip
    target = wanted if ask == "wanted" else 1
    entry = {"practical": "centred", "wider": "centred", "wanted": "divisor"}.get(ask, ask)
    changes = [Given(symbol=each, role="other", value=value) for each, value in values.items()]
    changes += [Given(role="target_variance", value=target)] if target != 1 else []
    data = {
        "special": f"Let {listed([f'${_latex(each)} = {value}$' for each, value in values.items()])}. "
        if values
        else "",
        "wanted": target,
        "in_width": f", in terms of ${width}$" if plain and kind != "heads" else "",
    }
    changed = tuple(changes) if entry in ("centred", "divisor") else ()
    return question(label, entry, "", data, changes=changed, mistakes=tuple(mistakes[entry]))


def _spreads(kind: str, names: tuple[str, str]) -> tuple[str, ...]:
    if kind in ("uniform", "signs"):
        return ()
    if kind == "two covariances":
        return _MATRICES
    if kind == "full covariance":
        return (_MATRICES[0], "I")
    return names if kind in ("two deviations", "two laws") else (names[0], names[0])


def _laws(kind: str, means: Sequence[str], spreads: Sequence[str], scalar: bool, width: str, half: int) -> list[str]:
    if kind in ("uniform", "signs"):
        return [f"uniform(-{half}, {half})" if kind == "uniform" else "signs"] * 2
    ones = f" 1_{{{width}}}" if scalar else ""
    matrices = [f"{each}^2 I" if each[0].islower() else each for each in spreads]
    return [f"N({mean}{ones}, {matrix})" for mean, matrix in zip((*means, *means)[:2], matrices, strict=True)]


def _covariance(name: str, width: str) -> str:
    return f"I_{{{width}}}" if name == "I" else f"{_latex(name)}^2 I_{{{width}}}" if name[0].islower() else _latex(name)


def _latex(text: str) -> str:
    """Greek names with their backslash."""
    greek = "mu|nu|theta|eta|sigma|tau|rho|omega|kappa"
    return re.sub(rf"(?<![A-Za-z\\])({greek})(?![a-z])", r"\\\1", text)


def _symbols(means: Sequence[str], spreads: Sequence[str], width: str, q: str, k: str, scalar: bool) -> dict[str, str]:
    found = {width: "natural", "s": "positive", q: f"vector[{width}]", k: f"vector[{width}]", "i": f"index[{width}]",
             "j": f"index[{width}]"}  # fmt: skip
    found |= dict.fromkeys(means, "scalar" if scalar else f"vector[{width}]")
    return found | {each: "positive" if each[0].islower() else f"matrix[{width},{width}]" for each in spreads
                    if each != "I"}  # fmt: skip
