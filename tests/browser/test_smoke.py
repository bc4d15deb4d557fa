"""Each view once in a browser, a few in make test: its numbers are the library's, and the browser complains of
nothing.
"""

from __future__ import annotations

import pytest

from qkv.lab.views import NAMES

from .test_views import agree, told

QUICK = "start", "solve", "generate"


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_a_view_opens_with_the_numbers_of_the_library(lab: str, opened, name: str) -> None:
    page = opened(name)
    assert agree(page, told(lab, page)["result"]) > 0
    assert page.locator("h1").is_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
