"""What a sum binds, its ranges and its conditions."""

import math

import pytest

from qkv.errors import IllTyped, Unreadable
from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import Sum, free_indices, walk
from qkv.maths.values.evaluate import evaluate

S = {"A": "matrix[n,n]", "s": "vector[n]", "k": "random vector[d] ~ N(0, 1)", "n": "natural"}


@pytest.mark.parametrize(
    ("text", "bound", "declared"),
    [
        (r"\sum_{i \ne j} A_{ij}", "ij", ""),
        (r"\sum_{j \ne i} A_{ij}", "ij", ""),
        (r"\sum_{i < j} A_{ij}", "ij", ""),
        (r"\sum_{j < i} A_{ij}", "ij", ""),
        (r"\sum_{j < i} A_{ij}", "j", "i"),
        (r"\sum_{j < i} s_j", "j", ""),
        (r"\sum_{j \ne i} s_j", "j", ""),
        (r"\sum_{i \ne j} A_{ij}", "i", "j"),
        (r"\sum_{j \ne i} A_{ij}", "i", "j"),
        (r"\sum_{i < j} A_{ij}", "j", "i"),
        (r"\sum_{i \ne j} A_{ij}", "i", "ij"),
        (r"\sum_{1 \le i < j \le n} A_{ij}", "ij", ""),
        (r"\sum_{1 \le i < j \le n} A_{ij}", "ij", "i"),
        (r"\sum_{1 \le i < j \le n} A_{ij}", "ij", "ij"),
        (r"\sum_{i} s_i", "i", "i"),
        (r"\sum_{k \ne l} s_k s_l", "kl", ""),
        (r"\sum_{1 \le i \le n, j < i} A_{ij}", "i", "j"),
    ],
)
def test_what_a_sum_binds(text, bound, declared) -> None:
    total = parse(text, {**S, **dict.fromkeys(declared, "index[n]")})
    assert isinstance(total, Sum)
    assert sorted(index.name for index in total.indices) == list(bound)


def test_what_is_used_outside_a_sum_is_given_to_it() -> None:
    for text in (r"s_i \sum_{j \ne i} A_{ij}", r"s_i \sum_{i \ne j} A_{ij}", r"s_i = \sum_{i \ne j} A_{ij}"):
        sums = [part for part in walk(parse(text, S)) if isinstance(part, Sum)]
        assert [[index.name for index in part.indices] for part in sums] == [["j"]], text
    inner = parse(r"\sum_i \sum_{i < j} A_{ij}", S).body  # pyright: ignore
    assert [index.name for index in inner.indices] == ["j"]
    anew = parse(r"\sum_{i \ne j} s_i s_j \sum_{i \ne j} A_{ij}", S).body.factors[-1]  # pyright: ignore
    assert [index.name for index in anew.indices] == ["i'", "j'"]


@pytest.mark.parametrize(
    ("inner", "total"),
    [
        (r"\sum_{j=1,j\ne i}^n c", "n(n-1)c"),
        (r"\sum_{j=1, j \neq i}^n c", "n(n-1)c"),
        (r"\sum_{j=1, i \ne j}^n c", "n(n-1)c"),
        (r"\sum_{j \ne i, j=1}^n c", "n(n-1)c"),
        (r"\sum_{j, j \ne i}^n c", "n(n-1)c"),
        (r"\sum_{1 \le j \le n, j \ne i} c", "n(n-1)c"),
        (r"\sum_{j=1, j<i}^n c", "n(n-1)c/2"),
        (r"\sum_{j=1, i>j}^n c", "n(n-1)c/2"),
        (r"\sum_{j=1, j \le i}^n c", "n(n+1)c/2"),
        (r"\sum_{j=1, j \ne i}^n \sum_{k=1, k \ne i, k \ne j}^n c", "n(n-1)(n-2)c"),
        (r"\sum_{j=1, j \ne i}^n s_i", r"(n-1)\sum_i s_i"),
        (r"\sum_{j \ne i} s_i", r"(n-1)\sum_i s_i"),
        (r"\sum_{i \ne j} s_i", r"(n-1)\sum_i s_i"),
    ],
)
def test_a_condition_after_a_range_does_not_bind_again_what_is_bound_further_out(inner, total) -> None:
    symbols = {**S, "c": "scalar", "k": "index[n]"}
    for declared in ("", "i", "j", "ij"):
        verdict = compare(total, rf"\sum_{{i=1}}^n {inner}", {**symbols, **dict.fromkeys(declared, "index[n]")})
        assert verdict.kind == "equal", (declared, str(verdict))


