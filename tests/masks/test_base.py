"""What all masks share: joining, immutability, tiles, parts, bounds, versions, signatures."""

import itertools
import pickle
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

import qkv
from qkv.errors import MaskError, MaskTypeError, OptionError, OptionTypeError
from qkv.masks import And, Causal, Dense, Extent, Mask, Padding, Predicate, Segments, Window, as_mask
from qkv.masks.grid import as_integer, as_size, describe


def test_tensors_are_pickled_with_the_mask():
    extent = Extent(2, 1, 3, 5)
    mask = Causal(offset=2) & Padding(lengths=torch.tensor([2, 5]))
    again = pickle.loads(pickle.dumps(mask))
    assert again.population(extent) == mask.population(extent)
    assert repr(again) == repr(mask)


def test_numbers_make_equal_masks_and_tensors_do_not():
    assert Causal(2) & Window(3) == Causal(2) & Window(3)
    assert hash(Causal(2) | Window(3)) == hash(Causal(2) | Window(3))
    assert Causal() != Causal(0)
    assert Causal(2) & Window(3) != Causal(2) | Window(3)
    assert Padding([3]) != Padding([3])
    assert len({Dense([True]), Dense([True])}) == 2


def test_masks_are_immutable():
    for mask in (Causal(), Window(1), Padding([3]), Segments([0]), Dense([True]), Predicate(max), Causal() | Window(1)):
        with pytest.raises(AttributeError, match="immutable"):
            mask.offset = 3
        with pytest.raises(AttributeError, match="immutable"):
            del mask._signature


@pytest.mark.parametrize("other", [None, True, 3, torch.ones(2, dtype=torch.bool), np.ones(2, dtype=bool), "x"])
def test_masks_join_masks_only(other):
    for join in (lambda a, b: a & b, lambda a, b: a | b):
        with pytest.raises(TypeError):
            join(Causal(), other)
        with pytest.raises(TypeError):
            join(other, Causal())


def test_and_or_not_are_refused():
    with pytest.raises(MaskTypeError, match=r"join masks with & and \|"):
        bool(Causal() and Window(3))


def test_as_mask_passes_masks_and_none():
    mask = Causal()
    assert as_mask(mask) is mask
    assert as_mask(None) is None


@pytest.mark.parametrize(
    ("thing", "hint"),
    [
        (torch.ones(2, 3, dtype=torch.bool), "qkv.Dense"),
        (np.ones((2, 3), dtype=bool), "qkv.Dense"),
        ([[True, False]], "qkv.Dense"),
        (torch.zeros(2, 3), "bias="),
        (torch.ones(2, 3, dtype=torch.long), "qkv.Padding(keep=mask.bool())"),
        (torch.ones(2, 3), "qkv.Padding(keep=mask.bool())"),
        (torch.ones(2, 1, 3, 3), "qkv.Dense(mask.bool())"),
        (np.array([[1, 0]]), "qkv.Padding(keep=numpy.asarray(mask) != 0)"),
        (torch.full((2, 3), -1e9), "Hint: masks are bool; use bias= for additive"),
        (np.zeros(3), "bias="),
        ([0, 1], "bias="),
        (torch.ones(2, dtype=torch.uint8), "bias="),
        (Causal, "qkv.Causal(...)"),
        ("causal", "qkv.Causal()"),
        (lambda b, h, q, k: True, "qkv.Predicate"),
        (3, "qkv.Causal()"),
        (True, "qkv.Causal()"),
    ],
    ids=lambda given: re.sub(r" at 0x[0-9a-f]+", "", str(given)),
)
def test_as_mask_says_what_to_write(thing, hint):
    with pytest.raises(MaskTypeError) as caught:
        as_mask(thing)
    assert str(caught.value).startswith("mask: got ")
    assert "wanted a mask" in str(caught.value)
    assert hint in "Hint: " + str(caught.value).split("Hint: ")[1]


