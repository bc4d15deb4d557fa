"""The README's examples run and print the text below them; its commands and links exist."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(python|text)\n(.*?)```", README, re.DOTALL)
TARGETS = sorted(set(re.findall(r"(?:`|^ {4}|; )make ([a-z-]+)", README, re.MULTILINE)))


def test_examples_run_and_print_the_text_below_them() -> None:
    scope: dict = {}
    printed, compared = "", 0
    for kind, text in BLOCKS:
        if kind == "python":
            screen = io.StringIO()
            with contextlib.redirect_stdout(screen):
                exec(compile(text, "README.md", "exec"), scope)
            printed = screen.getvalue()
        else:
            compared += 1
            assert printed.split() == text.split()
    assert compared == sum(kind == "python" for kind, _ in BLOCKS) == 5


def test_the_readme_names_the_main_commands() -> None:
    assert {"tour", "test", "test-all", "lab", "bench", "weights"} <= set(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_make_has_the_commands(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(
    "page", [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name
)
def test_links_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def test_ci_runs_all_tests() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("make test")] == ["make test", "make test-all"]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 150
