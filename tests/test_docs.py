"""The pages' examples run, in order, and what they assert is so."""

import os
import re
from pathlib import Path

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # before a page imports transformers
DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", ["hf.md", "linear.md", "nn.md"])
def test_examples_run(page: str) -> None:
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 5
    scope: dict = {}
    for block in blocks:
        exec(compile(block, page, "exec"), scope)
