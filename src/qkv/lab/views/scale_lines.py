"""The derivations beside the numbers of Scale: which chain of which claim explains which number."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...maths.moments import SCALAR_MEAN
from ...render import Maths
from ...render.layout import relation
from ...render.to_html import inline
from ...theory.claim import Claim, Line
from ...theory.saturation import stated as saturation
from ...theory.scores import stated as scores
from ...theory.telling import said

# In the order of the chains: the ids of the numbers that each explains.
OF_SCORES = (("law-plain-mean",), ("law-plain-variance",), ("law-scaled-mean",), ("law-scaled-variance",))
OF_SOFTMAX = (
    ("sizes-entry",),
    ("sizes-jacobian",),
    ("sizes-jacobian", "sizes-most"),
    ("sizes-most",),
    ("sizes-most",),
)


def chains(claim: Claim) -> list[list[Line]]:
    """The derivation, cut where a line begins anew."""
    pieces: list[list[Line]] = []
    for line in claim.derivation:
        if line.relation:
            pieces[-1].append(line)
        else:
            pieces.append([line])
    return pieces


def _of_scores(claim: Claim) -> list[list[Line]]:
    """The chains for components of one mean, as on this page."""
    return [chain for chain in chains(claim) if chain[0].symbols is SCALAR_MEAN]


# The same for every state: taken apart and written once.
@lru_cache(maxsize=1)
def derivations() -> dict[str, list[dict[str, Any]]]:
    """Both derivations as texts: for each chain its lines, and the ids of the numbers that they explain."""
    made = {}
    for name, pieces, explained in (
        ("scores", _of_scores(scores()), OF_SCORES),
        ("softmax", chains(saturation()), OF_SOFTMAX),
    ):
        made[name] = [
            {
                "explains": list(explains),
                "lines": [
                    {
                        "relation": relation(line.relation).text if line.relation else "",
                        "text": line.text,
                        "reason": line.reason,
                    }
                    for line in chain
                ],
            }
            for chain, explains in zip(pieces, explained, strict=True)
        ]
    return made


@lru_cache(maxsize=1)
def written() -> dict[str, str]:
    """Formulas and reasons as HTML: "scores_0_1" is the second line of the first chain, "scores_0_1_why" its reason."""
    made = {}
    for name, claim, pieces in (
        ("scores", scores(), _of_scores(scores())),
        ("softmax", saturation(), chains(saturation())),
    ):
        for i, chain in enumerate(pieces):
            symbols, shape = chain[0].symbols or claim.symbols, None
            for j, line in enumerate(chain):
                maths = Maths(line.text, symbols, shape)
                tree = maths.tree()
                shape = None if tree is None else tree.shape
                made[f"{name}_{i}_{j}"] = inline(maths)
                made[f"{name}_{i}_{j}_why"] = inline(said(line.reason, claim, symbols))
    return made
