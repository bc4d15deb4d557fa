"""Chats from the JSON that chat programs export: by structure, in order of time, the last of several branches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import OptionError, complaint
from .speakers import role_of

MOST_MESSAGES = 20_000
_DEEPEST = 12
_ROLES = ("role", "sender", "author", "from", "speaker", "type")
_TEXTS = ("content", "text", "value", "message", "parts", "body")
_TITLES = ("title", "name", "summary")
_IDS = ("uuid", "id", "message_id", "messageId")
_PARENTS = ("parent_message_uuid", "parent", "parent_id", "parentId", "parentMessageId", "parent_message_id")
_TIMES = ("createdAt", "created_at", "create_time", "timestamp", "time", "date", "ts")
_LISTS = ("messages", "chat_messages", "conversation", "conversations", "history", "turns", "dialogue", "chat", "items",
          "data", "contents", "chunks", "chunkedPrompt", "samples", "log", "output")  # fmt: skip
# Parts of a message that were not said: thoughts, calls of tools and their results, images.
_SILENT = frozenset({"tool_use", "tool_result", "tool_call", "thinking", "reasoning", "image", "image_url", "thoughts",
                     "reasoning_recap", "user_editable_context", "model_editable_context", "code", "execution_output",
                     "input_audio", "file"})  # fmt: skip
_PROGRAMS = {"mapping": "chatgpt", "chat_messages": "claude", "chatId": "mistral", "chunkedPrompt": "gemini",
             "samples": "inspect"}  # fmt: skip
_EXPECTED = "a list or a tree of messages, each with a role and a text"
_KNOWN = "known are the exports of ChatGPT, Claude, Mistral and Gemini, Inspect's logs, and lists of role and content"


@dataclass(frozen=True)
class Message:
    """One message of an export."""

    role: str
    name: str
    text: str
    time: str = ""


class Export(NamedTuple):
    """One chat of an export: the program that wrote it, its title where it has one, and its messages."""

    program: str
    title: str
    messages: list[Message]


def read_exports(text: str, named: bool = False) -> list[Export] | None:
    """The chats of an export; None for a text that is no JSON, unless its file is `named` so.

    Raises:
        OptionError: JSON that is broken, or in which no chat is found.
    """
    if not named and text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        data = json.loads(text)
    except RecursionError:
        raise _refused("JSON that is nested too deeply") from None
    except ValueError as error:
        data = _lines(text)
        if data is None:
            if not named and text.lstrip()[:400].count('"') < 4:
                return None  # a text that begins with a bracket
            raise _refused(f"JSON that is broken or cut off ({error})") from None
    chats = [chat for chat in _chats(data, 0) if chat.messages]
    if not chats:
        raise _refused(_described(data))
    return chats


def _refused(what: str) -> OptionError:
    return OptionError(complaint("chat", what, _EXPECTED, _KNOWN))


def _described(data: Any) -> str:
    if isinstance(data, dict):
        return f"JSON with {', '.join(repr(str(key)[:40]) for key in list(data)[:6]) or 'nothing in it'}"
    return f"a JSON list of {type(data[0]).__name__}" if isinstance(data, list) and data else "empty JSON"


def _lines(text: str) -> list[Any] | None:
    """JSON Lines: an object on every line."""
    try:
        found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return None
    return found if len(found) > 1 and all(isinstance(each, dict) for each in found) else None


def _chats(data: Any, depth: int) -> Iterator[Export]:
    if depth > _DEEPEST:
        return
    if isinstance(data, dict):
        title = next((data[key].strip() for key in _TITLES if isinstance(data.get(key), str)), "")
        if isinstance(data.get("mapping"), dict):
            yield Export("chatgpt", title, _messages(_branch(data["mapping"], data.get("current_node"))))
            return
        for key in _LISTS:
            inner = data.get(key)
            if isinstance(inner, dict | list) and inner:
                found = [Export(_PROGRAMS.get(key, each.program), each.title or title, each.messages)
                         for each in _chats(inner, depth + 1) if each.messages]  # fmt: skip
                if found:
                    yield from found
                    return
    elif isinstance(data, list):
        said = [each for each in data if _role(each)]
        if said:
            kind = next((name for key, name in _PROGRAMS.items() if key in said[0]), "messages")
            yield Export(kind, "", _messages(_last_branch(_by_time(data))))
            return
        for each in data:
            yield from _chats(each, depth + 1)


def _branch(mapping: dict[str, Any], current: Any) -> list[Any]:
    """The messages from the root of a tree to its current node; without one, to the last child of each."""
    nodes = {key: node for key, node in mapping.items() if isinstance(node, dict)}
    if not isinstance(current, str) or current not in nodes:
        parents = {node.get("parent") for node in nodes.values() if isinstance(node.get("parent"), str)}
        leaves = [key for key in nodes if key not in parents]
        current = max(leaves, key=lambda key: _time(nodes[key].get("message")) or (0, 0.0, ""), default=None)
    path: list[Any] = []
    seen: set[str] = set()
    while isinstance(current, str) and current in nodes and current not in seen:
        seen.add(current)
        path.append(nodes[current].get("message"))
        current = nodes[current].get("parent")
    return path[::-1]


def _last_branch(messages: list[Any]) -> list[Any]:
    """Messages that name the one before them: those that lead to the last. All, where they do not."""
    own = next((key for key in _IDS if all(isinstance(each, dict) and each.get(key) for each in messages)), "")
    before = next((key for key in _PARENTS if any(key in each for each in messages)), "") if own else ""
    ids = {str(each[own]): each for each in messages} if before else {}
    linked = sum(str(each.get(before)) in ids for each in ids.values())
    if len(ids) < len(messages) or linked < len(ids) - 1:
        return messages
    path, current, seen = [], str(messages[-1][own]), set()
    while current in ids and current not in seen:
        seen.add(current)
        path.append(ids[current])
        current = str(ids[current].get(before))
    return path[::-1]


def _by_time(messages: list[Any]) -> list[Any]:
    """Messages in order of time, where each has one of the same kind."""
    times = [_time(each) for each in messages]
    if any(time is None for time in times) or len({time[0] for time in times if time}) > 1:
        return messages
    order = sorted(range(len(messages)), key=lambda at: times[at] or (0, 0.0, ""))
    return [messages[at] for at in order]


def _time(message: Any) -> tuple[int, float, str] | None:
    if not isinstance(message, dict):
        return None
    for key in _TIMES:
        value = message.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return 0, float(value), ""
        if isinstance(value, str) and value[:4].isdigit():
            return 1, 0.0, value  # ISO times sort as texts
    return None


def _messages(messages: list[Any]) -> list[Message]:
    found = []
    for each in messages[:MOST_MESSAGES]:
        role = _role(each)
        text = _text(each) if role and role[0] in ("student", "tutor") and not _hidden(each) else ""
        if role and text.strip():
            time = next((str(each[key]) for key in _TIMES if each.get(key) not in (None, "")), "")
            about = each.get("metadata")
            model = each.get("model") or (about.get("model_slug") if isinstance(about, dict) else "")
            name = model if role[0] == "tutor" and isinstance(model, str) and model else role[1]
            found.append(Message(role[0], name, text.strip(), time))
    return found


def _role(message: Any) -> tuple[str, str] | None:
    """The role of a message and the name that says it."""
    for key in _ROLES if isinstance(message, dict) else ():
        value = message.get(key)
        if isinstance(value, dict):
            value = value.get("role") or value.get("name")
        if isinstance(value, str) and (role := role_of(value)) and role != "note":
            return role, value
    return None


def _hidden(message: dict[str, Any]) -> bool:
    about, content, to = message.get("metadata"), message.get("content"), message.get("recipient")
    hidden = isinstance(about, dict) and bool(about.get("is_visually_hidden_from_conversation"))
    kind = content.get("content_type") if isinstance(content, dict) else None
    return hidden or kind in _SILENT or (isinstance(to, str) and to not in ("all", ""))


def _text(value: Any, depth: int = 0) -> str:
    """What a message says: a text, a list of parts, or parts within parts."""
    if isinstance(value, str):
        return value
    if depth > 6:
        return ""
    if isinstance(value, list):
        return "\n\n".join(filter(None, (_text(each, depth + 1) for each in value)))
    if not isinstance(value, dict) or value.get("type") in _SILENT or value.get("content_type") in _SILENT:
        return ""
    return next((found for key in _TEXTS if (found := _text(value.get(key), depth + 1)).strip()), "")
