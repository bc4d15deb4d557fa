"""A text cut into words and formulas: marked ones between dollars, and in plain text the runs of what is no word."""

from __future__ import annotations

import re

_MARKED = re.compile(
    r"\$\$(?P<display>[^$]{1,4000})\$\$|(?<!\\)\$(?P<inline>(?:[^$\\]|\\[^\n]){1,2000})\$"
    r"|\\\[(?P<square>(?:(?!\\\]).){1,4000})\\\]|\\\((?P<round>(?:(?!\\\)).){1,2000})\\\)",
    re.DOTALL,
)
_ARROWS = re.compile(
    r"\\(?:Rightarrow|implies|Longrightarrow|therefore|Leftrightarrow|iff|Longleftrightarrow|leadsto)(?![A-Za-z])"
    r"|⇒|⟹|∴|⟺|⟶|=>"
)
_SPACES = re.compile(r"^(?:\\[,;:! ]|\s)+|(?:\\[,;:! ]|[\s,.;])+$")
_WIDE = re.compile(r"\\q?quad(?![A-Za-z])")
_PUNCTUATION = "([{*\"'“”’.,;:!?)]}"
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_TEXT = re.compile(r"(?<![_{^])(?<!_\s)\\(?:text|mbox|textrm|textit|textbf|intertext)\s*\{([^{}]{0,400})\}")
_LABEL = re.compile(r"^\W{0,4}(?:part\s+)?(?:\([a-h]\)|[a-h]\)|part\s+[a-h]\b)[\s*.:)_]*(?=\S)", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-zÀ-ÿ]+(?:['’-][A-Za-zÀ-ÿ]+)*")
NAMES = frozenset(
    ("alpha", "beta", "gamma", "delta", "epsilon", "eta", "theta", "kappa", "lambda", "mu", "nu", "xi", "rho", "sigma",
     "tau", "phi", "chi", "psi", "omega", "Sigma", "Lambda", "sqrt", "exp", "log", "ln", "Var", "Cov", "var", "cov",
     "tr", "diag", "softmax", "argmax")
)  # fmt: skip
_BRACKETED = re.compile(r"(?<=\s)[(\[]([^()\[\]]{1,400})[)\]](?![_^ᵀ])")


def bare(answer: str) -> str:
    """The text without emphasis, without the letter of the part, and with the words of LaTeX as words."""
    text = re.sub(r"\*\*|__(?=\W|$)|(?<!\S)__|`", " ", answer)
    text = _TEXT.sub(lambda found: f"\x01{found[1]}\x02" if found[1].strip() not in NAMES else found[0], text)
    return re.sub(r"\b[Pp]arts?\s+\(?[a-h]\)?(?:\([ivx]+\))?(?!\w)", "part", _LABEL.sub("", text))


def cut(text: str, names: frozenset[str]) -> list[tuple[str, str]]:
    """Words and formulas in turn: ("words", …), ("formula", …), ("boxed", …)."""
    found: list[tuple[str, str]] = []
    done = 0
    for mark in _MARKED.finditer(text):
        found += _plain_pieces(text[done : mark.start()], names)
        found += _formula_pieces(next(group for group in mark.groups() if group is not None), names)
        done = mark.end()
    if done == 0 and ("\x01" in text or _ARROWS.search(text) or _BOXED.search(text)):
        return _joined(_formula_pieces(text, names, plain=True))
    return _joined(found + _plain_pieces(text[done:], names))


def _formula_pieces(body: str, names: frozenset[str], plain: bool = False) -> list[tuple[str, str]]:
    """A formula cut at arrows, at words and at wide spaces."""
    found: list[tuple[str, str]] = []
    body = re.sub(r"\\begin\{(?:align|aligned|gather|gathered|equation|split)\*?\}|\\end\{(?:align|aligned|gather"
                  r"|gathered|equation|split)\*?\}", " ", body)  # fmt: skip
    for turn, clause in enumerate(_ARROWS.split(body)):
        found += [("words", " so ")] if turn else []
        for piece in re.split(r"(\x01[^\x02]*\x02)", clause):
            if piece.startswith("\x01"):
                found.append(("words", f" {piece[1:-1]} "))
                continue
            for alone in _WIDE.split(piece):
                opened = _BOXED.search(alone)
                if opened and (inner := _inside(alone, opened.end())) is not None:
                    found.append(("boxed", inner.strip()))
                elif plain:
                    found += _plain_pieces(alone, names)
                elif alone.strip(" ,.;&\\\n"):
                    found.append(("formula", _SPACES.sub("", alone).strip(" ,;&\n").removesuffix(".")))
    return found


def unboxed(text: str) -> str:
    r"""A formula out of the box around it.

    >>> unboxed(r"\boxed{s = \sqrt{d}}")
    's = \\sqrt{d}'
    """
    opened = _BOXED.match(text)
    inner = _inside(text, opened.end()) if opened else None
    return inner.strip() if opened and inner is not None and opened.end() + len(inner) + 1 == len(text) else text


def _inside(text: str, start: int) -> str | None:
    depth = 1
    for place in range(start, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return text[start:place]
    return None


def _plain_pieces(text: str, names: frozenset[str]) -> list[tuple[str, str]]:
    """Text without marks: runs of what is no word are formulas."""
    found: list[tuple[str, str]] = []
    run: list[str] = []
    depth = 0
    # A bracket with words in it belongs to the sentence.
    text = _BRACKETED.sub(lambda part: f" \x03 {part[1]} \x04 " if _has_words(part[1], names) else part[0], text)
    tokens = [token for token in re.split(r"(\s+)", text) if token]
    for place, token in enumerate(tokens):
        core = token.strip(_PUNCTUATION)
        word = depth == 0 and (
            (_is_word(core, names) and not _goes_on(run, tokens, place, core)) or core.lower() in ("i.e", "e.g")
        )
        if not token.strip():
            run += [token] if run else []
            found += [("words", token)] if not run else []
            continue
        if word or token in "\x03\x04" or (not re.search(r"[\w√‖|∑Σ]", token) and not run):
            found += _closed(run)
            run = []
            found.append(("words", {"\x03": "(", "\x04": ")"}.get(token, token)))
            continue
        run.append(token)
        depth = max(0, depth + sum(token.count(sign) for sign in "([{") - sum(token.count(sign) for sign in ")]}"))
        if depth == 0 and (ending := re.search(r"[,;:!?]+$|\.+$", token)) and token != "...":
            run[-1] = token[: ending.start()]
            found += [*_closed(run), ("words", ending[0])]
            run = []
    return found + _closed(run)


def _has_words(text: str, names: frozenset[str]) -> bool:
    return any(_is_word(token.strip(".,;:!?"), names) and token != "a" for token in text.split())


def _is_word(core: str, names: frozenset[str]) -> bool:
    if core in ("a", "I"):
        return True
    if core.isupper() and all(letter in names for letter in core):
        return False  # a product of matrices
    return len(core) > 1 and _WORD.fullmatch(core) is not None and core not in names


def _goes_on(run: list[str], tokens: list[str], place: int, core: str) -> bool:
    """Whether a word is a name here: it labels an equation, or is a lone "a" or "I" beside a sign of arithmetic or at
    the end of a formula and of the text."""
    behind = "".join(tokens[place + 1 : place + 3]).strip()
    if core not in ("a", "I"):
        return tokens[place] == core and re.match(r":?=|≈|\\approx", behind) is not None
    if run and (not behind or "".join(run).rstrip()[-1:] in "=+-*/·"):
        return True
    return behind[:1] in ("=", "+", "*", "/", "^", "_", "·")


def _closed(run: list[str]) -> list[tuple[str, str]]:
    """A run as a formula, brackets of the sentence around it left outside."""
    text = "".join(run)
    kept = text.strip(" \n\t,;")
    before = after = ""
    while kept[:1] in ("(", "[") and kept.count(kept[0]) > kept.count({"(": ")", "[": "]"}[kept[0]]):
        before, kept = before + kept[0], kept[1:].lstrip()
    while kept[-1:] in (")", "]") and kept.count(kept[-1]) > kept.count({")": "(", "]": "["}[kept[-1]]):
        after, kept = kept[-1] + after, kept[:-1].rstrip(" .,")
    if not re.search(r"[\w√‖|]", kept):
        return [("words", text)] if text else []
    found = [("words", f" {before}"), ("formula", kept), ("words", f"{after} ")]
    return [piece for piece in found if piece[1].strip() or piece[0] == "words"]


def _joined(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbouring words as one piece."""
    found: list[tuple[str, str]] = []
    for kind, text in pieces:
        if kind == "words" and found and found[-1][0] == "words":
            found[-1] = ("words", found[-1][1] + text)
        elif kind != "words" or text.strip():
            found.append((kind, text))
    return found
