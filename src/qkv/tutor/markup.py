"""HTML inside a text as plain text: only tags that HTML has are taken for tags, so that a < b stays as it is."""

from __future__ import annotations

import html
import re


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


_TAGS = (
    "html|head|body|title|meta|link|p|div|br|hr|span|a|b|strong|i|em|u|s|sub|sup|small|mark|font|center|h[1-6]|ul|ol|li|"
    "dl|dt|dd|table|thead|tbody|tfoot|tr|td|th|caption|pre|code|kbd|samp|blockquote|details|summary|section|article|"
    "header|footer|main|nav|aside|figure|figcaption|img|svg|path|button|input|label|form|script|style|noscript|iframe|"
    "template|textarea|picture|source|video|audio"
)
_TAG = re.compile(rf"<(/?)({_TAGS})(?=[\s/>])[^<>]*>|<!--|<!doctype[^<>]*>", re.IGNORECASE)
_RAISED = re.compile(
    r"<(sup|sub)(?:\s[^<>]*)?>((?:[^<>]|</?(?:b|i|em|strong|span)\b[^<>]*>){0,80}?)</\1\s*>", re.IGNORECASE
)
_HIDDEN = ("script", "style", "noscript", "template", "head", "svg", "iframe", "textarea", "nav", "footer")
_BREAKS = words("p div ul ol dl table section article header footer main blockquote details figure hr form")
_OPENED = {"li": "\n- ", "tr": "\n", "dt": "\n", "dd": "\n", "pre": "\n```\n", "code": "`", "br": "\n", "b": "**",
           "strong": "**"}  # fmt: skip
_CLOSED = {"pre": "\n```\n", "code": "`", "td": "\t", "th": "\t", "tr": "\n", "b": "**", "strong": "**"}


def untagged(text: str) -> str:
    """The text without HTML; scripts and styles are dropped with what they hold.

    >>> untagged("<p>the mean is <b>mu</b></p><script>alert(1)</script>").strip()
    'the mean is **mu**'
    >>> untagged("2<sup>n</sup> of n<sub>t</sub>, the 4<sup>th</sup>")
    '2^{n} of n_{t}, the 4th'
    >>> untagged("if a < b and b > c")
    'if a < b and b > c'
    """
    if not _TAG.search(text):
        return text
    text = _RAISED.sub(_raised, text)
    pieces: list[str] = []
    done, place, within = 0, _TAG.search(text), False
    open_to_the_end: set[str] = set()
    while place is not None:
        pieces.append(text[done : place.start()])
        done = place.end()
        name = (place.group(2) or "").lower()
        if place.group() == "<!--":
            end = text.find("-->", done)
            done = len(text) if end < 0 else end + 3
        elif name in _HIDDEN and not place.group(1) and not place.group().endswith("/>"):
            if name not in open_to_the_end:
                end = re.compile(rf"</{name}\s*>", re.IGNORECASE).search(text, done)
                done = done if end is None else end.end()
                # A tag that is never closed hides nothing, and its end is looked for once.
                open_to_the_end |= {name} if end is None else set()
        elif name == "code" and within:
            pass
        else:
            within = (not place.group(1)) if name == "pre" else within
            pieces.append(_written(name, closing=bool(place.group(1))))
        place = _TAG.search(text, done)
    pieces.append(text[done:])
    return re.sub(r"\n{3,}", "\n\n", html.unescape("".join(pieces)).replace("\xa0", " "))


def _raised(found: re.Match[str]) -> str:
    """A raised or lowered piece as formulas have it; the ending of an ordinal stays a word."""
    said = re.sub(r"<[^<>]*>", "", found[2]).strip()
    if not said or said in ("st", "nd", "rd", "th"):
        return said
    return f"{'^' if found[1].lower() == 'sup' else '_'}{{{said}}}"


def _written(name: str, closing: bool) -> str:
    if re.fullmatch(r"h[1-6]", name):
        return "\n\n" if closing else f"\n\n{'#' * int(name[1])} "
    if name in _BREAKS:
        return "\n\n"
    return (_CLOSED if closing else _OPENED).get(name, "")
