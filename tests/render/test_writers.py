"""Every writer writes the complete content of any document, and nothing else."""

import io
import re
from html.parser import HTMLParser

import pytest
import typst
from markdown_it import MarkdownIt
from rich.console import Console

from qkv.derivation import Step, chain
from qkv.errors import OptionError
from qkv.figures import Axis, Line, chart
from qkv.render import (
    BlankLines,
    Code,
    Derivation,
    Document,
    Figure,
    Formula,
    Heading,
    Items,
    Margin,
    Maths,
    Note,
    PageBreak,
    Paragraph,
    Table,
    Text,
    html,
    latex,
    markdown,
    pdf,
    show,
)
from qkv.render.document import STYLES, Lines
from qkv.render.document import Line as Shown
from qkv.render.escapes import line
from qkv.render.steps import blocks
from qkv.render.to_typst import markup


class Reader(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], "", []
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
        self.text += data


DRAWN = chart("Growth", Axis("n"), Axis("t", "s"), [Line("ours", [(2, 0.3), (5, 0.7)])])
FILES = [f"{n}.svg" for n in range(8)]


def everything(text, maths=None):
    """A document with the text in every place that takes one."""
    maths = maths or Maths(text, {})
    lines = (Shown(maths, text, ""), Shown(maths, text, "<=", text, text), Shown(maths, text, text, "proved"))
    words = f"is {text}".replace("$", "").replace("`", "")  # which mark formulas and code in the words of a step
    steps = (Step(f"{{{text}", words, "", words), Step(f"{{{text}", words), Step("", words), Step("", words, "", words))
    styled = tuple(Text(text, style) for style in STYLES)
    blocks = (
        Heading(text),
        Heading(styled, 4),
        Paragraph((*styled, maths)),
        Formula(maths),
        Lines(lines),
        Derivation(steps),
        Table((text, "b"), ((text, maths), (styled, text)), text, frozenset({1})),
        Items((text, styled)),
        Items((text,), ordered=True),
        Code(text, text),
        Figure(DRAWN, text),
        Figure(DRAWN, text),
        Margin((Paragraph(text), Code(text)), (text, styled)),
    )
    return Document(text, (*blocks, PageBreak(), Note(text, blocks[:7], "correction")))


def seen(text):
    """Letters only: what wrapping, styles and escapes leave."""
    return re.sub(r"\s", "", text)


def terminal(document, width=100):
    said = io.StringIO()
    show(document, Console(file=said, width=width, force_terminal=True, color_system=None))
    return said.getvalue()


def test_columns_of_a_derivation_in_which_nothing_stands_are_left_out():
    maths = Maths("1 + 1", {})
    bare = Document("t", (Lines((Shown(maths), Shown(maths))),))
    told = Document("t", (Lines((Shown(maths), Shown(maths, "why", verdict="proved"))),))
    for writer in (html, markdown):
        assert "reason" in writer(told).split("</style>")[-1]
        assert "verdict" in writer(told)
        assert "reason" not in writer(bare).split("</style>")[-1]
        assert "verdict" not in writer(bare)