def test_parts_are_flat():
    one, two, three = Causal(0), Window(1, offset=0), Padding([3])
    assert (one & two & three).parts() == (one, two, three)
    assert (one & (two & three)).parts() == (one, two, three)
    assert one.parts() == (one,)
    either = one | two
    assert either.parts() == (either,)
    assert isinstance(one & either, And)
    assert (one & either).parts() == (one, either)


def test_positions_outside_are_refused():
    extent = Extent(2, 3, 5, 7)
    for position in ((2, 0, 0, 0), (0, 3, 0, 0), (0, 0, 5, 0), (0, 0, 0, 7), (0, 0, 0, -1)):
        with pytest.raises(MaskError, match=r"\(2, 3, 5, 7\)"):
            Causal(0).allows(*position, extent)


def test_population_takes_sizes_or_an_extent():
    mask = Causal(offset=2)
    assert mask.population(Extent(2, 3, 5, 7)) == mask.population(2, 3, 5, 7) == 6 * 25
    assert mask.population(len_q=5, len_k=7) == 25
    with pytest.raises(OptionTypeError, match="len_q: got None, wanted the number of positions"):
        mask.population(len_k=7)
    with pytest.raises(OptionError, match="len_k: got -7, wanted a size"):
        mask.population(len_q=5, len_k=-7)
    with pytest.raises(OptionTypeError, match=r"heads: got 1\.5"):
        mask.population(heads=1.5, len_q=5, len_k=7)
    assert Padding(keep=[[True, False, True], [True, True, True]]).population(len_q=5) == 25


@pytest.mark.slow
def test_tiles_can_be_traced():
    """Compilers see masks that were made outside and masks that are made inside, with sizes that vary."""
    lengths, keep = torch.tensor([3, 7]), torch.arange(14).view(2, 7) % 3 != 0
    queries, keys = torch.arange(10).view(2, 5) // 4, torch.arange(14).view(2, 7) // 4
    dense = torch.arange(105).view(3, 5, 7) % 2 == 0
    outside = Padding(lengths) | (Segments(queries, keys) & Padding(drop=keep)) | Padding(lengths=[2, 5])

    def program(mask, lengths, keep, queries, keys, dense):
        (batch, len_q), len_k = queries.shape, keys.shape[1]
        extent = Extent(batch, dense.shape[0], len_q, len_k)
        inside = Causal(offset=len_k - len_q) & Window(3) & Padding(lengths=lengths) & Padding(keep=keep)
        whole = (inside & Segments(queries, keys)) | Dense(dense) & Predicate(lambda b, h, q, k: (h + q) % 3 == b)
        whole = (mask | whole).resolved(extent)
        return whole.tile(extent, (1, len_q), (2, len_k - 1), dense.device)

    torch._dynamo.reset()
    tensors = (lengths, keep, queries, keys, dense)
    traced = torch.compile(program, fullgraph=True, backend="eager")(outside, *tensors)
    assert torch.equal(traced, program(outside, *tensors))


def test_tiles_can_be_vmapped():
    extent = Extent(1, 1, 5, 7)

    def tile(keep, length):
        mask = (Padding(keep=keep[None]) | Padding(lengths=length[None])) & Causal(offset=2)
        return mask.tile(extent, (0, 5), (0, 7), "cpu")

    keep, lengths = torch.arange(21).view(3, 7) % 2 == 0, torch.tensor([2, 3, 5])
    want = torch.stack([tile(*pair) for pair in zip(keep, lengths, strict=True)])
    assert torch.equal(torch.vmap(tile)(keep, lengths), want)


