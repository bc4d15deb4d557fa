"""Tokens of one text as they are made, and its letters: which runs of them are names, and which are functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from qkv.errors import Unreadable
from qkv.maths.text import naming
from qkv.maths.text.cleaning import Clean
from qkv.maths.text.parsing import Token
from qkv.maths.text.words import FUNCTIONS, OPERATORS, RELATIONS, SENTENCES, SKIPPED, UNREAD
from qkv.maths.tree import Type

DEEPEST = 60
_LETTERS = re.compile(r"[A-Za-z]+")
_SNAKE = re.compile(r"[A-Za-z]{3,}_[A-Za-z]{2,}(?![A-Za-z0-9_])")
# What log3 is not the logarithm of: log3 \\cdot x is a product.
_NO_ARGUMENT = "|".join(
    ["right", "end", *filter(str.isalpha, RELATIONS)]
    + [word for word, (kind, _) in OPERATORS.items() if kind in ("TIMES", "DIV", "ODOT", "OTIMES", "PM", "OVER", "ROW")]
)
_BASED = re.compile(
    r"(log)(\d+(?:\.\d+)?)(?=\s*[(\[{]|\s*\\(?:left|[Bb]ig)"
    rf"|\s+(?:[A-Za-z0-9]|\\(?!\\|(?:{_NO_ARGUMENT})(?![A-Za-z]))))"
)
_AFTER = re.compile(r"(?:\\[,;:!)\] ]|[\s.,;$`]|\*\*)+$")
_EQUATION_NUMBER = re.compile(
    r"(?:[.,;]|\\(?:q?quad|hfill)(?![A-Za-z]))(?:[\s~.,;]|\\(?:[,;:! ]|(?:q?quad|hfill)(?![A-Za-z])))*"
    r"(?:\\(?:text|mathrm|textrm|mbox)\s*\{\s*)?\(\s*\d+(?:\.\d+)*[a-z]?\s*\)(?:\s*\})?"
    r"(?=[\s.,;$`*]*(?:\\[)\]][\s.,;]*)?(?:\\end(?![A-Za-z])|$))"
)
# A word that a sum runs over; letters that people count with are several indices.
_RUN = r"\s*(?![ijklmnst]+(?![A-Za-z]))([A-Za-z]{2,})\s*"
_LE = r"(?:[≤<]|\\leq?(?![A-Za-z]))"
_RUNS = re.compile(rf"_\s*\{{{_RUN}=|{_LE}{_RUN}(?={_LE})")
_SIZING = re.compile(
    r"(?:[\s~]|\{\s*\}|\\(?:"
    + "|".join(f"{re.escape(word)}(?![A-Za-z])" if word.isalpha() else re.escape(word) for word in SKIPPED)
    + "))*"
)
CLOSES = {
    "LPAR": "RPAR",
    "LBRACK": "RBRACK",
    "LBRACE": "RBRACE",
    "LSET": "RSET",
    "ROOT_L": "ROOT_R",
    "LANGLE": "RANGLE",
    "BEGIN": "END",
    "NORM_L": "NORM_R",
    "BAR_L": "BAR_R",
    "BLOCK": "",  # closed by \\end, without a token
}
_ORDERS = ("O", "Theta", "Omega")


@dataclass(frozen=True)
class Open:
    kind: str
    place: int
    mark: str  # what stood before it: "sub", "sup", "order", "fraction"


class Spelling:
    """One text. `names` are the declared ones, `maps` those of them that are functions. `single`: || is two bars."""

    def __init__(self, clean: Clean, names: Mapping[str, Type], maps: Collection[str], *, single: bool = False) -> None:
        self.clean, self.names, self.maps, self.single = clean, names, maps, single
        after = _AFTER.search(clean.text)
        self.text = clean.text[: after.start()] if after else clean.text
        number = _EQUATION_NUMBER.search(self.text)
        self.number = number.span() if number else (-1, -1)
        self.summed = {word for words in _RUNS.findall(self.text) for word in words if word}
        self.tokens: list[Token] = []
        self.open: list[Open] = []
        self.gaps: set[int] = set()
        self.words: set[int] = set()
        self.wide: set[int] = set()  # tokens that a \\quad stands before
        self.arguments: set[int] = set()  # digits that a fraction takes
        self.placed = -1  # how many tokens there were after q[1]

    def _unreadable(self, reason: str, start: int, stop: int) -> Unreadable:
        return Unreadable(reason, self.clean.source, self.clean.span(start, stop))

    def _put(self, kind: str, value: str, start: int, stop: int) -> int:
        first, last = self.clean.span(start, stop)
        if kind in CLOSES:
            mark = self._mark()
            if len(self.open) >= DEEPEST:
                raise self._unreadable(f"brackets are nested more than {DEEPEST} deep", start, stop)
            self.open.append(Open(kind, start, mark))
        elif kind in CLOSES.values():
            if not self.open or CLOSES[self.open[-1].kind] != kind:
                raise self._unreadable(self._closes_nothing(start, stop), start, stop)
            closed = self.open.pop()
            self.tokens.append(Token(kind, value, start_pos=first, end_pos=last))
            return self._digit(stop) if closed.mark == "fraction" else stop
        self.tokens.append(Token(kind, value, start_pos=first, end_pos=last))
        return stop

    def _closes_nothing(self, start: int, stop: int) -> str:
        said = f"{self.text[start:stop]} closes nothing that is open"
        if not self.open:
            return said
        opened = self.open[-1]
        return f"{said}: what is open is {self.text[opened.place : self._opening_ends(opened)]}"

    def _opening_ends(self, opened: Open) -> int:
        """Where the bracket or the whole command ends that opened this."""
        mark = re.compile(r"\\(?:[A-Za-z]+|.)|\|\||.").match(self.text, opened.place)
        bar = opened.kind == "BAR_L" and self.text[opened.place] == "|"
        return opened.place + 1 if bar or not mark else mark.end()

    def _last(self) -> str:
        return self.tokens[-1].type if self.tokens else ""

    def _mark(self) -> str:
        """What an opening bracket stands after."""
        return {"SUB": "sub", "SUP": "sup", "ORDER": "order", "FRAC": "fraction"}.get(self._last(), "")

    def _within(self, *marks: str) -> bool:
        return bool(self.open) and self.open[-1].mark in marks

    def _digit(self, at: int) -> int:
        """One digit, as a bare argument of a fraction is."""
        place = at + len(self.text[at:]) - len(self.text[at:].lstrip(" "))
        if place < len(self.text) and self.text[place].isdigit():
            self.arguments.add(len(self.tokens))
            return self._put("NUMBER", self.text[place], place, place + 1)
        return at

    def _letters(self, at: int) -> int:
        found = _LETTERS.match(self.text, at)
        if not found:
            raise self._unreadable("this is no letter that qkv reads", at, at + 1)
        run, end = found[0], found.end()
        based = _BASED.match(self.text, at) if run == "log" else None
        if based and "log" not in self.names:
            return self._logarithm(based[2], at, based.end())
        if self._last() == "SUB":
            return self._lower_run(run, at)
        if self._last() == "SUP":
            size = len(run) if run in self.names or naming.letter(run) else 1
            return self._put("NAME", run[:size], at, at + size)
        if run in SENTENCES and run not in self.names and self._among_words(at, end):
            raise self._unreadable("this reads like words, not like mathematics", at, end)
        if self._within("sub"):
            whole = run in self.names or run in self.summed or naming.letter(run)
            sizes = [len(run)] if whole else [1] * len(run)
        else:
            sizes = self._pieces(run, end)
            snake = _SNAKE.match(self.text, at)
            if snake and sizes == [len(run)]:
                return self._word(snake[0], at, snake.end(), texted=True)
        for size in sizes:
            at = self._word(self.text[at : at + size], at, at + size)
        return at

    def _among_words(self, at: int, end: int) -> bool:
        """Whether spaces part this run of letters from something else."""
        return bool(self.text[end : end + 1] in (" ", "'") or (self.text[at - 1 : at] == " " and self.tokens))

    def _lower_run(self, run: str, at: int) -> int:
        """Letters after a bare _: one, as in LaTeX, where the rest are names; else all, as in plain text."""
        if self._ends_in_a_power_of_e(run, at):
            run = run[:-1]
        if 1 < len(run) <= 3 and self._are_indices(run):
            return self._lower_letters(run, at)
        if len(run) == 1 or self._split(run[1:], at + len(run), self._is_name) is not None:
            return self._put("NAME", run[0], at, at + 1)
        if naming.letter(run) or len(run) > 3:
            return self._put("NAME", run, at, at + len(run))
        return self._lower_letters(run, at)

    def _ends_in_a_power_of_e(self, run: str, at: int) -> bool:
        """Σ_ie^{s_i}: below stand indices, perhaps a factor behind them, and then e^…; a longer word stays whole."""
        if len(run) == 1 or run[-1] != "e" or "e" in self.names or self.text[at + len(run) : at + len(run) + 1] != "^":
            return False
        before = run[:-1]
        known = len(before) <= 3 and (self._are_indices(before) or bool(self._split(before[1:], -1, self._is_name)))
        return len(before) == 1 or known

    def _are_indices(self, run: str) -> bool:
        """Whether letters below something are all lower indices: declared ones, and after δ or I others as well."""
        known = [letter in self.names for letter in run]
        if any(self.names[letter].kind != "index" for letter, declared in zip(run, known, strict=True) if declared):
            return False
        base = self.tokens[-2] if len(self.tokens) > 1 else ""
        return any(known) or (base in ("delta", "I") and base not in self.names and len(run) == 2)

    def _lower_letters(self, run: str, at: int) -> int:
        self._put("LBRACE", "{", at, at + 1)
        for place in range(at, at + len(run)):
            self._put("NAME", self.text[place], place, place + 1)
        return self._put("RBRACE", "}", at + len(run) - 1, at + len(run))

    def _is_name(self, word: str, end: int) -> bool:
        if word in self.names or naming.known(word) or (word == "lg" and not ({"l", "g"} & set(self.names))):
            return True
        return end >= 0 and any(name in self.names for name, _ in naming.readings(self.text, word, end))

    def _is_word(self, word: str, end: int) -> bool:
        if self._is_name(word, end) or naming.letter(word) is not None or word in ("I", "pi"):
            return True
        return (word == "e" and end >= 0 and self.text[end : end + 1] == "^") or (word in ("E", "O") and end >= 0)

    def _is_letter(self, word: str, end: int) -> bool:
        return self._is_word(word, end) or len(word) == 1

    def _pieces(self, run: str, end: int) -> list[int]:
        """How long each name in a run of letters is; the whole run where no reading of it is known."""
        if run in UNREAD and (self._opens(end) or self.text[end : end + 1] == " "):
            return [len(run)]
        for accepted in (self._is_name, self._is_word):
            sizes = self._split(run, end, accepted)
            if sizes is not None:
                return sizes
        many = 2 * sum(letter in self.names for letter in run) >= len(run)
        if self._in_order():
            whole = len(run) > 2 and (self._opens(end) or _SNAKE.match(self.text, end - len(run)) is not None)
            plausible = len(run) <= 4 and (many or not whole)
        else:
            plausible = len(run) <= 3 and many and not (len(run) == 3 and self._opens(end))
        sizes = self._split(run, end, self._is_letter) if plausible else None
        return sizes or [len(run)]

    def _in_order(self) -> bool:
        return any(opened.mark == "order" for opened in self.open)

    def _split(self, run: str, end: int, accepted: Callable[[str, int], bool]) -> list[int] | None:
        """The run as known words, longest first from the left; `end` is where it ends in the text."""
        if len(run) > 60:
            return None
        best: list[list[int] | None] = [None] * len(run) + [[]]
        for start in range(len(run) - 1, -1, -1):
            for stop in range(len(run), start, -1):
                rest = best[stop]
                if rest is not None and accepted(run[start:stop], end if stop == len(run) else -1):
                    best[start] = [stop - start, *rest]
                    break
        return best[0]

    def _word(self, word: str, start: int, end: int, *, texted: bool = False) -> int:
        """A word, from plain letters or out of a \\text{}: a function, or the base of a name."""
        if not texted:
            word = naming.letter(word) or word
        for name, stop in naming.readings(self.text, word, end):
            if name in self.names:
                return self._counted(self._name(name, start, stop))
        if word in ("sum", "prod"):
            opens = word == "sum" and self._opens(end)
            return self._put("FUNC" if opens else "BIG", word, start, end)
        if word == "sqrt":
            return self._put("SQRT", word, start, end)
        if word in FUNCTIONS:
            return self._put("FUNC", FUNCTIONS[word], start, end)
        if re.fullmatch(r"log\d+", word):
            return self._logarithm(word[3:], start, end)
        if word == "lg":
            if not self._in_order():
                raise self._unreadable("lg is of base 2 to some, of base 10 to others: write \\log_2", start, end)
            return self._put("FUNC", "log", start, end)
        if word == "E" and self._opens(end, lower=True):
            return self._put("FUNC", "E", start, end)
        if word in _ORDERS and self._opens(end):
            return self._put("ORDER", word, start, end)
        if word in ("Sigma", "Pi") and self.text[start] == "\\":
            return self._put("BIG", "sum" if word == "Sigma" else "prod", start, end)
        if word in ("pi", "infinity", "inf"):
            return self._put("CONST", "pi" if word == "pi" else "infinity", start, end)
        if self._in_order() and (word in UNREAD or (len(word) > 2 and word.isalpha() and self._opens(end))):
            raise self._unreadable(f"{word} is no function that qkv reads", start, end)
        marks, stop = naming.primes(self.text, end)
        if len(word) > 1 and word.isalpha() and naming.letter(word) is None:
            self.words.add(len(self.tokens))
        return self._name(word + marks, start, stop)

    def _logarithm(self, base: str, start: int, stop: int) -> int:
        """log2, as log_2."""
        self._put("FUNC", "log", start, stop)
        self._put("SUB", "_", start, stop)
        return self._put("NUMBER", base, start, stop)

    def _name(self, name: str, start: int, stop: int) -> int:
        return self._put("MAP" if name in self.maps else "NAME", name, start, stop)

    def _counted(self, at: int) -> int:
        """Digits right behind the name of a vector or a matrix as its lower index: v2 as v_2."""
        kind = self.names[self.tokens[-1]]
        beside = naming.DIGITS.match(self.text, at) if kind.shape and kind.kind != "index" else None
        if not beside or self._within("sub", "sup"):
            return at
        self._put("SUB", "_", at, at + 1)
        return self._put("NUMBER", beside[0], at, beside.end())

    def _opens(self, at: int, *, lower: bool = False) -> bool:
        """Whether a bracket opens at `at`, perhaps after a lower index."""
        below = re.compile(r"\s*_").match(self.text, at) if lower else None
        if below and (taken := naming.argument(self.text, below.end())):
            at = taken[1]
        sizing = _SIZING.match(self.text, at)
        at = sizing.end() if sizing else at
        return self.text[at : at + 1] in ("(", "[", "{") or self.text.startswith("\\{", at)