def test_the_range_of_an_outer_sum_without_one_follows_from_what_it_is_compared_with() -> None:
    assert compare("n(n-1)c/2", r"\sum_{i}\sum_{j=1, j<i}^n c", {"n": "natural", "c": "scalar"}).kind == "equal"


def test_two_indices_from_outside_are_compared() -> None:
    total = parse(r"\sum_{i=1}^n \sum_{j=1}^n \sum_{l=1, i \le j}^n A_{ij}", S)
    assert evaluate(total, {"n": 2}, {"A": ((1, 2), (3, 4))}) == 2 * (1 + 2 + 4)


@pytest.mark.parametrize("sign", ["<", r"\ne", ">", r"\le"])
def test_what_is_told_to_be_free_is_not_bound(sign) -> None:
    for text in (rf"\sum_{{i {sign} j}} A_{{ij}}", rf"\sum_{{j {sign} i}} A_{{ij}}"):
        assert set(free_indices(parse(text, S))) == set(), text
        assert set(free_indices(parse(text, S, free=["i"]))) == {"i"}, text


def test_an_answer_is_free_in_what_the_gold_is_free_in() -> None:
    assert compare(r"\sum_{j=1}^{n} A_{ij} - A_{ii}", r"\sum_{j \ne i} A_{ij}", S).kind == "equal"
    assert compare(r"e^{s_i}/\sum_j e^{s_j}", r"e^{s_i}/\sum_i e^{s_i}", S).kind == "equal"


@pytest.mark.parametrize(
    "text", [r"\sum_i s_i + s_i", r"s_i \prod_i s_i", r"i \sum_i s_i", r"\max_i s_i + s_i", r"1 = \sum_i s_i + s_i"]
)
def test_an_index_is_bound_by_its_sum_only(text) -> None:
    with pytest.raises(IllTyped, match=r"i is bound by the (sum|product|max) only"):
        parse(text, S)
    assert parse(text, {**S, "i": "index[n]"}).shape == ()
    assert parse(r"\sum_i s_i + \sum_i s_i = s_i", S).shape == ()


def test_what_is_bound_hides_what_is_declared() -> None:
    with_i = {**S, "i": "index[n]"}
    product = parse(r"s_i \sum_i s_i", with_i)
    assert product == parse(r"s_i \left(\sum_{i=1}^{n} s_i\right)", with_i)
    assert parse(r"\sum_i s_i", with_i) == parse(r"\sum_i s_i", S)


@pytest.mark.parametrize("start", [0, 2, 3, 6])
def test_sums_that_start_elsewhere_come_to_the_same(start) -> None:
    found = evaluate(parse(rf"\sum_{{i={start}}}^{{n}} (i^2 + 1)", S), {"n": 7}, {})
    assert found == sum(i * i + 1 for i in range(start, 8))


def test_a_range_from_0_may_end_one_before() -> None:
    for less in (1, 2):
        found = evaluate(parse(rf"\sum_{{i=0}}^{{n-{less}}} 3^i", S), {"n": 7}, {})
        assert found == sum(3**i for i in range(8 - less))


def test_components_counted_from_elsewhere() -> None:
    values = {"s": (2, 3, 5, 7, 11)}
    for text, found in [
        (r"\sum_{i=2}^{n} s_i", 26),
        (r"\sum_{i=1}^{n-1} s_{i+1}", 26),
        (r"\sum_{i=1}^{n} s_i s_{n-i+1}", 2 * 22 + 2 * 21 + 25),
        (r"s_{n-1}", 7),
    ]:
        assert evaluate(parse(text, S), {"n": 5}, values) == found, text