def test_a_mask_that_states_its_rule_has_everything_else():
    class Diagonal(Mask):
        __slots__ = ("step",)

        def __init__(self, step: int) -> None:
            super().__init__(step=step)

        def cells(self, grid):
            return (grid.key() - grid.query() + grid.heads()) % self.step == 0

    mask, extent = Diagonal(3), Extent(2, 3, 5, 7)
    wanted = np.array([[[[(j - i + h) % 3 == 0 for j in range(7)] for i in range(5)] for h in range(3)]] * 2)
    assert (cells(mask, extent) == wanted).all()
    assert mask.population(extent) == wanted.sum()
    assert (cells(mask & Causal(0), extent) == wanted & np.tri(5, 7, 0, dtype=bool)).all()
    part = mask.part(extent, (1, 4), (2, 7), (1, 3), (1, 2))
    assert (cells(part, Extent(1, 2, 3, 5)) == wanted[1:2, 1:3, 1:4, 2:7]).all()
    assert pickle.loads(pickle.dumps(Causal() & Window(2))) == Causal() & Window(2)
    assert mask.signature() != Diagonal(4).signature()
    query = torch.randn(2, 3, 5, 8)
    _, weights = qkv.attention(query, query, query, mask=mask & Causal(), return_weights=True)
    causal = mask.tile(Extent(2, 3, 5, 5), (0, 5), (0, 5)) & torch.ones(5, 5).bool().tril()
    assert torch.equal(weights != 0, causal.expand(2, 3, 5, 5))
    with pytest.raises(NotImplementedError):
        Mask().allows(0, 0, 0, 0, extent)


EXTENT = Extent(batch=2, heads=3, len_q=11, len_k=13)
ROWS, KEYS, HEADS = (2, 9), (3, 13), (1, 3)
SEED = np.random.default_rng(5)
KEEP = SEED.random((2, 13)) < 0.6

MASKS = [
    Causal(offset=2),
    Causal(offset=-4),
    Window(left=2, right=1, offset=1),
    Causal(offset=2) & Window(left=3),
    Padding(lengths=[5, 13]),
    Padding(lengths=torch.tensor([2, 7])),
    Padding(keep=KEEP),
    Padding(drop=torch.from_numpy(~KEEP)),
    Segments([0] * 4 + [1] * 7, [0] * 6 + [1] * 7),
    Segments([0, 1] * 5 + [0], [1, 0] * 6 + [1]),
    Dense(SEED.random((2, 3, 11, 13)) < 0.5),
    Dense(SEED.random((3, 1, 13)) < 0.5),
    Dense(torch.from_numpy(SEED.random((11, 1)) < 0.5)),
    Predicate(lambda batch, head, query, key: (batch + 2 * head + query + key) % 5 != 0),
    (Causal(offset=2) | Padding(lengths=[3, 1])) & Dense(SEED.random((2, 1, 1, 13)) < 0.7),
]


def cells(mask: Mask, extent: Extent) -> np.ndarray:
    shape = extent.shape
    return np.array([mask.allows(*place, extent=extent) for place in np.ndindex(*shape)]).reshape(shape)


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_cells_of_a_part(mask: Mask) -> None:
    part = mask.part(EXTENT, ROWS, KEYS, HEADS)
    here = Extent(2, HEADS[1] - HEADS[0], ROWS[1] - ROWS[0], KEYS[1] - KEYS[0])
    part.resolved(here).check_contents(here)
    wanted = cells(mask, EXTENT)[:, slice(*HEADS), slice(*ROWS), slice(*KEYS)]
    assert (cells(part, here) == wanted).all()
    tile = part.tile(here, (0, here.len_q), (0, here.len_k))
    assert (tile.expand(here.shape).numpy() == wanted).all()


@pytest.mark.parametrize("mask", [*MASKS, Segments([[0] * 11, [0, 1] * 5 + [2]], [0] * 13)], ids=repr)
@pytest.mark.parametrize("batch", [(0, 1), (1, 2)])
def test_cells_of_some_rows_of_the_batch(mask: Mask, batch: tuple[int, int]) -> None:
    part, here = mask.part(EXTENT, ROWS, KEYS, HEADS, batch), Extent(1, 2, 7, 10)
    part.resolved(here).check_contents(here)
    assert (cells(part, here) == cells(mask, EXTENT)[slice(*batch), slice(*HEADS), slice(*ROWS), slice(*KEYS)]).all()


