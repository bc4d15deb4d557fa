"""From clean text to tokens: every question of spelling is settled here, with the declared names in hand."""

from __future__ import annotations

import re

from qkv.errors import Unreadable
from qkv.maths.text import naming
from qkv.maths.text.parsing import Token
from qkv.maths.text.statements import one_statement
from qkv.maths.text.styling import ENDS, Styled
from qkv.maths.text.words import (
    ACCENTS,
    FUNCTIONS,
    OLD_STYLES,
    OPERATORS,
    REFUSALS,
    RELATIONS,
    SKIPPED,
    SPACES,
    STYLES,
    TEXTS,
)

_SPACE = r"(?:\\[,;: ]|[~ ]|\{,\})"
_GROUPED = re.compile(rf"[1-9]\d{{0,2}}(?:{_SPACE}\d{{3}})+(?!{_SPACE}?\d)(?:\.\d+)?")
_NUMBER = re.compile(
    r"(?:\d+(?:\.\d+|\.(?=\s*(?:[,;\])&]|\\\\|\\(?:right|end)(?![A-Za-z]))))?|\.\d+)"
    r"(?:[eE](?:[+-]\d+|\d+(?![A-Za-z]))(?!\^))?"
)
_TENS_APART = re.compile(r"\d*\.\d+ [eE][+-]\d+(?![A-Za-z^.])")
_TEN = re.compile(r"10\s*(?:\^|\*\*)")
_COMMAND = re.compile(r"\\([A-Za-z]+\*?|.)", re.DOTALL)
_RELATION = re.compile(r"<=|>=|!=|==|:=|=|<|>")
_BEFORE = re.compile(
    r"(?:\\[,;:!(\[ ]|[\s$`]|\*\*|=>|\\(?:Rightarrow|Longrightarrow|implies|therefore|iff)(?![A-Za-z]))*"
)
# Possessive: digits that do not end in a bracket are not tried again in every way of cutting them up.
_NUMBERS = re.compile(r"\[(?:[\s.+\-/;]|\d++(?:[eE][+-]?\d++)?)*+\]")
_PLACE = r"\s*(?:(?::|\d+|[A-Za-z]\w*(?:\s*[+-]\s*\d+)?))\s*"
_PLACES = re.compile(rf"\[{_PLACE}(?:,{_PLACE})?(?:\\right\s*)?\]")
# A stop with spaces around it is no end of a sentence: mu . mu
_SPACED_DOT = re.compile(r" \. +(?=[A-Za-z\\(|])")
_GAP = re.compile(r"(?<=[\d.])\s+(?=[+-]?[\d.])")
_OLD_STYLE = re.compile(rf"\{{\s*\\(?:{'|'.join(sorted(OLD_STYLES))})\s*([A-Za-z]+)\s*\}}")
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


