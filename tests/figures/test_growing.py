"""The drawing of what is kept: a column for each token, one more with each step, and a state that stays."""

from xml.etree import ElementTree

import pytest

from qkv.errors import OptionError
from qkv.figures.diagrams import AFTER, BEFORE, TALL, Lane, cache_growth

LANES = [
    Lane("MHA", 64, "1 MB"),
    Lane("GQA", 8, "1 kB", chosen=True),
    Lane("MQA", 1, "1 B"),
    Lane("linear", 8, "9 B", grows=False),
]
SPACE = "{http://www.w3.org/2000/svg}"


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
        rooms = [each for each in found[name] if "qkv-room" in each["class"]]
        earlier = [each for each in found[name] if "qkv-earlier" in each["class"]]
        assert len(columns) == min(past, BEFORE) + steps
        assert len(rooms) == AFTER - steps
        assert len(earlier) == (past > BEFORE)
        newest = [n for n, each in enumerate(columns) if "qkv-newest" in each["class"]]
        assert newest == ([len(columns) - 1] if steps else [])
        places = [float(each["x"]) for each in [*columns, *rooms]]
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