def test_what_is_no_index_elsewhere_is_none_below_a_sum() -> None:
    with pytest.raises(Unreadable, match="ξ is not declared"):
        parse(r"\sum_{j \le \xi} s_j", S)
    assert free_indices(parse(r"\sum_{j \le l} s_j", S)).keys() == {"l"}


W = {**S, "x": "scalar", "u": "vector[d]", "w": "vector[3]", "i": "index[n]", "m": "natural"}


@pytest.mark.parametrize(
    ("text", "reason", "place", "kind"),
    [
        (r"1 + \sum_i_j s_i", "a sum has one lower and one upper end", r"\sum_i_j s_i", Unreadable),
        (r"1 + \sum^n^n s", "a sum has one lower and one upper end", r"\sum^n^n s", Unreadable),
        (r"1 + \sum_{2} u", "below a sum there must be an index", "2", Unreadable),
        (r"1 + \sum_2 u", "below a sum there must be an index", "2", Unreadable),
        (r"1 + \sum_{2j} u", "below a sum there must be an index", "2j", Unreadable),
        (r"1 + \sum_{1 \le 2} x", "below a sum there must be an index", r"1 \le 2", Unreadable),
        (r"1 + \sum_{2=j} x", "below a sum there must be an index, as in i = 1", "2=j", Unreadable),
        (r"1 + \sum_{j \approx 1} x", "≈ below a sum is not read", r"j \approx 1", Unreadable),
        (r"1 + \sum_{j<j} x", "j is compared with itself", "j<j", Unreadable),
        (r"1 + \sum_{j \ne 2} x", "≠ below a sum must be between two indices", r"j \ne 2", Unreadable),
        (
            r"1 + \sum_{j < n} s_j",
            "the ends of a sum are written with ≤, as in 1 ≤ i ≤ n",
            "j < n",
            Unreadable,
        ),
        (r"1 + \sum_{j > 1} s_j", "the ends of a sum are written with ≤, as in 1 ≤ i ≤ n", "j > 1", Unreadable),
        (r"1 + \sum x", r"this sum does not say over what: write \sum_i", r"\sum x", Unreadable),
        (r"1 + \sum s_j u_l", r"this sum does not say over what: write \sum_i", r"\sum s_j u_l", Unreadable),
        (r"1 + \sum_{j=1}^{u} x", "a sum runs to a scalar", "u", IllTyped),
        (
            r"1 + \sum_{j=1}^{\log n} x",
            "a sum runs to a whole number, a size, an index t or t - 1",
            r"\log n",
            Unreadable,
        ),
        (r"1 + \prod_{j=1}^{3} u", "a product over an index is of scalars", r"\prod_{j=1}^{3} u", IllTyped),
        (
            r"1 + \sum_{j=0}^{n} s_j",
            "components are counted from 1: let j start there",
            r"\sum_{j=0}^{n} s_j",
            Unreadable,
        ),
        (
            r"1 + \sum_{j=7}^{n} x^j",
            "a sum runs from 1: let j start there, or give both its ends as numbers",
            r"\sum_{j=7}^{n} x^j",
            Unreadable,
        ),
        (
            r"1 + \sum_{j=-1}^{n} x^j",
            "a sum runs from 1: let j start there, or give both its ends as numbers",
            r"\sum_{j=-1}^{n} x^j",
            Unreadable,
        ),
        (
            r"1 + \sum_{j=3}^{i} A_{ij}",
            "a sum runs from 1: let j start there, or give both its ends as numbers",
            r"\sum_{j=3}^{i} A_{ij}",
            Unreadable,
        ),
        (
            r"1 + \sum_{j=x}^{n} s_j",
            "a sum runs from 1: let j start there, or give both its ends as numbers",
            r"\sum_{j=x}^{n} s_j",
            Unreadable,
        ),
        (
            r"1 + \sum_{j=2,l=1}^{n} A_{jl}",
            "a sum that does not start at 1 binds one index",
            r"\sum_{j=2,l=1}^{n} A_{jl}",
            Unreadable,
        ),
        (
            r"1 + \sum_{j=2,l=1}^{4} x",
            "a sum that does not start at 1 binds one index",
            r"\sum_{j=2,l=1}^{4} x",
            Unreadable,
        ),
        (
            r"1 + \sum_{j<l} s_j w_l",
            "j and l run to different ends and are compared",
            r"\sum_{j<l} s_j w_l",
            IllTyped,
        ),
        (r"1 + \sum_{j=1}^{4} w_j", "j runs to 4 but w has 3 components", "j", IllTyped),
        (r"s_j + \sum_j s_j", None, "j", IllTyped),
        (r"1 + \max_{i,j} A_{ij}", "max is read over one index that runs from 1", "_{i,j}", Unreadable),
        (r"1 + \max_{j=2} w_j", "max is read over one index that runs from 1", "_{j=2}", Unreadable),
    ],
)
def test_sums_that_are_refused(text, reason, place, kind) -> None:
    with pytest.raises(kind) as caught:
        parse(text, W)
    known = "j is bound by the sum only, and nothing declares it outside; put brackets round all that the sum is over"
    assert caught.value.reason == (reason or f"{known} if both are meant")
    assert text[slice(*caught.value.span)] == place


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (r"\sum_{j \ge 1} s_j", r"\sum_{j=1}^{n} s_j"),
        (r"\sum_{1 \le j} s_j", r"\sum_{j=1}^{n} s_j"),
        (r"\sum_{j \le n} s_j", r"\sum_{j=1}^{n} s_j"),
        (r"\sum_{n \ge j} s_j", r"\sum_{j=1}^{n} s_j"),
        (r"\sum_{n \ge j \ge 1} s_j", r"\sum_{j=1}^{n} s_j"),
        (r"\sum_{1 \le j \le n} s_j", r"\sum_{j=1}^{n} s_j"),
        (r"\sum_j s_j", r"\sum_{j=1}^{n} s_j"),
        (r"\sum s_j", r"\sum_{j=1}^{n} s_j"),
        (r"\sum^n s_j", r"\sum_{j=1}^{n} s_j"),
        (r"\sum_{j,l} A_{jl}", r"\sum_{jl} A_{jl}"),
        (r"\sum_{j=1,l=1}^{n} A_{jl}", r"\sum_{j,l} A_{jl}"),
        (r"\sum_{j > l} A_{jl}", r"\sum_{j, l, l < j} A_{jl}"),
        (r"\sum_{j=2}^{n} s_j", r"\sum_j s_j - s_1"),
        (r"\sum_{j=4}^{n} s_j", r"\sum_{j=1}^{n-3} s_{j+3}"),
        (r"\prod_{j=2}^{n} s_j", r"\prod_{j=1}^{n-1} s_{j+1}"),
        (r"\sum_{j=0}^{n} x^j", r"\sum_{j=1}^{n} x^j + x^0"),
        (r"\sum_{j=2}^{4} s_j", "s_2 + s_3 + s_4"),
        (r"\prod_{j=2}^{4} s_j", "s_2 s_3 s_4"),
        (r"\sum_{j=5}^{4} x", "0"),
        (r"\prod_{j=5}^{4} x", "1"),
        (r"\sum_{j=2}^{2} s_j", "s_2"),
        (r"\sum_{j=-1}^{1} x^j", "x^{-1} + x^0 + x^1"),
        (r"\sum_{j=1}^{i} s_j", r"\sum_{j \le i} s_j"),
        (r"\sum_{i \ge j} s_j", r"\sum_{j \le i} s_j"),
        (r"\sum_{j=2}^{i} s_j", r"\sum_{j=1}^{i} s_j - s_1"),
        (r"\sum_{j} s_j x", r"\sum_j (s_j x)"),
        (r"\sum_j s_j + x", r"(\sum_j s_j) + x"),
        (r"\sum_j -s_j", r"\sum_j (-s_j)"),
    ],
)
def test_ranges_that_are_one(text, same) -> None:
    assert parse(text, W) == parse(same, W)


