"""LaTeX source into Markdown: sections, lists with the labels that would be printed, listings, tables. Maths stays."""

from __future__ import annotations

import re

from .document import Draft
from .markdown import DISPLAY

_VERBATIM = (
    r"\\begin\{(?P<verb>lstlisting|verbatim|minted|python|Verbatim)\*?\}(?:\[[^\]]*\])?(?:\{\w+\})?"
    r"(?P<listing>(?:[^\\]|\\(?!(?:begin|end)\{(?P=verb)))*+)\\end\{(?P=verb)\*?\}"
)
_COMMENT = re.compile(rf"{_VERBATIM}|(?<!\\)(?P<comment>%[^\n]*\n?)")
_MACRO = re.compile(r"\\(?:re|provide)?newcommand\*?\s*\{?\\(\w+)\}?\s*\{((?:[^{}]|\{[^{}]*\}){0,200})\}|"
                    r"\\def\s*\\(\w+)\s*\{((?:[^{}]|\{[^{}]*\}){0,200})\}")  # fmt: skip
_MOST_MACROS, _MOST_GROWTH = 200, 2_000_000
_EQUATION = r"\\(?:begin|end)\{(?:equation|displaymath|align|gather|multline|eqnarray|flalign)\*?\}"
_INNER = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*"
_STRUCTURE = re.compile(
    rf"{_VERBATIM}|(?P<equation>{_EQUATION})"
    r"|\\begin\{(?P<list>enumerate|itemize|description|questions|parts|subparts|choices|checkboxes|oneparchoices)\}"
    r"(?:\[(?P<style>[^\]]*)\])?"
    r"|\\end\{(?P<closed>enumerate|itemize|description|questions|parts|subparts|choices|checkboxes|oneparchoices)\}"
    r"|\\(?P<item>item|question|part|subpart|choice|CorrectChoice)\b(?:\s*\[(?P<given>[^\]]*)\])?\s*"
    rf"|\\(?P<section>part|chapter|section|subsection|subsubsection|paragraph|title)\*?(?:\[[^\]]*\])?\{{(?P<head>{_INNER})\}}"
    r"|\\begin\{(?P<exercise>exercise|problem|question|Exercise|Problem|Question|prob|ex)\}(?:\[(?P<name>[^\]]*)\])?"
    r"|\\end\{(?:exercise|problem|question|Exercise|Problem|Question|prob|ex)\}"
    r"|\\begin\{tabular[x*]?\}(?:\{[^{}]*\})?\{(?:[^{}]|\{[^{}]*\})*\}(?P<table>(?:[^\\]|\\(?!(?:begin|end)\{tabular))*+)\\end\{tabular[x*]?\}"
)
_MATHS = rf"{DISPLAY}|(?<!\\)\$(?:[^$\\]|\\.){{1,4000}}+\$|\\\((?:[^\\]|\\(?![()]))*+\\\)"
_WORDS = re.compile(
    rf"(?P<keep>^```\n(?:(?!```)[^\n]*\n)*+```$|{_MATHS})"
    r"|\\(?:textbf|textit|emph|underline|texttt|textsc|textrm|textsf|text|mbox|fbox|centerline|footnote)\s*"
    rf"\{{(?P<inner>{_INNER})\}}"
    r"|\\(?:begin|end)\{(?:document|center|figure|table|quote|quotation|flushleft|minipage|solution|abstract|mdframed"
    r"|tcolorbox|framed|itemize\*)\*?\}(?:\[[^\]]*\])?(?:\{[^{}]*\})?"
    r"|\\(?:label|vspace|hspace|includegraphics|cite|citep|citet|usepackage|bibliography|pagestyle|thispagestyle|input"
    r"|setcounter|hfill)\*?(?:\[[^\]]*\])?\{[^{}]*\}"
    r"|\\(?:noindent|newpage|clearpage|maketitle|centering|bigskip|medskip|smallskip|small|large|Large|normalsize|par"
    r"|hfill|vfill|hline|bfseries|itshape|tableofcontents)\b\*?"
    r"|\\ref\{(?P<reference>[^{}]*)\}|\\href\{[^{}]*\}\{(?P<linked>[^{}]*)\}"
    r"|(?P<newline>\\\\(?:\[[^\]]*\])?|\\newline\b)|\\(?P<sign>[%_&#{}$])|(?P<tie>~)|(?P<quote>``|'')",
    re.MULTILINE,
)
_LEVELS = {"title": 1, "part": 1, "chapter": 1, "section": 2, "subsection": 3, "subsubsection": 4, "paragraph": 5}
ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii")
_NUMBERED = {"enumerate", "questions", "parts", "subparts"}


