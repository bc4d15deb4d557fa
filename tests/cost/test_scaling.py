"""Scaling of plans: one machine is the plan itself; more follow communication and roofline."""

import csv
import io
import json
from dataclasses import replace

import pytest

from qkv.cost import Hardware, Model, plan
from qkv.cost.communication import Link, Phase, Point, Spread, as_link, merged_step, wire, write_points
from qkv.cost.formulas import LETTERS, wire_formula
from qkv.cost.planning import Run
from qkv.cost.report import comparison_text
from qkv.cost.scaling import SPLITS
from qkv.errors import OptionError, OptionTypeError

TINY = Model(layers=5, d_model=84, heads=6, kv_heads=3, head_width=11, d_ff=53, vocabulary=131)
BOX = Hardware("box", {"float32": 3e9, "bfloat16": 7e9}, 5e8, 10**6)
FAST = Link(1e18, 0.0)
NONE_FIT = "it fits on none of these numbers of machines"


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))


def rows(model=TINY, box=BOX, machines=7, link="10GBps", **options):
    found = plan(model, box, context=24 * 7, machines=machines, link=link, **options)
    assert found.scaling is not None
    return found, found.scaling.rows


@pytest.mark.parametrize("name", ["gpt-2", "llama-3-8b", "mistral-7b", "gemma-3-4b", "deepseek-v3", "bert-base"])
def test_one_machine_is_the_plan(name):
    found = plan(name, "a100-80gb", batch=3, machines=1)
    (row,) = found.scaling.rows
    for split in ("ring", "gather", "heads"):
        assert row.splits[split].seconds == pytest.approx(found.prefill_seconds, rel=1e-9)
        assert (row.splits[split].sent_bytes, row.splits[split].held_bytes) == (0, 0)
    assert row.memory_bytes == found.weight_bytes + found.cache_bytes
    assert row.fits == found.fits
    assert row.largest_context == found.largest_context
    assert row.efficiency == 1
    if found.seconds_per_token is not None:
        assert row.token_seconds == pytest.approx(found.seconds_per_token)
        assert row.token_sent_bytes == 0


def test_machines_double_up_to_the_last():
    for machines, want in ((1, [1]), (2, [1, 2]), (7, [1, 2, 4, 7]), (8, [1, 2, 4, 8])):
        assert [row.machines for row in rows(machines=machines)[1]] == want


def test_a_wire_that_costs_nothing_leaves_the_work():
    """Whatever is per token shrinks with the tokens, scores with the busiest machine's pairs."""
    _, (alone, _, four, _) = rows(link=FAST)
    run = Run(TINY, BOX, 1, "bfloat16", "bfloat16", 168)
    whole, part = run.pass_over(168), run.pass_over(42)
    other = sum(each.seconds for name, each in part.items() if name not in ("scores", "cache"))
    other += whole["cache"].seconds / 4
    even = other + whole["scores"].seconds / 4
    assert four.splits["ring"].seconds == pytest.approx(even)
    last = (168 * 169 - 126 * 127) / (168 * 169)
    assert four.splits["gather"].seconds == pytest.approx(other + last * whole["scores"].seconds)
    assert four.best == "ring"
    assert four.efficiency == pytest.approx(alone.seconds / four.seconds / 4)


def test_what_is_sent_is_the_wires():
    model = replace(TINY, kv_heads=2)
    _, (_, two, *_) = rows(model, batch=3)
    spread = Spread(3, 6, 2, 11, 11, 168, 2, 2, True, features=11)
    for split in SPLITS:
        found, each = two.splits[split], wire(split, spread)
        assert found.sent_bytes_per_layer == each.sent
        assert (found.sent_bytes, found.messages) == (5 * each.sent, 5 * each.messages)
    sent, messages = merged_step(3, 6, 11, 2)
    assert two.token_sent_bytes == 5 * sent
    alone = Run(model, BOX, 3, "bfloat16", "bfloat16", 168).step(168)
    split = sum(part.seconds for name, part in alone.items() if name in ("scores", "cache"))
    rest = sum(part.seconds for name, part in alone.items() if name not in ("scores", "cache"))
    wait = Phase(0, 0, sent, messages, 0).seconds(10e9, as_link("10GBps").latency, 1.0)
    assert two.token_seconds == pytest.approx(split / 2 + rest + 5 * wait)


