"""Makes `faults_reference` and `benchmarks.trust` importable: under --import-mode=importlib a folder is no package."""

import sys
from pathlib import Path

import pytest

for place in (Path(__file__).parent, Path(__file__).parents[2]):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))
pytest.register_assert_rewrite("faults_reference")
