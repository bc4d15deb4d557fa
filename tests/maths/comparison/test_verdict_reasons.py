"""Kind, evidence, reason, condition and counterexample of verdicts, case by case."""

from __future__ import annotations

import itertools

import pytest

from qkv.errors import OptionError, OptionTypeError
from qkv.maths.comparison import verdict as verdicts
from qkv.maths.comparison.verdict import Verdict, compare, equal, fresh_letters

S = {
    "x": "scalar",
    "y": "scalar",
    "c": "positive",
    "n": "natural",
    "d": "natural",
    "u": "vector[d]",
    "v": "vector[d]",
    "A": "matrix[d,d]",
    "B": "matrix[d,1]",
    "o": "matrix[1,1]",
    "r": "matrix[1,d]",
    "Q": "matrix[n,d]",
    "m": "natural = d",
    "b": "vector[m]",
    "k": "natural",
    "z": "vector[k]",
    "t": "vector[k+1]",
    "a": "scalar = x + 1",
}


ALGEBRA = "the two are the same by algebra"


CASES = [
    (r"x \le y", r"x \le y", "equal", "proved", ALGEBRA),
    (r"x \le y", r"y \ge x", "equal", "proved", ALGEBRA),
    (r"x < y", r"y > x", "equal", "proved", ALGEBRA),
    (r"x \ge y", r"y \le x", "equal", "proved", ALGEBRA),
    (r"x > y", r"y < x", "equal", "proved", ALGEBRA),
    (r"x \ne y", r"x \ne y", "equal", "proved", ALGEBRA),
    (r"x \le y \le y + 1", r"y + 1 \ge y \ge x", "equal", "proved", ALGEBRA),
    (r"\sqrt{x^2} \le y", r"|x| \le y", "equal", "proved", ALGEBRA),
    (r"x \le y", r"x \ge y", "different", "refuted", "not the same relations: at y = 2, x = 3 only the answer holds"),
    (
        r"x \le y",
        r"x \le y + 1",
        "different",
        "refuted",
        "not the same relations: at y = 2, x = 3 only the answer holds",
    ),
    (
        r"x \le y",
        r"x + 1 \le y",
        "different",
        "refuted",
        "not the same relations: at y = 3, x = 3 only the right one holds",
    ),
    (r"x \le y", "x", "different", "refuted", "an inequality is expected, not a value"),
    (r"x \le y", "x = y", "different", "refuted", "not the same relations: at y = 5, x = 1 only the right one holds"),
    ("x", r"x \le y", "different", "refuted", "a value is expected, not an inequality"),
    ("x = y", r"x < y", "different", "refuted", "not the same equations: at x = 3, y = 3 only the right one holds"),
    ("B", "B_{:1}", "equal", "proved", ALGEBRA),
    ("B_{:1}", "B", "equal", "proved", ALGEBRA),
    ("o", "o_{1,1}", "equal", "proved", ALGEBRA),
    ("o_{1,1}", "o", "equal", "proved", ALGEBRA),
    ("b", "b", "equal", "proved", ALGEBRA),
    ("r", "u", "different", "refuted", "u is a vector (a column) of d, and a row of d (1×d) is wanted (as r is)"),
    ("u", "u^T", "different", "refuted", "uᵀ is a row of d (1×d), and a vector (a column) of d is wanted (as u is)"),
    ("A", "u", "different", "refuted", "u is a vector (a column) of d, and a matrix d×d is wanted (as A is)"),
    ("x", "A", "different", "refuted", "A is a matrix d×d, and a scalar is wanted (as x is)"),
    ("Q", "x", "different", "refuted", "x is a scalar, and a matrix n×d is wanted (as Q is)"),
    (
        "z",
        "t",
        "different",
        "refuted",
        "t is a vector (a column) of k+1, and a vector (a column) of k is wanted (as z is)",
    ),
    ("Q", "A", "different", "refuted", "A is a matrix d×d, and a matrix n×d is wanted (as Q is)"),
    (r"\pm x", "x", "different", "refuted", "the answer has one value, the right one has two values (±)"),
    ("x", r"\pm x", "different", "refuted", "the answer has two values (±), the right one has one value"),
    (r"\pm 0 x", "0", "equal", "proved", ALGEBRA),
    ("0", r"\pm 0", "equal", "proved", ALGEBRA),
    (r"\pm x", r"\mp x", "equal", "proved", ALGEBRA),
    (r"x \pm y", r"x \mp y", "equal", "proved", ALGEBRA),
    (r"\pm x", r"\pm y", "different", "refuted", "not the same two values: x = 2, y = 3: 2 or −2 against 3 or −3"),
    (
        r"\pm u",
        r"\pm x",
        "different",
        "refuted",
        "x is a scalar, and a vector (a column) of d is wanted (as u is)",
    ),
    (r"\pm x", r"\pm |x|", "equal", "tested", "the two have the same two values at every point that was tried"),
    (
        r"\pm\sqrt{-1-x^2}",
        r"\pm\sqrt{-2-x^2}",
        "unreadable",
        None,
        "qkv can neither prove nor test whether the two have the same values: a root of a negative number",
    ),
    ("1/0", "1", "unreadable", None, "qkv can neither prove nor test whether the two are the same: division by zero"),
    (r"\pi", r"\approx 3.14", "equal", "tested", "3.14159 rounds to 3.14"),
    (r"\pi", "≈ 3.15", "different", "refuted", "the right value is 3.14159, which does not round to 3.15"),
    (
        r"\pi x",
        r"\approx 3.14 x",
        "equal",
        "tested",
        "the two are the same within the rounding of the numbers after ≈",
    ),
    (
        r"\pi x",
        r"y = \pi x \approx 3.14 x",
        "equal",
        "tested",
        "the two are the same within the rounding of the numbers after ≈",
    ),
    ("x^2", "x", "different", "refuted", "not the same: x = 2: 4 against 2; they agree where x = 1, not in general"),
    ("d", "d^2", "different", "refuted", "not the same: d = 2: 2 against 4; they agree where d = 1, not in general"),
    (
        "u",
        "2u",
        "different",
        "refuted",
        "not the same: d = 2, u = (1, 2): (1, 2) against (2, 4); they agree where u = 0, not in general",
    ),
    ("y", "x = y", "equal", "proved", ALGEBRA),
    ("x + 1", "a = x + 1", "equal", "proved", ALGEBRA),
    (
        "y + 1",
        "a = y + 1",
        "equal",
        "proved",
        f"{ALGEBRA} (only the end of the chain is judged: it is not equal to a before it)",
    ),
    (
        "y + 1",
        "2 y = y + 1",
        "different",
        "refuted",
        "a value is expected, not an equation",
    ),
    ("y + 1", r"2 y \approx y + 1", "equal", "proved", ALGEBRA),
    ("y + 1", "u = y + 1", "equal", "proved", ALGEBRA),
    ("y + 1", r"\pm y = y + 1", "equal", "proved", ALGEBRA),
    ("x", "x +", "unreadable", None, "the text is incomplete"),
    ("x +", "x", "unreadable", None, "the gold itself is refused: the text is incomplete"),
    (
        "x",
        "u + x",
        "ill-typed",
        None,
        "u is a vector of size d and x is a scalar: they cannot be added; did you mean u + x·𝟏_d?",
    ),
    (
        "u + x",
        "x",
        "ill-typed",
        None,
        "the gold itself is refused: u is a vector of size d and x is a scalar: they cannot be added",
    ),
    ("O(n)", "n", "equal", "proved", "it grows at the expected rate"),
    ("n", "O(n)", "different", "refuted", "a value is expected, and the answer only says how fast it grows"),
]


