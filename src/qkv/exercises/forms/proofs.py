"""Answers that are proofs: a chain of equalities or inequalities from one side of the claim to the other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from ...errors import MathsError
from ...maths import Verdict, compare, holds, latex, parse
from ..findings import Finding
from ..outcome import Outcome, right, unread
from ..solving import Answer
from .statement import doubted, plain_text, split_outside, trimmed
from .values import Context

LONGEST, MOST = 8_000, 40  # characters, and expressions of a proof

_LINE = re.compile(
    r"\\\\(?:\[[^\]]{0,20}\])?|\n|\\(?:Rightarrow|implies|therefore|iff|Leftrightarrow)(?![A-Za-z])|[⇒⟹∴⟺]"
)
_RELATIONS = {
    r"\leq": "≤",
    r"\le": "≤",
    r"\geq": "≥",
    r"\ge": "≥",
    "<=": "≤",
    ">=": "≥",
    r"\equiv": "=",
    "≡": "=",
    r"\lt": "<",
    r"\gt": ">",
}
_RELATION = re.compile("|".join(rf"{re.escape(sign)}(?![A-Za-z])" for sign in _RELATIONS))
_SIGNS = {"≤": "<=", "≥": ">=", "<": "<", ">": ">"}
_REMARK = re.compile(
    r"\\(?:text|mbox|tag|textit|intertext)\s*\{[^{}]*\}|\((?=[^()]*[a-z]{3,} )[^()]*\)|\s+\[[^\]]*[a-z]{4,}[^\]]*\]"
    r"|,?\s+\b(?:by|because|since|using|where|with|as|due to|from)\s.*$",
    re.DOTALL,
)


class Link(NamedTuple):
    before: str
    relation: str
    after: str


def judge_proof(answer: Answer, text: str, context: Context) -> Outcome:
    """Every link by `qkv.maths`; a refuted link is wrong and named, one that cannot be read leaves the proof unread."""
    if not text.strip() or len(text) > LONGEST:
        return unread("no_answer" if not text.strip() else "too_long", size=len(text), most=LONGEST)
    symbols = {**answer.derivation.symbols, **answer.symbols}
    chains = _chains(plain_text(text), symbols)
    links = [link for chain in chains for link in chain]
    if not links:
        return unread("no_chain")
    if len(links) > MOST:
        return unread("too_long", size=len(links), most=MOST)
    verdicts = [_verdict(link, symbols) for link in links]
    for link, verdict in zip(links, verdicts, strict=True):
        if verdict.kind == "different" and verdict.evidence == "refuted" and _claim_holds(answer, symbols):
            data = {"before": _restored(link.before), "after": _restored(link.after), "relation": link.relation}
            return Outcome("wrong", (Finding("link", data),), verdict=verdict)
    for link, verdict in zip(links, verdicts, strict=True):
        if verdict.kind != "equal":
            return unread("link_unread", before=_restored(link.before), after=_restored(link.after))
    return _complete(answer, chains, symbols)


def _claim_holds(answer: Answer, symbols: Mapping[str, str]) -> bool:
    """Whether the symbols tie the names of the claim together: without that, a true link may seem refuted."""
    sides = _sides(answer)
    return bool(sides) and compare(sides[0][0], sides[-1][0], symbols).kind == "equal"


def _complete(answer: Answer, chains: list[list[Link]], symbols: Mapping[str, str]) -> Outcome:
    """Whether links that hold lead from one side of the claim to the other, with a step between them."""
    sides = [{_form(text, symbols) for text in side} for side in _sides(answer)]
    joined: list[set[str]] = []
    for chain in chains:
        members = {_form(text, symbols) for link in chain for text in (link.before, link.after)}
        touching = [each for each in joined if each & members]
        joined = [each for each in joined if not each & members] + [members.union(*touching)]
    for members in joined:
        if sides and all(side & members for side in sides):
            between = members - set().union(*sides)
            return right("proof") if between else Outcome("incomplete", (Finding("restated"),))
    return Outcome("incomplete", (Finding("proof_open", {"claim": answer.text}),))


def _sides(answer: Answer) -> list[list[str]]:
    """Both sides of the claim, each with other ways to write it."""
    signs = split_outside(_RELATION.sub(lambda found: _RELATIONS[found[0]], answer.text), "=≤≥<>")
    steps = [step.text for step in answer.derivation.steps if step.text]
    sides = [[each.strip()] for each in (signs[0], signs[-1])] if len(signs) > 1 else []
    if len(steps) > 1:
        sides = [[*side, step] for side, step in zip(sides or [[], []], (steps[0], steps[-1]), strict=True)]
    if sides:
        sides[-1] += [other.text.rpartition("=")[2].strip() for other in answer.also]
    return sides


def _chains(text: str, symbols: Mapping[str, str]) -> list[list[Link]]:
    """The chains of a text: formulas with relations, line by line; a line that begins with a sign goes on."""
    text = _RELATION.sub(lambda found: _RELATIONS[found[0]], text)
    text = re.sub(
        r"(\\begin\s*\{[bp]?matrix\}.*?\\end\s*\{[bp]?matrix\})",
        lambda found: found[0].replace(r"\\", "\x01"),
        text,
        flags=re.DOTALL,
    )
    chains: list[list[Link]] = []
    last = ""
    for line in _LINE.split(text):
        for formula in _formulas(line):
            pieces = re.split(r"([=≤≥<>])", _flat(formula))
            members, signs = [trimmed(_REMARK.sub(" ", piece)) for piece in pieces[::2]], pieces[1::2]
            if not signs or not members[-1]:
                continue
            goes_on = not members[0]
            members[0] = members[0] or last
            links = [Link(*each) for each in zip(members, signs, members[1:], strict=False)]
            links = [link for link in links if link.before and link.after]
            chains = [*chains[:-1], [*chains[-1], *links]] if goes_on and chains else [*chains, links]
            last = members[-1]
    return [
        [Link(a.replace("\x01", r"\\"), sign, b.replace("\x01", r"\\")) for a, sign, b in chain]
        for chain in chains
        if chain
    ]


def _formulas(line: str) -> list[str]:
    """The marked formulas of a line, or the line as a whole where nothing is marked; doubted lines are left out."""
    if doubted(re.sub(r"\$[^$]*\$", " ", line)) is not None:
        return []
    marked = re.findall(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", line)
    return [next(filter(None, groups)) for groups in marked] or [line]


def _flat(formula: str) -> str:
    """The formula with the signs within subscripts, "Σ_{j=1}", kept apart from its relations."""
    depth, kept = 0, []
    for sign in formula.replace("&", " "):
        depth += (sign in "{[(") - (sign in "}])")
        kept.append(
            {"=": "\x02", "≤": "\x03", "≥": "\x04", "<": "\x05", ">": "\x06"}.get(sign, sign) if depth > 0 else sign
        )
    return "".join(kept)


def _restored(text: str) -> str:
    return text.translate(str.maketrans("\x02\x03\x04\x05\x06", "=≤≥<>"))


def _verdict(link: Link, symbols: Mapping[str, str]) -> Verdict:
    before, after = _restored(link.before), _restored(link.after)
    if link.relation == "=":
        verdict = compare(before, after, symbols)
        # A row and a column of the same numbers are one, as on paper.
        turned = compare(f"({before})^T", after, symbols) if verdict.kind == "different" else verdict
        return turned if turned.kind == "equal" else verdict
    return holds(before, _SIGNS[link.relation], after, symbols)


def _form(text: str, symbols: Mapping[str, str]) -> str:
    return _form_cached(_restored(text), tuple(symbols.items()))


@lru_cache(maxsize=512)
def _form_cached(text: str, symbols: tuple[tuple[str, str], ...]) -> str:
    """How an expression is written, whatever its bound indices are called."""
    try:
        shown = latex(parse(text, dict(symbols)))
    except MathsError:
        return text
    for place, index in enumerate(dict.fromkeys(re.findall(r"\\sum_\{([a-z]+)=", shown))):
        shown = re.sub(rf"(?<![A-Za-z\\]){index}(?![A-Za-z])", f"bound{place}", shown)
    return shown
