"""The changes that are worth making to a file, each a span of its text and what to put there."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider, WhitespaceInclusivePositionProvider
from mutmut.mutation.mutators import mutation_operators

# The wording of messages is not behaviour.
MESSAGES = {"complaint"}
MESSAGE_NAMES = {"hint", "given", "wanted"}


@dataclass(frozen=True)
class Mutant:
    """`text` in place of what stands from `start` to `end` in a file whose digest is `source`."""

    file: str
    line: int
    last: int  # line of the statement
    inside: bool  # a function, or what an import executes
    operator: str
    start: int
    end: int
    text: str
    source: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.source}:{self.start}:{self.end}:{self.text}"

    def applied(self, root: Path) -> str:
        code = (root / self.file).read_text(encoding="utf-8")
        return code[: self.start] + self.text + code[self.end :]

    def lines(self, root: Path) -> tuple[str, str]:
        """The first line that differs, before and after."""
        old = (root / self.file).read_text(encoding="utf-8").splitlines()
        pairs = zip(old, self.applied(root).splitlines(), strict=False)
        was, now = next(((a, b) for a, b in pairs if a != b), (old[self.line - 1], ""))
        return was.strip(), now.strip()

    def compiles(self, root: Path) -> bool:
        try:
            compile(self.applied(root), self.file, "exec")
        except SyntaxError:
            return False
        return True


def sample(mutants: Sequence[Mutant], size: int | None, seed: int, root: Path) -> list[Mutant]:
    """`size` of them, in an order that the seed decides: a larger sample begins with the smaller one."""
    order = list(mutants)
    random.Random(seed).shuffle(order)
    return list(islice((mutant for mutant in order if mutant.compiles(root)), size))


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """Every change of one file, in the order of its text; some may not compile."""
    code = (root / file).read_text(encoding="utf-8")
    wrapper = MetadataWrapper(cst.parse_module(code), unsafe_skip_copy=True)
    spans = wrapper.resolve(WhitespaceInclusivePositionProvider)
    places = wrapper.resolve(PositionProvider)
    starts = [0]
    for line in code.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    digest = sha256(code.encode()).hexdigest()[:12]
    found: dict[tuple[int, int, str], Mutant] = {}
    for node, statement, inside, operator, changed in _changes(wrapper.module):
        span, line, last = spans[node], places[node].start.line, places[statement or node].end.line
        start = starts[span.start.line - 1] + span.start.column
        end = starts[span.end.line - 1] + span.end.column
        text = wrapper.module.code_for_node(changed)
        if text != code[start:end]:
            found[start, end, text] = Mutant(file, line, last, inside, operator, start, end, text, digest)
    return sorted(found.values(), key=lambda mutant: (mutant.start, mutant.end, mutant.text))


_Change = tuple[cst.CSTNode, cst.CSTNode | None, bool, str, cst.CSTNode]


def _changes(node: cst.CSTNode, statement: cst.CSTNode | None = None, inside: bool = False) -> Iterator[_Change]:
    """Every node that an operator changes, with its simple statement and whether that is in a function's body."""
    if _says_nothing(node):
        return
    if isinstance(node, cst.SimpleStatementLine):
        statement = node
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            for changed in operator(node):
                if not _is_text(node) and not _touches_text(node, changed):
                    yield node, statement, inside, operator.__name__.removeprefix("operator_"), changed
    for child in node.children:
        yield from _changes(child, statement, inside or (isinstance(node, cst.FunctionDef) and child is node.body))


def _says_nothing(node: cst.CSTNode) -> bool:
    """Annotations, imports, decorators, `__all__`, what only a type checker reads, and the making of messages."""
    match node:
        case cst.Annotation() | cst.Decorator() | cst.Import() | cst.ImportFrom() | cst.Raise():
            return True
        case cst.If(test=cst.Name("TYPE_CHECKING")):
            return True
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(name))]):
            return name in MESSAGE_NAMES or name == "__all__"
        case cst.Call(func=cst.Name(name)):
            return name in MESSAGES
        # That two lengths agree is our own check, as an assert is; a cast is no operation.
        case cst.Arg(keyword=cst.Name("strict")):
            return True
        case cst.Arg(value=cst.SimpleString() as text):
            return _is_text(text)
    return False


def _touches_text(node: cst.CSTNode, changed: cst.CSTNode) -> bool:
    """Whether all that changes is a sentence, or an argument that nothing can be seen of."""
    if isinstance(node, cst.Assign | cst.AnnAssign):
        return node.value is not None and _is_text(node.value)
    if isinstance(node, cst.Call) and isinstance(changed, cst.Call) and changed.func.deep_equals(node.func):
        new = [*changed.args, *[None] * (len(node.args) - len(changed.args))]
        for old, other in zip(node.args, new, strict=True):
            if old is not other:
                return (
                    _is_text(old.value)
                    or (old.keyword is not None and old.keyword.value == "strict")
                    or (isinstance(node.func, cst.Name) and node.func.value in ("cast", "TypeVar"))
                )
    return False


def _is_text(node: cst.CSTNode) -> bool:
    """A literal with words in it."""
    match node:
        case cst.SimpleString():
            return " " in str(node.evaluated_value).strip()
        case cst.FormattedString():
            return any(" " in part.value.strip() for part in node.parts if isinstance(part, cst.FormattedStringText))
        case cst.ConcatenatedString():
            return _is_text(node.left) or _is_text(node.right)
    return False
