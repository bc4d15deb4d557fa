"""Answers that fill a blank of a listing: a shape, or an einsum that is run on small arrays. Nothing is evaluated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from typing import Any

from ...maths import equal
from ..outcome import Outcome
from .answers import unreadable
from .calls import NotRunnable, einsum_order, loose, product_in
from .choices import ORDINALS, ROMAN
from .doubts import held

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)
MOST_AXES = 8  # of one operand or answer
LONGEST_CALL = 5_000  # characters in which a call is looked for

_ATOM = r"(?:\d{1,6}|[A-Za-z](?:_?\{?\w{0,10}\}?)?)"
_SIZE = rf"{{?{_ATOM}(?:\s?[-+*/·]?\s?{_ATOM}){{0,3}}}}?"


@dataclass(frozen=True)
class ShapeOf:
    """The shape of a tensor: "[h, d, q]", "(h, d, d/h)", "h x d x q".

    `equal_sizes` says which names are one number (q = d/h). `options` are the shapes that the question offers: their
    number or letter is an answer too. `what` says what the axes are, for the reason; `name` is the tensor's.

    >>> shape = ShapeOf(("h", "d", "q"), {"q": "d/h"})
    >>> shape.check("h × d × d/h").kind, shape.check("[d, q]").reason
    ('right', '2 axes, [d, q], where 3 are wanted')
    """

    dims: tuple[str, ...]
    equal_sizes: Mapping[str, str] = field(default_factory=dict, hash=False)
    options: tuple[str, ...] = ()
    what: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        return f"[{', '.join(self.dims)}]"

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        if (several := self._several(answer)) is not None:
            return several
        dims = self.read(answer)
        if dims is None:
            return Outcome("unread", "no shape could be found; write it as [a, b, c]")
        given = f"[{', '.join(dims)}]"
        if len(dims) != len(self.dims):
            return Outcome("wrong", self._because(f"{len(dims)} axes, {given}, where {len(self.dims)} are wanted"))
        faults = [place for place in range(len(dims)) if not self._equal(self.dims[place], dims[place])]
        if not faults:
            return Outcome("right", f"{given} is the shape")
        if any(all(map(self._equal, order, dims)) for order in permutations(self.dims) if len(dims) <= 5):
            return Outcome("wrong", self._because(f"{given} has the right sizes in another order"))
        axes = " and ".join(f"axis {place + 1} is {dims[place]}" for place in faults)
        return Outcome("wrong", self._because(f"in {given} {axes}, which is another size than wanted"))

    def same(self, wrong: str, answer: str) -> bool:
        planted, given = self.read(wrong), self.read(answer)
        if planted is None or given is None or len(planted) != len(given):
            return False
        return all(map(self._equal, planted, given))

    def read(self, answer: str) -> tuple[str, ...] | None:
        """The sizes that a text gives, the last shape in it; an option's number or letter stands for the option."""
        text = _code(_offered(held(answer), self.options))
        listed = self._listed(text)
        if listed is not None:
            pieces = listed.split(",")
        else:
            last = re.split(r"[=:^]|\bis\b|\bR\b", text.strip(" .}{"))[-1]
            pieces = re.split(r"\sx\s|×", last)
            if not 2 <= len(pieces) <= MOST_AXES or not all(re.fullmatch(_SIZE, piece.strip()) for piece in pieces):
                return None
        dims = tuple(re.sub(r"\s+", " ", piece).strip(" {}") for piece in pieces)
        return dims if all(dims) else None

    def _listed(self, text: str) -> str | None:
        """The list of sizes that is meant: in square brackets rather than round ones, after the tensor's name where
        it is named, the first that is not denied."""
        for opening, closing, least in ((r"\[", r"\]", 0), (r"\(", r"\)", 1)):
            sizes = rf"{_SIZE}(?:\s*,\s*{_SIZE}){{{least},{MOST_AXES}}}"
            found = list(re.finditer(rf"{opening}\s*({sizes})\s*,?\s*{closing}", text))
            kept = [each for each in found if not denied_before(text, each.start())]
            named = re.search(rf"(?<!\w){loose(self.name)}(?!\w)", text) if self.name else None
            after = [each for each in kept if named and each.start() > named.end()]
            if kept:
                return (after or kept)[0][1]
        return None

    def _several(self, answer: str) -> Outcome | None:
        """Two shapes of which one is to be picked, "[a, b] or [b, a]", are no answer where they differ."""
        listed = rf"[\[(]\s*({_SIZE}(?:\s*,\s*{_SIZE}){{1,{MOST_AXES}}})\s*,?\s*[\])]"
        found = list(re.finditer(listed, _code(held(answer))[:LONGEST_CALL]))
        for one, two in pairwise(found):
            sizes = [tuple(size.strip() for size in each[1].split(",")) for each in (one, two)]
            differ = len(sizes[0]) != len(sizes[1]) or not all(map(self._equal, *sizes))
            if differ and re.fullmatch(
                r"[\s,;$]*(?:or(?: (?:maybe|perhaps|rather))?)?[\s,;$]*", one.string[one.end() : two.start()]
            ):
                return Outcome("unread", f"[{one[1]}] and [{two[1]}] are two answers: give one")
        return None

    def _because(self, fault: str) -> str:
        return f"{fault}: {self.what}" if self.what else fault

    def _equal(self, wanted: str, given: str) -> bool:
        one, two = (self.equal_sizes.get(name, name).replace(" ", "") for name in (wanted, given))
        if one == two:
            return True
        if one.isalpha() and two.isalpha() and len(one) == len(two) == 1:
            return False
        names = set(
            re.findall(r"[A-Za-z]\w*", " ".join((wanted, given, *self.equal_sizes, *self.equal_sizes.values())))
        )
        known = set(re.findall(r"[A-Za-z]\w*", " ".join((*self.dims, *self.equal_sizes, *self.equal_sizes.values()))))
        if not names <= known | set(re.findall(r"[A-Za-z]\w*", wanted)):
            return False
        symbols = dict.fromkeys(names - set(self.equal_sizes), "natural")
        symbols |= {name: f"natural = {size}" for name, size in self.equal_sizes.items()}
        return equal(wanted, given, symbols)


