"""Claims in the document model: every line with its verdict, and chains that make up the whole."""

import sys

import qkv.theory
from qkv.theory.claim import Claim, Line, correction_items, derivation_block, derivation_chains, statement_blocks


def stated(name: str) -> Claim:
    return sys.modules[f"qkv.theory.{name}"].stated()


def test_chains_make_up_the_derivation() -> None:
    for name in ("reach", "normalisation"):
        claim = stated(name)
        whole = derivation_block(claim).steps
        assert len(whole) == len(claim.derivation)
        assert tuple(step for chain in derivation_chains(claim) for step in chain.steps) == whole
        assert all(chain.steps[0].relation == "" for chain in derivation_chains(claim))
        assert {step.verdict for step in whole} <= {"", "proved", "tested"}
        assert len(correction_items(claim).items) == len(claim.corrections)
        assert statement_blocks(claim)


def test_a_stated_claim_is_the_claim_without_its_evidence() -> None:
    full, bare = qkv.theory.reach(), stated("reach")
    assert not bare.evidence
    assert (full.title, full.statement, full.derivation) == (bare.title, bare.statement, bare.derivation)


def test_a_line_that_does_not_follow_says_why() -> None:
    wrong = Claim("n", "t", "s", {"k": "natural"}, (Line("k + k", "", ""), Line("3 k", "collected")))
    last = derivation_block(wrong).steps[-1]
    assert not last.stands
    assert last.remark
