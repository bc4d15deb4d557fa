"""The lab as an ASGI app: pages, parts of pages, the API and files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from ..web.guard import LOOPBACK
from . import api
from .fields import WrongField, from_json, shortened, typed
from .guard import Busy, Limits, guarded
from .markup import STATIC
from .pages import figure_style, message, page
from .saved import one_file
from .scheduler import Broken, Scheduler
from .view import Cancelled, View
from .views import NAMES, view
from .worker import Answer

_BROKEN = "something went wrong here that should not have; the server's output says what"
_WORDS = {404: "there is nothing at this address", 405: "this address cannot be asked in that way"}
_BUSY = "the lab is computing for others; try again in a moment"


def make_app(limits: Limits | None = None, hosts: Iterable[str] = LOOPBACK, embed: str | None = None) -> ASGIApp:
    """The app behind its guard. embed: the origin whose pages may show it in a frame."""
    return Lab(limits or Limits(), hosts, embed).app


class Packed:
    """Compresses whole answers, and lets the lines of a part pass as they come."""

    def __init__(self, app: ASGIApp) -> None:
        self.app, self.packing = app, GZipMiddleware(app, minimum_size=2000, compresslevel=4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lines = scope["type"] != "http" or scope["path"].startswith("/part")
        await (self.app if lines else self.packing)(scope, receive, send)


class Files(StaticFiles):
    """Fonts never change under one name; the rest is asked for again and mostly unchanged."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        keep = "max-age=31536000, immutable" if scope["path"].endswith(".woff2") else "no-cache"

        async def with_age(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"cache-control", keep.encode())]
            await send(message)

        await super().__call__(scope, receive, with_age)


