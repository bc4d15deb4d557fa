"""From clean text to tokens: every question of spelling is settled here, with the declared names in hand."""

from __future__ import annotations

import re

from lark import Token

from qkv.errors import Unreadable
from qkv.maths import naming
from qkv.maths.spelling import Spelling
from qkv.maths.words import (
    ACCENTS,
    FUNCTIONS,
    MATRICES,
    OPERATORS,
    REFUSALS,
    RELATIONS,
    SKIPPED,
    STYLES,
    TEXTS,
)

_NUMBER = re.compile(r"(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+(?![A-Za-z^]))?")
_COMMAND = re.compile(r"\\([A-Za-z]+\*?|.)", re.DOTALL)
_RELATION = re.compile(r"<=|>=|!=|==|:=|=|<|>")
_BEFORE = re.compile(r"(?:\\[,;:!(\[ ]|[\s$`]|\*\*)*")
_NUMBERS = re.compile(r"\[([\d\s.+\-/;]*)\]")
_GAP = re.compile(r"(?<=[\d.])\s+(?=[+-]?[\d.])")
_ENDS = frozenset(
    [
        "NUMBER",
        "NAME",
        "CONST",
        "TOP",
        "ONES",
        "ZEROS",
        "REFUSED",
        "RPAR",
        "RBRACK",
        "RBRACE",
        "RSET",
        "BAR_R",
        "NORM_R",
        "RANGLE",
        "END",
        "ALL",
    ]
)
_BRACKETS = {"(": "LPAR", ")": "RPAR", "[": "LBRACK", "]": "RBRACK", "{": "LBRACE", "}": "RBRACE"}
_FENCES = {
    "{": "LSET",
    "}": "RSET",
    "lbrace": "LSET",
    "rbrace": "RSET",
    "lbrack": "LBRACK",
    "rbrack": "RBRACK",
    "langle": "LANGLE",
    "rangle": "RANGLE",
    "lVert": "NORM_L",
    "rVert": "NORM_R",
    "lvert": "BAR_L",
    "rvert": "BAR_R",
}


