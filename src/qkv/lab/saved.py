"""A view as one file that needs no server: its result, style, font, and the scripts that ask for nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re

from markupsafe import Markup

from .markup import STATIC, data, environment
from .pages import figure_style, own_style
from .view import View
from .worker import Answer

FONT = "fonts/qkv-math.woff2"
_IMPORT = re.compile(r'^import \{([^}]+)\} from "([^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function |const )(\w+)", re.MULTILINE)
_ASKING = re.compile(r"<(button|input)(?=[^>]*\sdata-(?:set|preset|reset|record|drop)\b)|<select\b")


def one_file(view: View, found: Answer) -> str:
    """The view as it stands."""
    style = "\n".join((_with_font(_text("lab.css")), figure_style(), *map(_text, own_style(view))))
    scripts = {"theme": _text("theme.js"), "bundle": bundle("saved.js", *(view.scripts if view.alone else ()))}
    allowed = " ".join(f"'sha256-{_digest(text)}'" for text in scripts.values())
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'sha256-{_digest(style)}'; font-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    asked = [(field.label, found.texts[field.name]) for field in view.fields if _matters(view, field.name, found)]
    return (
        environment()
        .get_template("saved.html")
        .render(
            view=view,
            region=Markup(_unasked(found.html)),
            python=found.python,
            asked=asked,
            style=Markup(style),
            scripts={name: Markup(text) for name, text in scripts.items()},
            held={"state": _json(dict(found.texts)), "glossary": _json(data("glossary"))},
            policy=policy,
        )
    )


def bundle(*names: str) -> str:
    """Modules and what they import as one script, in which saved.js takes the place of lab.js."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        text = _text(name)

        def imported(match: re.Match[str]) -> str:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[2]))
            path = "saved.js" if path == "lab.js" else path
            add(path)
            return f'const {{{match[1]}}} = modules["{path}"];'

        text = _EXPORT.sub(r"\1\2", _IMPORT.sub(imported, text))
        given = ", ".join(match[2] for match in _EXPORT.finditer(_text(name)))
        done[name] = f'modules["{name}"] = (() => {{\n{text}\nreturn {{ {given} }};\n}})();'

    for name in names:
        add(name)
    return "\n".join(["const modules = {};", *done.values()])


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(value: object) -> Markup:
    """JSON that no markup can end."""
    return Markup(json.dumps(value).replace("<", "\\u003c"))


def _text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _with_font(style: str) -> str:
    font = base64.b64encode((STATIC / FONT).read_bytes()).decode()
    return re.sub(r'url\("?fonts/[^)]*\)', f"url(data:font/woff2;base64,{font})", style)


def _matters(view: View, name: str, found: Answer) -> bool:
    needs = next(field.needs for field in view.fields if field.name == name)
    return needs is None or found.texts[needs[0]] in needs[1]


def _unasked(html: str) -> str:
    """What would ask the server has none to ask, and links to other views lead nowhere."""
    return re.sub(r'<a ((?:[^>]*\s)?)href="/[^"]*"', r"<a \1", _ASKING.sub(r"\g<0> disabled", html))
