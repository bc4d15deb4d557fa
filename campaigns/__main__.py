"""`python -m campaigns [name ...] [--minutes M] [--jobs N]`: go on with every campaign, or with those that are named.

With --seed and --count it is one batch of one campaign, in this process: how the runner starts batches, and how a
finding is looked at again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import time
from dataclasses import asdict

from .campaign import Campaign
from .ledger import Ledger
from .runner import MARK, run_campaign

# In the order in which they run.
NAMES = (
    "calls",
    "compat",
    "caches",
    "mathematics",
    "transcripts",
    "checkpoints",
    "native",
    "sanitizers",
    "bits",
    "storms",
    "long_decoding",
)


def named(name: str) -> Campaign:
    return importlib.import_module(f"campaigns.{name}").CAMPAIGN


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m campaigns", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(NAMES)}; all when none is given")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no new batch after so long")
    parser.add_argument("--jobs", type=int, default=2, help="batches at once")
    parser.add_argument("--keep", action="store_true", help="run nothing; keep what is not over in git's sight")
    parser.add_argument("--seed", type=int, help="run one batch, here")
    parser.add_argument("--count", type=int, help="how much of it; the campaign's own size of a batch when not given")
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in NAMES]
    if unknown:
        parser.error(f"no campaign {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if asked.seed is not None:
        if len(asked.names) != 1:
            parser.error("--seed goes with one name")
        campaign = named(asked.names[0])
        # A shell that put the campaign behind itself has it ignore this, and all that it starts: storms send it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        batch = campaign.run(asked.seed, campaign.batch if asked.count is None else asked.count)
        print(MARK + json.dumps(asdict(batch)))
        return
    if asked.keep:
        for name in asked.names or NAMES:
            Ledger.of(name).keep(named(name).goal)
        return
    # Asked to end, it ends its batches first.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    until = time.monotonic() + 60 * asked.minutes
    ledgers = [run_campaign(name, named(name), asked.jobs, until) for name in asked.names or NAMES]
    for ledger in ledgers:
        goal = named(ledger.name).goal
        print(
            f"{ledger.name:16} {ledger.done:>12,} of {goal:>12,}  {len(ledger.open)} open  {len(ledger.mended)} mended"
        )
        for finding in ledger.open:
            print(f"  python -m campaigns {ledger.name} --seed {finding['seed']} --count {finding['count']}")
            print("    " + finding["words"].strip().replace("\n", "\n    "))
    if any(ledger.open or ledger.done < named(ledger.name).goal for ledger in ledgers):
        sys.exit(1)


main()
