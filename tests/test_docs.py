"""The examples of the documentation run, its formulas agree with the code, and the site is whole."""

import contextlib
import importlib
import inspect
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import qkv
from qkv import backends, inputs
from qkv.cache.formats import FORMATS
from qkv.cli import app
from qkv.exercises import bank

os.environ["HF_HUB_OFFLINE"] = "1"  # before a page imports transformers
DOCS = Path(__file__).parent.parent / "docs"


EXAMPLE = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "```python" in page.read_text(encoding="utf-8")]


@pytest.fixture
def no_process_group() -> Iterator[None]:
    """docs/parallel.md creates a process group, which must not outlive the test."""
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_pages_with_examples_are_found() -> None:
    assert {"caches", "cost", "hf", "linear", "maths", "nn", "parallel", "exercises", "grading", "theory"} <= {
        p.stem for p in PAGES
    }


@pytest.mark.usefixtures("no_process_group")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
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


def _module(name: str) -> Any:
    """A program of docs/."""
    found = spec_from_file_location(name, DOCS / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_formulas_on_the_pages_agree_with_the_code() -> None:
    generate = _module("generate")
    text = (DOCS / "cost.md").read_text(encoding="utf-8")
    assert all(f"<!-- from the code: {name} -->" in text for name in generate.PARTS)
    assert generate.updated(text) == text, "run make docs"


def test_charts_agree_with_the_tables_and_the_code() -> None:
    charts = _module("charts")
    for name, draw in charts.CHARTS.items():
        assert draw() == (DOCS / "images" / name).read_text(encoding="utf-8"), "run make docs"


def test_the_commands_of_the_pages_have_those_options() -> None:
    """Lines and words in backticks that begin with qkv; what stands for something (NAME, …) is not parsed."""
    group: Any = typer.main.get_command(app)
    found = 0
    for page in [*sorted(DOCS.rglob("*.md")), DOCS.parent / "README.md"]:
        text = re.sub(r"```(?:python|text|json|toml)\n.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for call in re.findall(r"(?:^ {4}|`)(qkv [a-z][^`\n]*)", text, re.MULTILINE):
            name, *words = re.sub(r"'[^']*'|\"[^\"]*\"", "TEXT", call.split(" #")[0]).split()[1:]
            assert name in group.commands, (page.name, call)
            known = {option for each in group.commands[name].params for option in (*each.opts, *each.secondary_opts)}
            known |= {"-h", "--help"}
            for word in words:
                if re.match(r"--?[a-z]", word) and "…" not in word:
                    assert re.split(r"[=,.;)|]", word)[0] in known, (page.name, call)
            found += 1
    assert found > 100


# Packages whose exported names are public.
EXPORTING = ["hf", "parallel", "cost", "maths", "testing", "exercises", "reading", "grading", "runtime", "widgets"]


def public_objects() -> Iterator[object]:
    """Functions and classes of qkv that users import."""
    names = {name: getattr(qkv, name) for name in qkv.__all__}
    for package in EXPORTING:
        module = importlib.import_module(f"qkv.{package}")
        names |= {f"{package}.{name}": getattr(module, name) for name in module.__all__}
    errors = importlib.import_module("qkv.errors")
    names |= {f"errors.{name}": each for name, each in vars(errors).items() if inspect.isclass(each)}
    for thing in names.values():
        if (inspect.isfunction(thing) or inspect.isclass(thing)) and thing.__module__.startswith("qkv."):
            yield thing


def test_the_reference_has_every_public_name() -> None:
    listed = set()
    for page in (DOCS / "reference").glob("*.md"):
        for path in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            module, name = path.rsplit(".", 1)
            thing = getattr(importlib.import_module(module), name)
            assert id(thing) not in listed, f"{path} is listed twice"
            listed.add(id(thing))
    missing = [f"{each.__module__}.{each.__qualname__}" for each in public_objects() if id(each) not in listed]  # pyright: ignore[reportAttributeAccessIssue]
    assert not missing


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=DOCS.parent, env=environment, capture_output=True, text=True, timeout=110)
    assert built.returncode == 0, built.stderr
    # With --quiet, warnings are dropped before --strict counts them.
    assert not [line for line in built.stderr.splitlines() if not line.startswith("INFO")]
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loaded = re.findall(
            r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"?(https?:[^\" >]+)", page.read_text(encoding="utf-8")
        )
        assert not loaded, (page.name, loaded)
