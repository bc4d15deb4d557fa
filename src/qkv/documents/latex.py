"""LaTeX source into Markdown: sections, lists with the labels that would be printed, listings, tables. Maths stays."""

from __future__ import annotations

import re
from itertools import islice

from .document import TABLE, Draft, counted

_MOST_MACROS, _MOST_GROWTH = 200, 2_000_000
_NUMBERED = {"enumerate", "questions", "parts", "subparts"}
_STYLES = ("1.", "(a)", "i.", "A.")


def read_latex(draft: Draft) -> None:
    """Turn LaTeX source into Markdown whose lists have their printed labels."""
    draft.substitute(TABLE["comment"], lambda found: None if found["verb"] else "")
    macros = {found[1] or found[3]: found[2] or found[4] or ""
              for found in islice(TABLE["macro"].finditer(draft.text), _MOST_MACROS)}  # fmt: skip
    if body := TABLE["body"].search(draft.text):
        draft.replace([(0, body.start(1), ""), (body.end(1), len(draft.text), "")])
    draft.substitute(TABLE["macro"], "")
    _expand(draft, macros)
    draft.substitute(TABLE["structure"], _Lists().markdown)
    for _ in range(3):  # \textbf{\emph{…}}
        draft.substitute(TABLE["words"], _plain)
    draft.substitute(TABLE["blank_lines"], "\n\n")


def _expand(draft: Draft, macros: dict[str, str]) -> None:
    """Replace macros without arguments, three levels deep, unless the text grows too much."""
    pattern = re.compile(rf"\\({'|'.join(map(re.escape, macros)) or '(?!)'})(?![A-Za-z])")
    for _ in range(3):
        if sum(len(macros[found[1]]) for found in pattern.finditer(draft.text)) < _MOST_GROWTH:
            draft.substitute(pattern, lambda found: macros[found[1]])


def table(rows: list[list[str]]) -> str:
    """Cells as a Markdown table, the head first."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines[:1], "|" + " --- |" * len(rows[0]), *lines[1:]]) if rows else ""


class _Lists:
    """Counts list items and exercises as LaTeX would print them."""

    def __init__(self) -> None:
        self.open: list[tuple[str, str, int]] = []  # environment, style, items so far
        self.exercises = 0

    def markdown(self, found: re.Match[str]) -> str:
        if found["verb"]:
            return f"\n```\n{found['listing'].strip(chr(10))}\n```\n"
        if found["equation"]:
            return "\n$$\n"
        if found["list"]:
            depth = sum(name in _NUMBERED for name, *_ in self.open)
            self.open.append((found["list"], _style(found["style"] or "") or _STYLES[min(depth, 3)], 0))
        if found["closed"]:
            del self.open[-1:]
        if found["item"]:
            return f"\n{self.label(found['item'], found['given'] or '')} "
        if found["section"]:
            return f"\n\n{'#' * TABLE.data['levels'][found['section']]} {' '.join(found['head'].split())}\n\n"
        if found["exercise"]:
            self.exercises += 1
            word = next(
                each for each in ("Exercise", "Problem", "Question") if each[:2] == found["exercise"].title()[:2]
            )
            return f"\n\n{word} {self.exercises}. {found['name'] or ''}"
        if found["table"]:
            rows = [row for row in found["table"].replace(r"\hline", "").split(r"\\") if row.strip()]
            return f"\n\n{table([TABLE['cells'].split(row.strip()) for row in rows])}\n\n"
        return "\n"

    def label(self, command: str, given: str) -> str:
        if command in ("choice", "CorrectChoice"):
            return "⃝"
        if given and command == "item":
            return given
        name, style, count = self.open.pop() if self.open else ("itemize", "", 0)
        self.open.append((name, style, count + 1))
        shown = TABLE["counter"].sub(lambda kind: counted(count + 1, kind.group()), style, count=1)
        return (shown if name in _NUMBERED else "-") + (f" ({given} points)" if given else "")


def _style(text: str) -> str:
    """How a list is labelled: "(a)" of "label=(\\alph*)"; nothing where its options do not say."""
    for command, kind in TABLE.data["counters"].items():
        text = text.replace(command, kind)
    text = TABLE["unlabelled"].sub("", text).strip()
    if not TABLE["counter"].search(text):
        return ""
    return f"{text}." if text[-1].isalnum() else text


def _plain(found: re.Match[str]) -> str | None:
    kind = found.lastgroup or ""
    fixed = {"keep": None, "newline": "\n", "quote": '"', "tie": " ", "": ""}
    return fixed[kind] if kind in fixed else found[kind]
