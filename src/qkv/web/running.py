"""A server on this machine: the socket it listens on, the names it may be called by, and its end when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import OptionError, complaint
from .guard import LOOPBACK

BACKLOG = 256  # connections that wait to be taken


class Place(NamedTuple):
    """Where a socket listens: the address to print, the names it may be called by, whether other machines reach it."""

    address: str
    hosts: set[str]
    is_open: bool


def place_of(listening: socket.socket) -> Place:
    """Of a socket that `listening` made."""
    at, taken = listening.getsockname()[:2]
    number = ipaddress.ip_address(at)
    name = socket.gethostname() if number.is_unspecified else f"[{at}]" if number.version == 6 else at
    hosts = {*LOOPBACK, name.lower(), *(["*", socket.getfqdn().lower()] if number.is_unspecified else [])}
    return Place(f"http://{name}:{taken}/", hosts, not number.is_loopback)


def serve(
    app: ASGIApp,
    listening: socket.socket,
    *,
    end: Callable[[], None],
    header_seconds: float,
    connections: int,
    grace: int,
) -> None:
    """Serves until SIGTERM or Ctrl-C.

    Args:
        app: The app behind its guard.
        listening: From `listening`.
        end: Called when the server is told to end, before it waits for answers under way.
        header_seconds: For a request's head to arrive.
        connections: Above which it answers 503.
        grace: Seconds that answers under way have when the server ends.
    """
    config = uvicorn.Config(
        app,
        http=_protocol(header_seconds),
        ws="none",
        lifespan="on",
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=connections,
        timeout_keep_alive=30,
        backlog=BACKLOG,
        timeout_graceful_shutdown=grace,
    )
    asyncio.run(_Server(config, end).serve(sockets=[listening]))


class _Server(uvicorn.Server):
    """Ends with exit code 0 when it is asked to end: that is no failure."""

    def __init__(self, config: uvicorn.Config, end: Callable[[], None]) -> None:
        super().__init__(config)
        self.end = end

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.end()
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def _protocol(seconds: float) -> type[H11Protocol]:
    class Timed(H11Protocol):
        """A request's head must arrive in time: a connection that says nothing is closed."""

        late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._unwatch()

        def _watch(self) -> None:
            if self.conn.their_state is not h11.IDLE:
                self._unwatch()
            elif self.late is None:
                self.late = self.loop.call_later(seconds, self._close)

        def _unwatch(self) -> None:
            if self.late is not None:
                self.late.cancel()
                self.late = None

        def _close(self) -> None:
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                self.transport.close()

    return Timed


def listening(host: str, port: int | None, usual: int) -> socket.socket:
    """A socket that listens. `port` None takes the usual one, or any that is free; 0 takes any."""
    name = host.strip().removeprefix("[").removesuffix("]")
    try:
        if not name:
            raise OSError("no name")
        family, _, _, _, at = socket.getaddrinfo(name, port or 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        wanted = "a name or an address of this machine, such as 127.0.0.1"
        raise OptionError(complaint("host", repr(host[:60]), wanted)) from None
    for wanted in (usual, 0) if port is None else (port,):
        # Named as TCP: asyncio turns Nagle's wait, 40 ms an answer, off only where it reads that.
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((at[0], wanted))
        except OSError as error:
            found.close()
            if error.errno == errno.EADDRNOTAVAIL:
                raise OptionError(complaint("host", host, "an address of this machine")) from None
            if port is None and wanted:
                continue
            hint = "another program listens there; --port 0 takes any that is free"
            free = f"one that is free on {host} ({error.strerror})"
            raise OptionError(complaint("port", wanted, free, hint)) from None
        found.listen(BACKLOG)  # before the address is said, so that its readers can come
        found.setblocking(False)
        return found
    raise AssertionError("a free port is always found or refused")
