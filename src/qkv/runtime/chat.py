"""Chats with a model: the template of its file, and the calls in its answers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import finalize

from .constraints import ONE_LINE
from .files import open_source
from .templates import TemplateProcess
from .tokenizer import read_chat_template

_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_FENCED = re.compile(r"\A```(?:json)?\s*(.*?)\s*(?:```)?\Z", re.DOTALL)


class ChatTemplate:
    """The chat template of a file.

    Args:
        path: The file or folder of the model.

    Raises:
        OptionError: It has no template.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._template, self._words = read_chat_template(open_source(path))
        self._process = TemplateProcess()
        self.close = finalize(self, self._process.close)  # ends its process, also where nothing refers to it any more

    @property
    def takes_tools(self) -> bool:
        """Whether the template has a place for tools."""
        return bool(re.search(r"\btools\b", self._template))

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """The text of a chat up to the answer; special tokens are part of it: encode it with `bare=True`.

        Args:
            messages: Each with a role ("system", "user", "assistant", "tool") and a content.
            tools: Functions that the model may call, as in OpenAI's requests.
        """
        return self._process.render(self._template, messages, self._words, tools)


@dataclass(frozen=True)
class ToolCall:
    """A function that a model calls."""

    name: str
    arguments: dict[str, Any]


def read_tool_calls(text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
    """The text of an answer without its calls, and the calls.

    A call is a JSON object with a name and arguments between <tool_call> tags; without tags, the whole answer, also in
    a fence of code, may be such objects, or arrays of them, if their names are among those that were offered.

    Args:
        text: The answer.
        names: The functions that the model may call.

    >>> read_tool_calls('I add.\\n<tool_call>\\n{"name": "add", "arguments": {"a": 2}}\\n</tool_call>', ["add"])
    ('I add.', [ToolCall(name='add', arguments={'a': 2})])
    >>> read_tool_calls('{"name": "add", "parameters": {"a": 2}}', ["add"])
    ('', [ToolCall(name='add', arguments={'a': 2})])
    >>> read_tool_calls('{"name": "Ada", "arguments": {}}', ["add"])
    ('{"name": "Ada", "arguments": {}}', [])
    """
    tagged = [_calls(body, None) for body in _TAGGED.findall(text)]
    if tagged and all(tagged):
        return _TAGGED.sub("", text).strip(), [call for calls in tagged for call in calls]
    fenced = _FENCED.match(text.strip())
    calls = _calls(fenced[1] if fenced else text, names)
    return ("", calls) if calls else (text, [])


def call_grammar(functions: Iterable[Mapping[str, Any]]) -> str:
    """The grammar of a call of one of these functions, for `Constraint`.

    Args:
        functions: Each with a name, and a JSON schema of its parameters if it has some.
    """
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": each["name"]}, "arguments": each.get("parameters") or {"type": "object"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for each in functions
    ]
    schema = json.dumps({"x-guidance": ONE_LINE, "anyOf": calls})
    return f'start: "<tool_call>\\n" call "\\n</tool_call>"\ncall: %json {schema}\n'


def _calls(text: str, names: Collection[str] | None) -> list[ToolCall]:
    """The calls that a text of JSON consists of; none if one of them is no call."""
    calls, text = list[ToolCall](), text.strip()
    with suppress(ValueError, RecursionError, AttributeError):
        while text:
            found, end = json.JSONDecoder(strict=False).raw_decode(text)
            text = text[end:].lstrip()
            for each in found if isinstance(found, list) else [found]:
                name, given = each.get("name"), each.get("arguments", each.get("parameters", {}))
                given = json.loads(given) if isinstance(given, str) else given
                if not isinstance(name, str) or not isinstance(given, dict) or not (names is None or name in names):
                    return []
                calls.append(ToolCall(name, given))
        return calls
    return []
