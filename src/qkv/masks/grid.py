"""What masks are computed with: sizes, positions in torch or numpy, and the arrays that a mask stores.

A mask writes its rule once, in operators that both libraries have. With a `TorchGrid` the rule gives
tiles for attention; with a `NumpyGrid` it counts, draws and lints, and torch is not loaded.

Lists, arrays and tensors that are given to a mask are copied, so that later writes, which NumPy and `.data` do not
announce, cannot change it. `Dense.borrowed` makes a mask for one call without the copy.
"""

from __future__ import annotations

import sys
from copy import copy
from numbers import Integral
from typing import Any, NamedTuple, Self

from qkv.errors import MaskError, MaskTypeError, OptionError, OptionTypeError, complaint

Range = tuple[int, int]


class Extent(NamedTuple):
    """The sizes of the scores; `dims` is the number of dimensions of the caller's tensors.

    The scores are (batch, heads, len_q, len_k) for 4, (batch, len_q, len_k) for 3 and (len_q, len_k) for 2. Tiles
    always have four dimensions; only `Dense` needs `dims`, to align a mask of fewer dimensions.

    >>> Extent(batch=2, heads=3, len_q=5, len_k=7).scores
    (2, 3, 5, 7)
    >>> Extent(batch=2, heads=1, len_q=5, len_k=7, dims=3).scores
    (2, 5, 7)
    """

    batch: int
    heads: int
    len_q: int
    len_k: int
    dims: int = 4

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """All four sizes."""
        return self.batch, self.heads, self.len_q, self.len_k

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape of the scores in the caller's number of dimensions."""
        if self.dims == 4:
            return self.shape
        return (self.batch, self.len_q, self.len_k) if self.dims == 3 else (self.len_q, self.len_k)

    @property
    def cells(self) -> int:
        """How many scores there are."""
        return self.batch * self.heads * self.len_q * self.len_k

    @classmethod
    def checked(cls, batch: object, heads: object, len_q: object, len_k: object) -> Extent:
        """An extent from sizes that are checked to be integers, 0 or more."""
        return cls(as_size("batch", batch), as_size("heads", heads), as_size("len_q", len_q), as_size("len_k", len_k))


class Region(NamedTuple):
    """A part of the scores: half-open ranges of batch rows, heads, queries and keys."""

    batch: Range
    heads: Range
    rows: Range
    keys: Range

    @property
    def shift(self) -> int:
        """What is added to key - query when both are counted from the region's corner."""
        return self.rows[0] - self.keys[0]


def as_size(argument: str, given: Any) -> int:
    """A size: an integer that is not negative."""
    number = as_integer(argument, given)
    if number < 0:
        raise OptionError(complaint(argument, given, "a size, 0 or more"))
    return number


def as_integer(argument: str, given: Any) -> int:
    """An integer of Python or numpy; True and 1.0 are refused."""
    if type(given) is int:
        return given
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise OptionTypeError(complaint(argument, repr(given), "an integer"))
    return int(given)


class Grid:
    """The absolute positions in a part of the scores, each shaped to broadcast to (batch, heads, rows, keys).

    `rows` and `keys` are half-open ranges; batch rows and heads are all of the extent. `over` takes another region.
    """

    def __init__(self, extent: Extent, rows: Range, keys: Range, device: Any = None) -> None:
        self.extent, self.device = extent, device
        self.region = Region((0, extent.batch), (0, extent.heads), rows, keys)

    @property
    def rows(self) -> Range:
        return self.region.rows

    @property
    def keys(self) -> Range:
        return self.region.keys

    def batches(self) -> Any:
        return self.positions(0)

    def heads(self) -> Any:
        return self.positions(1)

    def query(self) -> Any:
        return self.positions(2)

    def key(self) -> Any:
        return self.positions(3)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tile."""
        return tuple(stop - start for start, stop in self.region)

    def cut(self, values: Any) -> Any:
        """The part of a mask's array or tensor of four dimensions; a dimension of 1 serves all positions."""
        full = zip(values.shape, self.region, strict=True)
        return self.to_array(values[tuple(slice(None) if size == 1 else slice(*part) for size, part in full)])

    def over(self, extent: Extent, region: Region) -> Self:
        """A grid of the same library over a region of these scores."""
        grid = copy(self)
        grid.extent, grid.region = extent, region
        return grid

    def positions(self, axis: int) -> Any:
        """The positions along one of the four axes."""
        return self.arange(*self.region[axis]).reshape((1,) * axis + (-1,) + (1,) * (3 - axis))

    def arange(self, start: int, stop: int) -> Any:
        """start to stop - 1, of one dimension."""
        raise NotImplementedError

    def to_array(self, values: Any) -> Any:
        """A tuple, numpy array or torch tensor of a mask as an array of this grid's library."""
        raise NotImplementedError


class TorchGrid(Grid):
    """Positions as int64 tensors on a device; the contents of tensors are never read."""

    def arange(self, start: int, stop: int) -> Any:
        import torch

        return torch.arange(start, stop, device=self.device)

    def to_array(self, values: Any) -> Any:
        import torch

        if isinstance(values, torch.Tensor):
            return values.to(self.device)
        return torch.as_tensor(values, device=self.device)


