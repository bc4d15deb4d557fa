"""Answers that are proofs: a chain of equal expressions from where the question starts to what it wants shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from ...errors import MathsError
from ...maths import Verdict, compare
from ..outcome import Outcome
from ..reading.literals import ENVIRONMENT, split_outside
from .answers import squeezed, unreadable
from .pieces import tidy, without_remarks
from .sentences import formulas_said

MOST = 40  # expressions of a proof that are read
LONGEST = 8_000  # characters of a proof that are read

_UNREAD = ("unreadable", "ill-typed")
_FALSE = ("different", "conditional")
_ALIGNED = re.compile(r"\\(?:begin|end)\{(?:align|aligned|gather|gathered|equation|split|eqnarray)\*?\}")
_TURNED = r"\s*\^\s*\{?\s*(?:T|\\top|\\intercal)\s*\}?"
_BOLD = r"(?:\\(?:mathbf|boldsymbol|bm)\s*\{?\s*)?"
_ROW_OF = re.compile(rf"(?<![A-Za-z\\]){_BOLD}([A-Z])\s*\}}?\s*_\s*(?:\{{\s*([a-z])\s*\}}|([a-z]))(?![\w,])")
_LIST = re.compile(r"[\[(]([^\[\]()]{3,200})[\])]")
_ENTRY = re.compile(rf"{_BOLD}([A-Za-z])\s*\}}?\s*_\s*\{{?\s*([a-z])\s*,?\s*(\d)\s*\}}?")
_PARTED = re.compile(r"(?:\s|\\[,;:! ]|\\q?quad|,(?=\s*\\?[a-zA-Z]))+")
_VECTOR = re.compile(rf"{_BOLD}([a-z])\s*\}}?\s*_\s*\{{?\s*(\d)\s*\}}?({_TURNED})?")


@dataclass(frozen=True)
class Chain:
    r"""A proof that `start` is `target`, with at least `least` expressions between the two.

    `through` are the expressions of the model proof; `starts` are other ways to write the start (as a row and not as a
    column, say), `also` other ends that count as the target; `words` are regular expressions which, all found in an
    answer, count as a step in words; `spellings` are replacements that are made in an answer before it is read.

    >>> square = Chain(r"\|q\|^2", "q^T q", {"q": "vector[d]"}, through=(r"\sum_{i=1}^d q_i^2",))
    >>> square.check(r"\|q\|^2 = \sum_i q_i^2 = q^T q").kind, square.check(r"\|q\|^2 = q^T q").kind
    ('right', 'incomplete')
    >>> square.check(r"\|q\|^2 = \sum_i q_i = q^T q").kind
    'wrong'
    """

    start: str
    target: str
    symbols: Mapping[str, str] = field(default_factory=dict, hash=False)
    least: int = 1
    through: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    spellings: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        return " = ".join((self.start, *self.through, self.target))

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        proof = _judged(self, answer)
        for text, verdict in proof.false:
            return Outcome("wrong", f"{text} does not follow: {verdict.reason}", verdict=verdict)
        in_words = bool(self.words) and all(re.search(each, answer, re.IGNORECASE | re.DOTALL) for each in self.words)
        if not proof.held and not in_words:
            wanted = f"write it as {self.start} = … = {self.target}"
            return Outcome("unread", f"no line could be read as an equation that starts at {self.start}; {wanted}")
        forms = {_form(self, text) for text in proof.held}
        ends = {_form(self, text) for text in (self.target, *self.also)}
        between = forms - ends - {_form(self, text) for text in (self.start, *self.starts)}
        if not {_form(self, text) for text in proof.reached} & ends:
            return Outcome("incomplete", f"what is there holds, but {self.target} is not reached")
        if len(between) + in_words < self.least:
            return Outcome(
                "incomplete", f"nothing stands between {self.start} and {self.target}: show how one gets there"
            )
        return Outcome("right", "every expression is equal to the one that it starts from, and the end is reached")

    def same(self, wrong: str, answer: str) -> bool:
        planted = _judged(self, wrong).false
        return bool(planted) and any(
            _either_way(self, planted[0][0], text)[1].kind == "equal" for text, _ in _judged(self, answer).false
        )


@dataclass
class Proof:
    """What a text proves: expressions that hold, those of them that equal the start, and those that are false."""

    held: list[str] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)
    false: list[tuple[str, Verdict]] = field(default_factory=list)


@lru_cache(maxsize=64)
def _judged(chain: Chain, answer: str) -> Proof:
    proof = Proof()
    given = _formulas(chain, answer)
    equations = [(members, mode) for members, mode in given if len(members) > 1]
    for members, mode in equations:
        _judge_equation(chain, members, mode, proof)
    alone = [members[0] for members, mode in given if len(members) == 1]
    ends = {_form(chain, text) for text in (chain.target, *chain.also)}
    for text in alone if len(alone) <= 3 else [text for text in alone if _form(chain, text) in ends]:
        # An expression by itself is a step only where it is one: prose mentions many.
        for reading in _readings(text):
            verdict = _from_start(chain, reading)
            if verdict.kind == "equal":
                proof.held.append(reading)
                proof.reached.append(reading)
            elif verdict.kind in _FALSE and not equations and len(alone) == 1 and not _bare(chain, reading):
                proof.false.append((reading, verdict))
            if verdict.kind not in _UNREAD:
                break
    return proof


def _judge_equation(chain: Chain, members: list[str], mode: str, proof: Proof) -> None:
    """Every member against the one before it that could be read; the first also against the start."""
    held: list[str] = []
    for place, member in enumerate(members):
        best: tuple[str, Verdict] | None = None
        for reading in _readings(member):
            before = held[-1] if held else (chain.start if not members[0].strip() else reading)
            reading, verdict = _either_way(chain, before, reading)
            if best is None or (best[1].kind in _UNREAD and verdict.kind not in _UNREAD):
                best = reading, verdict
            if verdict.kind == "equal":
                best = reading, verdict
                break
        if best is None:
            continue
        text, verdict = best
        if verdict.kind == "equal":
            held.append(text)
        elif verdict.kind in _FALSE and not _supposed(chain, members, mode, verdict):
            first = len(held) == 1 and place + 1 < len(members) and _from_start(chain, held[0]).kind != "equal"
            if first and verdict.kind == "conditional":
                continue
            proof.false.append((text, verdict))
            return
        elif verdict.kind == "ill-typed" and " runs to " in verdict.reason and held:
            proof.false.append((text, verdict))
            return
    # The start is only compared where it matters: with an end that is reached, or an expression by itself.
    ends = {_form(chain, text) for text in (chain.target, *chain.also)}
    matters = len(held) == 1 or any(_form(chain, text) in ends for text in held)
    begins = matters and any(_from_start(chain, text).kind == "equal" for text in dict.fromkeys((held[0], held[-1])))
    if len(held) > 1 or begins:
        proof.held += held
        proof.reached += held if begins else []


def _supposed(chain: Chain, members: list[str], mode: str, verdict: Verdict) -> bool:
    """Whether an equation only sets a name: "with γ = 1"; or is of two kinds of things, about something else."""
    # An index is no quantity: "column j = …" is the end of a phrase in words.
    index = chain.symbols.get(members[0].strip(" $"), "").startswith("index")
    aside = mode in ("setting", "reason") or verdict.kind == "conditional" or index
    return len(members) == 2 and aside and _bare(chain, members[0])


def _bare(chain: Chain, text: str) -> bool:
    """Whether a text is a name of the question and nothing else: it is mentioned, and nothing is claimed of it."""
    return squeezed(text).lstrip("\\") in {squeezed(name) for name in chain.symbols}


def _from_start(chain: Chain, text: str) -> Verdict:
    """The verdict against the first of the starts that it fits."""
    found: Verdict | None = None
    for start in (chain.start, *chain.starts):
        verdict = _compared(chain, start, text)
        if verdict.kind == "equal":
            return verdict
        if found is None or found.kind in _UNREAD:
            found = verdict
    return found if found is not None else Verdict("unreadable", None, "nothing is written")


def _either_way(chain: Chain, before: str, text: str) -> tuple[str, Verdict]:
    """Two members of an equation; a row and a column of the same numbers are one, as on paper."""
    verdict = _compared(chain, before, text)
    if verdict.kind == "different" and " is wanted (as " in verdict.reason:
        for one, other in ((f"({before})^T", text), (before, _ROW_OF.sub(_as_row, text))):
            second = _compared(chain, one, other)
            if second.kind == "equal":
                return other, second
            if second.kind == "different" and " is wanted (as " not in second.reason:
                verdict = second  # what is wrong with it beside the way in which it stands
    return text, verdict


@lru_cache(maxsize=2048)
def _compared(chain: Chain, one: str, other: str) -> Verdict:
    return compare(one, other, chain.symbols)


@lru_cache(maxsize=512)
def _form(chain: Chain, text: str) -> str:
    """How an expression is written, whatever its bound indices are called."""
    from ...maths import latex, parse

    try:
        shown = latex(parse(text, chain.symbols))
    except MathsError:
        return text
    for place, index in enumerate(dict.fromkeys(re.findall(r"\\sum_\{([a-z]+)=", shown))):
        shown = re.sub(rf"(?<![A-Za-z\\]){index}(?![A-Za-z])", f"bound{place}", shown)
    return shown


def _formulas(chain: Chain, answer: str) -> list[tuple[list[str], str]]:
    """The formulas of an answer, each as its members with how it is said; what is denied or taken back is left out.

    A formula that begins with an equals sign goes on with the one before.
    """
    text = tidy(answer[:LONGEST])
    for pattern, written in chain.spellings:
        text = re.sub(pattern, lambda found, written=written: found.expand(written), text)
    text = _with_names(text).replace(r"\equiv", "=").replace("≡", "=")
    # A line does not end within a matrix.
    text = ENVIRONMENT.sub(lambda found: found[0].replace("&", "\x05").replace(r"\\", "\x06"), text)
    text = _ALIGNED.sub(" ", text).replace("&", " ")
    text = re.sub(r"(?:\\\\(?:\[[^\]]{0,20}\])?|\n)\s*(?==)", " , ", text)
    text = re.sub(r"\\\\(?:\[[^\]]{0,20}\])?|(?<!\n)\n(?!\n)", " ; ", text)
    found: list[tuple[list[str], str]] = []
    for said in formulas_said(text, chain.symbols):
        if said.mode in ("denied", "quoted"):
            continue
        members = split_outside(said.text.replace("\x05", "&").replace("\x06", r"\\"), "=")
        if not members[0].strip() and found:
            found[-1] = (found[-1][0] + members[1:], found[-1][1])
        else:
            found.append((members, said.mode))
        if sum(len(each) for each, _ in found) >= MOST:
            break
    return found


def _readings(member: str) -> list[str]:
    """A member, then without remarks behind it."""
    text = member.strip(" ,;.$")
    shorter = without_remarks(text)
    return [each for each in dict.fromkeys((text, shorter, text.partition(",")[0].strip())) if each][:3]


def _with_names(text: str) -> str:
    r"""Matrices that are written as a list of their rows, columns or entries, by the names that these have.

    >>> _with_names(r"\begin{bmatrix}q_1^T\\q_2^T\end{bmatrix} [a_{i1}, a_{i2}]")
    'q (a_{i\\cdot})'
    """

    def block(found: re.Match[str]) -> str:
        for cut, turned in ((r"\\\\", True), ("&", False)):
            cells = [cell.strip() for cell in re.split(cut, found[1].strip()) if cell.strip()]
            read = [_VECTOR.fullmatch(cell) for cell in cells]
            if len(cells) > 1 and all(read) and [each[2] for each in read if each] == _counted(cells):
                letters = {each[1] for each in read if each}
                if len(letters) == 1 and all((each[3] is not None) == turned for each in read if each):
                    return letters.pop() + ("" if turned else "^T")
        return found[0]

    def entries(found: re.Match[str]) -> str:
        cells = [cell for cell in _PARTED.split(found[1].strip()) if cell]
        read = [_ENTRY.fullmatch(cell) for cell in cells]
        if len(cells) > 1 and all(read) and [each[3] for each in read if each] == _counted(cells):
            names = {(each[1], each[2]) for each in read if each}
            if len(names) == 1:
                letter, index = names.pop()
                return rf"({letter}_{{{index}\cdot}})"
        return found[0]

    return _LIST.sub(entries, ENVIRONMENT.sub(block, text))


def _counted(cells: list[str]) -> list[str]:
    return [str(place) for place in range(1, len(cells) + 1)]


def _as_row(found: re.Match[str]) -> str:
    return rf"({found[1]}_{{{found[2] or found[3]}\cdot}})"
