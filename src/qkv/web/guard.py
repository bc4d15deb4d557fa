"""What a server on this machine refuses before its app hears of a request: foreign names and origins, large and slow
bodies."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
READING = ("GET", "HEAD")


class Guard:
    """ASGI around the app.

    Args:
        app: What answers the requests that are let through, with their whole body.
        name: What messages call the server.
        body: Bytes of a request's body, at most.
        seconds: In which it must arrive.
        refuse: (scope, status, words) to the answer that refuses a request.
        hosts: The names under which it may be called; "*" stands for every address in figures, which no foreign name
            server can give to a page.
        no_pages: Beginnings of paths that another site may not even link to.
        headers: Those of every answer that does not set them itself.
    """

    def __init__(
        self,
        app: ASGIApp,
        name: str,
        *,
        body: int,
        seconds: float,
        refuse: Callable[[Scope, int, str], Response],
        hosts: Iterable[str] = LOOPBACK,
        no_pages: tuple[str, ...] = ("/",),
        headers: Mapping[str, str] = HEADERS,
    ) -> None:
        self.app, self.name, self.body, self.seconds, self.refuse = app, name, body, seconds, refuse
        self.hosts, self.no_pages, self.headers = frozenset(host.lower() for host in hosts), no_pages, headers
        self._clocks: set[asyncio.Timeout] = set()
        self._ending = False

    def end(self) -> None:
        """The server ends: it takes no more, and waits no longer for requests that are on their way."""
        self._ending = True
        for clock in self._clocks:
            clock.reschedule(asyncio.get_running_loop().time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        send = _guarded(send, self.headers)
        refused = self._refusal(scope)
        if refused is not None:
            await self._refuse(scope, send, *refused)
            return
        ending = 503, f"the {self.name} is ending"
        body = ending if self._ending else await self._body(scope, receive)
        if isinstance(body, bytes) and self._ending:
            body = ending
        if not isinstance(body, bytes):
            await self._refuse(scope, send, *body)
            return
        await self.app(scope, _replayed(body, receive), send)

    async def _refuse(self, scope: Scope, send: Send, status: int, words: str) -> None:
        async def nothing() -> Message:
            return {"type": "http.disconnect"}

        answer = self.refuse(scope, status, words)
        answer.headers["connection"] = "close"
        await answer(scope, nothing, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        port = (scope.get("server") or ("", None))[1]
        if len(hosts) != 1 or not self._is_here(hosts[0].lower(), port):
            named = sorted(name if port in (80, None) else f"{name}:{port}" for name in self.hosts - {"*"})
            return 421, f"this {self.name} answers only to {' or '.join(named)}"
        page = scope["method"] in READING and not scope["path"].startswith(self.no_pages)
        if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in headers.getlist("origin")):
            return 403, f"only a page of this {self.name} may ask that"
        site = headers.get("sec-fetch-site")
        visiting = page and headers.get("sec-fetch-mode") == "navigate"
        if site not in (None, "same-origin", "none") and not visiting:
            return 403, f"only a page of this {self.name} may ask that"
        return None

    def _is_here(self, host: str, port: int | None) -> bool:
        name, colon, told = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not colon:
            name, told = host, "80"
        if told != str(port if port is not None else 80):
            return False
        return name in self.hosts or ("*" in self.hosts and _is_address(name))

    async def _body(self, scope: Scope, receive: Receive) -> bytes | tuple[int, str]:
        too_large = 413, f"the request is larger than {self.body:,} bytes, which is all that the {self.name} takes"
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdecimal() or len(length) > 15:
            return 400, "content-length is no number"
        if int(length) > self.body:
            return too_large
        chunks: list[bytes] = []
        size = 0
        clock: asyncio.Timeout | None = None
        try:
            async with asyncio.timeout(self.seconds) as clock:
                self._clocks.add(clock)
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return 400, "the request ended before its body did"
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if size > self.body:
                        return too_large
                    if not message.get("more_body"):
                        return b"".join(chunks)
        except TimeoutError:
            return 408, f"the request took longer than {self.seconds:g} s to arrive"
        finally:
            if clock is not None:
                self._clocks.discard(clock)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _replayed(body: bytes, receive: Receive) -> Receive:
    given = False

    async def next_message() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


def _guarded(send: Send, always: Mapping[str, str]) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=_raw(message))
            for name, value in always.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
            message["headers"] = headers.raw
        await send(message)

    return with_headers


def _raw(message: Message) -> list[tuple[bytes, bytes]]:
    found: Any = message.get("headers", [])
    return list(found)
