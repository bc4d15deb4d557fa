"""Lattices: what is drawn is what was counted, as XML without styles or scripts."""

from xml.etree import ElementTree

import pytest

from qkv.errors import ShapeError
from qkv.figures.diagrams import EdgeSet, lattice

SPACE = "{http://www.w3.org/2000/svg}"


def test_every_count_is_a_mark_and_every_column_of_the_top_can_be_picked() -> None:
    counts = [[0, 1, 0], [1, 1, 0], [2, 1, 1]]
    strands = [EdgeSet("residual", [[(1, 1)], [(0, 0), (1, 1)]]), EdgeSet("head 1", [[(1, 0)], []], series=0)]
    root = ElementTree.fromstring(lattice("A & B", ["layer 2", "layer 1", "input"], counts, strands, chosen=1))
    titles = [each.text for each in root.iter(f"{SPACE}title")]
    for row, name in ((1, "layer 1"), (2, "input")):
        for column, count in enumerate(counts[row]):
            said = "not reached" if not count else "1 path" if count == 1 else f"{count} paths"
            assert f"{name}, position {column + 1}: {said}" in titles
    picks = [each for each in root.iter(f"{SPACE}g") if each.get("class") == "qkv-pick"]
    assert [pick.get("data-column") for pick in picks] == ["1", "2", "3"]
    assert "layer 2, position 2: chosen" in titles
    drawn = [each for each in root.iter(f"{SPACE}path") if each.find(f"{SPACE}title") is not None]
    assert [(each.get("d") or "").count("M") for each in drawn] == [1, 2, 1]
    assert not [each for each in root.iter() if "style" in each.attrib or each.tag.endswith(("script", "style"))]


@pytest.mark.parametrize("columns", [1, 2, 32])
def test_nothing_is_drawn_outside_the_paper(columns: int) -> None:
    counts = [[1] * columns, [2] * columns]
    root = ElementTree.fromstring(lattice("Reach", ["layer 1", "input"], counts, [], chosen=0))
    width, height = float(root.get("width") or 0), float(root.get("height") or 0)
    for circle in root.iter(f"{SPACE}circle"):
        if circle.get("cx") != "0":
            assert 0 < float(circle.get("cx") or 0) < width
            assert 0 < float(circle.get("cy") or 0) < height


def test_rows_must_fit() -> None:
    with pytest.raises(ShapeError, match="counts"):
        lattice("Reach", ["a", "b"], [[1]], [], 0)