VALUES = {"s": (2, 3, 5, 7), "A": ((1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12), (13, 14, 15, 16)), "i": 3, "x": 2}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("j < l", lambda j, k: j < k),
        ("j > l", lambda j, k: j > k),
        (r"j \le l", lambda j, k: j <= k),
        (r"j \ge l", lambda j, k: j >= k),
        (r"j \ne l", lambda j, k: j != k),
        (r"1 \le j < l \le n", lambda j, k: j < k),
        (r"1 \le j \le l \le n", lambda j, k: j <= k),
        (r"j \le l, j \ne l", lambda j, k: j < k),
        ("j, l", lambda j, k: True),
    ],
)
def test_pairs_that_are_kept(text, kept) -> None:
    found = evaluate(parse(rf"\sum_{{{text}}} A_{{jl}}", W), {"n": 4}, VALUES)
    pairs = [(j, k) for j in range(1, 5) for k in range(1, 5) if kept(j, k)]
    assert found == sum(VALUES["A"][j - 1][k - 1] for j, k in pairs)
    product = evaluate(parse(rf"\prod_{{{text}}} A_{{jl}}", W), {"n": 4}, VALUES)
    assert product == math.prod(VALUES["A"][j - 1][k - 1] for j, k in pairs)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\sum_{j \le i} s_j", 10),
        (r"\sum_{j < i} s_j", 5),
        (r"\sum_{j > i} s_j", 7),
        (r"\sum_{j \ne i} s_j", 12),
        (r"\prod_{j \le i} s_j", 30),
        (r"\prod_{j < i} s_j", 6),
        (r"\sum_{j=2}^{i} s_j", 8),
        (r"\sum_{j=0}^{i} x^j", 15),
        (r"\sum_{j=0}^{n-1} x^j", 15),
        (r"\sum_{j=0}^{n-2} x^j", 7),
        (r"\sum_{j=0}^{n+1} x^j", 63),
        (r"\sum_{j=3}^{n} x^j", 24),
        (r"\sum_{j=2}^{n-1} x^j", 12),
        (r"\sum_{j=2}^{n-2} x^j", 4),
        (r"\sum_{j=2} s_j", 15),
        (r"\sum_{j \ge 3} s_j", 12),
        (r"\sum_{j=1}^{n} j \sum_{l=1}^{j} s_l", 2 * 1 + 5 * 2 + 10 * 3 + 17 * 4),
    ],
)
def test_sums_with_a_given_index(text, value) -> None:
    assert evaluate(parse(text, W), {"n": 4}, VALUES) == value


