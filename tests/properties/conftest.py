"""How many calls Hypothesis draws: the same 150 in every test run, thousands of new ones with --soak."""

import pytest
from hypothesis import HealthCheck, settings

_ALWAYS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("qkv", max_examples=150, derandomize=True, **_ALWAYS)
settings.register_profile("qkv soak", max_examples=20_000, print_blob=True, **_ALWAYS)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("qkv soak" if config.getoption("--soak") else "qkv")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--soak"):
        for item in items:
            item.add_marker(pytest.mark.timeout(0))
