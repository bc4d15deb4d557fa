"""Reads a question on attention with kernels: the names of its sizes, the kernel, and what it asks for."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..scaling.reading import undressed
from .setting import Setting

LONGEST = 20_000  # characters; a longer text is no single question

_SIGNS = (
    r"\bsim\b|\bsimilarit",
    r"\bfeature maps?\b|\\phi\b|\bphi\b|φ",
    r"\blineari[sz]",
    r"\bpolynomial\b|\bquadratic\b|\bcubic\b",
    r"\bdenominator\b|\bfinite\b",
    r"\bcomplexity|\bmemory\b|\bcost\b",
)
_COST = (
    r"\bcomplexit|\btime and (?:the )?space\b|\bcomputational cost|\bmemory requirement|"
    r"\b(?:time|space|memory)\b[^.]{0,40}\b(?:cost|need|take|usage)"
)
_ASKING = (
    r"\?|\b(?:derive|find|give|identify|write|rewrite|state|what|which|when|how|show|express|determine|compute|"
    r"analy[sz]e)\b"
)
_WIDE = r"{} [^.]{{0,30}}(?:dimension|width|components)"
_SIZE = r"([A-Za-z](?:_\w)?)"


class Question(NamedTuple):
    """What was read: how sure it is, the setting, what is asked in order, and the names of the parts."""

    confidence: float
    setting: Setting
    asked: tuple[str, ...]
    names: tuple[str, ...]


def read_question(text: str) -> Question | None:
    """The question, or None where the text asks something else."""
    if len(text) > LONGEST or "ttention" not in text or len(re.findall(r"\bkernel", text, re.IGNORECASE)) < 2:
        return None
    plain = undressed(text)
    signs = sum(re.search(sign, plain, re.IGNORECASE) is not None for sign in _SIGNS)
    if signs < 2 or re.search(r"\bconvolution|\bkernel size|\bnull space", plain, re.IGNORECASE):
        return None
    setting = _setting(plain)
    found = {}
    for name, piece in _pieces(plain):
        ask = _ask(piece, setting)
        if ask is None and "softmax" in found.values() and re.search(r"\bkernel|\blineari", piece) and "?" in piece:
            ask = "linear"  # "and of the linearised one?"
        if ask is not None and ask not in found.values():
            found[name] = ask
    if not found:
        return None
    return Question(min(1.0, 0.55 + 0.08 * signs), setting, tuple(found.values()), tuple(found))


def _setting(plain: str) -> Setting:
    three = re.search(rf"\b(?:in terms of|with|of) (?:\w+ ){{0,2}}{_SIZE} ?, ?{_SIZE} ?,? and {_SIZE}\b", plain)
    length, width, value = three.groups() if three else (None, None, None)
    length = (
        length
        or _first(
            plain, rf"sequence lengths? {_SIZE}\b", rf"^\W*{_SIZE} queries", r"\\sum_\{?j ?= ?1\}?\^\{?([A-Za-z])\b"
        )
        or "N"
    )
    width = width or _first(plain, rf"\\sqrt ?\{{? ?{_SIZE}\b", rf"{_WIDE.format('keys?')} {_SIZE}\b") or "D"
    projected = rf"W_\{{?V\}}? ?\\in ?R\^\{{?\w+ ?(?:\\times|×|x) ?{_SIZE}"
    value = value or _first(
        plain, projected, rf"\bvalues of {_SIZE} components", rf"{_WIDE.format('values?')} {_SIZE}\b"
    )
    if not value or value in (length, width):
        value = next(each for each in "MmwP" if each not in (length, width))
    degree = 3 if re.search(r"\bcubic\b|\bdegree[^.]{0,60}\b(?:3|three)\b", plain, re.IGNORECASE) else 2
    letters = re.search(r"\bquery ([a-z]) and a key ([a-z])\b", plain)
    q, k = letters.groups() if letters else ("q", "k")
    bare = re.search(r"\bc = 0\b", plain) or (
        "+ 1)^" not in plain.replace("+1", "+ 1")
        and re.search(r"\(\s*[a-z]\s*\^\s*\{?(?:T|\\top)\}?\s*[a-z]\s*\)\s*\^\s*\{?[23]", plain)
    )
    about = r" ?(?:about as large as|\\approx|≈|=|\\sim|~) ?"
    tied = re.search(rf"\b{value}{about}{width}\b|\b{width}{about}{value}\b", plain)
    return Setting(degree, 0 if bare else 1, length, width, value, q, k, tied=tied is not None)


def _first(plain: str, *patterns: str) -> str | None:
    return next((found[1] for pattern in patterns if (found := re.search(pattern, plain))), None)


def _pieces(plain: str) -> list[tuple[str, str]]:
    """The parts by name, romans within a letter as "b(i)"; the sentences as a, b, c where nothing has a letter."""
    marks = list(re.finditer(r"(?:^|\n|(?<=[.?:;]))\s*(?:[-*•]\s*)?\(?\b([a-h]|[1-9]|i{1,3}|iv|v)\s*[).](?=\s)", plain))
    found: list[tuple[str, str]] = []
    if any(re.search(r"\b[a-h]\s*\)", mark[0]) for mark in marks):
        marks = [mark for mark in marks if not mark[1].isdigit()]  # then a number is the question's own
    letter = ""
    for mark, stop in zip(marks, [*(mark.start() for mark in marks[1:]), len(plain)], strict=False):
        name = mark[1]
        roman = letter and re.fullmatch(r"i{1,3}|iv|v", name)
        letter = letter if roman else ("abcdefghi"[int(name) - 1] if name.isdigit() else name)
        found.append((f"{letter}({name})" if roman else letter, plain[mark.end() : stop]))
    if found:
        return found
    asking = [whole for whole in re.split(r"(?<=[.?;])\s|\n", plain) if whole.strip()]
    return list(zip("abcdefgh", [whole for whole in asking if _ask(whole, Setting())], strict=False))


def _ask(piece: str, setting: Setting) -> str | None:
    def has(pattern: str) -> bool:
        return re.search(pattern, piece, re.IGNORECASE) is not None

    if not has(_ASKING):
        return None
    if has(r"\belu\b"):
        return "elu"
    if has(_COST):
        return "linear" if has(r"\bkernel|\bpolynomial|\bfeature|\\phi|\blinear") else "softmax"
    if has(r"\bfinite\b|\bdenominator|\bwell[- ]defined|\bdivi\w+ by zero"):
        return "condition"
    if has(r"\brewrit|\bwrite the answer|\bexpress\b[^.]*\battention|\bin terms of (?:the feature map|\\phi|phi)"):
        return "rewrite"
    if has(r"\bhow many\b[^.]*\bfeature|\bdimension of (?:the|this) feature|\bnumber of features"):
        return "count"
    if has(r"\bfeature maps?\b|\\phi"):
        return "map" if setting.degree == 2 else "count"
    return "kernel" if has(r"\bkernel") and has(r"\bsim\b|\bsimilarity|\bkernel function") else None
