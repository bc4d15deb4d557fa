"""What a forked child has to do without: the threads of OpenMP, which torch's operators would wait for without end."""

from __future__ import annotations

import os

_forked = False


def _in_child() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def settle_after_fork() -> None:
    """Keeps torch on one thread in a process that was forked, as native kernels do (`reasons_for_one_thread`)."""
    if _forked:
        import torch

        if torch.get_num_threads() > 1:
            torch.set_num_threads(1)
