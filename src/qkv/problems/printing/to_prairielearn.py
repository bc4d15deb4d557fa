"""The bank as PrairieLearn questions: each folder draws a fresh variant for a student and grades it with this bank."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

from ..problem import Part, Problem
from .documents import labelled, question
from .exports import solution_blocks
from .web import fragment

_SEEDS = 1000  # variants that are drawn from
_SPACE = uuid.UUID("8f2ad1c0-6a3c-5b7e-9d49-1f0c57a1e3b2")  # of the ids below; another would make other questions
_SERVER = '''\
"""Draws a variant of this question for each student and grades it; the environment needs the package qkv."""

from qkv.problems.printing import to_prairielearn

NAME = {name!r}


def generate(data):
    to_prairielearn.generate(NAME, data)


def grade(data):
    to_prairielearn.grade(NAME, data)
'''


def prairielearn(problems: Sequence[Problem]) -> dict[str, bytes]:
    """The files of a question folder for each problem: info.json, question.html and server.py."""
    files: dict[str, bytes] = {}
    for problem in {problem.name: problem for problem in problems}.values():
        folder = f"questions/qkv/{problem.name}"
        info = {
            "uuid": str(uuid.uuid5(_SPACE, problem.name)),
            "title": problem.title,
            "topic": "Attention",
            "tags": ["qkv"],
            "type": "v3",
        }
        files[f"{folder}/info.json"] = (json.dumps(info, indent=2, ensure_ascii=False) + "\n").encode()
        files[f"{folder}/question.html"] = _PAGE.encode()
        files[f"{folder}/server.py"] = _SERVER.format(name=problem.name).encode()
    return files


# Parts differ from variant to variant, so the page is written by generate(); three braces keep its markup as it is.
_PAGE = """\
<pl-question-panel>
  {{{params.statement}}}
</pl-question-panel>
{{#params.parts}}
<pl-question-panel>
  {{{ask}}}
</pl-question-panel>
<pl-string-input answers-name="{{key}}" label="({{name}})" size="70" weight="{{points}}"
  remove-leading-trailing="true" allow-blank="true"></pl-string-input>
{{/params.parts}}
<pl-submission-panel>
  {{#feedback.lines}}
  <p>{{.}}</p>
  {{/feedback.lines}}
</pl-submission-panel>
<pl-answer-panel>
  {{{params.solution}}}
</pl-answer-panel>
"""


def generate(name: str, data: dict[str, Any]) -> None:
    """Fill a question's data with the variant of its seed."""
    problem = _variant(name, data)
    parts = [
        {
            "key": key(part),
            "name": part.name,
            "points": part.points,
            "ask": fragment(question(problem, part)),
        }
        for part in problem.parts
    ]
    data["params"]["statement"] = fragment(labelled(problem.statement))
    data["params"]["parts"] = parts
    data["params"]["solution"] = "\n".join(
        f"<p><strong>({part.name})</strong></p>{fragment(solution_blocks(problem, part))}" for part in problem.parts
    )


def grade(name: str, data: dict[str, Any]) -> None:
    """Hold what was submitted to the variant, part by part; reasons go into the feedback."""
    problem = _variant(name, data)
    lines, gained = [], 0
    for part in problem.parts:
        outcome = part.check(str(data["submitted_answers"].get(key(part)) or ""))
        gained += part.points if outcome else 0
        said = "right" if outcome else f"{outcome.kind}: {outcome.reason}"
        lines.append(f"({part.name}) {said}")
        data["partial_scores"][key(part)] = {"score": float(bool(outcome)), "weight": part.points, "feedback": said}
    data["score"] = gained / sum(part.points for part in problem.parts)
    data["feedback"]["lines"] = lines


def key(part: Part) -> str:
    """The name of a part's input: letters alone."""
    return "part_" + "".join(sign for sign in part.name.lower() if sign.isalnum())


def _variant(name: str, data: dict[str, Any]) -> Problem:
    from ..catalogue import named

    return named(name, int(data["variant_seed"]) % _SEEDS)
