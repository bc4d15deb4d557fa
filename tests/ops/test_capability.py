"""Which native library, which instruction set, and why not."""

import os
import subprocess
import sys
from types import ModuleType

import pytest

from qkv import ops
from qkv.errors import OptionError
from qkv.ops import loader


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {name: value for name, value in os.environ.items() if not name.startswith("QKV_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env=settings | environment,
    )


def test_native_library_is_built() -> None:
    assert ops.available(), ops.reasons()
    assert ops.reasons() == ()
    assert ops.isa() in ops.isas()
    assert ops.isas()[-1] == "portable"
    assert ops.refused_isas() == {}


def test_asking_what_there_is_needs_no_torch() -> None:
    done = python("import sys; from qkv import kernels; kernels.isa(); print('torch' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


def test_one_thread_until_torch_is_there() -> None:
    done = python(
        "from qkv import kernels; print(len(kernels.reasons_for_one_thread()));"
        "import torch; print(kernels.reasons_for_one_thread())"
    )
    assert done.stdout.split("\n")[:2] == ["1", "()"], done.stderr


@pytest.mark.parametrize("isa", ops.isas())
def test_every_instruction_set_gives_the_same_answer_in_whole_numbers(isa: str) -> None:
    code = (
        "import torch; from qkv import kernels; torch.manual_seed(3);"
        "q = torch.randint(-3, 4, (2, 6, 43, 17)).float(); k = torch.randint(-3, 4, (2, 3, 101, 17)).float();"
        "s = torch.einsum('bhid,bhjd->bhij', q.double(), k.double().repeat_interleave(2, 1));"
        "first = (s == s.amax(-1, keepdim=True)).int().argmax(-1);"
        "assert torch.equal(kernels.argmax_scores(q, k), first);"
        "assert kernels.all_finite(q, k) and not kernels.all_finite(q / 0);"
        "print(kernels.isa())"
    )
    assert python(code, QKV_ISA=isa).stdout.strip() == isa


def test_an_instruction_set_that_cannot_be_had_is_refused_in_words() -> None:
    done = python("from qkv import kernels; print('imported'); kernels.isa()", QKV_ISA="avx1024")
    assert done.stdout.strip() == "imported"
    assert "OptionError: QKV_ISA: got 'avx1024', wanted one of" in done.stderr


def test_without_the_native_library() -> None:
    code = (
        "import torch; from qkv import kernels;"
        "print(kernels.available(), kernels.reasons(), kernels.isa(), kernels.isas(), kernels.calls());"
        "kernels.reset_calls();"
        "assert kernels.reasons_for_one_thread() == ();"
        "x = torch.ones(2, 3);"
        "assert kernels.all_finite(x, x.t(), x.bfloat16()) and not kernels.all_finite(x / 0);"
        "kernels.argmax_scores(x[None, None], x[None, None])"
    )
    done = python(code, QKV_NATIVE="0")
    assert done.stdout.strip() == "False ('QKV_NATIVE=0 is set',) none () {}", done.stderr
    assert "BackendRefused" in done.stderr


def test_an_extension_that_does_not_load_is_a_reason_not_an_error() -> None:
    code = (
        "import sys; sys.modules['qkv.ops._native'] = None;"
        "from qkv import kernels; print(kernels.available(), kernels.reasons()[0][:31])"
    )
    assert python(code).stdout.strip() == "False the native library is not built"


class Machine(ModuleType):
    """A native library whose instruction sets fail as told."""

    def __init__(self, **faults: str) -> None:
        super().__init__("machine")
        self.faults = faults
        self.used: str | None = None

    def isas(self) -> list[str]:
        return list(self.faults)

    def self_check(self, isa: str) -> str:
        return self.faults[isa]

    def use(self, isa: str) -> None:
        self.used = isa


def test_the_next_instruction_set_is_taken_when_one_fails_its_self_check() -> None:
    machine = Machine(fast="chose key 3 instead of 5", slow="")
    found = loader.choose_isa(machine, "")
    assert (machine.used, found.isa, found.reasons) == ("slow", "slow", ())
    assert found.refused == {"fast": "chose key 3 instead of 5"}


def test_one_that_was_asked_for_by_name_is_not_replaced() -> None:
    machine = Machine(fast="chose key 3 instead of 5", slow="")
    with pytest.raises(OptionError, match="chose key 3 instead of 5"):
        loader.choose_isa(machine, "fast")
    assert machine.used is None


def test_nothing_is_used_when_all_fail() -> None:
    found = loader.choose_isa(Machine(fast="a", slow="b"), "")
    assert found.native is None
    assert found.reasons == ("fast failed its self-check: a", "slow failed its self-check: b")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match=r"dir\(qkv\.kernels\)"):
        ops.argmin_scores  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    assert set(dir(ops)) == set(ops.__all__)
