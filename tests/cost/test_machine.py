"""Machines: calibrations are stored, read, checked and used; known hardware has the figures of its data sheet."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import qkv
from qkv.cost import Hardware, hardware
from qkv.cost.machine import Machine, active_machine, as_hardware, cache_folder, calibration_path, use
from qkv.cost.price import Cost, Price
from qkv.errors import OptionError, OptionTypeError

ROOFS = {"read.memory": 2e10, "multiply.float32.square": 2e11}
PRICE = Price(1e-5, 1e-11, 1e-10)
MACHINE = Machine("a machine", 3, 5, 7 << 30, "2.13.0", "avx2", "2026-11-16", ROOFS, {"reference.softmax": PRICE}, {})


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
    assert [file.name for file in cache.iterdir()] == [where.name], "no temporary file is left"


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
def test_an_invalid_file_is_refused(cache: Path, text: str) -> None:
    calibration_path().parent.mkdir(exist_ok=True)
    calibration_path().write_text(text, encoding="utf-8")
    assert Machine.stored() is None
    with pytest.raises(OptionError, match="qkv calibrate"):
        Machine.read(calibration_path())


@pytest.mark.parametrize("wrong", ["Infinity", "NaN", "-1", "0", "true", "1e-300", "9" * 400, '"fast"', "null", "[1]"])
def test_impossible_figures_are_refused(cache: Path, wrong: str) -> None:
    text = MACHINE.store().read_text(encoding="utf-8").replace("20000000000.0", wrong)
    calibration_path().write_text(text, encoding="utf-8")
    assert Machine.stored() is None


@pytest.mark.parametrize("name", ["cores", "threads", "memory_bytes"])
@pytest.mark.parametrize("wrong", [0.5, 2.5, 0, -1])
def test_counts_are_positive_integers(cache: Path, name: str, wrong: float) -> None:
    found = json.loads(MACHINE.store().read_text(encoding="utf-8"))
    calibration_path().write_text(json.dumps({**found, name: wrong}), encoding="utf-8")
    with pytest.raises(OptionError, match="qkv calibrate"):
        Machine.read(calibration_path())


def test_a_binary_file_is_refused(cache: Path) -> None:
    calibration_path().write_bytes(os.urandom(4096))
    assert Machine.stored() is None


def test_a_pipe_or_a_device_is_not_waited_for(cache: Path) -> None:
    os.mkfifo(calibration_path())
    assert Machine.stored() is None
    calibration_path().unlink()
    calibration_path().symlink_to("/dev/zero")
    assert Machine.stored() is None


def test_implausible_roofs_are_reported() -> None:
    assert not replace(MACHINE, roofs={"read.cache": 6e10, "read.memory": 1e10, "threads.read": 1.9}).doubts
    busy = replace(MACHINE, roofs={"read.cache": 6e7, "read.memory": 1e10, "threads.multiply": 0.26})
    assert busy.doubts == ("read.cache is slower than read.memory", "threads.multiply: all threads are slower than one")


def test_another_number_of_threads_is_another_machine(used, threads) -> None:
    q = torch.zeros(1, 2, 37, 16)
    threads(1)
    used(priced(1.0, 2.0, 3.0))
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


def test_seconds_are_those_of_a_call_its_flops_and_its_bytes() -> None:
    cost = Cost(flops=10**9, traffic=10**8, extra=0, overhead=1.0)
    assert PRICE.seconds(cost) == pytest.approx(1e-5 + 1e-11 * 1e9 + 1e-10 * 1e8)
    slower = replace(cost, charged=3 * 10**9)
    assert PRICE.seconds(slower) == pytest.approx(1e-5 + 1e-11 * 3e9 + 1e-10 * 1e8)


@pytest.fixture
def used():
    before = active_machine()
    yield use
    use(before)


def priced(reference: float, sdpa: float, native: float) -> Machine:
    """A machine on which each engine takes a fixed time."""
    backends = {"reference": reference, "sdpa": sdpa, "native": native}
    prices = {f"{backend}.softmax.float32": Price(seconds, 0, 0) for backend, seconds in backends.items()}
    return replace(MACHINE, threads=torch.get_num_threads(), prices=prices, errors=dict.fromkeys(prices, 0.05))


def test_auto_uses_the_calibration_and_follows_changes(used) -> None:
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


def test_built_in_rates_apply_if_an_engine_has_no_price(used) -> None:
    some = priced(1.0, 1.0, 1.0)
    used(replace(some, prices={"reference.softmax.float32": some.prices["reference.softmax.float32"]}))
    q = torch.zeros(1, 2, 37, 16)
    choice = qkv.explain(q, q, q)
    assert choice.machine is None
    assert choice.error is None


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))


def test_every_machine_has_figures_and_a_source():
    for name, machine in hardware().items():
        assert machine.name == name
        assert machine.source
        assert machine.title
        assert 1e9 < machine.bandwidth < 1e13
        assert all(1e10 < rate < 1e16 for rate in machine.rates.values())
        assert isinstance(machine.memory, int)
        assert machine.rate("bfloat16") >= machine.rates.get("float32", 0) * 0.99


@pytest.mark.parametrize(
    ("name", "rate", "bandwidth", "gigabytes"),
    [
        ("a100-80gb", 312e12, 2039e9, 80),
        ("h100-sxm", 989.4e12, 3.35e12, 80),
        ("l4", 121e12, 300e9, 24),
        ("rtx-4090", 165.2e12, 1008e9, 24),
        ("mi300x", 1307.4e12, 5.3e12, 192),
    ],
)
def test_figures_of_data_sheets(name, rate, bandwidth, gigabytes):
    machine = hardware()[name]
    assert (machine.rate("bfloat16"), machine.bandwidth) == (rate, bandwidth)
    assert machine.memory == gigabytes * 10**9
    assert machine.ridge("bfloat16") == pytest.approx(rate / bandwidth)


def test_rates_of_processors_are_computed_and_say_how():
    epyc = hardware()["epyc-9654"]
    assert epyc.rates["float32"] == 96 * 2.4e9 * 16 * 2
    assert "96 cores × 2.4 GHz" in epyc.source


def test_a_dtype_without_a_rate_takes_the_nearest():
    machines = hardware()
    assert machines["t4"].rate_name("bfloat16") == "float16"
    assert machines["xeon-8380"].rate_name("bfloat16") == "float32"
    assert machines["h100-sxm"].rate_name("float32") == "float32"
    with pytest.raises(OptionError, match="float32"):
        Hardware("half", {"float16": 1e12}, 1e11, 2**34).rate("float32")


def test_this_machine_before_calibration(fresh):
    machine = as_hardware("here")
    assert not machine.measured
    assert "built-in" in machine.source
    assert machine.memory > 2**28


def test_this_machine_after_calibration(fresh):
    roofs = {"read.memory": 2e10, "multiply.float32.square": 3e11, "multiply.bfloat16.square": 6e11}
    Machine("a processor", 3, 3, 7 * 2**30, taken="today", roofs=roofs).store()
    machine = as_hardware("Here")
    assert machine.measured
    assert "a processor" in machine.title
    assert (machine.rate("bfloat16"), machine.rate("float32"), machine.bandwidth) == (6e11, 3e11, 2e10)
    assert machine.memory == 7 * 2**30


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("H100 SXM", "h100-sxm"),
        ("RTX 4090", "rtx-4090"),
        ("Xeon-8480+", "xeon-8480+"),
        ("M1", "m1"),
        ("mi300", "mi300x"),
    ],
)
def test_hardware_names_are_matched_loosely(typed, meant):
    assert as_hardware(typed).name == meant


def test_unknown_hardware_lists_the_nearest():
    with pytest.raises(OptionError, match="h100-sxm") as caught:
        as_hardware("h100")  # which one?
    assert "h100-pcie" in str(caught.value)
    with pytest.raises(OptionError, match="rtx-4090"):
        as_hardware("rtx-4900")
    with pytest.raises(OptionTypeError):
        as_hardware(7)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rates": {}}, {"rates": None}, {"rates": {"float32": 0}}, {"rates": {"float32": math.nan}},
        {"rates": {"float32": "fast"}}, {"bandwidth": -1}, {"bandwidth": math.inf}, {"memory": 0}, {"memory": 1.5},
    ],
)  # fmt: skip
def test_impossible_hardware_is_refused(wrong):
    with pytest.raises(OptionError):
        Hardware(**{"name": "x", "rates": {"float32": 1e12}, "bandwidth": 1e11, "memory": 2**34, **wrong})
