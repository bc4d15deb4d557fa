"""Reading a question about decoding: is it one, how are heads shared, which letters, blanks, options and numbers."""

from __future__ import annotations

import re
from typing import Any

from ..reading.inline import on_own_lines
from ..reading.lettered import lettered
from .costs import Numbers
from .listing import SHAPES, Setting

LONGEST = 60_000  # characters of a text that are looked at

_STEP = r"incremental|decod(?:e|es|ing|er)|(?:one|single|next|new|newest) tokens?|autoregressive|generat\w+ \w+ tokens?"
_CACHE = r"\bkv[- ]?cache|\bcache[ds]?\b|prev_?[kv]\b|past_?[kv]\w*|previous (?:tokens|keys)|remember"
_SHARED = r"multi[- ]?query|\bmqa\b|grouped[- ]?query|\bgqa\b|share\w*[^.\n]{0,40}\b(?:keys?|values?)\b"
_ASKED = (
    r"einsum|\bshapes?\b|\bblanks?\b|fill in|complexity|memory access|\bbytes\b|arithmetic intensity|big-?o\b|"
    r"\bflops?\b|cache size|how (?:many|much|large|big)|_{3,}"
)
_QUESTION = (
    r"\?|\b(?:what|how (?:many|much|does|large|big)|compute|calculate|determine|derive|find|give|state|write|"
    r"work out)\b"
)