def test_layers_with_a_window_send_their_window():
    model = replace(TINY, window=13, window_layers=3)
    _, (_, two, *_) = rows(model)
    full, near = (wire("ring", Spread(1, 6, 3, 11, 11, 168, 2, 2, True, m, features=11)) for m in (None, 13))
    assert two.splits["ring"].sent_bytes == 2 * full.sent + 3 * near.sent
    assert two.splits["ring"].sent_bytes_per_layer == full.sent
    # A window that is wider than the context is none.
    _, (_, wide, *_) = rows(replace(model, window=500))
    assert wide.splits["ring"].sent_bytes == 5 * full.sent


def test_heads_that_do_not_divide_have_a_reason():
    _, (_, _, four, seven) = rows()
    for row, count in ((four, 4), (seven, 7)):
        assert row.splits["heads"].seconds is None
        assert row.splits["heads"].reason == f"6 query and 3 key/value heads do not divide evenly over {count} machines"
    _, (_, two, *_) = rows(replace(TINY, kv_heads=2))
    assert two.splits["heads"].seconds is not None


@pytest.mark.slow
def test_the_best_fits_if_any_does():
    """Over a slow link, heads are fastest here, and need most memory."""

    def row_of(memory):
        box = replace(BOX, memory=memory)
        found = plan(replace(TINY, kv_heads=6), box, context=100_000, machines=2, link=Link(1e4, 0.0))
        return found.scaling.rows[-1]

    free = row_of(10**9)
    heads, ring = free.splits["heads"], free.splits["ring"]
    assert free.best == "heads"
    assert free.sent_bytes == heads.sent_bytes
    assert heads.held_bytes > ring.held_bytes
    row = row_of(free.memory_bytes - 1)
    assert (row.best, row.fits, row.seconds) == ("ring", True, ring.seconds)
    assert row.memory_bytes == free.memory_bytes - heads.held_bytes + ring.held_bytes
    none = row_of(10)
    assert (none.best, none.fits) == ("heads", False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [TINY, replace(TINY, window=13, window_layers=3), replace(TINY, kv_heads=1), "llama-3-8b", "deepseek-v2-lite"],
)
@pytest.mark.parametrize("options", [{}, {"batch": 3}, {"prompt": 17}])
def test_the_largest_context_fits_and_a_longer_one_does_not(model, options):
    box = replace(BOX, memory=10**6) if isinstance(model, Model) else "h100-sxm"
    _, some = rows(model, box, 13, **options)
    # One machine needs no memory for communication, so two may fit less; from then on contexts grow.
    spread = [row.largest_context for row in some[1:]]
    assert spread == sorted(spread)
    for row in some:
        for context, fits in (
            (row.largest_context, True),
            (row.largest_context + row.largest_context // 100 + 1, False),
        ):
            again = plan(model, box, context=context, machines=row.machines, **options).scaling.rows[-1]
            assert again.fits == fits
            assert again.largest_context == row.largest_context


def test_a_window_that_frees_memory_is_passed():
    """Beyond its window a ring exchanges no queries and needs less memory, so a longer context may fit."""
    window = 2**13  # where a search by doubling looks
    model = replace(TINY, layers=1, window=window, window_layers=1)

    def last(context, memory):
        return plan(model, replace(BOX, memory=memory), context=context, machines=2).scaling.rows[-1]

    inside, beyond = last(window, 10**12), last(window + 1, 10**12)
    least = [min(row.splits[name].held_bytes for name in ("ring", "gather")) for row in (inside, beyond)]
    assert least[1] < least[0]
    box = beyond.memory_bytes - beyond.splits[beyond.best].held_bytes + sum(least) // 2
    assert not last(window, box).fits
    assert last(window + 1, box).fits
    assert last(7, box).largest_context > window


def test_what_would_do_where_nothing_fits():
    weights = plan(TINY, BOX, context=7).weight_bytes

    def notes(memory, **options):
        given = {"context": 7919, "machines": 3, **options}
        return plan(TINY, replace(BOX, memory=memory), **given).scaling.notes[-1]

    assert notes(weights - 1) == f"{NONE_FIT}: weights would have to be split too"
    assert notes(weights + 10**5) == f"{NONE_FIT}: use more machines"
    assert notes(weights + 10**5, batch=10**4).startswith(f"{NONE_FIT}, nor on more")
    assert "none of these" not in notes(10**9)


def test_more_machines_than_tokens():
    found = plan(TINY, BOX, context=5, machines=64).scaling
    assert found.rows[-1].tokens == 1
    assert found.rows[-1].seconds == pytest.approx(found.rows[-2].seconds)
    assert any("5 tokens: more machines than tokens" in note for note in found.notes)


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        *(({"machines": many}, OptionError, "from 1 to 16,777,216") for many in (-1, 0, 2**24 + 1, 10**12, 2**70)),
        *(({"machines": many}, OptionTypeError, "from 1 to 16,777,216") for many in (2.5, True, "3")),
        ({"machines": 2, "link": "fast"}, OptionError, "link"),
        ({"link": "10GBps"}, OptionError, "machines="),
    ],
)
def test_refusals(options, error, word):
    with pytest.raises(error, match=word):
        plan(TINY, BOX, context=24, **options)
    if "link" not in options:
        with pytest.raises(OptionError, match="a decoder or an encoder"):
            plan("t5-base", "t4", machines=2)


