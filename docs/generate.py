"""Writes the formulas into the pages, from the code: `make docs`. A test holds the pages to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import qkv
from qkv.cost import count, layer, layer_listing, step, step_listing
from qkv.cost.communication import SPLITS
from qkv.cost.formulas import wire_formula
from qkv.cost.ledger import ledger_markdown

HEADS = [("h", "d")]


def _forms() -> str:
    """A row for each form: flops, bytes and space as formulas, and their classes."""
    power = qkv.Polynomial(2)
    shapes = "b h n d", "b h n d", "b h n m"
    asked = [
        ("softmax, `dense`", count(*shapes, form="dense")),
        ("softmax, `streaming`", count(*shapes)),
        ("the same, `Causal()`", count(*shapes, mask=qkv.Causal())),
        ("argmax, `hard`", count(*shapes, similarity=qkv.Argmax())),
        ("(q·k + 1)² by scores", count(*shapes, similarity=power, form="streaming")),
        ("(q·k + 1)², `linear`", count(*shapes, similarity=power, form="linear")),
    ]
    lines = ["| call | flops of products | all flops | bytes moved | space |", "| --- | --- | --- | --- | --- |"]
    for name, found in asked:
        products = qkv.cost.text(found.products)
        classes = [f"{found.theta(quantity)}" for quantity in ("flops", "traffic", "space")]
        lines.append(f"| {name} | {products} | {' | '.join(classes)} |")
    return "\n".join(lines)


def _splits() -> str:
    """A row for each split and kind of mask: what the busiest rank sends in a forward pass."""
    lines = ["| split | mask | bytes that the busiest rank sends | messages |", "| --- | --- | --- | --- |"]
    for split in SPLITS:
        for kind in ("full", "causal", "window"):
            found = wire_formula(split, kind)
            if split != "scan" or kind != "window":
                lines.append(f"| `{split}` | {kind} | {found.sent} | {found.messages} |")
    return "\n".join(lines)


PARTS: dict[str, Callable[[], str]] = {
    "forms": _forms,
    "splits": _splits,
    "layer": lambda: ledger_markdown(layer("b", "n_t", "n_s", "d", "h"), HEADS),
    "layer as listed": lambda: ledger_markdown(layer_listing("b", "n_t", "n_s", "h", "d_h")),
    "step, many heads": lambda: ledger_markdown(step("b", "n", "d", "h", "h"), HEADS),
    "step, one head of keys": lambda: ledger_markdown(step("b", "n", "d", "h", 1), HEADS),
    "step as listed, one head of keys": lambda: ledger_markdown(step_listing("b", "n", "d", "h", 1), HEADS),
}
_PART = re.compile(r"(<!-- from the code: (.+?) -->\n)(?:(?!<!-- end -->).)*(<!-- end -->)", re.DOTALL)


def written(page: str) -> str:
    """A page with its formulas as the code has them now."""
    return _PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}", page)


def main() -> None:
    for page in sorted(Path(__file__).parent.glob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = written(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"wrote {page.name}")


if __name__ == "__main__":
    main()
