"""The tools that count what a module does, each run as its documentation says, on tensors that take no cache."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from importlib.util import find_spec
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

Counter = Callable[[nn.Module, tuple[Tensor, ...]], int]


class Tool(NamedTuple):
    """package: what has to be installed. where: within it tensors are made that take no cache; the tool counts
    outside, where nothing stands between its functions and torch's. count: flops, as the tool says."""

    name: str
    package: str
    where: Callable[[], AbstractContextManager[object]]
    count: Counter

    @property
    def is_installed(self) -> bool:
        return find_spec(self.package) is not None

    @property
    def label(self) -> str:
        number = version(self.package).partition("+")[0]
        return self.name.replace(self.package, f"{self.package} {number}")


def with_calflops(module: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    from calflops import calculate_flops  # pyright: ignore[reportMissingImports]

    with _torch_put_back():
        flops, _, _ = calculate_flops(module, args=list(inputs), print_results=False, output_as_string=False)
    return int(flops)


def with_fvcore(module: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    from fvcore.nn import FlopCountAnalysis  # pyright: ignore[reportMissingImports]

    analysis = FlopCountAnalysis(module, inputs)
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
    return int(analysis.total())


def with_torch(module: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    with getattr(inputs[0], "fake_mode", nullcontext()), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return int(counter.get_total_flops())


# torch's counter goes by the operators that a device runs, so that its answer depends on the device.
TOOLS = (
    Tool("calflops", "calflops", lambda: torch.device("meta"), with_calflops),
    Tool("fvcore", "fvcore", lambda: torch.device("meta"), with_fvcore),
    Tool("torch FlopCounterMode, CPU tensors", "torch", FakeTensorMode, with_torch),
    Tool("torch FlopCounterMode, meta tensors", "torch", lambda: torch.device("meta"), with_torch),
)


@contextmanager
def quietly() -> Iterator[None]:
    """Without gradients, and without the warnings of tools that are older than this torch."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _torch_put_back() -> Iterator[None]:
    """calflops puts functions of its own into torch; an error on the way would leave them there for good."""
    homes = (torch, torch.Tensor, F)
    before = [dict(vars(home)) for home in homes]
    try:
        yield
    finally:
        for home, names in zip(homes, before, strict=True):
            for name, thing in names.items():
                if vars(home).get(name) is not thing:
                    setattr(home, name, thing)
        for name in set(vars(torch.Tensor)) - set(before[1]):
            delattr(torch.Tensor, name)