class Lab:
    """What the routes share."""

    def __init__(self, limits: Limits, hosts: Iterable[str] = LOOPBACK, embed: str | None = None) -> None:
        self.limits = limits
        self.warm = False
        self._asked: set[asyncio.Task[Answer]] = set()
        routes = [
            Route("/api", self.listing),
            Route("/api/openapi.json", self.openapi),
            Route("/figures.css", self.figure_style),
            *(route for name in NAMES for route in self.routes(view(name))),
            Mount("/static", Files(directory=STATIC, follow_symlink=False)),
        ]
        app = Starlette(
            routes=routes,
            lifespan=self.lifespan,
            exception_handlers={HTTPException: _told, Exception: _fell},
        )
        app.router.redirect_slashes = False
        self.app = guarded(Packed(app), limits, hosts, embed)

    def end(self) -> None:
        """The server is told to end: so is everything that it waits for."""
        self.app.end()
        for work in self._asked:
            work.cancel()

    def routes(self, shown: View) -> list[Route]:
        def of(handle: Callable[[View, Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
            async def handled(request: Request) -> Response:
                return await handle(shown, request)

            return handled

        return [
            *([Route("/", of(self.page))] if shown.name == NAMES[0] else []),
            Route(f"/{shown.name}", of(self.page)),
            Route(f"/part/{shown.name}", of(self.part), methods=["POST"]),
            Route(f"/api/{shown.name}", of(self.api), methods=["GET", "POST"]),
            Route(f"/save/{shown.name}", of(self.save), methods=["GET", "POST"]),
        ]

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.scheduler = Scheduler(self.limits)
        # A daemon: an end of the server does not wait for it.
        threading.Thread(target=self._warm_up, daemon=True).start()
        try:
            yield
        finally:
            await self.scheduler.close()

    def _warm_up(self) -> None:
        """torch takes two seconds to load: pages are shown meanwhile, and their numbers follow."""
        _load()
        self.warm = True

    async def listing(self, request: Request) -> Response:
        return JSONResponse(api.listing())

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(api.openapi())

    async def figure_style(self, request: Request) -> Response:
        return Response(figure_style(), media_type="text/css", headers={"cache-control": "no-cache"})

    async def page(self, shown: View, request: Request) -> Response:
        """With the numbers where they come quickly; otherwise they follow, with progress."""
        given = dict(request.query_params)
        wait = given.pop("wait", "") == "yes"  # asked for by readers without a script
        asked = typed(shown.fields, given)
        found = Answer(asked.texts, asked.problems)
        pending = asked.state is not None and not wait and (not self.warm or shown.is_heavy(asked.state))
        if asked.state is not None and not pending:
            found = await self._found(request, shown, asked.texts, draw=True)
        return HTMLResponse(page(shown, found, pending=pending))

    async def part(self, shown: View, request: Request) -> Response:
        """Lines of JSON: {"told": [what, done, of]} while it lasts, then the region or the problems."""
        given = await _given(request, shown)

        # In a stream, so that each line arrives when it is said; the last one can be long.
        packer = zlib.compressobj(1, wbits=31) if "gzip" in request.headers.get("accept-encoding", "") else None

        async def lines() -> AsyncIterator[bytes]:
            async for event in self._events(request, shown, given, draw=True):
                line = json.dumps(event if isinstance(event, dict) else _part(shown, event)).encode() + b"\n"
                yield line if packer is None else packer.compress(line) + packer.flush(zlib.Z_SYNC_FLUSH)
            if packer is not None:
                yield packer.flush()

        headers = {} if packer is None else {"content-encoding": "gzip", "vary": "accept-encoding"}
        return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)

    async def api(self, shown: View, request: Request) -> Response:
        given = dict(request.query_params) if request.method in ("GET", "HEAD") else await _given(request, shown)
        found = await self._found(request, shown, given, draw=False)
        if found.problems:
            return JSONResponse({"problems": dict(found.problems)}, 422)
        return JSONResponse({"state": dict(found.texts), "result": found.result, "python": found.python})

    async def save(self, shown: View, request: Request) -> Response:
        given = dict(request.query_params) if request.method in ("GET", "HEAD") else await _given(request, shown)
        found = await self._found(request, shown, given, draw=True)
        if found.problems:
            words = " ".join(found.problems.values())
            return HTMLResponse(message("Nothing to save", words), 422)
        headers = {"content-disposition": f'attachment; filename="qkv-{shown.name}.html"'}
        return HTMLResponse(one_file(shown, found), headers=headers)

    async def _found(self, request: Request, shown: View, given: Mapping[str, str], *, draw: bool) -> Answer:
        async for event in self._events(request, shown, given, draw=draw):
            if isinstance(event, Answer):
                return event
            if "refused" in event:
                raise HTTPException(503, event["refused"], {"retry-after": "2"})
            if "broken" in event:
                raise HTTPException(500, event["broken"])
        raise HTTPException(503, _BUSY)

    async def _events(
        self, request: Request, shown: View, given: Mapping[str, str], *, draw: bool
    ) -> AsyncIterator[Answer | dict[str, Any]]:
        """Progress, then the answer. A reader who goes away takes the work along."""
        asked = typed(shown.fields, given)
        if asked.state is None:
            yield Answer(asked.texts, asked.problems)
            return
        told: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        heavy = shown.is_heavy(asked.state)
        work = asyncio.create_task(
            self.scheduler.ask(
                shown,
                asked.texts,
                lambda what, done, of: told.put_nowait({"told": [what, done, of]}),
                draw=draw,
                heavy=heavy,
            )
        )
        self._asked.add(work)
        work.add_done_callback(lambda _: told.put_nowait(None))
        work.add_done_callback(self._asked.discard)
        leaving = asyncio.create_task(_gone(request))
        leaving.add_done_callback(lambda _: work.cancel())
        try:
            while (event := await told.get()) is not None:
                yield event
            yield _outcome(work)
        finally:
            leaving.cancel()
            work.cancel()


def _outcome(work: asyncio.Task[Answer]) -> Answer | dict[str, Any]:
    try:
        return work.result()
    except Busy:
        return {"refused": _BUSY}
    except (Cancelled, asyncio.CancelledError) as reason:
        return {"refused": str(reason) or "stopped"}
    except Broken as reason:
        print(f"qkv lab: {reason}", file=sys.stderr)
        return {"broken": _BROKEN}
    except Exception:
        import traceback

        traceback.print_exc()
        return {"broken": _BROKEN}


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _part(shown: View, found: Answer) -> dict[str, Any]:
    if found.problems:
        return {"problems": dict(found.problems)}
    return {"html": found.html, "python": found.python, "query": urlencode(shortened(shown.fields, found.texts))}


async def _given(request: Request, shown: View) -> dict[str, str]:
    """The fields of a JSON body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "the body must be JSON, and say so: content-type: application/json")
    try:
        body = json.loads(await request.body(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is no JSON object") from None
    try:
        return from_json(shown.fields, body)
    except WrongField as error:
        raise _Wrong(error) from None


class _Wrong(HTTPException):
    """A field of a body that cannot be used."""

    def __init__(self, error: WrongField) -> None:
        super().__init__(422, str(error))
        self.problems = {error.field: str(error)}


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _phrase(error: HTTPException) -> str:
    return HTTPStatus(error.status_code).phrase


async def _told(request: Request, error: Exception) -> Response:
    """A refusal in words: JSON for programs, a page for people."""
    assert isinstance(error, HTTPException)
    words = _WORDS.get(error.status_code, error.detail) if error.detail == _phrase(error) else error.detail
    headers = dict(error.headers or {})
    if request.url.path.startswith(("/api", "/part")):
        problems = error.problems if isinstance(error, _Wrong) else {"": words}
        return JSONResponse({"problems": problems}, error.status_code, headers)
    return HTMLResponse(message(f"{error.status_code}", words), error.status_code, headers)


async def _fell(request: Request, error: Exception) -> Response:
    if request.url.path.startswith(("/api", "/part")):
        return JSONResponse({"problems": {"": _BROKEN}}, 500)
    return HTMLResponse(message("500", _BROKEN), 500)


def _load() -> None:
    """What the first numbers need, and the first numbers themselves."""
    import torch

    from .view import Work
    from .worker import answer

    # Many readers, few cores: each question gets one.
    torch.set_num_threads(1)
    first = view(NAMES[0])
    answer(first, {}, Work(), draw=True)
