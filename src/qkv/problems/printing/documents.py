"""Solutions as documents: every part with its steps, a summary of answers, and questions to go on with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ...maths import tree as t
from ...render import document as d
from ...render.escapes import GREEK
from ...render.to_text import signs
from ..judging.answers import Answer, Value, Values
from ..judging.blanks import Einsum
from ..judging.chains import Chain
from ..judging.choices import Choice
from ..judging.sized import Products
from ..problem import Part, Problem, Solution, Solved, Step

WIDEST = 72  # signs of a chain that stands on one line; a longer one has a line for each link


def solution_document(solution: Solution, brief: bool = False, parts: Sequence[str] = ()) -> d.Document:
    """The worked solution; `brief` leaves out why each step may be taken, `parts` names those that are wanted."""
    problem = solution.problem
    wanted = {problem.part(name).name for name in parts}
    solved = [each for each in solution.parts if not wanted or each.part.name in wanted]
    blocks: list[d.Block] = [*labelled(problem.statement)]
    for each in solved:
        blocks += _part(problem, each, brief)
    blocks += summary(problem, solved)
    return d.Document(title(problem), tuple(blocks))


def title(problem: Problem) -> str:
    return problem.title if problem.seed is None else f"{problem.title} (variant {problem.seed})"


def statement_document(problem: Problem) -> d.Document:
    """The question alone, with all its parts."""
    blocks = [block for part in problem.parts for block in question(problem, part)]
    return d.Document(title(problem), (*labelled(problem.statement), *blocks))


def question(problem: Problem, part: Part, letter: bool = True) -> Iterator[d.Block]:
    """What a part asks, with its letter and its points; the options of a choice stand below."""
    first, *more = part.ask.split("\n\n")
    before, after = (
        (d.Text(f"{letter_of(part)} ", "strong"), d.Text(f" [{points(part)}]")) if letter else (d.Text(""),) * 2
    )
    yield d.Paragraph((before, *said(first, problem, part), after))
    for paragraph in more:
        yield d.Paragraph(said(paragraph, problem, part))
    if isinstance(part.answer, Choice):
        yield d.Items(
            tuple((d.Text(f"({each.label}) "), *said(each.text, problem, part)) for each in part.answer.options)
        )


def letter_of(part: Part) -> str:
    """
    >>> letter_of(Part("b(ii)", "", Value("1"), tuple, ("", "", "")))
    '(b)(ii)'
    """
    head, bracket, rest = part.name.partition("(")
    return f"({head.strip()}){bracket}{rest}"


def points(part: Part) -> str:
    return f"{part.points} point{'' if part.points == 1 else 's'}"


def said(text: str, problem: Problem, part: Part | None = None) -> tuple[d.Inline, ...]:
    """Prose whose formulas are read with the part's symbols, or else the problem's."""
    return spoken(text, {**problem.symbols, **part.symbols} if part is not None else problem.symbols)


def spoken(text: str, symbols: Mapping[str, str]) -> tuple[d.Inline, ...]:
    """Prose whose formulas are read with `symbols`, and where that fails with every letter as a number.

    An index in a sentence, or the name of a map, needs no declaration to be set as a letter.
    """
    return _loosely(d.prose(text, symbols))


def _loosely(words: d.Words) -> tuple[d.Inline, ...]:
    return tuple(_read(piece) if isinstance(piece, d.Maths) else piece for piece in d.inlines(words))


def _read(formula: d.Maths) -> d.Maths:
    text = str(formula.source)
    if formula.tree() is not None or len(text) > 60:
        return formula
    names = set(re.findall(r"(?<![A-Za-z\\^])[A-Za-z](?:'|_[A-Za-z0-9])?(?![A-Za-z])", text))
    names |= {name for name in re.findall(r"\\([A-Za-z]+)", text) if name in GREEK}
    symbols = dict.fromkeys(sorted(names), "scalar")
    for name, inside in re.findall(r"(?<![A-Za-z\\])([A-Za-z]{2,})(\([^()]*\))?", text):
        symbols[name] = f"map {', '.join(['scalar'] * (inside.count(',') + 1))} -> scalar" if inside else "scalar"
    loose = replace(formula, symbols=symbols)
    return loose if loose.tree() is not None else formula


def labelled(blocks: Iterable[d.Block]) -> Iterator[d.Block]:
    """A statement as a lecturer writes it: vectors in columns, sizes beneath matrices, formulas beside each other."""
    row: list[d.Maths] = []
    for block in blocks:
        if isinstance(block, d.Formula):
            row += map(_in_columns, block.all)
            continue
        if row:
            yield d.Formula(row[0], tuple(row[1:]))
        row = []
        yield replace(block, words=_loosely(block.words)) if isinstance(block, d.Paragraph) else block
    if row:
        yield d.Formula(row[0], tuple(row[1:]))


def _in_columns(maths: d.Maths) -> d.Maths:
    from ...render.layout import in_columns

    node = maths.tree()
    return maths if node is None else replace(maths, source=in_columns(node), labels=True)


def summary(problem: Problem, solved: Sequence[Solved]) -> Iterator[d.Block]:
    """The answers in a table, and what to ask next."""
    rows = tuple((letter_of(each.part), answered(problem, each.part), str(each.part.points)) for each in solved)
    yield d.Heading("Summary of answers")
    yield d.Table(("part", "answer", "points"), rows, right=frozenset({2}))
    if problem.follow_ups:
        yield d.Heading("Questions to go on with")
        yield d.Items(tuple(said(each, problem) for each in problem.follow_ups), ordered=True)


def _part(problem: Problem, solved: Solved, brief: bool) -> Iterator[d.Block]:
    yield d.Heading(f"Part {letter_of(solved.part)}, {points(solved.part)}", 3)
    yield from question(problem, solved.part, letter=False)
    yield from worked_part(problem, solved, brief)


def worked_part(problem: Problem, solved: Solved, brief: bool = False) -> Iterator[d.Block]:
    """The steps of a part and its answer, without the question."""
    part, reason = solved.part, ""
    for place, step in enumerate(solved.steps, 1):
        symbols = {**problem.symbols, **part.symbols, **step.symbols}
        # A reason that several steps share is given once.
        why = "" if brief or step.why == reason else step.why
        yield d.Paragraph((d.Text(f"Step {place}. ", "strong"), *_said_of_step(step.what, why, symbols)))
        yield from worked(step, symbols)
        reason = step.why
    yield answer_note(problem, part)


def answer_note(problem: Problem, part: Part) -> d.Note:
    """The answer, explained."""
    new = part.explanation if part.explanation != part.answer.text else ""
    explained = (d.Paragraph(said(new, problem, part)),) if new else ()
    return d.Note((d.Text("Answer: "), *answered(problem, part)), explained)


def _said_of_step(what: str, why: str, symbols: Mapping[str, str]) -> Iterator[d.Inline]:
    yield from spoken(what, symbols)
    yield d.Text(" " if what.rstrip().endswith((".", ":", "?", "!")) else ". ")
    if why:
        yield from spoken(why[:1].upper() + why[1:], symbols)


def worked(step: Step, symbols: Mapping[str, str]) -> Iterator[d.Block]:
    """The chain of a step: on one line where it is short, link by link where it is not."""
    from ...render.layout import boxes, has_matrix, in_columns
    from ...render.to_text import drawn

    if not step.chain:
        return
    members = [d.Maths(text, symbols) for text in step.chain]
    trees = [member.tree() for member in members]
    if any(tree is None for tree in trees):
        yield _links(members, step.relation)
        return
    nodes = [tree for tree in trees if tree is not None]
    if any(has_matrix(node) for node in nodes):
        nodes = [in_columns(node) for node in nodes]
    labels = any(len(node.shape) == 2 for node in nodes)
    whole = t.Relation((), tuple(nodes), (step.relation,) * (len(nodes) - 1)) if len(nodes) > 1 else nodes[0]
    if drawn(boxes(whole)).width <= WIDEST:
        yield d.Formula(d.Maths(whole, labels=labels))
    else:
        yield _links([d.Maths(node, labels=labels) for node in nodes], step.relation)


def _links(members: Sequence[d.Maths], relation: str) -> d.Lines:
    return d.Lines(tuple(d.Line(member, relation=relation if place else "") for place, member in enumerate(members)))


def answered(problem: Problem, part: Part) -> tuple[d.Inline, ...]:
    """The right answer as it is printed: mathematics where it is some, words where it is not."""
    return _answered(part.answer, {**problem.symbols, **part.symbols})


def _answered(answer: Answer, symbols: Mapping[str, str]) -> tuple[d.Inline, ...]:
    if isinstance(answer, Value):
        return _object(answer.text, answer.symbols)
    if isinstance(answer, Chain):
        return (_chain((answer.start, *answer.through, answer.target), answer.symbols),)
    if isinstance(answer, Einsum):
        return (d.Text(answer.text, "code"),)
    if not isinstance(answer, Values | Products):
        return _written(answer.text, symbols)
    pieces: list[d.Inline] = []
    for name, value in answer.items.items():
        gap = [d.Text("; ")] if pieces else []
        pieces += [*gap, _name(name), d.Text(" = "), *_answered(value, symbols)]
        if isinstance(answer, Products):
            high, wide = answer.sizes[name]
            pieces.append(d.Text(f", {high[0]} × {wide[0]}"))
    return tuple(pieces)


def _written(text: str, symbols: Mapping[str, str]) -> tuple[d.Inline, ...]:
    """An answer that is words, with formulas among them: "time: O(N^2 D); space: O(N)"."""
    pieces: list[d.Inline] = []
    for clause in text.split("; "):
        before, colon, formula = clause.rpartition(": ")
        gap = [d.Text("; ")] if pieces else []
        pieces += [*gap, d.Text(f"{before}{colon}"), *_clause(formula, symbols)]
    return tuple(pieces)


def _clause(text: str, symbols: Mapping[str, str]) -> tuple[d.Inline, ...]:
    # Words may read as products of letters: only what no sentence holds is tried as mathematics.
    if re.search(r"[\\^_]|O\(", text) and "$" not in text:
        formula = d.Maths(text, symbols)
        if formula.tree() is not None:
            return (formula,)
        sentence = len(re.findall(r"(?<![\\\w])[a-z]{2,}(?![\w(])", text)) > 2
        return (d.Text(signs(text), "" if sentence else "code"),)
    return spoken(text, symbols)


def _name(name: str) -> d.Inline:
    """A name as it is printed: q_1 is a name, z_{3,1} an entry."""
    base, comma, _ = name.partition("_")
    symbol = d.Maths(name, {base: "matrix[n,n]"} if comma and "," in name else {name: "scalar"})
    return symbol if symbol.tree() is not None else d.Text(name)


def _chain(members: Sequence[str], symbols: Mapping[str, str]) -> d.Maths:
    trees = [tree for text in members if (tree := d.Maths(text, symbols).tree()) is not None]
    if len(trees) < len(members):
        return d.Maths(" = ".join(members), symbols)
    return d.Maths(t.Relation((), tuple(trees), ("=",) * (len(trees) - 1)))


def _object(text: str, symbols: Mapping[str, str]) -> tuple[d.Inline, ...]:
    formula = d.Maths(text, symbols)
    return (formula,) if formula.tree() is not None else d.prose(text, symbols)


def joined_documents(documents: Sequence[d.Document], heading: str) -> d.Document:
    """One document of several, each on a page of its own; one alone stays as it is."""
    if len(documents) == 1:
        return documents[0]
    blocks: list[d.Block] = []
    for place, document in enumerate(documents):
        blocks += [d.PageBreak()] if place else []
        blocks += [d.Heading(document.title), *document.blocks]
    return d.Document(heading, tuple(blocks))
