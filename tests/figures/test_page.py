import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from qkv.errors import OptionError, OptionTypeError, ShapeError
from qkv.figures import Axis, Line, Table, chart, page, standalone


class Reader(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts, self.open = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def svg(name="ours"):
    return chart("Growth", Axis("n"), Axis("t", "s"), [Line(name, [(2, 0.3), (5, 0.7)])])


def test_a_page_is_whole_and_asks_for_nothing():
    text = page(
        "a <b> & c", [svg(), svg("theirs")], [Table("Sizes", ["model", "bytes"], [["<x>", 17], ["y", 19]])], "a note"
    )
    read = Reader(text)
    assert not read.open
    assert not {"script", "link", "img", "iframe", "object"} & set(read.tags)
    assert not {"style", "src", "href", "onclick", "onload"} & {name for name, _ in read.attributes}
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"] * 2
    assert "a <b> & c" in read.texts
    assert "<x>" in read.texts
    assert text.count('<td class="number">') == 2
    assert text == page(
        "a <b> & c", [svg(), svg("theirs")], [Table("Sizes", ["model", "bytes"], [["<x>", 17], ["y", 19]])], "a note"
    )


def test_the_policy_lets_in_the_style_sheet_and_nothing_else():
    text = page("t", [svg()])
    style = re.search("<style>(.*)</style>", text, re.S)
    assert style
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in text
    assert "@media print" in style[1]
    assert "prefers-color-scheme:dark" in style[1]


def test_the_same_chart_twice_has_different_ids():
    ids = [value for name, value in Reader(page("t", [svg(), svg()])).attributes if name == "id"]
    assert len(ids) == len(set(ids)) == 4
    asked = [value for name, value in Reader(page("t", [svg(), svg()])).attributes if name == "aria-labelledby"]
    assert " ".join(asked).split() == ids


def test_empty_pages_and_tables():
    assert not Reader(page("t", [])).open
    assert "<td></td>" in page("t", [], [Table("c", ["a"], [[""]]), Table("d", ["a", "b"], [])])


@pytest.mark.parametrize("figure", ["", "<svg", "<p>no</p>", "words", standalone(svg())])
def test_what_is_no_figure_is_refused(figure):
    with pytest.raises(OptionError, match=r"figures: got (a text|invalid XML)"):
        page("t", [figure])


def test_types():
    with pytest.raises(OptionTypeError, match=r"pass \[figure\]"):
        page("t", svg())
    with pytest.raises(OptionTypeError, match="figures"):
        page("t", [3])  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="title"):
        page(" ", [])
    with pytest.raises(ShapeError, match="rows: got 1 cells"):
        Table("c", ["a", "b"], [[2]])