def test_html_shows_hostile_text_and_obeys_none_of_it(hostile):
    harmless, read = Reader(html(everything("harmless"))), Reader(html(everything(hostile)))
    assert not read.open
    assert read.tags == harmless.tags
    assert [name for name, _ in read.attributes] == [name for name, _ in harmless.attributes]
    assert not {"script", "link", "img", "iframe", "object"} & set(read.tags)
    assert seen(read.text).count(seen(line(hostile))) >= 12
    ids = [value for name, value in read.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def blocks_of_markdown(text):
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    return [block.type for block in reader.parse(markdown(everything(text), FILES))]


def commands_of_latex(text):
    return re.findall(
        r"\\(?:begin|end)\{\w+\}|\\(?:item|subsection|includegraphics|newpage)\b", latex(everything(text), FILES)
    )


@pytest.fixture(scope="module")
def harmless():
    return blocks_of_markdown("harmless"), commands_of_latex("harmless")


def test_markdown_and_latex_keep_their_blocks_whatever_the_text(hostile, harmless):
    assert (blocks_of_markdown(hostile), commands_of_latex(hostile)) == harmless


def test_typst_takes_hostile_text(all_hostile):
    blocks = tuple(block for text in all_hostile for block in everything(text).blocks)
    assert pdf(Document("\n".join(all_hostile), blocks)).startswith(b"%PDF")


def test_typst_takes_every_kind_of_node(samples):
    rows = tuple((name, Maths(node)) for name, node in samples.items())
    lines = tuple(Shown(Maths(node), name) for name, node in samples.items())
    formulas = tuple(Formula(Maths(node)) for node in samples.values())
    document = Document("All", (Table(("name", "drawn"), rows), Lines(lines), *formulas))
    assert pdf(document) == pdf(document)
    assert typst.compile(markup(document).encode(), format="svg")


def test_every_node_is_in_the_page(samples):
    read = Reader(html(Document("All", tuple(Formula(Maths(node)) for node in samples.values()))))
    assert read.tags.count("math") == len(samples)
    assert not read.open


def test_a_terminal_is_not_steered(hostile):
    said = terminal(everything(hostile))
    assert "\x07" not in said
    assert "\x9b" not in said
    assert "\x1b[31m" not in said
    assert seen(line(hostile)) in seen(re.sub(r"\x1b\[[0-9;]*m", "", said))


DOT = r"\mu^T \mu"
SYMBOLS = {"mu": "vector[d]"}


def test_formulas_next_to_each_other_and_blank_lines():
    row = Formula(Maths(DOT, SYMBOLS), (Maths("d", SYMBOLS), Maths("{mu^", SYMBOLS)))
    document = Document("t", (row, BlankLines(3), Formula(row.maths, row.more[:1])))
    assert Reader(html(document)).tags.count("math") == 4
    assert html(document).count('<div class="blank"></div>') == 3
    assert latex(document).count("\\qquad") == 3
    assert r"\vspace{4.5\baselineskip}" in latex(document)
    assert markdown(document).count("<br>") == 3
    assert markdown(document).count(r"\qquad") == 1
    assert markdown(document).count("`{mu^`") == 1
    assert markup(document).count("#h(2em)") == 3
    assert "#v(5.4em)" in markup(document)
    assert pdf(document).startswith(b"%PDF")
    assert terminal(document).count("μᵀμ    d") == 2
    with pytest.raises(OptionError, match="from 1 to 60"):
        BlankLines(0)


def test_mathematics_that_is_read_is_drawn_in_every_writer():
    maths = Maths(DOT, SYMBOLS)
    document = Document(
        "t", (Paragraph(("mean ", maths)[1:]), Formula(maths), Derivation((Step(DOT, "why"),), SYMBOLS))
    )
    assert Reader(html(document)).tags.count("msup") == 3
    assert markup(document).count("attach(μ, t: top) μ") == 3
    assert markdown(document).count(r"\mu") == 6
    assert latex(document).count(r"\mu") == 6
    assert terminal(document).count("μᵀμ") == 3


def test_mathematics_that_cannot_be_read_is_shown_as_it_was_written():
    document = Document("t", (Paragraph(Maths("{mu^", SYMBOLS)), Formula(Maths("{mu^", SYMBOLS))))
    assert html(document).count("<code>{mu^</code>") == 2
    assert markdown(document).count("`{mu^`") == 2
    assert latex(document).count(r"\texttt{\{mu\textasciicircum{}}") == 2
    assert markup(document).count('#raw("{mu^")') == 2
    assert terminal(document).count("{mu^") == 2


@pytest.mark.parametrize("width", [40, 80])
def test_a_terminal_is_never_wider_than_it_is(width, samples):
    words = "a reason that is long enough to be broken somewhere, more than once"
    lines = tuple(Shown(Maths(node), words, "=", "tested") for node in samples.values())
    said = terminal(Document(words, (Lines(lines), Table((words, words), ((words, words),)))), width)
    assert max(map(len, said.splitlines())) <= width


def test_spaces_at_the_ends_of_strong_words_do_not_undo_them():
    words = (Text("first: ", "strong"), Text("then"), Text(" last ", "emphasis"), Text(" ", "strong"), Text("end"))
    source = markdown(Document("t", (Paragraph(words),)))
    inside = MarkdownIt("commonmark").parse(source)[-2]
    assert [child.type for child in inside.children if child.type.endswith("_open")] == ["strong_open", "em_open"]
    assert "".join(child.content for child in inside.children) == "first: then last  end"


def test_a_number_stays_on_its_line():
    page = html(Document("t", (Table(("what", "residual"), (("x", "1.02e-13"),), right=frozenset({1})),)))
    assert '<td class="number">1.02e-13</td>' in page
    assert "td.number{white-space:nowrap}" in page


def test_a_bar_ends_no_cell():
    document = Document("t", (Table(("a",), ((Maths(r"\|\mu\|", SYMBOLS),), (Text("a|b", "code"),))),))
    cells = MarkdownIt("commonmark").enable("table").parse(markdown(document))
    assert [block.content for block in cells if block.type == "inline"][2:] == [r"$\lVert \mu \rVert$", "`a|b`"]


def test_a_short_chain_is_a_formula_under_its_title_with_the_only_reason_before_it():
    derived = Derivation(chain("the score of key 2", "2 + 6", "8", reason="added"))
    title, formula = blocks(derived)
    assert title == Paragraph((Text("The score of key 2.", "strong"), Text(" "), Text("Added.")))
    assert isinstance(formula, Formula)
    assert terminal(Document("t", (derived,))).split("\n")[1:3] == ["The score of key 2. Added.", "    2 + 6 = 8"]
    assert "**The score of key 2\\.** Added.\n\n$$\n2 + 6 = 8\n$$" in markdown(Document("t", (derived,)))
    assert "\\textbf{The score of key 2.} Added.\n\n\\[ 2 + 6 = 8 \\]" in latex(Document("t", (derived,)))


def test_steps_with_reasons_are_lines_and_words_are_paragraphs():
    steps = (Step("2 + 6", "given", "", "q_2"), Step("8", "added"), Step("", "nothing is left"), Step("9 - 1", "", "="))
    title, lines, words, last = blocks(Derivation(steps))
    assert title == Paragraph((Text("q_2:", "strong"),))  # a name keeps its letter
    assert [line.reason for line in lines.lines] == [(Text("given"),), (Text("added"),)]
    assert words == Paragraph((Text("Nothing is left."),))
    assert [line.relation for line in last.lines] == ["="]


def test_a_rounded_number_is_nearly_equal_and_what_repeats_is_left_out():
    steps = (Step("1/3", "", ""), Step("1/3", "simplified"), Step("0.33", "", "~"))
    (formula,) = blocks(Derivation(steps))
    assert formula.maths.source.signs == ("≈",)
    (exact,) = blocks(Derivation((Step("sqrt(2)", "", ""), Step("2/sqrt(2)", "", "~"))))
    assert exact.maths.source.signs == ("=",)


def test_a_wide_chain_has_a_line_for_each_member():
    terms = " + ".join(f"{n} x" for n in range(2, 30))
    (wide,) = blocks(Derivation(chain("", terms, "434 x"), {"x": "scalar"}))
    assert isinstance(wide, Lines)
    document = Document("t", (wide,))
    assert markdown(document).count("aligned") == latex(document).count("aligned") == 2
    assert max(map(len, terminal(document, 80).splitlines())) <= 80


def test_verdicts_are_shown_where_the_derivation_asks():
    steps = (Step("k + k", "", ""), Step("3 k", "collected"))
    for shown in (True, False):
        document = Document("t", (Derivation(steps, {"k": "natural"}, shown=shown),))
        for said in (html(document), markdown(document), latex(document), markup(document), terminal(document)):
            assert ("different" in said) is shown
