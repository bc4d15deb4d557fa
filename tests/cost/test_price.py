"""Costs order the backends; sizes are formatted with units."""

import pytest

from qkv.cost.price import Cost, product_flops, readable_bytes


def test_product_flops_are_a_multiplication_and_an_addition_each() -> None:
    assert product_flops(pairs=7 * 11, width=5) == 2 * 7 * 11 * 5


def test_seconds_grow_with_everything() -> None:
    base = Cost(10**9, 10**6, 0, 1e-5)
    for more in (Cost(2 * 10**9, 10**6, 0, 1e-5), Cost(10**9, 10**9, 0, 1e-5), Cost(10**9, 10**6, 0, 1.0)):
        assert more.seconds > base.seconds


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**40, "1.0 TiB"), (2**60, "1048576.0 TiB")]
)
def test_readable_bytes(count: int, text: str) -> None:
    assert readable_bytes(count) == text