@dataclass(frozen=True)
class Einsum:
    """One einsum: the subscripts `spec` over the named `operands`, whose axes are the letters of `spec`.

    An answer is the call or its subscripts alone; its letters may have other names and its operands another order, and
    `x @ W` is run as well. It is run on arrays of whole numbers whose sizes are primes, a different one for each
    letter of `spec`, so that what only works when sizes happen to agree does not run.

    >>> query = Einsum("bd,hdq->bhq", ("x", "W_q"))
    >>> query.check('torch.einsum("ni,hij->nhj", x, W_q)').kind, query.check("hdq,bd->bhq").kind
    ('right', 'right')
    >>> query.check("bd,hdq->hbq").reason
    'the result has the axes [h, b, q], and [b, h, q] are wanted'
    """

    spec: str
    operands: tuple[str, ...]
    options: tuple[str, ...] = ()
    function: str = "einsum"

    @property
    def text(self) -> str:
        return f'{self.function}("{self.spec}", {", ".join(self.operands)})'

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        try:
            given = self._read(answer)
        except NotRunnable as reason:
            return reason.outcome
        if given is None:
            return Outcome("unread", f"no einsum could be found; write its subscripts, as in {self._example()}")
        faults: list[Outcome] = []
        for terms, out in given:
            outcome = self._run(terms, out)
            # Another order of the operands is meant only where the given one cannot be.
            if outcome.kind == "right" or "does not run" not in outcome.reason:
                return outcome
            faults.append(outcome)
        return faults[0]

    def same(self, wrong: str, answer: str) -> bool:
        try:
            planted, given = self._read(wrong), self._read(answer)
        except NotRunnable:
            return False
        if planted is None or given is None:
            return False
        return bool({_renamed(*call) for call in planted} & {_renamed(*call) for call in given})

    def _example(self) -> str:
        return '"ij,jk->ik"' if self.spec != "ij,jk->ik" else '"ab,bc->ac"'

    def _read(self, answer: str) -> list[tuple[tuple[str, ...], str]] | None:
        """The calls that a text may mean: a term for each operand in this question's order, and the result's."""
        text = _code(_offered(held(answer), self.options))
        arrows = [found.start() for found in re.finditer("->", text[:LONGEST_CALL])]
        calls = [(arrow, *_subscripts(text, arrow)) for arrow in arrows]
        calls = [call for call in calls if "," in call[1]]
        if not calls:
            return self._matrix_product(text)
        kept = [call for call in calls if not denied_before(text, call[0] - len(call[1]))]
        if not kept or _either(text, kept):
            return None
        arrow, left, right = kept[0]
        terms = left.split(",")
        terms, right = _with_letters(terms, right)
        if len(terms) != len(self.operands):
            raise NotRunnable(f"{len(terms)} operands have subscripts, and there are {len(self.operands)}")
        named = einsum_order(text, arrow, self.operands) or self._order(text)
        orders = [named] if named else list(permutations(range(len(terms))))
        return [(tuple(terms[order.index(place)] for place in range(len(order))), right) for order in orders]

    def _order(self, text: str) -> tuple[int, ...] | None:
        """Which operand each argument is, where the arguments are named."""
        places = [
            (found.start(), which)
            for which, name in enumerate(self.operands)
            for found in [
                re.search(
                    rf"(?<![\w]){loose(name)}(?!\w)", re.sub(r"[A-Za-z. ,]{1,80}->\s*[A-Za-z. ]*", _blanked, text)
                )
            ]
            if found
        ]
        order = tuple(which for _, which in sorted(places))
        return order if len(order) == len(self.operands) else None

    def _matrix_product(self, text: str) -> list[tuple[tuple[str, ...], str]] | None:
        """`x @ W` of two matrices, as an einsum; other ranks are said not to fit."""
        if len(self.operands) != 2 or (product := product_in(text, self.operands)) is None:
            return None
        if denied_before(text, len(text) - len(text.lstrip()) + len(text.partition("@")[0].rstrip())):
            return None
        ranks = [len(term) for term in self._axes()]
        if ranks == [2, 2] and not product.swapped:
            return [(("ij", "jk"), "ik") if product.order == (0, 1) else (("jk", "ij"), "ik")]
        if ranks == [2, 3] and product.order == (0, 1):
            # The matrix is multiplied by every head's, and the heads come first.
            return [(("ij", "hjk"), "ihk" if product.swapped else "hik")]
        raise NotRunnable(f"a plain matrix product of {ranks[0]} and {ranks[1]} axes mixes up the batch and the heads")

    def _axes(self) -> list[str]:
        return self.spec.partition("->")[0].split(",")

    def _run(self, terms: tuple[str, ...], out: str) -> Outcome:
        import numpy as np

        sizes = {letter: PRIMES[place] for place, letter in enumerate(dict.fromkeys(filter(str.isalpha, self.spec)))}
        try:
            terms, out = _without_dots(terms, out, [len(axes) for axes in self._axes()])
            stands_for = self._bound(terms, out)
        except NotRunnable as reason:
            return Outcome("wrong", f"it does not run: {reason}")
        arrays: list[Any] = []
        for place, axes in enumerate(self._axes()):
            shape = tuple(sizes[letter] for letter in axes)
            count = int(np.prod(shape))
            # Whole numbers that follow no pattern: sums over a wrong axis cannot come out right.
            arrays.append((np.arange(1, count + 1) * (place + 7) ** 3 % 101).reshape(shape))
        wanted = np.einsum(self.spec, *arrays)
        given = np.einsum(",".join(terms) + "->" + out, *arrays)
        result = self.spec.partition("->")[2]
        if wanted.shape != given.shape:
            axes = ", ".join(stands_for[letter] for letter in out)
            return Outcome("wrong", f"the result has the axes [{axes}], and [{', '.join(result)}] are wanted")
        if not np.array_equal(wanted, given):
            return Outcome("wrong", "it runs and has the right shape, but the numbers are not those that are wanted")
        return Outcome("right", f"run on small arrays, it gives the axes [{', '.join(result)}] and the right numbers")

    def _bound(self, terms: tuple[str, ...], out: str) -> dict[str, str]:
        """Each letter of an answer to the axis of this question that it stands for."""
        stands_for: dict[str, str] = {}
        for name, axes, term in zip(self.operands, self._axes(), terms, strict=True):
            if len(term) != len(axes):
                raise NotRunnable(f"{name} has {_counted(axes)}, [{', '.join(axes)}], and {term!r} names {len(term)}")
            for axis, letter in zip(axes, term, strict=True):
                if stands_for.setdefault(letter, axis) != axis:
                    raise NotRunnable(f"{letter} stands for two sizes, {stands_for[letter]} and {axis}")
        for place, letter in enumerate(out):
            if letter not in stands_for:
                raise NotRunnable(f"{letter} is in the result and in no operand")
            if letter in out[:place]:
                raise NotRunnable(f"{letter} is twice in the result")
        return stands_for


