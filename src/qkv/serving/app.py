"""The server as an ASGI app: OpenAI's endpoints, the figures and the token."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio.to_thread
import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import OptionError, QkvError, complaint
from ..runtime import Constraint, Model, Row
from ..runtime.chat import ChatTemplate, ToolCall, call_grammar, read_tool_calls
from ..web.guard import Guard
from .answers import Form, TokenTexts, sse
from .bodies import Body, Chat, Choice, Completion, read
from .engine import Engine, Event, Job
from .limits import Limits, Refused

_SHORT = 16  # tokens of a completion that does not say how many it wants, as at OpenAI's
_CALL = "<tool_call>"


@dataclass
class Asked:
    """A request that waits for its answer."""

    body: Body
    job: Job
    form: Form
    names: list[str]  # functions that the answer may call
    events: asyncio.Queue[Event | None] = field(default_factory=asyncio.Queue)
    text: str = ""
    shown: int = 0  # characters of it that a stream has sent
    sent: int = 0  # tokens whose log-probabilities a stream has sent

    def add(self, text: str) -> str:
        """Take text; returns what a stream may send of it: nothing that may be a call."""
        self.text += text
        sure = len(self.text)
        if self.names:
            begun = self.text.lstrip()[:1]
            at = self.text.find(_CALL)
            parts = max((n for n in range(1, len(_CALL)) if self.text.endswith(_CALL[:n])), default=0)
            sure = self.shown if not begun or begun in "{[`" else at if at >= 0 else sure - parts
        piece, self.shown = self.text[self.shown : sure], max(sure, self.shown)
        return piece

    def end(self) -> tuple[str, list[ToolCall]]:
        """The text, and the calls in it."""
        return read_tool_calls(self.text, self.names) if self.names else (self.text, [])

    def places(self, tokens: int) -> range:
        """The tokens that belong to the text: all but the one that ends it."""
        found, ends = self.job.row.found, self.job.row.ends
        return range(self.sent, tokens - (tokens > 0 and found.tokens[tokens - 1] in ends))

    @property
    def usage(self) -> dict[str, Any]:
        prompt, new = len(self.job.tokens), len(self.job.row.found.tokens)
        counts = {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
        return counts | {"prompt_tokens_details": {"cached_tokens": self.job.cached}}


class Server:
    """What the routes share.

    Args:
        model: The model.
        name: What requests call it.
        template: Its chat template; None if it has none.
        limits: See `Limits`.
        hosts: The names under which the server may be called.
        token: What requests must bring; None if they need none.
    """

    def __init__(
        self, model: Model, name: str, template: ChatTemplate | None, limits: Limits, hosts: set[str], token: str | None
    ) -> None:
        self.model, self.name, self.template, self.limits = model, name, template, limits
        self.context = min(limits.context or model.context, model.context)
        self.texts = TokenTexts(model.tokenizer, model.vocabulary)
        self.engine = Engine(model, limits, self._deliver)
        self.started = int(time.time())
        routes = [
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.one_model),
            Route("/v1/completions", self.completion, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]
        app = Starlette(
            routes=routes, lifespan=self.lifespan, exception_handlers={HTTPException: _told, Refused: _told}
        )
        app.router.redirect_slashes = False
        caps: dict[str, Any] = {"body": limits.body, "seconds": limits.body_seconds, "refuse": _refusal}
        self.guard = Guard(app, "server", **caps, hosts=hosts)
        self.app: ASGIApp = self.guard if token is None else _Authorized(self.guard, token)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            self.engine.close()
            if self.template is not None:
                self.template.close()

    def _deliver(self, events: list[tuple[Job, Event]]) -> None:
        """From the engine's thread to that of the answers."""
        self._loop.call_soon_threadsafe(lambda: [job.hear(event) for job, event in events])

    def end(self) -> None:
        """The server is told to end: it takes no more, and answers under way have their grace."""
        self.guard.end()
        self.engine.end()

    async def health(self, request: Request) -> Response:
        is_running = self.engine.is_running
        return JSONResponse({"status": "ok" if is_running else "ending"}, 200 if is_running else 503)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def one_model(self, request: Request) -> Response:
        self._check_name(request.path_params["name"])
        return JSONResponse(self._model())

    async def metrics(self, request: Request) -> Response:
        # The size of a cache waits for the step that is running.
        return PlainTextResponse(await anyio.to_thread.run_sync(self._metrics), media_type="text/plain; version=0.0.4")

    async def completion(self, request: Request) -> Response:
        return await self._answered(request, await _body(request, Completion), self._completion)

    async def chat(self, request: Request) -> Response:
        return await self._answered(request, await _body(request, Chat), self._chat)

    async def _answered(self, request: Request, body: Any, prepare: Callable[[Any], Asked]) -> Response:
        self._check_name(body.model)
        asked = await anyio.to_thread.run_sync(prepare, body)
        asked.job.hear = asked.events.put_nowait
        self.engine.submit(asked.job)
        leaving = asyncio.create_task(_gone(request))
        leaving.add_done_callback(lambda task: None if task.cancelled() else asked.events.put_nowait(None))
        streaming = False
        try:
            # The status of a stream waits for its first token too: what fails before is an error.
            while True:
                event = await asked.events.get()
                if event is None:
                    return Response(status_code=499)  # the client has gone
                if event.error is not None:
                    raise event.error
                if streaming := bool(body.stream):
                    return Stream(self._stream(asked, event), lambda: self.engine.leave(asked.job))
                if event.last:
                    break
        finally:
            leaving.cancel()
            if not streaming:
                self.engine.leave(asked.job)
        found = asked.job.row.found
        asked.text = found.text
        text, calls = asked.end()
        return JSONResponse(asked.form.whole(found, asked.places(len(found.tokens)), text, calls, asked.usage))

    async def _stream(self, asked: Asked, event: Event | None) -> AsyncIterator[bytes]:
        """Server-sent events from the first event on; what arrives together is sent together."""
        found, form = asked.job.row.found, asked.form
        said = [form.first()] if form.chat else []
        first, texts = event, []
        while event is not None:
            if event.error is not None:
                yield sse(event.error.as_dict())
                return
            texts.append(asked.add(event.text))
            if event.last or asked.events.empty() or event is first:
                text, calls = "".join(texts), []
                if event.last:
                    whole, calls = asked.end()
                    text += "" if calls and not whole else whole[asked.shown :]
                places = asked.places(event.tokens)
                if text or (form.texts is not None and places):
                    said.append(form.piece(found, places, text))
                    asked.sent = places.stop
                if event.last:
                    said += form.last(found, calls)
                    said += [form.usage(asked.usage)] if asked.body.with_usage else []
                yield b"".join([*map(sse, said), sse("[DONE]") if event.last else b""])
                if event.last:
                    return
                said, texts = [], []
            event = await asked.events.get()

    def _completion(self, body: Completion) -> Asked:
        with _words():
            tokens = self.model.tokenizer.encode(body.only) if isinstance(body.only, str) else body.only
            if not tokens or not all(0 <= token < self.model.vocabulary for token in tokens):
                wanted = f"at least one token, of those from 0 to {self.model.vocabulary - 1}"
                raise OptionError(complaint("prompt", repr(body.only)[:60], wanted))
            return self._asked(body, tokens, body.max_tokens or _SHORT, body.logprobs)

    def _chat(self, body: Chat) -> Asked:
        with _words():
            if self.template is None:
                hint = "/v1/completions needs none"
                raise OptionError(complaint("messages", "a model without a chat template", "one with it", hint))
            if body.top_logprobs and not body.logprobs:
                raise OptionError(complaint("top_logprobs", body.top_logprobs, "logprobs: true"))
            named = body.tool_choice.function.name if isinstance(body.tool_choice, Choice) else None
            tools = [] if body.tool_choice == "none" else body.tools or []
            if body.tool_choice not in (None, "none") and not tools:
                raise OptionError(complaint("tool_choice", body.tool_choice, "tools"))
            if tools and not self.template.takes_tools:
                raise OptionError(complaint("tools", "a chat template without tools", "one that has a place for them"))
            offered = [tool for tool in tools if named in (None, tool.function.name)]
            if tools and not offered:
                raise OptionError(complaint("tool_choice", repr(named)[:60], "the name of one of the tools"))
            with _words("response_format"):
                constraint = _constraint(body)
            if named is not None or body.tool_choice == "required":
                if constraint is not None:
                    raise OptionError(complaint("response_format", "a tool that must be called", "one of the two"))
                with _words("tools"):
                    constraint = Constraint(grammar=call_grammar(tool.function.model_dump() for tool in offered))
            given = [tool.model_dump(exclude_none=True) for tool in tools] or None
            text = self.template.render([message.for_template() for message in body.messages], given)
            tokens = self.model.tokenizer.encode(text, bare=True)
            new, names = body.max_completion_tokens or body.max_tokens, [tool.function.name for tool in offered]
            logprobs = (body.top_logprobs or 0) if body.logprobs else None
            return self._asked(body, tokens, new, logprobs, constraint, names)

    def _asked(
        self,
        body: Body,
        tokens: list[int],
        new: int | None,
        logprobs: int | None,
        constraint: Any = None,
        names: Any = (),
    ) -> Asked:
        most = self.context - len(tokens)
        if (new or 1) > most:
            given = f"{new or 1} after a prompt of {len(tokens)} tokens"
            words = complaint("max_tokens", given, f"at most {self.context} together, the context")
            raise Refused(400, "context_length_exceeded", words, "messages" if isinstance(body, Chat) else "prompt")
        generator = torch.Generator()
        generator.manual_seed(body.seed) if body.seed is not None else generator.seed()
        choice = {"temperature": 1.0 if body.temperature is None else body.temperature, "generator": generator}
        choice |= {"top_k": body.top_k, "top_p": body.top_p, "stop": body.stops}
        row = Row(self.model, new or most, **choice, logprobs=logprobs or 0, constraint=constraint)
        form = Form(self.name, isinstance(body, Chat), None if logprobs is None else self.texts)
        job = Job(tokens, row, told=bool(body.stream))
        return Asked(body, job, form, list(names))

    def _model(self) -> dict[str, Any]:
        return {"id": self.name, "object": "model", "created": self.started, "owned_by": "qkv"}

    def _check_name(self, given: str) -> None:
        if given != self.name:
            raise Refused(404, "model_not_found", complaint("model", repr(given)[:60], repr(self.name)), "model")

    def _metrics(self) -> str:
        engine, figures, cache = self.engine, self.engine.figures, self.engine.cache
        totals = {f'requests_total{{outcome="{name}"}}': n for name, n in figures.outcomes.items()}
        totals |= {"prompt_tokens_total": figures.prompt_tokens, "cached_prompt_tokens_total": figures.cached_tokens}
        totals |= {"new_tokens_total": figures.new_tokens, "steps_total": figures.steps}
        totals["steps_with_prompt_total"] = figures.steps_with_prompt
        now = {"running_rows": len(engine.running), "waiting_requests": len(engine.waiting) + len(engine.filling)}
        now |= {"prefixes": len(engine.prefixes), 'cache_bytes{of="rows"}': 0 if cache is None else cache.nbytes}
        now |= {'cache_bytes{of="prefixes"}': engine.prefixes.nbytes}
        totals["prefix_hits_total"] = engine.prefixes.hits
        lines: dict[str, None] = {}  # of each name the type comes once, first
        for kind, values in (("counter", totals), ("gauge", now)):
            for name, value in values.items():
                lines[f"# TYPE qkv_{name.partition('{')[0]} {kind}"] = None
                lines[f"qkv_{name} {value}"] = None
        return "\n".join([*lines, ""])


