"""Documents of every format come as clean text whose spans lead back to the source."""

import io
import json
import random
import sys
import time

import pytest

from qkv.documents import read_document
from qkv.documents.cleaning import clean
from qkv.documents.document import Draft
from qkv.errors import MissingExtra, OptionError

MARKDOWN = """## 3. Two **heads**

Let $x_1 * y_1 * z$ and *q* be `E=5`; n\\_layers is 2\\*3. See [notes](https://example.org/a_b).

| name | value |
| ---- | ----- |
| d\\_k | 7     |

1. First item
2. Second item

```python
x = a ** b  # __init__
```

$$
W = \\begin{bmatrix} 1 \\\\
- 2 \\end{bmatrix}
$$

H<sub>2</sub>O and e<sup>xy</sup> &lt; 5
"""


def test_markdown_marks_leave_the_text_and_structure_stays() -> None:
    document = read_document(MARKDOWN, name="sheet.md")
    assert document.kind == "markdown"
    for kept in ("3. Two heads", "$x_1 * y_1 * z$", "and q be E=5; n_layers is 2*3. See notes.",
                 "x = a ** b  # __init__",                 "H_2O and e^{xy} < 5"):  # fmt: skip
        assert kept in document.text
    kinds = [block.kind for block in document.blocks]
    assert kinds == ["heading", "paragraph", "table", "item", "item", "code", "formula", "paragraph"]
    table = next(block for block in document.blocks if block.kind == "table")
    assert document.text[slice(*table.span)].endswith("| d_k | 7     |")
    assert [document.text[slice(*block.span)][:2] for block in document.blocks if block.kind == "item"] == ["1.", "2."]


def test_spans_lead_back_to_the_source() -> None:
    document = read_document(MARKDOWN, name="sheet.md")
    for words, written in (
        ("Two heads", "Two **heads**"),
        ("E=5", "E=5"),
        ("n_layers", "n\\_layers"),
        ("< 5", "&lt; 5"),
    ):
        start = document.text.index(words)
        begin, end = document.source_span((start, start + len(words)))
        assert written in document.source[begin - 1 : end + 2]