def test_not_equal_reads_the_same_from_both_ends() -> None:
    assert compare(r"x \ne y", r"y \ne x", S).reason == ALGEBRA
    assert compare(r"x \ne y + 1", r"1 + y \neq x", S)
    assert compare(r"x \ne y", r"y \ne c", S).kind == "different"


@pytest.mark.parametrize("wanted", ["<", "<=", ">", ">=", "!="])
@pytest.mark.parametrize("given", ["<", "<=", ">", ">=", "!="])
def test_another_relation_holds_at_other_points(wanted, given) -> None:
    turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    if given not in (wanted, turned.get(wanted)):
        for answer in (f"x {given} y", f"y {given} x"):
            verdict = compare(f"x {wanted} y", answer, S)
            assert (verdict.kind, verdict.evidence) == ("different", "refuted")
            assert verdict.counterexample is not None
            assert {verdict.counterexample.gold, verdict.counterexample.answer} == {"true", "false"}


@pytest.mark.parametrize(("gold", "answer", "kind", "evidence", "reason"), CASES)
def test_verdicts(gold, answer, kind, evidence, reason) -> None:
    verdict = compare(gold, answer, S)
    assert (verdict.kind, verdict.evidence, verdict.reason) == (kind, evidence, reason)
    assert (verdict.gold, verdict.answer) == (gold, answer)
    assert equal(gold, answer, S) is (kind == "equal")
    assert bool(verdict) is (kind == "equal")


