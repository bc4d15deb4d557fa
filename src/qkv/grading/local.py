"""Inspect's provider `qkv/PATH`: a model of a file on this machine, run by `qkv.runtime`.

Imports are absolute: Inspect also loads the task, which imports this file, by its path.
"""

from __future__ import annotations

import json
import math
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from qkv.serving.engine import Job

MOST_BYTES = 1 << 31  # of keys and values of prompts that are kept
MOST_TOKENS = 2048  # of an answer, where nothing else is said


@modelapi(name="qkv")
class LocalModel(ModelAPI):
    """A model of a file; activations and threads of -M are those of `qkv.runtime.load`.

    Args:
        model_name: The file or folder.
        activations: "int8" is faster, "float32" exact.
        threads: Threads of a step; torch's number if None.
        rows: How many answers run together; more are faster, and up to three have the bits of `Model.generate`.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        activations: str = "int8",
        threads: int | None = None,
        rows: int = 1,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        from qkv.inputs import check_size
        from qkv.runtime import load
        from qkv.runtime.chat import ChatTemplate
        from qkv.serving.engine import Engine
        from qkv.serving.limits import Limits

        self.rows = check_size("rows", rows)
        self.template = ChatTemplate(model_name)
        self.model = load(model_name, activations=activations, threads=threads)
        # What all prompts begin with, such as the reader's instructions, runs once.
        self.engine = Engine(self.model, Limits(rows=rows, cache_bytes=MOST_BYTES, seconds=math.inf))
        self._threads = CapacityLimiter(rows)

    async def generate(
        self,
        input: list[ChatMessage],  # noqa: A002 - Inspect's name
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        start, offered = time.perf_counter(), [] if tool_choice == "none" else tools
        job = await run_sync(self._job, input, offered, tool_choice, config)
        if job is None:
            return ModelOutput.from_content(self.model_name, "", stop_reason="model_length")
        heard = SimpleQueue[Any]()
        job.hear = heard.put
        self.engine.submit(job)
        try:
            event = await run_sync(heard.get, abandon_on_cancel=True, limiter=self._threads)
        finally:  # also if the answer is not awaited any more
            self.engine.leave(job)
            heard.put(None)
        if event.error is not None:
            raise OptionError(str(event.error))
        return self._output(job, [tool.name for tool in offered], time.perf_counter() - start)

    def max_connections(self) -> int:
        return self.rows

    def max_tokens(self) -> int:
        return MOST_TOKENS

    async def aclose(self) -> None:
        self.engine.close()
        self.template.close()

    def _job(
        self, messages: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> Job | None:
        """What the engine runs; None if the prompt fills the context."""
        import torch

        from qkv.runtime import Constraint, Row
        from qkv.runtime.chat import call_grammar
        from qkv.serving.engine import Job

        if tools and not self.template.takes_tools:
            raise OptionError(complaint("tools", f"{len(tools)} of them", "none", "the template has no place for them"))
        functions = [_function(each) for each in tools]
        offered = [{"type": "function", "function": each} for each in functions]
        text = self.template.render([_plain(each) for each in messages], offered)
        tokens = self.model.tokenizer.encode(text, bare=True)
        space = self.model.context - len(tokens) + 1
        if space < 1:
            return None
        schema = config.response_schema and config.response_schema.json_schema.model_dump(exclude_none=True)
        constraint = None if schema is None else Constraint(schema=schema)
        if tools and tool_choice not in ("auto", "none"):
            named = None if tool_choice == "any" else tool_choice.name
            wanted = [each for each in functions if named in (None, each["name"])]
            constraint = Constraint(grammar=call_grammar(wanted))
        choice: dict[str, Any] = {
            "top_k": config.top_k,
            "top_p": config.top_p,
            "temperature": config.temperature or 0.0,
        }
        choice |= {"generator": None if config.seed is None else torch.Generator().manual_seed(config.seed)}
        choice |= {"stop": config.stop_seqs or (), "constraint": constraint}
        row = Row(self.model, min(config.max_tokens or MOST_TOKENS, space), **choice)
        return Job(tokens, row, told=False)

    def _output(self, job: Job, names: list[str], seconds: float) -> ModelOutput:
        from qkv.runtime.chat import read_tool_calls

        found, prompt = job.row.found, len(job.tokens)
        said, calls = read_tool_calls(found.text, names) if names else (found.text, [])
        called = [ToolCall(f"call-{at}", each.name, each.arguments) for at, each in enumerate(calls)]
        full = prompt + len(found.tokens) > self.model.context
        reason = "tool_calls" if called else "stop" if found.finish == "stop" else "max_tokens"
        reason = "model_length" if reason == "max_tokens" and full else reason
        message = ChatMessageAssistant(
            content=said, tool_calls=called or None, model=self.model_name, source="generate"
        )
        counts = {"input_tokens": prompt - job.cached, "input_tokens_cache_read": job.cached}
        counts |= {"output_tokens": len(found.tokens), "total_tokens": prompt + len(found.tokens)}
        choice = ChatCompletionChoice(message=message, stop_reason=reason)
        return ModelOutput(model=self.model_name, choices=[choice], usage=ModelUsage(**counts), time=seconds)


def _plain(message: ChatMessage) -> dict[str, Any]:
    """A message as a chat template takes it."""
    found: dict[str, Any] = {"role": message.role, "content": message.text}
    if isinstance(message, ChatMessageTool) and message.error is not None:
        found["content"] = f"error: {message.error.message}"
    if isinstance(message, ChatMessageAssistant) and message.tool_calls:
        functions = [{"name": each.function, "arguments": each.arguments} for each in message.tool_calls]
        found["tool_calls"] = [{"type": "function", "function": each} for each in functions]
    return found


def _function(tool: ToolInfo) -> dict[str, Any]:
    """A tool as a chat template and `call_grammar` take it."""
    parameters = json.loads(tool.parameters.model_dump_json(exclude_none=True))
    return {"name": tool.name, "description": tool.description, "parameters": parameters}
