"""Ways of marking speakers that chat programs have of their own, written as the bold names that are read elsewhere."""

from __future__ import annotations

import re

from .speakers import role_of

_NAME = r"(?P<name>[^\W\d_][\w .]{0,20}?)"
_PAGE = re.compile(r"<\w+\b[^<>]*\bdata-message-author-role\s*=\s*[\"']?(?P<name>\w+)[^<>]*>", re.IGNORECASE)
_FORMS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"<\|im_start\|>[ \t]*(?P<name>\w+)[ \t]*",
        r"<\|start_header_id\|>[ \t]*(?P<name>\w+)[ \t]*<\|end_header_id\|>",
        r"<\|(?P<name>user|assistant|system)\|>",
        r"<start_of_turn>[ \t]*(?P<name>\w+)",
        rf"^[ \t]*\\(?:textbf|emph|textit|textsc|section\*?|subsection\*?|paragraph)\{{{_NAME}[ \t]*:?\}}[ \t]*:?",
        rf"^[ \t]*<{_NAME}>[ \t]*:?",
        rf"^[ \t]*\[{_NAME}\][ \t]*:?",
        rf"^[ \t]*[-*•+][ \t]+(?:\*\*|__)?{_NAME}(?:\*\*|__)?[ \t]*:(?:\*\*|__)?",
        rf"^[ \t]*{_NAME}[ \t]+(?:[-–—|>]|->|→)[ \t]+",
        rf"^[ \t]*(?:\d{{1,3}}[.)])[ \t]+(?:\*\*|__)?{_NAME}(?:\*\*|__)?[ \t]*:(?:\*\*|__)?",
    )
)
_ENDS = re.compile(r"<\|(?:im_end|eot_id|end_of_text|begin_of_text|endoftext|end)\|>|<end_of_turn>|(?<!\w)</?s>")
_ESCAPED_LETTER = re.compile(r"^[ \t>#*_-]*\\\(([a-h]|[ivx]{1,4})\\\)(?=[\s*_:.])", re.MULTILINE)
_THOUGHTS = re.compile(r"<(think|thinking|reasoning)>[\s\S]*?(?:</\1>|\Z)", re.IGNORECASE)


def without_thoughts(text: str) -> str:
    """A text without what a model says to itself before it answers.

    >>> without_thoughts("<think>d?</think>It is d.")
    'It is d.'
    """
    return _THOUGHTS.sub("", text) if "<think" in text.lower() or "<reasoning" in text.lower() else text


def unescaped_labels(text: str) -> str:
    """Labels of lists as they are read elsewhere: Markdown's escapes undone, LaTeX's items without their command.

    >>> unescaped_labels(r"1\\. Find it. " + "\\n" + r"\\item[(b)] d")
    '1. Find it. \\n(b) d'
    """
    if "\\item" in text:
        text = re.sub(r"^([ \t]*)\\item[ \t]*\[([^\]\n]{1,12})\]", r"\1\2", text, flags=re.MULTILINE)
        text = re.sub(r"\\(?:begin|end)\{(?:enumerate|itemize|description)\}(?:\[[^\]\n]*\])?", "", text)
    if "\\" not in text:
        return text
    text, escaped = re.subn(r"^([ \t>#*_-]*\d{1,2})\\([.)])", r"\1\2", text, flags=re.MULTILINE)
    letters = _ESCAPED_LETTER.findall(text)
    # "\\(d\\)" alone is mathematics; letters that count up from a at the beginnings of lines are labels.
    if escaped or "".join(dict.fromkeys(letters)).startswith("ab"):
        text = _ESCAPED_LETTER.sub(lambda found: found.group().replace("\\(", "(").replace("\\)", ")"), text)
    return text


def with_names(text: str) -> str:
    """The text with its speakers as bold names, where one of these forms marks both sides.

    >>> with_names("[INST] What? [/INST] It is d.").split()
    ['**User:**', 'What?', '**Assistant:**', 'It', 'is', 'd.']
    """
    text = text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{NARROW NO-BREAK SPACE}", " ")
    text = re.sub(r"^([^\n：]{1,32}：)(?=\S)", r"\1 ", text, flags=re.MULTILINE) if "：" in text else text
    if "data-message-author-role" in text:
        text = _PAGE.sub(lambda found: f"{found.group()}\n\n**{found['name'].title()}:**\n\n", text)
    if "[INST]" in text and "[/INST]" in text:
        text = text.replace("[/INST]", "\n\n**Assistant:** ").replace("[INST]", "\n\n**User:** ")
    for form in _FORMS:
        roles = {role_of(found["name"]) for found in form.finditer(text)}
        if {"student", "tutor"} <= roles:
            text = form.sub(_named, text)
            text = re.sub(r"^[ \t]*</[^\W\d_][\w .]{0,20}>[ \t]*$", "", text, flags=re.MULTILINE)
    return _ENDS.sub("\n", text) if "**" in text else text


def _named(found: re.Match[str]) -> str:
    return found.group() if role_of(found["name"]) is None else f"\n**{found['name'].strip().title()}:** "