def read_latex(draft: Draft) -> None:
    """Turn LaTeX source into Markdown whose lists have their printed labels."""
    draft.substitute(_COMMENT, lambda found: None if found["verb"] else "")
    body = re.search(r"\\begin\{document\}([\s\S]*?)(?:\\end\{document\}|\Z)", draft.text)
    macros = {(found[1] or found[3]): (found[2] or found[4] or "") for found in _MACRO.finditer(draft.text)}
    if body:
        draft.replace([(0, body.start(1), ""), (body.end(1), len(draft.text), "")])
    draft.substitute(_MACRO, "")
    _expand(draft, dict(list(macros.items())[:_MOST_MACROS]))
    draft.substitute(_STRUCTURE, _Lists().markdown)
    for _ in range(3):  # \textbf{\emph{…}}
        draft.substitute(_WORDS, _plain)
    draft.substitute(re.compile(r"\n[ ]*\n(?:[ ]*\n)+"), "\n\n")


def _expand(draft: Draft, macros: dict[str, str]) -> None:
    """Replace macros without arguments, three levels deep, unless the text grows too much."""
    if not macros:
        return
    pattern = re.compile(rf"\\({'|'.join(sorted(map(re.escape, macros), key=len, reverse=True))})(?![A-Za-z])")
    for _ in range(3):
        growth = sum(len(macros[found[1]]) - len(found.group()) for found in pattern.finditer(draft.text))
        if growth > _MOST_GROWTH:
            return
        draft.substitute(pattern, lambda found: macros[found[1]])


class _Lists:
    """Counts list items and exercises as LaTeX would print them."""

    def __init__(self) -> None:
        self.open: list[tuple[str, str, int]] = []  # environment, style, items so far
        self.exercises = 0

    def markdown(self, found: re.Match[str]) -> str | None:
        if found["verb"]:
            return f"\n```\n{found['listing'].strip(chr(10))}\n```\n"
        if found["equation"]:
            return "\n$$\n"
        if found["list"]:
            depth = sum(name in _NUMBERED for name, *_ in self.open)
            self.open.append((found["list"], found["style"] or ("1", "(a)", "i", "A")[min(depth, 3)], 0))
            return "\n"
        if found["closed"]:
            del self.open[-1:]
            return "\n"
        if found["item"] and not (found["item"] == "part" and not self.open):
            return f"\n{self.label(found['item'], found['given'])} "
        if found["section"]:
            return f"\n\n{'#' * _LEVELS[found['section']]} {' '.join(found['head'].split())}\n\n"
        if found["exercise"]:
            self.exercises += 1
            word = "Exercise" if found["exercise"].lower().startswith("ex") else found["exercise"].capitalize()
            word = "Problem" if word == "Prob" else word
            return f"\n\n{word} {self.exercises}. {found['name'] or ''}"
        if found["table"] is not None:
            rows = [row.replace(r"\hline", "").strip() for row in re.split(r"\\\\", found["table"])]
            lines = ["| " + re.sub(r"\s*(?<!\\)&\s*", " | ", row) + " |" for row in rows if row]
            rule = "|" + " --- |" * (lines[0].count(" | ") + 1) if lines else ""
            return "\n\n" + "\n".join([*lines[:1], rule, *lines[1:]]) + "\n\n"
        return "\n"

    def label(self, command: str, given: str | None) -> str:
        name, style, count = self.open.pop() if self.open else ("itemize", "", 0)
        self.open.append((name, style, count + 1))
        if command in ("choice", "CorrectChoice"):
            return "⃝"
        points = f" ({given} points)" if given and command != "item" else ""
        if given and command == "item":
            return given
        if name not in _NUMBERED:
            return "-"
        match = re.search(r"\\(alph|Alph|roman|Roman|arabic)\*?|(?<![a-zA-Z])([aAiI1])(?![a-zA-Z])", style)
        kind = (match[1] or match[2]) if match else "1"
        letter = chr(ord("a") + count % 26)
        text = {"a": letter, "A": letter.upper(), "i": ROMAN[count % 12], "I": ROMAN[count % 12].upper()}
        shown = text.get({"alph": "a", "Alph": "A", "roman": "i", "Roman": "I"}.get(kind, kind), str(count + 1))
        around = re.sub(r"^label\s*=\s*|,.*$|[{}]|\\(?:bf\w*|textbf|emph)", "", style)
        around = around.replace(match[0] if match else "", "\0", 1) if match else "\0."
        shown = around.replace("\0", shown).strip()
        return (shown if re.search(r"\W$", shown) else f"{shown}.") + points


def _plain(found: re.Match[str]) -> str | None:
    if found["keep"]:
        return None
    if found["newline"]:
        return "\n"
    if found["quote"]:
        return '"'
    if found["sign"]:
        return found["sign"]
    return " " if found["tie"] else found["inner"] or found["linked"] or found["reference"] or ""
