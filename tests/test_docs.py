"""The examples of the documentation run, and its formulas agree with the code."""

import contextlib
import io
import os
import re
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from qkv import backends, inputs
from qkv.cache.formats import FORMATS
from qkv.exercises import bank

os.environ["HF_HUB_OFFLINE"] = "1"  # before a page imports transformers
DOCS = Path(__file__).parent.parent / "docs"


EXAMPLE = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
PAGES = [page for page in sorted(DOCS.glob("*.md")) if "```python" in page.read_text(encoding="utf-8")]


@pytest.fixture
def no_process_group() -> Iterator[None]:
    """docs/parallel.md creates a process group, which must not outlive the test."""
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_pages_with_examples_are_found() -> None:
    assert {"cache", "cost", "hf", "linear", "maths", "nn", "parallel", "exercises", "grading", "theory"} <= {
        p.stem for p in PAGES
    }


@pytest.mark.usefixtures("no_process_group")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of a page runs, in order; a text block below it is what it prints."""
    # docs/extending.md registers a backend, a family and a storage format.
    monkeypatch.setattr(inputs, "BACKEND_NAMES", [*inputs.BACKEND_NAMES])
    monkeypatch.setattr(backends, "BACKEND_NAMES", inputs.BACKEND_NAMES)
    monkeypatch.setitem(backends.BACKENDS, "online", backends.BACKENDS["sdpa"])
    del backends.BACKENDS["online"]
    monkeypatch.setattr(bank, "_ADDED", {})
    monkeypatch.setitem(FORMATS, torch.float8_e4m3fn, FORMATS[torch.int8])
    del FORMATS[torch.float8_e4m3fn]
    torch.manual_seed(0)
    scope: dict = {}
    for code, expected in EXAMPLE.findall(page.read_text(encoding="utf-8")):
        screen = io.StringIO()
        with contextlib.redirect_stdout(screen):
            exec(compile(code, page.name, "exec"), scope)
        assert not expected or screen.getvalue().split() == expected.split()
    backends.CHOSEN.clear()
    scope.clear()  # what a page registers keeps its globals, caches included, until the interpreter ends


def test_formulas_on_the_pages_agree_with_the_code() -> None:
    found = spec_from_file_location("generate", DOCS / "generate.py")
    assert found is not None
    assert found.loader is not None
    generate = module_from_spec(found)
    found.loader.exec_module(generate)
    text = (DOCS / "cost.md").read_text(encoding="utf-8")
    assert all(f"<!-- from the code: {name} -->" in text for name in generate.PARTS)
    assert generate.updated(text) == text, "run make docs"
