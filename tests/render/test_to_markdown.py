"""A notebook is JSON of format 4.5, with Python in code cells and everything else in Markdown cells."""

import json
import re

from qkv.figures import Axis, Line, chart
from qkv.render import BlankLines, Code, Document, Figure, Formula, Heading, Maths, PageBreak, Paragraph, notebook

DRAWN = chart("Growth", Axis("n"), Axis("t", "s"), [Line("ours", [(2, 0.3), (5, 0.7)])])


def cells(*blocks, title="Report"):
    whole = json.loads(notebook(Document(title, blocks)))
    assert (whole["nbformat"], whole["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in whole["cells"]]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in ids)
    for cell in whole["cells"]:
        keys = {"cell_type", "id", "metadata", "source"}
        assert set(cell) == (keys | {"outputs", "execution_count"} if cell["cell_type"] == "code" else keys)
    return [(cell["cell_type"], "".join(cell["source"])) for cell in whole["cells"]]


def test_sections_and_code_have_separate_cells():
    found = cells(
        Paragraph("words"), Code("1 + 1\n2", "python"), Formula(Maths("d", {"d": "natural"})), PageBreak(),
        Heading("Next"), Code("not run"), BlankLines(2), Figure(DRAWN, "one"),
    )  # fmt: skip
    assert [kind for kind, _ in found] == ["markdown", "code", "markdown", "markdown"]
    assert found[0][1] == "# Report\n\nwords"
    assert found[1][1] == "1 + 1\n2"
    assert "$$\nd\n$$" in found[2][1]
    assert found[3][1].startswith("## Next")
    assert "data:image/svg+xml;base64," in found[3][1]


def test_hostile_text_stays_text(hostile):
    found = cells(Paragraph(hostile), Code(hostile, "python"), title=hostile)
    assert [kind for kind, _ in found] == ["markdown", "code"]


def test_an_empty_document_has_its_title():
    assert cells(title="Alone") == [("markdown", "# Alone")]
