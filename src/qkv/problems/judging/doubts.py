"""What an answer takes back, or leaves open: a text that denies the right answer does not give it."""

from __future__ import annotations

import re
from functools import lru_cache

from ..outcome import Outcome
from .cutting import NAMES

_PARTS = re.compile(r"((?:[.!?;](?=[\s$)\]]|$)|\n)[\s$)\]]*)")
_WRONG = (
    r"(?:(?:clearly|simply|just|plainly|all|quite|also|of course|definitely)\s+)*"
    r"(?:wrong|false|incorrect|untrue|mistaken|nonsense|an? (?:common |known )?(?:mistake|myth|error|misconception)"
    r"|not (?:true|right|correct|so|the (?:case|answer|right (?:one|answer)|correct (?:one|answer))|it))\b"
    r"(?!\s+(?:that|to\b|if|unless|when|for|in general|of)|-)"
)
_IS = r"(?:is|are|was|were|would be|would have been)\s+"
_THAT = re.compile(
    rf"^\W*(?:(?:but|and|however|yet|though)\W+)*(?:this|that|it|which|both|they|those|these|all of (?:this|that|them))"
    rf"(?:\s(?:answer|claim|belief|view))?(?:['’]s\s+|\s+{_IS}){_WRONG}",
    re.IGNORECASE,
)
_OF_WHAT = re.compile(rf"\s{_IS}{_WRONG}", re.IGNORECASE)
_THAT_WITHIN = re.compile(
    rf"(?:,|\bbut|\band|—|–|:)\s*(?:but |and |which |that |this |it ){{1,3}}(?:['’]s\s+|{_IS}){_WRONG}", re.IGNORECASE
)
_NO = re.compile(r"^\W*(?:no|nope|nein|not|never|certainly not|of course not|wrong|false)\b(?!\s+\w+\s)", re.IGNORECASE)
_LAST_NO = re.compile(
    r"[,?:—–-]\s*(?:i (?:think|believe|would say|guess) not|not|no|nope|not really|of course not|not!|wrong|false"
    r"|or (?:maybe|perhaps|rather) not)\s*$",
    re.IGNORECASE,
)
# In a formula's sentence these deny what follows; in prose they may be part of a right answer.
_FALSE_THAT = re.compile(
    r"\b(?:not (?:true|the case|so|correct|right)|wrong|false|incorrect|untrue|nonsense|"
    r"an? (?:common |known )?(?:mistake|myth|error|misconception))\s+(?:to (?:say|think|claim|believe|write)\s+)?that\b"
    r"|\b(?:nobody|no one|no-one|few) (?:says?|claims?|thinks?|believes?)\b"
    r"|\b(?:anything|everything|all|any\w*)\s+(?:but|except|save|other than)\b"
    r"|\bneither\b|\bby no means\b|\bon no account\b|\bfar from\b",
    re.IGNORECASE,
)
_TURN = re.compile(
    r"[,:]\s*(?:but|rather|instead|it is|it['’]s|the answer is)\b|\bbut (?:rather|it is)\b", re.IGNORECASE
)

_FIRST_NOT = re.compile(
    r"^\W*(?:(?:it|this|that|the answer)(?:['’]s| is| are)? )?(?:certainly |definitely |surely |of course )?"
    r"(?:not|neither|nor|never|anything but|everything (?:but|except)|all (?:but|except)"
    r"|(?:false|wrong|untrue) that)\b",
    re.IGNORECASE,
)
_AFTER_ALL = re.compile(
    r"(?<!anything )(?<!everything )(?<!all )\bbut\b|\brather\b(?! than)|\binstead\b(?! of)"
    r"|[,:;.]\s*(?:it|this|they|the answer|we|just|only)\b|\b(?:correct|right) (?:answer|one)|\bshould be\b|\bonly\b",
    re.IGNORECASE,
)
_RELATION = re.compile(
    r"^(?:[\s$`*(]|\\[\[(]|\b(?:(?:the|its)(?: \w{1,20}){1,3} is|answer|it is|is)\b:?)*"
    r"(?:\\(?:neq?|not\s*=|geq?|leq?|geqslant|leqslant|gt|lt|gg|ll|sim|lesssim|gtrsim|propto)(?![A-Za-z])"
    r"|[≠≥≤≫≪∝]|!=|=/=|>|<(?![^<>]*,[^<>]*>)|~(?=\s*[A-Za-z\\]))"
)
_FACTORIAL = re.compile(r"(?<![\\!])[\w)}\]]\s?!(?![=!\w])")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")


