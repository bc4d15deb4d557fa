"""Answers that are proofs: a chain of equal expressions from where the question starts to what it wants shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...errors import MathsError
from ...maths import Verdict, compare
from ..outcome import Outcome
from ..reading.literals import ENVIRONMENT, split_outside
from .answers import unreadable
from .pieces import cleaned, tidy, without_remarks

MOST = 60  # expressions of a chain that are read
LONGEST = 8_000  # characters of a proof that are read

_SEGMENT = re.compile(r"\$\$([^$]{1,4000})\$\$|\$([^$]{1,2000})\$|\\\[(.{1,4000}?)\\\]|\\\((.{1,2000}?)\\\)", re.DOTALL)
_WORDS = re.compile(r"\\(?:text|mbox|textbf|textit|intertext)\s*\{[^{}]{0,400}\}|\\tag\{[^{}]{0,40}\}")
_LINES = re.compile(
    r"\\\\(?:\[[^\]]{0,20}\])?|\n|\\(?:begin|end)\{(?:align|aligned|gather|gathered|equation|split)\*?\}"
)
_LEADING = re.compile(r"^(?:(?:[A-Za-z][a-z]+|a|we)[,.:]?\s+)+(?=\S)")
_BRACKETED = re.compile(r"\s*[(\[][^()\[\]]*[a-z]{4,}[^()\[\]]*[)\]]\s*$")
_TRAILING = re.compile(
    r"(?:,|;|\.|\s-|\s–)\s+[A-Za-z]{2,}.*$|\s+(?:by|because|since|as|for|from|where|which)\s.*$", re.DOTALL
)


@dataclass(frozen=True)
class Chain:
    r"""A proof that `start` is `target`, with at least `least` expressions between the two.

    `through` are the expressions of the model proof; `starts` are other ways to write the start (as a row and not as a
    column, say), `also` other ends that count as the target; `words` are regular expressions which, all found in an
    answer, count as a step in words.

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

    @property
    def text(self) -> str:
        return " = ".join((self.start, *self.through, self.target))

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        members = self.members(answer)
        for text, verdict in members:
            if verdict.kind in ("different", "conditional"):
                return Outcome("wrong", f"{text} does not follow: {verdict.reason}", verdict=verdict)
        held = [text for text, verdict in members if verdict.kind == "equal"]
        in_words = bool(self.words) and all(re.search(each, answer, re.IGNORECASE) for each in self.words)
        if not held and not in_words:
            wanted = f"write it as {self.start} = … = {self.target}"
            return Outcome("unread", f"no line could be read as an equation that starts at {self.start}; {wanted}")
        forms = {self._form(text) for text in held}
        ends = {self._form(text) for text in (self.target, *self.also)}
        between = forms - ends - {self._form(text) for text in (self.start, *self.starts)}
        if not forms & ends:
            return Outcome("incomplete", f"what is there holds, but {self.target} is not reached")
        if len(between) + in_words < self.least:
            return Outcome(
                "incomplete", f"nothing stands between {self.start} and {self.target}: show how one gets there"
            )
        return Outcome("right", "every expression is equal to the one that it starts from, and the end is reached")

    def same(self, wrong: str, answer: str) -> bool:
        planted = self._false(wrong)
        return bool(planted) and any(
            compare(planted[0], text, self.symbols).kind == "equal" for text in self._false(answer)
        )

    def _false(self, answer: str) -> list[str]:
        return [text for text, verdict in self.members(answer) if verdict.kind in ("different", "conditional")]

    def members(self, answer: str) -> list[tuple[str, Verdict]]:
        """The expressions of the chain, each with the verdict against the start; asides that hold are left out."""
        found: list[tuple[str, Verdict]] = []
        equations, alone = _equations(answer)
        for equation in equations:
            read = [(text, verdict) for piece in equation for text, verdict in [self._read(piece)]]
            first = next((verdict for _, verdict in read if verdict.kind not in _UNREAD), None)
            begins = not equation[0].strip()
            if first is not None and (begins or first.kind == "equal" or any(v.kind == "equal" for _, v in read)):
                found += [(text, verdict) for text, verdict in read if text]
            elif first is not None:
                found += self._aside(read)
        # An expression by itself is a step only where it is one: prose mentions many.
        mentioned = [self._read(piece) for piece in alone]
        found += [(t, v) for t, v in mentioned if v.kind == "equal" or (not equations and len(alone) == 1)]
        return found[:MOST]

    def _aside(self, read: list[tuple[str, Verdict]]) -> list[tuple[str, Verdict]]:
        """An equation about something else must hold for itself; what is not refuted is let be."""
        texts = [text for text, verdict in read if text and verdict.kind not in _UNREAD]
        verdicts = [(text, compare(texts[0], text, self.symbols)) for text in texts[1:]]
        return [(text, verdict) for text, verdict in verdicts if verdict.kind == "different" and verdict.counterexample]

    def _read(self, piece: str) -> tuple[str, Verdict]:
        """The piece as far as it can be read, against the start."""
        best: tuple[str, Verdict] | None = None
        for text in _readings(piece):
            for start in (self.start, *self.starts):
                verdict = compare(start, text, self.symbols)
                if verdict.kind == "equal":
                    return text, verdict
                if best is None or (best[1].kind in _UNREAD and verdict.kind not in _UNREAD):
                    best = text, verdict
        return best or ("", Verdict("unreadable", None, "nothing is written"))

    def _form(self, text: str) -> str:
        """How an expression is written, whatever its bound indices are called."""
        from ...maths import latex, parse

        try:
            shown = latex(parse(text, self.symbols))
        except MathsError:
            return text
        for place, index in enumerate(dict.fromkeys(re.findall(r"\\sum_\{([a-z]+)=", shown))):
            shown = re.sub(rf"(?<![A-Za-z\\]){index}(?![A-Za-z])", f"bound{place}", shown)
        return shown