class Lexer(Styled):
    """Signs, brackets, numbers and commands; letters and styles are Styled's."""

    def run(self) -> list[Token]:
        before = _BEFORE.match(self.text)
        at = before.end() if before else 0
        while at < len(self.text):
            at = self._step(at)
        if self.open:
            place, end = self.open[-1].place, self._opening_ends(self.open[-1])
            what = self.clean.source[slice(*self.clean.span(place, end))].strip()
            raise self._unreadable(f"{what} is never closed", place, end)
        self._refuse_prose()
        return one_statement(self.tokens, self.wide, self.names, self.clean.source)

    def _step(self, at: int) -> int:
        letter = self.text[at]
        if at in self.gaps:
            self._put("COMMA", ",", at, at + 1)
        if at == self.number[0]:
            return self.number[1]
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
        if self.text.startswith(".T", at) and self._last() in ENDS:
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
        if self._lays_out(at):
            return at + 1
        if letter == "." and self._last() in ENDS and _SPACED_DOT.match(self.text, at - 1):
            return self._put(*OPERATORS["cdot"], at, at + 1)
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
        old = _OLD_STYLE.match(self.text, at) if letter == "{" and not self._within("order") else None
        if old and self._last() not in ("SUB", "SUP") and (stop := self._named("mathrm", old[1], at, old.end())) > 0:
            return stop
        if letter == "[":
            if self._last() == "SQRT" and self.text[at - 1] != " ":
                return self._put("ROOT_L", "[", at, at + 1)
            if (places := self._places(at)) > 0:
                return places
            numbers = _NUMBERS.match(self.text, at)
            if numbers and not self._within("sub", "sup"):
                self.gaps |= {found.start() for found in _GAP.finditer(self.text, at, numbers.end())}
        if letter == "]" and self.open and self.open[-1].kind == "ROOT_L":
            return self._put("ROOT_R", "]", at, at + 1)
        return self._put(_BRACKETS[letter], letter, at, at + 1)

    def _places(self, at: int) -> int:
        """q[1] and Q[i,:] after the name of a vector or a matrix, as lower indices; -1 where this is something else."""
        found = _PLACES.match(self.text, at)
        again = self._last() == "RBRACE" and self.placed == len(self.tokens)
        if not found or not (again or self._has_axes()):
            return -1
        entries = [entry.strip() for entry in found[0].strip("[]").removesuffix("\\right").split(",")]
        names = [name for entry in entries for name in re.findall(r"[A-Za-z]\w*", entry)]
        if not all(map(self._is_place, names)) or (len(entries) == 2 and self.text[at - 1] == " "):
            return -1
        if again:
            self.tokens.pop()
            self._put("COMMA", ",", at, at + 1)
        else:
            self._put("SUB", "_", at, at + 1)
            self._put("LBRACE", "{", at, at + 1)
        place = at + 1
        while place < found.end() - 1:
            letter = self.text[place]
            word = re.compile(r"\d+|[A-Za-z]\w*").match(self.text, place)
            if word:
                place = self._put("NUMBER" if letter.isdigit() else "NAME", word[0], place, word.end())
            elif letter == ":":
                place = self._put("ALL", ":", place, place + 1)
            elif letter in ",+-":
                kind = {",": "COMMA", "+": "PLUS", "-": "MINUS"}[letter]
                place = self._put(kind, letter, place, place + 1)
            else:
                place += 1 if letter == " " else len("\\right")
        if again:
            first, last = self.clean.span(place, found.end())
            self.tokens.append(Token("RBRACE", "}", start_pos=first, end_pos=last))
        else:
            self._put("RBRACE", "}", place, found.end())
        self.placed = len(self.tokens)
        return found.end()

    def _has_axes(self) -> bool:
        kind = self.names.get(str(self.tokens[-1])) if self._last() == "NAME" else None
        return kind is not None and bool(kind.shape) and kind.kind != "index"

    def _is_place(self, name: str) -> bool:
        if name not in self.names:
            return len(name) == 1
        return self.names[name].kind in ("index", "natural")

    def _bar(self, at: int) -> int:
        top = self.open[-1].kind if self.open else ""
        ended = self._last() in ENDS
        if self.text.startswith("||", at) and not self.single and not (top == "BAR_L" and ended):
            kind = "NORM_R" if top == "NORM_L" and ended else "NORM_L"
            return self._put(kind, "||", at, at + 2)
        return self._put("BAR_R" if top == "BAR_L" and ended else "BAR_L", "|", at, at + 1)

    def _number(self, at: int) -> int:
        found = _NUMBER.match(self.text, at)
        if not found:  # another script's digit would have been refused before
            raise self._unreadable("this is no number", at, at + 1)
        if self._last() == "FRAC":
            if not self.text[at].isdigit():
                raise self._unreadable("a decimal in a fraction stands in braces: \\frac{0.5}{d}", at, found.end())
            return self._digit(self._digit(at))
        grouped = _GROUPED.match(self.text, at) if self._last() not in ("SUB", "SUP") else None
        apart = _TENS_APART.match(self.text, at) if "e" not in self.names else None
        if grouped and not any(grouped.start() <= gap < grouped.end() for gap in self.gaps):
            return self._literal(re.sub(_SPACE, "", grouped[0]), at, grouped.end())
        if apart:
            return self._literal(apart[0].replace(" ", ""), at, apart.end())
        if re.match(r"_\d", self.text[found.end() :]) and self._last() not in ("SUB", "SUP"):
            raise self._unreadable("digits are not grouped by _: write 1000, or \\mathbf{1}_{3} for ones", at, at + 1)
        if (
            found[0] in ("0", "1")
            and re.match(r"\s*_", self.text[found.end() :])
            and self._last() not in ("SUB", "SUP")
        ):
            return self._put("ONES" if found[0] == "1" else "ZEROS", found[0], at, found.end())
        return self._literal(found[0].removesuffix("."), at, found.end())

    def _literal(self, digits: str, at: int, end: int) -> int:
        """A number, which stands beside no other: what 2 3 means, nobody can say."""
        before = [token.type for token in self.tokens[-3:-1]]
        beside = self._last() == "NUMBER" and len(self.tokens) - 1 not in self.arguments
        scripted = before[-1:] in (["SUB"], ["SUP"], ["SQRT"]) or before == ["SUP", "MINUS"]
        if beside and not scripted and not _TEN.match(self.text, at):
            raise self._unreadable("two numbers stand side by side: write the product, or one number", at, end)
        return self._put("NUMBER", digits, at, end)

    def _command(self, at: int) -> int:
        found = _COMMAND.match(self.text, at)
        if not found:
            raise self._unreadable("a backslash at the end commands nothing", at, at + 1)
        word, end = found[1].rstrip("*") or "*", found.end()
        if word == "\\":
            return self._row(at, end)
        if word in SPACES and (taken := naming.argument(self.text, end)):
            return taken[1]
        if word in ("|", "Vert", "vert"):
            return self._fence(word, at, end)
        if word in _FENCES:
            return self._put(_FENCES[word], word, at, end)
        if word in ("quad", "qquad"):
            self.wide.add(len(self.tokens))
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
        if word == "sim" and self._within("sub"):  # E_{q ∼ p}
            return self._put("REL", "~", at, end)
        if word in REFUSALS:
            raise self._unreadable(REFUSALS[word], at, end)
        if word == "cdot" and self._within("sub") and self._alone(end):
            return self._put("ALL", ":", at, end)
        if word in OPERATORS:
            kind, value = OPERATORS[word]
            if kind == "TOP" and self._last() in ENDS:
                self._put("SUP", "^", at, end)
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
        if letter or word in FUNCTIONS or word == "lg":
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
        closes = self.open and self.open[-1].kind == left and self._last() in ENDS
        return self._put(right if closes else left, word, at, end)

    def _refuse_prose(self) -> None:
        for place in sorted(self.words):
            alone = len(self.tokens) == 1 and len(self.tokens[0]) > 2
            if alone or place + 1 in self.words or place - 1 in self.words:
                start, stop = self.tokens[place].start_pos or 0, self.tokens[place].end_pos or 0
                raise Unreadable("this reads like words, not like mathematics", self.clean.source, (start, stop))
