"""Which part of the bank each of a statement's own parts is: by what they ask for, and by their order."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from ..problems.problem import Part, Problem, plain_name
from .claims import in_words
from .labels import sections

Pairs = list[tuple[str, Part]]


@dataclass
class Matched:
    """Plain name in the chat to the bank's part, and how it is shown; `unknown` are items that the bank has not."""

    parts: dict[str, Part] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    numbered: bool = False
    unknown: tuple[str, ...] = ()


def match_parts(problem: Problem, statement: str) -> Matched:
    """The parts of a statement; every part of the problem where the statement lists none."""
    statement = relabelled(statement)
    items, pairs = _paired(statement, problem.parts)
    general = tuple(part for part in problem.variant(None).parts if _general(part, statement))
    others, other_pairs = _paired(statement, general)
    if _sure(others, other_pairs) > _sure(items, pairs):
        # What was read from the text itself has the text's own names and numbers: it goes before the documents' part.
        own = {part.cues: part for part in problem.parts}
        texts = {name: text for name, _, text in others}
        named = {name: part for name, part in pairs if name == plain_name(part.name)}

        def better(name: str, part: Part) -> Part:
            mine = named.get(name)
            more = mine is not None and _hits(mine, texts[name]) > _hits(part, texts[name])
            return mine if mine is not None and more else own.get(part.cues, part)

        items, pairs = others, [(name, better(name, part)) for name, part in other_pairs]
    if not items or not pairs:
        numbered = bool(items and items[0][1]) or not re.search(r"\([a-h]\)|\b[a-h]\)", statement)
        keys = {plain_name(part.name): part for part in problem.parts}
        return Matched(keys, {key: part.name for key, part in keys.items()}, numbered)
    taken = {name for name, _ in pairs}
    pairs = pairs + _left_over(pairs, [(name, text) for name, _, text in items if name not in taken], general)
    pairs = pairs + _divided(pairs, problem.parts)
    order = sorted(pairs, key=lambda pair: _place(plain_name(pair[0])))
    texts = {name: text for name, _, text in items}
    parts = {plain_name(name): narrowed(part, texts.get(name, "")) for name, part in order}
    unknown = [plain_name(name) for name, _, _ in items if not any(key[0] == plain_name(name)[0] for key in parts)]
    return Matched(parts, {key: shown_name(key) for key in parts}, items[0][1], tuple(map(shown_name, unknown)))


_CALLED = {
    "time": r"\btime\b|how (?:long|fast)|comput|runtime|flops|operations",
    "space": r"\bspace\b|memory|storage",
    "mean": r"\bmean\b|expect|\bE\s?[\[({]",
    "variance": r"\bvar(?:iance)?\b",
}


def narrowed(part: Part, text: str) -> Part:
    """A part of several quantities as an item that asks for one of them alone: "What is the variance?"."""
    items = getattr(part.answer, "items", {})
    asked = [name for name in items if name in _CALLED and re.search(_CALLED[name], text, re.IGNORECASE)]
    if len(asked) != 1 or len(items) == 1 or not set(items) <= set(_CALLED):
        return part
    name = asked[0]
    known = []
    for each in part.misconceptions:
        said = [
            piece.partition("=")[2].strip() for piece in each.planted.split("; ") if piece.split("=")[0].strip() == name
        ]
        known += [replace(each, planted=said[0])] if said and said[0] != items[name].text else []
    return replace(part, answer=items[name], misconceptions=tuple(known))


def _paired(statement: str, parts: Sequence[Part]) -> tuple[list[tuple[str, bool, str]], Pairs]:
    letters = {plain_name(part.name)[0] for part in parts if len(plain_name(part.name)) > 1}
    items = statement_items(statement, letters)
    return items, _aligned([(name, text) for name, _, text in items], parts)


def _sure(items: list[tuple[str, bool, str]], pairs: Pairs) -> int:
    """How many items have a part that they speak of in its own words."""
    texts = {name: text for name, _, text in items}
    return sum(_hits(part, texts[name]) > 0 for name, part in pairs)


