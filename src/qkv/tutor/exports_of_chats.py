"""Conversations from the JSON that chat programs export: trees of messages, lists of them, lines of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ..errors import OptionError, complaint
from .markup import untagged
from .speakers import role_of

MOST_CONVERSATIONS = 200
MOST_MESSAGES = 20_000
_DEEPEST = 40  # lists within lists that are looked into
_LISTS = ("messages", "chat_messages", "conversations", "conversation", "history", "turns", "dialogue", "dialog",
          "chat", "items", "data", "contents", "chunkedPrompt", "chunks", "log", "thread")  # fmt: skip
_PAIRS = (("prompt", "response"), ("prompt", "completion"), ("question", "answer"), ("user", "assistant"),
          ("input", "output"), ("instruction", "output"), ("student", "tutor"), ("human", "ai"))  # fmt: skip
_SPEAKERS = ("role", "sender", "from", "author", "speaker", "name", "type")
_CONTENTS = ("content", "text", "value", "message", "parts", "body", "utterance", "msg", "said")

_LIKE_JSON = re.compile(r"\[?\s*\{\s*\"\w{1,40}\"\s*:")
_HINT = "known are lists of role and content, and the exports of chat programs"

Spoken = tuple[str, str, str]
Conversation = tuple[str, list[Spoken], tuple[str, ...]]


def conversations(text: str) -> list[Conversation] | None:
    """Title, turns and notes of each conversation; None where the text is no export."""
    start = text.lstrip()[:1]
    if text[:64].strip() == "null":
        raise OptionError(complaint("transcript", "empty JSON", "messages with who says them", _HINT))
    if start not in ("{", "["):
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = _lines(text)
    if data is None:
        if _LIKE_JSON.match(text.lstrip()):
            raise OptionError(complaint("transcript", "JSON that is broken or breaks off", "a whole export", _HINT))
        return None
    found = [each for each in _conversations(data) if each[1]]
    if not found:
        raise OptionError(complaint("transcript", _described(data), "messages with who says them", _HINT))
    if len(found) > MOST_CONVERSATIONS:
        left = len(found) - MOST_CONVERSATIONS
        found = found[:MOST_CONVERSATIONS]
        title, turns, notes = found[0]
        found[0] = (title, turns, (*notes, f"the archive holds {left:,} conversations more: they were left out"))
    return found


def _described(data: Any) -> str:
    """What JSON holds, in a few words."""
    if not data:
        return "empty JSON"
    if isinstance(data, dict):
        return f"JSON with {', '.join(repr(str(key)[:40]) for key in list(data)[:6])}"
    return f"a JSON list of {type(data[0]).__name__}"


def _paired(data: list[Any]) -> list[Any]:
    """A list of questions with their answers as the messages that they are; anything else as it is."""
    for asked, answered in _PAIRS:
        if all(isinstance(each, dict) and isinstance(each.get(asked), str) and answered in each for each in data):
            return [
                message
                for each in data
                for message in ({"role": "user", "content": each[asked]},
                                {"role": "assistant", "content": each[answered]})
            ]  # fmt: skip
    return data


def _lines(text: str) -> Any:
    """JSON Lines, where most of the lines are JSON; what is not is left out."""
    values, broken = [], 0
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            values.append(json.loads(line))
        except (ValueError, RecursionError):
            broken += 1
            if broken > 5 + len(values):
                return None
    return values if len(values) > broken and all(isinstance(value, dict) for value in values) else None


def _conversations(data: Any, depth: int = 0) -> Iterator[Conversation]:
    if depth > _DEEPEST:
        return
    if isinstance(data, dict):
        title = next((name for name in (data.get("title"), data.get("name")) if name and isinstance(name, str)), "")
        if isinstance(data.get("mapping"), dict):
            yield _conversation(title, _path(data["mapping"], data.get("current_node")))
            return
        for key in _LISTS:
            inner = data.get(key)
            if isinstance(inner, dict | list) and inner:
                found = list(_conversations(inner, depth + 1))
                yield from ((each[0] or title, *each[1:]) for each in found)
                if found:
                    return
        found = _paired([data])
        if len(found) > 1:
            yield _conversation(title, found)
    elif isinstance(data, list):
        data = _paired(data) if data else data
        if any(_said_by(each) for each in data):
            yield _conversation("", data)
            return
        for each in data:
            if isinstance(each, dict | list):
                yield from _conversations(each, depth + 1)


def _path(mapping: dict[str, Any], current: Any) -> list[Any]:
    """The messages from the root of a tree to the current node; without one, the last child is followed."""
    nodes = {key: node for key, node in mapping.items() if isinstance(node, dict)}
    if not isinstance(current, str) or current not in nodes:
        current, seen = next((key for key, node in nodes.items() if not node.get("parent")), None), set()
        while current is not None and current not in seen:
            seen.add(current)
            listed = nodes[current].get("children")
            children = listed if isinstance(listed, list) else ()
            below = [child for child in children if isinstance(child, str) and child in nodes]
            if not below:
                break
            current = below[-1]
    path, seen = [], set()
    while isinstance(current, str) and current in nodes and current not in seen:
        seen.add(current)
        path.append(nodes[current].get("message"))
        current = nodes[current].get("parent")
    return path[::-1]


def _conversation(title: str, messages: list[Any]) -> Conversation:
    turns: list[Spoken] = []
    hidden = 0
    for message in messages[:MOST_MESSAGES]:
        speaker = _said_by(message)
        text = untagged(_text(message)).strip() if isinstance(message, dict) else ""
        if not text:
            continue
        if speaker is None or _is_hidden(message):
            hidden += 1
        else:
            turns.append((speaker, text, ""))
    notes = () if len(messages) <= MOST_MESSAGES else (f"{len(messages) - MOST_MESSAGES:,} messages were left out",)
    if hidden:
        notes = (*notes, f"{hidden} messages of the system or of tools were left out")
    return title, turns, notes


def _said_by(message: Any) -> str | None:
    """ "student" or "tutor"; None for the system, for tools and for what is no message."""
    if not isinstance(message, dict):
        return None
    for key in _SPEAKERS:
        value = message.get(key)
        if isinstance(value, dict):
            value = value.get("role") or value.get("name")
        if isinstance(value, str):
            name = value.strip().lower()
            role = role_of(name) or ("tutor" if name in ("gpt", "response", "answer") else None)
            if role is not None:
                return None if role == "silent" else role
    return None


def _is_hidden(message: dict[str, Any]) -> bool:
    about = message.get("metadata")
    hidden = isinstance(about, dict) and bool(about.get("is_visually_hidden_from_conversation"))
    content = message.get("content")
    kind = content.get("content_type") if isinstance(content, dict) else None
    to = message.get("recipient")
    return hidden or kind in ("thoughts", "reasoning_recap", "user_editable_context", "model_editable_context") or (
        isinstance(to, str) and to not in ("all", "")
    )  # fmt: skip


def _text(value: Any, depth: int = 0) -> str:
    """The words of a message: a text, a list of parts, or parts within parts."""
    if isinstance(value, str):
        return value
    if depth > 6:
        return ""
    if isinstance(value, list):
        return "\n\n".join(filter(None, (_text(each, depth + 1) for each in value)))
    if not isinstance(value, dict) or value.get("type") in (
        "tool_use",
        "tool_result",
        "thinking",
        "image",
        "image_url",
    ):
        return ""
    for key in _CONTENTS:
        found = _text(value.get(key), depth + 1)
        if found.strip():
            return found
    return ""
