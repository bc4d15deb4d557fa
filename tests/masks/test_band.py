from itertools import product
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.masks import Band, Causal, Extent, Padding, Window

some = settings(max_examples=200, deadline=None, derandomize=True, database=None)
limits = st.none() | st.integers(-9, 9)
bands = st.builds(
    Band,
    lower=limits,
    upper=limits,
    starts=st.none() | st.tuples(st.integers(0, 8), st.integers(0, 8)),
    stops=st.none() | st.tuples(st.integers(0, 8), st.integers(0, 8)),
)
sizes = st.integers(0, 7)


def keys_of(band, b, i, len_k):
    start = band.starts[b] if band.starts else 0
    stop = band.stops[b] if band.stops else len_k
    return [
        j
        for j in range(len_k)
        if start <= j < stop
        and (band.lower is None or i + band.lower <= j)
        and (band.upper is None or j < i + band.upper)
    ]


@pytest.mark.slow
@some
@given(band=bands, len_k=sizes, i=sizes)
def test_intervals(band, len_k, i):
    for b in range(2):
        lo, hi = band.interval(b, i, len_k)
        assert 0 <= lo <= hi <= len_k
        assert list(range(lo, hi)) == keys_of(band, b, i, len_k)


@pytest.mark.slow
@some
@given(band=bands, len_k=sizes, i0=sizes, i1=sizes)
def test_unions_over_rows(band, len_k, i0, i1):
    for b in range(2):
        rows = [set(keys_of(band, b, i, len_k)) for i in range(i0, i1)]
        got = band.bounds_for_rows(b, i0, i1, len_k)
        assert 0 <= got[0] <= got[1] <= len_k
        assert set(range(*got)) == set().union(*rows)


@some
@given(one=bands, other=bands, len_k=sizes, i=sizes)
def test_intersect(one, other, len_k, i):
    both = one.intersect(other)
    for b in range(2):
        want = [j for j in keys_of(one, b, i, len_k) if j in keys_of(other, b, i, len_k)]
        assert keys_of(both, b, i, len_k) == want


@some
@given(band=bands, len_q=sizes, len_k=sizes)
def test_population_and_simplified(band, len_q, len_k):
    want = sum(len(keys_of(band, b, i, len_k)) for b, i in product(range(2), range(len_q)))
    assert band.population(len_q, len_k, batch=2) == want
    simple = band.simplified(len_q, len_k)
    assert simple.population(len_q, len_k, batch=2) == want
    if simple.is_trivial:
        assert want == 2 * len_q * len_k


@some
@given(band=bands, rows=st.tuples(sizes, sizes), keys=st.tuples(sizes, sizes))
def test_count_in_a_rectangle(band, rows, keys):
    for b in range(2):
        want = sum(j >= keys[0] for i in range(*rows) for j in keys_of(band, b, i, keys[1]))
        assert band.count(b, rows, keys) == want


def test_rows_of_different_batches_do_not_meet():
    with pytest.raises(ValueError):
        Band(stops=(1, 2)).intersect(Band(stops=(1, 2, 3)))


def test_the_closed_form_is_instant_at_any_size():
    n = 10**15
    begun = perf_counter()
    assert Causal().population(len_q=n, len_k=n) == n * (n + 1) // 2
    w = 10**9
    window = Causal() & Window(left=w - 1)
    assert window.population(heads=3, len_q=n, len_k=n) == 3 * (w * n - w * (w - 1) // 2)
    ragged = Causal() & Padding(lengths=[n, n // 2])
    assert ragged.population(batch=2, len_q=n, len_k=n) == n * (n + 1) // 2 + n // 2 * (n // 2 + 1) // 2 + (n // 2) ** 2
    sinks = Causal() & (Window(left=w - 1) | Padding(lengths=[4]))
    assert sinks.population(len_q=n, len_k=n) == w * n - w * (w - 1) // 2 + sum(n - w - j for j in range(4))
    assert "of 1000000000000000000000000000000 cells" in sinks.draw(n, n)
    assert perf_counter() - begun < 2


def test_limits_that_the_lengths_never_reach_are_dropped():
    extent = Extent(2, 3, 5, 7)
    assert Causal(offset=6).band(extent).is_trivial  # one query at the end of its cache
    assert Window(left=100, right=100, offset=2).band(extent).is_trivial
    assert Padding(lengths=[7, 7]).band(extent).is_trivial
    assert Causal(offset=2).band(extent) == Band(upper=3)
    assert (Causal(offset=2) & Window(left=1)).band(extent) == Band(lower=1, upper=3)
