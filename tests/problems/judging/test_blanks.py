"""Blanks of a listing: shapes by their sizes, einsums by running them, against every other way to fill them."""

from __future__ import annotations

import random
from itertools import permutations, product

import numpy as np
import pytest

from qkv.problems.judging.blanks import PRIMES, Einsum, ShapeOf

QUERY = ShapeOf(("h", "d", "q"), {"q": "d/h", "k": "d/h"}, ("[h, d, q]", "[d, q]", "[h, q]"))
GROWN = ShapeOf(("b", "n+1", "k"), {"k": "d/h"})
PROJECT = Einsum("bd,hdq->bhq", ("x", "W_q"), ("bd,dq->bhq", "bd,hdq->bhq", "bhd,dq->bhq"))
SHARED = Einsum("bd,dk->bk", ("x", "W_k"))
WEIGHTED = Einsum("bhn,bnv->bhv", ("weights", "new_V"))


@pytest.mark.parametrize("answer", [
    "[h, d, q]", "(h, d, d/h)", "h x d x q", "h × d × d/h", r"[h, d, \frac{d}{h}]", r"\mathbb{R}^{h \times d \times q}",
    "`[h, d, q]`", "W_q: [h, d, q]", "A = [h,d,k]", "torch.Size([h, d, q])", "The shape is (h, d, q).", "option 1", "1",
    "a", "the first", "[h, d, q] (a projection for each head)", "[h, d, q], not [d, q]", "not [d, q] but [h, d, q]",
    r"$W_q$: `[h, d, q]` (Multi-head projection).", "it is [h, d, q]: each head has a [d, q] matrix",
    "**[h, d, q]**", r"\texttt{[h, d, q]}",
])  # fmt: skip
def test_shapes_that_are_right(answer: str) -> None:
    assert QUERY.check(answer).kind == "right", QUERY.check(answer)


@pytest.mark.parametrize(("answer", "word"), [
    ("[d, q]", "2 axes"), ("[h, q, d]", "order"), ("[h, d, h]", "axis 3"), ("2", "2 axes"), ("[d, d, d]", "axis 1"),
    ("[b, d, q]", "axis 1"),
])  # fmt: skip
def test_shapes_that_are_wrong(answer: str, word: str) -> None:
    outcome = QUERY.check(answer)
    assert outcome.kind == "wrong"
    assert word in outcome.reason


@pytest.mark.parametrize("answer", ["", "no idea", "?", "[" * 4000, "because of the heads"])
def test_what_is_no_shape_is_not_held_against_anybody(answer: str) -> None:
    assert QUERY.check(answer).kind == "unread"


def test_sizes_may_be_sums() -> None:
    assert GROWN.check("[b, n + 1, d/h]")
    assert GROWN.check("[b, 1+n, k]")
    assert GROWN.check("[b, n, k]").kind == "wrong"
    assert GROWN.same("[b, n, k]", "(b, n, d/h)")


@pytest.mark.parametrize("answer", [
    "bd,hdq->bhq", 'torch.einsum("bd,hdq->bhq", x, W_q)', "torch.einsum('bd, hdq -> bhq', x, W_q)",
    "einsum(b d, h d q -> b h q)", 'np.einsum("hdq,bd->bhq", W_q, x)', "hdq,bd->bhq", "ni,kij->nkj",
    'einops.einsum(x, W_q, "batch dim, heads dim q -> batch heads q")', r"\texttt{bd,hdq\rightarrow bhq}",
    "q = `torch.einsum(\"bd,hdq->bhq\", x, W_q)`.", "bd,hdq→bhq", "2", "option 2", "b", "the second option",
    "...d,hdq->...hq", 'einsum("bd,hdq->bhq", x, W_q) rather than "bd,dq->bhq"', "not bd,dq->bhq but bd,hdq->bhq",
])  # fmt: skip
def test_einsums_that_are_right(answer: str) -> None:
    assert PROJECT.check(answer).kind == "right", PROJECT.check(answer)


@pytest.mark.parametrize(("answer", "word"), [
    ("bd,dq->bhq", "does not run"), ("bhd,dq->bhq", "does not run"), ("bd,hdq->hbq", "axes [h, b, q]"),
    ("bd,hdq->bq", "axes [b, q]"), ("bd,hqd->bhq", "two sizes"), ("bd,hdq->bhh", "twice"), ("bd->bd", "operands"),
    ("1", "does not run"), ("x @ W_q", "h, b, q"), ("bd,hdq,bd->bhq", "3 operands"), ("bh,hdq->bhq", "two sizes"),
])  # fmt: skip
def test_einsums_that_are_wrong(answer: str, word: str) -> None:
    outcome = PROJECT.check(answer)
    assert outcome.kind in ("wrong", "unread") if answer == "bd->bd" else outcome.kind == "wrong"
    assert word in outcome.reason or outcome.kind == "unread"


def test_matrix_products() -> None:
    assert SHARED.check("x @ W_k")
    assert SHARED.check("torch.matmul(x, W_k)")
    assert SHARED.check("W_k @ x").kind == "wrong"


@pytest.mark.parametrize("answer", ["", "no idea", "a -> b", "__import__('os').system('x')", "->" * 3000, "," * 9000])
def test_what_is_no_einsum_is_unread(answer: str) -> None:
    assert PROJECT.check(answer).kind == "unread"


def test_every_spec_over_these_letters_is_judged_as_numpy_does() -> None:
    """All results and all subscripts of two operands: right exactly where NumPy gives the same array."""
    draw = random.Random(7)
    letters = "bhnv"
    sizes = dict(zip(letters, PRIMES, strict=False))
    weights = np.arange(2 * 3 * 5).reshape(2, 3, 5) % 7 + 1
    values = np.arange(2 * 5 * 7).reshape(2, 5, 7) % 11 + 1
    wanted = np.einsum("bhn,bnv->bhv", weights, values)
    cases = [("".join(one), "".join(two), "".join(out)) for one, two, out in
             product(permutations(letters, 3), permutations(letters, 3), permutations(letters, 3))]  # fmt: skip
    for one, two, out in [("bhn", "bnv", "bhv"), *draw.sample(cases, 300)]:
        try:
            got = np.einsum(f"{one},{two}->{out}", weights, values)
            right = got.shape == wanted.shape and bool((got == wanted).all())
        except ValueError:
            right = False
        # Named operands keep their order, so that no other reading makes it right.
        assert bool(WEIGHTED.check(f'einsum("{one},{two}->{out}", weights, new_V)')) == right
    assert sizes["v"] == 7


def test_same_does_not_look_at_names() -> None:
    assert SHARED.same("bd,hdk->bhk", 'torch.einsum("ni,jil->njl", x, W_k)')
    assert not SHARED.same("bd,hdk->bhk", "bd,dk->bk")
    assert not SHARED.same("bd,hdk->bhk", "who knows")


@pytest.mark.parametrize(
    "text", ["a," * 9000, "x x " * 4500, "[a " * 6000, "a b,->" * 3000, "- > " * 4000, "(a,(" * 4000]
)
def test_long_nonsense_ends_soon(text: str) -> None:
    """Work that grows with the square of the length would take minutes here."""
    for answer in (QUERY, PROJECT):
        assert answer.check(text).kind in ("unread", "wrong")
