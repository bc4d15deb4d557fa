"""The formulas that a plan shows, made from the counts themselves with symbols for sizes, and kept in formulas.toml.

    python -m qkv.cost.formulas        writes the file again

A plan reads the file, so that it never loads SymPy; a test makes the formulas anew and compares.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from .architecture import NORM_VECTORS, Latent, Model
from .blocks import model_cost, parts
from .ledger import Ledger
from .lookup import read_data

FORMULAS_FILE = "formulas.toml"
# What each letter of a formula stands for. Only those that a formula uses are shown.
LETTERS = {
    "L": "layers", "d": "width", "h": "heads", "g": "key/value heads", "w": "head width", "v": "value width",
    "f": "feed-forward width", "V": "vocabulary", "b": "batch", "n": "context", "p": "bytes a weight",
    "c": "bytes a cached number", "a": "bytes an activation", "F": "layers without a window", "l": "layers with one",
    "m": "keys in a window",
    "r": "numbers of the latent vector", "q": "numbers of the queries' latent vector", "o": "rotated coordinates",
    "E": "experts", "k": "active experts", "s": "shared experts", "e": "width of an expert",
    "D": "layers without experts", "S": "layers with experts", "x": "experts that the batch touches",
    "j": "norms of a layer", "K": "encoder layers", "t": "source tokens", "R": "machines",
    "G": "key/value heads that travel, max(g, R)",
}  # fmt: skip


class Formula(NamedTuple):
    """flops: of products where there are any. bytes: of weights and cache beside products. all_flops, all_bytes: with
    what is elementwise and with activations, which are small. Biases are left out."""

    flops: str
    bytes: str
    all_flops: str
    all_bytes: str


def formula(model: Model, part: str) -> Formula:
    """The formulas of a part of a model: of a step of decoding, or of an encoder's pass. Empty ones for combinations
    that no published model has.

    >>> from qkv.cost.architecture import models
    >>> formula(models()["llama-3-8b"], "cache").bytes
    '2·b·c·g·L·n·w'
    """
    entry = read_data(FORMULAS_FILE).get(part, {}).get(style(model, part), {})
    return Formula(*(entry.get(field, "") for field in Formula._fields))


def style(model: Model, part: str) -> str:
    """Models of one style have the same formula for a part."""
    words = [model.kind]
    if part in ("projections", "scores", "cache"):
        if model.latent is not None:
            words.append("latent" if model.latent.q_rank is not None or part != "projections" else "direct latent")
        else:
            words.append("heads" if model.window is None or part == "projections" else "windowed")
            words += ["values"] if model.value_width != model.head_width else []
    elif part == "feed-forward":
        words.append("gated" if model.gated else "plain")
        if model.experts:
            words.append("shared" if model.shared_experts else "experts")
            words += ["dense"] if model.dense_layers else []
    elif part == "norms":
        words += [model.norm] if model.final_norm else [model.norm, "open"]
    elif part == "embedding":
        words.append(f"{(model.positions != 0) + (model.segments != 0)} tables")
        words += [model.norm] if model.embedding_norm else []
    return " ".join(words)


def generate() -> str:
    """The text of formulas.toml."""
    found: dict[str, dict[str, Formula]] = {}
    for model in _examples():
        for part, ledger in _counted(model).items():
            styles = found.setdefault(part, {})
            if style(model, part) not in styles:
                styles[style(model, part)] = _formula(ledger)
    lines = ["# Made by python -m qkv.cost.formulas; a test holds this file to what that makes.", ""]
    for part, styles in sorted(found.items()):
        for name, made in sorted(styles.items()):
            lines.append(f'["{part}"."{name}"]')
            lines += [f'{field} = "{text}"' for field, text in zip(Formula._fields, made, strict=True)]
            lines.append("")
    lines += [*_of_the_past(), *_of_the_wire()]
    return "\n".join(lines).rstrip() + "\n"


def _of_the_past() -> list[str]:
    """What attention keeps, and a step of it alone: `qkv.cost.variants`."""
    from .variants import VARIANTS, Formulas, symbolic

    lines = []
    for way in VARIANTS:
        lines.append(f'["past"."{way}"]')
        for field, made in zip(Formulas._fields, symbolic(way), strict=True):
            lines.append(f'{field} = "{_ratio(made) if field == "intensity" else _text(made)}"')
        lines.append("")
    return lines


class WireFormula(NamedTuple):
    """sent: bytes of the busiest rank in a call's forward pass. messages: of the same."""

    sent: str
    messages: str


def wire_formula(split: str, kind: str) -> WireFormula:
    """Of a split of `qkv.cost.communication`. kind: "full", "causal" or "window". R is even, G is max(g, R), a bytes a
    number, sums take 4, and a head of `scan` has as many features as it is wide.

    >>> wire_formula("gather", "full").sent
    'a·b·g·n·(R - 1)·(v + w)/R'
    """
    return WireFormula(**read_data(FORMULAS_FILE)["wire"][f"{split} {kind}"])


