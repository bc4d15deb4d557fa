"""A saved web page as Markdown: what is visible, formulas as TeX, and who says it where the page marks it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from .speakers import role_of

_HIDDEN = frozenset(
    {"script", "style", "head", "template", "noscript", "svg", "button", "nav", "textarea", "select", "title"}
)
_BLOCKS = frozenset({"p", "div", "section", "article", "ul", "ol", "table", "blockquote", "main", "header", "footer"})
_EMPTY = frozenset(
    {"br", "img", "hr", "input", "meta", "link", "wbr", "col", "source", "area", "base", "embed", "track"}
)
_ROLE_ATTRIBUTES = ("data-message-author-role", "data-author", "data-role", "data-sender", "data-message-role",
                    "data-testid")  # fmt: skip
_BEGINS = re.compile(r"\s*(?:<!--.*?-->\s*)*<(?:!doctype html|html|head|body|main)\b", re.IGNORECASE | re.DOTALL)
_ROLE_TAGS = {"user-query": "student", "model-response": "tutor"}  # elements of Gemini's pages


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.turns: list[tuple[str, list[str]]] = [("unknown", [])]
        self.open: list[tuple[str, bool, str]] = []  # tag, whether what it holds is hidden, the role that it begins
        self.tex: list[str] | None = None
        self.row: list[str] | None = None

    def put(self, text: str) -> None:
        (self.tex if self.tex is not None else self.turns[-1][1]).append(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in _EMPTY:
            if tag == "br":
                self.put("\n")
            return
        classes = given.get("class", "").split()
        tex = tag == "annotation" and "tex" in given.get("encoding", "")
        hidden = (
            tag in _HIDDEN or "hidden" in given or given.get("style", "").replace(" ", "").startswith("display:none")
        )
        # KaTeX and MathJax write a formula twice; its TeX is the one to keep.
        hidden = hidden or "katex-html" in classes or "mjx-chtml" in classes or tag == "mjx-container"
        named = (role_of(given.get(name, "").replace("-", " ")) for name in _ROLE_ATTRIBUTES)
        role = _ROLE_TAGS.get(tag) or next((each for each in named if each), None)
        role = role if role in ("student", "tutor") else ""
        self.open.append((tag, hidden, role))
        if role and not any(outer for _, _, outer in self.open[:-1]):
            self.turns.append((role, []))
        if tex:
            self.tex = []
        elif tag in _BLOCKS:
            self.put("\n\n")
        elif tag == "li":
            self.put("\n- ")
        elif tag == "tr":
            self.put("\n|")
        elif tag == "pre":
            self.put("\n```\n")
        elif re.fullmatch(r"h[1-6]", tag):
            self.put(f"\n\n{'#' * int(tag[1])} ")
        elif tag in ("sup", "sub") and not self.hidden:
            self.put("^{" if tag == "sup" else "_{")

    def handle_endtag(self, tag: str) -> None:
        at = next((at for at in range(len(self.open) - 1, -1, -1) if self.open[at][0] == tag), -1)
        if at < 0:
            return
        if tag == "annotation" and self.tex is not None:
            tex, self.tex = "".join(self.tex).strip(), None
            display = any(each == "math" for each, *_ in self.open) and "\n" in tex
            self.turns[-1][1].append(f"$${tex}$$" if display else f"${tex}$")
        elif tag in ("td", "th"):
            self.put(" |")
        elif tag == "pre":
            self.put("\n```\n")
        elif tag in _BLOCKS or re.fullmatch(r"h[1-6]", tag):
            self.put("\n\n")
        elif tag in ("sup", "sub") and not self.hidden:
            self.put("}")
        role = self.open[at][2]
        del self.open[at:]
        if role and not any(outer for _, _, outer in self.open):
            self.turns.append(("unknown", []))

    @property
    def hidden(self) -> bool:
        return any(hidden for _, hidden, _ in self.open)

    def handle_data(self, data: str) -> None:
        if self.tex is not None:
            self.tex.append(data)
        elif not self.hidden and not any(tag == "math" for tag, *_ in self.open):
            preformatted = any(tag == "pre" for tag, *_ in self.open)
            self.put(data if preformatted else re.sub(r"\s+", " ", data))


def is_webpage(text: str) -> bool:
    """Whether a text is HTML."""
    return _BEGINS.match(text[:4000]) is not None


def read_webpage(text: str) -> list[tuple[str, str]]:
    """The turns of a page, (role, Markdown); one of the role "unknown" where the page marks no roles."""
    page = _Page()
    page.feed(text)
    page.close()
    blank = re.compile(r"[ \t]*\n[ \t]*(?:\n[ \t]*)+")
    said = [(role, blank.sub("\n\n", "".join(pieces)).strip()) for role, pieces in page.turns]
    roles = {role for role, text in said if text} - {"unknown"}
    kept = [(role, text) for role, text in said if text and (role != "unknown" or not roles)]
    return kept if roles else [("unknown", "\n\n".join(text for _, text in kept))] if kept else []
