"""Readings that differ, numbers, units, intervals, sets, shapes, several statements, and what used to be misread."""

from contextlib import suppress
from fractions import Fraction

import pytest

from qkv.errors import IllTyped, MathsError, OptionError, Unreadable
from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse, readings
from qkv.maths.printing import latex, plain
from qkv.maths.tree import Collection, Divide, Interval, Multiply, Number, Power, Relation, Sum, Symbol, Type, Written
from qkv.maths.tree import walk as nodes_of
from qkv.maths.types import declare

S = {
    "n": "natural", "m": "natural", "d": "natural", "D": "natural", "a": "scalar", "b": "scalar", "c": "scalar",
    "q": "vector[d]", "s": "vector[n]", "Q": "matrix[n,d]", "K": "matrix[n,d]", "V": "matrix[n,m]",
    "phi": "map vector[d] -> vector[F]", "i": "index[n]", "j": "index[n]",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "standard", "other", "note"),
    [
        ("1/2d", r"\frac{1}{2} d", r"\frac{1}{2d}", "1/2d read as 1/(2d)"),
        ("‖q‖²/2√D", r"\frac{\|q\|^2}{2} \sqrt D", r"\frac{\|q\|^2}{2\sqrt D}", "‖q‖²/2√D read as ‖q‖²/(2√D)"),
        ("a/b c", r"\frac{a}{b} c", r"\frac{a}{bc}", "a/b c read as a/(b c)"),
        (r"1/2(a+b)", r"\frac12 (a+b)", r"\frac{1}{2(a+b)}", "1/2(a+b) read as 1/(2(a+b))"),
        ("e^{-a/2c}", r"e^{-\frac{a}{2} c}", r"e^{-\frac{a}{2c}}", "a/2c read as a/(2c)"),
        ("n × m", "n m", "(n, m)", "n × m read as a shape"),
        ("n x m", "n m", "(n, m)", "n x m read as a shape"),
        ("3 × 4", r"3 \cdot 4", "(3, 4)", "3 × 4 read as a shape"),
        ("2 KB", "2 kB", "2 KiB", "KB read as 1024 bytes"),
    ],
)
def test_a_second_reading_has_a_note(text, standard, other, note) -> None:
    first, second = readings(text, S)
    assert (first.note, second.note) == ("", note)
    assert first.node == parse(standard, S) == parse(text, S)
    # A space in the divisor settles the usual reading; a product may be a shape only next to another shape.
    settled = note.endswith("as a shape") or " " in "".join(text.split("/")[1:])
    assert compare(standard, text, S).kind == ("equal" if settled else "conditional")
    assert second.node == parse(other, S)


@pytest.mark.parametrize(
    "text",
    [
        "1/2 d",
        "1/(2d)",
        r"\frac12 d",
        r"1/2 \cdot d",
        "a/b/c",
        "2 n",
        "1.5 × 10^9",
        "n * m",
        "a × b",
        "2 × q",
        "16 GB / 2 GB",
    ],
)
def test_one_reading(text) -> None:
    assert [reading.note for reading in readings(text, S)] == [""]


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("1,024", 1024, None),
        ("12,345,678.5", Fraction("12345678.5"), Fraction(1, 10)),
        (r"\boxed{1,024}", 1024, None),
        ("(1,024)", 1024, None),
        ("4.5k", 4500, 100),
        ("128k", 128000, None),
        ("1.5e9", 1500000000, 10**8),
        ("1.5 × 10^9", 1500000000, 10**8),
        ("12.5%", Fraction(1, 8), Fraction(1, 1000)),
    ],
)
def test_numbers(text, value, unit) -> None:
    assert parse(text, {}) == Number((), Fraction(value), unit)


def test_mixed_numbers_and_what_only_looks_like_a_number() -> None:
    for text in ("2 1/2", r"2\frac{1}{2}", r"2\frac12", "2½"):
        assert parse(text, {}) == parse("5/2", {}), text
    assert parse(r"a^2 \frac{1}{2}", S) == parse(r"(a^2) \frac{1}{2}", S)
    assert parse(r"2\frac{3}{2}", {}) == parse(r"2 \cdot \frac{3}{2}", {})
    assert parse("(1,200)", {}).shape == parse("[1,200]", {}).shape == (2,)
    assert parse(r"\sum_{k=1}^{n} 2k", S) == parse(r"\sum_{k=1}^{n} 2 \cdot k", S)
    assert parse("2k", {"k": "scalar"}) == parse(r"2 \cdot k", {"k": "scalar"})
    assert parse("50%", {}) == parse("50/100", {})
    for text in ("1e3a", "2 3/2", "1,02,4", "2 1/2 1/2"):
        with pytest.raises(Unreadable):
            parse(text, S)


