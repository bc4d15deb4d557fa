"""Answers that would be right under a condition, and those that no condition helps."""

from __future__ import annotations

import itertools

import pytest

from qkv.maths.comparison.verdict import compare, fresh_letters

SYMBOLS = {
    "mu": "vector[d]",
    "mu_q": "vector[d]",
    "mu_k": "vector[d]",
    "gamma": "scalar",
    "sigma": "positive",
    "d": "natural",
    "t": "index[d]",
}


@pytest.mark.parametrize(
    ("gold", "answer", "named"),
    [
        (r"\mu^T\mu", r"d\mu^2", "μ = m·1"),
        (r"\mu^T\mu", r"(\mathbf 1^T\mu)^2/d", "μ = m·1"),
        (r"\mu^T\mu", r"d\mu_1^2", "μ = m·1"),
        (r"d\sigma^4 + 2\sigma^2\mu^T\mu", r"d\sigma^4 + 2 d\sigma^2\mu^2", "μ = m·1"),
        (r"\mu_q^T\mu_k", r"d\mu_q\mu_k", "μ"),
        (r"|\gamma|\sqrt d", r"\gamma\sqrt d", "γ ≥ 0"),
        (r"|\gamma|\sqrt d", r"-\gamma\sqrt d", "γ ≤ 0"),
    ],
)
def test_the_condition_is_named(gold, answer, named):
    verdict = compare(gold, answer, SYMBOLS)
    assert verdict.kind == "conditional"
    assert verdict.condition is not None
    assert named in verdict.condition
    assert verdict.condition in verdict.reason
    assert not verdict


def test_the_sentence_of_a_vector_read_as_a_number():
    verdict = compare(r"\mu^T\mu", r"d\mu^2", SYMBOLS)
    assert "with μ = (1, 2) the right value is 5 and no scalar μ is meant" in verdict.reason


@pytest.mark.parametrize(
    ("gold", "answer", "kind"),
    [
        (r"\mu^T\mu", r"\mu^2", "ill-typed"),
        (r"\mu^T\mu", r"2d\mu^2", "ill-typed"),
        (r"d", r"d\sigma^4", "different"),
        (r"\sigma^2 d", r"\sigma^2 d + \mu^T\mu", "different"),
        (r"\sigma d", r"d\sigma + \mu - \mu^2", "ill-typed"),
        (r"\gamma^2", r"\gamma", "different"),
        (r"\mu_i(\delta_{ij} - \mu_j)", r"\mu_i(\delta_{ij} - \mu_i)", "different"),
        (r"\mu_{t-1}", r"\mu_{t+1}", "different"),
        (r"\mu_{t-1}", r"\mu_t", "different"),
    ],
)
def test_no_condition_where_none_helps(gold, answer, kind):
    assert compare(gold, answer, SYMBOLS).kind == kind


@pytest.mark.parametrize(
    ("gold", "answer", "size"),
    [
        ("x_1 + x_2 + x_3", "3 x_2", 3),
        ("x_1^2 + x_2^2", "2 x_1 x_2", 2),
        ("-x_1 x_2", "-x_1^2", 5),
        ("x_1", "x_2", "n"),
    ],
)
def test_components_with_numbers_are_equal_where_all_components_are(gold, answer, size):
    verdict = compare(gold, answer, {"x": f"vector[{size}]"})
    assert (verdict.kind, verdict.evidence) == ("conditional", "refuted")
    assert verdict.condition == "every component of x is the same (x = m·1)"


WEIGHTS = {"s": "vector[n]", "t": "vector[n]", "n": "natural"}
SPREAD = r"\sum_i (s_i - \frac1n\sum_j s_j)^2"


@pytest.mark.parametrize(
    ("gold", "answer", "kind"),
    [
        (r"softmax(s)", r"softmax(2s)", "different"),
        (rf"\frac{{{SPREAD}}}{{n-1}}", rf"\frac{{{SPREAD}}}{{n}}", "different"),
        (rf"{SPREAD} + t^T t", rf"2 {SPREAD} + (\mathbf 1^T t)^2/n", "different"),
        (r"\|softmax(s)\|^2", r"\frac1n", "conditional"),
        (r"softmax(s)", r"\frac1n \mathbf 1_n", "conditional"),
        (r"softmax(s)", r"\frac{s}{ns}\mathbf 1_n", "ill-typed"),
        (r"softmax(s)\, t^T t", r"softmax(s)\, (\mathbf 1^T t)^2/n", "conditional"),
    ],
)
def test_a_value_that_does_not_depend_on_the_constant_is_no_condition(gold, answer, kind):
    assert compare(gold, answer, WEIGHTS).kind == kind


