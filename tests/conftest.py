"""One thread for each worker: the tests are small, and two cores are shared by two workers."""

import pytest
import torch
from jaxtyping import install_import_hook

# Shapes are annotations, and here they are checked at every call.
install_import_hook(["qkv.forms"], "beartype.beartype")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="campaigns of many thousands of calls (make soak)")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)


@pytest.fixture
def threads():
    """Sets the number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
