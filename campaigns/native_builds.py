"""Builds of the native code for campaigns: each in a separate folder below build/, one at a time."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

from .ledger import ROOT

BUILD = ROOT / "build"


def built(name: str, *options: str, compiler: str | None = None) -> Path:
    """Configure and build the folder build/<name> with these CMake options.

    Waits while another process builds it. Raises RuntimeError with the compiler's last output.
    """
    folder = BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    tools = Path(sys.executable).parent
    configure = [str(tools / "cmake"), "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *options]
    configure += [f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"]
    if compiler is not None:
        if shutil.which(compiler) is None:
            raise RuntimeError(
                f"no {compiler}; `make .venv/.clang` installs Debian's for root, or says what is missing"
            )
        configure += [f"-DCMAKE_CXX_COMPILER={compiler}"]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in configure, [str(tools / "cmake"), "--build", str(folder), "-j", "1"]:
            ended = subprocess.run(command, capture_output=True, text=True)
            if ended.returncode != 0:
                raise RuntimeError(f"{' '.join(command)}\n{(ended.stdout + ended.stderr)[-3000:]}")
    return folder