def test_a_letter_that_is_taken_is_not_used_again():
    verdict = compare(r"m\mu^T\mu", r"m d\mu^2", {**SYMBOLS, "m": "scalar"})
    assert verdict.kind == "conditional"
    assert verdict.condition is not None
    assert "μ = m·1" not in verdict.condition


def test_a_random_name_keeps_its_law_when_its_mean_is_reread():
    symbols = {**SYMBOLS, "q": "random vector[d] ~ N(mu, sigma^2 I)", "k": "random vector[d] ~ N(mu, sigma^2 I)"}
    assert compare(r"E[q^T k]", r"d\mu^2", symbols).kind == "conditional"


@pytest.mark.parametrize(
    ("gold", "answer", "kind", "said"),
    [
        ("|x+y+z|", "x+y+z", "different", "not the same"),
        (r"\sqrt{(x+1)^2}", "x+1", "different", "equal if x ≥ 0, not in general"),
        ("|x| y", "x y", "conditional", "equal only if x ≥ 0"),
        ("v_1 + v_2 + v_3", "3 v_2", "conditional", "equal if every component of v is the same"),
        ("v^T v", r"(\mathbf 1^T v)^2/3", "conditional", "equal only if every component of v is the same"),
    ],
)
def test_a_condition_is_said_to_be_needed_only_where_it_is(gold, answer, kind, said):
    verdict = compare(gold, answer, {"x": "scalar", "y": "scalar", "z": "scalar", "v": "vector[3]"})
    assert verdict.kind == kind
    assert said in verdict.reason


def test_an_example_names_only_what_matters():
    symbols = {"mu": "vector[d]", "sigma": "positive", "q": "random vector[d] ~ N(mu, sigma^2 I)"}
    reason = compare(r"E[q]^T \mu", r"d\mu^2", symbols).reason
    assert "with μ = (1, 2) the right value is 5" in reason
    assert "σ" not in reason


def test_a_note_on_a_special_value_holds_for_all_indices():
    symbols = {"x": "scalar", "u": "vector[n]", "i": "index[n]", "j": "index[n]"}
    assert "they agree where" not in compare(r"\delta_{ij} + x", r"x + 2 u_i", symbols).reason


def test_an_index_of_the_gold_stays_free_when_a_vector_is_reread():
    """Σ_{j<i} alone would bind i too, and y_i would not be the one that is asked for."""
    verdict = compare(r"y_i \sum_{j<i} \mu_j^2", r"\sum_{j<i} y_i \mu^2", {"mu": "vector[n]", "y": "vector[n]"})
    assert verdict.kind == "conditional"
    assert "with  the right value" not in verdict.reason


WORDS = {
    "mu": "vector[d]", "nu": "vector[d]", "d": "natural", "n": "natural", "m": "scalar", "x": "scalar", "y": "scalar",
    "sigma": "positive", "A": "matrix[d,d]", "B": "matrix[d,d]", "s": "vector[n]", "two": "scalar = 2",
}  # fmt: skip
TOO_MANY = dict.fromkeys("mctabuws", "scalar")


