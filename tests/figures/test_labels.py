from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from qkv.figures.labels import Box, LabelSpace

FRAME = Box(31, 17, 331, 197)
inside = st.tuples(st.floats(FRAME.left, FRAME.right), st.floats(FRAME.top, FRAME.bottom))
around = st.tuples(st.floats(-500, 800), st.floats(-500, 800))


@given(around, around)
def test_a_cut_segment_is_inside_and_on_the_segment(start, end):
    part = FRAME.cut(start, end)
    if part is None:
        ways = [tuple(a + (b - a) * n / 97 for a, b in zip(start, end, strict=True)) for n in range(98)]
        assert not any(FRAME.holds(at, -0.01) for at in ways)
        return
    for x, y in part:
        assert FRAME.holds((x, y))
        area = (end[0] - start[0]) * (y - start[1]) - (end[1] - start[1]) * (x - start[0])
        assert abs(area) < 1e-6 * 1300**2
    if FRAME.holds(start):
        assert part[0] == start
    if FRAME.holds(end):
        assert part[1] == end


@given(st.lists(inside, min_size=1, max_size=23), st.data())
def test_labels_overlap_nothing(dots, data):
    space = LabelSpace(FRAME)
    for at in dots:
        space.take_dot(at)
    boxes = []
    original = space.free

    def free(box):
        if original(box):
            found.append(box)
        return original(box)

    space.free = free
    drawn = 0
    for n, at in enumerate(dots):
        found: list[Box] = []
        words = data.draw(st.sampled_from(["a", "decode 4096", "a label that is rather long"])) + str(n)
        if space.label_dot(at, words):
            boxes.append(found[-1])
            drawn += 1
    assert drawn == len(boxes)
    assert len(space.numbered) <= drawn
    for box in boxes:
        assert FRAME.holds((box.left, box.top))
        assert FRAME.holds((box.right, box.bottom))
        assert not any(box.holds(at) for at in dots)
    for a, b in combinations(boxes, 2):
        assert a.right < b.left or b.right < a.left or a.bottom < b.top or b.bottom < a.top


def test_a_label_without_space_becomes_a_number():
    space = LabelSpace(Box(0, 0, 60, 60))
    assert ">1<" in space.label_dot((30, 30), "much too long for so small a frame")
    assert space.numbered == ["much too long for so small a frame"]
    assert space.label_dot((30, 30), "b") != ""


def test_a_full_space_takes_no_label():
    space = LabelSpace(Box(0, 0, 60, 60))
    for n in range(0, 60, 4):
        space.take_segment((0, n), (60, n))
    assert space.label_dot((30, 30), "b") == ""
    assert space.numbered == []