def denied_before(text: str, start: int) -> bool:
    """Whether what stands at `start` is named only to be turned down."""
    before = text[max(0, start - 40) : start].lower()
    return bool(re.search(r"\b(?:not|instead of|rather than|unlike|wrong|than)\b[^.;\n,]{0,24}$", before))


def _either(text: str, calls: list[tuple[int, str, str]]) -> bool:
    """Whether a text leaves open which of two calls is meant."""
    for (one, left, right), (two, other, result) in pairwise(calls):
        differ = _renamed((left,), right) != _renamed((other,), result)
        if differ and re.search(r"\bor\b(?! equivalently)|^[^A-Za-z]*;", text[one + 2 + len(right) : two - len(other)]):
            return True
    return False


def _subscripts(text: str, arrow: int) -> tuple[str, str]:
    """What stands on both sides of an arrow, as far as it can be subscripts."""
    left = re.search(r"[A-Za-z. ,]*$", text[max(0, arrow - 80) : arrow])
    right = re.match(r"\s*[A-Za-z. ]{0,60}", text[arrow + 2 :])
    before = re.sub(
        r"^.*\b(?:einsum|is|be|use|it|with|by|answer|not|but|so|than|of|or)\b(?=\s)", "", left[0] if left else ""
    )
    words = r"\s+(?:but|and|not|rather|instead|because|since|where|which|so|with|for|is|as|the)\b"
    # A lone full stop ends a sentence; three are axes.
    after = re.sub(r"(?<!\.)\.(?!\.).*$", "", right[0]) if right else ""
    return before, re.split(words, after)[0]


