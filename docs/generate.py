"""Write the formulas of the code into the pages: `make docs`. tests/test_docs.py checks that they agree."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import qkv
from qkv.cost import Ledger, count, layer, layer_listing, step, step_listing
from qkv.cost.communication import SPLITS
from qkv.cost.formulas import wire_formula
from qkv.cost.ledger import table_rows

HEADS = [("h", "d")]  # h is at most d


def _backends() -> str:
    """One row for each backend: flops of products as a formula, and the classes of flops, bytes and space."""
    power = qkv.Polynomial(2)
    shapes = "b h n d", "b h n d", "b h n m"
    calls = [
        ("softmax, `reference`", count(*shapes, backend="reference")),
        ("softmax, `sdpa` or `blockwise`", count(*shapes)),
        ("softmax, `sdpa` or `blockwise`, `Causal()`", count(*shapes, mask=qkv.Causal())),
        ("argmax, `argmax`", count(*shapes, similarity=qkv.Argmax())),
        ("(q·k + 1)², `blockwise`", count(*shapes, similarity=power, backend="blockwise")),
        ("(q·k + 1)², `linear`", count(*shapes, similarity=power, backend="linear")),
    ]
    lines = ["| call | flops of products | all flops | bytes moved | space |", "| --- | --- | --- | --- | --- |"]
    for name, ledger in calls:
        products = qkv.cost.text(ledger.products)
        classes = [f"{ledger.theta(quantity)}" for quantity in ("flops", "traffic", "space")]
        lines.append(f"| {name} | {products} | {' | '.join(classes)} |")
    return "\n".join(lines)


def _splits() -> str:
    """One row for each split and kind of mask: what the busiest rank sends in a forward pass."""
    lines = ["| split | mask | bytes that the busiest rank sends | messages |", "| --- | --- | --- | --- |"]
    for split in SPLITS:
        for kind in ("full", "causal", "window"):
            formula = wire_formula(split, kind)
            if split != "scan" or kind != "window":
                lines.append(f"| `{split}` | {kind} | {formula.sent} | {formula.messages} |")
    return "\n".join(lines)


def _ledger(ledger: Ledger, at_most: list[tuple[str, str]] | None = None) -> str:
    """The table of a ledger, and the classes of its totals as a list, which keeps the lines of the page short."""
    lines = ["| line | flops | bytes read | bytes written |", "| --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in table_rows(ledger)]
    classes = []
    for name, quantity in (("flops", "flops"), ("bytes", "traffic"), ("space", "space")):
        classes.append(f"- {name} {ledger.theta(quantity, at_most or [])}")
    return "\n".join([*lines, "", *classes])


PARTS: dict[str, Callable[[], str]] = {
    "backends": _backends,
    "splits": _splits,
    "layer": lambda: _ledger(layer("b", "n_t", "n_s", "d", "h"), HEADS),
    "layer, line by line": lambda: _ledger(layer_listing("b", "n_t", "n_s", "h", "d_h")),
    "step, multi-head": lambda: _ledger(step("b", "n", "d", "h", "h"), HEADS),
    "step, multi-query": lambda: _ledger(step("b", "n", "d", "h", 1), HEADS),
    "step, multi-query, line by line": lambda: _ledger(step_listing("b", "n", "d", "h", 1), HEADS),
}
_PART = re.compile(r"(<!-- from the code: (.+?) -->\n)(?:(?!<!-- end -->).)*(<!-- end -->)", re.DOTALL)


def updated(page: str) -> str:
    """The text of a page with the formulas of the code."""
    return _PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}", page)


def main() -> None:
    for page in sorted(Path(__file__).parent.glob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = updated(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"wrote {page.name}")


if __name__ == "__main__":
    main()