@lru_cache(maxsize=256)
def held(answer: str, prose: bool = False) -> str:
    """A text without what it takes back: "X is wrong, it is Y" holds Y. In `prose` a sentence keeps its own denials.

    >>> held("Some say d; this is wrong."), held("[h, q] is wrong, it is [h, d, q]"), held("the mean is not zero")
    ('', ', it is [h, d, q]', 'the mean is not zero')
    """
    parts = _PARTS.split(answer)
    clauses, ends = parts[::2], [*parts[1::2], ""]
    kept: list[str] = []
    for place, clause in enumerate(clauses):
        if (back := _THAT.match(clause)) is not None:
            # What is taken back is the whole sentence before, or this one up to here.
            last = re.search(r"[.!?\n]\s*$", kept[-1]) if kept else None
            while kept and (not kept[-1].strip() or last or not re.search(r"[.!?\n]\s*$", kept[-1])):
                last = None if kept.pop().strip() else last
            clause = clause[back.end() :]
        elif "?" in ends[place - 1] and place and _NO.match(clause):
            kept[-1:], clause = [], _NO.sub("", clause)
        elif (back := _THAT_WITHIN.search(clause) or (None if prose else _OF_WHAT.search(clause))) is not None:
            dummy = re.fullmatch(r"\W*(?:it|this|that|there|nothing)", clause[: back.start()], re.IGNORECASE)
            clause = clause[back.end() :] if not dummy else clause
        if _LAST_NO.search(clause):
            clause = ""
        if not prose and (false := _FALSE_THAT.search(clause)) is not None:
            turn = _TURN.search(clause, false.end())
            before = clause[: false.start()]
            # "The answer is d, by no means d^2": what was said before stands.
            clause = before if len(before.split()) > 3 else clause[turn.start() :] if turn else ""
        kept.append(clause + (ends[place] if clause.strip() else ""))
    found = "".join(kept)
    return answer if found.strip() == answer.strip() else found.strip()


def only_denied(answer: str, prose: bool) -> bool:
    """Whether a text says what the answer is not, and nothing beside it; in `prose` "not" may begin a right answer.

    >>> only_denied("not a = 1; b = 2", False), only_denied("not a = 1 but a = 2", False)
    (True, False)
    """
    if not re.search(r"[\w∞]", held(answer, prose)) and re.search(r"\w", answer):
        return True
    begun = None if prose else _FIRST_NOT.match(answer[:200])
    return begun is not None and not _AFTER_ALL.search(answer, begun.end())


def flatly_denied(answer: str) -> Outcome | None:
    """The outcome of an answer that as a whole is called false, "It is not true that …", and says nothing else."""
    begun = _FLATLY.match(answer[:200])
    if begun is None or _AFTER_ALL.search(answer, begun.end()):
        return None
    return Outcome("unread", "it says what is not the answer, and nothing beside it")


_FLATLY = re.compile(
    r"^\W*(?:(?:it|this)(?:['’]s| is) )?(?:(?:not true|not the case|false|untrue|wrong|incorrect|"
    r"an? (?:common )?(?:myth|mistake|error)) (?:to (?:say|think) )?that(?: it is)?"
    r"|anything but|everything (?:but|except))\b|^\W*not\s*:"
    r"|^[\s$`*(]*(?:≠|!=|=/=|\\neq?(?![A-Za-z])|\\not\s*=)(?!\s*(?:0|zero)\b)",
    re.IGNORECASE,
)


def unsettled(answer: str) -> Outcome | None:
    r"""The outcome of a formula that only says what the answer is not, or is more or less than; None for others.

    >>> unsettled(r"\neq d") is None, unsettled("< d") is None, unsettled("d!") is None, unsettled("= d") is None
    (False, False, False, True)
    """
    if _RELATION.match(answer[:200]):
        return Outcome("unread", "it begins with a relation that is no equation: write the answer itself")
    short = answer[:2000]
    formulas = re.findall(r"\$([^$]+)\$", short) if worded(short) else [short]
    if any(_FACTORIAL.search(formula) for formula in formulas):
        return Outcome("unread", "an exclamation mark may be a factorial: leave it out")
    return None


def worded(text: str) -> bool:
    """Whether a text has words that are no names of mathematics."""
    return any(word not in NAMES for word in _WORD.findall(text))


def told(text: str) -> bool:
    """Whether a text says something: six words or more without a verb, an article or a sign are a list of cues.

    >>> told("gradient zero values learn queries keys"), told("zero gradient for queries and keys, values still learn")
    (False, True)
    """
    return len(text.split()) < 6 or re.search(r"[^\w\s.]", text) is not None or _SAYS.search(text) is not None


_SAYS = re.compile(
    r"\b(?:the|an?|is|are|was|be|been|get|gets|has|have|do|does|will|would|can|cannot|must|of|to|for|in|on|at|by|with|and"
    r"|or|no|not|so|as|since|because|only|all|every|each|never|when|if|but|becomes?|goes|than|that|this|it|they|we|still"
    r"|almost|through|der|die|das|ist|sind|und|kein\w*)\b",
    re.IGNORECASE,
)
