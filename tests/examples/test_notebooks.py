"""Every notebook runs, as it is stored: without outputs, in short cells, with nothing from a network."""

import importlib.util
import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "notebooks.py")
assert spec is not None
assert spec.loader is not None
notebooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(notebooks)

NAMES = {
    "a_new_similarity",
    "attention_by_hand",
    "check_and_grade",
    "decoding_and_caches",
    "linear_attention",
    "what_will_my_model_cost",
}
EMPTY = {"br", "hr", "img", "meta", "link", "input"}


def test_there_are_six() -> None:
    assert {path.stem for path in notebooks.NOTEBOOKS} == NAMES


@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_are_short_and_stored_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert 8 <= len(notebook.cells) <= 15
    assert notebook.cells[0].source.startswith("# ")
    figures = 0
    for cell in notebook.cells:
        assert cell.cell_type in ("markdown", "code")
        assert len(cell.source.splitlines()) <= 26
        assert not re.search(r"https?://|%pip|!pip", cell.source)
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None
            figures += cell.source.count("show(")
        else:
            assert max(map(len, cell.source.splitlines())) <= 120
    assert 1 <= figures <= 3


class Balanced(HTMLParser):
    """Fails on an element that is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.slow
@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_its_outputs_make_a_page(path: Path) -> None:
    notebook = notebooks.executed(path)
    shown = 0
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        # Warnings go to the standard error, and no reader should see one.
        assert not [each for each in outputs if each.get("name") == "stderr"], outputs
        if outputs:
            page = notebooks.output_html(outputs)
            assert not re.search(r'(?:src|href)="https?://|@import', page)
            parser = Balanced()
            parser.feed(page)
            assert not parser.open
            shown += "<svg" in page
    assert shown >= 1
    text = notebooks.markdown(notebook, path.stem)
    assert text.count("NOTEBOOK-OUTPUT-") == sum(bool(cell.get("outputs")) for cell in notebook.cells)
