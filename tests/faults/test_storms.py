"""A few storms of campaigns/storms.py: forks, threads, interruptions and ends of processes while kernels run."""

from campaigns import storms

ENDS = "sys.exit", "raises", "atexit handlers that decode", "caches that outlive the modules"


def test_a_few_storms(monkeypatch) -> None:
    """All in processes that are forked off one: one start of Python for all."""
    few = [(kind, 1, False) for kind in ("fork", "threads", "interrupt")]
    few += [("exit", next(s for s in range(999) if storms.way_of(s) == way), False) for way in ENDS]
    monkeypatch.setattr(storms, "drawn", lambda seed, count: few)
    batch = storms.run(0, len(few))
    assert batch.done == len(few) == sum(batch.figures.values())
    assert sum(name.startswith("exit: ") for name in batch.figures) == len(ENDS)