@pytest.mark.parametrize(
    ("gold", "answer", "condition", "reason"),
    [
        (r"\mu^T\mu", "d mu^2", "every component of μ is the same (μ = m·1, then both are d m²)",
         "; with μ = (1, 2) the right value is 5 and no scalar μ is meant"),
        (r"\mu^T\nu", "d mu nu", "every component of μ and of ν is the same (μ = m·1, ν = c·1, then both are d m c)",
         "; with μ = (1, 2), ν = (4, 5) the right value is 14 and no scalar μ or scalar ν is meant"),
        (r"m \mu^T\mu", "m d mu^2", "every component of μ is the same (μ = c·1, then both are m d c²)",
         "; with m = 2, μ = (1, 2) the right value is 10 and no scalar μ is meant"),
        (r"\mu^T\mu", r"(\mathbf 1^T\mu)^2/d", "every component of μ is the same (μ = m·1)",
         "; not the same in general: d = 2, μ = (1, 2): 5 against 9/2"),
        (r"\mu^T\mu + m - m", r"(\mathbf 1^T\mu)^2/d", "every component of μ is the same (μ = c·1)",
         "; not the same in general: d = 2, μ = (1, 2), m = 1: 5 against 9/2"),
        (r"\mu^T\nu", r"\mathbf 1^T\mu \mathbf 1^T\nu/d", "every component of μ is the same (μ = m·1)",
         "; not the same in general: d = 2, μ = (1, 2), ν = (4, 5): 14 against 27/2"),
        (r"\mu_1", r"\mu_2", "every component of μ is the same (μ = m·1)",
         "; not the same in general: d = 2, μ = (1, 2): 1 against 2"),
        ("|x|", "x", "x ≥ 0", "; not the same in general: x = −1: 1 against −1"),
        ("|x|", "-x", "x ≤ 0", "; not the same in general: x = 2: 2 against −2"),
        (r"\sqrt{x^2} y", "x y", "x ≥ 0", "; not the same in general: x = −1, y = 1: 1 against −1"),
        (r"y |x|", "-x y", "x ≤ 0", "; not the same in general: y = 2, x = 1: 2 against −2"),
    ],
)  # fmt: skip
def test_what_would_make_it_right(gold: str, answer: str, condition: str, reason: str) -> None:
    verdict = compare(gold, answer, WORDS)
    assert (verdict.kind, verdict.evidence, verdict.condition) == ("conditional", "refuted", condition)
    assert verdict.reason == f"equal only if {condition}{reason}"


def test_letters_of_the_gold_are_not_used_again() -> None:
    defined = {**WORDS, "m": "scalar = 2"}
    assert "μ = c·1" in compare(r"m \mu^T\mu", r"2 (\mathbf 1^T\mu)^2/d", defined).condition
    assert "μ = c·1, then both are 2d c²" in compare(r"m \mu^T\mu", "2 d mu^2", defined).condition
    letters = fresh_letters({"m", "t"})
    assert [next(letters) for _ in range(8)] == ["c", "a", "b", "u", "w", "s", "m_1", "m_2"]
    assert list(itertools.islice(fresh_letters(set()), 9)) == ["m", "c", "t", "a", "b", "u", "w", "s", "m_1"]
    many = compare(f"{' + '.join(TOO_MANY)} + v^T v", f"{' + '.join(TOO_MANY)} + p v^2", {**TOO_MANY, "v": "vector[p]"})
    assert "v = m_1·1" in many.condition


@pytest.mark.parametrize(
    ("gold", "answer", "where"),
    [
        (r"\sigma d", "d", "σ = 1"),
        ("d", r"\sigma d", "σ = 1"),
        ("d", "d^2", "d = 1"),
        ("x^2", "x^3", "x = 1"),
        ("n", "d", "n = d"),
        ("n d", "n^2", "n = d"),
        (r"\mu^T\nu", r"\mu^T\mu", "μ = ν"),
        ("x + y", "x", "y = 0"),
        ("x y", "0", "x = 0"),
        ("A B", "B A", "d = 1"),
        ("softmax(s)", "softmax(2s)", "n = 1"),
        (r"\|\mu\|", r"\|\mu\|_1", "d = 1"),
        (r"\mu_i", r"\mu_j", "d = 1"),
        (r"A\mu", r"A^T\mu", "d = 1"),
    ],
)
def test_a_special_value_at_which_it_happens_to_be_right(gold: str, answer: str, where: str) -> None:
    verdict = compare(gold, answer, WORDS)
    assert (verdict.kind, verdict.condition) == ("different", None)
    assert verdict.reason.endswith(f"; they agree where {where}, not in general")


def test_a_sign_is_looked_for_in_every_scalar() -> None:
    for gold, answer, condition in (("d |x|", "d x", "x ≥ 0"), (r"\sigma y |x|", r"-\sigma y x", "x ≤ 0"),
                                    (r"\sigma |m|", r"\sigma m", "m ≥ 0")):  # fmt: skip
        assert compare(gold, answer, WORDS).condition == condition
    # Where μ and ν are at right angles both are 0, whatever the sign of m.
    sometimes = compare(r"\mu^T\nu |m|", r"\mu^T\nu m", WORDS)
    assert (sometimes.kind, sometimes.condition) == ("different", None)
    assert sometimes.reason.startswith("equal if m ≥ 0, not in general: ")


def test_nothing_is_added_where_nothing_helps() -> None:
    assert compare("x", "x + 1", WORDS).reason == "not the same: x = 2: 2 against 3"
    assert compare("d", "d + 2", WORDS).condition is None
