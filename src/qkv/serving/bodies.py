"""Bodies of requests as OpenAI's clients write them: what is not understood is refused, never ignored."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import complaint
from .limits import Refused

Least1 = Annotated[int, Field(ge=1)]
B = TypeVar("B", bound=BaseModel)


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Part):
    include_usage: bool = False
    include_obfuscation: bool = False


class Body(Part):
    """What both endpoints take."""

    model: str
    max_tokens: Least1 | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Least1 | None = None  # not OpenAI's
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    # Without effect on an answer.
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class Completion(Body):
    """/v1/completions: one prompt, as text or tokens."""

    prompt: (
        str
        | Annotated[list[int], Field(min_length=1)]
        | Annotated[list[str | list[int]], Field(min_length=1, max_length=1)]
    )
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: None = None

    @property
    def only(self) -> str | list[int]:
        """The prompt."""
        first = self.prompt if isinstance(self.prompt, str) else self.prompt[0]
        return self.prompt if isinstance(first, int) else first  # type: ignore[return-value]


class Text(Part):
    type: Literal["text"]
    text: str


class Called(Part):
    name: str
    arguments: str


class Call(Part):
    id: str
    type: Literal["function"] = "function"
    function: Called


class Message(Part):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Text] | None = None
    name: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    refusal: None = None

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it: content is one text, and arguments are objects."""
        given = self.model_dump(exclude_none=True)
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())
        given |= {"content": content, "role": "system" if self.role == "developer" else self.role}
        for call in given.get("tool_calls", ()):
            try:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            except (ValueError, RecursionError):
                words = complaint("tool_calls", call["function"]["arguments"][:100], "arguments in JSON")
                raise Refused(400, "invalid_value", words, "messages") from None
        return given


class Function(Part):
    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Part):
    type: Literal["function"]
    function: Function


class Name(Part):
    name: str


class Choice(Part):
    type: Literal["function"]
    function: Name


class Schema(Part):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    name: str
    description: str | None = None
    of: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class Format(Part):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None


class Chat(Body):
    """/v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Least1 | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: Format | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | Choice | None = None
    parallel_tool_calls: bool | None = None


def read(kind: type[B], body: bytes) -> B:
    """The body of a request; Refused if it is no JSON, or not of this kind."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        # Of a union every member complains: the one that says how many, or else that got furthest.
        key = lambda each: (each["type"] in ("too_long", "too_short"), len(each["loc"]))  # noqa: E731
        found = max(error.errors(include_url=False), key=key)
    if found["type"] == "json_invalid":
        reason = str(found.get("ctx", {}).get("error", "no JSON"))[:100]
        raise Refused(400, "invalid_json", complaint("body", f"no JSON ({reason})", "a JSON object"))
    # Members of unions are named by their types.
    types = [part for part in map(str, found["loc"]) if part in ("str", "int") or part[:1].isupper() or "[" in part]
    name = ".".join(part for part in map(str, found["loc"]) if part not in types)
    given = "nothing" if found["type"] == "missing" else repr(found["input"])[:60]
    wanted = found["msg"].removeprefix("Input should be ").removeprefix("List should have ").removesuffix(" required")
    wanted = {"extra_forbidden": "no such field", "missing": "a value"}.get(found["type"], wanted)
    raise Refused(400, "invalid_value", complaint(name or "body", given, wanted), name or None)
