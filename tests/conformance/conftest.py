"""What runs other projects' cases is in benchmarks/, which is not part of the package: it is found beside it."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (str(HERE), str(HERE.parents[1])):
    if folder not in sys.path:
        sys.path.insert(0, folder)
