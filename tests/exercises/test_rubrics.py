"""Rubrics: propositions found or not found, never wrong; negated, doubted and quoted sentences do not count."""

import re
import tomllib
from pathlib import Path

import pytest

from qkv.exercises import Asked, CannotSolve, Exercise, rubrics
from qkv.exercises.checking import check
from qkv.exercises.outcome import known_mistakes

LABELLED = Path(__file__).parent / "labelled"
# The parts of labelled answers that a rubric judges.
PARTS = {
    ("argmax", "b"): "argmax training",
    ("kernels", "a"): "condition",
    ("heads", "b(i)"): "masks needed encoder",
    ("heads", "b(ii)"): "masks needed decoder",
    ("heads", "b(iii)"): "masks needed encoder-decoder",
    ("heads", "d(i)"): "bottleneck projections",
    ("heads", "d(ii)"): "bottleneck scores",
}
RIGHT = {
    "argmax training": "The gradient for queries and keys is zero almost everywhere; the values still learn.",
    "argmax learners": "Queries and keys get zero gradients. The value projection still gets gradients and learns.",
    "argmax temperature": "The weights become one-hot, and the gradients of queries and keys vanish.",
    "argmax straight-through": "Forward it uses argmax; backward it takes the gradient of softmax.",
    "saturation": "The softmax saturates, so that its gradients vanish.",
    "scaling": "Large scores saturate the softmax and the gradient becomes tiny.",
    "condition": "sim(q, k) must be strictly positive.",
    "masks needed encoder": "Only a padding mask on the self-attention, no causal mask.",
    "masks needed decoder": "A causal mask in the self-attention.",
    "masks needed encoder-decoder": "Encoder self-attention: padding mask. Decoder self-attention: causal mask. "
    "Cross-attention: padding mask.",
    "bottleneck projections": "The projections of queries, keys, values and output.",
    "bottleneck scores": "The scores and the weighted sum of the values.",
    "value width": "W_o must take 2 * d_model features. Change split_heads for the values. Update combine_heads too.",
    "listing changes": "The output projection takes an input that is twice as wide.",
}


def test_every_rubric_is_complete():
    assert {re.sub(r"\s", "-", name) for name in RIGHT} == set(rubrics.names())
    for name in rubrics.names():
        found = rubrics.rubric(name)
        assert any(each.required for each in found.propositions), name
        for each in (*found.propositions, *found.against):
            assert each.states, each.id
            assert not each.mistake or each.mistake in known_mistakes(), each.mistake
        assert all(each.statement for each in found.propositions), name


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_explanation(name):
    rubric, text = rubrics.rubric(name), RIGHT[name]
    assert rubric.judge(text).kind == "right"
    for doubt in (
        f"Some say: {text}".replace(". ", ", ").replace("; ", ", "),
        f'"{text}"',
        "Maybe. Who knows?",
        "",
        "Good question.",
    ):
        assert rubric.judge(doubt).kind == "unread", doubt


@pytest.mark.parametrize(
    ("name", "text", "mistake"),
    [
        ("saturation", "The softmax would be flat.", "softmax flattens"),
        ("saturation", "Gradients explode because scores are large.", "gradients explode"),
        (
            "argmax training",
            "There is no effect: argmax is differentiable everywhere.",
            "argmax taken as differentiable",
        ),
        ("masks needed encoder", "Both a padding mask and a causal mask.", "causal mask in an encoder"),
        ("bottleneck projections", "Computing the attention scores.", "bottleneck mixed up"),
    ],
)
def test_a_mistake_is_reported_and_is_never_wrong(name, text, mistake):
    outcome = rubrics.rubric(name).judge(text)
    assert outcome.kind in ("incomplete", "unread")
    assert mistake in outcome.mistakes
    assert mistake not in rubrics.rubric(name).judge(f"I doubt this. Maybe {text[0].lower()}{text[1:]}").mistakes


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The softmax saturates but the gradients do not vanish.", "incomplete"),
        ("The softmax saturates and the gradients never vanish.", "incomplete"),
        ("It is not true that the softmax saturates, nor that gradients vanish.", "unread"),
        ("The softmax saturates and gradients vanish. This is wrong.", "unread"),
        ("Does the softmax saturate, do gradients vanish?", "unread"),
        ("People say the softmax saturates and gradients vanish.", "unread"),
        ("The softmax is saturated.", "incomplete"),
        ("If we don't scale, the softmax becomes almost one-hot and its gradients vanish.", "right"),
    ],
)
def test_negations_doubts_and_quotes(text, kind):
    assert rubrics.rubric("saturation").judge(text).kind == kind


def test_spoilers():
    outcome = rubrics.rubric("saturation").judge("The softmax saturates.")
    assert "vanish" in outcome.words()
    assert "vanish" not in outcome.words(spoilers=False)
    assert "vanish" not in str(outcome.as_dict(spoilers=False))


def test_the_rubric_of_a_question():
    exercise = Exercise(asked=[Asked(label="a", quantity="words", rubric="argmax training")])
    assert check(exercise, "a", RIGHT["argmax training"])
    assert rubrics.chosen("bottleneck", "width large", "the projections of queries") == "bottleneck-projections"
    assert rubrics.chosen("masks_needed", "encoder-decoder") == "masks-needed-encoder-decoder"
    assert rubrics.chosen("listing_changes") == "listing-changes"
    with pytest.raises(CannotSolve):
        rubrics.rubric("nothing of the kind")
    unknown = Exercise(asked=[Asked(label="a", quantity="words", rubric="nothing of the kind")])
    assert check(unknown, "a", "It is so.").codes == ("unsolved",)


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_labelled_explanations(name, part):
    """Nothing is called wrong, and nothing right that is labelled otherwise."""
    rubric = rubrics.rubric(PARTS[name, part])
    entries = tomllib.loads((LABELLED / f"{name}.toml").read_text(encoding="utf-8"))["answer"]
    found = [(entry, rubric.judge(entry["answer"])) for entry in entries if entry["part"] == part]
    assert found
    assert not [entry["id"] for entry, outcome in found if outcome.kind == "wrong"]
    assert not [entry["id"] for entry, outcome in found if outcome and entry["kind"] != "right"]
    right = [outcome for entry, outcome in found if entry["kind"] == "right"]
    assert sum(map(bool, right)) >= len(right) / 2
