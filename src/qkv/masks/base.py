"""What every mask can do. One rule for all of them: True attends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from qkv.errors import MaskError, MaskTypeError, OptionTypeError, QkvError, complaint
from qkv.masks.arrays import described, is_tensor, version
from qkv.masks.grid import Extent, Grid, Part, TorchGrid

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Bool
    from torch import Tensor

    from qkv.masks.band import Band

    Known = tuple[int | None, int | None, int | None, int | None]


class Mask:
    """Which keys each query may attend to: True attends.

    Masks are immutable, join with `&` (both allow) and `|` (either allows), and draw themselves with
    `print`. They are predicates of absolute positions; sizes come from the call, as an `Extent`.

    >>> from qkv.masks import Causal, Extent, Padding
    >>> mask = Causal() & Padding(lengths=[3, 5])
    >>> mask.population(batch=2, heads=7, len_q=5, len_k=5)
    189
    >>> mask.allows(batch=0, head=0, query=4, key=3, extent=Extent(2, 7, 5, 5))
    False
    """

    __slots__ = ("__weakref__", "_memo", "_signature")

    # numpy would take `array & mask` apart, element by element; None leaves it to Python, which refuses.
    __array_ufunc__: ClassVar[None] = None

    _memo: dict[str, tuple[Any, Any]]
    _signature: tuple[Any, ...]

    def _fill(self, signature: tuple[Any, ...], **values: Any) -> None:
        object.__setattr__(self, "_memo", {})
        object.__setattr__(self, "_signature", signature)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    # What a call needs.

    def signature(self) -> tuple[Any, ...]:
        """Kind, sizes and fixed numbers, without the contents of tensors: a key to remember decisions by."""
        return self._signature

    def resolved(self, extent: Extent) -> Mask:
        """This mask with every offset filled in, after all checks that need no tensor's contents.

        Returns the mask itself when there is nothing to fill in; raises `MaskError` when it does not fit.
        """
        return self._resolve(extent, ())

    def check_contents(self, extent: Extent) -> None:
        """Refuse contents that do not fit, such as a length beyond the last key.

        Reads tensors, so it is no part of a traced program; a second call for the same extent is free.
        """

    def tile(
        self, extent: Extent, rows: tuple[int, int], keys: tuple[int, int], device: Any = None
    ) -> Bool[Tensor, "#batch #heads #rows #keys"]:
        """The mask for queries `rows[0]` to `rows[1] - 1` and keys `keys[0]` to `keys[1] - 1`.

        Four dimensions, each full or 1, so that it broadcasts to (batch, heads, rows, keys). The
        contents of torch tensors are never read by Python: compilers and vmap can trace it.
        """
        return self._resolve(extent, ())._cells(TorchGrid(extent, rows, keys, device))

    def allows(self, batch: int, head: int, query: int, key: int, extent: Extent) -> bool:
        """Whether this one query may attend to this one key: the specification of everything else."""
        position = (batch, head, query, key)
        if not all(0 <= p < n for p, n in zip(position, extent.shape, strict=True)):
            wanted = f"each below {extent.shape} and none negative"
            raise MaskError(complaint("(batch, head, query, key)", position, wanted))
        return self._resolve(extent, ())._allows(batch, head, query, key, extent)

    def band(self, extent: Extent) -> Band | None:
        """The mask as one run of keys for each query, or None when it is none. May read tensors."""
        band = self._resolve(extent, ())._band(extent)
        return None if band is None else band.simplified(extent.len_q, extent.len_k)

    def bounds(self, extent: Extent, rows: tuple[int, int]) -> tuple[int, int]:
        """Keys outside this run are seen by none of the queries `rows[0]` to `rows[1] - 1`; inside, some may be. May
        read tensors.

        >>> from qkv.masks import Causal, Extent, Window
        >>> (Causal() & Window(left=2)).bounds(Extent(1, 1, len_q=11, len_k=11), rows=(5, 7))
        (3, 7)
        """
        lo, hi = self._resolve(extent, ())._bounds(extent, rows)
        return (lo, hi) if lo < hi and rows[0] < rows[1] else (0, 0)

    def part(
        self,
        extent: Extent,
        rows: tuple[int, int],
        keys: tuple[int, int],
        heads: tuple[int, int] | None = None,
        batch: tuple[int, int] | None = None,
    ) -> Mask:
        """The mask of a part of the scores, for a call of four dimensions with these queries and keys alone, and with
        some heads or batch rows where they are named.

        >>> from qkv.masks import Causal, Extent
        >>> Causal().part(Extent(1, 1, len_q=11, len_k=11), rows=(5, 7), keys=(3, 11))
        Causal(offset=2)
        """
        every = (0, extent.heads), (0, extent.batch)
        place = Part(rows, keys, every[0] if heads is None else heads, every[1] if batch is None else batch)
        return self._resolve(extent, ())._part(extent, place)

    def keys_kept(self, extent: Extent, device: Any = None) -> Bool[Tensor, "batch len_k"] | None:
        """For a mask that only says which keys of a batch row count: which ones. None for all others."""
        mask = self._resolve(extent, ())
        if not mask._only_keys(extent):
            return None
        cells = mask._cells(TorchGrid(extent, (0, 1), (0, extent.len_k), device))
        return cells[:, 0, 0].expand(extent.batch, extent.len_k)

    def versions(self) -> tuple[int, ...]:
        """A number for each torch tensor in the mask that changes when it is written to."""
        names = [name for cls in type(self).__mro__ for name in getattr(cls, "__slots__", ())]
        held = [getattr(self, name, None) for name in names if not name.startswith("_")]
        return tuple(version(thing) or 0 for thing in held if is_tensor(thing))

    def parts(self) -> tuple[Mask, ...]:
        """The masks that `&` joined, flat; a mask that is no `&` is its own only part."""
        return (self,)

    # What people need.

    def population(
        self,
        batch: int | Extent | None = None,
        heads: int | None = None,
        len_q: int | None = None,
        len_k: int | None = None,
    ) -> int:
        """How many cells are True, exactly. Takes an `Extent`, or sizes.

        Sizes left out are the mask's own where it has them; batch and heads are 1 otherwise. Bands,
        paddings, packed documents and a few of them joined are counted in closed form, at any size.
        """
        from qkv.masks.count import count

        return count(self, batch if isinstance(batch, Extent) else self._extent(batch, heads, len_q, len_k))

    def draw(
        self,
        len_q: int | None = None,
        len_k: int | None = None,
        *,
        batch: int = 0,
        head: int = 0,
        width: int = 80,
    ) -> str:
        """A picture of one batch row and head, `width` columns wide at most.

        Each sign is a cell, or a block of cells when there are more than 32 queries or keys: ■ attends,
        · does not, ▒ partly. Sizes left out are the mask's own, or an example.
        """
        from qkv.masks.draw import text

        return text(self, len_q, len_k, batch, head, width)

    def lint(self, extent: Extent | None = None) -> list[str]:
        """What looks odd, one sentence each with what to do; empty when nothing does.

        Without an extent, only what holds for the mask at any lengths that it leaves open.
        """
        from qkv.masks.lint import lint

        return lint(self, extent)

    def __str__(self) -> str:
        try:
            return self.draw()
        except QkvError as error:  # print must not fail: say what is known
            return f"{self!r}\n(not drawn: {error})"

    def _repr_html_(self) -> str:
        from qkv.masks.draw import html

        return html(self)

    def __and__(self, other: object) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        from qkv.masks.joined import And

        return And(self, other)

    def __or__(self, other: object) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        from qkv.masks.joined import Or

        return Or(self, other)

    def __bool__(self) -> bool:
        # `Causal() and Padding(...)` would otherwise be just the padding, without a word.
        hint = "join masks with & and |, and ask for one with `is not None`"
        raise MaskTypeError(complaint("truth value", repr(self), "no `and`, `or`, `not` or `if` on a mask", hint))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: make a new mask instead of setting {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name!r} cannot be deleted")

    def __getstate__(self) -> dict[str, Any]:
        names = [name for cls in type(self).__mro__ for name in getattr(cls, "__slots__", ())]
        return {name: getattr(self, name) for name in names if name not in ("__weakref__", "_memo")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        signature = state.pop("_signature")
        self._fill(signature, **state)

    # What each kind fills in.

    def _resolve(self, extent: Extent, beside: tuple[int, ...]) -> Mask:
        """`resolved`, told the offsets of the `Causal`s that `&` puts beside this mask."""
        return self

    def _causal_offsets(self, extent: Extent) -> tuple[int, ...]:
        """The offsets of all `Causal`s in this mask."""
        return ()

    def _floats(self) -> bool:
        """Whether something in here has no offset of its own and would take one from a `Causal`."""
        return False

    def _cells(self, grid: Grid) -> Any:
        """The rule, over a grid of torch or numpy; the mask is resolved."""
        raise NotImplementedError

    def _allows(self, batch: int, head: int, query: int, key: int, extent: Extent) -> bool:
        """The rule, for one cell, in Python; the mask is resolved."""
        raise NotImplementedError

    def _band(self, extent: Extent) -> Band | None:
        return None

    def _bounds(self, extent: Extent, rows: tuple[int, int]) -> tuple[int, int]:
        band = self._band(extent)
        if band is None:
            return 0, extent.len_k
        every_row = range(extent.batch) if band.starts is not None or band.stops is not None else range(1)
        runs = [band.bounds_for_rows(b, *rows, extent.len_k) for b in every_row]
        seen = [run for run in runs if run[0] < run[1]] or [(0, 0)]
        return min(lo for lo, _ in seen), max(hi for _, hi in seen)

    def _part(self, extent: Extent, place: Part) -> Mask:
        """The mask is resolved."""
        raise NotImplementedError

    def _only_keys(self, extent: Extent) -> bool:
        return False

    def _known(self) -> Known:
        """(batch, heads, len_q, len_k), None where the mask fits any."""
        return None, None, None, None

    def _reach(self) -> int:
        """How many keys an example has to have to show everything; 0 when it does not matter."""
        return 0

    def _extent(self, batch: Any, heads: Any, len_q: Any, len_k: Any) -> Extent:
        given = {"batch": batch, "heads": heads, "len_q": len_q, "len_k": len_k}
        sizes: dict[str, Any] = {}
        for (name, value), own in zip(given.items(), self._known(), strict=True):
            default = 1 if name in ("batch", "heads") else None
            sizes[name] = next((size for size in (value, own, default) if size is not None), None)
            if sizes[name] is None:
                hint = f"{self!r} fits any length, so it has to be told"
                raise OptionTypeError(complaint(name, None, "the number of positions", hint))
        return Extent.checked(**sizes)

    def _remembered(self, name: str, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """The last thing made under this name, if for the same key. A key with None is never kept."""
        entry = self._memo.get(name)
        if entry is not None and entry[0] == key:
            return entry[1]
        value = make()
        if None not in key:
            self._memo[name] = (key, value)
        return value


def as_mask(thing: object) -> Mask | None:
    """A mask or None as it is; anything else is refused, with what to write instead.

    >>> as_mask([[True, False]])
    Traceback (most recent call last):
    qkv.errors.MaskTypeError: mask: got bool values of shape (1, 2), wanted a mask of qkv or None. \
Hint: wrap booleans in qkv.Dense(...); True attends.
    """
    if thing is None or isinstance(thing, Mask):
        return thing
    raise MaskTypeError(complaint("mask", described(thing), "a mask of qkv or None", _advice(thing)))


def _advice(thing: Any) -> str:
    if isinstance(thing, type) and issubclass(thing, Mask):
        return f"write qkv.{thing.__name__}(...), with parentheses"
    if isinstance(thing, str):
        return 'masks are objects: qkv.Causal() is the one that others call "causal"'
    if is_tensor(thing) or hasattr(thing, "dtype") or isinstance(thing, (list, tuple)):
        if "bool" in described(thing):
            return "wrap booleans in qkv.Dense(...); True attends"
        return "masks are bool; use bias= for additive"
    if callable(thing):
        return "wrap a function of (batch, head, query, key) in qkv.Predicate(...)"
    return "qkv.Causal(), Window, Padding, Segments, Dense and Predicate are masks"
