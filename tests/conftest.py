"""Settings of all tests: one thread for each worker, fixed examples, checked shapes."""

import gc
import os
import signal
import tempfile
from pathlib import Path

# Set before torch is imported, also for processes that tests start: waiting threads must not spin on shared cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

pytest.register_assert_rewrite("tests.helpers")

from tests.helpers import shape_checks  # noqa: E402, F401
from tests.helpers.matrix_report import pytest_terminal_summary  # noqa: E402, F401

# Programs and references, not tests.
collect_ignore = ["helpers", "installed.py"]

# A calibration of this machine must not change the results of tests.
os.environ["QKV_CACHE"] = str(Path(tempfile.gettempdir()) / f"qkv-tests-{os.getpid()}")

# Modules and tests are never collected: without this, each worker spends seconds on garbage collection.
gc.disable()

# No deadlines on a busy machine, and the same examples in every run; campaigns draw new ones.
settings.register_profile("test", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("test")

# Shapes are annotations; in tests they are checked at every call.
install_import_hook(["qkv.backends"], "tests.helpers.shape_checks.outermost")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screens", action="store_true", help="take screenshots of every view of the lab (make screens)")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    # A shell starts background jobs with SIGINT ignored, and tests send SIGINT.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Enable garbage collection again, for objects that are made from here on."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def threads():
    """Sets the number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
