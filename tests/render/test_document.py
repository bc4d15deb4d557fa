import pytest

from qkv.errors import OptionError, OptionTypeError, ShapeError
from qkv.figures import Axis, Line, chart
from qkv.maths import tree as t
from qkv.render import Document, Figure, Heading, Maths, Note, PageBreak, Paragraph, Table, Text, prose
from qkv.render.document import DEEPEST


def test_prose_finds_mathematics_and_code():
    assert prose("a $x^2$ b `c` d", {"x": "scalar"}) == (
        Text("a "),
        Maths("x^2", {"x": "scalar"}),
        Text(" b "),
        Text("c", "code"),
        Text(" d"),
    )


@pytest.mark.parametrize("text", ["costs $5 and $7", "5$ and $ 7$", "`", "$", "$$", "a $ b $ c", "", "one ` two"])
def test_a_sign_without_its_partner_is_itself(text):
    assert "".join(piece.text for piece in prose(text) if isinstance(piece, Text)) == text


def test_mathematics_that_cannot_be_read_has_no_tree():
    assert Maths("{ ( \\nosuch", {}).tree() is None
    assert Maths("x", {"x": "nonsense of a type"}).tree() is None
    assert Maths("x", {"x": "scalar"}).tree() == t.Symbol((), "x", t.Type("scalar"))


def test_a_tree_of_any_depth_is_taken_and_a_deep_one_not_drawn():
    node = t.Number((), 7)
    for _ in range(DEEPEST - 1):
        node = t.Expect((), node)
    assert Maths(node).tree() is node
    for _ in range(10_000):
        node = t.Expect((), node)
    assert Maths(node).tree() is None


def test_what_does_not_fit_is_refused():
    with pytest.raises(ShapeError, match="2 cells"):
        Table(("a", "b", "c"), (("1", "2"),))
    with pytest.raises(OptionError, match="level"):
        Heading("x", 1)
    with pytest.raises(OptionError, match="style"):
        Text("x", "bold")
    with pytest.raises(OptionError, match="kind"):
        Note("x", (), "error")
    for block in (Note("y", ()), PageBreak()):
        with pytest.raises(OptionTypeError, match="within a Note"):
            Note("x", (block,))
    for text in ("<svg", "<p/>", "", "<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>"):
        with pytest.raises(OptionError, match="svg"):
            Figure(text)


def test_figures_are_found_in_reading_order():
    drawn = [chart(name, Axis("n"), Axis("t"), [Line(name, [(1, 2), (3, 5)])]) for name in "abc"]
    inside = Note("n", (Figure(drawn[1]),))
    document = Document("t", (Figure(drawn[0]), inside, Paragraph("p"), Figure(drawn[2])))
    assert [figure.svg for figure in document.figures()] == drawn
