"""Address, undefined-behaviour and thread sanitizers, over the C++ tests and the Python tests.

Each run is one job, chosen by its seed. For Python the extension is built with a sanitizer in a separate folder, and a
finder loads it instead of the installed one, also in processes that a test starts.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .campaign import Batch, Campaign
from .ledger import ROOT
from .native_builds import built

TOOLS = Path(sys.executable).parent

# Tests that reach the native library.
REACHING = (
    "tests/ops",
    "tests/cache",
    "tests/backends/test_argmax.py",
    "tests/backends/test_native.py",
    "tests/backends/test_linear.py",
    "tests/faults/test_caches.py",
    "tests/faults/test_bad_layouts.py",
)
# Measures the memory that malloc holds; a sanitizer's allocator keeps freed memory.
LEFT_OUT = "tests/backends/test_linear.py::test_features_of_a_whole_sequence_are_never_in_memory"
# Tests that run kernels on several threads, the library's or the caller's.
THREADED = (
    "tests/ops/test_kernels.py",
    "tests/ops/test_loader.py",
    "tests/cache/test_pages.py",
    "tests/backends/test_argmax.py",
    "tests/backends/test_linear.py",
    "tests/cache/test_decode.py",
    "tests/faults/test_cache_processes.py",
)
_FINDER = '''"""Loads the extension of this folder instead of the installed one."""

import importlib.util
import sys
from pathlib import Path


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "qkv.ops._native":
            return None
        return importlib.util.spec_from_file_location(name, next(Path(__file__).parent.glob("_native*.so")))


sys.meta_path.insert(0, Finder)
'''


def cpp_addresses() -> int:
    """The C++ tests and the fuzz targets, built with gcc."""
    folder = built(
        "native-tests", "-DQKV_TESTS=ON", "-DQKV_SANITIZE=address,undefined", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"
    )
    return _ctest(folder)


def cpp_threads() -> int:
    return _ctest(_threaded_tests())


def _threaded_tests() -> Path:
    return built(
        "sanitizers/cpp-thread", "-DQKV_TESTS=ON", "-DQKV_SANITIZE=thread", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"
    )


def python_addresses() -> int:
    preload = " ".join(_library(name) for name in ("libasan.so", "libstdc++.so"))
    options = "detect_leaks=0:allocator_may_return_null=1"
    return _pytest("address,undefined", REACHING, LD_PRELOAD=preload, ASAN_OPTIONS=options)


def python_threads() -> int:
    team = _threaded_tests() / "native" / "tests" / "libteam.so"
    preload = f"{_library('libtsan.so')} {team}"
    options = "ignore_noninstrumented_modules=1:die_after_fork=0:allocator_may_return_null=1"
    return _pytest("thread", THREADED, LD_PRELOAD=preload, TSAN_OPTIONS=options)


JOBS = (cpp_addresses, cpp_threads, python_addresses, python_threads)


def run(seed: int, count: int) -> Batch:
    """One job, for any `count`; the report of a sanitizer ends it."""
    job = JOBS[seed % len(JOBS)]
    before = time.monotonic()
    tests = job()
    return Batch(1, {"job": job.__name__, "tests": tests, "seconds": round(time.monotonic() - before)})


def gather(figures: list[dict[str, Any]]) -> dict[str, Any]:
    return {batch["job"]: {"tests": batch["tests"], "seconds": batch["seconds"]} for batch in figures}


def _ctest(folder: Path) -> int:
    output = _output_of([str(TOOLS / "ctest"), "--test-dir", str(folder), "--output-on-failure"], {})
    return int(re.findall(r"out of (\d+)", output)[-1])


def _pytest(sanitizer: str, tests: tuple[str, ...], **environment: str) -> int:
    folder = _extension(sanitizer)
    environment["PYTHONPATH"] = str(folder)
    where = "from qkv.ops.loader import load; print(load().native.__file__)"
    loaded = _output_of([sys.executable, "-c", where], environment).splitlines()[-1]
    runtime = b"__tsan_init" if sanitizer == "thread" else b"__asan_init"
    if Path(loaded).parent != folder or runtime not in Path(loaded).read_bytes():
        raise AssertionError(f"{loaded} was loaded instead of the extension in {folder}")
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:xdist", "-p", "no:cacheprovider", "--timeout=1200"]
    output = _output_of([*command, f"--deselect={LEFT_OUT}", *tests], environment)
    return int(re.findall(r"(\d+) passed", output)[-1])


def _extension(sanitizer: str) -> Path:
    """A folder for PYTHONPATH with the extension, built with the sanitizer."""
    nanobind = _output_of([sys.executable, "-m", "nanobind", "--cmake_dir"], {}).strip()
    name = f"sanitizers/{sanitizer.replace(',', '-')}"
    folder = built(
        name,
        f"-DQKV_SANITIZE={sanitizer}",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_CXX_FLAGS=-g1",
        f"-Dnanobind_DIR={nanobind}",
        f"-DPython_EXECUTABLE={sys.executable}",
    )
    (folder / "sitecustomize.py").write_text(_FINDER)
    return folder


def _library(name: str) -> str:
    return subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip()


def _output_of(command: list[str], environment: dict[str, str]) -> str:
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if ended.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ended with {ended.returncode}\n{ended.stdout[-6000:]}")
    return ended.stdout


CAMPAIGN = Campaign(
    about="address, undefined-behaviour and thread sanitizers, over the C++ tests and over pytest",
    unit="runs",
    goal=len(JOBS),
    batch=1,
    run=run,
    limit=5400,
    gather=gather,
)
