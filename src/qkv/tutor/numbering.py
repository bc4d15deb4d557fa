"""Where a turn goes from one numbered question to another: headings, and words like "back to question 1"."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from .asserted import masked_formulas
from .formulas import FENCE, sentences
from .transcript import Turn

_HEADING = re.compile(
    r"^[ \t>]*(?:(?P<hash>#{1,6})[ \t]*)?(?P<bold>\*\*|__)?[ \t]*"
    r"(?:(?P<word>problem|question|exercise|task|q)[ \t]*\.?[ \t]*#?)?(?P<number>\d{1,2})(?P<close>\*\*|__)?"
    r"(?P<dot>[ \t]*[.:)—–-])?(?P<title>[^\n]*)$",
    re.IGNORECASE | re.MULTILINE,
)
_HEADS = re.compile(
    r"^[ \t>]*(?:(?P<hash>#{1,6})[ \t]*)?(?P<bold>\*\*|__)?[ \t]*(?P<word>(?:answers?|solutions?|response|problem|"
    r"question|exercise|task|q)(?:[ \t]+(?:to|for|of))?(?:[ \t]+(?:problem|question|exercise|task))?[ \t#]*)?"
    r"\(?(?P<number>\d{1,2})?\)?[ \t]*[.:)]?(?P<title>[ \t]*[^\n$=?]{0,60})$",
    re.IGNORECASE | re.MULTILINE,
)
MENTION = re.compile(
    r"\b(?:problema?|question|exercise|aufgabe|frage|pregunta|problème|exercice|q)[ \t]*\.?[ \t]*#?(\d{1,2})\b",
    re.IGNORECASE,
)
# "Problem 5, many heads. Let …" and "Also the rest of problem 5:", with the parts below.
_LEADS_TO_PARTS = re.compile(
    r"(?:\A|(?<=\n\n))(?:[^\n.?!:]{0,40}?\b)??(?:problem|question|exercise)[ \t]+(?P<number>\d{1,2})"
    r"(?:,[ \t]+(?!(?:part|which|you|and|as)\b)(?P<title>[^\n.?!:$]{3,60})[.:]"
    r"(?=[^\n]*\n(?:(?!\n[ \t]*\n)[\s\S]){0,2000}?^[ \t]*\(?a\)[ \t])|(?P<rest>:)[ \t]*(?=\n\s*\(?[a-h]\)[ \t]))",
    re.IGNORECASE | re.MULTILINE,
)
_LISTED = re.compile(
    r"^[ \t]*(?:[-*•][ \t]+)?\**(?:(?:problem|question|exercise|q)[ \t]*\.?[ \t]*)?(?P<number>\d{1,2})\**[ \t]*"
    r"[:.)][ \t*]*(?=\(?a\))",
    re.IGNORECASE | re.MULTILINE,
)
# "1b" or "1(b)" at the beginning of a line or of a sentence, with a word before it at most.
PART = re.compile(
    r"(?:^|(?<=[.!?;]\s))[ \t>#*_•-]*(?:(?:but|and|now|so|also|for|in|as for|part|answer|corrected)\b[ \t:]*){0,2}"
    r"\(?(?P<number>\d{1,2})[ \t]?[.]?\(?(?P<part>[a-h])\)?(?=[\s.:,)*])",
    re.IGNORECASE | re.MULTILINE,
)
_GOES_TO = re.compile(
    r"\b(?:now|next|on to|onto|back to|turn(?:ing)? to|as for|regarding|concerning|re-?read\w*|looking (?:back|again)|"
    r"revisit\w*|correct\w*|mistake|slip|start\w*|begin\w*|here (?:is|are)|continu\w*|with|first|finally|before|let'?s|"
    r"moving|solution|answers?)\b",
    re.IGNORECASE,
)
_REFERS = re.compile(
    r"\b(?:as|like|from|see|unlike|than|used|similar to|same as|recall|by|of)\b(?: \w+){0,3} $", re.IGNORECASE
)
_OFFERS = re.compile(
    r"\?\W*$|\b(?:shall|ready|later|when you|once you|let me know|would you|want me|if you|feel free|send|paste)\b",
    re.IGNORECASE,
)


def pieces(turn: Turn) -> Iterator[tuple[str, str, str]]:
    """A turn cut at the headings of problems: number, title and text of each piece."""
    listed = _problems_in_list(turn.text) if turn.speaker == "student" else set()
    marks = [found for found in _HEADING.finditer(turn.text) if found.start() in listed or _is_heading(found, turn)]
    if turn.speaker == "student":
        headed = {mark.start() for mark in marks}
        led = [found for found in _LEADS_TO_PARTS.finditer(turn.text) if found.start() not in headed]
        marks = sorted([*marks, *led], key=lambda mark: mark.start())
    first = marks[0].start() if marks else len(turn.text)
    if turn.text[:first].strip():
        yield "", "", turn.text[:first]
    for mark, following in zip(marks, [*marks[1:], None], strict=False):
        end = len(turn.text) if following is None else following.start()
        title = (mark["title"] or "").strip(" *_:.#—–-")
        yield mark["number"].lstrip("0") or "0", title if _titled(title) else "", turn.text[mark.start() : end]


def _problems_in_list(text: str) -> set[int]:
    """Where the items of a list 1., 2., … begin that are problems: each has parts with letters of its own."""
    items = list(re.finditer(r"^(?P<number>\d{1,2})[.)][ \t]+\S", text, re.MULTILINE))
    if len(items) < 2 or [int(item["number"]) for item in items] != sorted({int(item["number"]) for item in items}):
        return set()
    ends = [item.start() for item in items[1:]] + [len(text)]
    divided = [
        re.search(r"^[ \t]*(?:[-*][ \t]+)?\(?a[.)]\s", text[item.start() : end], re.MULTILINE) is not None
        for item, end in zip(items, ends, strict=True)
    ]
    return {item.start() for item in items} if sum(divided) > 1 else set()


def _is_heading(found: re.Match[str], turn: Turn) -> bool:
    """Whether a line with a number begins a problem: a heading, bold, with the word, or a title at the very start."""
    title = found["title"].strip(" *_")
    if re.match(r"\s*[,.]?\s*\(?[a-h]\)|\s*[a-h]\b\s*[).:]|\s*\([ivx]+\)", found["title"]) and not found["word"]:
        return False  # 1(a) labels a part
    if re.match(r"\s*\(?[a-h]\)", found["title"]):
        return False
    if found["word"]:
        # "Problem 1 is …" within running text says something of it.
        return bool(found["hash"] or found["bold"] or found["dot"]) or not title or _titled(title)
    if turn.speaker != "student":
        return False
    if not found["dot"] or not title:
        return False
    if found["hash"]:
        return len(found["hash"]) <= 3
    begins = not turn.text[: found.start()].strip()
    return begins and (bool(found["bold"]) or (_titled(title) and not title.endswith(("?", ".", ":"))))


def _titled(title: str) -> bool:
    """Whether words look like a title: few, and no sentence."""
    return len(title) <= 90 and len(title.split()) <= 12 and not re.search(r"[.?!]\s+\w|[$=]", title) and not (
        re.match(r"(?:is|was|asks?|has|and|or|,)\b", title)
    )  # fmt: skip


def switches(text: str, known: Collection[str], titles: Mapping[str, str] | None = None) -> Iterator[tuple[str, str]]:
    """A tutor's text cut where its own words go to another of the known questions: number ("" at first) and text.

    `titles` has the title of each number.
    """
    listed = {found.start(): found["number"] for found in _LISTED.finditer(text) if found["number"] in known}
    marks = listed if len(listed) > 1 else {}
    marks |= _headed(text, {number: (titles or {}).get(number, "") for number in known})
    marks |= {found.start(): found["number"] for found in PART.finditer(text) if found["number"] in known}
    place = 0
    for paragraph in re.split(r"(\n\s*\n)", text):
        number = _gone_to(paragraph[:2000], known) if MENTION.search(paragraph[:2000]) else ""
        if number and place not in marks:
            marks[place] = number
        place += len(paragraph)
    code = [found.span() for found in FENCE.finditer(text)]
    places, last = [], ""
    for start in sorted(marks):
        if marks[start] != last and not any(begin < start < end for begin, end in code):
            places.append(start)
            last = marks[start]
    first = places[0] if places else len(text)
    if text[:first].strip():
        yield "", text[:first]
    for start, end in zip(places, [*places[1:], len(text)], strict=False):
        yield marks[start], text[start:end]


def _headed(text: str, known: Mapping[str, str]) -> dict[int, str]:
    """Where lines of their own head the answers to several questions: by number, by title or by both."""
    titles = {" ".join(title.lower().split()): number for number, title in known.items() if title}
    found: dict[int, str] = {}
    for line in _HEADS.finditer(text):
        title = " ".join(line["title"].strip(" *_:.#").lower().split())
        number = (line["number"] or "").lstrip("0")
        if number in known and (not title or titles.get(title, number) == number):
            marked = bool(line["hash"] or line["bold"] or line["word"]) or not title or titles.get(title) == number
            if marked:
                found[line.start()] = number
        elif not number and title in titles and (line["hash"] or line["bold"]):
            found[line.start()] = titles[title]
    # One number alone may be a step of a list; the numbers of questions come more than one at a time.
    rising = list(dict.fromkeys(found.values()))
    return found if len(rising) > 1 and len(rising) == len(found) and _followed_by_parts(text, found) else {}


def _followed_by_parts(text: str, heads: Mapping[int, str]) -> bool:
    """Whether what stands below most of the heads begins with the label of a part, or has one."""
    ends = [*list(heads)[1:], len(text)]
    below = [text[start:end].partition("\n")[2] for start, end in zip(heads, ends, strict=True)]
    return 2 * sum(
        re.search(r"^[ \t>*#-]*(?:part )?\(?[a-h][).:]", each, re.I | re.M) is not None for each in below
    ) > len(below)


def _gone_to(paragraph: str, known: Collection[str]) -> str:
    """The question that a paragraph turns to: named by the sentence that says so, and not only referred to."""
    numbers = set(MENTION.findall(paragraph)) & set(known)
    if len(numbers) != 1:
        return ""
    for start, end in sentences(paragraph):
        said = masked_formulas(paragraph[start:end]).strip()
        found = MENTION.search(said)
        if found is None or _OFFERS.search(said):
            continue
        before = said[: found.start()]
        begins = len(re.findall(r"\w+", before)) == 0
        if (begins or _GOES_TO.search(before)) and not _REFERS.search(before):
            return found[1].lstrip("0")
    return ""
