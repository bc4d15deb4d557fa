"""A few faults of campaigns/process_faults.py: forks, threads, interrupts and process exits while kernels run."""

import pytest

from campaigns import process_faults

pytestmark = pytest.mark.slow

ENDS = "sys.exit", "raises", "atexit handlers that decode", "caches that outlive the modules"


def test_a_few_process_faults(monkeypatch) -> None:
    """All in forks of one process: Python starts once."""
    few = [(kind, 1, False) for kind in ("fork", "threads", "interrupt")]
    few += [("exit", next(s for s in range(999) if process_faults.exit_kind(s) == way), False) for way in ENDS]
    monkeypatch.setattr(process_faults, "drawn", lambda seed, count: few)
    batch = process_faults.run(0, len(few))
    assert batch.done == len(few) == sum(batch.figures.values())
    assert sum(name.startswith("exit: ") for name in batch.figures) == len(ENDS)
