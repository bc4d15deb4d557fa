"""Split a document into questions, their parts and their options."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

from ...documents import Document
from ..record import Span


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
    hints: tuple[str, ...] = ()
    pieces: tuple[Span, ...] = ()

    def locate(self, span: Span) -> Span:
        """A span of `text` as a span of the document."""
        start = 0
        for begin, end in self.pieces:
            if span[0] < start + end - begin:
                return begin + span[0] - start, min(begin + span[1] - start, end)
            start += end - begin + 2
        return self.span

    def leaves(self) -> list[Question]:
        """The parts that have no parts, in order; the question itself if it has none."""
        return [leaf for part in self.parts for leaf in part.leaves()] or [self]


@cache
def _pattern(name: str) -> re.Pattern[str]:
    """A pattern of splitting.toml, with the parts of the file put in."""
    data = tomllib.loads(files("qkv.exercises.sheets").joinpath("splitting.toml").read_text(encoding="utf-8"))
    pattern = data["patterns"][name]
    for part, put in reversed(data["parts"].items()):
        pattern = pattern.replace(f"{{{part}}}", put)
    return re.compile(pattern, re.MULTILINE)


_LISTS = {
    "numbered": "number ()", "roman": "roman ()", "romand": "roman .", "lower": "letter ()", "lowered": "letter .",
    "upper": "upper ()", "uppered": "upper .",
}  # fmt: skip
_MOST_CONTEXT = 20_000  # characters before a question that it may refer to
_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii", "xiii", "xiv", "xv")


@dataclass
class _Mark:
    """A label that was seen: its style (what its siblings look like), its identifier, and where its text begins."""

    style: str
    identifier: str
    number: int
    start: int
    body: int
    word: str = ""
    level: int = 0  # of its heading
    first: bool = True  # of a paragraph


@dataclass(eq=False)
class _Node:
    mark: _Mark | None
    start: int
    stop: int = 0
    children: list[_Node] = field(default_factory=list)
    option: bool = False

    def stem(self) -> Iterator[Span]:
        """The spans of the node's own text: what no child covers."""
        at = self.mark.body if self.mark else self.start
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
        self.closed = sorted(block.span for block in document.blocks if block.kind in ("code", "table", "formula"))
        self.headings = {block.span[0]: block for block in document.blocks if block.kind == "heading"}
        self.paragraphs = [block.span[0] for block in document.blocks if block.kind == "paragraph"
                           and not document.text[block.span[0] : block.span[1]].startswith(" ")]  # fmt: skip
        self.items = {block.span[0]: block for block in document.blocks if block.kind == "item"}

    def questions(self) -> list[Question]:
        root = self.tree()
        self.fold(root)
        found = self.top(root, "")
        if not found:
            found = [self.question(_Node(None, 0, len(self.text)), "", "")]
        repeated = {label for label, count in Counter(each.label for each in found).items() if count > 1}
        return [replace(each, label=self.printed(each)) if each.label in repeated else each for each in found]

    def printed(self, question: Question) -> str:
        """The label with its word, for a document that counts twice."""
        mark = self.mark_at(question.span[0])
        word = mark.word.capitalize() if mark and mark.identifier else ""
        return f"{word} {question.label}".strip()

    # --- labels

    def places(self) -> Iterator[int]:
        """Where a label may stand: the beginnings of lines outside code, tables and formulas, and lists in a line."""
        at = 0
        for found in re.finditer(r"[^\n]+", self.text):
            while at < len(self.closed) and self.closed[at][1] <= found.start():
                at += 1
            if at < len(self.closed) and self.closed[at][0] <= found.start():
                continue
            yield found.start()
            inline = [each.end() for each in _pattern("inline").finditer(found.group())]
            if len(inline) > 1 or (inline and re.match(r"[ ]*\(?[ai]\)", found.group())):
                yield from (found.start() + place for place in inline)

    def mark_at(self, start: int) -> _Mark | None:
        found = _pattern("label").match(self.text, start)
        if found is None:
            return None
        heading, item = self.headings.get(start), self.items.get(start)
        rest = self.text[found.end() : found.end() + 200].partition("\n")[0]
        line = self.text.rfind("\n", 0, max(0, start - 1)) + 1  # the line before
        ended = self.text[line : max(0, start - 1)].rstrip()[-1:]
        first = bool(heading or item) or line in self.headings or ended in ("", *".?!:`")
        level = heading.level if heading else 0
        style, identifier, word = self.style_of(found, level, item is not None, rest, first)
        if not style:
            return None
        points = _pattern("points").match(self.text, found.end())
        body = points.end() if points else found.end()
        number = _number(identifier, style)
        return _Mark(style, identifier, number, start, body, word, level, first)

    def style_of(self, found: re.Match[str], level: int, item: bool, rest: str, first: bool) -> tuple[str, str, str]:
        """The style, the identifier and the word of a label; an empty style for what only looks like one."""
        place = f"{'heading' if level else 'item' if item else min(len(found['indent']) // 2, 4)}"
        if word := found["word"] or "":
            # "Part 2 of the model …" or "test 3 times" is prose.
            goes_on = word[0].islower() or re.match(r"[ ]+(?:of|and|or|in|is|we|to|,)\b", rest)
            spoken = goes_on and not (level or found["end"].strip())
            if spoken or (not first and not level and not re.match(r"[ ]*[:.]", found["end"] or "")):
                return "", "", ""
            identifier = found["identifier"] + (found["letter"] or "").strip()
            word = {"q": "question", "ex": "exercise"}.get(word.lower(), word.lower())
            return f"word {word}", identifier, word
        if found["bare"]:
            return "bare", "", found["bare"].lower()
        if found["slug"]:
            return ("slug", found["slug"], "") if level else ("", "", "")
        if found["example"] or found["cut"]:
            return ("example" if found["example"] else "cut"), "", ""
        if found["dotted"]:
            return (f"dotted {found['dotted'].count('.')}", found["dotted"], "") if first else ("", "", "")
        if found["number"]:
            glued = "glued" if not found["gap"] and rest else ""
            if glued and (not re.match(r"[A-Z(\[$“\"*]", rest) or found["mark"] == ":"):
                return "", "", ""
            return f"number {found['mark']} {glued} {place} {level}", found["number"], ""
        for group, style in _LISTS.items():
            if found[group]:
                return ("", "", "") if re.match(r"[,;)]|[ ](?:of|and|or)\b", rest) else (style, found[group], "")
        return "", "", ""

    # --- the tree

    def tree(self) -> _Node:
        """The labels as a tree: a label follows its sibling of the same style, or begins a list in the open one."""
        root = _Node(None, 0, len(self.text))
        stack = [root]
        for start in self.places():
            mark, heading = self.mark_at(start), self.headings.get(start)
            if heading is not None and (mark is None or mark.style == "bare"):
                if self.empty(stack[-1], start):
                    continue  # the second heading of one question
                mark = mark or _Mark("section", "", 0, start, start, level=heading.level)
            for each in _readings(mark):
                if depth := 1 if each.style == "section" else self.depth(stack, each):
                    _close(stack, depth, start)
                    node = _Node(each, start)
                    stack[-1].children.append(node)
                    stack.append(node)
                    break
        _close(stack, 0, len(self.text))
        return root

    def empty(self, node: _Node, stop: int) -> bool:
        """Whether a label has no text but the rest of its line."""
        return bool(node.mark) and not self.text[node.mark.body : stop].partition("\n")[2].strip()

    def depth(self, stack: list[_Node], mark: _Mark) -> int:
        """How many open nodes a label keeps open; 0 where it is no label."""
        kind = mark.style.split()[0]
        inside = stack[-1].mark.style if stack[-1].mark else ""
        if inside in ("example", "cut"):
            stack = stack[:-1]
        styles = [node.mark.style if node.mark else "" for node in stack]
        if kind in ("example", "cut"):
            cases = [at for at, style in enumerate(styles) if style in ("word test", "word case")]
            return cases[0] if cases and kind == "example" else len(stack)
        if kind in ("word", "bare", "slug") or mark.level:
            return self.depth_of_word(stack, styles, mark)
        for at in range(len(stack) - 1, 0, -1):
            other = stack[at].mark
            if other and other.style == mark.style and (kind == "dotted" or mark.number == other.number + 1):
                return at
        if kind == "dotted" or inside == "cut":
            return 1 if kind == "dotted" and mark.first else 0
        if mark.number == 1 and styles.count(mark.style) > 1:
            return styles.index(mark.style)  # a list that begins again and again is no deeper one
        fresh = stack[-1].mark is None or not stack[-1].children
        first = mark.first or self.empty(stack[-1], mark.start)
        starts = mark.number == 1 or (first and fresh and mark.style not in styles and kind != "upper")
        return len(stack) if starts else 0

    def depth_of_word(self, stack: list[_Node], styles: list[str], mark: _Mark) -> int:
        if mark.style in styles:
            return styles.index(mark.style)
        inner = mark.word in ("part", "test", "case")
        for at in range(1, len(stack)):
            other = stack[at].mark
            if other is None or other.style == "section":
                continue
            if mark.level and other.level:
                if other.level >= mark.level:
                    return at
            elif mark.level or mark.style == "bare":
                return at
            elif not inner and (not other.word or mark.number != 1):
                return at  # questions under two words are counted on: "Problem 2", "Q3"
        return len(stack)

    # --- lists that are no parts

    def fold(self, node: _Node) -> None:
        """Give lists that ask nothing back to the text that they stand in."""
        for child in node.children:
            self.fold(child)
        if node.mark is None:
            return
        groups: dict[str, list[_Node]] = {}
        for child in node.children:
            groups.setdefault(child.mark.style if child.mark else "", []).append(child)
        for style, group in groups.items():
            kind = style.split()[0]
            if kind == "number":
                self.give_back(group)
            if kind not in ("number", "letter", "roman", "upper", "dotted") or any(map(self.asks, group)):
                continue
            bodies = [self.words(child.mark.body, child.stop) for child in group if child.mark]
            if kind in ("letter", "upper") and len(group) > 1 and all(0 < len(body) < 300 for body in bodies):
                for child in group:
                    child.option = True
            else:
                gone = set(map(id, group))
                node.children = [child for child in node.children if id(child) not in gone]

    def give_back(self, group: list[_Node]) -> None:
        """End the last item of a list where a paragraph that is not indented follows, if no other item has one."""
        after = [bisect_right(self.paragraphs, child.start) for child in group]
        begins = [self.paragraphs[at] if at < len(self.paragraphs) else len(self.text) for at in after]
        held = [begin < child.stop for begin, child in zip(begins, group, strict=True)]
        if group[0].start in self.items and held[-1] and not any(held[:-1]):
            group[-1].stop = begins[-1]

    def asks(self, node: _Node) -> bool:
        own = _pattern("hint_line").sub("", "\n".join(self.text[slice(*span)].strip() for span in node.stem()))
        return bool(_pattern("asking").search(own) or _pattern("asking_part").search(own) or node.children)

    # --- questions

    def top(self, root: _Node, context: str) -> list[Question]:
        """The questions at the top: a section without a question gives its text to those after it."""
        found: list[Question] = []
        lead = self.words(root.start, root.children[0].start if root.children else root.stop)
        setups: list[tuple[int, str]] = [(0, lead)] if lead else []
        for node in root.children:
            mark = node.mark
            assert mark is not None
            shared = _shared(context, setups)
            outer = [each for each in node.children if each.mark and self.outer(each.mark)]
            if mark.style in ("example", "cut"):
                continue
            if mark.style != "section" and not outer:
                if self.asks(node) or mark.word:
                    found.append(self.question(node, "", shared))
                else:
                    setups.append((7, self.words(node.start, node.stop)))
                continue
            if mark.level:
                setups = [each for each in setups if each[0] < mark.level]
            own = _Node(mark, node.start, outer[0].start if outer else node.stop,
                        [each for each in node.children if not outer or each.start < outer[0].start])  # fmt: skip
            if self.asks(own) and (mark.style != "section" or self.section_asks(own)):
                found.append(self.question(own, "", shared))
            else:
                setups.append((mark.level, self.words(own.start, own.stop)))
            if outer:
                shared = _shared(context, setups)
                rest = [each for each in node.children if each.start >= outer[0].start]
                found += self.top(_Node(None, outer[0].start, node.stop, rest), shared)
        return found

    def outer(self, mark: _Mark) -> bool:
        """Whether a label begins a question, wherever it stands."""
        return mark.word in ("question", "problem", "exercise", "task") or mark.style.startswith(("dotted", "slug"))

    def section_asks(self, node: _Node) -> bool:
        """A section without a label is a question if its sentences ask, not if only its listings do."""
        own = "\n".join(self.words(*span) for span in node.stem())
        return bool(
            node.children or _pattern("asking").search(re.sub(r"```[\s\S]*?```", "", own.partition("\n")[2] or own))
        )

    def words(self, start: int, stop: int) -> str:
        return self.text[start:stop].strip()

    def question(self, node: _Node, parent: str, context: str) -> Question:
        mark = node.mark
        label = _joined(parent, mark) if mark else ""
        children = [child for child in node.children if child.mark and child.mark.style not in ("cut", "example")]
        cases = any(child.mark and child.mark.word in ("test", "case") for child in children)
        # The numbers of an example are not those of the cases.
        apart = [child for child in node.children if cases or (child.mark and child.mark.style != "example")]
        pieces: list[Span] = []
        title = ""
        kept = _Node(mark, node.start, node.stop, apart)
        for start, stop in kept.stem():
            if start == (mark.body if mark else -1) and start < stop:
                title, start = self.title(node, start, stop)
            pieces += self.trimmed(start, stop)
        pieces, hints = self.without_hints(pieces)
        pieces, options = self.options(pieces)
        for child in children:
            if child.option and child.mark:
                words = self.words(child.mark.body, child.stop).partition("\n\n")[0]
                options.append(Choice(child.mark.identifier, words, (child.start, child.stop)))
        text = "\n\n".join(self.text[slice(*piece)] for piece in pieces)
        inner = "\n\n".join(filter(None, [context, title, text]))
        every = [self.question(child, label, inner) for child in children if not child.option]
        parts = tuple(part for part in every if part.text or part.parts)
        if not text and title and not parts:
            text = title
        lists = tuple(options), tuple(hints), tuple(pieces)
        return Question(label, text, (node.start, node.stop), title, context, parts, *lists)

    def title(self, node: _Node, start: int, stop: int) -> tuple[str, int]:
        """The title of a question, and where its text begins."""
        line, _, rest = self.text[start:stop].partition("\n")
        cleaned = line.strip(" :.—–-*")
        style, level = (node.mark.style, node.mark.level) if node.mark else ("", 0)
        short = len(cleaned) < 90 and len(cleaned.split()) < 12 and not re.search(r"[?.:;,]\s*$|[=$]", line)
        opens = (rest.strip() or node.children) and re.match(r"\s*(?:[A-Z$(\d\[`⃝]|$)", rest)
        titled = short and opens and style.startswith(("number", "word", "dotted"))
        if level or style == "section" or (titled and not _pattern("imperative").match(cleaned)):
            return cleaned, start + len(line)
        return "", start

    def trimmed(self, start: int, stop: int) -> list[Span]:
        text = self.text[start:stop]
        begin = start + len(text) - len(re.sub(r"^[\s:—–*-]+(?=\s|[A-Z(\[$])|^\s+", "", text))
        end = start + len(text.rstrip())
        return [(begin, end)] if begin < end else []

    def without_hints(self, pieces: list[Span]) -> tuple[list[Span], list[str]]:
        kept: list[Span] = []
        hints: list[str] = []
        for start, stop in pieces:
            for found in _pattern("hint").finditer(self.text, start, stop):
                if found.start() < start:
                    continue
                paragraph = self.text.find("\n\n", found.end(), stop)
                end = found.end() if found.group()[0] == "(" else stop if paragraph < 0 else paragraph
                hints.append(self.words(found.start(), end))
                kept += self.trimmed(start, found.start())
                start = end
            kept += self.trimmed(start, stop)
        return kept, hints

    def options(self, pieces: list[Span]) -> tuple[list[Span], list[Choice]]:
        """The text before the bubbles, and what stands after each of them."""
        kept: list[Span] = []
        options: list[Choice] = []
        for start, stop in pieces:
            bubbles = list(_pattern("bubble").finditer(self.text, start, stop))
            if len(bubbles) < 2:
                kept.append((start, stop))
                continue
            kept += self.trimmed(start, bubbles[0].start())
            for at, bubble in enumerate(bubbles):
                end = bubbles[at + 1].start() if at + 1 < len(bubbles) else stop
                text = self.words(bubble.end(), end)
                blank = text.find("\n\n")
                if at + 1 == len(bubbles) and blank >= 0:
                    kept += self.trimmed(bubble.end() + blank, stop)
                    text = text[:blank]
                own = re.match(r"\(?([A-Ha-h])[).]\s+", text)
                label, text = (own[1], text[own.end() :]) if own else (str(len(options) + 1), text)
                options.append(Choice(label, " ".join(text.split()), (bubble.start(), end)))
        return kept, options


