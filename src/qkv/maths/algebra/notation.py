"""Sums of monomials as text, for people who look for a fault."""

from __future__ import annotations

from qkv.maths.algebra.monomials import Factor, Frozen, Ix, Monomial


def text(poly: Frozen) -> str:
    """
    >>> text(())
    '0'
    """
    return " + ".join(_term(monomial, str(coefficient)) for monomial, coefficient in poly) or "0"


def _term(monomial: Monomial, coefficient: str) -> str:
    shown = [_factor(factor) for factor in monomial.factors]
    if coefficient != "1" or not shown:
        shown.insert(0, coefficient)
    return ("Σ " if monomial.sizes else "") + " ".join(shown)


def _factor(factor: Factor) -> str:
    head, slots, exponent = factor
    own = head.kind in ("name", "random", "constant")
    name = head.name if own else ":".join(filter(None, (head.kind, head.name)))
    if head.kind == "prime":
        name = str(head.args[0])
    elif head.args:
        name += "(" + ", ".join(text(arg) for arg in head.args) + ")"
    if slots:
        name += "[" + ",".join(_index(ix) for ix in slots) + "]"
    return name if exponent == 1 else f"{name}^{exponent}"


def _index(ix: Ix) -> str:
    kind, key = ix
    return {"c": f"={key}", "f": str(key), "b": str(key + 1) if kind == "b" else ""}.get(kind, f"{kind}{key}")
