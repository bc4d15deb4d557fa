"""Answers in words within other words: what is right stays right, what is wrong never becomes right."""

import pytest

from qkv.problems import bank

FRAMES = (
    "{}",
    "I think that {}",
    "In short: {}",
    "Good question. {}",
    "{} That is all.",
    "**Answer:** {}",
    "Attention is a broad subject. {}",
    "{}\n\nI hope this helps.",
)
SAID = {
    ("argmax", "b", "right"): (
        "the gradient is zero almost everywhere, so queries and keys cannot be learned.",
        "queries and keys get no gradient; the values still do.",
        "argmax is not differentiable, so backpropagation cannot reach the query and key projections.",
    ),
    ("argmax", "b", "wrong"): (
        "gradients flow through argmax to the queries as before.",
        "the gradient does not vanish.",
        "training does not suffer and becomes faster with argmax.",
        "it does not hurt training at all.",
        "the gradients explode because argmax is so steep.",
    ),
    ("argmax", "b", "incomplete"): ("argmax is piecewise constant.", "training becomes harder."),
    ("kernels", "a", "right"): (
        "sim(q, k) must be strictly positive for all q and k.",
        "every similarity has to be greater than zero.",
        "sim is nonnegative and for every query at least one key has a positive similarity.",
    ),
    ("kernels", "a", "wrong"): (
        "sim(q, k) must be nonzero for every pair.",
        "sim only has to be symmetric.",
        "sim does not need to be positive.",
        "sim must be negative.",
        "sim must be a positive semidefinite kernel.",
    ),
    ("kernels", "a", "incomplete"): ("the denominator must not be zero.", "at least one similarity must be positive."),
    ("heads", "b(ii)", "right"): ("only the causal mask, on the decoder self-attention.", "a causal mask is used."),
    ("heads", "b(ii)", "wrong"): ("a causal mask on the cross-attention.", "no mask at all.", "only a padding mask."),
    ("heads", "b(ii)", "conditional"): ("both a causal and a padding mask are needed.",),
    ("heads", "d(i)", "right"): ("the projections of queries, keys, values and output.",),
    ("heads", "d(i)", "wrong"): ("the attention scores.", "splitting the heads."),
    ("heads", "d(i)", "incomplete"): ("the key projection.",),
}


@pytest.mark.parametrize(("name", "part", "kind"), SAID)
def test_a_frame_changes_nothing(name, part, kind):
    asked = bank()[name].part(part)
    for said in SAID[name, part, kind]:
        for frame in FRAMES:
            answer = frame.format(said)
            assert asked.check(answer).kind == kind, (answer, asked.check(answer))


@pytest.mark.parametrize(("name", "part"), [("argmax", "b"), ("kernels", "a")])
def test_what_is_denied_is_never_right(name, part):
    asked = bank()[name].part(part)
    for said in SAID[name, part, "right"]:
        first = said.split(",")[0].split(";")[0].rstrip(".")
        for denial in ("It is not true that {}.", "It is wrong that {}: the opposite holds.", "It is false that {}."):
            answer = denial.format(first)
            assert not asked.check(answer), answer