@pytest.mark.parametrize(
    ("gold", "answer", "point"),
    [
        ("r", "u", "d = 2, r = [(1, 3)], u = (1, 2): [(1, 3)] against (1, 2)"),
        ("u", "x", "d = 2, u = (1, 2), x = 3: (1, 2) against 3"),
        ("x^2", "x", "x = 2: 4 against 2"),
        (r"\pm x", r"\pm y", "x = 2, y = 3: 2 or −2 against 3 or −3"),
        (r"\pi", "≈ 3.15", "3.14159 against 3.15"),
        ("B", "u", "d = 2, B = [(1), (3)], u = (1, 2): (1, 3) against (1, 2)"),
        ("o", "x", "o = [(1)], x = −1: 1 against −1"),
        ("b", "u", "d = 2, b = (1, 2), u = (4, 5): (1, 2) against (4, 5)"),
    ],
)
def test_counterexamples(gold, answer, point) -> None:
    verdict = compare(gold, answer, S)
    assert str(verdict.counterexample) == point
    assert point in str(verdict) or not verdict.counterexample.point  # pyright: ignore
    assert verdict.as_dict()["counterexample"] is not None


def test_what_is_left_empty() -> None:
    verdict = compare("x", "x", S)
    assert (verdict.condition, verdict.counterexample, verdict.suggestion, verdict.where) == (None, None, None, "")
    assert verdict.as_dict() == {
        "kind": "equal",
        "evidence": "proved",
        "reason": ALGEBRA,
        "condition": None,
        "gold": "x",
        "answer": "x",
        "suggestion": None,
        "where": "",
        "counterexample": None,
        "renaming": {},
        "certificates": [[]],
    }
    assert str(verdict) == f"equal (proved): {ALGEBRA}"


def test_a_verdict_is_written_with_its_point_and_its_place() -> None:
    shapes = compare("u", "x", S)
    assert str(shapes) == f"different (refuted): {shapes.reason}. At {shapes.counterexample}"
    refused = compare("x", "u + x", S)
    assert refused.where == "  u + x\n  ^^^^^"
    assert str(refused) == f"ill-typed: {refused.reason}\n  u + x\n  ^^^^^"
    assert refused.suggestion == "u + x·𝟏_d"
    assert compare("u + x", "x", S).suggestion is None
    assert compare("u + x", "x", S).where == "  u + x\n  ^^^^^"
    assert compare("u v^T", "u v", S).suggestion == "u vᵀ"
    assert compare("x", "", S).where == ""
    assert compare("x", "x\u00a0+", S).where == "  x +\n    ^"


