"""Patterns: a square for each entry that is not zero."""

from xml.etree import ElementTree

import pytest

from qkv.errors import ShapeError
from qkv.figures.diagrams import sparsity_pattern

SPACE = "{http://www.w3.org/2000/svg}"


def test_a_pattern_has_a_square_for_each_entry() -> None:
    root = ElementTree.fromstring(sparsity_pattern("J", [[True, False], [True, True]], 1, "out", "in", marked_column=1))
    squares = next(each for each in root.iter(f"{SPACE}path") if each.get("class") == "qkv-ink")
    assert (squares.get("d") or "").count("z") == 3
    assert "3 of 4 entries are not zero." in {each.text for each in root.iter(f"{SPACE}desc")}
    empty = ElementTree.fromstring(sparsity_pattern("J", [[False]], 1, "out", "in"))
    assert not [each for each in empty.iter(f"{SPACE}path") if each.get("class") == "qkv-ink"]


def test_rows_must_fit() -> None:
    with pytest.raises(ShapeError, match="entries"):
        sparsity_pattern("J", [[True], [True, False]], 1, "out", "in")