def test_how_many_terms_are_written_out() -> None:
    assert len(parse(r"\sum_{j=2}^{201} x", W).terms) == 200  # pyright: ignore
    with pytest.raises(Unreadable, match="at most 200 terms"):
        parse(r"\sum_{j=2}^{202} x", W)


@pytest.mark.parametrize("end", ["2.5", "5/2", "-3", "2 - 3", "-n"])
def test_a_sum_that_ends_at_no_whole_number_from_one_is_refused(end) -> None:
    for text in (rf"\sum_{{j=1}}^{{{end}}} x", rf"\sum_{{1 \le j \le {end}}} x", rf"\prod_{{j=1}}^{{{end}}} x"):
        with pytest.raises(Unreadable, match="runs to a whole number from 1, a size or an index, and not to") as caught:
            parse(text, W)
        assert text[slice(*caught.value.span)] == end


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"\sum_{j=2}^{-3} x", "this sum runs backwards, from 2 to -3: exchange its ends"),
        (r"\prod_{j=6}^{4/2} x", "this product runs backwards, from 6 to 2: exchange its ends"),
        (r"\sum_{j=0}^{2.5} x", "from 1 a sum runs to a whole number from 1, a size or an index, and not to 2.5"),
        (r"\max_{j \le 0} s_j", "from 1 a sum runs to a whole number from 1, a size or an index, and not to 0"),
        (r"\sum_{j,l=1}^{0} x", "from 1 a sum runs to a whole number from 1, a size or an index, and not to 0"),
    ],
)
def test_sums_that_run_backwards_or_nowhere_are_refused(text, said) -> None:
    with pytest.raises(IllTyped if "backwards" in said else Unreadable) as caught:
        parse(text, W)
    assert caught.value.reason == said


