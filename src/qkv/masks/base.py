"""`Mask`, the base class of all masks. One rule for all of them: True attends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from qkv.errors import MaskError, MaskTypeError, OptionTypeError, QkvError, complaint
from qkv.masks.band import Band
from qkv.masks.grid import BOOLEANS_ONLY, Extent, NumpyGrid, Region, TorchGrid, describe, is_tensor, shape_of, to_numpy

if TYPE_CHECKING:
    from jaxtyping import Bool
    from torch import Tensor

    from qkv.masks.grid import Grid, Range

Size = int | None
Sizes = tuple[Size, Size, Size, Size]


class Mask:
    """Which keys each query may attend to: True attends.

    Masks are immutable: what they are given is copied. They join with `&` (both allow) and `|` (either allows), and
    `print` draws them. They are predicates of absolute positions; the sizes come from the call, as an `Extent`.

    >>> from qkv.masks import Causal, Extent, Padding
    >>> mask = Causal() & Padding(lengths=[3, 5])
    >>> mask.population(batch=2, heads=7, len_q=5, len_k=5)
    189
    >>> mask.allows(batch=0, head=0, query=4, key=3, extent=Extent(2, 7, 5, 5))
    False
    """

    __slots__ = ("__weakref__", "_memo", "_signature")

    # None makes Python refuse `array & mask`, which numpy would apply element by element.
    __array_ufunc__: ClassVar[None] = None

    _memo: dict[str, tuple[Any, Any]]
    _signature: tuple[Any, ...]
    _equal_by_fields: ClassVar[bool] = False  # otherwise a mask equals itself only
    _names: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        slots = [name for kind in cls.__mro__ for name in getattr(kind, "__slots__", ())]
        cls._names = tuple(name for name in slots if not name.startswith("_"))

    def __init__(self, **fields: Any) -> None:
        """Keep the fields, each in a slot; the signature is the kind with its numbers and the shapes of its tensors."""
        sizes = {name: shape_of(value) if hasattr(value, "shape") else value for name, value in fields.items()}
        self._set_fields(_signature=(type(self).__name__, *sizes.values()), **fields)

    def _set_fields(self, **values: Any) -> None:
        object.__setattr__(self, "_memo", {})
        for name, value in values.items():
            object.__setattr__(self, name, value)

    # Used by attention.

    def signature(self) -> tuple[Any, ...]:
        """Kind, sizes and fixed numbers, without the contents of tensors: a key for cached decisions."""
        return self._signature

    def resolved(self, extent: Extent) -> Mask:
        """This mask with every offset filled in, after all checks that need no tensor's contents.

        Returns:
            The mask itself when there is nothing to fill in.

        Raises:
            MaskError: the mask does not fit the extent.
        """
        return self._resolve(extent, ())

    def check_contents(self, extent: Extent) -> None:
        """Refuse contents that do not fit, such as a length larger than the number of keys.

        Reads tensors, so it must not run in a traced program; a second call for the same extent is free.
        """
        for mask in self._inner():
            mask.check_contents(extent)

    def tile(
        self, extent: Extent, rows: Range, keys: Range, device: Any = None
    ) -> Bool[Tensor, "#batch #heads #rows #keys"]:
        """The mask for queries `rows[0]` to `rows[1] - 1` and keys `keys[0]` to `keys[1] - 1`.

        Four dimensions, each full or 1, so that it broadcasts to (batch, heads, rows, keys). Python never reads the
        contents of torch tensors here: compilers and vmap can trace it.
        """
        return self._resolve(extent, ()).cells(TorchGrid(extent, rows, keys, device))

    def allows(self, batch: int, head: int, query: int, key: int, extent: Extent) -> bool:
        """Whether this query may attend to this key."""
        position = (batch, head, query, key)
        if not all(0 <= p < n for p, n in zip(position, extent.shape, strict=True)):
            wanted = f"each below {extent.shape} and none negative"
            raise MaskError(complaint("(batch, head, query, key)", position, wanted))
        here = Region(*((at, at + 1) for at in position))
        return bool(self._resolve(extent, ()).cells(NumpyGrid(extent, here.rows, here.keys).over(extent, here)).all())

    def band(self, extent: Extent) -> Band | None:
        """The mask as one run of keys for each query, or None when it is not one. May read tensors."""
        band = self._resolve(extent, ())._band(extent)
        return None if band is None else band.simplified(extent.len_q, extent.len_k)

    def bounds(self, extent: Extent, rows: Range) -> Range:
        """A run of keys outside which none of the queries `rows[0]` to `rows[1] - 1` attends to anything.

        May be longer than necessary, and may read tensors.

        >>> from qkv.masks import Causal, Extent, Window
        >>> (Causal() & Window(left=2)).bounds(Extent(1, 1, len_q=11, len_k=11), rows=(5, 7))
        (3, 7)
        """
        lo, hi = self._resolve(extent, ())._bounds(extent, rows)
        return (lo, hi) if lo < hi and rows[0] < rows[1] else (0, 0)

    def part(
        self, extent: Extent, rows: Range, keys: Range, heads: Range | None = None, batch: Range | None = None
    ) -> Mask:
        """The mask for a call of four dimensions with only these queries and keys, and these heads and batch rows.

        Ranges are half-open; heads and batch default to all.

        >>> from qkv.masks import Causal, Extent
        >>> Causal().part(Extent(1, 1, len_q=11, len_k=11), rows=(5, 7), keys=(3, 11))
        Causal(offset=2)
        """
        region = Region(batch or (0, extent.batch), heads or (0, extent.heads), rows, keys)
        return self._resolve(extent, ())._cut(extent, region)

    def keys_kept(self, extent: Extent, device: Any = None) -> Bool[Tensor, "batch len_k"] | None:
        """The keys of each batch row that every query attends to; None when the mask also depends on query or head."""
        mask = self._resolve(extent, ())
        if not mask._depends_on_keys_only(extent):
            return None
        cells = mask.cells(TorchGrid(extent, (0, 1), (0, extent.len_k), device))
        return cells[:, 0, 0].expand(extent.batch, extent.len_k)

    def versions(self) -> tuple[int, ...]:
        """For each torch tensor in the mask, a number that changes when torch writes to it."""
        inner = [version for each in self._inner() for version in each.versions()]
        # Tensors of inference mode have no version.
        own = (value for value in self._fields().values() if is_tensor(value))
        return (*(0 if value.is_inference() else value._version for value in own), *inner)

    def _fields(self) -> dict[str, Any]:
        """The arguments of the constructor, as they are stored."""
        return {name: getattr(self, name) for name in self._names}

    def _inner(self) -> tuple[Mask, ...]:
        """The masks that this one is made of."""
        return ()

    def parts(self) -> tuple[Mask, ...]:
        """The masks that are joined by `&`, flat; `(self,)` for any other mask."""
        return (self,)

    # For people: counts, pictures, warnings, operators.

    def population(
        self, batch: Size | Extent = None, heads: Size = None, len_q: Size = None, len_k: Size = None
    ) -> int:
        """How many cells are True, exactly.

        Args:
            batch: the batch size, or an `Extent` with all sizes.
            heads, len_q, len_k: sizes. What is left out is taken from the mask; batch and heads are 1 otherwise.

        Bands, paddings, packed documents and a few of them joined are counted in closed form, at any size.
        """
        from qkv.masks.count import count

        return count(self, batch if isinstance(batch, Extent) else self.extent_of(batch, heads, len_q, len_k))

    def draw(self, len_q: Size = None, len_k: Size = None, *, batch: int = 0, head: int = 0, width: int = 80) -> str:
        """A picture of one batch row and head, at most `width` columns wide.

        Each sign is a cell, or a block of cells when there are more than 32 queries or keys: ■ attends,
        · does not, ▒ in part. Sizes that are left out are the mask's own, or an example.
        """
        from qkv.masks.draw import text

        return text(self, len_q, len_k, batch, head, width)

    def lint(self, extent: Extent | None = None) -> list[str]:
        """Warnings about likely mistakes, one sentence each, with what to do; empty when there are none.

        Without an extent, only warnings that hold at any size.
        """
        from qkv.masks.lint import lint

        return lint(self, extent)

    def __str__(self) -> str:
        try:
            return self.draw()
        except QkvError as error:  # print must not fail
            return f"{self!r}\n(not drawn: {error})"

    def _repr_html_(self) -> str:
        from qkv.masks.draw import html

        return html(self)

    def __and__(self, other: object) -> Mask:
        from qkv.masks.joined import And

        return And(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: object) -> Mask:
        from qkv.masks.joined import Or

        return Or(self, other) if isinstance(other, Mask) else NotImplemented

    def __eq__(self, other: object) -> bool:
        if self is other or not self._equal_by_fields or type(self) is not type(other):
            return self is other
        return self._fields() == other._fields()  # pyright: ignore[reportAttributeAccessIssue]

    def __hash__(self) -> int:
        return hash((type(self), *self._fields().values())) if self._equal_by_fields else id(self)

    def __bool__(self) -> bool:
        # Without this, `Causal() and Padding(...)` would silently be the padding alone.
        hint = "join masks with & and |, and test for a mask with `is not None`"
        raise MaskTypeError(complaint("truth value", repr(self), "no `and`, `or`, `not` or `if` on a mask", hint))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: make a new mask instead of setting {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name!r} cannot be deleted")

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:  # of copy and pickle; what is memoized stays
        self._set_fields(**{**state[1], "_memo": {}})

    # The rule, which each mask states; the rest is derived from it, and may be overridden where more is known.

    def cells(self, grid: Grid) -> Any:
        """The rule: booleans over the positions of a grid, in torch or numpy, for a mask that is resolved.

        Four dimensions, each full or 1. Written with operators that both libraries have, it gives tiles, single cells,
        parts, counts and pictures.
        """
        raise NotImplementedError

    def _resolve(self, extent: Extent, offsets: tuple[int, ...]) -> Mask:
        """`resolved`, given the offsets of the `Causal`s that `&` joins to this mask."""
        return self

    def _causal_offsets(self, extent: Extent) -> tuple[int, ...]:
        """The offsets of all `Causal`s in this mask."""
        return tuple(offset for mask in self._inner() for offset in mask._causal_offsets(extent))

    def _needs_offset(self) -> bool:
        """Whether a mask in here has no offset and takes one from a `Causal`."""
        return any(mask._needs_offset() for mask in self._inner())

    def _band(self, extent: Extent) -> Band | None:
        return None

    def _bounds(self, extent: Extent, rows: Range) -> Range:
        band = self._band(extent)
        if band is None:
            return 0, extent.len_k
        every_row = range(1 if band.is_uniform else extent.batch)
        return hull(band.bounds_for_rows(b, *rows, extent.len_k) for b in every_row)

    def _cut(self, extent: Extent, region: Region) -> Mask:
        """The part in a region of the scores; the mask is resolved."""
        return Part(self, extent, region)

    def _depends_on_keys_only(self, extent: Extent) -> bool:
        return False

    def _own_sizes(self) -> Sizes:
        """(batch, heads, len_q, len_k), None where the mask fits any."""
        return None, None, None, None

    def _example_length(self) -> int:
        """How many keys an example needs to show the whole rule; 0 when any number will do."""
        return max((mask._example_length() for mask in self._inner()), default=0)

    def extent_of(self, batch: Any, heads: Any, len_q: Any, len_k: Any, example: int | None = None) -> Extent:
        """Sizes without a call: those given, the mask's own, 1 row and head; `example` stands for missing lengths."""
        given = zip((batch, heads, len_q, len_k), self._own_sizes(), (1, 1, None, None), strict=True)
        batch, heads, len_q, len_k = (next((size for size in sizes if size is not None), None) for sizes in given)
        if example is not None:
            len_k = next(size for size in (len_k, len_q, self._example_length() or example) if size is not None)
            len_q = len_k if len_q is None else len_q
        for name, length in (("len_q", len_q), ("len_k", len_k)):
            if length is None:
                hint = f"{self!r} fits any length, so give {name}="
                raise OptionTypeError(complaint(name, None, "the number of positions", hint))
        return Extent.checked(batch, heads, len_q, len_k)

    def _cached(self, name: str, key: Any, make: Callable[[], Any]) -> Any:
        """The value last made under this name if its key is the same; tensors of a mask never change."""
        entry = self._memo.get(name)
        if entry is None or entry[0] != key:
            entry = self._memo[name] = key, make()
        return entry[1]


