"""Diagrams show what was counted, as XML without styles or scripts."""

from xml.etree import ElementTree

import pytest

from qkv.errors import OptionError, ShapeError
from qkv.figures.diagrams import AFTER, BEFORE, TALL, EdgeSet, Lane, cache_growth, lattice, sparsity_pattern

SPACE = "{http://www.w3.org/2000/svg}"


def test_every_count_is_a_mark_and_every_column_of_the_top_can_be_picked() -> None:
    counts = [[0, 1, 0], [1, 1, 0], [2, 1, 1]]
    strands = [EdgeSet("residual", [[(1, 1)], [(0, 0), (1, 1)]]), EdgeSet("head 1", [[(1, 0)], []], series=0)]
    root = ElementTree.fromstring(lattice("A & B", ["layer 2", "layer 1", "input"], counts, strands, chosen=1))
    titles = [each.text for each in root.iter(f"{SPACE}title")]
    for row, name in ((1, "layer 1"), (2, "input")):
        for column, count in enumerate(counts[row]):
            paths = "not reached" if not count else "1 path" if count == 1 else f"{count} paths"
            assert f"{name}, position {column + 1}: {paths}" in titles
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


def test_a_pattern_has_a_square_for_each_entry() -> None:
    root = ElementTree.fromstring(sparsity_pattern("J", [[True, False], [True, True]], 1, "out", "in", marked_column=1))
    squares = next(each for each in root.iter(f"{SPACE}path") if each.get("class") == "qkv-ink")
    assert (squares.get("d") or "").count("z") == 3
    assert "3 of 4 entries are not zero." in {each.text for each in root.iter(f"{SPACE}desc")}
    empty = ElementTree.fromstring(sparsity_pattern("J", [[False]], 1, "out", "in"))
    assert not [each for each in empty.iter(f"{SPACE}path") if each.get("class") == "qkv-ink"]


def test_rows_of_a_pattern_have_equal_lengths() -> None:
    with pytest.raises(ShapeError, match="entries"):
        sparsity_pattern("J", [[True], [True, False]], 1, "out", "in")


LANES = [
    Lane("MHA", 64, "1 MB"),
    Lane("GQA", 8, "1 kB", chosen=True),
    Lane("MQA", 1, "1 B"),
    Lane("linear", 8, "9 B", grows=False),
]


def rectangles(past: int, steps: int) -> dict[str, list[dict[str, str]]]:
    """By lane: the attributes of every rectangle in it."""
    root = ElementTree.fromstring(cache_growth("What is kept", LANES, past, steps, 64))
    lanes = [group for group in root.iter(f"{SPACE}g") if group.get("class") == "qkv-lane"]
    return {lane.name: [dict(each.items()) for each in group.iter(f"{SPACE}rect")]
            for lane, group in zip(LANES, lanes, strict=True)}  # fmt: skip


@pytest.mark.parametrize("past", [0, 1, 23, 24, 25, 63, 64, 131072])
@pytest.mark.parametrize("steps", [0, 1, AFTER])
def test_each_step_adds_a_column(past, steps):
    found = rectangles(past, steps)
    for name in ("MHA", "GQA", "MQA"):
        columns = [each for each in found[name] if "qkv-column" in each["class"]]
        free = [each for each in found[name] if "qkv-free" in each["class"]]
        earlier = [each for each in found[name] if "qkv-earlier" in each["class"]]
        assert len(columns) == min(past, BEFORE) + steps
        assert len(free) == AFTER - steps
        assert len(earlier) == (past > BEFORE)
        newest = [n for n, each in enumerate(columns) if "qkv-newest" in each["class"]]
        assert newest == ([len(columns) - 1] if steps else [])
        places = [float(each["x"]) for each in [*columns, *free]]
        assert places == sorted(places)
        assert all(0 <= x <= 720 for x in places)
    assert len(found["linear"]) == 1


def test_columns_are_as_high_as_heads_keep_them():
    heights = {name: float(some[0]["height"]) for name, some in rectangles(10, 2).items()}
    assert heights == {"MHA": TALL, "GQA": TALL / 8, "MQA": 3, "linear": TALL}


def test_it_is_said_in_words_and_the_same_each_time():
    drawn = cache_growth("What is kept", LANES, 100, 3, 64)
    assert "After 100 tokens and 3 steps." in drawn
    assert "GQA: key and value of token 103, for 8 key/value heads" in drawn
    assert "page 2" in drawn
    assert drawn == cache_growth("What is kept", LANES, 100, 3, 64)
    assert "style" not in drawn


@pytest.mark.parametrize(("past", "steps"), [(-1, 0), (0, -1), (0, AFTER + 1)])
def test_what_cannot_be_drawn(past, steps):
    with pytest.raises(OptionError):
        cache_growth("What is kept", LANES, past, steps, 64)