def test_a_sum_that_ends_one_before_its_beginning_is_empty() -> None:
    for low, high in ((1, 0), (2, 1), (0, -1)):
        assert parse(rf"\sum_{{j={low}}}^{{{high}}} x", W) == parse("0", W)
        assert parse(rf"\prod_{{j={low}}}^{{{high}}} x", W) == parse("1", W)


C = {**W, "t": "index[n]", "V": "matrix[n,d]", "b": "vector[n]"}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (r"\sum_{j=1}^{t-1} s_j", r"\sum_{j < t} s_j"),
        (r"\sum_{1 \le j \le t-1} s_j", r"\sum_{j < t} s_j"),
        (r"\sum_{j=1}^{-1+t} s_j", r"\sum_{j < t} s_j"),
        (r"\sum_{j=1}^{t} V_j", r"\sum_{j \le t} V_j"),
        (r"\sum_{j=1}^{t+1-1} s_j", r"\sum_{j \le t} s_j"),
        (r"\sum_{j=i}^{n} s_j", r"\sum_{j \ge i} s_j"),
        (r"\sum_{i \le j \le n} s_j", r"\sum_{j \ge i} s_j"),
        (r"\sum_{j=i+1}^{n} s_j", r"\sum_{j > i} s_j"),
        (r"\sum_{i+1 \le j \le n} s_j", r"\sum_{j > i} s_j"),
        (r"\sum_{j \ge i+1} s_j", r"\sum_{j > i} s_j"),
        (r"\sum_{j=i+1}^{t-1} s_j", r"\sum_{i < j < t} s_j"),
        (r"\sum_{j=i}^{t} s_j", r"\sum_{1 \le j \le n, i \le j, j \le t} s_j"),
        (r"\prod_{j=1}^{t-1} s_j", r"\prod_{j < t} s_j"),
        (r"\prod_{j=i+1}^{t} s_j", r"\prod_{1 \le j \le n, i < j, j \le t} s_j"),
        (r"\sum_{j=1}^{n} \sum_{l=j+1}^{n} A_{jl}", r"\sum_{j=1}^{n} \sum_{l > j} A_{jl}"),
        (r"\sum_{j=1}^{n} \sum_{l=1}^{j-1} A_{jl}", r"\sum_{j=1}^{n} \sum_{l < j} A_{jl}"),
    ],
)
def test_ends_that_are_indices_are_comparisons(text, same) -> None:
    assert parse(text, C) == parse(same, C)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\sum_{j=1}^{t-1} s_j", [0, 2, 5, 10]),
        (r"\sum_{j=1}^{t} s_j", [2, 5, 10, 17]),
        (r"\sum_{j=0}^{t-1} x^j", [1, 3, 7, 15]),
        (r"\sum_{j=t}^{n} s_j", [17, 15, 12, 7]),
        (r"\sum_{j=t+1}^{n} s_j", [15, 12, 7, 0]),
        (r"\sum_{j=2}^{t} s_j", [0, 3, 8, 15]),
        (r"\sum_{j=i}^{t} s_j", [0, 0, 5, 12]),
        (r"\sum_{j=t}^{i} s_j", [10, 8, 5, 0]),
        (r"\sum_{j=t+1}^{i} s_j", [8, 5, 0, 0]),
        (r"\prod_{j=1}^{t-1} s_j", [1, 2, 6, 30]),
        (r"\prod_{j=t}^{n} s_j", [210, 105, 35, 7]),
        (r"\prod_{j=t+1}^{i} s_j", [15, 5, 1, 1]),
        (r"\sum_{j=1}^{t} \prod_{l=j+1}^{t} s_l", [1, 4, 21, 148]),
        (r"\sum_{j=0}^{n-1} \sum_{l=j+1}^{n} 1", [10, 10, 10, 10]),
        (r"\sum_{j=1}^{n-1} \sum_{l=j+1}^{n} 1", [6, 6, 6, 6]),
        (r"\sum_{j=1}^{n-1} \sum_{l=j}^{n} 1", [9, 9, 9, 9]),
        (r"\sum_{j=1}^{n+1} \sum_{l=j}^{n} 1", [10, 10, 10, 10]),
        (r"\sum_{j=2}^{n} \sum_{l=1}^{j-1} s_l", [17, 17, 17, 17]),
        (r"\sum_{j=1}^{n} \sum_{j=1}^{n} \sum_{l=1}^{j} s_l", [136, 136, 136, 136]),
    ],
)
def test_values_of_sums_that_end_at_an_index(text, value) -> None:
    total = parse(text, C)
    assert [evaluate(total, {"n": 4}, {**VALUES, "t": t}) for t in range(1, 5)] == value


