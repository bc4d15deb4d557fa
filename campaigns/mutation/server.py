"""A process that has imported everything but qkv, and forks a child for each run of pytest with one file changed."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from .patching import Loaded

# Modules that the tests and the package import anyway.
WARM = [
    "numpy",
    "torch",
    "torch.func",
    "torch._dynamo",
    "sympy",
    "lark",
    "hypothesis",
    "hypothesis.strategies",
    "jaxtyping",
    "beartype",
    "rich.progress",
    "safetensors.torch",
    "_hypothesis_pytestplugin",
    "xdist.plugin",
    "pytest_timeout",
    "anyio.pytest_plugin",
    "platformdirs.pytest_plugin",
    "jaxtyping._pytest_plugin",
    "schemathesis.pytest.plugin",
]
SECONDS = 5.0  # time limit of a run, plus three times the seconds that its tests took before
GIGABYTES = 6  # memory limit of a run, more than the server has


@dataclass(frozen=True)
class Outcome:
    """How a run of tests ended: "survived", "killed" by a test or an import, "timeout"; "lived": not yet detected."""

    kind: str
    by: str = ""
    seconds: float = 0.0


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, code: str) -> None:
        super().__init__(name, path)
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.code, self.path, "exec", dont_inherit=True)


class Finder:
    """The package in this checkout, not the installed one, with one file changed.

    Compiled extensions are left to the next finders.
    """

    def __init__(self, source: Path, changed: dict[Path, str]) -> None:
        self.source, self.changed = source, changed
        self.packages = {path.name for path in source.iterdir()}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in self.packages and name.partition(".")[0] + ".py" not in self.packages:
            return None
        place = self.source.joinpath(*name.split("."))
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if not file.exists():
            return None
        code = self.changed.get(file)
        loader = SourceFileLoader(name, str(file)) if code is None else _Loader(name, str(file), code)
        inside = [str(place)] if place.is_dir() else None
        return importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=inside)


class Changed(Finder):
    """Only the changed files."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        spec = super().find_spec(name, path, target)
        return spec if spec is not None and isinstance(spec.loader, _Loader) else None


class Picked:
    """A plugin that runs the given tests in their order, and keeps the name of the first that fails."""

    def __init__(self, tests: Sequence[str], changed: Changed | None = None) -> None:
        self.place = {name: place for place, name in enumerate(tests)}
        self.failed = ""
        self.changed = changed

    def pytest_sessionstart(self) -> None:
        # pytest imports a file with doctests itself, and would read it from the disk.
        if self.changed is not None:
            sys.meta_path.insert(0, self.changed)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.place), key=lambda i: self.place[i.nodeid])

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid


def warm_up(modules: Sequence[str] = WARM) -> None:
    """Import what every child needs once, and freeze it so that the children's garbage collectors skip it."""
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    sys.dont_write_bytecode = False
    for name in modules:
        importlib.import_module(name)
    engine: Any = importlib.import_module("hypothesis.internal.conjecture.engine")
    engine.MAX_SHRINKS, engine.MAX_SHRINKING_SECONDS = 0, 0  # only the failure counts
    gc.collect()
    gc.freeze()


def pytest_in_here(paths: Sequence[str], plugin: object) -> int:
    import pytest

    options = ["-x", "-q", "--tb=no", "-p", "no:xdist", "-p", "no:cacheprovider", "-W"]
    scratch = f"--basetemp={tempfile.gettempdir()}/mutation-{os.getpid()}"
    return int(pytest.main([*options, "ignore:Module already imported", scratch, *paths], plugins=[plugin]))


def run_tests(root: Path, tests: Sequence[str], changed: dict[Path, str], seconds: float) -> Outcome:
    """Run tests until one fails, in a child that imports the package with files changed."""

    def work() -> dict[str, str]:
        sys.meta_path.insert(0, Finder(root / "src", changed))
        picked = Picked(tests, Changed(root / "src", changed))
        code = pytest_in_here(list(dict.fromkeys(name.partition("::")[0] for name in tests)), picked)
        # 5: none of these tests exists any more, which is not a failure.
        return {"kind": "survived"} if code in (0, 5) else {"kind": "killed", "by": picked.failed or f"pytest: {code}"}

    before = time.monotonic()
    result = in_child(root, work, SECONDS + 3 * seconds)
    return Outcome(**result, seconds=round(time.monotonic() - before, 2))


class Collected:
    """A plugin: when the tests are collected, `each` is called instead of running them."""

    def __init__(
        self, root: Path, files: Sequence[Path], modules: Sequence[str], each: Callable[[Collected], None]
    ) -> None:
        self.root, self.files, self.modules, self.each = root, files, modules, each
        self.items: dict[str, Any] = {}

    def pytest_collection_finish(self, session: Any) -> None:
        self.session, self.items = session, {item.nodeid: item for item in session.items}
        for name in self.modules:
            with contextlib.suppress(ImportError):  # some attributes of torch are listed as modules
                importlib.import_module(name)
        self.loaded = Loaded(self.files)

    def pytest_runtestloop(self) -> bool:
        self.each(self)
        return True

    def run_tests(self, tests: Sequence[str], file: Path, code: str, seconds: float) -> Outcome:
        """Like the function of this name, with functions of a loaded file replaced; "lived" if not detected."""

        def work() -> dict[str, str]:
            if not self.loaded.patch(file, code):
                return {"kind": "lived"}
            picked = Picked(tests)
            self.session.config.pluginmanager.register(picked)
            items = [self.items[test] for test in tests if test in self.items]
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if picked.failed:
                    return {"kind": "killed", "by": picked.failed}
            return {"kind": "lived"}

        before = time.monotonic()
        result = in_child(self.root, work, SECONDS + 3 * seconds)
        return Outcome(**result, seconds=round(time.monotonic() - before, 2))


def collect(root: Path, paths: Sequence[str], plugin: Collected) -> None:
    """Collect the tests of `paths` in this process for the plugin."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.chdir(root)
    sys.path.insert(0, str(root))
    sys.meta_path.insert(0, Finder(root / "src", {}))
    pytest_in_here(["-s", *paths], plugin)


def in_child(root: Path, work: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    """The result of `work` in a child process: "killed" if the child dies, "timeout" if it takes too long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _isolate(root, seconds)
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    # A busy machine is not a failure: the limit is processor time. The wall-clock limit is four times that, at least
    # half a minute.
    answered = bool(select.select([reading], [], [], max(30.0, 4 * seconds))[0])
    answer = os.read(reading, 1 << 16) if answered else b""
    os.close(reading)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if answer:
        return json.loads(answer)
    over = not answered or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU)
    return {"kind": "timeout"} if over else {"kind": "killed", "by": f"the process ended with {status}"}


def _isolate(root: Path, seconds: float) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.chdir(root)
    sys.path.insert(0, str(root))
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (GIGABYTES << 30),) * 2)
