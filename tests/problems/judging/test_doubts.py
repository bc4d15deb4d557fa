"""A text that denies the right answer, or leaves it open, does not give it; a harmless frame makes nothing wrong."""

import pytest

from qkv.problems import bank
from qkv.problems.judging.doubts import held, told, unsettled

DENYING = (
    "It is not true that it is {}",
    "It is false that {}",
    "anything but {}",
    "Some say {}; this is wrong.",
    "Some say: {}. That is not correct.",
    "{}? No.",
)
# In front of a formula; in prose "not" and "neither" may begin a right answer.
OF_FORMULAS = ("not {}", "It is not {}", "neither {} nor anything else", "everything except {}", r"\neq {}")
HARMLESS = ("{}", "The answer is: {}", "**Answer:** {}", "{}\n\nI hope this helps.", "I think it is this: {}")
GIVEN = [(name, part.name) for name, problem in bank().items() for part in problem.parts]
IN_WORDS = {
    ("argmax", "b"): "queries and keys get zero gradients",
    ("kernels", "a"): "every similarity must be positive",
    ("saturation", "a(v)"): "the softmax saturates and gradients vanish",
}
CHOSEN = ("Ideas", "Condition", "Choice", "Choices", "Leading", "Masks", "Scenario")
QUERY = 'einsum("bd,hdq->bhq", x, W_q)'


@pytest.mark.slow
@pytest.mark.parametrize(("name", "part"), GIVEN)
def test_a_denied_answer_is_not_right(name, part):
    asked = bank()[name].part(part)
    kind = type(asked.answer).__name__
    if kind == "Chain":
        pytest.skip("a proof is its equations, whatever stands before it")
    right = IN_WORDS.get((name, part), asked.answer.text)
    assert asked.check(right).kind == "right"
    frames = DENYING if kind in CHOSEN else DENYING + OF_FORMULAS
    said = [frame for frame in frames if asked.check(frame.replace("{}", right)).kind == "right"]
    assert not said, (right, said)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "part"), GIVEN)
def test_a_harmless_frame_makes_nothing_wrong(name, part):
    asked = bank()[name].part(part)
    for frame in HARMLESS:
        outcome = asked.check(frame.replace("{}", asked.answer.text))
        assert outcome.kind in ("right", "unread", "incomplete"), (frame, outcome)


@pytest.mark.parametrize(
    ("name", "part", "answer"),
    [
        *(("scaling", "b", said) for said in ("d!", "d; d^2", "d, d^2", "2d = d", "~d", "d or d^2", "at least d")),
        *(("decoding", "f", said) for said in ("O(bd^2+bnd) / h", "h O(bd^2+bnd)", "O(bd^2+bnd), O(bd^2)")),
        ("decoding", "f", "O(bd^2 + bnd) is what MHA needs, MQA needs O(bd^2 + bnd/h)"),
        *(("decoding", "a", said) for said in ("either [h, d, q] or [h, q]", "[h, d, q] is wrong, it is [h, q]")),
        *(("decoding", "c", QUERY.replace("W_q", other)) for other in ("W_k", "x")),
        *(("decoding", "c", said) for said in (f"2*{QUERY}", f"{QUERY} + 1", f"-{QUERY}", f"{QUERY}.T", f"f({QUERY})")),
        *(("decoding", "d", said) for said in ("x @ W_k.T", "x @ W_k + 1", "2 * x @ W_k", "x @ W_v", "x @ W_k @ W_k")),
        ("argmax", "b", "With softmax the gradients vanish, with argmax they do not."),
        ("argmax", "b", "There is no gradient problem at all."),
        ("argmax", "b", "Their gradient is zero almost everywhere, and so is that for the values."),
        ("argmax", "b", "gradient zero values learn queries keys"),
        *(("heads", "d(i)", said) for said in ("no projections", "the projections and the scores")),
        ("heads", "d(ii)", "not the scores and weighted sums but the projections"),
        ("saturation", "a(v)", "The scores shrink, softmax saturates and gradients vanish."),
        ("kernels", "a", "all V_j must be positive"),
        *(("saturation", "a(ii)", f"{sign} diag(a) - a a^T") for sign in (">", "≥", "≠", "the Jacobian is >")),
        *(("saturation", "a(iv)", rf"{sign} n^2 \epsilon^2") for sign in (">=", "≥", ">", r"\geq")),
        *(("norms", "a(i)", f"{sign} (i), (iii)") for sign in ("≠", "!=", r"$\neq$")),
        ("by-hand", "e", "(QK^T)_{ij} = (row j of Q) · (column i of K^T) = q_i^T k_j"),
    ],
)
def test_what_is_not_the_answer(name, part, answer):
    assert bank()[name].check(part, answer).kind != "right"