def _counted(axes: str) -> str:
    return "1 axis" if len(axes) == 1 else f"{len(axes)} axes"


def _blanked(found: re.Match[str]) -> str:
    return " " * len(found[0])


def _with_letters(terms: list[str], right: str) -> tuple[list[str], str]:
    """Subscripts as single letters: names apart by spaces ("batch dim, heads dim q") get a letter each."""
    pieces = [term.split() for term in (*terms, right)]
    if any(len(words) > 1 for words in pieces) and any(
        len(word) > 1 for words in pieces for word in words if word != "..."
    ):
        letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        known: dict[str, str] = {}
        for words in pieces:
            for word in words:
                if word not in known and word != "...":
                    known[word] = next(letters, "z")
        joined = ["".join(known.get(word, word) for word in words) for words in pieces]
    else:
        joined = ["".join(words) for words in pieces]
    return joined[:-1], joined[-1]


def _without_dots(terms: tuple[str, ...], out: str, ranks: list[int]) -> tuple[tuple[str, ...], str]:
    """Dots for the axes that are not named, spelt out where one operand has them."""
    if not any("." in term for term in (*terms, out)):
        return terms, out
    spelt = "αβγδεζηθ"
    dotted = [
        (term, rank - len(term.replace("...", ""))) for term, rank in zip(terms, ranks, strict=True) if "..." in term
    ]
    if any("." in term.replace("...", "", 1) for term in (*terms, out)) or not dotted:
        raise NotRunnable("dots stand for axes as '...', once in a term")
    most = max(count for _, count in dotted)
    if not 0 <= min(count for _, count in dotted) <= most <= len(spelt):
        raise NotRunnable("more axes are named than there are")
    free = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if not any(letter in term for term in terms)][:most]
    whole = "".join(free)
    filled = []
    for term, rank in zip(terms, ranks, strict=True):
        count = rank - len(term.replace("...", ""))
        filled.append(term.replace("...", whole[len(whole) - count :] if count else ""))
    return tuple(filled), out.replace("...", whole)


def _renamed(terms: tuple[str, ...], out: str) -> tuple[str, ...]:
    """A call with its letters in the order of their appearance, so that names do not matter."""
    letters: dict[str, int] = {}
    return tuple("-".join(str(letters.setdefault(letter, len(letters))) for letter in term) for term in (*terms, out))


def _offered(answer: str, options: tuple[str, ...]) -> str:
    """An answer that only names one of the options, as that option's text; another one as it is."""
    word = "" if "[" in answer else re.sub(r"[^\w]+", " ", answer.lower()).strip()
    word = re.sub(
        r"^(?:the )?(?:answer is |it is )?(?:the )?(?:option |choice |number )?|(?: option| one| choice)$", "", word
    )
    for place, option in enumerate(options):
        if word in (str(place + 1), "abcdefgh"[place], ROMAN[place], ORDINALS[place]):
            return option
    return answer


def _code(text: str) -> str:
    """A text with arrows, crosses and LaTeX's wrappers as code has them."""
    text = re.sub(r"\\(?:texttt|text|mathtt|mathrm|mathbb|mathbf|verb|code)\b", " ", text)
    text = re.sub(r"\\(?:rightarrow|to|longrightarrow)\b|→|⟶|⇒|−>|–>|=>", "->", text)
    text = re.sub(r"\\times\b|✕|✖|⨯", "×", text)
    text = re.sub(r"\\(?:left|right|quad|,|;|!| )", " ", text)
    text = re.sub(r"\\d?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1/\2", text)
    return text.replace("\\_", "_").replace("`", " ").replace("$", " ").replace("…", "...").replace("**", " ")