def _left_over(pairs: Pairs, items: list[tuple[str, str]], general: Sequence[Part]) -> Pairs:
    """Parts as the documents ask them for items that were not recognised."""
    known = {part.answer.text for _, part in pairs}
    texts = dict(items)
    found = _aligned(items, tuple(part for part in general if part.answer.text not in known)) if items else []
    return [(name, part) for name, part in found if _hits(part, texts[name])]


def _divided(pairs: Pairs, bank: Sequence[Part]) -> Pairs:
    """Further parts (ii), (iii) … of a letter that the statement gives as one."""
    covered = {part.name for _, part in pairs}
    theirs: dict[str, set[str]] = {}
    for name, part in pairs:
        theirs.setdefault(plain_name(part.name)[0], set()).add(plain_name(name))
    keys = [(plain_name(part.name), part) for part in bank if part.name not in covered]
    return [(key, part) for key, part in keys if len(key) > 1 and theirs.get(key[0]) == {key[0]}]


def _hits(part: Part, text: str) -> int:
    return sum(re.search(cue, text, re.IGNORECASE) is not None for cue in part.cues)


def _place(key: str) -> tuple[str, int]:
    return key[:1], _ROMAN.index(key[1:]) if key[1:] in _ROMAN else len(_ROMAN)


def relabelled(text: str) -> str:
    """A statement with its labels written in one way: "a) i) … ii) …" as "(a) (i) … (ii) …".

    >>> relabelled("a) i) one ii) two")
    '(a) (i) one (ii) two'
    """
    text = re.sub(r"^([ \t]*(?:[-*][ \t]+)?)(\**)([a-h])[.)](\**)(?=\s)", r"\1\2(\3)\4", text, flags=re.MULTILINE)
    text = re.sub(r"^([ \t]*)([a-h])\((i{1,3}|iv|v)\)(?=[ \t])", r"\1(\2)(\3)", text, flags=re.MULTILINE)
    if re.search(r"(?<![\w(])i\)\s", text) and re.search(r"(?<![\w(])ii\)\s", text):
        text = re.sub(r"(?<![\w(])(i{1,3}|iv|v)\)(?=\s)", r"(\1)", text)
    # A part that begins within a line begins a line of its own.
    text = _WITHIN.sub(r"\n(\1)", text)
    return _rising(_PART_LINE.sub(r"\1(\2)", text))


def _rising(text: str) -> str:
    """Labels within lines that count up from the last at the beginning of one: "(a) x (b) y" has two parts."""
    pieces, done, wanted = [], 0, "a"
    for found in re.finditer(r"(?:^|(?<=\s))\(([a-h])\)(?=\s)", text, re.MULTILINE):
        begins = not text[text.rfind("\n", 0, found.start()) + 1 : found.start()].strip(" \t>*#-")
        if found[1] != wanted or (not begins and _REFERS.search(text[max(0, found.start() - 20) : found.start()])):
            continue
        if not begins:
            pieces += [text[done : found.start()].rstrip(" \t"), "\n"]
            done = found.start()
        wanted = chr(ord(wanted) + 1)
    return "".join([*pieces, text[done:]])


_REFERS = re.compile(
    r"\b(?:in|of|from|and|to|parts?|both|for|by|see|with|or|than|about|question|problem|exercise)\s*$", re.IGNORECASE
)