@pytest.mark.parametrize(
    "text",
    [
        r"\sum_{j=1}^{t-2} s_j",
        r"\sum_{j=1}^{t+1} s_j",
        r"\sum_{j=2}^{t-1} s_j",
        r"\sum_{j=i-1}^{n} s_j",
        r"\sum_{j=i+2}^{n} s_j",
        r"\sum_{j=i-m+1}^{i} s_j",
        r"\sum_{j=\max(1, i-m+1)}^{i} s_j",
        r"\sum_{j=1}^{\min(i, m)} s_j",
        r"\sum_{j=1}^{n-t} s_j",
        r"\sum_{j=1}^{2t} s_j",
        r"\sum_{j=i} s_j",
        r"\sum_{j=n}^{i} s_j",
        r"\sum_{i=1}^{i} s_i",
        r"\sum_{i=i}^{n} s_i",
        r"\sum_{l=1}^{n} \sum_{l=1}^{l-1} s_l",
        r"\max_{1 \le j \le t} s_j",
        r"\max_{1 \le j \le t-1} s_j",
        r"\prod_{j=0}^{t-1} x^j",
        r"\sum_{l=1}^{n-1} s_l",
    ],
)
def test_ends_that_are_not_read_are_unreadable(text) -> None:
    with pytest.raises(Unreadable):
        parse(text, C)


@pytest.mark.parametrize(
    ("gold", "answer", "kind"),
    [
        (r"\sum_{j \le i} s_j", r"\sum_{j=1}^{i} s_j", "equal"),
        (r"\sum_{j \le i} s_j", r"\sum_{j=1}^{i-1} s_j", "different"),
        (r"\sum_{j=1}^{t} V_j - V_t", r"\sum_{j=1}^{t-1} V_j", "equal"),
        (r"\sum_{l=1}^{n} \sum_{j=l}^{n} s_l b_j", r"\sum_{j=1}^{n} \sum_{l=1}^{j} s_l b_j", "equal"),
        (r"\sum_{l=1}^{n} \sum_{j=l+1}^{n} s_l b_j", r"\sum_{j=1}^{n} \sum_{l=1}^{j} s_l b_j", "different"),
        (r"\sum_{j=i}^{t} s_j", r"\sum_{i \le j \le t} s_j", "equal"),
        (r"\sum_{j=1}^{t} s_j - \sum_{j=1}^{i} s_j", r"\sum_{j=i+1}^{t} s_j", "different"),  # t < i
        (r"\prod_{j=1}^{t} s_j", r"s_t \prod_{j=1}^{t-1} s_j", "equal"),
        (r"\prod_{j=1}^{t} s_j", r"\prod_{j=1}^{t-1} s_j", "different"),
        (r"\frac{n(n-1)}{2} x", r"\sum_{j=1}^{n-1} \sum_{l=j+1}^{n} x", "equal"),
        (r"\frac{n(n+1)}{2} x", r"\sum_{j=1}^{n-1} \sum_{l=j+1}^{n} x", "different"),
    ],
)
def test_sums_that_end_at_an_index_are_compared(gold, answer, kind) -> None:
    assert compare(gold, answer, C).kind == kind
