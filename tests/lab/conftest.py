"""One lab, in a separate process, for all tests that only ask it something."""

from collections.abc import Iterator

import pytest

from tests.helpers.lab_process import Lab, running


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with running() as started:
        yield started