class NumpyGrid(Grid):
    """Positions as int64 arrays of numpy."""

    def arange(self, start: int, stop: int) -> Any:
        import numpy as np

        return np.arange(start, stop, dtype=np.int64)

    def to_array(self, values: Any) -> Any:
        return to_numpy(values)


BOOLEANS_ONLY = "masks are bool; use bias= for additive"


def is_tensor(thing: object) -> bool:
    """Whether this is a torch tensor; False without loading torch when torch is not loaded yet."""
    if "torch" not in sys.modules:
        return False
    import torch

    return isinstance(thing, torch.Tensor)


def shape_of(values: Any) -> tuple[int, ...]:
    """The sizes of an array, a tensor or a flat tuple."""
    return (len(values),) if isinstance(values, tuple) else tuple(values.shape)


def to_numpy(values: Any) -> Any:
    """The contents as a numpy array."""
    import numpy as np

    return values.detach().cpu().numpy() if is_tensor(values) else np.asarray(values)


def describe(values: Any) -> str:
    """Kind, dtype and shape for an error message.

    >>> describe([[1, 0], [1, 1]])
    'int64 values of shape (2, 2)'
    """
    if is_tensor(values):
        return f"a {values.dtype} tensor of shape {tuple(values.shape)}"
    if hasattr(values, "dtype") and hasattr(values, "shape"):
        return f"{_dtype_name(values)} values of shape {tuple(values.shape)}"
    if isinstance(values, (list, tuple)):
        import numpy as np

        try:
            return describe(np.asarray(values))
        except ValueError:
            return f"a {type(values).__name__} whose rows have different lengths"
    text = repr(values)
    return text if len(text) <= 60 else f"{text[:57]}..."


def brief_repr(values: Any) -> str:
    """Values in a mask's repr: short lists in full, others by dtype and shape.

    >>> brief_repr((3, 5))
    '[3, 5]'
    """
    if isinstance(values, tuple):
        return str(list(values)) if len(values) <= 8 else f"<{len(values)} integers>"
    return f"<{_dtype_name(values)} {tuple(values.shape)}>"


def as_booleans(argument: str, values: Any, shape: str, copy: bool = True) -> Any:
    """A copy of booleans: a tensor of a tensor, a numpy array of anything else.

    >>> as_booleans("keep", [1, 0], "(len_k,)")
    Traceback (most recent call last):
    qkv.errors.MaskTypeError: keep: got int64 values of shape (2,), wanted booleans of shape (len_k,), \
True where a query may attend. Hint: masks are bool; use bias= for additive; x != 0 makes booleans of 0 and 1.
    """
    meaning = "True where a key is ignored" if argument.startswith("drop") else "True where a query may attend"
    wanted = f"booleans of shape {shape}, {meaning}"
    return _copied(argument, values, ("bool",), wanted, f"{BOOLEANS_ONLY}; x != 0 makes booleans of 0 and 1", copy)


def as_integers(argument: str, values: Any, shape: str, hint: str = "") -> Any:
    """A copy of integers: a tensor of a tensor, an int64 numpy array of anything else; booleans are refused."""
    wanted = f"integers of shape {shape}"
    # uint64 does not fit into int64: its large values would come out negative.
    array = _copied(argument, values, ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32"), wanted, hint)
    return array if is_tensor(array) else array.astype("int64")


def _copied(argument: str, values: Any, dtypes: tuple[str, ...], wanted: str, hint: str, copy: bool = True) -> Any:
    if is_tensor(values):
        import torch

        if values.is_nested or values.is_meta or values.layout is not torch.strided:
            kind = "nested" if values.is_nested else "meta" if values.is_meta else str(values.layout)
            raise MaskTypeError(complaint(argument, f"a {kind} tensor", "an ordinary (strided) tensor with contents"))
        if (name := _dtype_name(values)) not in dtypes or name in ("uint16", "uint32"):
            hint = hint or "convert with .to(torch.int64)"
            raise MaskTypeError(complaint(argument, describe(values), wanted, hint))
        return _copied_tensor(values) if copy else values
    import numpy as np

    try:
        array = np.array(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise MaskError(complaint(argument, describe(values), wanted, hint)) from error
    # numpy gives an empty list the dtype float64, but there is no value of a wrong type.
    if array.dtype.name not in dtypes and not (isinstance(values, (list, tuple)) and array.size == 0):
        raise MaskTypeError(complaint(argument, describe(values), wanted, hint))
    return array.astype(dtypes[0])


def _copied_tensor(tensor: Any) -> Any:
    import torch

    if torch.compiler.is_compiling():
        return tensor  # in a compiled program no write goes unnoticed
    strides = tensor.stride()
    if 0 not in strides:
        return tensor.clone()
    # What `expand` repeats is copied once.
    return tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)].clone().expand(tensor.shape)


def _dtype_name(values: Any) -> str:
    return str(values.dtype).removeprefix("torch.")
