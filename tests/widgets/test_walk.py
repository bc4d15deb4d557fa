"""The numbers of the widget are the library's; its step is a trait; what cannot be shown is refused."""

import importlib
import importlib.util
import json
import re
from html.parser import HTMLParser

import pytest
import torch
import traitlets
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv.errors import MissingExtra, OptionError, OptionTypeError, ShapeError
from qkv.widgets import Walk

MASKS = [None, qkv.Causal(offset=2), qkv.Window(left=1, right=0, offset=2), qkv.Padding(lengths=[2])]


def drawn(seed, queries=3, keys=5, width=2, value_width=7):
    draw = torch.Generator().manual_seed(seed)
    sizes = (queries, width), (keys, width), (keys, value_width)
    return [3 * torch.randn(size, generator=draw, dtype=torch.float64) for size in sizes]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 999), mask=st.sampled_from(MASKS), scale=st.sampled_from([None, 1.0, 0.5, -0.25, 0.0]))
def test_every_number_is_the_librarys(seed, mask, scale):
    q, k, v = drawn(seed)
    walk = Walk(q, k, v, mask=mask, scale=scale)
    out, weights = qkv.attention(q, k, v, mask=mask, similarity=qkv.Softmax(scale=scale), return_weights=True)
    for name, wanted in (("q", q), ("k", k), ("v", v), ("scores", q @ k.T), ("weights", weights), ("output", out)):
        torch.testing.assert_close(torch.tensor(walk.numbers(name), dtype=torch.float64), wanted, rtol=0, atol=1e-12)
    scaled = torch.tensor(walk.numbers("scaled"), dtype=torch.float64)
    torch.testing.assert_close(scaled.softmax(-1), weights, rtol=0, atol=1e-12)


def test_what_the_mask_hides_cannot_matter_and_is_marked():
    q, k, v = drawn(0)
    walk = Walk(q, k, v, mask=qkv.Causal(offset=2))
    hidden = ~torch.tensor([[j <= i + 2 for j in range(5)] for i in range(3)])
    for name in ("scaled", "weights"):
        grid = next(g for stage in walk.data["stages"] for g in stage["grids"] if g["id"] == name)
        assert [[cell["masked"] for cell in row] for row in grid["rows"]] == hidden.tolist()
    k[4], v[4] = 7.0, -11.0
    changed = Walk(q, k, v, mask=qkv.Causal(offset=2))
    assert changed.numbers("output")[:2] == walk.numbers("output")[:2]
    assert changed.numbers("output")[2] != walk.numbers("output")[2]


def test_a_query_that_sees_nothing_gets_0_and_a_note():
    walk = Walk(*drawn(1), mask=qkv.Padding(lengths=[0]))
    assert walk.numbers("output") == [[0.0] * 7] * 3
    assert "may see nothing" in walk.data["stages"][4]["grids"][0]["rows"][0][0]["why"]


def test_sentences_say_how_a_number_was_made():
    walk = Walk([[1, 2]], [[3, -1], [0, 4]], [[5], [6]], scale=0.5)
    scores, scaled, weights, output = (walk.data["stages"][at]["grids"][0]["rows"][0] for at in (1, 2, 3, 4))
    assert scores[0]["why"] == "q₁·k₁ = 1·3 + 2·(−1) = 1"
    assert scaled[1]["why"] == "0.5·(q₁·k₂) = 0.5·8 = 4"
    assert weights[0]["why"].startswith("weight of v₁ for q₁ = e^(0.5) / (e^(0.5) + e⁴) ≈ 0.02931")
    assert output[0]["text"] == "5.971"


def test_the_step_is_a_trait_that_can_be_observed_and_stays_in_range():
    walk = Walk(*drawn(2), step=2)
    heard = []
    walk.observe(lambda change: heard.append((change["old"], change["new"])), "step")
    walk.step = 4
    assert heard == [(2, 4)]
    with pytest.raises(OptionError, match="step: got 5, wanted 0 to 4"):
        walk.step = 5
    assert walk.step == 4
    with pytest.raises(traitlets.TraitError):
        walk.data = {}
    assert repr(walk) == "Walk(3 queries, 5 keys, step 4: Output)"
    # What a front end sends.
    walk.set_state({"step": 1})
    assert walk.step == 1


