"""Pages: the frame around a view, and a view as one file that needs no server."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from urllib.parse import urlencode

from markupsafe import Markup

from ..figures.theme import STYLE
from .fields import shortened
from .markup import STATIC, asset, environment
from .view import View
from .views import NAMES, every
from .worker import Answer

FONT = "fonts/qkv-math.woff2"


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
            styles=["lab.css", *_own_style(view)],
        )
    )


def message(title: str, words: str) -> str:
    """A page that says why there is no other."""
    return (
        environment()
        .get_template("message.html")
        .render(title=title, words=words, views=every()[1:], styles=["lab.css"])
    )


def one_file(view: View, found: Answer) -> str:
    """A view as it stands, in one file: style and font inside, nothing to load, nothing that runs."""
    style = "\n".join(
        (
            _with_font(_text("lab.css")),
            figure_style(),
            *map(_text, _own_style(view)),
        )
    )
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; font-src data:; base-uri 'none'; form-action 'none'"
    asked = [(field.label, found.texts[field.name]) for field in view.fields if _matters(view, field.name, found)]
    return (
        environment()
        .get_template("saved.html")
        .render(
            view=view,
            region=Markup(_unlinked(found.html)),
            python=found.python,
            asked=asked,
            style=Markup(style),
            policy=policy,
        )
    )


@lru_cache(maxsize=1)
def figure_style() -> str:
    """The dark colours of figures, for readers whose system is dark and for those who asked for it here."""
    rules = re.findall(r"([^{}]+)\{([^{}]+)\}", STYLE[STYLE.index("{") + 1 : -1])
    by_system = "".join(f":root:not([data-theme=light]) {name.strip()}{{{rule}}}" for name, rule in rules)
    by_choice = "".join(f":root[data-theme=dark] {name.strip()}{{{rule}}}" for name, rule in rules)
    return f"@media screen and (prefers-color-scheme:dark){{{by_system}}}\n@media screen{{{by_choice}}}\n"


def _own_style(view: View) -> list[str]:
    name = f"views/{view.name}.css"
    return [name] if (STATIC / name).exists() else []


def _text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _with_font(style: str) -> str:
    font = base64.b64encode((STATIC / FONT).read_bytes()).decode()
    return re.sub(r'url\("?fonts/[^)]*\)', f"url(data:font/woff2;base64,{font})", style)


def _matters(view: View, name: str, found: Answer) -> bool:
    needs = next(field.needs for field in view.fields if field.name == name)
    return needs is None or found.texts[needs[0]] in needs[1]


def _unlinked(html: str) -> str:
    """Buttons that asked the server have no server to ask."""
    return re.sub(r"<button\b", "<button disabled", html)


__all__ = ["FONT", "asset", "figure_style", "message", "one_file", "page"]