@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize("rows", [(0, 11), (4, 5), (7, 11), (3, 3)])
def test_no_query_attends_outside_the_bounds(mask: Mask, rows: tuple[int, int]) -> None:
    lo, hi = mask.bounds(EXTENT, rows)
    seen = np.asarray(cells(mask, EXTENT)[:, :, slice(*rows)].any(axis=(0, 1, 2)))
    assert not seen[:lo].any()
    assert not seen[hi:].any()
    if mask.band(EXTENT) is not None and seen.any():  # a run is known to the key
        assert (lo, hi) == (int(seen.argmax()), 13 - int(seen[::-1].argmax()))


def test_a_part_of_three_dimensions_has_four() -> None:
    keep = SEED.random((2, 11, 13)) < 0.5
    part = Dense(keep).part(Extent(2, 1, 11, 13, dims=3), ROWS, KEYS)
    tile = part.tile(Extent(2, 1, 7, 10), (0, 7), (0, 10))
    assert torch.equal(tile, torch.from_numpy(keep[:, None, slice(*ROWS), slice(*KEYS)]))


def attended_run(mask, extent: Extent, rows: tuple[int, int]) -> tuple[int, int]:
    """First and last + 1 of the keys that some of these queries attend to, cell by cell."""
    keys = [
        key
        for batch, head, query, key in itertools.product(
            range(extent.batch), range(extent.heads), range(*rows), range(extent.len_k)
        )
        if mask.allows(batch, head, query, key, extent)
    ]
    return (min(keys), max(keys) + 1) if keys else (0, 0)


SIMPLE_MASKS = {
    "causal": Causal(offset=-2),
    "a window": Window(left=1, right=0, offset=1),
    "lengths": Padding(lengths=[0, 4]),
    "documents": Segments([5, 5, 9, 9, 2, 2], [5, 9, 9, 9, 2]),
    "documents of rows": Segments([[0, 0, 0, 1, 1, 1], [3, 3, 4, 4, 4, 4]], [[0, 1, 1, 1, 1], [7, 7, 3, 3, 4]]),
    "documents that never meet": Segments([0] * 6, [1] * 5),
    "nothing or nothing": Causal(offset=-9) | Causal(offset=-8),
    "causal documents": Causal(offset=0) & Segments([5, 5, 9, 9, 2, 2], [5, 9, 9, 9, 2]),
}


@pytest.mark.parametrize("name", SIMPLE_MASKS)
def test_bounds_are_the_keys_that_are_seen_and_no_keys_are_nought_to_nought(name: str) -> None:
    mask, extent = SIMPLE_MASKS[name], Extent(2, 1, 6, 5)
    for rows in itertools.combinations_with_replacement(range(7), 2):
        lo, hi = mask.bounds(extent, rows)
        first, last = attended_run(mask, extent, rows)
        if "&" in repr(mask):
            assert lo <= first
            assert last <= hi or (first, last) == (0, 0)
        else:
            assert (lo, hi) == (first, last)


@pytest.mark.parametrize("name", SIMPLE_MASKS)
def test_population_of_what_a_mask_knows_of_itself(name: str) -> None:
    mask, extent = SIMPLE_MASKS[name], Extent(2, 1, 6, 5)
    cells = sum(mask.allows(b, 0, i, j, extent) for b in range(2) for i in range(6) for j in range(5))
    assert mask.population(extent) == mask.population(2, 1, 6, 5) == cells
    if isinstance(mask, Segments):
        one = 1 if mask.query_ids.ndim == 1 else 2
        assert mask.population() * 2 == cells * one


