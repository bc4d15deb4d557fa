"""Inspect's provider `qkv/PATH`: a model of a file on this machine, run by `qkv.runtime`.

Imports are absolute: Inspect also loads the task, which imports this file, by its path.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolCall, ToolChoice, ToolInfo

from qkv.errors import OptionError, complaint

MOST_BYTES = 1 << 31  # of keys and values of prompts that are kept
MOST_TOKENS = 2048  # of an answer, where nothing else is said


@modelapi(name="qkv")
class LocalModel(ModelAPI):
    """A model of a file; the options of -M are those of `qkv.runtime.load`.

    Args:
        model_name: The file or folder.
        activations: "int8" is faster, "float32" exact.
        threads: Threads of a step; torch's number if None.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        activations: str = "int8",
        threads: int | None = None,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        from qkv.runtime import load
        from qkv.runtime.chat import ChatTemplate
        from qkv.runtime.prefixes import Prefixes

        self.template = ChatTemplate(model_name)
        self.model = load(model_name, activations=activations, threads=threads)
        # What all prompts begin with, such as the reader's instructions, runs once; see `Prefixes`.
        self.prefixes = Prefixes(self.model, MOST_BYTES)
        self._lock, self._one = threading.Lock(), CapacityLimiter(1)

    async def generate(
        self,
        input: list[ChatMessage],  # noqa: A002 - Inspect's name
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        ended = threading.Event()
        try:
            words = (input, tools if tool_choice != "none" else [], config, ended)
            return await run_sync(self._answer, *words, abandon_on_cancel=True, limiter=self._one)
        finally:
            ended.set()  # the thread of an answer that is not awaited any more comes to its end

    def max_connections(self) -> int:
        return 1

    def max_tokens(self) -> int:
        return MOST_TOKENS

    async def count_text_tokens(self, text: str) -> int:
        return len(self.model.tokenizer.encode(text, bare=True))

    def _answer(
        self, messages: list[ChatMessage], tools: list[ToolInfo], config: GenerateConfig, ended: threading.Event
    ) -> ModelOutput:
        from qkv.runtime import Constraint
        from qkv.runtime.chat import read_tool_calls

        if tools and not self.template.takes_tools:
            raise OptionError(complaint("tools", f"{len(tools)} of them", "none", "the template has no place for them"))
        with self._lock:
            start, model = time.perf_counter(), self.model
            text = self.template.render([_plain(each) for each in messages], [_offered(each) for each in tools])
            tokens = model.tokenizer.encode(text, bare=True)
            space = model.context - len(tokens) + 1
            if space < 1:
                return ModelOutput.from_content(self.model_name, "", stop_reason="model_length")
            cache, known = self.prefixes.start(tokens)
            schema = config.response_schema and config.response_schema.json_schema.model_dump(exclude_none=True)
            found = model.generate(
                tokens[known:],
                min(config.max_tokens or MOST_TOKENS, space),
                temperature=config.temperature or 0.0,
                top_k=config.top_k,
                top_p=config.top_p,
                seed=config.seed,
                stop=config.stop_seqs or (),
                constraint=None if schema is None else Constraint(schema=schema),
                on_token=lambda *_: not ended.is_set(),
                cache=cache,
            )
            self.prefixes.keep([*tokens, *found.tokens][: cache.length], cache)
        said = found.text if config.stop_seqs else model.tokenizer.decode(found.tokens)
        said, calls = read_tool_calls(said, [tool.name for tool in tools]) if tools else (said, [])
        called = [ToolCall(f"call-{at}", each.name, each.arguments) for at, each in enumerate(calls)]
        reason = "tool_calls" if called else "stop" if found.finish == "stop" else "max_tokens"
        reason = "model_length" if reason == "max_tokens" and len(found.tokens) == space else reason
        message = ChatMessageAssistant(
            content=said, tool_calls=called or None, model=self.model_name, source="generate"
        )
        usage = ModelUsage(
            input_tokens=len(tokens) - known,
            input_tokens_cache_read=known,
            output_tokens=len(found.tokens),
            total_tokens=len(tokens) + len(found.tokens),
        )
        choice = ChatCompletionChoice(message=message, stop_reason=reason)
        return ModelOutput(model=self.model_name, choices=[choice], usage=usage, time=time.perf_counter() - start)


def _plain(message: ChatMessage) -> dict[str, Any]:
    """A message as a chat template takes it."""
    found: dict[str, Any] = {"role": message.role, "content": message.text}
    if isinstance(message, ChatMessageTool) and message.error is not None:
        found["content"] = f"error: {message.error.message}"
    if isinstance(message, ChatMessageAssistant) and message.tool_calls:
        functions = [{"name": each.function, "arguments": each.arguments} for each in message.tool_calls]
        found["tool_calls"] = [{"type": "function", "function": each} for each in functions]
    return found


def _offered(tool: ToolInfo) -> dict[str, Any]:
    """A tool as a chat template takes it."""
    parameters = json.loads(tool.parameters.model_dump_json(exclude_none=True))
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}
