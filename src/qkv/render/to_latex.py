"""A LaTeX document, for LuaLaTeX, XeLaTeX or pdfLaTeX; the figures are separate PDF files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import document as d
from .escapes import clean
from .escapes import latex as escape
from .layout import latex_source
from .steps import blocks as derivation_blocks

_START = r"""\documentclass[11pt,a4paper]{article}
\usepackage{amsmath,amssymb,array,graphicx,longtable,textcomp,xcolor}
\usepackage[T1]{fontenc}
\usepackage[margin=2.2cm]{geometry}
\setlength{\parindent}{0pt}\setlength{\parskip}{0.6em}
\definecolor{proved}{HTML}{1A6B34}\definecolor{tested}{HTML}{7A5200}\definecolor{refuted}{HTML}{B3261E}
"""
_RELATIONS = {"<=": r"\le", ">=": r"\ge", "!=": r"\ne", "≈": r"\approx"}
_STYLES = {"": "{}", "strong": r"\textbf{{{}}}", "emphasis": r"\emph{{{}}}", "code": r"\texttt{{{}}}",
           **{name: rf"\textcolor{{{{{name}}}}}{{{{{{}}}}}}" for name in ("proved", "tested", "refuted")}}  # fmt: skip


def latex(document: d.Document, files: Sequence[str] = ()) -> str:
    r"""`files` are the names of the figures' files, in order; without them only their captions are written.

    >>> latex(d.Document("Report", (d.Paragraph("5%"),))).splitlines()[-3:]
    ['5\\%', '', '\\end{document}']
    """
    body = _blocks(document.blocks, iter(files))
    return "\n\n".join(
        (f"{_START}\\begin{{document}}\n\\section*{{{escape(document.title)}}}", body, "\\end{document}\n")
    )


def inline(words: d.Words) -> str:
    return "".join(map(_piece, d.inlines(words)))


def source(maths: d.Maths) -> str | None:
    """The formula in LaTeX, or None where it is shown as text."""
    node = maths.tree()
    return None if node is None else latex_source(node, maths.labels)


def aligned(lines: Sequence[d.Line]) -> str | None:
    """A chain of formulas, aligned at its relations; None for lines that need a table."""
    sources = [source(line.maths) for line in lines]
    if None in sources or any(line.reason or line.verdict for line in lines):
        return None
    signs = [_RELATIONS.get(line.relation, line.relation) for line in lines]
    inside = " \\\\\n".join(f"{sign} & {text}" for sign, text in zip(signs, sources, strict=True))
    return f"\\begin{{aligned}}\n{inside}\n\\end{{aligned}}"


def _piece(piece: d.Inline) -> str:
    if isinstance(piece, d.Maths):
        return _formula(piece, "$", "$")
    return _STYLES[piece.style].format(escape(piece.text))


def _formula(maths: d.Maths, opening: str, closing: str) -> str:
    text = source(maths)
    return f"{opening}{text}{closing}" if text is not None else f"\\texttt{{{escape(maths.text())}}}"


def _blocks(blocks: Iterable[d.Block], files: Iterable[str]) -> str:
    return "\n\n".join(_block(block, files) for block in blocks)


def _block(block: d.Block, files: Iterable[str]) -> str:
    match block:
        case d.Heading(words=words, level=level):
            return f"\\{('subsection', 'subsubsection', 'paragraph')[level - 2]}*{{{inline(words)}}}"
        case d.Paragraph(words=words):
            return inline(words)
        case d.Formula(more=()):
            return _formula(block.maths, "\\[ ", " \\]")
        case d.Formula():
            # Inline, so that the line breaks where it is full.
            inside = "\\qquad\n".join(_formula(maths, r"$\displaystyle ", "$") for maths in block.all)
            return f"\\begin{{center}}\n{inside}\n\\end{{center}}"
        case d.Derivation():
            return _blocks(derivation_blocks(block), files)
        case d.Lines(lines=lines) if (chain := aligned(lines)) is not None:
            return f"\\[ {chain} \\]"
        case d.Lines(lines=lines):
            return _table(r"r@{\;}l>{\raggedright\arraybackslash}p{0.3\linewidth}l", [_line(each) for each in lines])
        case d.Table(header=header, rows=rows, caption=caption, right=right):
            sides = "".join("r" if place in right else "l" for place in range(len(header)))
            head = [f"\\textbf{{{inline(cell)}}}" for cell in header]
            whole = _table(sides, [head, *([inline(cell) for cell in row] for row in rows)])
            return f"\\textbf{{{inline(caption)}}}\n\n{whole}" if caption else whole
        case d.Figure(caption=caption):
            file = next(iter(files), None)
            drawn = f"\\includegraphics[width=\\linewidth]{{\\detokenize{{{file}}}}}\n\n" if file else ""
            return f"\\begin{{center}}\n{drawn}{inline(caption)}\n\\end{{center}}"
        case d.Items(items=items, ordered=ordered):
            name = "enumerate" if ordered else "itemize"
            inside = "\n".join(f"\\item{{}} {inline(item)}" for item in items)
            return f"\\begin{{{name}}}\n{inside}\n\\end{{{name}}}" if items else ""
        case d.Code(text=text):
            return _code(text)
        case d.Note(title=title, blocks=inside):
            return f"\\begin{{quote}}\n\\textbf{{{inline(title)}}}\n\n{_blocks(inside, files)}\n\\end{{quote}}"
        case d.Margin(blocks=inside, notes=notes):
            said = "\n\n".join(map(inline, notes))
            below = f"\n\n\\begin{{quote}}\n{said}\n\\end{{quote}}" if notes else ""
            return f"{_blocks(inside, files)}{below}"
        case d.PageBreak():
            return "\\newpage"
        case d.BlankLines(lines=lines):
            return f"\\vspace{{{1.5 * lines:g}\\baselineskip}}"


def _line(step: d.Line) -> list[str]:
    sign = f"${_RELATIONS.get(step.relation, step.relation)}$" if step.relation in ("=", "<", ">", *_RELATIONS) else ""
    colour = step.verdict if step.stands else "refuted"
    verdict = f"\\textcolor{{{colour}}}{{{escape(step.verdict)}}} {escape(step.remark)}" if step.verdict else ""
    return [sign, _formula(step.maths, r"$\displaystyle ", "$"), inline(step.reason), verdict]


def _table(sides: str, rows: Iterable[Sequence[str]]) -> str:
    # The braces keep a bracket that begins a row from being taken for an option of the line before.
    inside = " \\\\\n".join(f"{{}}{' & '.join(row)}" for row in rows)
    return f"\\begin{{longtable}}[l]{{{sides}}}\n{inside}\n\\end{{longtable}}"


def _code(text: str) -> str:
    lines = [escape(each).replace(" ", "\\ ") or "~" for each in clean(text).replace("\t", "    ").split("\n")]
    return "\\begin{flushleft}\\ttfamily\n" + " \\\\{}\n".join(f"{{}}{each}" for each in lines) + "\n\\end{flushleft}"
