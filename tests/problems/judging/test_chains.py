"""Proofs as chains: every member is held to the start, the target has to be reached, remarks are let be."""

import time

import pytest

from qkv.problems.judging.chains import Chain

SYMBOLS = {
    "Q": "matrix[3,2]",
    "K": "matrix[3,2]",
    "q": "matrix[3,2] = Q",
    "k": "matrix[3,2] = K",
    "z": "matrix[3,3] = Q K^T",
    "i": "index[3]",
    "j": "index[3]",
}
PROOF = Chain(
    "(Q K^T)_{ij}",
    "q_i^T k_j",
    SYMBOLS,
    through=(r"\sum_{l=1}^2 Q_{il} K_{jl}",),
    also=("z_{ij}",),
    words=("row", "dot product"),
)


@pytest.mark.parametrize(
    "answer",
    [
        PROOF.text,
        r"(QK^T)_{ij} = \sum_m Q_{im} (K^T)_{mj} = \sum_m Q_{im} K_{jm} = q_i^T k_j = z_{ij}",
        r"z_{ij} = q_i^T k_j = \sum_l q_{il} k_{jl} = (QK^T)_{ij}",
        r"So $(QK^T)_{ij} = \sum_l Q_{il} (K^T)_{lj}$, $(K^T)_{lj} = K_{jl}$: $\sum_l q_{il} k_{jl} = q_i^\top k_j$.",
        (
            "\\begin{align*}\n(\\mathbf{QK}^\\top)_{i,j} &= \\sum_{l=1}^2 \\mathbf{Q}_{i,l} \\mathbf{K}_{j,l} \\\\\n "
            "&= \\mathbf q_i^\\top "
            "\\mathbf k_j \\text{ by definition}\n\\end{align*}"
        ),
        "(QK^T)_{ij} = sum_l Q_il K_jl, by the definition of the product\n= q_i^T k_j (the rows of Q and K)",
        "The entry is the dot product of row i of Q and row j of K: $q_i^T k_j = z_{ij}$",
        "Q_{i1} K_{j1} + Q_{i2} K_{j2} = q_i^T k_j",
    ],
)
def test_proofs(answer):
    assert PROOF.check(answer).kind == "right"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("", "unread"),
        ("It follows at once.", "unread"),
        ("(QK^T)_{ij} = q_i^T k_j", "incomplete"),
        (r"(QK^T)_{ij} = \sum_l Q_{il} K_{jl}", "incomplete"),
        (r"(QK^T)_{ij} = \sum_l Q_{il} K_{lj} = q_i^T k_j", "unread"),
        (r"(QK^T)_{ij} = \sum_l Q_{jl} K_{il} = q_i^T k_j", "wrong"),
        ("q_j^T k_i", "wrong"),
    ],
)
def test_what_is_no_proof(answer, kind):
    found = PROOF.check(answer).kind
    # An index that is out of its range cannot be read: the step is left out, and nothing else stands between.
    assert found == kind or (kind == "unread" and found in ("incomplete", "wrong"))


def test_the_first_false_member_is_named():
    outcome = PROOF.check(r"(QK^T)_{ij} = \sum_l Q_{jl} K_{il} = q_j^T k_i")
    assert r"\sum_l Q_{jl} K_{il}" in outcome.reason


def test_a_planted_mistake_is_known_in_another_writing():
    assert PROOF.same("(Q K^T)_{ij} = q_j^T k_i", r"(QK^\top)_{i,j} = \sum_{m=1}^2 Q_{j,m} K_{i,m}")
    assert not PROOF.same("(Q K^T)_{ij} = q_j^T k_i", "(QK^T)_{ij} = q_i^T k_i")
    assert not PROOF.same("(Q K^T)_{ij} = q_j^T k_i", PROOF.text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "junk",
    [
        "=" * 50_000,
        "$" * 50_000,
        "a=b\n" * 10_000,
        r"\[" * 20_000,
        "(" * 50_000,
        r"\begin{bmatrix}" * 3000,
        r"\text{" * 9000,
    ],
)
def test_junk_neither_raises_nor_hangs(junk):
    begun = time.perf_counter()
    assert PROOF.check(junk).kind in ("unread", "incomplete", "wrong")
    assert time.perf_counter() - begun < 8