_LEADS = r"(?:(?:and|now|then|next|also|finally|ok(?:ay)?|so|great|thanks|good|alright)[,.!: ]+){0,2}"
_WITHIN = re.compile(rf"(?<=[.:?;!])[ \t]+(?:{_LEADS}part )?\(([a-h])\)[:.]?(?=\s)", re.IGNORECASE)
_PART_LINE = re.compile(
    rf"^([ \t]*)\**{_LEADS}part \(?([a-h])\)?(?:\**[:.,]\**|\*\*)(?=\s)", re.IGNORECASE | re.MULTILINE
)
_ROMAN = ("", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii")


def shown_name(key: str) -> str:
    """A plain name as people write it.

    >>> shown_name("a"), shown_name("bii")
    ('a', 'b(ii)')
    """
    return key if len(key) == 1 else f"{key[0]}({key[1:]})"


def statement_items(
    statement: str, divided: Collection[str] = "abcdefgh", first: str = "a"
) -> list[tuple[str, bool, str]]:
    """The parts that a statement lists: name, whether they are numbered, and text.

    Only the letters in `divided` have parts (i), (ii), …; elsewhere these are options of a choice. A list begins with
    `first`, or anywhere where it is empty.

    >>> [(name, text.strip()) for name, _, text in statement_items("1. Find E.\\n2. Find V.")]
    [('a', 'Find E.'), ('b', 'Find V.')]
    """
    # "For part (b): …" before the parts gives what (b) is about.
    statement = re.sub(
        r"^([ \t]*For) part \(([a-h])\):(?=[\s\S]*^[ \t]*\(\2\))", r"\1 that part,", statement, flags=re.MULTILINE
    )
    if re.search(r"^[ \t]*\(a\)", statement, re.MULTILINE):
        statement = re.sub(r"\(([A-H])\)", r"[\1]", statement)  # then capitals are the options of a choice
    romans = ("", "i", "ii", "iii", "iv", "v")
    names = [letter + roman for letter in "abcdefgh" for roman in (romans if letter in divided else ("",))]
    for numbered in (False, True):
        found = [each for each in sections(statement, names, numbered=numbered) if each.part]
        by_name: dict[str, str] = {}
        for each in found:
            # Numbers count up from 1; another one is that of the question.
            if not numbered or each.part[0] in by_name or each.part[0] == "abcdefghi"[len(by_name)]:
                by_name.setdefault(each.part, each.text)
        if by_name and (min(by_name)[0] == first or not first) and (len(by_name) > 1 or not numbered):
            grouped = {name[0] for name in by_name if len(name) > 1}
            return [(name, numbered, text) for name, text in by_name.items() if len(name) > 1 or name not in grouped]
    return []


def _general(part: Part, statement: str) -> bool:
    """Whether a part has no numbers of its own, and its answer only names that the statement has."""
    symbols = {**getattr(part.answer, "symbols", {}), **part.symbols}
    told = set(re.findall(r"[A-Za-z]+", part.answer.text))
    used = [name.split("_")[0] for name in symbols if name.split("_")[0] in told]
    named = all(re.search(rf"(?<![a-zA-Z]){re.escape(name)}(?![a-z])", statement) for name in used)
    return named and not any(re.search(r"=.*\d", kind) for kind in symbols.values())


def _stems(text: str) -> set[str]:
    return {word[:5] for word in re.findall(r"[a-z]{5,}", text.lower())} - _EMPTY


_EMPTY = {
    word[:5] for word in ("which", "where", "there", "their", "would", "attention", "given", "every", "terms", "using")
}


def _aligned(items: list[tuple[str, str]], bank: Sequence[Part]) -> list[tuple[str, Part]]:
    """Items and parts of the bank paired in order so that cues and names agree best."""

    def fit(item: tuple[str, str], part: Part) -> float:
        name, text = item
        hits = _hits(part, text)
        shared = len(_stems(text) & _stems(f"{part.ask} {part.explanation}"))
        named = plain_name(name) == plain_name(part.name)
        least = 1 if in_words(part) else 2
        return min(hits, 3) + (0.4 if named else 0.0) + (0.15 * min(shared, 4) if shared >= least else 0.0)

    scores = [[fit(item, part) for part in bank] for item in items]
    best = [[0.0] * (len(bank) + 1) for _ in range(len(items) + 1)]
    for row in range(len(items) - 1, -1, -1):
        for column in range(len(bank) - 1, -1, -1):
            both = scores[row][column] + best[row + 1][column + 1] if scores[row][column] > 0 else -1.0
            best[row][column] = max(both, best[row + 1][column], best[row][column + 1])
    pairs, row, column = [], 0, 0
    while row < len(items) and column < len(bank):
        score = scores[row][column]
        if score > 0 and best[row][column] == score + best[row + 1][column + 1]:
            pairs.append((items[row][0], bank[column]))
            row, column = row + 1, column + 1
        elif best[row][column] == best[row + 1][column]:
            row += 1
        else:
            column += 1
    return pairs