def _of_the_wire() -> list[str]:
    """What ranks send each other: `qkv.cost.communication`."""
    from .communication import SPLITS, Spread, wire
    from .symbolic import symbols

    b, h, g, w, v, n, ranks, a, m = symbols("b h g w v n R a m")
    lines = []
    for split in SPLITS:
        for kind in ("full", "causal", "window"):
            window = m if kind == "window" else None
            found = wire(split, Spread(b, h, g, w, v, n, ranks, a, kind != "full", window, features=w)).forward
            # What travels at different times is a term for itself.
            sent = " + ".join(_product(part) for part in (found.before, found.during, found.after) if part != 0)
            made = WireFormula(sent, _product(found.messages))
            lines.append(f'["wire"."{split} {kind}"]')
            lines += [f'{field} = "{text}"' for field, text in zip(WireFormula._fields, made, strict=True)]
            lines.append("")
    return lines


def _product(formula: Any) -> str:
    """A product of sums over another."""
    import sympy

    from .symbolic import symbols, text

    g, ranks, steps, travel = symbols("g R STEPS G")
    named = {sympy.ceiling(sympy.log(ranks, 2)): steps, sympy.Max(g, ranks): travel}
    above, below = sympy.fraction(sympy.factor(sympy.sympify(formula, strict=True).subs(named)))
    shown = _text(above)
    if below != 1:
        shown = f"({shown})" if shown == text(above) and above.is_Add else shown
        shown += f"/({text(below)})" if "·" in text(below) else f"/{text(below)}"
    return shown.replace("STEPS", "⌈log₂ R⌉")


def _counted(model: Model) -> dict[str, Ledger]:
    from .symbolic import symbols

    b, n, t, p, c, a = symbols("b n t p c a")
    if model.kind == "encoder":
        return parts(model_cost(model, b, n, 0, weights=p, cache=c, item=a))
    source = t if model.kind == "encoder-decoder" else None
    return parts(model_cost(model, b, 1, n - 1, weights=p, cache=c, item=a, source=source))


def _formula(ledger: Ledger) -> Formula:
    from .symbolic import symbols

    flops, traffic, products = _tidy(ledger.flops), _tidy(ledger.traffic), _tidy(ledger.products)
    beside = traffic.subs(symbols("a"), 0)
    main = (products, beside if beside != 0 else traffic) if products != 0 else (flops, traffic)
    return Formula(*map(_text, (*main, flops, traffic)))


def _tidy(formula: Any) -> Any:
    """Written out; of experts, the number that a batch touches as a letter of its own."""
    import sympy

    from .symbolic import symbols

    b, n, k, experts, x = symbols("b n k E x")
    formula = sympy.sympify(formula, strict=True)
    for tokens in (b, b * n):
        formula = formula.subs((1 - k / experts) ** tokens, 1 - x / experts)
    return sympy.expand(formula)


def _text(formula: Any) -> str:
    """Common factors first, then the sum that they multiply."""
    import sympy

    from .symbolic import text

    factored: Any = sympy.factor(formula)
    factors = sympy.Mul.make_args(factored)
    sums = "·".join(f"({text(part)})" for part in factors if part.is_Add)
    rest = sympy.Mul(*(part for part in factors if not part.is_Add))
    return text(formula) if rest == 1 or not sums else f"{text(rest)}·{sums}"


def _ratio(formula: Any) -> str:
    """One formula above another."""
    import sympy

    from .symbolic import text

    above, below = sympy.fraction(sympy.factor(formula))
    top = f"({text(above)})" if above.is_Add else text(above)
    return f"{top}/({text(below)})" if "·" in text(below) else f"{top}/{text(below)}"


def _examples() -> list[Model]:
    """A model of every style that presets and configs can have."""
    from .symbolic import symbols

    L, d, h, g, w, v, f, V, j = symbols("L d h g w v f V j")
    F, m, r, q, o, E, k, s, e, D, S, K, some = symbols("F m r q o E k s e D S K l")
    sizes: dict[str, Any] = {"layers": L, "d_model": d, "heads": h, "kv_heads": g, "head_width": w}
    sizes |= {"d_ff": f, "vocabulary": V, "norms_per_layer": j}
    latent: dict[str, Any] = {"kv_heads": h, "value_width": v}
    window, dense = {"layers": F + some, "window": m, "window_layers": some}, {"layers": D + S, "dense_layers": D}
    sparse = {"experts": E, "experts_active": k, "expert_d_ff": e}
    found: list[Model] = []
    for kind in ("decoder", "encoder", "encoder-decoder"):
        own = {**sizes, "kind": kind, **({"encoder_layers": K} if kind == "encoder-decoder" else {})}
        found += [Model(**own, norm=norm, final_norm=last) for norm in NORM_VECTORS for last in (True, False)]
        tables: list[dict[str, Any]] = [{"positions": rows, "segments": kinds} for rows in (0, 1) for kinds in (0, 1)]
        found += [Model(**own, **each) for each in tables]
        found += [Model(**own, **each, norm=norm, embedding_norm=True) for norm in NORM_VECTORS for each in tables]
        found.append(Model(**own, gated=False))
    found.append(Model(**sizes, kind="encoder", pooler=True))
    found += [Model(**{**sizes, **latent}, latent=Latent(r, rank, o)) for rank in (q, None)]
    found += [Model(**{**sizes, **window}), Model(**sizes, value_width=v)]
    for gated in (True, False):
        for shared in ({}, {"shared_experts": s}):
            found += [Model(**{**sizes, **sparse, **shared, **first}, gated=gated) for first in ({}, dense)]
    return found


if __name__ == "__main__":
    Path(__file__).with_name(FORMULAS_FILE).write_text(generate(), encoding="utf-8")