@pytest.mark.parametrize(
    ("name", "part", "answer"),
    [
        ("scaling", "b", "Not d^2, because the terms are independent, but d"),
        ("scaling", "b", "It is d. Some say d^2; this is wrong."),
        *(("scaling", "c", said) for said in ("the square root of d", "np.sqrt(d)")),
        *(("scaling", "a", said) for said in ("<mu, mu>", "mu @ mu", "sum(mu_i**2)", "the squared norm of mu")),
        *(("heads", "a(i)", said) for said in ("2 to the n", "two to the power n")),
        ("decoding", "f", "O(bd^2) + O(bnd)"),
        ("decoding", "f", "O(bd^2) for the projections and O(bnd) for attention"),
        *(("decoding", "c", said) for said in (f"q = torch.{QUERY}", "(x @ W_q).transpose(0, 1)")),
        ("decoding", "a", "[h, q] is wrong, it is [h, d, q]"),
        ("argmax", "b", "With softmax gradients flow, but argmax gives queries and keys zero gradients."),
        ("argmax", "a", "s1=3, s2=11, s3=5, s4=2; the maximum is 11 at index 2, so the output is v2 = (1,4,3)"),
        ("by-hand", "b", "2, 8, -20"),
        ("by-hand", "e", "(QK^T)_{ij} = (row i of Q) · (column j of K^T) = q_i^T k_j"),
        ("by-hand", "e", "(QK^T)_{ij} = row i of Q times column j of K^T = q_i^T k_j"),
        ("by-hand", "e", r"(QK^T)_{ij} = (\text{row } i \text{ of } Q)(\text{column } j \text{ of } K^T) = q_i^T k_j"),
        ("by-hand", "d", "Q = XW_Q and K = XW_K are both 3×3, V = XW_V is 3×2."),
    ],
)  # fmt: skip
def test_what_is_the_answer(name, part, answer):
    assert bank()[name].check(part, answer).kind == "right"


def test_a_text_without_doubts_stays_as_it_is():
    for said in ("d", "the mean is not zero", "a = 1.5; b = 2", "(i), (iii)", "Not differentiable, so no gradient."):
        assert held(said, prose=True) == said
        assert unsettled(said) is None
        assert told(said)


@pytest.mark.parametrize(
    ("name", "part", "answer", "kind"),
    [
        *(("heads", "d(ii)", said, "incomplete") for said in ("the score matrix", "the softmax of the scores")),
        ("heads", "d(ii)", "the scores and multiplying by V", "right"),
        ("kernels", "a", "each similarity must be below one", "wrong"),
        ("kernels", "a", "the similarities are at least 0 and at most 1", "incomplete"),
        ("kernels", "b(ii)", "It has roughly D^2/2 features", "incomplete"),
        *(("kernels", "b(ii)", said, "wrong") for said in ("It has exactly D^2/2 entries", "It has about 2D entries")),
        ("argmax", "a", "scores (3, 11, 5, 2)", "incomplete"),
        ("argmax", "a", "s = (3, 10, 5, 2)", "wrong"),
        ("argmax", "a", "The output is (3, 11, 5, 2)", "wrong"),
        ("by-hand", "f", "Obvious, because A has rows.", "unread"),
    ],
)
def test_what_is_a_part_of_the_answer(name, part, answer, kind):
    assert bank()[name].check(part, answer).kind == kind