def test_any_sequence_of_replacements_can_be_undone() -> None:
    draw = random.Random(7)
    for _ in range(100):
        text = "".join(draw.choice("abcxyz \n") for _ in range(60))
        draft = Draft(text)
        for _ in range(3):
            cuts = sorted(draw.sample(range(len(draft.text) + 1), min(6, len(draft.text) // 2 * 2)))
            draft.replace([(cuts[at], cuts[at + 1], "Q" * draw.randrange(4)) for at in range(0, len(cuts) - 1, 2)])
        for place, sign in enumerate(draft.text):
            begin, end = draft.back((place, place + 1))
            assert sign == "Q" or (text[begin] == sign and end == begin + 1)


def test_characters_are_cleaned() -> None:
    text = "the ﬁrst\x00 ﬂow\u200b of co\u00adlumns\r\nα ≤ β\u00a0∈ ℝ"
    assert read_document(text, name="a.txt").text == "the first flow of columns\nα ≤ β ∈ ℝ"


def test_tall_brackets_become_brackets() -> None:
    stacked = "q=\n\uf8ee\n\uf8ef\uf8f0\n5\n7\n\uf8f9\n\uf8fa\uf8fb,"
    assert "".join(read_document(stacked, name="a.txt").text.split()) == "q=[57],"
    drawn = "A = ⎡1 2⎤\n    ⎢3 4⎥\n    ⎣5 6⎦"
    assert read_document(drawn, name="a.txt").text.split() == ["A", "=", "[1", "2", "3", "4", "5", "6]"]
    assert read_document("v = \x141\n2\x15", name="a.txt").text == "v = [1\n2]"


PAGED = "\n".join(
    f"--- Page {page} ---\nCourse 11, sheet {page}\n"
    f"question {page} asks for the cor-\nresponding {word} of multi-\nhead {word}\n"
    f"All rights reserved, page {page}"
    for page, word in enumerate(("scores", "weights", "outputs"), 1)
)


def test_page_furniture_and_hyphens_go() -> None:
    document = read_document(PAGED, name="sheet.md")
    assert "Page" not in document.text
    assert "rights" not in document.text
    assert "Course" not in document.text
    assert "question 2 asks for the corresponding weights of multi-head weights" in document.text


def test_footers_without_page_breaks_go_and_similar_lines_stay() -> None:
    footer = "Attention, exercises of the winter term, all rights are reserved "
    text = "\n".join(f"words {word}\n{footer}{page}" for page, word in enumerate("abcd", 1))
    assert read_document(text, name="a.txt").text == "words a\nwords b\nwords c\nwords d\n"
    code = "import numpy as np\nx = 1\n" * 5
    assert read_document(code, name="a.txt").text.count("import numpy") == 5


def test_latex_source() -> None:
    source = r"""\documentclass{article} \newcommand{\R}{\mathbb{R}}
\begin{document} % a comment
\section{Scores}
Let $x \in \R^d$ be \textbf{given \emph{here}}~now.
\begin{enumerate}
  \item Compute $q$. % 50\% done
  \item \begin{enumerate} \item one \item two \end{enumerate}
\end{enumerate}
\begin{enumerate}[label=(\roman*)] \item alpha \item beta \end{enumerate}
\begin{equation} a = b \end{equation}
\begin{verbatim}
x = 1 % kept
\end{verbatim}
\begin{tabular}{ll} $d$ & 7 \\ $h$ & 2 \end{tabular}
\begin{exercise}[Norms] Find it. \end{exercise}
\end{document} after"""
    text = read_document(source, name="sheet.tex").text
    for kept in ("Scores", r"$x \in \mathbb{R}^d$", "given here now", "1. Compute $q$.", "2. ", "(a) one", "(b) two",
                 "(i) alpha", "(ii) beta", "x = 1 % kept", "| $d$ | 7 |", "Exercise 1. Norms"):  # fmt: skip
        assert kept in text, kept
    assert "comment" not in text
    assert "documentclass" not in text
    assert "after" not in text


def test_notebook_cells_are_text_and_code() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Sheet\n", "Find **q**."]},
        {"cell_type": "code", "source": "q = 3"},
    ]
    document = read_document(json.dumps({"cells": cells}), name="a.ipynb")
    assert "Find q." in document.text
    assert "```python\nq = 3\n```" in document.text
    with pytest.raises(OptionError, match=r"a\.ipynb"):
        read_document("{}", name="a.ipynb")


def test_docx_and_pdf() -> None:
    docx = pytest.importorskip("docx")
    pypdf = pytest.importorskip("pypdf")
    made, data = docx.Document(), io.BytesIO()
    made.add_heading("Attention", 1)
    made.add_paragraph("Find the scores.", style="List Number")
    made.add_paragraph("Find the weights.", style="List Number")
    table = made.add_table(rows=1, cols=2)
    table.rows[0].cells[0].text, table.rows[0].cells[1].text = "d_k", "7"
    made.save(data)
    document = read_document(data.getvalue(), name="a.docx")
    assert document.kind == "docx"
    assert "1. Find the scores." in document.text
    assert "2. Find the weights." in document.text
    assert "| d_k | 7 |" in document.text
    writer, data = pypdf.PdfWriter(), io.BytesIO()
    writer.add_blank_page(100, 100)
    writer.write(data)
    with pytest.raises(OptionError, match="without text"):
        read_document(data.getvalue(), name="scan.pdf")
    with pytest.raises(OptionError, match="pypdf cannot read"):
        read_document(b"%PDF-1.7 broken", name="broken.pdf")


def test_formulas_of_docx_are_latex() -> None:
    docx = pytest.importorskip("docx")
    from docx.oxml import parse_xml

    def row(*entries: int) -> str:
        return f"<m:mr>{''.join(f'<m:e><m:r><m:t>{entry}</m:t></m:r></m:e>' for entry in entries)}</m:mr>"

    made, data = docx.Document(), io.BytesIO()
    inner = (
        f"<m:sSub><m:e><m:r><m:t>W</m:t></m:r></m:e><m:sub>{row(2)}</m:sub></m:sSub><m:m>{row(1, 3)}{row(5, 7)}</m:m>"
    )
    namespace = "http://schemas.openxmlformats.org/officeDocument/2006/math"
    made.add_paragraph("Let ")._p.append(parse_xml(f'<m:oMath xmlns:m="{namespace}">{inner}</m:oMath>'))
    made.save(data)
    text = read_document(data.getvalue(), name="a.docx").text
    assert text == r"Let $W_{2}\begin{matrix}1 & 3 \\ 5 & 7\end{matrix}$"


@pytest.mark.parametrize(
    ("package", "data", "name"), [("pypdf", b"%PDF-1.7", "a.pdf"), ("docx", b"PK\x03\x04word/", "a.docx")]
)
def test_missing_packages_are_named(package: str, data: bytes, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match="documents"):
        read_document(data, name=name)


@pytest.mark.parametrize(
    ("data", "name", "words"),
    [
        (b"\x89PNG\r\n", "figure.png", "binary"),
        (b"\x7fELF" + b"\x00" * 50, "a.txt", "binary"),
        (bytes(range(1, 9)) * 40, "noise", "binary"),
        (b"x" * (5 * 1024 * 1024 + 1), "long.md", "at most"),
        (b"hello", "a.pdf", "not what its name says"),
        (b"PK\x03\x04zip", "a.zip", "binary"),
    ],
)
def test_other_files_are_refused_by_name(data: bytes, name: str, words: str) -> None:
    with pytest.raises(OptionError, match=words) as raised:
        read_document(data, name=name)
    assert name in str(raised.value)


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(OptionError, match=r"nothing\.md"):
        read_document(tmp_path / "nothing.md")
    with pytest.raises(OptionError, match="not a folder"):
        read_document(tmp_path)


def test_encodings() -> None:
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"):
        assert read_document("Größe d = 3, a longer line of words".encode(encoding), name="a.txt").text.startswith(
            "Größe"
        )


def test_torn_listings_get_their_marks() -> None:
    text = (
        'Look at this.\n1def score(q, k):\n2"""Doc.\n3q: a vector\n4"""\n5return q @ k\nThe end of the listing.\n'
        "classHead(nn.Module):\ndef__init__(self, d):\nself.q = nn.Linear(d,\n"
        "_____(b)_____)\nreturnself.q\nWhat belongs there?"
    )
    shown = read_document(text, name="a.txt").text
    assert 'Look at this.\n```\ndef score(q, k):\n"""Doc.\nq: a vector\n"""\nreturn q @ k\n```\nThe end' in shown
    assert "```\nclass Head(nn.Module):\ndef __init__(self, d):" in shown
    assert "return self.q\n```\nWhat belongs" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["$" * 300_000, "**" * 150_000, "\\[ " * 100_000, "```\n" * 80_000, "<div " * 60_000, "[" * 300_000]
)
@pytest.mark.parametrize("name", ["a.md", "a.tex"])
def test_hostile_texts_take_bounded_time(text: str, name: str) -> None:
    began = time.perf_counter()
    read_document(text, name=name)
    assert time.perf_counter() - began < 4


def test_cleaning_twice_changes_nothing() -> None:
    draft = Draft(PAGED + "\x00ﬁ &amp;")
    clean(draft)
    again = Draft(draft.text)
    clean(again)
    assert again.text == draft.text
