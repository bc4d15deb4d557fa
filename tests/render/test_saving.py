import os
import stat
from xml.etree import ElementTree

import pytest

from qkv.errors import OptionError
from qkv.figures import Axis, Line, chart
from qkv.render import SUFFIXES, Document, Figure, Paragraph, save, writable

DRAWN = chart("Growth", Axis("n"), Axis("t", "s"), [Line("ours", [(2, 0.3), (5, 0.7)])])
DOCUMENT = Document("Report", (Paragraph("words"), Figure(DRAWN, "one"), Figure(DRAWN, "two")))


@pytest.mark.parametrize("ending", [*SUFFIXES, ".HTML"])
def test_files_are_whole_and_nothing_else_is_left(tmp_path, ending):
    made = save(DOCUMENT, tmp_path / f"a b{ending}")
    assert sorted(tmp_path.iterdir()) == sorted(made)
    assert made[-1].name == f"a b{ending}"
    assert len(made) == (3 if ending in (".md", ".tex") else 1)
    again = {path: path.read_bytes() for path in made}
    save(DOCUMENT, made[-1])
    assert {path: path.read_bytes() for path in made} == again


def test_figures_of_markdown_and_latex_are_separate_files(tmp_path):
    *figures, page = save(DOCUMENT, tmp_path / "a b.md")
    assert "![one](a%20b-1.svg)" in page.read_text()
    assert all(ElementTree.parse(figure) for figure in figures)
    *figures, page = save(DOCUMENT, tmp_path / "a b.tex")
    assert "a b-2.pdf" in page.read_text()
    assert all(figure.read_bytes().startswith(b"%PDF") for figure in figures)


def test_rights_and_links_stay_as_they_were(tmp_path):
    kept = tmp_path / "kept.md"
    kept.write_text("old")
    kept.chmod(0o640)
    (tmp_path / "link.md").symlink_to(kept)
    save(Document("New", ()), tmp_path / "link.md")
    assert kept.read_text() == "# New\n"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640
    assert (tmp_path / "link.md").is_symlink()
    mask = os.umask(0o027)
    try:
        save(Document("New", ()), tmp_path / "fresh.md")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "fresh.md").stat().st_mode) == 0o640


def test_a_writer_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "kept.html"
    path.write_text("old")
    for broken in ("os.replace", "os.fdopen"):
        with monkeypatch.context() as patch:
            patch.setattr(broken, lambda *_: (_ for _ in ()).throw(OSError("full")))
            with pytest.raises(OSError, match="full"):
                save(DOCUMENT, path)
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_said_before_the_work(tmp_path):
    (tmp_path / "folder.html").mkdir()
    endings = "ends in .html, .pdf, .md, .tex or .ipynb"
    for name, why in (("x.doc", endings), ("x", "ends in"), ("folder.html", "a file")):
        with pytest.raises(OptionError, match=why):
            writable(tmp_path / name, "--report")
    with pytest.raises(OptionError, match="existing folder"):
        writable(tmp_path / "nowhere" / "x.html")
    assert writable(tmp_path / "x.html") == tmp_path / "x.html"
    assert not (tmp_path / "x.html").exists()
