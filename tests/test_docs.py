"""The pages' examples run, in order, and what they assert is so."""

import contextlib
import io
import os
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # before a page imports transformers
DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize(
    "page", ["cost.md", "hf.md", "linear.md", "maths.md", "nn.md", "parallel.md", "teach.md", "theory.md"]
)
def test_examples_run(page: str) -> None:
    """Every block runs; what stands in a block of text right below one is what it prints."""
    torch.manual_seed(0)
    found = r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?"
    blocks = re.findall(found, (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    scope: dict = {}
    for block, shown in blocks:
        screen = io.StringIO()
        with contextlib.redirect_stdout(screen):
            exec(compile(block, page, "exec"), scope)
        assert not shown or screen.getvalue().split() == shown.split()


def test_formulas_on_the_pages_are_those_of_the_code() -> None:
    found = spec_from_file_location("generate", DOCS / "generate.py")
    assert found is not None
    assert found.loader is not None
    generate = module_from_spec(found)
    found.loader.exec_module(generate)
    text = (DOCS / "cost.md").read_text(encoding="utf-8")
    assert all(f"<!-- from the code: {name} -->" in text for name in generate.PARTS)
    assert generate.updated(text) == text, "make docs writes them again"
