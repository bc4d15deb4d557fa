r"""Answers within sentences: which formulas a text states, and which it only denies, takes back, supposes or names.

"Not $d\mu^2$, because $\mu$ is a vector: the answer is $\mu^\top\mu$" states one formula, the last.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from .cutting import NAMES, bare, cut

MOST = 120  # formulas of a text that are looked at
LONGEST = 12_000  # characters of it


# What the words between formulas do: each group sets how the next formula is taken.
_SIGNS = re.compile(
    r"(?P<example>\be\.g\.|\bfor (?:example|instance)\b|\bsuch as\b)"
    r"|(?P<plain>\bi\.e\.|\bthat is\b|\bin other words\b)"
    r"|(?P<turn>\b(?:but|however|in fact|actually|sondern|aber|wait|no)\b|\binstead\b(?! of))"
    r"|(?P<strong>\bshould (?:be|have been|read)\b|\b(?:correct|right|true|final|corrected)\b)"
    r"|(?P<quoted>\bat first\b|\b(?:initially|originally|previously|mistakenly|wrongly)\b"
    r"|\bi (?:first|thought|had\b(?! to))|\bconsidered\b|\bfirst (?:wrote|had|thought|said|got|guessed)\b"
    r"|\bmy (?:first|earlier|previous)\b|\btempt\w+|\b(?:might|may|could|would) (?:think|guess|expect|say|write)\b"
    r"|\bcommon (?:mistake|error|slip)\b|\bpeople\b|\bsomeone\b|\bold (?:answer|value)\b)"
    r"|(?P<denied>\b(?:not|never|nor|neither|without|unlike|versus|vs|cannot|nicht|kein\w*)\b|\b\w+n['’]t\b"
    r"|\b(?:rather than|instead of|as opposed to|no longer|different from)\b)"
    r"|(?P<reason>\b(?:because|since|if|when|whenever|where|unless|which|whose|while|whereas|so that|such that"
    r"|than|provided|recall|note|need|needs|want|wants|require\w*|makes?|making|weil|denn|da|wenn"
    r"|suppose|assum\w+|let|depends?(?: on)?|proportional|grows?|whether|perhaps|maybe|either|nearly|almost|close"
    r"|at (?:least|most)|bounded|between|compare\w*|to (?:get|have|make|obtain|keep|ensure|reach))\b)"
    r"|(?P<as>\bas\b)"
    r"|(?P<setting>\b(?:with|for|from|under|given|using|setting|set|solving|solve|per|in|on|bei|mit|für)\b)"
    r"|(?P<object>\bthere (?:is|are)\b|\b(?:of|between|to|von|like)\b)"
    r"|(?P<says>\b(?:so|thus|hence|therefore|ergo|also|daher|finally|then|answer|antwort|result|gives?|yields?|becomes?"
    r"|leaves?|leaving|obtain|conclude|we (?:get|have|find|see|need to divide)|divid\w+|scal(?:e|ed|ing) by"
    r"|use|take|choose|pick|adds? up to|say|claim|guess|propose|suggest|comes? (?:out )?to|amounts? to|reads)\b"
    r"|\bit['’]s\b)"
    r"|(?P<link>\b(?:is|are|was|being|be|equals?|ist|sind|beträgt)\b)"
    r"|(?P<clause>,\s*(?=(?:so|we|the|this|it|that|one|then|hence|thus|and so|our|each|every)\b))"
    r"|(?P<comma>,)|(?P<semi>[;:—–]|\s-{1,2}\s)|(?P<stop>[.!?](?=\W|$)|\n\s*\n|\n\s*[-*•]\s)"
    r"|(?P<open>[(\[])|(?P<close>[)\]])",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"^[\s,]*(?:(?:is|was|would be|are|were|seems?|looks?)\s+)?(?:(?:clearly|just|simply|plainly)\s+)?"
    r"(?:wrong|incorrect|false|mistaken|not (?:right|correct|the)|a mistake|an error)\b",
    re.IGNORECASE,
)
_SUBJECT = re.compile(
    r"^\s*(?:has|have|had|does|do|denotes?|means|stands?|depends?|grows?"
    r"|(?:is|are|was|were)\s+(?:an?|in|of|as|large|small|one"
    r"|independent|zero|each|all|being|given|known|positive)\b)",
    re.IGNORECASE,
)
_QUANTITY = re.compile(r"\b(?:variance|mean|value|expectation|factor|divisor|total|result) of\s*$", re.IGNORECASE)
_ABOUT = re.compile(r"\b(?:about|approximately|roughly|around|approx|simply|just|exactly)\b\.?", re.IGNORECASE)
_EITHER = re.compile(r"[\s,(]*or\s*(?:maybe|perhaps|possibly)?[\s,]*", re.IGNORECASE)
_VALUED = re.compile(r"^[^=]{1,12}=\s*(?!1$|0$)\d[\d.,]*$")

_ROLES = ("answer", "stated", "object", "example")


@dataclass(frozen=True)
class Said:
    """A formula of a text. `role`: "answer" (stated as one), "stated" (set apart by a comma or a colon), "object" (of
    something), "example", or "" for what is denied, taken back, a reason, a condition or only mentioned. `before` are
    the words in front of it; `either` says that an "or" ties it to the formula before; `mode` is what the words make of
    it: "denied", "quoted", "reason", "setting", "object", "example" or nothing of these."""

    text: str
    role: str
    before: str = ""
    either: bool = False
    mode: str = ""


def formulas_said(answer: str, names: Collection[str] = ()) -> list[Said]:
    """Every formula of a text, in its order; `names` are those that the question uses.

    >>> [(each.text, each.role) for each in formulas_said("We divide by $d$, not by $e$.")]
    [('d', 'answer'), ('e', '')]
    """
    pieces = cut(bare(answer[:LONGEST]), frozenset(names) | NAMES)
    found: list[Said] = []
    state = _State()
    for place, (kind, text) in enumerate(pieces):
        if kind == "words":
            state.hear(text)
            continue
        behind = pieces[place + 1][1] if place + 1 < len(pieces) and pieces[place + 1][0] == "words" else ""
        role = "answer" if kind == "boxed" else state.role(text)
        subject = "=" not in text and (_SUBJECT.match(behind) is not None or _linked(pieces, place))
        if _REFUSED.match(behind) or subject or _asks(pieces, place):
            role = ""
        tied = place > 1 and pieces[place - 1][0] == "words" and _EITHER.fullmatch(pieces[place - 1][1]) is not None
        role = found[-1].role if tied and found and role == "" else role
        found.append(Said(text, role, state.heard, tied, state.mode))
        state.after(text)
        if len(found) == MOST:
            break
    return found


def claims(answer: str, names: Collection[str] = ()) -> list[Said]:
    """What a text states, what counts most first: the last conclusion, those before it, then what is set apart.

    >>> [each.text for each in claims("At first I had x, but y has two entries, so it is z.", ["x", "y", "z"])]
    ['z']
    """
    found = formulas_said(answer, names)
    return [each for role in _ROLES for each in reversed(found) if each.role == role]


class _State:
    """How the next formula is taken, from the words so far."""

    def __init__(self) -> None:
        self.mode, self.flag, self.apart, self.first = "", False, True, True
        self.heard = ""
        self._outer: list[str] = []

    def hear(self, words: str) -> None:
        self.heard = words
        last = 0
        for sign in _SIGNS.finditer(words):
            self._other(words[last : sign.start()])
            last = sign.end()
            getattr(self, f"_{sign.lastgroup}")()
        self._other(words[last:])

    def _of_something(self) -> str:
        # "a variance of d" states it; "the root of d" does not.
        return "object" if _QUANTITY.search(self.heard) else ""

    def _other(self, words: str) -> None:
        if _ABOUT.sub("", words).strip(" *_\n\t\"'"):
            self.apart = self.first = False

    def role(self, formula: str) -> str:
        if self.mode in ("denied", "reason", "quoted", "setting"):
            return ""
        if self.mode == "example":
            return "example"
        if self.flag or self.first or "=" in formula:
            return "answer" if self.mode != "object" else self._of_something()
        if self.mode == "object":
            return self._of_something()
        return "stated" if self.apart else ""

    def after(self, formula: str) -> None:
        if self.mode == "setting" and _VALUED.match(formula.strip()):
            self.mode = "example"  # "for d = 64 this is 8"
        self.flag = self.apart = self.first = False

    def _clear(self) -> None:
        self.mode = "example" if self.mode == "example" else ""

    def _example(self) -> None:
        self.mode, self.apart = "example", False

    def _plain(self) -> None:
        self._clear()
        self.flag = True

    def _turn(self) -> None:
        self.mode, self.flag, self.apart = "", False, True

    def _strong(self) -> None:
        self.mode, self.flag, self.apart = "", True, False

    def _quoted(self) -> None:
        self.mode, self.first, self.apart = "quoted", False, False

    def _denied(self) -> None:
        self.mode, self.flag, self.first, self.apart = (
            "denied" if self.mode != "quoted" else "quoted",
            False,
            False,
            False,
        )

    def _reason(self) -> None:
        if self.mode not in ("quoted", "example"):
            self.mode = "reason"
        self.flag = self.first = self.apart = False

    def _as(self) -> None:
        # "with these numbers as weights" goes on with what is given.
        if self.mode != "setting":
            self._reason()

    def _setting(self) -> None:
        if self.mode not in ("quoted", "example", "reason", "denied"):
            self.mode = "setting"
        self.first = self.apart = False

    def _object(self) -> None:
        if self.mode == "":
            self.mode = "object"
        self.first = self.apart = False

    def _says(self) -> None:
        if self.mode != "quoted":
            self._clear()
            self.flag = True
        self.first = self.apart = False

    def _link(self) -> None:
        # "since the mean is zero" goes on giving the reason; "with these weights the sum is" does not.
        if self.mode in ("", "object", "setting"):
            self.mode, self.flag = "", True
        self.first = self.apart = False

    def _clause(self) -> None:
        self._comma()
        if self.mode in ("reason", "setting"):
            self.mode = ""

    def _comma(self) -> None:
        if self.mode in ("denied", "object"):
            self.mode = ""
        self.apart = True

    def _semi(self) -> None:
        if self.mode != "quoted":
            self._clear()
        self.apart = True

    def _stop(self) -> None:
        self.mode, self.flag, self.apart, self._outer = "", False, True, []

    def _open(self) -> None:
        self._outer.append(self.mode)
        self.apart = True

    def _close(self) -> None:
        if self._outer:
            self.mode = self._outer.pop()


def _linked(pieces: list[tuple[str, str]], place: int) -> bool:
    """Whether a formula is what the rest of its sentence is about: "x equals … y"."""
    behind = pieces[place + 1 : place + 3]
    return (
        len(behind) == 2
        and re.match(r"\s*(?:equals?|is|are|becomes?)\b", behind[0][1], re.IGNORECASE) is not None
        and re.search(r"[.;!?,](?=\W|$)|\b(?:not|rather|instead|because|since|as|if|wrong)\b", behind[0][1]) is None
    )


def _asks(pieces: list[tuple[str, str]], place: int) -> bool:
    """Whether the sentence of a formula ends as a question."""
    for kind, text in pieces[place + 1 :]:
        if kind == "words" and (end := re.search(r"[.!?;](?=\W|$)", text)):
            return end[0] == "?"
    return False
