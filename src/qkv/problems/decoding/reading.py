"""Reading a question about decoding: is it one, how are heads shared, which letters, blanks and options."""

from __future__ import annotations

import re
from typing import Any

from ..reading.inline import on_own_lines
from ..reading.lettered import lettered
from .listing import SHAPES, Setting

LONGEST = 60_000  # characters of a text that are looked at

_STEP = r"incremental|decod(?:e|es|ing|er)|(?:one|single|next|new|newest) tokens?|autoregressive|generat\w+ \w+ tokens?"
_CACHE = r"\bkv[- ]?cache|\bcache[ds]?\b|prev_?[kv]\b|past_?[kv]\w*|previous (?:tokens|keys)|remember"
_SHARED = r"multi[- ]?query|\bmqa\b|grouped[- ]?query|\bgqa\b|share\w*[^.\n]{0,40}\b(?:keys?|values?)\b"
_KINDS = r"(?:multi[- ]?query|mqa|grouped[- ]?query|gqa)"
_DENIED = (
    r"\b(?:not|no|without|unlike|instead of|rather than|as opposed to|compared (?:to|with)|nor)\b "
    rf"(?:a |an |use |using |in )?(?:{_KINDS}|shar(?:e|ed|es|ing)\b)(?: or {_KINDS})?|\bunshared\b"
)
_ASKED = (
    r"einsum|\bshapes?\b|\bblanks?\b|fill in|complexity|memory access|\bbytes\b|arithmetic intensity|big-?o\b|"
    r"\bflops?\b|cache size|how (?:many|much|large|big)|_{3,}"
)
_TENSORS = {
    "W_q": r"w_?\{?q\}?|wq|q_proj|query_weights?",
    "W_k": r"w_?\{?k\}?|wk|k_proj|key_weights?",
    "W_v": r"w_?\{?v\}?|wv|v_proj|value_weights?",
    "W_o": r"w_?\{?o\}?|wo|o_proj|out_proj|output_weights?",
    "keys": r"(?:prev|past|cached?|old|new)_?(?:k|keys?)|k(?:ey)?s?_?cache|keys",
    "q": r"q|query|queries|q_new|new_q",
    "k": r"k|keys?|k_new|new_key|k_t",
    "v": r"v|values?|v_new|new_value|v_t",
    "scores": r"scores?|logits|attn|attention_scores|s",
    "o": r"o|out|context|ctx|heads_out|attended",
    "y": r"y|output|result",
}
_BLANK = (
    r"_{2,}\s*[(\[]?\s*([A-Z]|\d|[ivx]{1,4})\s*[)\]]?\s*_{2,}|<([A-Z])>|\?{2,}\s*([A-Z])\s*\?*|"
    r"\b(?i:blank)[ _]?([A-Z\d])\b"
)


def likeness(text: str) -> float:
    """How surely a text is a question about a step of decoding; 0 where it is none."""
    text = text[:LONGEST].lower()
    step, cache, shared, asked = (bool(re.search(signs, text)) for signs in (_STEP, _CACHE, _SHARED, _ASKED))
    if not asked or not (shared or (step and cache) or re.search(r"\bkv[- ]?cache", text)):
        return 0.0
    elsewhere = bool(re.search(r"receptive field|how many positions|padding mask", text))
    score = 0.3 + 0.15 * step + 0.25 * cache + 0.25 * shared - 0.4 * elsewhere
    return round(min(score, 1.0), 2) if score > 0.5 else 0.0


def setting_in(text: str) -> Setting | None:
    """How heads share keys in a text, and what it calls its sizes; None where two sizes seem to have one letter."""
    plain = re.sub(_DENIED, " ", plain_text(text), flags=re.IGNORECASE)
    grouped = len(
        re.findall(r"grouped[- ]?query|\bgqa\b|\d+ (?:kv|key[/-]value) heads|\bgroups\b", plain, re.IGNORECASE)
    )
    shared = len(re.findall(r"multi[- ]?query|\bmqa\b|share", plain, re.IGNORECASE))
    kind = "grouped" if grouped and grouped >= shared - 1 else "multi-query" if shared else "multi-head"
    found: dict[str, Any] = {}
    aliases: list[tuple[str, str]] = []
    usual = Setting()
    given = re.search(r"\bx\b(?:(?!\[)[^.\n]){0,40}\[ ?([A-Za-z]) ?, ?([A-Za-z]) ?\]", plain)
    shaped = {"batch": given[1], "width": given[2]} if given else {}
    for size, patterns in _LETTERS.items():
        read = (match[1] for pattern in patterns if (match := re.search(pattern, plain)))
        name = shaped.get(size) or next(read, None)
        letter = getattr(usual, size)
        if name is None or name == letter:
            continue
        if len(name) == 1 and name not in "qkvxy" and name not in found.values():
            found[size] = name
        elif len(name) > 1:
            aliases.append((name, letter))
    widths = re.search(r"\b([a-z]) = ([a-z]) = ([a-z]) = [A-Za-z_]+ ?/", plain)
    alone = re.search(r"\b([a-pr-z]) = [A-Za-z_]+ ?/ ?[A-Za-z]\b", plain) or re.search(
        r"\bheads? (?:of |has |have )?(?:width|dimension|size) ([A-Za-z])\b", plain
    )
    if widths:
        found["widths"] = widths.groups()
    elif alone and alone[1] not in "xykv":
        found["widths"] = (alone[1],) * 3
    function = "torch.einsum" if "torch.einsum" in text else "np.einsum" if "np.einsum" in text else "einsum"
    setting = Setting(kind=kind, function=function, aliases=tuple(aliases), **found)
    return setting if _apart(setting) else None


