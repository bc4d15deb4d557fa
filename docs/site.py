"""What the site needs beyond Markdown: pages of the repository's first folder, links to them, and doctests as code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
INCLUDED = {"CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
_SHIM = "https://unpkg.com/iframe-worker/shim"
_LINK = re.compile(r"\]\((?!\w+:|#)([\w./-]+)(#[\w-]+)?\)")
_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?! *\n).+)*", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the first folder."""
    for name, page in INCLUDED.items():
        files.append(File.generated(config, page, content=_linked((ROOT / name).read_text(encoding="utf-8"), ROOT)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links relative to the site."""
    of_docs = page.file.abs_src_path
    return markdown if of_docs is None else _linked(markdown, Path(of_docs).parent)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """The script with which the search works without a server comes with the site."""
    return output.replace(_SHIM, "../" * page.file.dest_uri.count("/") + "assets/iframe-worker.js")


def on_post_template(output: str, **_: Any) -> str:
    return output.replace(_SHIM, "/assets/iframe-worker.js")  # of 404.html, which has no fixed place


def _linked(markdown: str, folder: Path) -> str:
    """The text of a file in a folder, with links to pages; other files of the repository are named without a link."""
    docs = ROOT / "docs"

    def link(found: re.Match[str]) -> str:
        target = (folder / found[1]).resolve()
        page = INCLUDED.get(found[1].removeprefix("../"), "")
        if target.suffix == ".ipynb":
            page = f"notebooks/{target.stem}.md"
        if not page and target.is_relative_to(docs):
            page = str(target.relative_to(docs))
        if not page:
            return "]"
        up = "../" * len(folder.relative_to(docs).parts) if folder.is_relative_to(docs) else ""
        return f"]({up}{page}{found[2] or ''})"

    return _LINK.sub(link, markdown)


class Doctests(griffe.Extension):
    """Examples of docstrings become code blocks; Markdown reads >>> as quotations."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)
