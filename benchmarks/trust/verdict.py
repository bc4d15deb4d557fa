"""The verdicts of a probe, and its comparisons."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

RIGHT, WRONG, CRASH, NONE = "right", "wrong", "crash", "not offered"
MARKS = {RIGHT: "✓", WRONG: "✗", CRASH: "☠", NONE: "·"}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}
# Source paths, and the prefixes of onnxruntime's messages.
_PLACES = re.compile(r"\[ONNXRuntimeError\] : \d+ : |Non-zero status code .*? Status Message: |/\S+/|\S+\.cc:\d+ ")
LONGEST = 300  # characters of what was seen


class Wrong(Exception):
    """The subject did not do what the row asks for."""


class Crashed(Exception):
    """A process that the probe started crashed or hung."""


class NotOffered(Exception):
    """The subject does not have the feature of the row."""


def in_one_line(error: BaseException) -> str:
    """An error in one line of bounded length."""
    text = _PLACES.sub("", " ".join(str(error).split()))
    return f"{type(error).__name__}: {text}"[:200] if text else type(error).__name__


def each(cases: Mapping[str, Callable[[], str | None]]) -> str:
    """Run all cases and return the last observation; raises Wrong with everything that failed."""
    failed, seen, tried, missing = [], "", 0, ""
    for name, run in cases.items():
        try:
            seen = run() or seen
        except NotOffered as reason:
            missing = str(reason)
            continue
        except Wrong as wrong:
            failed.append(f"{name}: {wrong}")
        except Crashed:
            raise
        except Exception as error:  # any exception instead of a result
            failed.append(f"{name}: raised {in_one_line(error)}")
        tried += 1
    if failed:
        raise Wrong("; ".join(failed))
    if not tried:
        raise NotOffered(missing)
    return seen or f"{tried} cases as they should be"


def refused(run: Callable[[], Any], own: type[BaseException] = Exception) -> str:
    """The message of the refusal, which has to be of type `own`."""
    try:
        run()
    except (NotOffered, Wrong, Crashed):
        raise
    except own as error:
        if not str(error).strip():
            raise Wrong(f"refused without a message, by {type(error).__name__}") from error
        return f"refused: {in_one_line(error)}"
    except Exception as error:
        raise Wrong(f"refused by an unexpected {in_one_line(error)}") from error
    raise Wrong("accepted without an error")


def close(got: Tensor, want: Tensor, dtype: torch.dtype, what: str = "the result") -> None:
    """Compare within the dtype's tolerance of the largest number; NaN and infinity have to be at the same places."""
    got, want = got.detach().double(), want.detach().double()
    if got.shape != want.shape:
        raise Wrong(f"{what} has shape {tuple(got.shape)}, not {tuple(want.shape)}")
    extra, hidden = got.isnan() & ~want.isnan(), want.isnan() & ~got.isnan()
    if extra.any():
        raise Wrong(f"{what} has NaN in {int(extra.sum())} of {want.numel()} numbers that should have none")
    if hidden.any():
        raise Wrong(f"{what} hides NaN in {int(hidden.sum())} of {int(want.isnan().sum())} numbers")
    finite = want.isfinite()
    rest = ~finite & ~want.isnan()
    if not torch.equal(got[rest], want[rest]):
        raise Wrong(f"{what} is finite where it should be infinite")
    if finite.any():
        unit = max(1.0, float(want[finite].abs().max()))
        error = float((got[finite] - want[finite]).abs().max())
        if not error <= TOLERANCE[dtype] * unit:
            raise Wrong(f"{what} is off by {error:.2g}, where the largest number is {unit:.2g}")


def same_bits(got: Tensor, want: Tensor, what: str) -> None:
    if got.dtype != want.dtype or got.shape != want.shape:
        raise Wrong(f"{what}: {got.dtype} {tuple(got.shape)} instead of {want.dtype} {tuple(want.shape)}")
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    one, other = (tensor.detach().contiguous().view(width) for tensor in (got, want))
    if not torch.equal(one, other):
        off = float((got.double() - want.double()).abs().max())
        raise Wrong(f"{what}: {int((one != other).sum())} of {one.numel()} numbers differ, by up to {off:.2g}")


def zeros(tensor: Tensor, what: str) -> None:
    """Check that all numbers are exactly 0."""
    if tensor.isnan().any():
        raise Wrong(f"{what} is NaN")
    if (tensor != 0).any():
        raise Wrong(f"{what} is not 0 (up to {float(tensor.double().abs().max()):.2g})")
