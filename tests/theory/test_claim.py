"""A wrong claim fails with a counterexample, and its text is readable."""

import re
import sys
from collections.abc import Iterator

import pytest

import qkv.theory
from qkv import theory
from qkv.cli import main
from qkv.cli.prove import Outcome, _blocks
from qkv.derivation import Derivation, Step
from qkv.maths.moments import VECTOR_MEAN
from qkv.render import document as d
from qkv.render.steps import blocks, lines
from qkv.theory.claim import (
    Claim,
    Evidence,
    correction_items,
    statement_blocks,
)

MEAN, VARIANCE = "E[q^T k]", r"\operatorname{Var}(q^T k)"


def wrong(asked: str, answer: str) -> Claim:
    """What a student may say of q·k, with a vector for its mean."""
    steps = (Step(asked, "what is asked", ""), Step(answer, "as if components were alike"))
    return Claim("wrong", "A slip", "", Derivation(steps, VECTOR_MEAN, shown=True))


@pytest.mark.parametrize(
    ("asked", "answer", "values"),
    [
        (MEAN, r"d \mu^T \mu", "5 against 10"),
        (VARIANCE, r"d \sigma^2", "12 against 2"),
        (VARIANCE, r"d \sigma^4", "12 against 2"),  # right for mean 0
        (VARIANCE, r"d \sigma^4 + \sigma^2 \mu^T \mu", "12 against 7"),
    ],
)
def test_a_wrong_answer_is_refuted_at_a_point(asked: str, answer: str, values: str) -> None:
    claim = wrong(asked, answer)
    verdict = claim.checks[1]
    assert verdict is not None
    assert (verdict.kind, verdict.evidence) == ("different", "refuted")
    assert str(verdict.counterexample).endswith(f": {values}")
    assert not claim.holds
    assert not claim.proved


def test_a_vector_squared_is_red_though_it_is_right_for_equal_components() -> None:
    claim = wrong(MEAN, r"d \mu^2")
    verdict = claim.checks[1]
    assert verdict is not None
    assert verdict.kind == "conditional"
    assert "every component of μ is the same" in str(verdict.condition)
    assert "with μ = (1, 2)" in verdict.reason
    assert not claim.holds


def test_evidence_that_was_refuted_turns_a_claim_red() -> None:
    right = wrong(MEAN, r"\mu^T \mu")
    assert right.holds
    assert not Claim("wrong", "", "", right.derivation, (Evidence("a law", "refuted"),)).holds


@pytest.mark.parametrize("answer", [r"d \mu^2", r"d \mu^T \mu"])
def test_qkv_prove_ends_with_1(answer: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(theory, "claims", lambda: {"wrong": lambda: wrong(MEAN, answer)})
    monkeypatch.setattr(sys, "argv", ["qkv", "prove"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "FAILS" in said
    assert "μ = (1, 2)" in said


def pieces(blocks: list[d.Block]) -> Iterator[d.Inline]:
    for block in blocks:
        match block:
            case d.Paragraph(words=words):
                yield from d.inlines(words)
            case d.Items(items=items):
                yield from (piece for item in items for piece in d.inlines(item))
            case d.Table(rows=rows):
                yield from (piece for row in rows for cell in row for piece in d.inlines(cell))
            case d.Derivation():
                yield from (piece for line in lines(block) for piece in (line.maths, *d.inlines(line.reason)))


@pytest.mark.slow
@pytest.mark.parametrize("name", theory.claims())
def test_formulas_among_the_words_are_read(name: str, made) -> None:
    said = list(pieces(_blocks(Outcome(name, made(name), "", 0.0), drawn=False)))
    assert [piece.source for piece in said if isinstance(piece, d.Maths) and piece.tree() is None] == []
    words = [piece.text for piece in said if isinstance(piece, d.Text) and piece.style == ""]
    assert [text for text in words if re.search(r"[_^$\\√‖∑ᵀ]", text)] == []


def without_evidence(name: str) -> Claim:
    return sys.modules[f"qkv.theory.{name}"].without_evidence()


@pytest.mark.slow
def test_chains_make_up_the_derivation() -> None:
    for name in ("reach", "normalisation"):
        claim = without_evidence(name)
        (whole,) = blocks(claim.derivation)
        assert isinstance(whole, d.Lines)
        assert [line.maths.source for line in whole.lines] == [step.text for step in claim.derivation.steps]
        chains = list(claim.derivation.chains())
        assert [step.text for chain in chains for step in chain.steps] == [s.text for s in claim.derivation.steps]
        assert all(chain.steps[0].relation == "" for chain in chains)
        assert {line.verdict for line in whole.lines} <= {"", "proved", "tested"}
        assert len(correction_items(claim).items) == len(claim.corrections)
        assert statement_blocks(claim)


def test_the_claim_without_its_evidence() -> None:
    full, bare = qkv.theory.reach(), without_evidence("reach")
    assert not bare.evidence
    assert (full.title, full.statement, full.derivation) == (bare.title, bare.statement, bare.derivation)


def test_a_line_that_does_not_follow_says_why() -> None:
    wrong = Derivation((Step("k + k", "", ""), Step("3 k", "collected")), {"k": "natural"}, shown=True)
    last = lines(wrong)[-1]
    assert not last.stands
    assert last.remark
