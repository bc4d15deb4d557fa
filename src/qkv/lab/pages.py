"""Pages: the frame around a view."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import urlencode

from markupsafe import Markup

from ..figures.theme import STYLE
from .fields import shortened
from .markup import STATIC, environment
from .view import View
from .views import NAMES, every
from .worker import Answer


def page(view: View, found: Answer, *, pending: bool) -> str:
    """The whole page. `pending`: the result is not there yet, and the page's script asks for it."""
    return (
        environment()
        .get_template("home.html" if view.name == NAMES[0] else "view.html")
        .render(
            view=view,
            views=every()[1:],
            texts=found.texts,
            problems=found.problems,
            region=Markup(found.html),
            python=found.python,
            pending=pending,
            query=urlencode(shortened(view.fields, found.texts)),
            styles=["lab.css", *own_style(view)],
        )
    )


def message(title: str, words: str) -> str:
    """A page that says why there is no other."""
    return (
        environment()
        .get_template("message.html")
        .render(title=title, words=words, views=every()[1:], styles=["lab.css"])
    )


@lru_cache(maxsize=1)
def figure_style() -> str:
    """The dark colours of figures, for readers whose system is dark and for those who asked for it here."""
    rules = re.findall(r"([^{}]+)\{([^{}]+)\}", STYLE[STYLE.index("{") + 1 : -1])
    by_system = "".join(f":root:not([data-theme=light]) {name.strip()}{{{rule}}}" for name, rule in rules)
    by_choice = "".join(f":root[data-theme=dark] {name.strip()}{{{rule}}}" for name, rule in rules)
    return f"@media screen and (prefers-color-scheme:dark){{{by_system}}}\n@media screen{{{by_choice}}}\n"


def own_style(view: View) -> list[str]:
    name = f"views/{view.name}.css"
    return [name] if (STATIC / name).exists() else []