def _apart(setting: Setting) -> bool:
    """Whether every size has a letter of its own: a text that seems to use one twice was misread."""
    names = [setting.batch, setting.width, setting.heads, setting.length, *set(setting.widths)]
    names += [setting.groups, setting.members] if setting.kind == "grouped" else []
    names += [name for name, _ in setting.aliases]
    return len(set(names)) == len(names)


_NAME = r"([A-Za-z](?:_\w+)?)"
_LETTERS = {
    "batch": (
        rf"\bbatch (?:of|size(?: is| of)?)\s*{_NAME}\b(?! \w*(?:sequence|token)s? of)",
        rf"\b{_NAME} sequences\b",
    ),
    "width": (
        rf"(?<!batch )(?<!heads of )(?<!head )(?:dimension|width|size)(?: of| is)?\s+{_NAME}\b(?=[.,; )])",
        rf"[Vv]ectors have {_NAME} components",
        r"\b(d_model)\b",
    ),
    "heads": (
        rf"\b{_NAME} = \w \w (?:query )?heads",
        rf"\b{_NAME}\s+(?:query |attention )?heads\b",
        rf"number of heads\s+{_NAME}\b",
    ),
    "length": (
        rf"(?:cache (?:of|with|holding)|remember\w*|for)\s+{_NAME}\s+(?:previous|past|earlier|cached|tokens)",
        rf"(?:context|sequence|cache) length\s+{_NAME}\b",
        rf"of the\s+{_NAME}\s+tokens before",
    ),
    "groups": (rf"\b{_NAME}\s+(?:groups|key[/ -]value heads|kv heads)\b",),
}


def blanks_in(text: str) -> list[tuple[str, str]]:
    """The blanks of a listing in a text: the letter of each and what stands on its line."""
    found: dict[str, str] = {}
    for line in text[:LONGEST].split("\n"):
        blank = re.search(_BLANK, line)
        if not blank:
            continue
        sign = next(group for group in blank.groups() if group)
        left = line[: blank.start()]
        name = re.match(r"\W*\d{0,3}\W*(?:self\.)?([A-Za-z]\w*)", left)
        what = _tensor(name[1], shape="=" not in left) if name else None
        if what:
            found.setdefault(sign, what)
    return sorted((found or _asked_in_words(text[:LONGEST])).items())


def _asked_in_words(text: str) -> dict[str, str]:
    """Shapes and einsums that are asked without a blank: "the shape of W_k", "which einsum computes the keys"."""
    asked: list[str] = []
    for match in re.finditer(_WANTED, text, re.IGNORECASE):
        words = re.findall(r"[A-Za-z]\w*", re.sub(r"[$\\{}`*]", "", match[2]))
        read = (_tensor(word, shape=match[1].lower().startswith("shape")) for word in words)
        named = list(filter(None, read))
        # "The shapes of W_q and W_k" are two, "the shape of W_q, given W_k" is one.
        asked += [what for what in (named if match[1].lower().startswith("shapes") else named[:1]) if what not in asked]
    return {"ABCDEFGH"[place]: what for place, what in enumerate(asked[:8])}


_WANTED = (
    r"\b(shapes? (?:of|has|have|does|do|is|are)|(?:einsum|expression|line|call|operation)\b[^.?\n]{0,30}?"
    r"\b(?:comput\w+|gives?|produces?|forms?|for))\b([^.?\n\[(\"]{0,60})"
)


def _tensor(name: str, shape: bool) -> str | None:
    for what, names in _TENSORS.items():
        if (what in SHAPES) == shape and re.fullmatch(names, name, re.IGNORECASE):
            return what
    return None


def letters_of(text: str, blanks: list[tuple[str, str]]) -> list[str]:
    """The letter of the part that asks for each blank; "" where no part does."""
    _, parts = lettered(on_own_lines(text))
    found = []
    for sign, blank in blanks:
        named = (
            rf"\b(?:what (?:is|belongs in|goes in)(?: blank)?|blank) {re.escape(sign)}\b|\b(?-i:{re.escape(sign)}) is\b"
        )
        asking = [part.name for part in parts if re.search(named, part.text, re.IGNORECASE)]
        asking += [part.name for part in parts if blank in _asked_in_words(part.text).values()]
        found.append(asking[0] if asking else "")
    return found


def options_in(text: str, sign: str, blank: str) -> tuple[str, ...]:
    """The options that a text offers for a blank: the shapes or einsums between its question and the next one."""
    asked = re.search(rf"what (?:is|belongs in|goes in)(?: blank)? {re.escape(sign)}\b", text[:LONGEST], re.IGNORECASE)
    if not asked:
        return ()
    rest = text[asked.end() : asked.end() + 800]
    rest = re.split(
        r"\bwhat (?:is|belongs|goes)\b|\(\d+ ?pts?\)|\n\s*\(?[a-z]\)", rest, maxsplit=1, flags=re.IGNORECASE
    )[0]
    signs = (
        r"\[[A-Za-z0-9_, /+]{1,40}\]"
        if blank in SHAPES
        else r"[\"'`]([A-Za-z ]+(?:, ?[A-Za-z ]+)+ ?-> ?[A-Za-z ]+)[\"'`]"
    )
    options = tuple(dict.fromkeys(re.findall(signs, rest)))
    return options if 2 <= len(options) <= 6 else ()


def plain_text(text: str) -> str:
    """A text without dollar signs, stars and what only sets type."""
    text = re.sub(r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}", r"\1", text[:LONGEST])
    text = re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1/\2", text)
    return re.sub(r"\s+", " ", re.sub(r"[$*`\\{}]", " ", text))