class Lexer(Spelling):
    """Signs, brackets, numbers and commands; letters are Spelling's."""

    def run(self) -> list[Token]:
        before = _BEFORE.match(self.text)
        at = before.end() if before else 0
        while at < len(self.text):
            at = self._step(at)
        if self.open:
            place = self.open[-1].place
            raise self._unreadable(f"{self.text[place]} is never closed", place, place + 1)
        self._refuse_prose()
        return self.tokens

    def _step(self, at: int) -> int:
        letter = self.text[at]
        if at in self.gaps:
            self._put("COMMA", ",", at, at + 1)
        if letter in " ~$":
            return at + 1
        if letter.isdigit() or (letter == "." and self.text[at + 1 : at + 2].isdigit()):
            return self._number(at)
        if letter.isalpha():
            return self._letters(at)
        if letter == "\\":
            return self._command(at)
        if letter in _BRACKETS:
            return self._bracket(at)
        if letter == "|":
            return self._bar(at)
        return self._sign(at)

    def _sign(self, at: int) -> int:
        letter = self.text[at]
        relation = _RELATION.match(self.text, at)
        if relation:
            return self._put("REL", RELATIONS[relation[0]], at, relation.end())
        if letter == "*" and (self._last() == "SUP" or (self._last() == "LBRACE" and self._within("sup"))):
            return self._put("REFUSED", "*", at, at + 1)
        if letter in ":*" and self._within("sub"):
            return self._put("ALL", ":", at, at + 1)
        if self.text.startswith("**", at):
            return self._put("SUP", "^", at, at + 2)
        if self.text.startswith(".T", at) and self._last() in _ENDS:
            self._put("SUP", "^", at, at + 1)
            return self._put("TOP", "T", at + 1, at + 2)
        simple = {
            "+": "PLUS",
            "-": "MINUS",
            "*": "TIMES",
            "@": "TIMES",
            "/": "DIV",
            "^": "SUP",
            "_": "SUB",
            ",": "COMMA",
            ";": "SEMI",
            "&": "AMP",
        }
        if letter in simple:
            value = "times" if letter in "*@" else letter
            return self._put(simple[letter], value, at, at + 1)
        if letter == "'":
            raise self._unreadable("a prime belongs to the name before it; the transpose is written ^T", at, at + 1)
        if letter == "!":
            raise self._unreadable("factorials are not read", at, at + 1)
        raise self._unreadable(f"{letter} is no sign that qkv reads here", at, at + 1)

    def _bracket(self, at: int) -> int:
        letter = self.text[at]
        if letter == "{" and re.match(r"\{\s*\}", self.text[at:]):
            return self.text.index("}", at) + 1
        if letter == "[":
            if self._last() == "SQRT" and self.text[at - 1] != " ":
                return self._put("ROOT_L", "[", at, at + 1)
            numbers = _NUMBERS.match(self.text, at)
            if numbers and not self._within("sub", "sup"):
                self.gaps |= {found.start() for found in _GAP.finditer(self.text, at, numbers.end())}
        if letter == "]" and self.open and self.open[-1].kind == "ROOT_L":
            return self._put("ROOT_R", "]", at, at + 1)
        return self._put(_BRACKETS[letter], letter, at, at + 1)

    def _bar(self, at: int) -> int:
        top = self.open[-1].kind if self.open else ""
        ended = self._last() in _ENDS
        if self.text.startswith("||", at) and not (top == "BAR_L" and ended):
            kind = "NORM_R" if top == "NORM_L" and ended else "NORM_L"
            return self._put(kind, "||", at, at + 2)
        return self._put("BAR_R" if top == "BAR_L" and ended else "BAR_L", "|", at, at + 1)

    def _number(self, at: int) -> int:
        found = _NUMBER.match(self.text, at)
        if not found:  # another script's digit would have been refused before
            raise self._unreadable("this is no number", at, at + 1)
        if self._last() == "FRAC":
            return self._digit(self._digit(at))
        if (
            found[0] in ("0", "1")
            and re.match(r"\s*_", self.text[found.end() :])
            and self._last() not in ("SUB", "SUP")
        ):
            return self._put("ONES" if found[0] == "1" else "ZEROS", found[0], at, found.end())
        return self._put("NUMBER", found[0], at, found.end())

    def _command(self, at: int) -> int:
        found = _COMMAND.match(self.text, at)
        if not found:
            raise self._unreadable("a backslash at the end commands nothing", at, at + 1)
        word, end = found[1].rstrip("*") or "*", found.end()
        if word == "\\":
            return self._put("ROW", "row", at, end)
        if word in ("|", "Vert", "vert"):
            return self._fence(word, at, end)
        if word in _FENCES:
            return self._put(_FENCES[word], word, at, end)
        if word in SKIPPED:
            dotted = word in ("left", "right") and self.text[end : end + 1] == "."
            return end + 1 if dotted else end
        if word in ("begin", "end"):
            return self._environment(word, at, end)
        if word in STYLES or word in TEXTS:
            return self._styled(word, at, end)
        if word in ACCENTS:
            return self._accented(word, at, end)
        return self._meant(word, at, end)

    def _meant(self, word: str, at: int, end: int) -> int:
        """A command that stands for a sign, a letter or a function."""
        if word in REFUSALS:
            raise self._unreadable(REFUSALS[word], at, end)
        if word == "cdot" and self._within("sub") and self._alone(end):
            return self._put("ALL", ":", at, end)
        if word in OPERATORS:
            kind, value = OPERATORS[word]
            return self._put(kind, value, at, end)
        if word.isalpha() and word in RELATIONS:
            return self._put("REL", RELATIONS[word], at, end)
        if word == "arg":
            follows = re.match(r"\s*(?:\\,)?\s*\\max(?![A-Za-z])", self.text[end:])
            if follows:
                return self._put("FUNC", "argmax", at, end + follows.end())
        letter = naming.letter(word)
        if letter in ("Sigma", "Pi") and letter in self.names and self._binds(letter, end):
            return self._put("BIG", "sum" if letter == "Sigma" else "prod", at, end)
        if letter or word in FUNCTIONS:
            return self._word(letter or word, at, end)
        if word == "prime":
            raise self._unreadable("a prime belongs to the name before it: x'", at, end)
        raise self._unreadable(f"\\{word} is no command that qkv reads", at, end)

    def _alone(self, end: int) -> bool:
        """Whether a dot in a lower index stands for a whole axis: at its edge, or beside a comma."""
        follows = self.text[end:].lstrip()[:1]
        return follows in ("}", ",") or self._last() in ("LBRACE", "COMMA")

    def _binds(self, letter: str, end: int) -> bool:
        """Whether a declared Σ is a sum sign here: an index is bound below it, and something to sum follows."""
        taken = re.match(r"\s*_\s*", self.text[end:])
        lower = naming.argument(self.text, end + taken.end()) if taken else None
        if not lower:
            return False
        if re.search(r"=|<|\\[nl]eq?(?![A-Za-z])", lower[0]):
            return True
        name = lower[0].strip()
        if len(name) != 1 or not name.isalpha() or name in self.names or f"{letter}_{name}" in self.names:
            return False
        return bool(re.match(r"\s*(?:[A-Za-z0-9(\[]|\\(?!cdot|times|odot|right))", self.text[lower[1] :]))

    def _fence(self, word: str, at: int, end: int) -> int:
        left, right = ("BAR_L", "BAR_R") if word == "vert" else ("NORM_L", "NORM_R")
        closes = self.open and self.open[-1].kind == left and self._last() in _ENDS
        return self._put(right if closes else left, word, at, end)

    def _environment(self, word: str, at: int, end: int) -> int:
        found = re.match(r"\s*\{([A-Za-z]+)\*?\}(\{[clr| ]*\})?", self.text[end:])
        if not found or found[1] not in MATRICES:
            raise self._unreadable("only matrices are read between \\begin and \\end", at, end)
        return self._put("BEGIN" if word == "begin" else "END", found[1], at, end + found.end())

    def _styled(self, word: str, at: int, end: int) -> int:
        """\\mathbf{q}, \\text{model}, \\mathbb{E}: how it looks falls away, what it names stays."""
        taken = naming.argument(self.text, end)
        if not taken:
            raise self._unreadable(f"\\{word} stands before nothing", at, end)
        inside, stop = taken[0].strip(), taken[1]
        if word in ("mathbb", "mathbbm", "mathds") and inside == "E":
            return self._put("FUNC", "E", at, stop)
        if word == "mathcal" and inside == "O" and self._opens(stop):
            return self._put("ORDER", "O", at, stop)
        if word == "mathbb" and inside in ("R", "N", "Z", "Q", "C"):
            raise self._unreadable(REFUSALS["mathbb{R}"], at, stop)
        if inside in ("0", "1"):
            return self._put("ONES" if inside == "1" else "ZEROS", inside, at, stop)
        if inside in ("T", "\\top") and self._raised():
            return self._put("TOP", "T", at, stop)
        spelt = inside[1:] if inside.startswith("\\") else inside
        if spelt.isalpha() and (spelt in self.names or len(spelt) == 1 or naming.letter(spelt) or naming.known(spelt)):
            return self._word(spelt, at, stop)
        if re.fullmatch(r"arg\s*(?:\\,)?\s*\\?max", inside):
            return self._put("FUNC", "argmax", at, stop)
        if word in TEXTS and inside.replace("_", "").replace("\\", "").isalnum() and inside[0].isalpha():
            return self._word(inside, at, stop, texted=True)
        if word.startswith("text") and " " in inside:
            raise self._unreadable("words in a sentence are not read, only mathematics", at, stop)
        return end

    def _raised(self) -> bool:
        return self._last() == "SUP" or self._within("sup")

    def _accented(self, word: str, at: int, end: int) -> int:
        taken = naming.argument(self.text, end)
        base = naming.canonical(taken[0]) if taken else None
        if not taken or not base:
            raise self._unreadable(f"\\{word} goes over one name", at, end)
        return self._word(f"{base}_{ACCENTS[word]}", at, taken[1], texted=True)

    def _refuse_prose(self) -> None:
        for place in sorted(self.words):
            alone = len(self.tokens) == 1 and len(self.tokens[0]) > 2
            if alone or place + 1 in self.words or place - 1 in self.words:
                start, stop = self.tokens[place].start_pos or 0, self.tokens[place].end_pos or 0
                raise Unreadable("this reads like words, not like mathematics", self.clean.source, (start, stop))
