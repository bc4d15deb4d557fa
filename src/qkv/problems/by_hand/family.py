"""Queries, keys and values by hand: small exact matrices, the scores of one token, its weighted sum, and the proofs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from ...render.document import Block, Formula, Maths, Paragraph, prose
from ..exact import Matrix, Scale, dot, exact, matrix, times, transposed, vector
from ..problem import Part, Problem
from .asked import parts_asked
from .instance import UNSCALED, Instance
from .numbers import scores_part, spoken, sum_part, vectors_part
from .proofs import SCORES, SUMS, letters, matrices_part, scores_proof, sum_proof
from .reading import read_question

NAME = "by-hand"

TOKENS = exact(((2, 3), (-1, 0), (1, -2)))
TO_QUERIES = exact(((1, 0, 2), (0, 1, -3)))
TO_KEYS = exact(((0, 0, -1), (-2, 0, 1)))
TO_VALUES = exact(((8, 0), (0, 9)))

_TRIES = 4000
_SPREAD = 9  # how far apart the scores of a variant are at most: every weight can be seen

FOLLOW_UPS = (
    r"What do the weights become when every score is divided by $\sqrt{D_k}$ before the softmax?",
    "Which token would the first one attend to most, and why is the matrix of scores not symmetric?",
    "What changes in the weights when the same vector is added to every key?",
)

WITHOUT_SCALE = "What do the weights become when the scores are not scaled before the softmax?"


def make(seed: int | None) -> Problem:
    """The question of the documents, or the variant of a seed."""
    if seed is None:
        given = attending(TOKENS, TO_QUERIES, TO_KEYS, TO_VALUES, 3)
        return built(given, None, ("entry", "row"), ("002 1",))
    shapes = _structures()
    shape = shapes[seed % len(shapes)]
    draw = random.Random(f"{NAME}:{seed}")
    for _ in range(_TRIES):
        given = _drawn(draw, shape)
        if given is None:
            continue
        problem = built(given, seed, shape[-2:], ("002 1",), shape)
        if _telling(problem):
            return problem
    raise AssertionError(f"no friendly numbers for seed {seed}")


PROBLEMS = {NAME: make}


def recognised(text: str) -> tuple[float, Problem] | None:
    """Whether a text asks this, and the problem with the text's own numbers."""
    found = read_question(text)
    if found is None:
        return None
    sure, given = found
    if given is None:
        return sure, make(None)
    whole = built(given, None, ("entry", "row"), ("002 1",))
    parts = parts_asked(text, given, whole.parts)
    return sure, replace(whole, parts=parts) if parts else whole


def attending(x: Matrix, wq: Matrix, wk: Matrix, wv: Matrix, token: int, scale: Scale = UNSCALED, *,
              causal: bool = False, columns: bool = False) -> Instance:  # fmt: skip
    """An instance from tokens (as rows) and weights."""
    n = len(x)
    seen = tuple(tuple(key <= query for key in range(n)) for query in range(n)) if causal else None
    return Instance(times(x, wq), times(x, wk), times(x, wv), token, x, wq, wk, wv, scale, seen, causal, columns)


def built(
    given: Instance,
    seed: int | None,
    proofs: Sequence[str],
    sources: tuple[str, ...] = (),
    structure: tuple[object, ...] = (),
) -> Problem:
    """The problem of an instance; without `proofs` it ends with the numbers."""
    parts: list[Part] = [scores_part(given), sum_part(given)]
    if given.x is not None:
        parts = [vectors_part(given), *parts, matrices_part(given)]
        if proofs:
            parts += [scores_proof(given, proofs[0]), sum_proof(given, proofs[1])]
    return Problem(
        name=NAME,
        title="Queries, keys and values by hand",
        statement=statement(given),
        parts=tuple(parts),
        make=make,
        seed=seed,
        structure=structure or (tuple(given.sizes.values()), given.token),
        symbols=given.names,
        sources=sources,
        follow_ups=FOLLOW_UPS if given.scale.plain else (WITHOUT_SCALE, *FOLLOW_UPS[1:]),
    )


