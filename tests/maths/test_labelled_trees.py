"""Trees of the labelled texts: every node knows its place in the text, and what is written reads as what was read."""

import contextlib
import dataclasses
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from qkv.errors import IllTyped, QkvError
from qkv.maths import latex, parse, plain
from qkv.maths.tree import Node, Number, Part, Symbol

PAIRS = [
    pair
    for path in sorted((Path(__file__).parent / "labelled").glob("*.toml"))
    for pair in tomllib.loads(path.read_text(encoding="utf-8"))["pair"]
]
by_part = pytest.mark.parametrize("part", range(16))


def trees(part: int) -> Iterator[tuple[str, dict[str, str], Node]]:
    """Those of every sixteenth pair that can be read by themselves; most can."""
    read = 0
    for pair in PAIRS[part::16]:
        for text in (pair["gold"], pair["answer"]):
            with contextlib.suppress(QkvError):
                yield text, pair["symbols"], parse(text, pair["symbols"])
                read += 1
    assert read > 100


def inner(node: Node) -> Iterator[Node]:
    for field in dataclasses.fields(node):
        held = getattr(node, field.name)
        yield from (part for part in (held if isinstance(held, tuple) else (held,)) if isinstance(part, Node))


def nodes(tree: Node) -> Iterator[Node]:
    yield tree
    for part in inner(tree):
        yield from nodes(part)


@by_part
def test_every_node_has_a_place_inside_that_of_what_it_is_a_part_of(part: int) -> None:
    for text, _, tree in trees(part):
        for node in nodes(tree):
            start, stop = node.span
            assert 0 <= start < stop <= len(text), (text, node)
            for child in inner(node):
                # A bound that was moved to 1 takes what it was moved by from the whole sum.
                if not (isinstance(node, Part) and isinstance(child, Number)):
                    assert start <= child.span[0] < child.span[1] <= stop, (text, node, child)


@by_part
def test_the_place_of_a_name_is_that_name(part: int) -> None:
    for text, symbols, tree in trees(part):
        for node in nodes(tree):
            if isinstance(node, Symbol):
                try:
                    assert parse(text[slice(*node.span)], symbols) == node, (text, node)
                except IllTyped:  # a map is no value, and a size in a declaration is no name, by itself
                    assert node.type.kind == "map" or node.name not in symbols, (text, node)


@by_part
def test_what_is_written_reads_as_what_was_read(part: int) -> None:
    for text, symbols, tree in trees(part):
        assert parse(latex(tree), symbols) == tree, text
        assert parse(plain(tree), symbols) == tree, text
