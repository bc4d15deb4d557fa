"""One thread for each worker: the tests are small, and two cores are shared by two workers."""

import gc
import os
import signal
import sys
import tempfile
from pathlib import Path

# Before torch is loaded, and for every process that a test starts: threads that wait do not spin. Several workers and
# what they start share the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

# What somebody measured on this machine must not decide what a test sees.
os.environ["QKV_CACHE"] = str(Path(tempfile.gettempdir()) / f"qkv-tests-{os.getpid()}")

# What is imported and collected stays: to look for garbage among its million objects takes each worker seconds.
gc.disable()

# A busy machine is no failure, and a run of make test finds the same as the last one; campaigns draw anew.
settings.register_profile("test", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("test")


# Under --import-mode=importlib a folder of tests is no package: this makes what several of them share importable.
sys.path.insert(0, str(Path(__file__).parent))

# Shapes are annotations, and here they are checked at every call.
install_import_hook(["qkv.backends"], "shape_checks.outermost")

pytest.register_assert_rewrite(
    "decode_reference", "linear_reference", "decode_cases", "tiny_models", "hf_harness", "small_checkpoint"
)

# What tests of tests/hf record, printed by the process that collects the reports of all.
sys.path.insert(0, str(Path(__file__).parent / "hf"))
from matrix_report import pytest_terminal_summary  # noqa: E402, F401

# Programs that a test runs in a process of its own, and no tests.
collect_ignore = ["compiled_program.py", "sandboxed_program.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screens", action="store_true", help="pictures of every view of the lab (make screens)")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    # A shell that puts a run behind itself has it ignore interruptions, and all that it starts; tests send them.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """From here on garbage is looked for again, in the process that collects reports too, among what comes now."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def threads():
    """Sets the number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
