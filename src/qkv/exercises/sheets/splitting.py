"""Split a document into questions, their parts and their options."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ...documents import Document
from ...documents.document import ROMAN
from ...documents.patterns import Table
from ..record import Span

_TABLE = Table("qkv.exercises.sheets", "splitting.toml")
_MOST_CONTEXT = 20_000  # characters before a question that it may refer to


@dataclass(frozen=True)
class Choice:
    """One option of a question: its label ("A", or its number where none is printed) and its text."""

    label: str
    text: str
    span: Span


@dataclass(frozen=True)
class Question:
    """A question or a part of one, as printed.

    `label` is the whole label: "13.4", "A(b)", "6(b)(ii)", "Test 2", or "" for a text without labels. `title` is its
    heading, if it has one. `text` is what the question itself says: without its label, its parts, its options and its
    hints, but with what follows the parts. `pieces` are the spans of the document that `text` joins with blank lines.
    `context` is what it may refer to: set-ups, tables and listings before it, and for a part also the text of its
    question. `span` is the whole question in the document, with label and parts.
    """

    label: str
    text: str
    span: Span
    title: str = ""
    context: str = ""
    parts: tuple[Question, ...] = ()
    options: tuple[Choice, ...] = ()
    pieces: tuple[Span, ...] = ()

    def locate(self, span: Span) -> Span:
        """A span of `text` as a span of the document."""
        start = 0
        for begin, end in self.pieces:
            if span[0] < start + end - begin:
                return begin + span[0] - start, min(begin + span[1] - start, end)
            start += end - begin + 2
        return self.span


@dataclass(eq=False)
class _Node:
    """A label that was seen: its style (what its siblings look like), where its text begins, and what it holds.

    The root of the tree, and a text without labels, have no style.
    """

    start: int
    body: int
    style: str = ""
    identifier: str = ""
    number: int = 0
    word: str = ""
    level: int = 0  # of its heading
    first: bool = True  # of a paragraph
    stop: int = 0
    children: list[_Node] = field(default_factory=list)
    option: bool = False

    @property
    def kind(self) -> str:
        return self.style.partition(" ")[0]

    def stem(self) -> Iterator[Span]:
        """The spans of the node's own text: what no child covers."""
        at = self.body
        for child in self.children:
            yield at, child.start
            at = child.stop
        yield at, self.stop


def split(document: Document) -> list[Question]:
    """The questions of a document, in order; a text without labels is one question with the label ""."""
    return _Splitter(document).questions()


