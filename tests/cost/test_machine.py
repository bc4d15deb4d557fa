"""Figures of a machine: kept, read back, refused when they make no sense, and used."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import qkv
from qkv.cost.machine import Machine, active_machine, cache_folder, calibration_path, use
from qkv.cost.price import Price, Work
from qkv.errors import OptionError, OptionTypeError

ROOFS = {"read.memory": 2e10, "multiply.float32.square": 2e11}
PRICE = Price(1e-5, 1e-6, 1e-11, 1e-10, 2e-10, 3e-11, 1e-10)
MACHINE = Machine("a machine", 3, 5, 7 << 30, "2.13.0", "avx2", "2026-11-16", ROOFS, {"dense.softmax": PRICE}, {})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    return tmp_path


def test_what_is_stored_is_read_back(cache: Path) -> None:
    assert Machine.stored() is None
    where = MACHINE.store()
    assert where == calibration_path()
    assert where.parent == cache
    assert Machine.stored() == MACHINE
    replace(MACHINE, name="another").store()
    found = Machine.stored()
    assert found is not None
    assert found.name == "another"
    assert [file.name for file in cache.iterdir()] == [where.name], "nothing is left beside it"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"text"',
        "{}",
        '{"format": 1}',
        "[" * 100_000,
        json.dumps({"format": 99, "prices": {}, "roofs": {}, "errors": {}}),
    ],
)
def test_a_file_that_is_none_is_no_figure(cache: Path, text: str) -> None:
    calibration_path().parent.mkdir(exist_ok=True)
    calibration_path().write_text(text, encoding="utf-8")
    assert Machine.stored() is None
    with pytest.raises(OptionError, match="qkv calibrate"):
        Machine.read(calibration_path())


@pytest.mark.parametrize("wrong", ["Infinity", "NaN", "-1", "0", "true", "1e-300", "9" * 400, '"fast"', "null", "[1]"])
def test_figures_that_make_no_sense_are_refused(cache: Path, wrong: str) -> None:
    text = MACHINE.store().read_text(encoding="utf-8").replace("20000000000.0", wrong)
    calibration_path().write_text(text, encoding="utf-8")
    assert Machine.stored() is None


@pytest.mark.parametrize("name", ["cores", "threads", "memory_bytes"])
@pytest.mark.parametrize("wrong", [0.5, 2.5, 0, -1])
def test_half_a_core_is_no_machine(cache: Path, name: str, wrong: float) -> None:
    found = json.loads(MACHINE.store().read_text(encoding="utf-8"))
    calibration_path().write_text(json.dumps({**found, name: wrong}), encoding="utf-8")
    with pytest.raises(OptionError, match="qkv calibrate"):
        Machine.read(calibration_path())


def test_a_binary_file_is_no_figure(cache: Path) -> None:
    calibration_path().write_bytes(os.urandom(4096))
    assert Machine.stored() is None


def test_a_pipe_or_a_device_is_not_waited_for(cache: Path) -> None:
    os.mkfifo(calibration_path())
    assert Machine.stored() is None
    calibration_path().unlink()
    calibration_path().symlink_to("/dev/zero")
    assert Machine.stored() is None


def test_figures_of_a_busy_machine_are_doubted() -> None:
    assert not replace(MACHINE, roofs={"read.cache": 6e10, "read.memory": 1e10, "threads.read": 1.9}).doubts
    busy = replace(MACHINE, roofs={"read.cache": 6e7, "read.memory": 1e10, "threads.multiply": 0.26})
    assert busy.doubts == ("read.cache is slower than read.memory", "threads.multiply: all threads are slower than one")


def test_another_number_of_threads_is_another_machine(used, threads) -> None:
    q = torch.zeros(1, 2, 37, 16)
    threads(1)
    used(priced(1, 2, 3))
    assert qkv.explain(q, q, q).machine is not None
    threads(2)
    assert qkv.explain(q, q, q).machine is None


def test_only_machines_are_used() -> None:
    with pytest.raises(OptionTypeError, match="Machine"):
        use(3)  # pyright: ignore[reportArgumentType]


def test_rates_have_built_in_figures() -> None:
    plain = Machine.built_in()
    assert plain.memory_rate > 1e9
    assert plain.multiply_rate("bfloat16") > 1e9
    assert not plain.measured
    assert MACHINE.memory_rate == 2e10


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QKV_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/qkv")


def test_seconds_are_a_roofline() -> None:
    work = Work("dense.softmax", 0, steps=3, products=1e9, pairs=1e6, rows=1e5, near=1e6, far=1e8)
    moved, made = 1e-10 * 1e8, 1e-11 * 1e9 + 1e-10 * 1e6
    rest = 1e-5 + 3e-6 + 2e-10 * 1e5 + 3e-11 * 1e6
    assert MACHINE.seconds(work) == pytest.approx(rest + made + moved)
    assert MACHINE.seconds(work._replace(overlaps=True)) == pytest.approx(rest + max(made, moved))
    assert MACHINE.seconds(work._replace(engine="unknown")) is None


@pytest.fixture
def used():
    before = active_machine()
    yield use
    use(before)


def priced(dense: float, streaming: float, attend: float) -> Machine:
    """A machine on which each engine takes so long, whatever the call."""
    engines = {"dense.softmax": dense, "attend": attend, "attend.few": attend}
    engines |= {f"flash.{block}.float32": streaming for block in (1, 32, 64, 256)}
    prices = {engine: Price(seconds, 0, 0, 0, 0, 0, 0) for engine, seconds in engines.items()}
    return replace(MACHINE, threads=torch.get_num_threads(), prices=prices, errors=dict.fromkeys(prices, 0.05))


def test_auto_goes_by_the_figures_and_forgets_when_they_change(used) -> None:
    q = torch.zeros(1, 2, 37, 16)
    for taken, figures in (("reference", (1, 2, 3)), ("sdpa", (3, 1, 2)), ("native", (2, 3, 1))):
        used(priced(*(1e-3 * f for f in figures)))
        choice = qkv.explain(q, q, q)
        assert choice.backend == taken
        assert choice.seconds == pytest.approx(1e-3)
        assert choice.error == 0.05
        assert "1 ms ± 5%, as measured here" in str(choice)
        before = qkv.backends.base.RUNS.copy()
        qkv.attention(q, q, q)
        ran = qkv.backends.base.RUNS - before
        assert [name.split(".")[0] for name in ran] == ([] if taken == "reference" else [taken])
    used(None)
    assert "not calibrated" in str(qkv.explain(q, q, q))


def test_built_in_figures_compare_all_forms_where_one_has_no_price(used) -> None:
    some = priced(1.0, 1.0, 1.0)
    used(replace(some, prices={"dense.softmax": some.prices["dense.softmax"]}))
    q = torch.zeros(1, 2, 37, 16)
    choice = qkv.explain(q, q, q)
    assert choice.machine is None
    assert choice.error is None
