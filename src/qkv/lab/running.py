"""`qkv lab`: a server on loopback that prints its address, and ends when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import OptionError, complaint
from .guard import LOOPBACK, Limits
from .server import Lab

HOST, PORT = "127.0.0.1", 8765
BACKLOG = 256  # connections that wait to be taken
GRACE = 2  # seconds that answers under way have when the server ends


def run(
    host: str = HOST,
    port: int | None = None,
    *,
    limits: Limits | None = None,
    open_browser: bool = False,
    say: Callable[[str, bool], None] = lambda address, open_to_others: print(address),
) -> None:
    """Serves until SIGTERM or Ctrl-C. `port` None takes the usual one, or any that is free; 0 takes any. `say` is told
    the address, and whether other machines can reach it."""
    limits = limits or Limits()
    listening = _listening(host, port)
    at, taken = listening.getsockname()[:2]
    number = ipaddress.ip_address(at)
    name = socket.gethostname() if number.is_unspecified else f"[{at}]" if number.version == 6 else at
    hosts = {*LOOPBACK, name.lower(), *(["*", socket.getfqdn().lower()] if number.is_unspecified else [])}
    address = f"http://{name}:{taken}/"
    lab = Lab(limits, hosts)
    config = uvicorn.Config(
        lab.app,
        http=_protocol(limits.header_seconds),
        ws="none",
        lifespan="on",
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=30,
        backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE,
    )
    say(address, not number.is_loopback)
    if open_browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    asyncio.run(_Server(config, lab).serve(sockets=[listening]))


class _Server(uvicorn.Server):
    """Ends with exit code 0 when it is asked to end: that is no failure."""

    def __init__(self, config: uvicorn.Config, lab: Lab) -> None:
        super().__init__(config)
        self.lab = lab

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.lab.end()
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


def _listening(host: str, port: int | None) -> socket.socket:
    name = host.strip().removeprefix("[").removesuffix("]")
    try:
        if not name:
            raise OSError("no name")
        family, _, _, _, at = socket.getaddrinfo(name, port or 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        wanted = "a name or an address of this machine, such as 127.0.0.1"
        raise OptionError(complaint("host", repr(host[:60]), wanted)) from None
    for wanted in (PORT, 0) if port is None else (port,):
        # Named as TCP: asyncio turns Nagle's wait, 40 ms an answer, off only where it reads that.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((at[0], wanted))
        except OSError as error:
            listening.close()
            if error.errno == errno.EADDRNOTAVAIL:
                raise OptionError(complaint("host", host, "an address of this machine")) from None
            if port is None and wanted:
                continue
            hint = "another program listens there; --port 0 takes any that is free"
            found = f"one that is free on {host} ({error.strerror})"
            raise OptionError(complaint("port", wanted, found, hint)) from None
        listening.listen(BACKLOG)  # before the address is said, so that whoever hears it can come
        listening.setblocking(False)
        return listening
    raise AssertionError("a free port is always found or refused")