def hull(runs: Iterable[Range]) -> Range:
    """The shortest run that contains these; (0, 0) if all are empty."""
    seen = [run for run in runs if run[0] < run[1]] or [(0, 0)]
    return min(lo for lo, _ in seen), max(hi for _, hi in seen)


class Part(Mask):
    """A region of a mask's cells, as a mask."""

    __slots__ = ("extent", "mask", "region")
    mask: Mask
    extent: Extent
    region: Region

    def __init__(self, mask: Mask, extent: Extent, region: Region) -> None:
        signature = ("Part", mask.signature(), extent, region)
        self._set_fields(_signature=signature, mask=mask, extent=extent, region=region)

    def __repr__(self) -> str:
        return f"Part({self.mask!r}, {self.extent}, {self.region})"

    def cells(self, grid: Grid) -> Any:
        first = (start for start, _ in self.region)
        whole = Region(*((start + at, stop + at) for (start, stop), at in zip(grid.region, first, strict=True)))
        return self.mask.cells(grid.over(self.extent, whole))

    def versions(self) -> tuple[int, ...]:
        return self.mask.versions()


def as_mask(thing: object) -> Mask | None:
    """A mask or None as it is; anything else is refused with a hint at what to write instead.

    >>> as_mask([[True, False]])
    Traceback (most recent call last):
    qkv.errors.MaskTypeError: mask: got bool values of shape (1, 2), wanted a mask of qkv or None. \
Hint: wrap booleans in qkv.Dense(...); True attends.
    """
    if thing is None or isinstance(thing, Mask):
        return thing
    raise MaskTypeError(complaint("mask", describe(thing), "a mask of qkv or None", _hint_for(thing)))


