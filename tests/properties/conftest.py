"""Hypothesis settings: every test run draws the same 100 calls; campaigns draw thousands of new ones."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("qkv", max_examples=100, derandomize=True, deadline=None, suppress_health_check=_SLOW)


@contextmanager
def drawing() -> Iterator[None]:
    """For the tests of this folder alone: a profile that is loaded once holds for all that follow."""
    settings.load_profile("qkv")
    try:
        yield
    finally:
        settings.load_profile("test")


# A machine of rules takes its settings when its file is imported, a test when it runs.
@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, object, object]:
    with drawing():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with drawing():
        return (yield)
