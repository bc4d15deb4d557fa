"""examples/sdpa_drop_in.py: it learns, and both attentions give the same losses."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "sdpa_drop_in.py"


@pytest.mark.slow
def test_losses_fall_and_agree() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^ *(\d+) +(\S+) +(\S+) +(\S+)$", done.stdout, re.MULTILINE)
    assert [int(row[0]) for row in rows] == [1, 16, 31, 46, 61, 76, 91, 106, 120]
    first, last = (float(rows[at][2]) for at in (0, -1))
    assert last < 0.01 < first
    assert max(abs(float(row[1]) - float(row[2])) for row in rows) <= 1e-4
    assert "largest difference of 120 losses" in done.stdout
