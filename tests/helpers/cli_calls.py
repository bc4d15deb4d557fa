"""The command line, run in this process: a new one takes seconds to import torch and transformers."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from unittest import mock

from qkv.cli import main


def called(*words: str) -> subprocess.CompletedProcess[str]:
    """Return what a process with these arguments would print, and its exit code."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    argv = mock.patch.object(sys, "argv", ["qkv", *words])
    with argv, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
