"""Scale: numbers by hand and by other functions of the library, over the edges of every field."""

import contextlib
import io
import itertools
import json
import math
import re

import numpy as np
import pytest
import torch

import qkv
from qkv.lab.fields import typed
from qkv.lab.markup import region
from qkv.lab.view import Work
from qkv.lab.views.scale import DRAWS, FIELDS, MOST_COMPONENTS, MOST_SHOWN, VIEW, WIDTHS
from qkv.theory.draws import MEASURES


def made(**texts):
    given = typed(FIELDS, texts)
    assert given.state is not None, given.problems
    return given.state, VIEW.compute(given.state, Work())


def page(state, result):
    return region(VIEW, {field.name: field.write(state[field.name]) for field in FIELDS}, state, result)


EDGES = list(itertools.product(("1", "2", "1024"), ("-2", "0", "2"), ("0.1", "3"), ("2", "256")))


@pytest.mark.slow
@pytest.mark.parametrize(("d", "mu", "sigma", "keys"), EDGES[::5])
def test_any_state_is_json_and_is_drawn(d, mu, sigma, keys):
    state, result = made(d=d, mu=mu, sigma=sigma, keys=keys, samples="1000", scaled="yes", sweep="entropy")
    json.dumps(result, allow_nan=False)
    assert set(result) == set(VIEW.schema)
    html = page(state, result)
    assert html.count("<svg") == 6
    assert "nan" not in html
    for side in ("plain", "scaled"):
        law = result["law"][side]
        inside = sum(
            height * (b - a) for height, (a, b) in zip(law["heights"], itertools.pairwise(law["edges"]), strict=True)
        )
        assert inside + law["outside"] / result["drawn"] == pytest.approx(1)
        assert abs(law["mean"]["off"]) < 5
        assert math.fsum(result["softmax"][side]["weights"]) + result["softmax"][side]["rest"] == pytest.approx(1)
        for low, median, high in result["sizes"][side].values():
            assert low <= median <= high


@pytest.mark.parametrize("sweep", ["most", "entropy", "jacobian", "entry", "gradient"])
def test_every_sweep_is_drawn(sweep):
    state, result = made(sweep=sweep, samples="1000")
    drawn = VIEW.pictures(state, result)["sweep"]
    low, median, high = result["sweep"]["plain"][sweep][3]
    assert f"q·k as it is: median: width d {WIDTHS[3]}" in drawn
    assert low <= median <= high


def test_moments_by_hand():
    _, result = made(d="7", mu="0.5", sigma="1.5")
    plain, scaled = result["law"]["plain"], result["law"]["scaled"]
    assert plain["mean"]["predicted"] == 7 / 4
    assert plain["variance"]["predicted"] == 7 * (1.5**4 + 2 * 0.25 * 1.5**2)
    assert scaled["mean"]["predicted"] == pytest.approx(math.sqrt(7) / 4, rel=1e-15)
    assert scaled["variance"]["predicted"] == plain["variance"]["predicted"] / 7
    for moment in ("mean", "variance"):
        one = plain[moment]
        assert one["off"] == pytest.approx((one["sampled"] - one["predicted"]) / one["error"])
        assert abs(one["off"]) < 4.5
        assert one["off"] == pytest.approx(scaled[moment]["off"], rel=1e-6)
    assert plain["mean"]["error"] == pytest.approx(math.sqrt(plain["variance"]["sampled"] / 4000))


def test_the_softmax_of_one_query_by_numpy():
    _, result = made(d="11", mu="0.3", sigma="0.9", keys="5", seed="3")
    vectors = 0.3 + 0.9 * np.random.default_rng(3).standard_normal((6, 11))
    for side, scale in (("plain", 1), ("scaled", 1 / math.sqrt(11))):
        powers = np.exp(scale * vectors[1:] @ vectors[0])
        a = powers / powers.sum()
        one = result["softmax"][side]
        assert one["weights"] == pytest.approx(sorted(a, reverse=True))
        assert one["key"] == [int(key) + 1 for key in np.argsort(-a)]
        jacobian = np.diag(a) - np.outer(a, a)
        assert one["jacobian"] == pytest.approx(np.linalg.norm(jacobian))
        assert one["entry"] == pytest.approx(np.abs(jacobian).max())
        assert one["entropy"] == pytest.approx(-(a * np.log(a)).sum())
        assert one["most"] == pytest.approx(a.max())


