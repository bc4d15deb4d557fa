"""The first page: its numbers are attention's, and what it cannot show is told."""

from __future__ import annotations

import pytest
import torch

import qkv
from qkv.lab.fields import WrongField, typed
from qkv.lab.markup import data, region
from qkv.lab.view import Work
from qkv.lab.views import every
from qkv.lab.views.start import VIEW


def state(**given: str) -> dict:
    read = typed(VIEW.fields, given)
    assert read.state is not None, read.problems
    return dict(read.state)


@pytest.mark.parametrize("causal", ["no", "yes"])
def test_the_weights_are_those_of_attention(causal: str) -> None:
    given = {"words": "a b c", "points": "1,2;-1/2,3/2;3,-1", "query": "2", "causal": causal}
    result = VIEW.compute(state(**given), Work())
    x = torch.tensor([[1, 2], [-0.5, 1.5], [3, -1]], dtype=torch.float64)
    output, weights = qkv.attention(x, x, x, mask=qkv.Causal() if causal == "yes" else None, return_weights=True)
    assert result["weights"] == pytest.approx(weights[1].tolist(), abs=1e-15)
    assert result["output"] == pytest.approx(output[1].tolist(), abs=1e-15)
    assert result["scores"] == pytest.approx((x[1] @ x.T / 2**0.5).tolist(), abs=1e-15)
    assert (result["weights"][2] == 0) is (causal == "yes")


def test_the_program_gives_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    asked = state(causal="yes")
    exec(VIEW.python(asked), {})
    printed = torch.tensor(eval(capsys.readouterr().out.splitlines()[0]))
    assert printed[0].tolist() == pytest.approx(VIEW.compute(asked, Work())["weights"])


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("words", {"words": "alone"}),
        ("words", {"words": "a b c d e f g h i"}),
        ("points", {"words": "a b c"}),
        ("points", {"words": "a b", "points": "1;1"}),
        ("points", {"words": "a b", "points": "1,2;4,0"}),
        ("query", {"words": "a b", "points": "1,2;2,0", "query": "3"}),
    ],
)
def test_what_cannot_be_shown_is_told_at_its_field(field: str, given: dict[str, str]) -> None:
    with pytest.raises(WrongField) as caught:
        VIEW.compute(state(**given), Work())
    assert caught.value.field == field


def test_the_region_escapes_words_and_links_to_the_walk() -> None:
    asked = state(words="<b> b", points="1,2;2,0", query="1")
    texts = typed(VIEW.fields, {"words": "<b> b", "points": "1,2;2,0", "query": "1"}).texts
    html = region(VIEW, texts, asked, VIEW.compute(asked, Work()))
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert "/walk?source=qkv" in html


def test_the_tour_leads_to_views_and_states_that_exist() -> None:
    views = {view.name: view for view in every()}
    stops = data("tour")
    assert len(stops) == 8
    for stop in stops:
        path, _, query = stop["at"].partition("?")
        view = views[path.strip("/") or "start"]
        given = dict(pair.split("=") for pair in query.split("&") if pair)
        assert typed(view.fields, given).state is not None, stop


def test_every_term_of_the_glossary_has_two_levels() -> None:
    glossary = data("glossary")
    assert {"query", "key", "value", "head", "mask", "score", "weight", "cache", "roofline"} <= set(glossary)
    for term, said in glossary.items():
        assert said.keys() == {"simple", "exact"}, term
        assert all(said.values()), term