_UNREAD = ("unreadable", "ill-typed")


def _equations(answer: str) -> tuple[list[list[str]], list[str]]:
    """The equations of an answer, each as its members, and the expressions that stand alone.

    A line that begins with an equals sign goes on with the one before.
    """
    answer = tidy(answer[:LONGEST])
    segments = [next(filter(None, found.groups())) for found in _SEGMENT.finditer(answer)]
    text = "\n".join(segments) if any("=" in segment for segment in segments) else answer.replace("$", "\n")
    equations: list[list[str]] = []
    alone: list[str] = []
    # A line does not end within a matrix.
    text = ENVIRONMENT.sub(lambda found: found[0].replace(r"\\", "\r").replace("\n", " "), _WORDS.sub(" ", text))
    for line in _LINES.split(text):
        line = line.replace("\r", r"\\")
        line = (
            re.sub(r"(?<!\\)&", " ", line.replace(r"\equiv", "=").replace("≡", "=")) if r"\begin" not in line else line
        )
        members = split_outside(line, "=")
        if len(members) == 1:
            alone += [line] if line.strip() and len(line) < 400 else []
        elif not members[0].strip() and equations:
            equations[-1] += members[1:]
        else:
            # The line before may be the left side of what goes on here.
            if not members[0].strip() and alone:
                members[0] = alone.pop()
            equations.append(members)
    return equations[:MOST], alone[:MOST]


def _readings(piece: str) -> Iterator[str]:
    """A piece, then the same without words around it."""
    text = cleaned(piece)
    seen: set[str] = set()
    for shorter in (
        text,
        _BRACKETED.sub("", text),
        without_remarks(text),
        _TRAILING.sub("", text),
        _LEADING.sub("", text),
        _TRAILING.sub("", _LEADING.sub("", text)),
        text.rpartition(": ")[2],
    ):
        if shorter and shorter not in seen:
            seen.add(shorter)
            yield shorter
