"""Numbers with units: every prefix of every unit, numbers as people write them, and units that are refused."""

from __future__ import annotations

import resource
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from qkv.exercises import Given
from qkv.exercises.findings import CannotSolve
from qkv.exercises.units import amount, chips, element_bytes, format_of, number_text, quantity, with_unit
from qkv.maths import compare


@pytest.mark.parametrize(("power", "prefix"), list(enumerate(["", "k", "M", "G", "T", "P"])))
def test_prefixes(power: int, prefix: str) -> None:
    assert quantity(f"7 {prefix}B", "", "B") == 7 * 1000**power
    assert quantity(7, f"{prefix}B/s", "B/s") == quantity(7, f"{prefix}B per second", "B/s") == 7 * 1000**power
    assert quantity(f"7{prefix}FLOP/s", "", "FLOP/s") == quantity(7, f"{prefix}FLOPS", "FLOP/s") == 7 * 1000**power
    assert quantity(f"8 {prefix}bit/s", "", "B/s") == 1000**power
    if prefix:
        assert quantity(f"7 {prefix}iB".replace("k", "K"), "", "B") == 7 * 1024**power
        assert quantity(f"7 {prefix}B", "", "B", binary=True) == 7 * 1024**power


@pytest.mark.parametrize(
    ("value", "unit", "number"),
    [
        ("13B", "", 13 * 10**9), ("2T tokens", "", 2 * 10**12), (1.5, "trillion tokens", 15 * 10**11),
        ("7 billion parameters", "", 7 * 10**9), ("4,096", "", 4096), ("3 x 10^12", "", 3 * 10**12),
        ("2^20", "", 2**20), ("1e3", "", 1000), ("40%", "", Fraction(2, 5)), ("32k", "", 32000),
        ("400 tokens/s", "", 400), ("1/3", "", Fraction(1, 3)), (0.1, "", Fraction(1, 10)), ("16 GPUs", "", 16),
    ],
)  # fmt: skip
def test_plain_numbers(value: object, unit: str, number: object) -> None:
    assert quantity(value, unit) == number


@pytest.mark.parametrize(
    ("unit", "seconds"), [("ms", Fraction(1, 1000)), ("min", 60), ("hours", 3600), ("days", 86400)]
)
def test_times(unit: str, seconds: object) -> None:
    assert amount(Given(role="seconds", value=1, unit=unit)) == seconds


@pytest.mark.parametrize(
    ("role", "value", "said"),
    [
        ("memory", "16 furlongs", "furlongs"), ("bandwidth", "16 GB", "bytes a second"),
        ("parameters", "16 GB", "plain"),
        ("rate", "3 GB/s", "operations"), ("memory", "lots", "number"), ("seconds", "3 kB", "time"),
        ("memory", True, "number"), ("memory", "5 Zorg/s", "Zorg"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(role: str, value: object, said: str) -> None:
    with pytest.raises(CannotSolve, match=said):
        amount(Given(role=role, value=value))  # pyright: ignore[reportArgumentType]


def test_slices_and_formats() -> None:
    assert [chips(each) for each in ("4x4", "2x2x4", "8×16", 12, "32 chips")] == [16, 16, 128, 12, 32]
    with pytest.raises(CannotSolve):
        chips("0")
    bits = {"fp32": 32, "float16": 16, "bf16": 16, "int8": 8, "FP8": 8, "8-bit": 8, "int4": 4, "torch.float64": 64}
    assert {name: 8 * element_bytes(name) for name in bits} == bits
    assert [format_of(each) for each in ("fp16", "bf16", "fp8", "8-bit", 4, "int4")] == [
        "float16", "bfloat16", "fp8", "int8", "float32", "int4",
    ]  # fmt: skip
    with pytest.raises(CannotSolve):
        element_bytes("float12ish")


@pytest.mark.parametrize(
    "value", [7, 10**15 + 1, 3 * 10**22, Fraction(1, 3), Fraction(99999999, 10**9), 2.5e-9, 123456.789]
)
def test_texts_keep_five_digits(value: Fraction | float) -> None:
    text = number_text(value)
    assert compare(text, text, {}).kind == "equal"
    read = Fraction(text.split("*")[0]) * Fraction(10) ** int(text.split("^")[1]) if "*" in text else Fraction(text)
    assert (
        abs(read - Fraction(str(value)) if isinstance(value, float) else read - value) <= abs(Fraction(value)) / 10**4
    )
    assert not isinstance(value, int) or read == value


def test_texts_with_units_are_read_by_maths() -> None:
    assert compare(with_unit(2621440, "MB", "B"), "2621440 bytes", {}).kind == "equal"
    assert compare(with_unit(Fraction(3, 2000), "ms", "s"), "0.0015 s", {}).kind == "equal"
    for unit in ("s", "min", "hr", "h", "days", "weeks", "months", "years"):
        text = with_unit(Fraction(10**7, 3), unit, "s")
        assert compare(text, text, {}).kind == "equal"
    assert (
        compare(with_unit(Fraction(10**7, 3), "days", "s"), with_unit(Fraction(10**7, 3), "weeks", "s"), {}).kind
        == "equal"
    )


def test_solving_a_file_is_quick_and_the_package_does_not_import_pydantic(tmp_path: Path) -> None:
    code = "import sys, qkv; print(sorted({'pydantic', 'torch', 'sympy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    path = tmp_path / "one.toml"
    path.write_text(
        '[[givens]]\nrole = "parameters"\nvalue = "7B"\n[[givens]]\nrole = "dtype"\nvalue = "bf16"\n'
        '[[asked]]\nquantity = "weight_bytes"\n'
    )
    command = [sys.executable, "-c", "from qkv.cli import main; main()", "solve", str(path)]
    seconds = []
    for _ in range(3):  # the shortest of three: other processes on the machine make each of them longer
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert "14 GB" in done.stdout
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.7
