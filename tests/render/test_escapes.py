import json
import re

import pytest
import typst as compiler
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from qkv.render import escapes


def test_nothing_steers_the_screen(hostile):
    shown = escapes.clean(hostile)
    assert len(shown) == len(hostile)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    assert "\n" not in escapes.line(hostile)


def shown_by_markdown(source):
    """The text of the one paragraph that CommonMark, with GitHub's tables, reads."""
    blocks = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(source)
    assert [block.type for block in blocks] == ["paragraph_open", "inline", "paragraph_close"]
    children = blocks[1].children or []
    assert {child.type for child in children} <= {"text", "text_special"}
    return "".join(child.content for child in children)


def test_markdown_shows_what_was_written(hostile):
    assert shown_by_markdown(escapes.markdown(hostile)) == escapes.line(hostile).strip()


@settings(max_examples=150)
@given(st.text(alphabet="ab 1.)-+=#>*_`~[]()!|<>&;\\$:/\"'", min_size=1).filter(str.strip))
@example("1.")
@example("a  ")
def test_markdown_shows_any_mix_of_signs(text):
    assert shown_by_markdown(escapes.markdown(text)) == escapes.line(text).strip()


def test_code_in_markdown_is_whole(hostile):
    blocks = MarkdownIt("commonmark").parse(f"x {escapes.markdown_code(hostile)} y")
    codes = [child.content for child in blocks[1].children or [] if child.type == "code_inline"]
    assert [code.strip() for code in codes] == [escapes.line(hostile).strip()]


@pytest.fixture(scope="module")
def asked():
    """What typst takes each text for, by its own reader."""

    def ask(texts):
        source = "\n".join(f"#metadata({escapes.typst(text)}) <said>" for text in texts)
        return [found["value"] for found in json.loads(compiler.query(source.encode(), "<said>"))]

    return ask


def test_typst_reads_what_was_written(asked):
    texts = ["".join(map(chr, range(1, 0x180))), '"', "\\", '\\"', "a\nb\tc", "#x", "\\u{41}", "𝟏漢", ""]
    assert asked(texts) == [escapes.clean(text) for text in texts]


@pytest.fixture(scope="module")
def known():
    """Every command that the escape of some sign is made of."""
    return set(re.findall(r"\\[A-Za-z]+", " ".join(map(escapes.latex, map(chr, range(0x3000))))))


def test_latex_has_no_command_but_its_own(hostile, known):
    written = escapes.latex(hostile)
    assert set(re.findall(r"\\[A-Za-z]+", written)) <= known
    assert not known & {r"\input", r"\write", r"\end", r"\begin", r"\def"}
    bare = re.sub(r"\\[{}$&#_%|]", "", written)
    assert not set("$&#%~`\"'<>|") & set(bare)
    assert bare.count("{") == bare.count("}")
    assert "\n" not in written


def test_a_terminal_without_signs_is_given_plain_ones():
    assert "x₁ = −1".encode("ascii", escapes.PLAIN) == b"x1 = -1"
    assert "6.90×10⁻¹³ ≤ √2 μ".encode("ascii", escapes.PLAIN) == b"6.90x10^-13 <= sqrt 2 mu"
    assert "σ²".encode("latin-1", escapes.PLAIN) == b"sigma\xb2"
    assert "漢".encode("ascii", escapes.PLAIN) == b"?"