def _shared(context: str, setups: list[tuple[int, str]]) -> str:
    return "\n\n".join(filter(None, [context, *(text for _, text in setups)]))[-_MOST_CONTEXT:]


def _readings(mark: _Mark | None) -> list[_Mark]:
    """What a label may be: (i), (v) and (x) are numbers or letters."""
    if mark is None:
        return []
    if mark.style.startswith("roman") and len(mark.identifier) == 1:
        style = f"letter{mark.style[5:]}"
        return [mark, replace(mark, style=style, number=_number(mark.identifier, style))]
    return [mark]


def _close(stack: list[_Node], depth: int, stop: int) -> None:
    while len(stack) > depth:
        stack.pop().stop = stop


def _number(identifier: str, style: str) -> int:
    """The place of a label in its list, from 1."""
    kind = style.split()[0]
    if kind == "roman":
        return _ROMAN.index(identifier.lower()) + 1 if identifier.lower() in _ROMAN else 0
    if kind in ("letter", "upper"):
        return ord(identifier.lower()) - 96
    digits = re.match(r"\d+", identifier)
    return int(digits.group()) if digits else 0


def _joined(parent: str, mark: _Mark) -> str:
    """The whole label of a part: "3" and "b" are "3(b)", "5" and "1" are "5.1"."""
    own = mark.identifier
    if mark.word in ("test", "case", "part") and own:
        return f"{parent} {mark.word.capitalize()} {own}".strip()
    if not parent or not own or own.startswith(f"{parent}."):
        return own or parent
    kind = mark.style.split()[0]
    return f"{parent}.{own}" if kind in ("number", "dotted") else f"{parent}({own})"
