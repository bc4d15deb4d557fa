"""Chats in the styles of real ones, written around answers that are given."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping

Style = Callable[[str, Mapping[str, str]], str]


def answer_lines(number: str, answers: Mapping[str, str]) -> str:
    said = "\n".join(
        f"({part}) Working on it\nSome steps first.\n✅ Answer ({part}): {text}" for part, text in answers.items()
    )
    return f"USER:\nPlease solve question {number}.\nASSISTANT:\nGladly.\n{said}\nLet me know if anything is unclear."


def final_answers(number: str, answers: Mapping[str, str]) -> str:
    said = "\n\n".join(
        f"### Part ({part})\n\nFirst, recall the definition.\n\n**Final answer:** {text}"
        for part, text in answers.items()
    )
    return f"**Student:** Can you help me with problem {number}?\n\n**Tutor:** Sure.\n\n{said}\n"


def boxes(number: str, answers: Mapping[str, str]) -> str:
    said = "\n\n".join(f"({part}) We find\n\n\\[\n\\boxed{{{text}}}\n\\]" for part, text in answers.items())
    return f"You said:\nsolve {number}\n\nChatGPT said:\n## Question {number}\n\n{said}\n"


def table(number: str, answers: Mapping[str, str]) -> str:
    rows = "\n".join(f"| ({part}) | {text} | as computed above |" for part, text in answers.items())
    return (
        f"User: Let's start with question {number}.\n\nAssistant: Here you are.\n\n"
        f"| Part | Answer | Explanation |\n|---|---|---|\n{rows}\n"
    )


def flattened_table(number: str, answers: Mapping[str, str]) -> str:
    rows = "\n".join(f"({part})\n{text}" for part, text in answers.items())
    return f"User\nquestion {number}, please\nClaude\nQuestion {number}\nSummary Table\nPart\nAnswer\n{rows}\n"


def summary(number: str, answers: Mapping[str, str]) -> str:
    rows = "\n".join(f"- ({part}) {text}" for part, text in answers.items())
    return f"Human: Solve problem {number}\n\nAI: It takes a few steps.\n\nFinal answers:\n{rows}\n"


def unmarked(number: str, answers: Mapping[str, str]) -> str:
    rows = "\n".join(f"({part}) What we look for\nAnswer: {text}" for part, text in answers.items())
    return f"can you please solve problem {number}\nThought for 12s\nProblem {number} — a title\nSolution\n{rows}\n"


def webpage(number: str, answers: Mapping[str, str]) -> str:
    rows = "".join(
        f"<p><b>({part})</b> first the idea.</p><p>Answer: {html.escape(text)}</p>" for part, text in answers.items()
    )
    return (
        "<!DOCTYPE html><html><head><title>chat</title><script>alert('no')</script></head><body>"
        f'<div data-message-author-role="user"><p>Now solve problem {number}.</p></div>'
        f'<div data-message-author-role="assistant"><h3>Question {number}</h3>{rows}</div></body></html>'
    )


def role_list(number: str, answers: Mapping[str, str]) -> str:
    said = "\n\n".join(f"**Answer ({part}):** {text}" for part, text in answers.items())
    messages = [{"role": "user", "content": f"Answer question {number}"}, {"role": "assistant", "content": said}]
    return json.dumps(messages)


STYLES: dict[str, Style] = {
    style.__name__: style
    for style in (
        answer_lines,
        final_answers,
        boxes,
        table,
        flattened_table,
        summary,
        unmarked,
        webpage,
        role_list,
    )
}