B, FLOP, TOKEN, SECOND = (Symbol((), f"unit {name}", Type("positive")) for name in ("B", "FLOP", "token", "s"))
EACH = Power((), SECOND, Number((), Fraction(-1)))


@pytest.mark.parametrize(
    ("text", "factors"),
    [
        ("512 MiB", (512, 2**20, B)),
        ("0.54 GB", (Number((), Fraction("0.54"), Fraction(1, 100)), 10**9, B)),
        ("536,870,912 B", (536870912, B)),
        ("3 bytes", (3, B)),
        ("8 bits", (8, Fraction(1, 8), B)),
        ("12 TFLOP/s", (12, 10**12, FLOP, EACH)),
        ("12 TFLOPS", (12, 10**12, FLOP, EACH)),
        (r"12\,\mathrm{TFLOP}/\mathrm{s}", (12, 10**12, FLOP, EACH)),
        ("100 tokens per second", (100, TOKEN, EACH)),
        (r"100 \text{ tok/s}", (100, TOKEN, EACH)),
        ("7/s", (7, EACH)),
        ("5 µs", (5, Fraction(1, 10**6), SECOND)),
        ("5 min", (5, 60, SECOND)),
        ("2 kB/token", (2, 1000, B, Power((), TOKEN, Number((), Fraction(-1))))),
        ("4 n d FLOPs", (4, Symbol((), "n", Type("natural")), Symbol((), "d", Type("natural")), FLOP)),
    ],
)
def test_a_unit_is_a_factor_and_base_units(text, factors) -> None:
    made = tuple(Number((), Fraction(one)) if isinstance(one, int | Fraction) else one for one in factors)
    node = parse(text, {"n": "natural", "d": "natural"})
    assert node == Multiply((), made)
    for printed in (plain(node), latex(node)):
        assert parse(printed, {"n": "natural", "d": "natural"}) == node, printed


def test_a_unit_is_never_a_declared_name_or_a_bound_one() -> None:
    for name in ("B", "s", "h", "ms", "GB"):
        assert parse(f"2 {name}", {name: "scalar"}) == parse(rf"2 \cdot {name}", {name: "scalar"})
    assert parse("2 ms", {"m": "scalar", "s": "scalar"}) == parse("2 m s", {"m": "scalar", "s": "scalar"})
    assert parse(r"\sum_{h=1}^{n} 2 h", S) == parse(r"\sum_{h=1}^{n} 2 \cdot h", S)
    for text, undeclared in (("2 B n", ("B",)), ("512 widgets", ("widgets",)), ("O(n) time", ("time",))):
        with pytest.raises(Unreadable) as caught:
            parse(text, S)
        assert caught.value.undeclared == undeclared
    assert compare("512 MiB", "0.5 GiB", {}).kind == "equal"
    assert compare("512 MiB", "512 MB", {}).kind == "different"
    assert compare("8 ms", "16 GB / 2 TB/s", {}).kind == "equal"
    assert compare("0.5 GB", "1/2 GB", {}).kind == "equal"


def test_every_undeclared_name_is_listed() -> None:
    for text, undeclared in (("N + d_k x", ("N", "d_k", "x")), ("zeta_1 n", ("zeta_1",)), (r"\sqrt{d_k}", ("d_k",))):
        with pytest.raises(Unreadable) as caught:
            parse(text, S)
        assert caught.value.undeclared == undeclared
    with pytest.raises(IllTyped):
        parse("a_i", S)


def test_intervals_and_sets() -> None:
    zero, one = Number((), Fraction(0)), Number((), Fraction(1))
    assert parse("[0,1)", {}) == Interval((), zero, one, (True, False))
    assert parse(r"\left(0, 1\right]", {}) == Interval((), zero, one, (False, True))
    assert isinstance(parse(r"\left(0,\infty\right)", {}), Interval)
    for text, brackets in (("(0,1)", "("), ("[0,1]", "[")):
        node = parse(text, {})
        assert isinstance(node, Written)
        assert (node.brackets, node.shape) == (brackets, (2,))
    assert parse("(0,1)", {}) == parse("[0,1]", {})
    for text in ("{0, 1}", r"\{0, 1\}"):
        assert parse(text, {}) == Collection((), (zero, one))
    inside = parse(r"a \in (0,1)", S)
    assert isinstance(inside, Relation)
    assert inside.signs == ("in",)
    assert inside.members[1] == Interval((), zero, one, (False, False))
    for text in ("Q ∈ R^{n×d}", r"Z \in \mathbb{R}^{n \times d}"):
        assert parse(text, S).members[1] == parse("(n, d)", S)  # pyright: ignore[reportAttributeAccessIssue]
    for text in ("2 [0,1)", r"1 + \{1, 2\}", r"a + b \in (0,1)", r"a \in b", "[0,1,2)"):
        with pytest.raises(Unreadable):
            parse(text, S)
    for text in ("[0, 1)", "{1, 2}", "a ∈ (0, 1)", "Q ∈ ℝ^{n×d}", "a = 1, b = 2"):
        assert plain(parse(text, S)) == text
        assert parse(latex(parse(text, S)), S) == parse(text, S)


