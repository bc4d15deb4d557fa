"""Answers in OpenAI's form, whole and in pieces."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..runtime import Generated
from ..runtime.chat import ToolCall
from ..runtime.tokenizer import TextTokenizer


def sse(data: dict[str, Any] | str) -> bytes:
    """An event of a stream."""
    return f"data: {data if isinstance(data, str) else json.dumps(data, separators=(',', ':'))}\n\n".encode()


class TokenTexts:
    """The text and the bytes of each token, for log-probabilities."""

    def __init__(self, tokenizer: TextTokenizer, vocabulary: int) -> None:
        self._bytes, _ = tokenizer.token_bytes(vocabulary)

    def entry(self, token: int, logprob: float) -> dict[str, Any]:
        own = self._bytes[token]
        return {"token": own.decode("utf-8", "replace"), "logprob": max(logprob, -9999.0), "bytes": list(own)}

    def chat(self, found: Generated, places: range) -> dict[str, Any]:
        """`logprobs` of a chat."""
        content = []
        for at in places:
            top = [self.entry(*each) for each in found.top[at].items()] if found.top else []
            content.append(self.entry(found.tokens[at], found.logprobs[at]) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def completion(self, found: Generated, places: range, offset: int) -> dict[str, Any]:
        """`logprobs` of a completion whose text begins at `offset`."""
        entries = [self.entry(found.tokens[at], found.logprobs[at]) for at in places]
        offsets = []
        for each in entries:
            offsets.append(offset)
            offset += len(each["token"])
        top = [[self.entry(*each) for each in found.top[at].items()] for at in places] if found.top else []
        return {
            "tokens": [each["token"] for each in entries],
            "token_logprobs": [each["logprob"] for each in entries],
            "top_logprobs": [{each["token"]: each["logprob"] for each in step} for step in top] or None,
            "text_offset": offsets,
        }


@dataclass
class Form:
    """The form of one answer: of a chat or of a completion."""

    model: str
    chat: bool
    texts: TokenTexts | None = None  # if log-probabilities are wanted
    offset: int = 0  # characters of the tokens that were sent

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self.created = int(time.time())

    def whole(
        self, found: Generated, places: range, text: str, calls: Sequence[ToolCall], usage: dict[str, Any]
    ) -> dict[str, Any]:
        reason = "tool_calls" if calls else found.finish
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": self.logprobs(found, places)}
        if self.chat:
            message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
            choice["message"] = message | ({"tool_calls": _called(calls)} if calls else {})
        else:
            choice["text"] = text
        return self._head("") | {"choices": [choice], "usage": usage}

    def first(self) -> dict[str, Any]:
        """What a stream of a chat begins with."""
        return self._piece({"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None})

    def piece(self, found: Generated, places: range, text: str) -> dict[str, Any]:
        own = {"delta": {"content": text}} if self.chat else {"text": text}
        return self._piece(own | {"logprobs": self.logprobs(found, places), "finish_reason": None})

    def last(self, found: Generated, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
        """The calls, and why it ended."""
        pieces = []
        if calls:
            numbered = [{"index": at} | each for at, each in enumerate(_called(calls))]
            pieces.append(self._piece({"delta": {"tool_calls": numbered}, "logprobs": None, "finish_reason": None}))
        own: dict[str, Any] = {"delta": {}} if self.chat else {"text": ""}
        reason = "tool_calls" if calls else found.finish
        return [*pieces, self._piece(own | {"logprobs": None, "finish_reason": reason})]

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """What a stream ends with, if it was asked for."""
        return self._head(".chunk") | {"choices": [], "usage": usage}

    def logprobs(self, found: Generated, places: range) -> dict[str, Any] | None:
        if self.texts is None:
            return None
        if self.chat:
            return self.texts.chat(found, places)
        said = self.texts.completion(found, places, self.offset)
        self.offset += sum(map(len, said["tokens"]))
        return said

    def _piece(self, choice: dict[str, Any]) -> dict[str, Any]:
        return self._head(".chunk") | {"choices": [{"index": 0} | choice]}

    def _head(self, kind: str) -> dict[str, Any]:
        name = f"chat.completion{kind}" if self.chat else "text_completion"
        return {"id": self.id, "object": name, "created": self.created, "model": self.model}


def _called(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for call in calls
    ]
