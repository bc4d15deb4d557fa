"""Public names are documented: a summary, arguments, results, errors, and an example that runs.

Doctests run with the suite (pytest's --doctest-modules), blocks of pages in tests/test_docs.py.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "qkv", "qkv.compat", "qkv.cost", "qkv.errors", "qkv.exercises", "qkv.features", "qkv.grading", "qkv.hf",
    "qkv.maths", "qkv.parallel", "qkv.reading", "qkv.runtime", "qkv.testing", "qkv.theory",
)  # fmt: skip
# Errors have the arguments of Exception, and the Raises of functions show them.
ERRORS = "qkv.errors"


def public() -> Iterator[tuple[str, Any]]:
    """Functions and classes of the public packages, each once."""
    seen: set[int] = set()
    for package in PACKAGES:
        module = importlib.import_module(package)
        names = getattr(module, "__all__", None) or [
            name for name, each in vars(module).items() if getattr(each, "__module__", "") == package and name[0] != "_"
        ]
        for name in names:
            thing = getattr(module, name)
            if (inspect.isfunction(thing) or inspect.isclass(thing)) and id(thing) not in seen:
                seen.add(id(thing))
                yield f"{package}.{name}", thing


NAMES = dict(public())
FUNCTIONS = {name: each for name, each in NAMES.items() if inspect.isfunction(each)}


def described(thing: Any) -> str:
    """Its docstring, not that of a base class."""
    return inspect.cleandoc(vars(thing).get("__doc__") or "") if inspect.isclass(thing) else inspect.getdoc(thing) or ""


@cache
def examples() -> str:
    """All code that tests run: blocks of pages, and doctests."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    blocks = [
        block for page in pages for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    ]
    for file in (ROOT / "src" / "qkv").rglob("*.py"):
        blocks += re.findall(r"^ *(?:>>>|\.\.\.|Traceback|qkv\.errors\.).*$", file.read_text("utf-8"), re.MULTILINE)
    return "\n".join(blocks)


@cache
def annotations() -> str:
    """What functions return, and fields."""
    pattern = re.compile(r"->[^:\n]*|^ {4}\w+: [^=\n]*|Returns:\n.*", re.MULTILINE)
    return "\n".join(
        line for file in (ROOT / "src" / "qkv").rglob("*.py") for line in pattern.findall(file.read_text("utf-8"))
    )


def is_result(short: str) -> bool:
    """Whether a function returns it, or another class holds it: examples of those show it."""
    return bool(re.search(rf"\b{short}\b", annotations()))


@pytest.mark.parametrize("name", NAMES)
def test_a_summary_line_and_an_example(name: str) -> None:
    text = described(NAMES[name])
    summary = text.partition("\n\n")[0].strip()
    assert summary, "no summary"
    short = name.rpartition(".")[2]
    if not name.startswith(ERRORS) and not (inspect.isclass(NAMES[name]) and is_result(short)):
        assert ">>>" in text or re.search(rf"\b{short}\b", examples()), "no example that runs has it"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_results_and_errors_of_functions(name: str) -> None:
    function, text = FUNCTIONS[name], described(FUNCTIONS[name])
    signature = inspect.signature(function)
    if parameters := _parameters(function):
        assert "Args:\n" in text, "no Args"
        assert not [each for each in parameters if not re.search(rf"\b{each}\b", text)]
    if signature.return_annotation not in (None, "None", inspect.Signature.empty):
        assert re.search(r"(?:Returns|Yields):\n", text), "no Returns"
    if re.search(r"^ +raise \w*(?:Error|Refused)", inspect.getsource(function), re.MULTILINE):
        assert "Raises:\n" in text, "no Raises"


@pytest.mark.parametrize("name", [name for name, each in NAMES.items() if name not in FUNCTIONS])
def test_arguments_of_classes_that_examples_call(name: str) -> None:
    """Who only reads a result need not know its constructor."""
    thing, short = NAMES[name], name.rpartition(".")[2]
    called = re.search(rf"\b{short}\((?!\))", examples())
    parameters = _parameters(thing)
    if called and parameters and not name.startswith(ERRORS) and not is_result(short):
        text = described(thing) + (inspect.getdoc(thing.__init__) or "")
        assert "Args:\n" in text, "no Args"


def _parameters(thing: Any) -> list[str]:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return []
    return [
        each.name for each in signature.parameters.values() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
