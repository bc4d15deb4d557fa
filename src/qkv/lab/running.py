"""`qkv lab`: a server on loopback that prints its address, and ends when it is told to."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Callable

from ..web.running import listening, place_of, serve
from .guard import Limits
from .server import Lab

HOST, PORT = "127.0.0.1", 8765
GRACE = 2  # seconds that answers under way have when the server ends


def run(
    host: str = HOST,
    port: int | None = None,
    *,
    limits: Limits | None = None,
    open_browser: bool = False,
    embed: str | None = None,
    say: Callable[[str, bool], None] = lambda address, open_to_others: print(address),
) -> None:
    """Serves until SIGTERM or Ctrl-C. `port` None takes the usual one, or any that is free; 0 takes any. `say` is told
    the address, and whether other machines can reach it. `embed`: an origin whose pages may show the lab in a frame."""
    limits = limits or Limits()
    found = listening(host, port, PORT)
    place = place_of(found)
    lab = Lab(limits, place.hosts, embed)
    say(place.address, place.is_open)
    if open_browser:
        threading.Thread(target=webbrowser.open, args=(place.address,), daemon=True).start()
    more = {"header_seconds": limits.header_seconds, "connections": limits.connections, "grace": GRACE}
    serve(lab.app, found, end=lab.end, **more)