_TENSORS = {
    "W_q": r"w_?\{?q\}?|wq|q_proj|query_weights?",
    "W_k": r"w_?\{?k\}?|wk|k_proj|key_weights?",
    "W_v": r"w_?\{?v\}?|wv|v_proj|value_weights?",
    "W_o": r"w_?\{?o\}?|wo|o_proj|out_proj|output_weights?",
    "keys": r"(?:prev|past|cached?|old|new)_?(?:k|keys?)|k(?:ey)?s?_?cache|keys",
    "q": r"q|query|queries|q_new|new_q",
    "k": r"k|key|k_new|new_key|k_t",
    "v": r"v|value|v_new|new_value|v_t",
    "scores": r"scores?|logits|attn|attention_scores|s",
    "o": r"o|out|context|ctx|heads_out|attended",
    "y": r"y|output|result",
}
_BLANK = (
    r"_{2,}\s*[(\[]?\s*([A-Z]|\d|[ivx]{1,4})\s*[)\]]?\s*_{2,}|<([A-Z])>|\?{2,}\s*([A-Z])\s*\?*|\bBLANK[ _]?([A-Z\d])\b"
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


def setting_in(text: str) -> Setting:
    """How heads share keys in a text, and what it calls its sizes."""
    plain = _plain(text)
    grouped = len(
        re.findall(r"grouped[- ]?query|\bgqa\b|\d+ (?:kv|key[/-]value) heads|\bgroups\b", plain, re.IGNORECASE)
    )
    shared = len(re.findall(r"multi[- ]?query|\bmqa\b|share", plain, re.IGNORECASE))
    kind = "grouped" if grouped and grouped >= shared - 1 else "multi-query" if shared else "multi-head"
    found: dict[str, Any] = {}
    aliases: list[tuple[str, str]] = []
    usual = Setting()
    for size, patterns in _LETTERS.items():
        name = next((match[1] for pattern in patterns if (match := re.search(pattern, plain))), None)
        letter = getattr(usual, size)
        if name is None or name == letter:
            continue
        if len(name) == 1 and name not in "qkvxy" and name not in found.values():
            found[size] = name
        elif len(name) > 1:
            aliases.append((name, letter))
    widths = re.search(r"\b([a-z]) = ([a-z]) = ([a-z]) = [A-Za-z_]+ ?/", plain)
    alone = re.search(r"\b([a-pr-z]) = [A-Za-z_]+ ?/ ?[A-Za-z]\b", plain)
    if widths:
        found["widths"] = widths.groups()
    elif alone and alone[1] not in "xykv":
        found["widths"] = (alone[1],) * 3
    function = "torch.einsum" if "torch.einsum" in text else "np.einsum" if "np.einsum" in text else "einsum"
    setting = Setting(kind=kind, function=function, aliases=tuple(aliases), **found)
    return setting if _apart(setting) else Setting(kind=kind, function=function)


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
        rf"(?:dimension|width|size)(?: of| is)?\s+{_NAME}\b(?=[.,; )])",
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
    if not found:
        asked = re.finditer(
            r"shape (?:of|has|does|is) (?:the )?(?:matrix |tensor |weights? )?[`$\\]*(\w+)",
            text[:LONGEST],
            re.IGNORECASE,
        )
        for place, match in enumerate(asked):
            what = _tensor(match[1], shape=True)
            if what in SHAPES and what not in found.values():
                found["ABCDEFGH"[min(place, 7)]] = what
    return sorted(found.items())


def _tensor(name: str, shape: bool) -> str | None:
    for what, names in _TENSORS.items():
        if (what in SHAPES) == shape and re.fullmatch(names, name, re.IGNORECASE):
            return what
    return None


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


def costs_in(text: str, numbers: bool) -> tuple[str, ...]:
    """The costs that the questions of a text ask for, in their order."""
    kinds = {
        "reading": r"memory[- ]access|memory traffic|memory bandwidth|read from and write to memory",
        "time": r"comput\w+ (?:complexity|cost)|time complexity|number of (?:operations|flops)",
        "bytes": (
            r"(?<!each )\bbytes\b|\bin [kmg]i?b\b|cache size|size of the (?:kv[- ]?)?cache|"
            r"(?:large|big|much memory)?[^.?]{0,30}\bcache\b(?= of a \d| of \d|[^.?]{0,80}\d+ ?-?layer)"
        ),
        "intensity": r"arithmetic intensity|(?:flops?|operations?)(?: [^.?]{0,120})? (?:per|for each|a) byte",
        "mask": r"keys (?:does|can|may|is|are)\b",
    }
    _, parts = lettered(on_own_lines(text))
    asked: dict[str, None] = {}
    for said in [part.whole for part in parts] or [text[:LONGEST]]:
        places = {
            what: found.start()
            for what, signs in kinds.items()
            if (found := re.search(rf"(?:{_QUESTION})[^.?!]{{0,90}}?(?:{signs})", said.lower()))
            and (numbers or what in ("time", "reading"))
        }
        asked |= dict.fromkeys(sorted(places, key=lambda what: places[what])[: 1 if parts else None])
    return tuple(asked)


def numbers_in(text: str, setting: Setting) -> Numbers | None:
    """The sizes of a model that a text gives as numbers; None where it gives none."""
    plain = _plain(text).lower().replace(",", "") if not re.search(r"\d,\d{3}", text) else _plain(text).lower()
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", plain)
    patterns = {
        "layers": (r"(\d+)[- ](?:decoder |transformer )?layers?", r"layers?\s*[=:]?\s*(\d+)"),
        "key_heads": (
            r"(\d+)\s+(?:key[/ -]?(?:and )?value|kv|key)\s+heads",
            r"(\d+)\s+(?:heads? of keys|groups)",
        ),
        "heads": (r"(\d+)\s+(?:query |attention )?heads", r"heads\s*[=:]?\s*(\d+)"),
        "width": (r"(?:head )?(?:dimension|width|dim)(?: of| is)?\s*[=:]?\s*(\d+)", r"(\d+)\s+(?:wide|dimensions)"),
        "batch": (r"batch (?:size |of )?(?:of |is |= ?)?(\d+)", r"(\d+)\s+sequences"),
        "tokens": (r"(\d+)\s+(?:remembered |previous |past |cached )?tokens", (r"(?:length|context)(?: of| "
            r"is)?\s*[=:]?\s*(\d+)")),
        "size": (r"(\d+)\s*[- ]?bytes? (?:a|per|each)", r"(\d+) bytes? a number"),
        "new": (r"(\d+)\s+new (?:tokens|queries)",),
        "place": (r"(?:new )?(?:token|query) (?:number )?(\d+)",),
    }  # fmt: skip
    found = {
        size: int(match[1])
        for size, signs in patterns.items()
        if (match := next(filter(None, (re.search(sign, plain) for sign in signs)), None)) and len(match[1]) < 9
    }
    if len({"layers", "heads", "batch", "tokens", "width"} & set(found)) < 2:
        return None
    for name, size in (
        ("fp16", 2),
        ("bf16", 2),
        ("bfloat16", 2),
        ("float16", 2),
        ("half", 2),
        ("int8", 1),
        ("fp32", 4),
    ):
        if name in plain:
            found.setdefault("size", size)
    heads = max(1, found.get("heads", 1))
    usual = {"multi-query": 1, "multi-head": heads, "grouped": found.get("key_heads", 1)}[setting.kind]
    found["key_heads"] = max(1, usual)
    found["heads"] = heads
    return Numbers(**{"layers": 1, "batch": 1, "size": 2, **found})


def _plain(text: str) -> str:
    """A text without dollar signs, stars and what only sets type."""
    text = re.sub(r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}", r"\1", text[:LONGEST])
    text = re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1/\2", text)
    return re.sub(r"\s+", " ", re.sub(r"[$*`\\{}]", " ", text))
