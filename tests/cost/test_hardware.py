"""Machines: data sheets as they are, rates that are computed, this machine before and after a calibration."""

import math

import pytest

from qkv.cost import Hardware, hardware
from qkv.cost.machine import Machine, as_hardware
from qkv.errors import OptionError, OptionTypeError


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
        assert isinstance(machine.cache, int)
        assert machine.rate("bfloat16") >= machine.rates["float32"] * 0.99


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
    assert machine.cache == gigabytes * 10**9
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
    assert machine.cache > 2**28


def test_this_machine_after_calibration(fresh):
    roofs = {"read.memory": 2e10, "multiply.float32.square": 3e11, "multiply.bfloat16.square": 6e11}
    Machine("a processor", 3, 3, 7 * 2**30, taken="today", roofs=roofs).store()
    machine = as_hardware("Here")
    assert machine.measured
    assert "a processor" in machine.title
    assert (machine.rate("bfloat16"), machine.rate("float32"), machine.bandwidth) == (6e11, 3e11, 2e10)
    assert machine.cache == 7 * 2**30


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
def test_names_as_people_type_them(typed, meant):
    assert as_hardware(typed).name == meant


def test_unknown_names_are_answered_with_the_nearest():
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
        {"rates": {"float32": "fast"}}, {"bandwidth": -1}, {"bandwidth": math.inf}, {"cache": 0}, {"cache": 1.5},
    ],
)  # fmt: skip
def test_figures_that_make_no_sense_are_refused(wrong):
    with pytest.raises(OptionError):
        Hardware(**{"name": "x", "rates": {"float32": 1e12}, "bandwidth": 1e11, "cache": 2**34, **wrong})