def test_a_mask_counts_the_writes_to_each_of_its_tensors() -> None:
    ids, keys = torch.zeros(5, dtype=torch.long), torch.zeros(7, dtype=torch.long)
    segments, padding = Segments(ids, keys), Padding(lengths=torch.tensor([3, 5]))
    assert len(segments.versions()) == 2
    assert len(padding.versions()) == 1
    assert len((segments & padding).versions()) == 3
    assert Causal().versions() == Padding(lengths=[3]).versions() == ()
    before = segments.versions()
    segments.key_ids.add_(1)
    after = segments.versions()
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def writes() -> dict[str, Callable[[torch.Tensor, object], None]]:
    """Ways to write to a tensor, of which torch's version counts only the first."""
    return {
        "torch": lambda tensor, value: tensor.fill_(value),
        "numpy": lambda tensor, value: tensor.numpy().fill(value),
        "data": lambda tensor, value: tensor.data.fill_(value),
    }


GIVEN = {
    "lengths": (torch.tensor([3, 5]), 1, lambda t: Padding(lengths=t)),
    "keep": (torch.tensor([[True] * 3 + [False] * 4, [False, *[True] * 6]]), True, lambda t: Padding(keep=t)),
    "drop": (torch.tensor([[True] * 3 + [False] * 4, [False, *[True] * 6]]), False, lambda t: Padding(drop=t)),
    "segments": (torch.tensor([0, 0, 0, 1, 1, 1, 1]), 2, lambda t: Segments(t)),
    "dense": (torch.ones(7, 7).bool().tril(), True, lambda t: Dense(t)),
}


@pytest.mark.parametrize("way", writes())
@pytest.mark.parametrize("kind", GIVEN)
def test_a_write_through_numpy_does_not_change_a_mask(kind: str, way: str) -> None:
    given, value, make = GIVEN[kind]
    tensor = given.clone()
    query = torch.randn(2, 3, 7, 8, generator=torch.Generator().manual_seed(3))
    mask = make(tensor)

    def answers() -> list[torch.Tensor]:
        backends = ("reference", "blockwise", "sdpa", "native", "auto")
        return [qkv.attention(query, query, query, mask=mask, backend=backend) for backend in backends]

    before = answers()
    writes()[way](tensor, value)
    assert all(torch.equal(old, new) for old, new in zip(before, answers(), strict=True))
    written = qkv.attention(query, query, query, mask=make(tensor), backend="reference")
    assert not torch.allclose(written, before[0])


