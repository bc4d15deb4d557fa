"""What a verdict says: its kind, its evidence, its words, its condition and its counterexample, case by case."""

from __future__ import annotations

import pytest

from qkv.errors import OptionError, OptionTypeError
from qkv.maths.comparison import verdict as verdicts
from qkv.maths.comparison.verdict import Verdict, compare, equal
from qkv.maths.parsing.parse import parse

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
    (r"x = y \le y + 1", r"x \le y \le y + 1", "equal", "proved", ALGEBRA),
    (r"\sqrt{x^2} \le y", r"|x| \le y", "equal", "proved", ALGEBRA),
    (r"x \le y", r"x \ge y", "different", "refuted", "not the same: x = 2, y = 1: 2 against 1"),
    (r"x \le y", r"x \le y + 1", "different", "refuted", "not the same: y = 2: 2 against 3"),
    (r"x \le y", r"x + 1 \le y", "different", "refuted", "not the same: x = 2: 2 against 3"),
    (r"x \le y", "x", "different", "refuted", "an inequality is asked, not a value"),
    (r"x \le y", "x = y", "different", "refuted", "an inequality is asked, not a value"),
    ("x", r"x \le y", "different", "refuted", "an inequality is no value; a value is asked"),
    ("x = y", r"x < y", "different", "refuted", "an inequality is no value; a value is asked"),
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
        "equal",
        "proved",
        f"{ALGEBRA} (only the end of the chain is judged: it is not equal to 2y before it)",
    ),
    ("y + 1", r"2 y \approx y + 1", "equal", "proved", ALGEBRA),
    ("y + 1", "u = y + 1", "equal", "proved", ALGEBRA),
    ("y + 1", r"\pm y = y + 1", "equal", "proved", ALGEBRA),
    ("x", "x +", "unreadable", None, "this stops before it is complete"),
    ("x +", "x", "unreadable", None, "the gold itself is refused: this stops before it is complete"),
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
    ("O(n)", "n", "equal", "proved", "it grows at the rate that is asked"),
    ("n", "O(n)", "different", "refuted", "a value is asked, and the answer only says how fast it grows"),
]


def test_not_equal_reads_the_same_from_both_ends() -> None:
    assert compare(r"x \ne y", r"y \ne x", S).reason == ALGEBRA
    assert compare(r"x \ne y + 1", r"1 + y \neq x", S)
    assert compare(r"x \ne y", r"y \ne c", S).reason == "not the same: x = 2, y = 1: 2 against 1"


@pytest.mark.parametrize("wanted", ["<", "<=", ">", ">=", "!="])
@pytest.mark.parametrize("given", ["<", "<=", ">", ">=", "!="])
def test_another_relation_is_named_as_the_answer_wrote_it(wanted, given) -> None:
    turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    if given not in (wanted, turned.get(wanted)):
        for answer in (f"x {given} y", f"y {given} x"):
            assert compare(f"x {wanted} y", answer, S).reason == f"{wanted} is asked, not {given}"


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
    node = verdicts.with_rounding(text, parse("2.50", S))
    assert node.rounded is rounded  # pyright: ignore


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
