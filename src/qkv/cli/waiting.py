"""What a terminal shows while something runs that takes longer than a second and says nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show `what` on the standard error until the block ends; nothing where that is not a terminal.

    >>> with waiting("loading model.gguf"):
    ...     print("loaded")
    loaded
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(what)):
        yield
