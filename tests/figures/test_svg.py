from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from qkv.figures.svg import escape, tag, text_width, wrap

anything = st.text(st.characters(codec=None), max_size=40)


@given(anything)
def test_whatever_the_text_the_element_is_well_formed(text):
    element = ElementTree.fromstring(tag("text", escape(text), class_=text).encode())
    if text.isprintable() and text:
        assert element.text == text
        assert element.get("class") == text


@given(st.text(st.characters(codec="utf-8"), max_size=80), st.floats(20, 300), st.integers(1, 5))
def test_wrapped_lines_fit_and_say_it_all(text, width, most):
    lines = wrap(text, width, 12)
    assert all(text_width(line, 12) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())
    cut = wrap(text, width, 12, most)
    assert len(cut) == min(most, len(lines))
    assert len(lines) <= most or cut[-1].endswith("…")
    assert all(text_width(line, 12) <= width for line in cut)


def test_what_is_measured_is_what_is_drawn():
    assert text_width("a\x08b", 13) == text_width("a\N{REPLACEMENT CHARACTER}b", 13)
