"""Counts with their units, and rates in any of their writings."""

from __future__ import annotations

import pytest

from qkv.problems.judging.counts import Count, rate

MEBI = Count(2**20, "bytes")
SIX = Count(6, "keys")


@pytest.mark.parametrize("answer", [
    "1048576", "1,048,576 bytes", "1 MiB", "2^20", r"2 \cdot 8 \cdot 65536", "2*8*65536 = 1048576 bytes",
    "1{,}048{,}576", "The answer is 1048576 bytes.", "1.048576 MB", "1024 KiB", "1048576 B", r"\boxed{1048576}",
])  # fmt: skip
def test_bytes(answer: str) -> None:
    assert MEBI.check(answer).kind == "right"


@pytest.mark.parametrize(("answer", "kind"), [
    ("6", "right"), ("4 + 2 = 6", "right"), ("6 keys", "right"), ("It sees 6 keys.", "right"), ("$6$", "right"),
    ("2", "wrong"), ("60", "wrong"), ("many", "unread"), ("", "unread"), ("6" * 30_000, "unread"), ("= = =", "unread"),
])  # fmt: skip
def test_numbers(answer: str, kind: str) -> None:
    assert SIX.check(answer).kind == kind


def test_units_are_not_confused() -> None:
    assert MEBI.check("1 MB").kind == "wrong"
    assert MEBI.check("1 KiB").kind == "wrong"
    assert MEBI.same("524288", "512 KiB")
    assert not MEBI.same("524288", "1 MiB")


@pytest.mark.parametrize(("answer", "kind"), [
    ("O(bd^2 + bnd)", "right"), (r"\Theta(bd(n + d))", "right"), ("2bd^2 + 7bnd", "right"), ("O(bnd)", "wrong"),
    (r"\Theta(bd^2)", "wrong"),
    ("It is O(bd^2 + bnd), as before.", "right"),
    ("projections O(bd^2), attention O(bnd), in total O(bd^2 + bnd)", "right"),
    ("so the total is O(bnd)", "wrong"), (r"$\mathcal{O}(b d^2 + b n d)$", "right"), ("fast", "unread"),
])  # fmt: skip
def test_rates(answer: str, kind: str) -> None:
    assert rate("b d^2 + b n d", dict.fromkeys("bdn", "natural")).check(answer).kind == kind
