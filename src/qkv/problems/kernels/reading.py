"""Reads a question on attention with kernels: the names of its sizes, the kernel, and what it asks for."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from ..reading.inline import on_own_lines
from ..scaling.reading import undressed
from ..scaling.told import without_work
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
    r"\b(?:time|space|memory)\b[^.]{0,40}\b(?:cost|need|take|usage)|\bhow long does\b|"
    r"\bhow much (?:time|space|memory)\b|"
    r"\b(?:time|space|memory)\b[^.]{0,60}\bin (?:terms of )?[A-Za-z](?:_\w)?\s*,|^\W*time and space\b"
)
_TIME = r"\btime\b|\bhow long\b|\boperations\b|\bcomputational\b|\bflops?\b"
_SPACE = r"\bspace\b|\bmemory\b|\bstorage\b|\bhow many numbers\b"
_ASKING = (
    r"\?|\b(?:derive|find|give|identify|write|rewrite|state|what|which|when|how|show|express|determine|compute|"
    r"analy[sz]e)\b"
)
_WIDE = r"{} [^.]{{0,30}}?(?:dimensions?|widths?|components|sizes?)(?: of| is)?"
# What a polynomial kernel of degree 2 or 3 with the constant 0 or 1 cannot say; nothing is put in its place.
_OTHER_KERNEL = re.compile(
    r"\bgaussian|\brbf\b|\bradial|\blaplac|\bcosine\b|\bsigmoid|\btanh\b|\brandom features|\bperformers?\b|\brelu\b|"
    r"(?<!non-)(?<!non)(?<!not )(?<!no )\bcausal(?:ly)?\b|\bautoregressive|\bquartic\b|\bquintic\b|"
    r"\bdegree (?:of |is |equal to |[a-z] ?= ?)?(?:1|[4-9]|\d\d|one|four|five|six)\b|"
    r"\b(?:fourth|fifth|sixth)[- ]degree|"
    r"\bdegree-(?:1|[4-9])\b|\b(?:k|K|sim) ?\( ?[a-z] ?, ?[a-z] ?\) ?= ?-?[\d.]+ ?(?:\\cdot)? ?\( ?[a-z] ?\^",
    re.IGNORECASE,
)
_POWER = re.compile(
    r"\( ?(?:([a-z]|\d+) ?\+ ?)?(\d+ ?)?[a-z] ?(?:\^ ?\{? ?(?:T|\\top|\\intercal) ?\}?|ᵀ|\\cdot|·) ?[a-z] ?"
    r"(?:([+-]) ?([a-z]|[\d./]+) ?)?\) ?(?:\^ ?\{? ?([a-z]|\d+)|([²³⁴]))"
)
_CONSTANT = re.compile(r"\bc ?= ?(-?[\d./]+)|\bconstant (?:term )?(?:of |is |equal to |c ?= ?)?(-?[\d./]+)")
_SIZE = r"([A-Za-z](?:_\w)?)"


class Question(NamedTuple):
    """What was read: how sure it is, the setting, what is asked in order, and the names of the parts."""

    confidence: float
    setting: Setting
    asked: tuple[str, ...]
    names: tuple[str, ...]


def read_question(text: str) -> Question | None:
    """The question, or None where the text asks something else."""
    named = len(re.findall(r"\bkernel", text, re.IGNORECASE))
    if len(text) > LONGEST or "ttention" not in text or not named:
        return None
    plain = undressed(on_own_lines(text))
    signs = sum(re.search(sign, plain, re.IGNORECASE) is not None for sign in _SIGNS)
    if signs < (2 if named > 1 else 3) or re.search(r"\bconvolution|\bkernel size|\bnull space", plain, re.IGNORECASE):
        return None
    told = undressed(without_work(text))
    if _OTHER_KERNEL.search(told) or not _expressible(told):
        return None
    setting = _setting(plain)
    found = {}
    for name, piece in _pieces(plain):
        setting, ask = _at_numbers(piece, setting)
        ask = ask or _ask(piece, setting)
        before = next((each for each in found.values() if each.startswith("softmax")), "")
        again = ask in found.values() and re.match(r"\W*(?:and|the same|what about|likewise)\b", piece, re.IGNORECASE)
        asks = "?" in piece or re.match(r"\W*(?:and )?the same (?:for|of|with)\b", piece, re.IGNORECASE)
        if (ask is None or again) and before and re.search(r"\bkernel|\blineari|\bfeature map", piece) and asks:
            ask = before.replace("softmax", "linear")  # "and of the linearised one?"
        if ask is not None and ask not in found.values():
            found[name] = ask
    if not found:
        return None
    return Question(min(1.0, 0.55 + 0.08 * signs), setting, tuple(found.values()), tuple(found))


def _setting(plain: str) -> Setting:
    three = re.search(rf"\b(?:in terms of|with|of|in) (?:\w+ ){{0,2}}{_SIZE} ?, ?{_SIZE} ?,? and {_SIZE}\b", plain)
    projected = rf"W_\{{?V\}}? ?\\in ?R\^\{{?\w+ ?(?:\\times|×|x) ?{_SIZE}"
    total = r"\\sum_\{?j ?= ?1\}?\^\{?([A-Za-z])\b"
    said = [
        _first(
            plain, rf"sequence lengths? {_SIZE}\b", rf"^\W*{_SIZE} queries", rf"\b{_SIZE} (?:queries|tokens)\b", total
        ),
        _first(plain, rf"\\sqrt ?\{{? ?{_SIZE}\b", rf"{_WIDE.format('keys?')} {_SIZE}\b"),
        _first(plain, projected, rf"\bvalues of {_SIZE} components", rf"{_WIDE.format('values?')} {_SIZE}\b"),
    ]
    # Names whose part is said have it; those of a list fill the rest in its order.
    rest = [name for name in three.groups() if name not in said] if three else []
    length, width, value = (name or (rest.pop(0) if rest else None) for name in said)
    length, width = length or "N", width or "D"
    if not value or value in (length, width):
        value = next(each for each in "MmwP" if each not in (length, width))
    degree = 3 if re.search(r"\bcubic\b|\bdegree[^.]{0,60}\b(?:3|three)\b", plain, re.IGNORECASE) else 2
    letters = re.search(r"\bquery ([a-z]) and a key ([a-z])\b", plain)
    q, k = letters.groups() if letters else ("q", "k")
    bare = re.search(r"\bc = 0\b", plain) or (
        "+ 1)^" not in plain.replace("+1", "+ 1")
        and re.search(r"\(\s*[a-z]\s*\^\s*\{?(?:T|\\top)\}?\s*[a-z]\s*\)\s*\^\s*\{?[23]", plain)
    )
    fixed = re.search(r"\+ ?(?:1|c) ?\) ?\^|\bc ?= ?\d|\bconstant (?:term )?(?:of |is |equal to )?1\b", plain)
    about = r" ?(?:about as large as|\\approx|≈|=|\\sim|~) ?"
    # "D = M = 6" gives numbers for one part, no rule for all.
    tied = re.search(rf"\b{value}{about}{width}\b(?! ?= ?\d)|\b{width}{about}{value}\b(?! ?= ?\d)", plain)
    return Setting(
        degree,
        0 if bare else 1,
        length,
        width,
        value,
        q,
        k,
        tied=tied is not None,
        open_constant=not bare and fixed is None,
    )


def _expressible(plain: str) -> bool:
    """Whether the kernel that is written has a degree and a constant that a setting can have."""
    for before, inside, sign, after, power, raised in _POWER.findall(plain):
        constants = [each for each in (before, after) if each and not each.isalpha()]
        if inside or sign == "-" or any(each not in ("0", "1") for each in constants):
            return False
        if (power.isdigit() and power not in ("2", "3")) or raised == "⁴":
            return False
    return all((one or two).rstrip(".") in ("0", "1") for one, two in _CONSTANT.findall(plain))


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


def _at_numbers(piece: str, setting: Setting) -> tuple[Setting, str | None]:
    """A part at numbers: the setting with them, and what it asks; the setting as it was where it has none."""
    listed = r" ?= ?[(\[] ?(-?\d[-\d, ]*)[)\]]"
    query, key = (re.search(rf"\b{letter}{listed}", piece) for letter in (setting.q, setting.k))
    if query and key and re.search(r"\bsim\b|\bsimilarity|\bkernel", piece):
        one, two = (tuple(map(int, re.findall(r"-?\d{1,4}", found[1]))) for found in (query, key))
        if len(one) == len(two) < 9:
            return replace(setting, query=one, key=two), "similarity"
    meets = re.search(
        r"query ?\(?\s*\(? ?(-?\d{1,3}) ?, ?(-?\d{1,3}) ?\).{0,40}key,? ?\( ?t ?, ?(-?\d{1,3}) ?\)", piece
    )
    if meets and int(meets[1]):
        first, second, other = map(int, meets.groups())
        return replace(setting, query=(first, second), key=(0, other)), "vanishing"
    width, value = re.escape(setting.width), re.escape(setting.value)
    equal = re.search(rf"\b(?:{width} ?= ?{value}|{value} ?= ?{width}) ?= ?(\d{{1,4}})\b", piece)
    if equal and re.search(r"\b(?:which|what) length|\bcross|\bequal(?:ly)?\b", piece) and int(equal[1]) > 1:
        return replace(setting, concrete=int(equal[1])), "crossover"
    return setting, None


def _ask(piece: str, setting: Setting) -> str | None:
    def has(pattern: str) -> bool:
        return re.search(pattern, piece, re.IGNORECASE) is not None

    if not has(_ASKING) and not has(r"^\W*(?:the )?(?:time and (?:the )?space|space and (?:the )?time)\b"):
        return None
    if has(r"\belu\b"):
        return "elu"
    if has(r"\bin blocks?\b|\bblock by block\b|\bstream\w*\b|\bonline softmax\b|\bflash"):
        return "streamed"
    if has(_COST):
        kernel = has(r"\bkernel|\bpolynomial|\bfeature|\\phi|\blinear")
        whose = "linear" if kernel or (has(r"\bthat\b") and not has(r"\bsoftmax")) else "softmax"
        time, space = has(_TIME), has(_SPACE)
        return whose if time == space else f"{whose} {'time' if time else 'space'}"
    if has(r"\bfinite\b|\binfinite\b|\bdenominator|\bwell[- ]defined|\bdivi\w+ by zero|\bblows? up\b|\bdiverge"):
        return "condition"
    if has(
        r"\brewrit|\bwrite\b[^.]{0,20}\bwith\b[^.]{0,12}(?:\\phi|\bphi\b)|"
        r"\bwrite (?:down )?(?:the )?(?:answer|(?:\w+ )?attention)\b|"
        r"\bexpress\b[^.]*\battention|"
        r"\bin terms of (?:the feature map|\\phi|phi)"
    ):
        return "rewrite"
    gives = has(r"\b(?:give|find|write|state|derive|construct) (?:down )?(?:a|the|its) feature map")
    if not gives and has(r"\bhow many\b[^.]*\bfeature|\bdimension of (?:the|this) feature|\bnumber of features"):
        return "count"
    if has(r"\bfeature maps?\b|\\phi"):
        return "map" if setting.degree == 2 else None  # that of a cubic kernel is too long to write down
    return "kernel" if has(r"\bkernel") and has(r"\bsim\b|\bsimilarity|\bkernel function") else None
