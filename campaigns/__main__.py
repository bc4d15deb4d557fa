"""`python -m campaigns [name ...] [--minutes M] [--jobs N]`: continue all campaigns, or the named ones.

With --seed and --count it runs one batch of one campaign, in this process: the runner starts batches in this way, and
a finding can be run again.
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
    "process_faults",
    "long_decoding",
    "serving",
)


def named(name: str) -> Campaign:
    return importlib.import_module(f"campaigns.{name}").CAMPAIGN


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m campaigns", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"some of {', '.join(NAMES)}; all by default")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no batch after this time")
    parser.add_argument("--jobs", type=int, default=2, help="number of batches at once")
    parser.add_argument(
        "--keep", action="store_true", help="run nothing; write unfinished ledgers to campaigns/ledgers for git"
    )
    parser.add_argument("--seed", type=int, help="run one batch in this process")
    parser.add_argument("--count", type=int, help="size of the batch; the campaign's batch size by default")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"no campaign {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if options.seed is not None:
        if len(options.names) != 1:
            parser.error("--seed goes with one name")
        campaign = named(options.names[0])
        # A background job of a shell ignores SIGINT, and so do its children; process_faults sends it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        batch = campaign.run(options.seed, campaign.batch if options.count is None else options.count)
        print(MARK + json.dumps(asdict(batch)))
        return
    if options.keep:
        for name in options.names or NAMES:
            Ledger.of(name).keep(named(name).goal)
        return
    # SIGTERM ends the batches first.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    until = time.monotonic() + 60 * options.minutes
    ledgers = [run_campaign(name, named(name), options.jobs, until) for name in options.names or NAMES]
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