def test_a_write_before_the_backward_pass_does_not_change_the_gradient() -> None:
    query = torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(5)).requires_grad_()
    keep = torch.ones(5, 5).bool().tril()
    out = qkv.attention(query, query, query, mask=Dense(keep))
    keep.numpy().fill(True)
    causal = qkv.attention(query, query, query, mask=Causal())
    gradients = [torch.autograd.grad(each.square().sum(), query)[0] for each in (out, causal)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_kept_keys_and_tiles_are_where_they_are_wanted(device: str) -> None:
    extent = Extent(2, 1, 6, 5)
    for padding in (Padding(lengths=[1, 4]), Padding(keep=torch.ones(2, 5, dtype=torch.bool))):
        kept = padding.keys_kept(extent, device)
        assert kept is not None
        assert kept.shape == (2, 5)
        assert kept.device.type == device
    for mask in (
        *SIMPLE_MASKS.values(),
        Dense(torch.ones(6, 5, dtype=torch.bool)),
        Predicate(lambda b, h, i, j: j <= i),
    ):
        assert mask.tile(extent, (0, 6), (0, 5), device).device.type == device


def test_what_is_described_takes_sixty_signs_at_most() -> None:
    class Thing:
        def __init__(self, length: int) -> None:
            self.length = length

        def __repr__(self) -> str:
            return "x" * self.length

    assert describe(Thing(60)) == "x" * 60
    assert describe(Thing(61)) == "x" * 57 + "..."


@pytest.mark.parametrize("given", [3, np.int32(3), np.uint8(3)])
def test_integers_of_any_kind_are_sizes(given: object) -> None:
    assert type(as_integer("n", given)) is int
    assert as_size("n", given) == 3
    assert as_size("n", 0) == 0


@pytest.mark.parametrize("given", [True, 3.0, "3", None, np.float64(3)])
def test_what_is_no_integer_is_named(given: object) -> None:
    with pytest.raises(OptionTypeError, match=r"^n: got .*an integer"):
        as_integer("n", given)
    with pytest.raises(OptionError, match=r"^n: got -1"):
        as_size("n", -1)


@pytest.mark.parametrize("argument", ["left", "right", "offset"])
def test_an_argument_of_a_window_is_called_by_its_name(argument: str) -> None:
    with pytest.raises(OptionTypeError, match=f"^{argument}"):
        Window(**{argument: 1.5})


@pytest.mark.parametrize(("rows", "keys"), [(4, 4), (3, 5), (5, 3)])
def test_a_dense_mask_the_wrong_way_round_is_told_its_offset(rows: int, keys: int) -> None:
    for offset in range(keys - 1):
        cells = np.tri(rows, keys, offset, dtype=bool)
        plain = "Causal()" if offset == 0 and rows == keys else f"Causal(offset={offset})"
        (message,) = [s for s in Dense(cells).lint(Extent(1, 1, rows, keys)) if "causal" in s] or [""]
        if not cells.all():
            assert f"use {plain} instead" in message
        upside_down = Dense(~cells).lint(Extent(1, 1, rows, keys))
        if (~cells).any():
            assert any(f"Dense(~mask) or {plain}." in s for s in upside_down)


def test_padding_that_looks_turned_round_is_told_from_the_second_key_on() -> None:
    assert any("use drop=" in message for message in Padding(keep=np.array([[False, True]])).lint())
    assert not any("use drop=" in message for message in Padding(keep=np.array([[False]])).lint())
    # Two rows of five keep their last key alone: that is not most of them.
    kept = np.zeros((5, 4), dtype=bool)
    kept[:2, 3] = True
    assert not any("use drop=" in message for message in Padding(keep=kept).lint())
    kept[2, 3] = True
    assert any("use drop=" in message for message in Padding(keep=kept).lint())


def test_lengths_of_a_part_are_those_of_its_keys() -> None:
    part = Padding(lengths=torch.tensor([7, 3, 1])).part(Extent(3, 1, 4, 7), (0, 4), (2, 5))
    assert isinstance(part, Padding)
    assert list(part.lengths) == [3, 1, 0]


def test_a_predicate_of_python_numbers_is_asked_cell_by_cell() -> None:
    mask = Predicate(lambda b, h, i, j: bool(j <= i) if i < 3 else bool(j == 0))
    extent = Extent(1, 1, 5, 5)
    assert mask.population(extent) == 1 + 2 + 3 + 1 + 1
    assert mask.allows(0, 0, 4, 0, extent) is True
    assert mask.allows(0, 0, 4, 1, extent) is False
    assert repr(Predicate(len)) == "Predicate(len)"


def test_a_predicate_that_gives_no_boolean_is_refused() -> None:
    for wrong in (lambda b, h, i, j: 1, lambda b, h, i, j: None, lambda b, h, i, j: j - i):
        with pytest.raises(TypeError, match="booleans"):
            Predicate(wrong).allows(0, 0, 0, 0, Extent(1, 1, 2, 2))


def test_signatures_tell_masks_apart_by_kind_and_numbers() -> None:
    masks = [
        Causal(),
        Causal(offset=1),
        Window(left=1),
        Window(right=1),
        Window(offset=1),
        Padding(lengths=[1, 2]),
        Padding(lengths=[1, 2, 3]),
        Padding(keep=np.ones((2, 3), dtype=bool)),
        Padding(drop=np.ones((2, 3), dtype=bool)),
        Segments([0, 1]),
        Segments([0, 1], [0, 1, 1]),
        Dense(np.ones((2, 3), dtype=bool)),
        Causal(offset=1) & Window(left=1),
        Causal(offset=1) | Window(left=1),
        Window(left=1) & Causal(offset=1),
    ]
    assert len({mask.signature() for mask in masks}) == len(masks)
