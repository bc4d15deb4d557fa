"""Makes `faults_reference` importable: under --import-mode=importlib a folder of tests is no package."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("faults_reference")