class _Splitter:
    def __init__(self, document: Document) -> None:
        self.text = document.text
        blocks = document.blocks
        self.closed = sorted(block.span for block in blocks if block.kind in ("code", "table", "formula"))
        self.headings = {block.span[0]: block.level for block in blocks if block.kind == "heading"}
        self.items = {block.span[0] for block in blocks if block.kind == "item"}
        starts = [block.span[0] for block in blocks if block.kind == "paragraph"]
        self.paragraphs = [start for start in starts if not self.text.startswith(" ", start)]

    def questions(self) -> list[Question]:
        root = self.tree()
        self.fold(root)
        found = self.top(root, "") or [self.question(_Node(0, 0, stop=len(self.text)), "", "")]
        counts = Counter(each.label for each in found)
        return [replace(each, label=self.printed(each)) if counts[each.label] > 1 else each for each in found]

    def printed(self, question: Question) -> str:
        """The label with its word, for a document that counts twice."""
        mark = self.mark_at(question.span[0])
        word = mark.word.capitalize() if mark and mark.identifier else ""
        return f"{word} {question.label}".strip()

    def words(self, start: int, stop: int) -> str:
        return self.text[start:stop].strip()

    # --- labels

    def places(self) -> Iterator[int]:
        """Where a label may stand: the beginnings of lines outside code, tables and formulas, and lists in a line."""
        for found in re.finditer(r"[^\n]+", self.text):
            start = found.start()
            before = bisect_right(self.closed, (start, len(self.text)))
            if before and self.closed[before - 1][1] > start:
                continue
            yield start
            inline = [each.end() for each in _TABLE["inline"].finditer(found.group())]
            if len(inline) > 1 or (inline and re.match(r"[ ]*\(?[ai]\)", found.group())):
                yield from (start + place for place in inline)

    def mark_at(self, start: int) -> _Node | None:
        """The label at a place; None for what only looks like one."""
        found = _TABLE["label"].match(self.text, start)
        if found is None:
            return None
        level, item = self.headings.get(start, 0), start in self.items
        rest = self.text[found.end() : found.end() + 200].partition("\n")[0]
        line = self.text.rfind("\n", 0, max(0, start - 1)) + 1  # the line before
        ended = self.text[line : max(0, start - 1)].rstrip()[-1:]
        first = bool(level) or item or line in self.headings or ended in ("", *".?!:`")
        kind = found.lastgroup or ""
        style, identifier, word = _TABLE.data["lists"].get(kind, kind), found[kind], ""
        if kind == "end":
            word = found["word"].lower()
            goes_on = found["word"][0].islower() or _TABLE["spoken"].match(rest)
            spoken = goes_on and not (level or found["end"].strip())
            if spoken or not (first or level or found["end"].strip().startswith((":", "."))):
                return None
            identifier = found["identifier"] + (found["letter"] or "").strip()
            word = {"q": "question", "ex": "exercise"}.get(word, word)
            style = f"word {word}"
        elif kind in ("bare", "example", "cut"):
            identifier, word = "", found["bare"].lower() if kind == "bare" else ""
        elif kind == "dotted":
            style = f"dotted {identifier.count('.')}"
        elif kind in ("gap", "glued"):
            place = "heading" if level else "item" if item else min(len(found["indent"]) // 2, 4)
            identifier, style = found["number"], f"number {found['mark']} {kind} {place} {level}"
        if (kind == "slug" and not level) or (kind == "dotted" and not first):
            return None
        points = _TABLE["points"].match(self.text, found.end())
        body = points.end() if points else found.end()
        return _Node(start, body, style, identifier, _number(identifier, style), word, level, first)

    # --- the tree

    def tree(self) -> _Node:
        """The labels as a tree: a label follows its sibling of the same style, or begins a list in the open one."""
        root = _Node(0, 0)
        stack = [root]
        for start in self.places():
            mark = self.mark_at(start)
            if start in self.headings and (mark is None or mark.style == "bare"):
                if self.empty(stack[-1], start):
                    continue  # the second heading of one question
                mark = mark or _Node(start, start, "section", level=self.headings[start])
            for node in _readings(mark):
                if depth := 1 if node.style == "section" else self.depth(stack, node):
                    _close(stack, depth, start)
                    stack[-1].children.append(node)
                    stack.append(node)
                    break
        _close(stack, 0, len(self.text))
        return root

    def empty(self, node: _Node, stop: int) -> bool:
        """Whether a label has no text but the rest of its line."""
        return node.style != "" and not self.text[node.body : stop].partition("\n")[2].strip()

    def depth(self, stack: list[_Node], mark: _Node) -> int:
        """How many open nodes a label keeps open; 0 where it is no label."""
        inside = stack[-1].style
        if inside in ("example", "cut"):
            stack = stack[:-1]
        styles = [node.style for node in stack]
        if mark.kind in ("example", "cut"):
            cases = [at for at, style in enumerate(styles) if style in ("word test", "word case")]
            return cases[0] if cases and mark.kind == "example" else len(stack)
        if mark.kind in ("word", "bare", "slug") or mark.level:
            return self.depth_of_word(stack, styles, mark)
        for at in range(len(stack) - 1, 0, -1):
            if styles[at] == mark.style and (mark.kind == "dotted" or mark.number == stack[at].number + 1):
                return at
        if mark.kind == "dotted" or inside == "cut":
            return int(mark.kind == "dotted")
        if mark.number == 1 and styles.count(mark.style) > 1:
            return styles.index(mark.style)  # a list that begins again and again is no deeper one
        fresh = not (inside and stack[-1].children) and mark.style not in styles and mark.kind != "upper"
        first = mark.first or self.empty(stack[-1], mark.start)
        return len(stack) if mark.number == 1 or (first and fresh) else 0

    def depth_of_word(self, stack: list[_Node], styles: list[str], mark: _Node) -> int:
        if mark.style in styles:
            return styles.index(mark.style)
        for at, other in enumerate(stack):
            if other.style in ("", "section"):
                continue
            if mark.level and other.level:
                if other.level >= mark.level:
                    return at
            elif mark.level or mark.style == "bare":
                return at
            elif mark.word not in ("part", "test", "case") and (not other.word or mark.number != 1):
                return at  # questions under two words are counted on: "Problem 2", "Q3"
        return len(stack)

    # --- lists that are no parts

    def fold(self, node: _Node) -> None:
        """Give lists that ask nothing back to the text that they stand in."""
        groups: dict[str, list[_Node]] = {}
        for child in node.children:
            self.fold(child)
            groups.setdefault(child.style, []).append(child)
        for group in groups.values() if node.style else ():
            kind = group[0].kind
            if kind == "number":
                self.give_back(group)
            if kind not in ("number", "letter", "roman", "upper", "dotted") or any(map(self.asks, group)):
                continue
            short = all(0 < len(self.words(child.body, child.stop)) < 300 for child in group)
            if kind in ("letter", "upper") and len(group) > 1 and short:
                for child in group:
                    child.option = True
            else:
                node.children = [child for child in node.children if child not in group]

    def give_back(self, group: list[_Node]) -> None:
        """End the last item of a list where a paragraph that is not indented follows, if no other item has one."""
        ends = [*self.paragraphs, len(self.text)]
        begins = [ends[bisect_right(self.paragraphs, child.start)] for child in group]
        held = [begin < child.stop for begin, child in zip(begins, group, strict=True)]
        if group[0].start in self.items and held[-1] and not any(held[:-1]):
            group[-1].stop = begins[-1]

    def asks(self, node: _Node) -> bool:
        own = _TABLE["hint"].sub("", "\n".join(self.words(*span) for span in node.stem()))
        return bool(_TABLE["asking"].search(own) or _TABLE["asking_part"].search(own) or node.children)

    # --- questions

    def top(self, root: _Node, context: str) -> list[Question]:
        """The questions at the top: a section without a question gives its text to those after it."""
        found: list[Question] = []
        setups = [(0, self.words(root.start, root.children[0].start if root.children else root.stop))]
        for node in root.children:
            if node.style in ("example", "cut"):
                continue
            shared = _shared(context, setups)
            cut = next((at for at, child in enumerate(node.children) if _outer(child, node)), len(node.children))
            inner, outer = node.children[:cut], node.children[cut:]
            single = node.style != "section" and not outer
            if node.level and not single:
                setups = [each for each in setups if each[0] < node.level]
            own = replace(node, stop=outer[0].start if outer else node.stop, children=inner)
            if (single and node.word) or (self.asks(own) and (node.style != "section" or self.section_asks(own))):
                found.append(self.question(own, "", shared))
            else:
                setups.append((7 if single else node.level, self.words(own.start, own.stop)))
            if outer:
                start = outer[0].start
                found += self.top(_Node(start, start, stop=node.stop, children=outer), _shared(context, setups))
        return found

    def section_asks(self, node: _Node) -> bool:
        """A section without a label is a question if its sentences ask, not if only its listings do."""
        own = "\n".join(self.words(*span) for span in node.stem())
        prose = re.sub(r"```[\s\S]*?```", "", own.partition("\n")[2] or own)
        return bool(node.children or _TABLE["asking"].search(prose))

    def question(self, node: _Node, parent: str, context: str) -> Question:
        label, title = _joined(parent, node), ""
        children = [child for child in node.children if child.style not in ("cut", "example")]
        cases = any(child.word in ("test", "case") for child in children)
        # The numbers of an example are not those of the cases.
        kept = replace(node, children=[child for child in node.children if cases or child.style != "example"])
        pieces: list[Span] = []
        for at, (start, stop) in enumerate(kept.stem()):
            if at == 0:
                title, start = self.title(node, start, stop)
            for hint in _TABLE["hint"].finditer(self.text, start, stop):
                pieces += self.trimmed(start, hint.start())
                start = hint.end()
            pieces += self.trimmed(start, stop)
        pieces, options = self.options(pieces)
        for child in children:
            if child.option:
                words = self.words(child.body, child.stop).partition("\n\n")[0]
                options.append(Choice(child.identifier, words, (child.start, child.stop)))
        text = "\n\n".join(self.text[slice(*piece)] for piece in pieces)
        inner = "\n\n".join(filter(None, [context, title, text]))
        every = [self.question(child, label, inner) for child in children if not child.option]
        parts = tuple(part for part in every if part.text or part.parts)
        text, span = text or ("" if parts else title), (node.start, node.stop)
        return Question(label, text, span, title, context, parts, tuple(options), tuple(pieces))

    def title(self, node: _Node, start: int, stop: int) -> tuple[str, int]:
        """The title of a question, and where its text begins."""
        line, _, rest = self.text[start:stop].partition("\n")
        cleaned = line.strip(" :.—–-*")
        short = len(cleaned) < 90 and len(cleaned.split()) < 12 and not re.search(r"[?.:;,]\s*$|[=$]", line)
        opens = (rest.strip() or node.children) and re.match(r"\s*(?:[A-Z$(\d\[`⃝]|$)", rest)
        titled = short and opens and node.kind in ("number", "word", "dotted")
        if node.level or node.style == "section" or (titled and not _TABLE["imperative"].match(cleaned)):
            return cleaned, start + len(line)
        return "", start

    def trimmed(self, start: int, stop: int) -> list[Span]:
        text = self.text[start:stop]
        begin = start + len(text) - len(re.sub(r"^[\s:—–*-]+(?=\s|[A-Z(\[$])\s*|^\s+", "", text))
        end = start + len(text.rstrip())
        return [(begin, end)] if begin < end else []

    def options(self, pieces: list[Span]) -> tuple[list[Span], list[Choice]]:
        """The text before the bubbles, and what stands after each of them."""
        kept: list[Span] = []
        options: list[Choice] = []
        for start, stop in pieces:
            bubbles = list(_TABLE["bubble"].finditer(self.text, start, stop))
            if len(bubbles) < 2:
                kept.append((start, stop))
                continue
            blank = self.text.find("\n\n", bubbles[-1].end(), stop)
            last = stop if blank < 0 else blank
            kept += self.trimmed(start, bubbles[0].start()) + self.trimmed(last, stop)
            for bubble, end in zip(bubbles, [*(each.start() for each in bubbles[1:]), last], strict=True):
                text = self.words(bubble.end(), end)
                own = re.match(r"\(?([A-Ha-h])[).]\s+", text)
                label, text = (own[1], text[own.end() :]) if own else (str(len(options) + 1), text)
                options.append(Choice(label, " ".join(text.split()), (bubble.start(), end)))
        return kept, options


def _outer(node: _Node, above: _Node) -> bool:
    """Whether a label begins a question, wherever it stands; the number of a sheet is not that of a question."""
    headed = above.word == "assignment" and above.level and node.level and node.kind == "number"
    return node.word in ("question", "problem", "exercise", "task") or node.kind in ("dotted", "slug") or bool(headed)


def _shared(context: str, setups: list[tuple[int, str]]) -> str:
    return "\n\n".join(filter(None, [context, *(text for _, text in setups)]))[-_MOST_CONTEXT:]


def _readings(mark: _Node | None) -> list[_Node]:
    """What a label may be: (i), (v) and (x) are numbers or letters."""
    if mark and mark.kind == "roman" and len(mark.identifier) == 1:
        style = mark.style.replace("roman", "letter")
        return [mark, replace(mark, style=style, number=_number(mark.identifier, style), children=[])]
    return [mark] if mark else []


def _close(stack: list[_Node], depth: int, stop: int) -> None:
    while len(stack) > depth:
        stack.pop().stop = stop


def _number(identifier: str, style: str) -> int:
    """The place of a label in its list, from 1."""
    if style.startswith("roman"):
        return ROMAN.index(identifier) + 1 if identifier in ROMAN else 0
    if style.startswith(("letter", "upper")):
        return ord(identifier.lower()) - 96
    digits = re.match(r"\d+", identifier)
    return int(digits.group()) if digits else 0


def _joined(parent: str, node: _Node) -> str:
    """The whole label of a part: "3" and "b" are "3(b)", "5" and "1" are "5.1"."""
    own = node.identifier
    if node.word in ("test", "case", "part") and own:
        return f"{parent} {node.word.capitalize()} {own}".strip()
    if not parent or not own or own.startswith(f"{parent}."):
        return own or parent
    return f"{parent}.{own}" if node.kind in ("number", "dotted") else f"{parent}({own})"
