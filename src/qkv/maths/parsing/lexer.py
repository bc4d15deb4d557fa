"""From clean text to tokens: all questions of spelling are resolved here, with the declared names at hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from qkv.errors import Unreadable
from qkv.maths.parsing import naming, words
from qkv.maths.parsing.grammar import Token, statements
from qkv.maths.parsing.naming import CleanText
from qkv.maths.parsing.words import CLOSES, ENDS, FUNCTIONS, OPERATORS, RELATIONS, TEXTS, like
from qkv.maths.tree import Type

DEEPEST = 60
_ORDERS = ("O", "Theta", "Omega")
_BRACKETS = {"(": "LPAR", ")": "RPAR", "[": "LBRACK", "]": "RBRACK", "{": "LBRACE", "}": "RBRACE"}


@dataclass(frozen=True)
class Open:
    kind: str
    place: int
    mark: str  # what is before it: "sub", "sup", "order", "fraction"


class Lexer:
    """The tokens of one text.

    Args:
        clean: The text in ASCII.
        names: Declared names and their types.
        maps: Those of the names that are functions.
        single: Read || as two bars, not as the bars of a norm.
    """

    def __init__(
        self, clean: CleanText, names: Mapping[str, Type], maps: Collection[str], *, single: bool = False
    ) -> None:
        self.clean, self.names, self.maps, self.single = clean, names, maps, single
        after = like.trailing.search(clean.text)
        self.text = clean.text[: after.start()] if after else clean.text
        number = like.equation_number.search(self.text)
        self.number = number.span() if number else (-1, -1)
        self.sum_words = {word for words in like.runs.findall(self.text) for word in words if word}
        self.tokens: list[Token] = []
        self.open: list[Open] = []
        self.gaps: set[int] = set()
        self.words: set[int] = set()
        self.wide: set[int] = set()  # tokens after a \\quad
        self.arguments: set[int] = set()  # digits that are arguments of a fraction
        self.after_places = -1  # the number of tokens after q[1]

    def run(self) -> list[list[Token]]:
        before = like.leading.match(self.text)
        at = before.end() if before else 0
        while at < len(self.text):
            at = self._step(at)
        if self.open:
            place, end = self.open[-1].place, self._opening_ends(self.open[-1])
            what = self.clean.source[slice(*self.clean.span(place, end))].strip()
            raise self._unreadable(f"{what} is never closed", place, end)
        self._refuse_prose()
        return statements(self.tokens, self.wide, self.names, self.clean.source)

    def _step(self, at: int) -> int:
        letter = self.text[at]
        if at in self.gaps:
            self._put("COMMA", ",", at, at + 1)
        if at == self.number[0]:
            return self.number[1]
        if letter in " ~$":
            return at + 1
        if self._last() in ENDS and (letter.isalpha() or letter in "\\%/") and (stop := self._unit(at)) > 0:
            return stop
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
        relation = like.relation.match(self.text, at)
        if relation:
            return self._put("REL", RELATIONS[relation[0]], at, relation.end())
        if letter == "*" and (self._last() == "SUP" or (self._last() == "LBRACE" and self._within("sup"))):
            return self._put("REFUSED", "*", at, at + 1)
        if letter in ":*" and self._within("sub"):
            return self._put("ALL", ":", at, at + 1)
        if self.text.startswith("//", at):
            if self._follows_minus():
                raise self._unreadable("-a // b floors -a/b in Python: put brackets round what is floored", at, at + 2)
            return self._put("DIV", "//", at, at + 2)
        if letter == "!" and self._last() in ENDS - {"BANG", "UNIT"}:
            return self._put("BANG", "!", at, at + 1)
        if self.text.startswith("**", at):
            return self._put("SUP", "^", at, at + 2)
        if self.text.startswith(".T", at) and self._last() in ENDS:
            self._put("SUP", "^", at, at + 1)
            return self._put("TOP", "T", at + 1, at + 2)
        if self._is_layout(at):
            return at + 1
        if letter == "." and self._last() in ENDS and self.text[at - 1] == " " and like.spaced_dot.match(self.text, at):
            return self._put(*OPERATORS["cdot"], at, at + 1)
        if letter in words.SIMPLE:
            return self._put(words.SIMPLE[letter], "times" if letter in "*@" else letter, at, at + 1)
        if letter == "'":
            raise self._unreadable("a prime belongs to the name before it; the transpose is written ^T", at, at + 1)
        raise self._unreadable(f"{letter} is not a sign that qkv reads here", at, at + 1)

    def _bracket(self, at: int) -> int:
        letter = self.text[at]
        if letter == "{" and re.match(r"\{\s*\}", self.text[at:]):
            return self.text.index("}", at) + 1
        old = like.old_style.match(self.text, at) if letter == "{" and not self._within("order") else None
        if old and self._last() not in ("SUB", "SUP") and (stop := self._named("mathrm", old[1], at, old.end())) > 0:
            return stop
        if letter == "[":
            if self._last() == "SQRT" and self.text[at - 1] != " ":
                return self._put("ROOT_L", "[", at, at + 1)
            if (places := self._places(at)) > 0:
                return places
            numbers = like.number_list.match(self.text, at)
            if numbers and self.text[at - 1 : at] != " " and self._has_axes():
                raise self._unreadable("an index in brackets is a whole number from 1", at, numbers.end())
            if numbers and not self._within("sub", "sup"):
                self.gaps |= {found.start() for found in like.gap.finditer(self.text, at, numbers.end())}
        if letter == "]" and self.open and self.open[-1].kind == "ROOT_L":
            return self._put("ROOT_R", "]", at, at + 1)
        return self._put(_BRACKETS[letter], letter, at, at + 1)

    def _places(self, at: int) -> int:
        """q[1] and Q[i,:] after the name of a vector or a matrix, as subscripts; -1 for anything else."""
        found = like.places.match(self.text, at)
        again = self._last() == "RBRACE" and self.after_places == len(self.tokens)
        if not found or not (again or self._has_axes()):
            return -1
        inside = found[0].strip("[]").removesuffix("\\right")
        pieces = list(like.place_token.finditer(self.text, at + 1, at + 1 + len(inside)))
        names = [piece[0] for piece in pieces if piece[0][0].isalpha()]
        if not all(map(self._is_place, names)) or ("," in inside and self.text[at - 1] == " "):
            return -1
        if again:
            self.open.append(Open("LBRACE", at, "sub"))
            self.tokens[-1] = Token("COMMA", ",", *self.clean.span(at, at + 1))
        else:
            self._put("SUB", "_", at, at + 1)
            self._put("LBRACE", "{", at, at + 1)
        for piece in pieces:
            kind = "NUMBER" if piece[0].isdigit() else "NAME" if piece[0][0].isalpha() else "ALL"
            self._put(words.SIMPLE.get(piece[0], kind), piece[0], piece.start(), piece.end())
        self._put("RBRACE", "}", found.end() - 1, found.end())
        self.after_places = len(self.tokens)
        return found.end()

    def _follows_minus(self) -> bool:
        """Whether a minus that is a sign, not a difference, stands before the present term."""
        level = 0
        for place in range(len(self.tokens) - 1, -1, -1):
            kind = self.tokens[place].type
            level += (kind in CLOSES.values()) - (kind in CLOSES)
            if level < 0 or (not level and kind in ("PLUS", "COMMA", "REL")):
                return False
            if not level and kind == "MINUS":
                return not place or self.tokens[place - 1].type not in ENDS
        return False

    def _has_axes(self) -> bool:
        kind = self.names.get(str(self.tokens[-1])) if self._last() == "NAME" else None
        return kind is not None and bool(kind.shape) and kind.kind != "index"

    def _is_place(self, name: str) -> bool:
        if name not in self.names:
            return len(name) == 1
        return self.names[name].kind in ("index", "natural")

    def _unit(self, at: int) -> int:
        """A unit of measurement, such as GB/s or tokens per second, as one token; -1 if there is none."""
        if self._within("sub", "sup") or any(token.type == "ORDER" for token in self.tokens):
            return -1
        found: list[str] = []
        stop, counted = at, self._after_number()
        while taken := like.unit.match(self.text, stop):
            pieces = like.unit_piece.findall(taken[2] or taken[3])
            for place, (sign, written) in enumerate(pieces):
                word, sign = re.sub(r"\\mu\s*", "u", written).lstrip("\\"), sign or ("" if place else taken[1] or "")
                wanted = sign != "\\cdot" or bool(found)
                if not wanted or not self._is_unit(word, taken.end(), counted or bool(found), sign in ("/", "per")):
                    return self._put("UNIT", " ".join(found), at, stop) if found and not place else -1
                found.append(f"/{word}" if sign in ("/", "per") else word)
            stop = taken.end()
        return self._put("UNIT", " ".join(found), at, stop) if found else -1

    def _is_unit(self, word: str, end: int, counted: bool, divided: bool) -> bool:
        """Whether a word is a unit here: never if it is made of declared names; short ones only after a number."""
        if word not in words.UNITS or self._split(word, -1, lambda name, _: name in self.names) is not None:
            return False
        if word == "%":
            return not divided and not re.match(r"\s*[A-Za-z0-9(]", self.text[end:])
        if divided:
            return word not in ("B", "h", "min") and (len(word) > 1 or self._is_suffix(word))
        if len(word) == 1:
            alone = like.no_factor.match(self.text, end)
            return counted and alone is not None and self._is_suffix(word)
        return counted or ((len(word) > 2 or word[-1] == "B") and word not in FUNCTIONS)

    def _after_number(self) -> bool:
        """Whether the last token ends a number, or a power of one, such as 10^9."""
        kinds = [token.type for token in self.tokens]
        if kinds[-1] == "RBRACE":
            start = max((place for place, kind in enumerate(kinds) if kind == "LBRACE"), default=0)
            return kinds[max(start - 2, 0) : start] == ["NUMBER", "SUP"]
        scripted = len(kinds) > 1 and kinds[-2] in ("SUB", "SUP")
        return kinds[-1] in ("NUMBER", "UNIT") and (not scripted or kinds[-3:] == ["NUMBER", "SUP", "NUMBER"])

    def _bar(self, at: int) -> int:
        top = self.open[-1].kind if self.open else ""
        ended = self._last() in ENDS
        if self.text.startswith("||", at) and not self.single and not (top == "BAR_L" and ended):
            kind = "NORM_R" if top == "NORM_L" and ended else "NORM_L"
            return self._put(kind, "||", at, at + 2)
        return self._put("BAR_R" if top == "BAR_L" and ended else "BAR_L", "|", at, at + 1)

    def _number(self, at: int) -> int:
        found = like.number.match(self.text, at)
        if not found:  # digits of other scripts were refused before
            raise self._unreadable("this is not a number", at, at + 1)
        scripted = self._last() in ("SUB", "SUP")
        if found[0] == "0" and self.text[found.end() : found.end() + 1] in ("x", "X") and "x" not in self.names:
            raise self._unreadable("numbers are read in base ten", at, found.end() + 1)
        if self._last() == "FRAC":
            if not self.text[at].isdigit():
                raise self._unreadable("a decimal in a fraction needs braces: \\frac{0.5}{d}", at, found.end())
            return self._digit(self._digit(at))
        if "e" not in self.names and like.exponent_name.match(self.text, at):
            raise self._unreadable("this may be a power of ten or a product: put a sign between", at, found.end() + 1)
        grouped = like.grouped.match(self.text, at) if not scripted else None
        apart = like.spaced_exponent.match(self.text, at) if "e" not in self.names else None
        if grouped and not self._separates(grouped):
            return self._literal(re.sub(r"[^\d.]", "", grouped[0]), at, grouped.end())
        if apart:
            return self._literal(apart[0].replace(" ", ""), at, apart.end())
        mixed = like.mixed.match(self.text, at) if self._last() not in ("NUMBER", "SUB", "SUP", "DIV", "SQRT") else None
        if mixed and at not in self.gaps:
            whole, top, bottom = (int(digits) for digits in mixed.groups() if digits)
            if top < bottom:
                return self._put("NUMBER", f"{whole * bottom + top}/{bottom}", at, mixed.end())
        if re.match(r"_\d", self.text[found.end() :]) and not scripted:
            raise self._unreadable("digits are not grouped by _: write 1000, or \\mathbf{1}_{3} for ones", at, at + 1)
        if found[0] in ("0", "1") and re.match(r"\s*_", self.text[found.end() :]) and not scripted:
            return self._put("ONES" if found[0] == "1" else "ZEROS", found[0], at, found.end())
        thousands = like.thousands.match(self.text, at)
        if thousands and not scripted and not self._within("sub", "sup") and self._is_suffix("k"):
            return self._literal(f"{thousands[0][:-1]}e3", at, thousands.end())
        return self._literal(found[0].removesuffix("."), at, found.end())

    def _separates(self, number: re.Match[str]) -> bool:
        """Whether what may group the digits of a number separates entries: (1,200) is a list of two."""
        if any(number.start() <= gap < number.end() for gap in self.gaps):
            return True
        listed = bool(self.open) and self.open[-1].kind in ("LPAR", "LBRACK", "LSET")
        return listed and "," in number[0].replace("{,}", "") and not re.search(r",0\d\d", number[0])

    def _is_suffix(self, letter: str) -> bool:
        """Whether a letter that may be a unit is no name: not declared, and used after numbers only."""
        plain = like.styled.sub(" ", self.text)
        return letter not in self.names and not re.search(rf"(?<![\d\sA-Za-z\\/]){letter}(?![A-Za-z])", plain)

    def _literal(self, digits: str, at: int, end: int) -> int:
        """A number that does not follow another one: 2 3 is ambiguous."""
        before = [token.type for token in self.tokens[-3:-1]]
        adjacent = self._last() == "NUMBER" and len(self.tokens) - 1 not in self.arguments
        scripted = before[-1:] in (["SUB"], ["SUP"], ["SQRT"]) or before == ["SUP", "MINUS"]
        if adjacent and not scripted and not like.ten.match(self.text, at):
            raise self._unreadable("two numbers are side by side: write the product, or one number", at, end)
        return self._put("NUMBER", digits, at, end)

    def _command(self, at: int) -> int:
        found = like.command.match(self.text, at)
        if not found:
            raise self._unreadable("a backslash at the end commands nothing", at, at + 1)
        word, end = found[1].rstrip("*") or "*", found.end()
        if word == "\\":
            return self._row(at, end)
        if word in words.SPACES and (taken := naming.argument(self.text, end)):
            return taken[1]
        if word in ("|", "Vert", "vert"):
            return self._fence(word, at, end)
        if word in words.FENCES:
            return self._put(words.FENCES[word], word, at, end)
        if word == "left" and (system := like.system.match(self.text, end)):
            self.open.append(Open("CASES", at, ""))
            return system.end()
        if word in ("quad", "qquad"):
            self.wide.add(len(self.tokens))
        if word in words.SKIPPED:
            dotted = word in ("left", "right") and self.text[end : end + 1] == "."
            return end + 1 if dotted else end
        if word in ("begin", "end"):
            return self._environment(word, at, end)
        if word in words.STYLES or word in TEXTS:
            return self._styled(word, at, end)
        if word in words.ACCENTS:
            return self._accented(word, at, end)
        return self._meaning(word, at, end)

    def _meaning(self, word: str, at: int, end: int) -> int:
        """A command for a sign, a letter or a function."""
        if word == "sim" and self._within("sub"):  # E_{q ∼ p}
            return self._put("REL", "~", at, end)
        if word in words.REFUSALS:
            raise self._unreadable(words.REFUSALS[word], at, end)
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
            follows = like.arg_max.match(self.text, end)
            if follows:
                return self._put("FUNC", "argmax", at, follows.end())
        letter = naming.greek_name(word)
        if letter in ("Sigma", "Pi") and letter in self.names and self._binds(letter, end):
            return self._put("BIG", "sum" if letter == "Sigma" else "prod", at, end)
        if letter or word in FUNCTIONS or word == "lg":
            return self._word(letter or word, at, end)
        if word == "prime":
            raise self._unreadable("a prime belongs to the name before it: x'", at, end)
        raise self._unreadable(f"\\{word} is not a command that qkv reads", at, end)

    def _alone(self, end: int) -> bool:
        """Whether a dot in a subscript is a whole axis: at its end, or next to a comma."""
        follows = self.text[end:].lstrip()[:1]
        return follows in ("}", ",") or self._last() in ("LBRACE", "COMMA")

    def _binds(self, letter: str, end: int) -> bool:
        """Whether a declared Σ is a sum sign here: an index is bound below it, and a summand follows."""
        taken = re.match(r"\s*_\s*", self.text[end:])
        lower = naming.argument(self.text, end + taken.end()) if taken else None
        if not lower:
            return False
        if re.search(r"=|<|\\[nl]eq?(?![A-Za-z])", lower[0]):
            return True
        name = lower[0].strip()
        if len(name) != 1 or not name.isalpha() or name in self.names or f"{letter}_{name}" in self.names:
            return False
        return like.summand.match(self.text, lower[1]) is not None

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

    def _in_matrix(self) -> bool:
        """Whether & and \\\\ separate entries and rows here, not the lines of a chain."""
        return next((each.kind for each in reversed(self.open) if each.kind in ("BEGIN", "BLOCK")), "") == "BEGIN"

    def _is_layout(self, at: int) -> bool:
        """Whether this is an & or the punctuation at the end of a line, which are layout only."""
        if self._in_matrix() or not like.layout.match(self.text, at):
            return False
        if self.open and self.open[-1].kind == "CASES" and not like.continues.match(self.text, at + 1):
            raise self._unreadable("a value by cases is not read: give one expression", at, at + 1)
        within = any(each.kind == "BLOCK" for each in self.open)
        return within or self._last() not in ENDS or like.continues.match(self.text, at + 1) is not None

    def _environment(self, word: str, at: int, end: int) -> int:
        found = like.environment.match(self.text, end)
        if word == "end" and found and self.open and self.open[-1].kind == "CASES":
            self.open.pop()
            if self._last() == "COMMA":
                self.tokens.pop()
            return found.end()
        if found and found[1] in words.BLOCKS:
            return self._block(word, at, found.end())
        if word == "begin" and found and found[1].endswith("cases"):
            self.open.append(Open("CASES", at, ""))
            return found.end()
        if not found or found[1] not in words.MATRICES:
            raise self._unreadable("only matrices are read between \\begin and \\end", at, end)
        return self._put("BEGIN" if word == "begin" else "END", found[1], at, found.end())

    def _block(self, word: str, at: int, end: int) -> int:
        """An aligned block is one chain: each line continues the one before."""
        if word == "begin":
            self.open.append(Open("BLOCK", at, ""))
            counted = like.column_count.match(self.text, end)
            return counted.end() if counted else end
        if not self.open or self.open[-1].kind != "BLOCK":
            raise self._unreadable("this ends no block that is open", at, end)
        self.open.pop()
        return end

    def _row(self, at: int, end: int) -> int:
        """A line break: a new row of a matrix, or a continued chain in an aligned block."""
        gap = like.gap_below.match(self.text, end)
        end = gap.end() if gap else end
        if self._in_matrix():
            return self._put("ROW", "row", at, end)
        if self.open and self.open[-1].kind == "CASES":
            return self._put("COMMA", "and", at, end) if self._last() != "COMMA" else end
        if self._last() in ENDS and not like.continues.match(self.text, end):
            raise self._unreadable("the lines of a block go on from each other, with = or a sign", at, end)
        return end

    def _styled(self, word: str, at: int, end: int) -> int:
        """\\mathbf{q}, \\text{model}, \\mathbb{E}: drop the style, keep the name."""
        taken = naming.argument(self.text, end)
        if not taken:
            raise self._unreadable(f"\\{word} has no argument", at, end)
        inside, stop = taken[0].strip(), taken[1]
        while nested := like.styled.fullmatch(inside):
            word, inside = nested[1], nested[2].strip()
        if word in TEXTS and inside == "and" and (stop := self._and(at, stop)) > 0:
            return stop
        if word in TEXTS and inside in words.JOINING and inside not in self.names:
            raise self._unreadable("words in a sentence are not read, only mathematics", at, stop)
        named = self._named(word, inside, at, stop)
        return named if named > 0 else end

    def _named(self, word: str, inside: str, at: int, stop: int) -> int:
        """The token of a styled name; -1 if it is not a name."""
        if word in ("mathbb", "mathbbm", "mathds") and inside == "E":
            return self._put("FUNC", "E", at, stop)
        if word == "mathbb" and inside == "V" and self._opens(stop):
            return self._put("FUNC", "Var", at, stop)
        if word == "mathcal" and inside == "O" and self._opens(stop):
            return self._put("ORDER", "O", at, stop)
        if word == "mathbb" and inside == "R" and self.tokens and self.tokens[-1] == "in":
            return self._put("REALS", "R", at, stop)
        if word == "mathbb" and inside in ("R", "N", "Z", "Q", "C"):
            raise self._unreadable(words.REFUSALS["mathbb{R}"], at, stop)
        if inside in ("0", "1"):
            return self._put("ONES" if inside == "1" else "ZEROS", inside, at, stop)
        if inside in ("T", "\\top") and self._raised():
            return self._put("TOP", "T", at, stop)
        spelt = inside[1:] if inside.startswith("\\") else inside
        if spelt.isalpha() and (
            spelt in self.names or len(spelt) == 1 or naming.greek_name(spelt) or naming.is_reserved(spelt)
        ):
            return self._word(spelt, at, stop)
        if re.fullmatch(r"arg\s*(?:\\,)?\s*\\?max", inside):
            return self._put("FUNC", "argmax", at, stop)
        if word in TEXTS and inside.replace("_", "").replace("\\", "").isalnum() and inside[0].isalpha():
            escaped = naming.canonical_name(inside) if "\\_" in inside else None  # y\_1 is y_1
            return self._word(escaped or inside, at, stop, from_text=True)
        if word.startswith("text") and " " in inside:
            raise self._unreadable("words in a sentence are not read, only mathematics", at, stop)
        return -1

    def _raised(self) -> bool:
        return self._last() == "SUP" or self._within("sup")

    def _accented(self, word: str, at: int, end: int) -> int:
        taken = naming.argument(self.text, end)
        base = naming.canonical_name(taken[0]) if taken else None
        if not taken or not base:
            raise self._unreadable(f"\\{word} goes over one name", at, end)
        return self._word(f"{base}_{words.ACCENTS[word]}", at, taken[1], from_text=True)

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
            if not self.open or (CLOSES[self.open[-1].kind] != kind and not self._ends_interval(kind, start)):
                raise self._unreadable(self._closes_nothing(start, stop), start, stop)
            closed = self.open.pop()
            self.tokens.append(Token(kind, value, start_pos=first, end_pos=last))
            return self._digit(stop) if closed.mark == "fraction" else stop
        self.tokens.append(Token(kind, value, start_pos=first, end_pos=last))
        return stop

    def _ends_interval(self, kind: str, at: int) -> bool:
        """Whether this bracket closes one of another kind, as in [0, 1)."""
        mixed = (self.open[-1].kind, kind) in (("LPAR", "RBRACK"), ("LBRACK", "RPAR"))
        return mixed and self.text.count(",", self.open[-1].place, at) == 1

    def _closes_nothing(self, start: int, stop: int) -> str:
        reason = f"{self.text[start:stop]} closes nothing that is open"
        if not self.open:
            return reason
        opened = self.open[-1]
        return f"{reason}: what is open is {self.text[opened.place : self._opening_ends(opened)]}"

    def _opening_ends(self, opened: Open) -> int:
        """Where the opening bracket or command ends."""
        mark = like.opening.match(self.text, opened.place)
        bar = opened.kind == "BAR_L" and self.text[opened.place] == "|"
        return opened.place + 1 if bar or not mark else mark.end()

    def _last(self) -> str:
        return self.tokens[-1].type if self.tokens else ""

    def _mark(self) -> str:
        """What an opening bracket follows."""
        return {"SUB": "sub", "SUP": "sup", "ORDER": "order", "FRAC": "fraction"}.get(self._last(), "")

    def _within(self, *marks: str) -> bool:
        return bool(self.open) and self.open[-1].mark in marks

    def _digit(self, at: int) -> int:
        """One digit, the bare argument of a fraction."""
        place = at + len(self.text[at:]) - len(self.text[at:].lstrip(" "))
        if place < len(self.text) and self.text[place].isdigit():
            self.arguments.add(len(self.tokens))
            return self._put("NUMBER", self.text[place], place, place + 1)
        return at

    def _letters(self, at: int) -> int:
        found = like.letters.match(self.text, at)
        if not found:
            raise self._unreadable("this is not a letter that qkv reads", at, at + 1)
        run, end = found[0], found.end()
        if run == "and" and (stop := self._and(at, end)) > 0:
            return stop
        if run == "R" and "R" not in self.names and self.tokens and self.tokens[-1] == "in":
            return self._put("REALS", "R", at, end)
        if run == "x" and "x" not in self.names and self._last() in ENDS and like.times.match(self.text, at - 1):
            return self._put("TIMES", "times", at, end)
        based = like.log_base.match(self.text, at) if run == "log" else None
        if based and "log" not in self.names:
            return self._logarithm(based[2], at, based.end())
        if self._last() == "SUB":
            return self._lower_run(run, at)
        if self._last() == "SUP":
            size = len(run) if run in self.names or naming.greek_name(run) else 1
            return self._put("NAME", run[:size], at, at + size)
        if run in words.SENTENCES and run not in self.names and self._among_words(at, end):
            raise self._unreadable("this reads like words, not like mathematics", at, end)
        if self._within("sub"):
            whole = run in self.names or run in self.sum_words or naming.greek_name(run)
            sizes = [len(run)] if whole else [1] * len(run)
        else:
            sizes = self._pieces(run, end)
            snake = like.snake.match(self.text, at)
            if snake and sizes == [len(run)]:
                return self._word(snake[0], at, snake.end(), from_text=True)
        for size in sizes:
            at = self._word(self.text[at : at + size], at, at + size)
        return at

    def _and(self, at: int, end: int) -> int:
        """The word "and" between two statements, as a comma; -1 if it is not."""
        if "and" in self.names or any(opened.kind not in ("BLOCK", "CASES") for opened in self.open) or not self.tokens:
            return -1
        return end if self._last() in ("COMMA", "SEMI") else self._put("COMMA", "and", at, end)

    def _among_words(self, at: int, end: int) -> bool:
        """Whether spaces separate this run of letters from others."""
        return bool(self.text[end : end + 1] in (" ", "'") or (self.text[at - 1 : at] == " " and self.tokens))

    def _lower_run(self, run: str, at: int) -> int:
        """Letters after a bare _: one, as in LaTeX, if the rest are names; else all, as in plain text."""
        if self._ends_in_power_of_e(run, at):
            run = run[:-1]
        if 1 < len(run) <= 3 and self._are_indices(run):
            return self._lower_letters(run, at)
        if len(run) == 1 or self._split(run[1:], at + len(run), self._is_name) is not None:
            return self._put("NAME", run[0], at, at + 1)
        if naming.greek_name(run) or len(run) > 3:
            return self._put("NAME", run, at, at + len(run))
        return self._lower_letters(run, at)

    def _ends_in_power_of_e(self, run: str, at: int) -> bool:
        """Σ_ie^{s_i}: indices, perhaps a factor after them, and then e^…; a longer word stays whole."""
        if len(run) == 1 or run[-1] != "e" or "e" in self.names or self.text[at + len(run) : at + len(run) + 1] != "^":
            return False
        before = run[:-1]
        known = len(before) <= 3 and (self._are_indices(before) or bool(self._split(before[1:], -1, self._is_name)))
        return len(before) == 1 or known

    def _are_indices(self, run: str) -> bool:
        """Whether all letters of a subscript are indices: declared ones, or any two after δ or I."""
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
        if word in self.names or naming.is_reserved(word) or (word == "lg" and not ({"l", "g"} & set(self.names))):
            return True
        return end >= 0 and any(name in self.names for name, _ in naming.name_readings(self.text, word, end))

    def _is_word(self, word: str, end: int) -> bool:
        if self._is_name(word, end) or naming.greek_name(word) is not None or word in ("I", "pi"):
            return True
        return (word == "e" and end >= 0 and self.text[end : end + 1] == "^") or (word in ("E", "O") and end >= 0)

    def _is_letter(self, word: str, end: int) -> bool:
        return self._is_word(word, end) or len(word) == 1

    def _pieces(self, run: str, end: int) -> list[int]:
        """The lengths of the names in a run of letters; the whole run if it cannot be split."""
        if run in words.UNREAD and (self._opens(end) or self.text[end : end + 1] == " "):
            return [len(run)]
        for accepted in (self._is_name, self._is_word):
            sizes = self._split(run, end, accepted)
            if sizes is not None:
                return sizes
        many = 2 * sum(letter in self.names for letter in run) >= len(run)
        if self._in_order():
            whole = len(run) > 2 and (self._opens(end) or like.snake.match(self.text, end - len(run)) is not None)
            plausible = len(run) <= 4 and (many or not whole)
        else:
            plausible = len(run) <= 3 and many and not (len(run) == 3 and self._opens(end))
        sizes = self._split(run, end, self._is_letter) if plausible else None
        return sizes or [len(run)]

    def _in_order(self) -> bool:
        return any(opened.mark == "order" for opened in self.open)

    def _split(self, run: str, end: int, accepted: Callable[[str, int], bool]) -> list[int] | None:
        """The run as accepted words, longest first from the left; `end` is where it ends in the text."""
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

    def _word(self, word: str, start: int, end: int, *, from_text: bool = False) -> int:
        """A word, from plain letters or from a \\text{}: a function, or the base of a name."""
        if not from_text:
            word = naming.greek_name(word) or word
        for name, stop in naming.name_readings(self.text, word, end):
            if name in self.names:
                return self._trailing_subscript(self._name(name, start, stop))
        if word in ("sum", "prod"):
            opens = word == "sum" and self._opens(end)
            return self._put("FUNC" if opens else "BIG", word, start, end)
        if word == "sqrt":
            return self._put("SQRT", word, start, end)
        if word in FUNCTIONS and (word != "mean" or self._opens(end)):
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
        if self._in_order() and (word in words.UNREAD or (len(word) > 2 and word.isalpha() and self._opens(end))):
            raise self._unreadable(f"{word} is not a function that qkv reads", start, end)
        marks, stop = naming.primes(self.text, end)
        if len(word) > 1 and word.isalpha() and naming.greek_name(word) is None:
            self.words.add(len(self.tokens))
        return self._name(word + marks, start, stop)

    def _logarithm(self, base: str, start: int, stop: int) -> int:
        """log2, as log_2."""
        self._put("FUNC", "log", start, stop)
        self._put("SUB", "_", start, stop)
        return self._put("NUMBER", base, start, stop)

    def _name(self, name: str, start: int, stop: int) -> int:
        return self._put("MAP" if name in self.maps else "NAME", name, start, stop)

    def _trailing_subscript(self, at: int) -> int:
        """Digits directly after the name of a vector or a matrix as its subscript: v2 as v_2."""
        kind = self.names[self.tokens[-1]]
        adjacent = naming.TRAILING_DIGITS.match(self.text, at) if kind.shape and kind.kind != "index" else None
        if not adjacent or self._within("sub", "sup"):
            return at
        self._put("SUB", "_", at, at + 1)
        return self._put("NUMBER", adjacent[0], at, adjacent.end())

    def _opens(self, at: int, *, lower: bool = False) -> bool:
        """Whether a bracket opens at `at`, perhaps after a subscript."""
        below = re.compile(r"\s*_").match(self.text, at) if lower else None
        if below and (taken := naming.argument(self.text, below.end())):
            at = taken[1]
        sizing = like.sizing.match(self.text, at)
        at = sizing.end() if sizing else at
        return self.text[at : at + 1] in ("(", "[", "{") or self.text.startswith("\\{", at)
