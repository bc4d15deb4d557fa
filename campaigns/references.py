"""What tests and campaigns share is written once, in tests/: to import this module makes it importable."""

from __future__ import annotations

import sys

from .ledger import ROOT

for _folder in (ROOT / "tests" / "properties", ROOT / "tests"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))
