"""benchmarks/ is not part of the package: it is found beside it, and so is what the tests here share."""

import sys
from pathlib import Path

for place in (str(Path(__file__).parents[2]), str(Path(__file__).parent)):
    if place not in sys.path:
        sys.path.insert(0, place)
