"""What the exercises ask for comes out of the lines, and both faces of a line are one definition."""

import random

import numpy as np
import pytest

from qkv.cost import layer, layer_listing, step, step_listing, symbols
from qkv.errors import QkvError

b, n, d, h, g, n_t, n_s, d_h = symbols("b n d h g n_t n_s d_h")
HEADS = [(h, d)]


def test_document_004_2c_the_layer() -> None:
    assert layer(1, n_t, n_s, d, h).theta(at_most=HEADS) == n_t * d**2 + n_s * d**2 + n_t * n_s * d


def test_document_004_2c_the_listing_has_the_batch_factor() -> None:
    listing = layer_listing(b, n_t, n_s, h, d_h)
    assert listing.theta() == b * (n_t * d_h**2 * h**2 + n_s * d_h**2 * h**2 + n_t * n_s * d_h * h).expand()
    by_line = {line.name.split(":")[0]: line for line in listing.lines}
    assert by_line["2"].flops == 2 * b * n_t * (h * d_h) ** 2
    assert listing.line("15: softmax").flops == 5 * b * h * n_t * n_s


def test_document_004_2d_the_bottleneck_moves() -> None:
    """Wide and short: the projections. Narrow and long: scores and weighted values."""

    def largest(tokens: int, width: int) -> set[str]:
        lines = sorted(layer_listing(1, tokens, tokens, 4, width).lines, key=lambda line: -line.flops)
        return {line.name.split(": ")[1] for line in lines[:2]}

    assert largest(8, 1024) <= {"query projection", "key projection", "value projection", "output projection"}
    assert largest(8192, 4) == {"scores", "weighted values"}


def test_document_003_4f_and_4g() -> None:
    for kv_heads in (h, 1):
        assert step(b, n, d, h, kv_heads).theta(at_most=HEADS) == b * d**2 + b * n * d
    # The document also writes b·d, which is never larger than b·n·d.
    assert step(b, n, d, h, h).theta("traffic", at_most=HEADS) == d**2 + b * n * d
    assert step(b, n, d, h, 1).theta("traffic", at_most=HEADS) == d**2 + b * d + b * n * d / h


def test_grouped_heads_stand_between() -> None:
    assert step(b, n, d, h, g).theta("traffic", at_most=[*HEADS, (g, h)]) == d**2 + b * d + b * n * d * g / h


def test_the_listing_also_moves_the_logits_and_copies_the_past() -> None:
    listed = step_listing(b, n, d, h, 1)
    assert listed.theta("traffic", at_most=HEADS) == d**2 + b * d + b * n * d / h + b * h * n
    copied = listed.line("new_K = cat(prev_K, k)")
    assert copied.read == copied.written == 4 * b * (n + 1) * d / h
    assert listed.theta(at_most=HEADS) == step(b, n, d, h, 1).theta(at_most=HEADS)


def test_the_ratio_of_memory_to_work_is_shazeers() -> None:
    """For batch b and n up to d: n/d + 1/b with many key heads, 1/d + n/(d·h) + 1/b with one, up to constants."""
    for kv_heads, ratio in ((64, lambda n, b: n / 4096 + 1 / b), (1, lambda n, b: 1 / 4096 + n / (4096 * 64) + 1 / b)):
        for past, batch in ((64, 1), (64, 256), (1024, 256), (4096, 256)):
            found = step(batch, past, 4096, 64, kv_heads, item=1)
            assert 0.1 < found.traffic / found.products / ratio(past, batch) < 2.0


def test_numbers_and_formulas_are_one_definition() -> None:
    made = random.Random(7)
    for _ in range(20):
        group, kv, width, batch, past, queries = (made.choice([1, 2, 3, 5, 7, 11, 13]) for _ in range(6))
        at = {b: batch, n: past, h: group * kv, g: kv, d: group * kv * width, n_t: queries, n_s: past, d_h: width}
        pairs = [
            (step(b, n, d, h, g), step(batch, past, at[d], at[h], kv)),
            (step_listing(b, n, d, h, g), step_listing(batch, past, at[d], at[h], kv)),
            (layer(b, n_t, n_s, d, h, g, training=True), layer(batch, queries, past, at[d], at[h], kv, training=True)),
            (layer_listing(b, n_t, n_s, h, d_h), layer_listing(batch, queries, past, at[h], width)),
        ]
        for formula, number in pairs:
            for quantity in ("flops", "products", "read", "written", "extra", "space"):
                value = getattr(number, quantity)
                assert isinstance(value, int)
                assert getattr(formula, quantity).subs(at) == value, (formula.name, quantity)


def test_training_has_two_products_more_for_each_projection() -> None:
    forward, trained = layer(2, 5, 5, 12, 3), layer(2, 5, 5, 12, 3, training=True)

    def projections(ledger) -> int:
        return sum(line.flops for line in ledger.lines if "projection" in line.name)

    assert projections(trained) == 3 * projections(forward)


def test_a_cache_in_fewer_bytes_is_read_in_fewer() -> None:
    whole, eighth = step(3, 1000, 64, 4, 2, item=4), step(3, 1000, 64, 4, 2, item=4, cache_item=1)
    held = 2 * 3 * 2 * 16
    assert whole.traffic - eighth.traffic == 3 * held * 1000 + 3 * held
    assert whole.flops == eighth.flops


@pytest.mark.parametrize("sizes", [(1, 5, 64, 3), (1, 5, 64, 8, 3), (1, 5, 64, 0)])
def test_heads_that_do_not_divide_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(QkvError, match="divides"):
        step(*sizes)


def test_integers_of_other_libraries_do_not_overflow() -> None:
    plain = layer(1000, 4096, 4096, 4096, 32).flops
    found = layer(np.int32(1000), np.int16(4096), 4096, np.int64(4096), 32).flops
    assert found == plain
    assert type(found) is int


def test_the_cache_is_part_of_the_space() -> None:
    assert step(b, n, d, h, h).theta("space", at_most=HEADS) == d**2 + b * n * d