class Stream(StreamingResponse):
    """Server-sent events; `leave` is called at their end, also if the client goes before the first one."""

    def __init__(self, events: AsyncIterator[bytes], leave: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self.leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.leave()


class _Authorized:
    """Refuses requests without the token before anything of them is read."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.wanted = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            if len(given) != 1 or not hmac.compare_digest(given[0], self.wanted):
                words = complaint("authorization", "no bearer token, or a wrong one", "the one of --token-file")
                answer = _json(Refused(401, "invalid_api_key", words))
                answer.headers["www-authenticate"] = "Bearer"
                await answer(scope, receive, send)
                return
        await self.app(scope, receive, send)


@contextlib.contextmanager
def _words(param: str | None = None) -> Any:
    """Errors of the library are those of the request, about `param` or what they name."""
    try:
        yield
    except QkvError as error:
        raise Refused(400, "invalid_value", str(error), param or str(error).partition(":")[0]) from error


def _constraint(body: Chat) -> Constraint | None:
    asked = body.response_format
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return Constraint(json=True)
    if asked.json_schema is None:
        raise OptionError(complaint("response_format.json_schema", "nothing", "a name and a schema"))
    return Constraint(schema=asked.json_schema.of)


async def _body(request: Request, kind: Any) -> Any:
    said = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if said != "application/json":
        raise Refused(415, "invalid_content_type", complaint("content-type", repr(said)[:60], "application/json"))
    return read(kind, await request.body())


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(refused: Refused) -> JSONResponse:
    return JSONResponse(refused.as_dict(), refused.status, refused.headers)


def _refusal(scope: Scope, status: int, words: str) -> Response:
    return _json(Refused(status, "refused", words))


async def _told(request: Request, error: Exception) -> Response:
    """What was refused; or an address that is not there, or not asked in that way."""
    if isinstance(error, HTTPException):
        words = f"{request.method} {request.url.path[:60]}: {error.detail}"
        error = Refused(error.status_code, "not_found", words)
    assert isinstance(error, Refused)
    return _json(error)
