"""Templates, and what they can call."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..maths import parse
from ..render import Block, mathml
from ..render.to_html import fragment
from .numbers import heat, marked
from .view import Result, View

HERE = Path(__file__).parent
VERSION = version("qkv")
STATIC = HERE / "static"


@lru_cache(maxsize=1)
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"version": VERSION, "asset": asset, "heat": heat, "maths": maths}
    made.globals |= {"thumbnail": thumbnail, "data": data}
    return made


def region(view: View, texts: Mapping[str, str], state: Mapping[str, Any], result: Result) -> str:
    """What a view shows of its result."""
    pictures = {name: Markup(text) for name, text in view.pictures(state, result).items()}
    template = environment().get_template(f"views/{view.name}.html")
    return template.render(state=state, texts=texts, result=result, pictures=pictures, n=marked(result))


@lru_cache(maxsize=512)
def _formula(text: str, symbols: tuple[tuple[str, str], ...]) -> Markup:
    return Markup(formula(text, dict(symbols)))


def maths(text: str, symbols: Mapping[str, str]) -> Markup:
    """A formula of a template, as MathML."""
    return _formula(text, tuple(symbols.items()))


@lru_cache(maxsize=4)
def data(name: str) -> Any:
    """The tour or the glossary: files that scripts read too."""
    return json.loads((STATIC / f"{name}.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=32)
def thumbnail(name: str) -> Markup:
    """The small drawing of a view, as SVG for a page."""
    return Markup((STATIC / "thumbs" / f"{name}.svg").read_text(encoding="utf-8"))


@lru_cache(maxsize=64)
def asset(name: str) -> str:
    """The address of a file under static/, new whenever the file is."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:10]
    return f"/static/{name}?v={digest}"


def blocks_html(blocks: Iterable[Block]) -> str:
    """Blocks of a document as HTML with MathML; what they hold is escaped already."""
    return fragment(blocks)


def formula(text: str, symbols: Mapping[str, str], *, block: bool = False) -> str:
    """
    >>> formula("d mu^2", {"d": "natural", "mu": "scalar"}).startswith("<math>")
    True
    """
    return mathml(parse(text, dict(symbols)), block=block)