def test_words_label_keys_and_queries_of_self_attention():
    walk = Walk(*drawn(3, queries=5), words=["a", "b", "<script>", "d", "e"])
    grid = walk.data["stages"][1]["grids"][0]
    assert [each["word"] for each in grid["rowNames"]] == ["a", "b", "<script>", "d", "e"]
    grid = Walk(*drawn(3), words=list("abcde")).data["stages"][1]["grids"][0]
    assert [each["word"] for each in grid["rowNames"]] == ["", "", ""]
    assert [each["word"] for each in grid["columnNames"]] == list("abcde")


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"query": [[1, 2, 3]]}, ShapeError, "key: got 2 columns, wanted 3"),
        ({"value": [[1]]}, ShapeError, "value: got 1 rows, wanted 2"),
        ({"query": [[1, 2], [3]]}, ShapeError, "query: got 2 rows of 1 or 2 columns"),
        ({"key": []}, ShapeError, "key: got 0 rows"),
        ({"query": torch.zeros(13, 2)}, ShapeError, "query: got 13 rows"),
        ({"query": torch.zeros(1, 3, 2)}, OptionTypeError, "query: got an entry of type list"),
        ({"query": 7}, OptionTypeError, "query: got int"),
        ({"query": [["1", 2]]}, OptionTypeError, "an entry of type str"),
        ({"query": [[True, 2]]}, OptionTypeError, "an entry of type bool"),
        ({"query": [[float("nan"), 2]]}, OptionError, "query: got the entry nan"),
        ({"query": [[2e6, 2]]}, OptionError, "up to 1,000,000"),
        ({"scale": float("inf")}, OptionError, "scale: got inf"),
        ({"scale": True}, OptionError, "scale: got True"),
        ({"mask": [[True]]}, OptionTypeError, "mask: got list"),
        ({"words": "ab"}, OptionTypeError, "words: got 'ab'"),
        ({"words": ["a"]}, OptionError, "words: got 1 words, wanted 2"),
    ],
)
def test_what_cannot_be_shown_is_refused(change, error, said):
    with pytest.raises(error, match=re.escape(said)):
        Walk(**{"query": [[1, 2]], "key": [[1, 2], [3, 4]], "value": [[1], [2]], **change})


def test_without_anywidget_one_line_says_what_to_install(monkeypatch):
    found = importlib.util.find_spec
    widgets = importlib.import_module("qkv.widgets")
    monkeypatch.setattr(widgets, "find_spec", lambda name: None if name == "anywidget" else found(name))
    with pytest.raises(MissingExtra, match=re.escape("qkv.widgets needs anywidget; not installed here. Hint: pip")):
        _ = widgets.Walk
    with pytest.raises(AttributeError, match="it has Walk"):
        _ = widgets.Run


class Scripts(HTMLParser):
    """The texts of <script> elements."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inside = False

    def handle_starttag(self, tag, attrs):
        self.inside = tag == "script"

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.found.append(data)


def test_the_page_holds_the_numbers_no_address_and_no_open_script():
    walk = Walk(*drawn(4, queries=5), words=["</script>", "<!--", "&", "'", '"'], step=3)
    page = walk.to_html()
    reader = Scripts()
    reader.feed(page)
    assert len(reader.found) == 1
    state = next(line for line in reader.found[0].splitlines() if line.startswith("const state = "))
    assert json.loads(state.removeprefix("const state = ").rstrip(";")) == {"data": walk.data, "step": 3}
    assert not re.search(r"https?://|@import|\bimport\b.*from", page)
    bundle, _ = walk._repr_mimebundle_()
    assert bundle["text/html"] == page
    assert "application/vnd.jupyter.widget-view+json" in bundle
