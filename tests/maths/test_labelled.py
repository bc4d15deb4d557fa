"""Verdicts on pairs labelled independently of the checker; `labelled/` is never changed to fit it."""

import time
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from qkv.maths import compare

SETS = {
    path.stem: tomllib.loads(path.read_text(encoding="utf-8"))["pair"]
    for path in sorted((Path(__file__).parent / "labelled").glob("*.toml"))
}
PARTS = [(name, part) for name in SETS for part in range(20)]  # in parts, so that workers share them


@pytest.mark.parametrize(("name", "part"), PARTS, ids=lambda value: str(value))
def test_every_verdict_is_right_and_none_takes_long(name: str, part: int) -> None:
    wrong, slow = [], []
    for pair in SETS[name][part::20]:
        before = time.process_time()
        verdict = compare(pair["gold"], pair["answer"], pair["symbols"])
        if time.process_time() - before > 1.0:
            slow.append(pair["id"])
        if verdict.kind != pair["kind"]:
            wrong.append((pair["id"], pair["gold"], pair["answer"], f"{pair['kind']} wanted", str(verdict)))
        assert (verdict.evidence is None) == (verdict.kind in ("ill-typed", "unreadable")), pair["id"]
        assert "\n" not in verdict.reason, pair["id"]
        assert verdict.kind != "conditional" or verdict.condition, pair["id"]
    assert wrong == []
    assert slow == []


def test_there_are_enough_of_every_kind() -> None:
    kinds = Counter(pair["kind"] for pairs in SETS.values() for pair in pairs)
    assert sum(kinds.values()) >= 400
    assert min(kinds[kind] for kind in ("equal", "different", "conditional", "ill-typed", "unreadable")) >= 40
    ids = [pair["id"] for pairs in SETS.values() for pair in pairs]
    assert len(ids) == len(set(ids))