def test_a_condition_is_said() -> None:
    verdict = compare(r"x \le y", r"x \le |y|", S)
    assert (verdict.kind, verdict.condition) == ("conditional", "y ≥ 0")
    assert verdict.reason == "equal only if y ≥ 0; not the same in general: y = −1: −1 against 1"
    assert not equal(r"x \le y", r"x \le |y|", S)
    reread = compare("u^T u", "d u^2", S)
    assert reread.kind == "conditional"
    assert reread.where == "  d u^2\n    ^^^"
    assert not equal("u^T u", "d u^2", S)


def test_an_answer_in_which_something_was_tested_is_tested() -> None:
    one, other = r"\max(x^2, y^2)", r"\max(|x|, |y|)^2"
    reason = "the two are the same at every point that was tried, in several sizes"
    for gold, answer in [
        (one, other),
        (rf"{one} \le c", rf"c \ge {other}"),
        (rf"c \le {one}", rf"c \le {other}"),
        (rf"\pm ({one})", rf"\pm ({other})"),
        (rf"c \pm ({one})", rf"c \mp ({other})"),
    ]:
        verdict = compare(gold, answer, S)
        assert (verdict.kind, verdict.evidence, verdict.reason) == ("equal", "tested", reason), gold


def test_sizes_that_are_the_same_by_definition() -> None:
    symbols = {"d": "natural", "h": "natural", "m": "natural = h d", "u": "vector[m]", "v": "vector[h d]"}
    assert compare("u", "v", symbols).reason.startswith("not the same:")
    assert compare("u^T u", "v^T v", symbols).kind == "different"
    apart = {**symbols, "v": "vector[h + d]"}
    assert "is wanted" in compare("u", "v", apart).reason


def test_long_texts_are_cut_in_reasons() -> None:
    sixty = " + ".join(["u"] * 16)
    assert len(sixty) == 61
    reason = compare("x", sixty, S).reason
    assert reason.startswith(f"{sixty[:57]}… is a vector")
    shorter = " + ".join(["u"] * 15)
    assert compare("x", shorter, S).reason.startswith(f"{shorter} is a vector")


@pytest.mark.parametrize(
    ("text", "rounded"),
    [
        ("≈ 2.50", True),
        ("  ≈ 2.50", True),
        ("$≈ 2.50$", True),
        (r"\approx 2.50", True),
        (r"$\approx 2.50$", True),
        ("2.50", False),
        ("x ≈ 2.50", False),
    ],
)
def test_what_stands_after_an_approximately(text, rounded) -> None:
    node = verdicts.readings_of(text, S)[0].node
    assert getattr(node, "rounded", False) is rounded


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(OptionTypeError, match=r"^gold: got a int, wanted a text"):
        compare(1, "x", S)
    with pytest.raises(OptionTypeError, match=r"^answer: got a NoneType, wanted a text"):
        compare("x", None, S)
    with pytest.raises(OptionError, match=r"^symbols: got a list, wanted a mapping"):
        compare("x", "x", [])
    for broken in ({"x": 3}, {3: "scalar"}):
        with pytest.raises(OptionError, match=r"^symbols: got .*, wanted a name and its type"):
            compare("x", "x", broken)


def test_equal_leaves_nothing_changed_behind() -> None:
    assert not equal("d", "d^2", S)
    assert "they agree where d = 1" in compare("d", "d^2", S).reason
    with pytest.raises(OptionTypeError):
        equal("d", 3, S)
    assert "they agree where d = 1" in compare("d", "d^2", S).reason


def test_verdicts_by_hand() -> None:
    assert str(Verdict("equal", None, "so")) == "equal: so"
    assert str(Verdict("different", "refuted", "so", where="  x\n  ^")) == "different (refuted): so\n  x\n  ^"


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
        ("x_1", "x_2", 4),
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
        ("|x+y+z|", "x+y+z", "conditional", "equal only if x + y + z ≥ 0"),
        (r"\sqrt{(x+1)^2}", "x+1", "conditional", "equal only if x + 1 ≥ 0"),
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
        (r"\mu_1", r"\mu_2", "every component of μ is the same (μ = m·1) and d ≥ 2",
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