@pytest.mark.slow
def test_text_is_narrow_and_says_what_the_rows_say():
    for name, machines in (("llama-3-8b", 4096), ("gpt-oss-20b", 2**20), ("deepseek-v3", 3), ("bert-base", 5)):
        found = plan(name, "h100-sxm", context=2**18, machines=machines, link="25gbe")
        text = str(found)
        assert max(map(len, text.splitlines())) <= 80
        last = found.scaling.rows[-1]
        assert f"{machines:,}" in text
        assert last.best in text
        assert "split over machines: 262,144 tokens" in text
        for texts in found.scaling.formulas.values():
            assert texts["messages"] in text
        assert "G = key/value heads that are sent, max(g, R)" in " ".join(text.split())
    both = comparison_text([plan("gpt-2", "t4", machines=4), plan("gpt-2", "l4", machines=4)])
    assert both.count("split over machines") == 2


def test_json_and_csv_have_every_number():
    found, some = rows()
    record = found.as_dict()
    assert json.loads(json.dumps(record, allow_nan=False))["scaling"]["rows"][1]["splits"]["ring"]["sent_bytes"] > 0
    assert "scaling" not in plan(TINY, BOX, context=24).as_dict()
    table = list(csv.DictReader(io.StringIO(found.to_csv())))
    two = {row["quantity"]: row["value"] for row in table if row["of"] == "machines 2"}
    assert float(two["seconds"]) == some[1].seconds
    ring = {row["quantity"]: row["value"] for row in table if row["of"] == "machines 2 ring"}
    assert int(ring["sent_bytes"]) == some[1].splits["ring"].sent_bytes


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", ["full", "causal", "window"])
@pytest.mark.parametrize("ranks", [4, 16])  # fewer than key/value heads, and more
def test_formulas_give_the_numbers(split, kind, ranks):
    letters = {"b": 3, "h": 32, "g": 8, "w": 11, "v": 5, "n": 2**12, "R": ranks, "a": 2, "m": 17, "G": max(8, ranks)}
    causal, window = kind != "full", 17 if kind == "window" else None
    want = wire(split, Spread(3, 32, 8, 11, 5, 2**12, ranks, 2, causal, window, features=11))
    for text, number in zip(wire_formula(split, kind), (want.sent, want.messages), strict=True):
        plain = text.replace("⌈log₂ R⌉", str(ranks.bit_length() - 1)).replace("·", "*").replace("²", "**2")
        assert eval(plain, {"__builtins__": {}}, letters) == number
    assert set(letters) <= set(LETTERS)


def test_measured_points_come_with_predictions():
    assert "measured on ranks" not in str(rows()[0])
    link = Link(1e9, 1e-5, 2e10, measured=True)
    point = Point("ring", 2, 4096, 0.5, 1 << 20, causal=True, link=link)
    write_points([replace(point, ranks=1, seconds=0.9, bytes=0, link=None), point])
    text = str(rows()[0])
    assert max(map(len, text.splitlines())) <= 80
    line = next(line for line in text.splitlines() if "4,096 tokens, causal  ring" in line)
    assert line.split()[-7:] == ["500", "ms", *_said(point.predicted()), "×", "1.80", "1.05", "MB"][-7:]


def _said(seconds):
    from qkv.cost.readable import readable_seconds

    return readable_seconds(seconds).split()
