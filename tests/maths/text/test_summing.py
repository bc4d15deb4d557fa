"""What a sum binds, and what is given to it from outside."""

import pytest

from qkv.errors import IllTyped
from qkv.maths.reading import parse
from qkv.maths.substitution import free_indices, walk
from qkv.maths.tree import Sum
from qkv.maths.values.exact import evaluate
from qkv.maths.verdict import compare

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
    assert [index.name for index in anew.indices] == ["i", "j"]


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
    with pytest.raises(IllTyped, match="ξ is not declared"):
        parse(r"\sum_{j \le \xi} s_j", S)
    assert free_indices(parse(r"\sum_{j \le l} s_j", S)).keys() == {"l"}