def _hint_for(thing: Any) -> str:
    if isinstance(thing, type) and issubclass(thing, Mask):
        return f"write qkv.{thing.__name__}(...), with parentheses"
    if isinstance(thing, str):
        return 'masks are objects: qkv.Causal() is the one that others call "causal"'
    if is_tensor(thing) or hasattr(thing, "dtype") or isinstance(thing, (list, tuple)):
        if "bool" in describe(thing):
            return "wrap booleans in qkv.Dense(...); True attends"
        return _hint_for_numbers(thing)
    if callable(thing):
        return "wrap a function of (batch, head, query, key) in qkv.Predicate(...)"
    return "qkv.Causal(), Window, Padding, Segments, Dense and Predicate are masks"


def _hint_for_numbers(values: Any) -> str:
    """For numbers in place of a mask: a 0/1 mask, as transformers has them, or scores to add."""
    try:
        array = to_numpy(values)
        if not ((array == 0) | (array == 1)).all():
            return BOOLEANS_ONLY
    except (TypeError, ValueError, RuntimeError):  # a traced tensor, or rows of different lengths
        return BOOLEANS_ONLY
    booleans = "mask.bool()" if is_tensor(values) else "numpy.asarray(mask) != 0"
    if array.ndim <= 2:
        padding = f"for 1 = attend and 0 = padding, (batch, len_k), write qkv.Padding(keep={booleans})"
        return f"{padding}; for a row of each query, (len_q, len_k), qkv.Dense({booleans}); {BOOLEANS_ONLY}"
    return f"for 1 = attend and 0 = masked, write qkv.Dense({booleans}); {BOOLEANS_ONLY}"