def statement(given: Instance) -> tuple[Block, ...]:
    """What is given, in words and formulas."""
    sizes = given.sizes
    blocks: list[Block] = []
    if given.x is not None and given.wq is not None and given.wk is not None and given.wv is not None:
        names = {**letters(given), **given.symbols}
        several = "s, each" if sizes["N"] > 1 else ","
        numbers = f"{sizes['D']} number{'' if sizes['D'] == 1 else 's'}"
        words = f"An attention layer reads {_count(sizes['N'])} token{several} embedded in {numbers}"
        if given.columns:
            words += "; they are the columns of $X$"
        blocks.append(Paragraph(prose(f"{words}:", names)))
        if given.columns or not given.small:
            rows = given.printed(transposed(given.x) if given.columns else given.x)
            blocks.append(Formula(Maths(f"X = {matrix(rows)}", names)))
        else:
            blocks += [
                Formula(Maths(f"x_{n} = {vector(row)}", names))
                for n, row in zip(given.places, given.printed(given.x), strict=True)
            ]
        blocks.append(Paragraph(prose("Its weight matrices are", names)))
        for letter, weight in (("Q", given.wq), ("K", given.wk), ("V", given.wv)):
            blocks.append(Formula(Maths(f"W_{letter} = {matrix(given.shown(weight))}", names)))
        blocks.append(
            Paragraph(prose(f"and every token has the query $q_i = {given.applied('Q')} x_i$, the key "
                            f"$k_i = {given.applied('K')} x_i$ and the value $v_i = {given.applied('V')} x_i$. "
                            f"So {_said(sizes)}.", names))
        )  # fmt: skip
    else:
        names = given.names
        what = f"An attention layer has the following queries, keys and values, one a row. So {_said(sizes)}."
        if len(given.q) != len(given.k):
            what = what.replace(" So ", f" Queries: {len(given.q)}; keys and values: $N$ each. So ")
        blocks.append(Paragraph(prose(what, names)))
        for letter, rows in (("Q", given.q), ("K", given.k), ("V", given.v)):
            blocks.append(Formula(Maths(f"{letter} = {matrix(given.printed(rows))}", {**names, letter: _kind(rows)})))
    notes = []
    if given.causal:
        notes.append("The layer is causal: a token attends to itself and to the tokens before it.")
    elif given.seen is not None:
        notes.append(f"A mask hides some keys: token {given.token} sees {spoken([str(p) for p in given.attended])}.")
    if not given.scale.plain:
        notes.append(f"Scores are scaled: ${given.score}$.")
    if notes:
        blocks.append(
            Paragraph(prose(" ".join(notes), {**names, "i": f"index[{sizes['N']}]", "j": f"index[{sizes['N']}]"}))
        )
    return tuple(blocks)


def _kind(rows: Matrix) -> str:
    return f"matrix[{len(rows)},{len(rows[0])}]"


def _said(sizes: dict[str, int]) -> str:
    return spoken([f"${name} = {size}$" for name, size in sizes.items()])


def _count(number: int) -> str:
    return {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}.get(number, str(number))


@cache
def _structures() -> list[tuple]:
    """Every kind of variant, shuffled once: sizes, the token that is asked, scale, mask, layout and what is proved."""
    found = []
    for tokens, width in itertools.product((2, 3, 4), (2, 3, 4)):
        for (across, scaled), values in itertools.product(((2, 0), (3, 0), (4, 0), (4, 1)), (2, 3)):
            asked = [(token, False) for token in range(1, tokens + 1)]
            asked += [(token, True) for token in range(2, tokens)]
            for token, causal in asked:
                sums = SUMS[:2] if causal else SUMS
                for columns, first, last in itertools.product((False, True), SCORES, sums):
                    found.append((tokens, width, across, values, token, bool(scaled), causal, columns, first, last))
    random.Random(f"{NAME} structures").shuffle(found)
    return found


def _drawn(draw: random.Random, shape: tuple) -> Instance | None:
    """Small whole numbers, or None where they are not friendly."""
    tokens, width, across, values, token, scaled, causal, columns = shape[:8]

    def rows(count: int, wide: int, largest: int) -> Matrix:
        few = [0, *range(-largest, largest + 1)]
        return exact([[draw.choice(few) for _ in range(wide)] for _ in range(count)])

    x, wq, wk = rows(tokens, width, 3), rows(width, across, 2), rows(width, across, 2)
    wv = rows(width, values, 4)
    if len(set(x)) < tokens or not all(
        any(column) for rows in (x, wq, wk, wv) for column in (*rows, *transposed(rows))
    ):
        return None
    query = times(x, wq)[token - 1]
    products = [dot(query, key) for key in times(x, wk)]
    seen = products[:token] if causal else products
    if len(set(seen)) < len(seen) or (scaled and any(product % 2 for product in products)):
        return None
    scale = Scale.by_root(across) if scaled else UNSCALED
    if (max(seen) - min(seen)) * scale.factor > _SPREAD or len(set(times(x, wv))) < tokens:
        return None
    return attending(x, wq, wk, wv, token, scale, causal=causal, columns=columns)


def _telling(problem: Problem) -> bool:
    """Whether every known mistake leads to an answer of its own."""
    for part in problem.parts:
        planted = [known.planted for known in part.misconceptions]
        names = {known.name for known in part.misconceptions}
        if len(set(planted)) < len(planted) or not _EXPECTED[part.name] <= names:
            return False
    return True


_EXPECTED: dict[str, set[str]] = {
    "a": {"query and key swapped"},
    "b": {"query and key swapped"},
    "c": {"softmax over the wrong axis", "query and key swapped", "scores used as weights"},
    "d": {"factors in the wrong order"},
    "e": {"query and key swapped"},
    "f": {"softmax over the wrong axis"},
}
