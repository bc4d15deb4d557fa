"""What a text claims, and what it only quotes, denies or supposes: "not $d\\mu^2$" claims nothing of $d\\mu^2$."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .formulas import formulas, sentences

_SAID_BEFORE = re.compile(
    r"\b(?:my|the|your|our) (?:earlier|previous|initial|original|first|old) (?:\w+ )?(?:answer|claim|result|solution|"
    r"response|formula|version|expression|value|statement|derivation)|\bi (?:previously|earlier|originally|initially|"
    r"mistakenly|wrongly|incorrectly)|\b(?:was|were|is|are) (?:wrong|incorrect|mistaken|an error|a mistake)\b|"
    r"\bi (?:misread|wrote|said|stated|claimed|treated|forgot|used)\b|\byou(?:'ve| have)? (?:said|wrote|claimed|"
    r"suggested|proposed|mentioned|gave|got|stated)|\byour (?:answer|claim|suggestion|formula|version|value|proposal|"
    r"expression)\b|\bcommon (?:mistake|error|pitfall|slip)|\b(?:might|may|could) (?:think|guess|expect|write)|"
    r"\btempt(?:ing|ed)\b|\bone (?:would|might) \w+|\b(?:wrong|incorrect)ly\b|\bmisconception\b",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(
    r"\b(?:if|unless|had|were|suppose|imagine|only (?:true|valid|right|correct|holds?) (?:if|when)|would (?:only )?"
    r"(?:be|give|hold|have|mean|read|require|apply))\b",
    re.IGNORECASE,
)
_WANTED = re.compile(
    r"\b(?:set(?:ting)?|want|require|requiring|need|needs|solving|assume|assuming|given|let|suppose|recall|asks?|asked)\b|"
    r"(?:^\W*|\bto |\bplease |\bmust |\bshould |\bcan )(?:find|define|determine|compute|derive|solve|choose|calculate|"
    r"show|write|express|evaluate)\b",
    re.IGNORECASE,
)
_NOT = re.compile(
    r"\b(?:not|isn't|wasn't|aren't|never|n't|no longer|instead of|rather than|as opposed to|unlike)\b", re.I
)
_TURNS = re.compile(
    r"(?:[,;:—–-]|\.\s|\s)\s*(?:so|but|therefore|thus|hence|now|instead|the (?:correct|right|true) |should be|"
    r"(?:is|are) actually|which gives|we get|gives)\b",
    re.IGNORECASE,
)
CONCLUDES = re.compile(
    r"\b(?:so|thus|therefore|hence|finally|conclude|in total|overall|altogether|we get|gives)\b|⇒|∴", re.I
)
_ANSWERS = re.compile(
    r"\b(?:(?:final|correct(?:ed)?|right|revised|updated)\s+)?answers?\b(?:\s*\([a-z]\))?(?:\s+(?:is|are|becomes?|to|for|should)"
    r"\b|\s*(?:\*\*|__)?\s*[:=])|\bthe result is\b",
    re.IGNORECASE,
)
MENDS = re.compile(
    r"\b(?:wait|hold on|actually|oops|correction|let me (?:re-?check|correct|fix|redo|reconsider|double[- ]check)|"
    r"on second thought|i made (?:a|an)|scratch that|sorry|apolog\w+|my mistake|i misread|strike that)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Said:
    """A sentence, or the end of one, that claims something: `answers` and `concludes` say how it is put."""

    text: str
    start: int
    answers: bool = False
    concludes: bool = False
    wanted: bool = False


def asserted(text: str) -> list[Said]:
    """The sentences of a text that claim something, without what they deny.

    >>> [said.text for said in asserted("It is x. My earlier answer y was wrong.")]
    ['It is x.']
    """
    found: list[Said] = []
    introduced = False
    for start, end in sentences(text):
        sentence = text[start:end]
        masked = masked_formulas(sentence)
        # A sentence that ends in a colon introduces what follows it.
        leads = masked.rstrip(" *_\n").endswith(":")
        cut = _kept_from(masked)
        answers = introduced or _ANSWERS.search(masked) is not None
        introduced = leads and _ANSWERS.search(masked) is not None and not re.search(r"\w", masked[masked.rfind(":") :])
        if cut is None or masked.rstrip(" *_)\n").endswith("?"):
            continue
        kept, masked = _without_denied(sentence[cut:], masked[cut:])
        if kept.strip():
            wanted = _WANTED.search(masked) is not None and not CONCLUDES.search(masked)
            found.append(Said(kept.strip(), start + cut, answers, CONCLUDES.search(masked) is not None, wanted))
    return found


def unquoted(text: str) -> str:
    """A text without what it quotes as said before; what it denies or supposes is part of an explanation, and stays."""
    kept: list[str] = []
    for start, end in sentences(text):
        quoted = _SAID_BEFORE.search(masked := masked_formulas(text[start:end]))
        turn = _TURNS.search(masked, quoted.end()) if quoted else None
        if quoted is None or turn is not None:
            kept.append(text[start + turn.start() : end] if turn else text[start:end])
    return "".join(kept)


def masked_formulas(text: str) -> str:
    """The text with the letters of formulas blanked, so that words are looked for in words alone."""
    pieces, done = [], 0
    for each in formulas(text):
        pieces += [text[done : each.start], "x" + " " * (each.end - each.start - 2) + "x"]
        done = each.end
    return "".join([*pieces, text[done:]])


def _kept_from(masked: str) -> int | None:
    """Where the claim of a sentence begins: at its start, after the turn of one that quotes, or nowhere."""
    quoted = _SAID_BEFORE.search(masked) or _SUPPOSED.search(masked)
    if quoted is None:
        return 0
    turn = _TURNS.search(masked, quoted.end())
    if turn is not None:
        return turn.start()
    # "I was wrong: E = x" says what is right.
    after = re.compile(r"\s*[:;—–]\s*(?=\S)").match(masked, quoted.end())
    if after is not None and re.search(r"=|x +x", rest := masked[after.end() :]):
        return after.end() if len(re.findall(r"[A-Za-z]{4,}", rest)) <= 2 else None
    # "It is x, which is right only if …": what comes before the supposition is claimed.
    supposed = _SUPPOSED.search(masked)
    if supposed is not None and _SAID_BEFORE.search(masked) is None and supposed.start() > 25:
        return 0
    return None


def _without_denied(text: str, masked: str) -> tuple[str, str]:
    """A sentence without what follows a "not"; what a "but" says after it is kept."""
    denied = _NOT.search(masked)
    if denied is None:
        return text, masked
    back = re.compile(
        r"\b(?:but|so|it is|it's|instead)\b|[;—–]|,\s*(?=and\b|which\b|because\b|hence\b|so\b)", re.I
    ).search(masked, denied.end())
    before, after = slice(0, denied.start()), slice(back.start(), None) if back else slice(0, 0)
    return f"{text[before]} {text[after]}", f"{masked[before]} {masked[after]}"
