"""The command line in this process: starting Python with torch and transformers takes seconds; few tests need it."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from unittest import mock

from qkv.cli import main


def called(*words: str) -> subprocess.CompletedProcess[str]:
    """What a process with these words would print and return."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    argued = mock.patch.object(sys, "argv", ["qkv", *words])
    with argued, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