def test_medians_by_vectors_and_attention():
    _, result = made(d="16", keys="8", sigma="0.8", mu="0.5")
    seeded, count = torch.Generator().manual_seed(1), 2000
    query = 0.5 + 0.8 * torch.randn(count, 1, 16, generator=seeded, dtype=torch.float64)
    key = 0.5 + 0.8 * torch.randn(count, 8, 16, generator=seeded, dtype=torch.float64)
    for side, scale in (("plain", 1.0), ("scaled", None)):
        weights = qkv.attention(
            query, key, key, similarity=qkv.Softmax(scale=scale), backend="reference", return_weights=True
        )[-1][:, 0]
        below = float((weights.amax(1) < result["sizes"][side]["most"][1]).double().mean())
        assert abs(below - 0.5) < 4.5 * 0.5 * math.sqrt(1 / DRAWS + 1 / count)


def test_what_the_page_says_of_d():
    """Without 1/√d the typical Jacobian vanishes as d grows; with it, it stays."""
    _, result = made()
    middle = {side: [row[1] for row in result["sweep"][side]["jacobian"]] for side in ("plain", "scaled")}
    assert middle["plain"][-1] < 1e-2 * middle["plain"][0]
    assert max(middle["scaled"]) < 2 * min(middle["scaled"])
    assert result["sizes"]["plain"]["gradient"] == result["sweep"]["plain"]["gradient"][WIDTHS.index(64)]


def test_the_normal_law_is_a_limit():
    for mu, said in (("0", "more in the middle"), ("1", "upper tail")):
        state, result = made(d="1", mu=mu)
        assert result["normal"]["differs"]
        assert "is not normal" in page(state, result)
        assert said in page(state, result)
    # One in twenty would call this a difference.
    state, result = made(d="1024")
    assert result["normal"]["distance"] > math.sqrt(math.log(40) / (2 * result["drawn"]))
    assert not result["normal"]["differs"]
    assert "do not tell the two laws apart" in page(state, result)
    result["normal"]["differs"] = True
    assert "is not normal" not in page(state, result)


def test_sizes_below_what_squares_can_say():
    state, result = made(d="1024", sigma="3", keys="2", samples="1000")
    for place in range(3):
        entry, norm = (result["sizes"]["plain"][name][place] for name in ("entry", "jacobian"))
        assert entry <= norm <= 2 * entry * (1 + 1e-9)
    assert 0 < result["sizes"]["plain"]["jacobian"][0] < 1e-200
    assert result["sizes"]["plain"]["gradient"][0] > 0
    assert 'data-path="value_width">5<' in page(state, result)
    assert "too small for float64" in page(state, result)


def test_samples_are_capped_and_counted():
    state, result = made(d="1024", samples="16000", keys="256")
    assert result["drawn"] == MOST_COMPONENTS // 1024 < result["asked"] == 16_000
    assert len(result["softmax"]["plain"]["weights"]) == MOST_SHOWN
    assert 'data-path="asked"' in page(state, result)


def test_every_line_explains_a_number_that_is_there():
    for scaled in ("yes", "no"):
        state, result = made(scaled=scaled, samples="1000")
        html = page(state, result)
        ids = re.findall(r' id="([^"]+)"', html)
        assert len(ids) == len(set(ids))
        assert set(re.findall(r'href="#([^"]+)"', html)) <= set(ids)
        explained = {name for names in re.findall(r'data-explains="([^"]+)"', html) for name in names.split()}
        assert explained == set(re.findall(r'class="explained" id="([^"]+)"', html))
        assert html.count("data-explains") == sum(
            len(chain["lines"]) for about in result["derivations"].values() for chain in about
        )
        assert "<code>" not in html.split("scale-lines")[1].split("</ol>")[0], "a formula that was not read"


def test_the_program_prints_the_numbers():
    state, result = made(d="32", mu="-0.5", sigma="1.25", keys="6", seed="7", samples="1000")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(VIEW.python(state), "scale", "exec"), {})
    plain, scaled = said.getvalue().split("q.k / sqrt(d)")
    assert f"of chance: {result['normal']['distance']} {result['normal']['chance']}" in plain
    for side, text in (("plain", plain), ("scaled", scaled)):
        for moment in ("mean", "variance"):
            one = result["law"][side][moment]
            line = f"{moment}: predicted {one['predicted']} sampled {one['sampled']} standard error {one['error']}"
            assert line in text
        assert f"weights of one query: {result['softmax'][side]['weights']}" in text
        for name in MEASURES:
            quantiles = " ".join(map(str, result["sizes"][side][name]))
            assert f"{name}: one query {result['softmax'][side][name]:.6g}, quantiles {quantiles}" in text


def test_the_same_state_gives_the_same_numbers():
    assert made(seed="5", samples="1000")[1] == made(seed="5", samples="1000")[1]
    assert made(seed="5", samples="1000")[1]["law"] != made(seed="6", samples="1000")[1]["law"]