@pytest.mark.parametrize(
    "text",
    [
        "a + b = 1, a - b = 3",
        "a + b = 1 and a - b = 3",
        "a + b = 1; a - b = 3",
        r"a + b = 1 \text{ and } a - b = 3",
        r"\begin{cases} a + b = 1 \\ a - b = 3 \end{cases}",
        r"\left\{\begin{aligned} a + b &= 1 \\ a - b &= 3 \end{aligned}\right.",
        r"\left\{\begin{array}{l} a + b = 1 \\ a - b = 3 \end{array}\right.",
        r"\{a + b = 1, a - b = 3\}",
    ],
)
def test_several_statements(text) -> None:
    assert parse(text, S) == Collection((), (parse("a + b = 1", S), parse("a - b = 3", S)))


def test_named_answers_keep_their_names_and_an_uncertain_split_is_refused() -> None:
    found = parse("d = 64, h = 8", {})
    assert isinstance(found, Collection)
    assert [part.members[0].name for part in found.parts] == ["d", "h"]  # pyright: ignore[reportAttributeAccessIssue]
    for text in (
        "a = 1, 2",
        "0 < a, b < 1",
        "a = 1 or a = 2",
        "n and d",
        "a = 1, b",
        r"\begin{cases} 1 \\ 2 \end{cases}",
    ):
        with pytest.raises(Unreadable):
            parse(text, S)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (r"\lfloor a \rfloor", "floor(a)"),
        ("⌈a⌉", "ceil(a)"),
        ("a // b", r"\lfloor \frac{a}{b} \rfloor"),
        ("2 n!", r"2 \cdot factorial(n)"),
        ("(n+1)!", "factorial(n+1)"),
        (r"\sin^2 a", "sin(a)^2"),
        ("sigmoid(a)", r"\frac{1}{1 + e^{-a}}"),
        ("tanh(a)", r"\frac{e^a - e^{-a}}{e^a + e^{-a}}"),
        ("tanh(q)_1", "tanh(q_1)"),
        ("sigmoid(q)_1", "sigmoid(q_1)"),
        ("logsumexp(s)", r"\log \sum_i e^{s_i}"),
        ("log_softmax(s)_i", r"s_i - \log \sum_j e^{s_j}"),
        ("mean(s)", r"\frac{1}{n} \sum_i s_i"),
        (r"\phi(Q)_i", r"\phi(Q_i)"),
        (r"(\phi(Q)\phi(K)^T V)_i", r"\sum_j \phi(Q_i)^T \phi(K_j) V_j"),
        (r"\sum_{i=1}^{n} s_i \sum_{i=1}^{n} s_i^2", r"(\sum_i s_i)(\sum_j s_j^2)"),
        (r"\sum_{i=0}^{n-1} i", r"\frac{n(n-1)}{2}"),
        (r"\sum_{i=2}^{n} s_i", r"\sum_i s_i - s_1"),
    ],
)  # fmt: skip
def test_functions_and_sums(text, same) -> None:
    assert compare(same, text, S).kind == "equal"


def test_faults_of_sums_and_sizes() -> None:
    free = {"s": "vector[n]"}
    unequal = parse(r"\sum_{k\ne i,j} s_k", free)
    assert isinstance(unequal, Sum)
    assert [index.name for index in unequal.indices] == ["k"]
    assert [(sign, a.name, b.name) for sign, a, b in unequal.conditions] == [("!=", "k", "i"), ("!=", "k", "j")]  # pyright: ignore
    sums = [part for part in nodes_of(parse(r"\sum_i s_i \sum_i s_i", free)) if isinstance(part, Sum)]
    assert [part.indices[0].name for part in sums] == ["i", "i'"]
    late = parse(r"\sum_{k=3}^{n} k", free)
    assert isinstance(late, Sum)
    assert late.indices[0].size == "n-2"
    for size in ("-n", "0", "1/2", "-3"):
        with pytest.raises(OptionError):
            declare({"v": f"vector[{size}]"})
    for text in (r"\sin^{-1} a", "n!!", "n!^2"):
        with pytest.raises(Unreadable):
            parse(text, S)
    assert isinstance(parse("16 GB / 2 GB", {}), Divide)


@pytest.mark.parametrize(
    "text", ["a" * 2000, "1/2d" * 500, "2 GB " * 400, "{1,2}" * 400, "d = 1, " * 285, "2 1/2 " * 333]
)
def test_long_texts_end_in_a_reading_or_a_refusal(text) -> None:
    with suppress(MathsError):
        readings(text, S)
