"""The model view: numbers against transformers' eager attention and sums by hand, the program, the page."""

import contextlib
import io
import json
import re
from itertools import product

import numpy as np
import pytest
import torch
import transformers

from qkv.lab import checkpoints
from qkv.lab.fields import WrongField, typed
from qkv.lab.markup import region
from qkv.lab.view import Work
from qkv.lab.views import model
from qkv.lab.views.model import VIEW

needs_minilm = pytest.mark.skipif("minilm" not in model.FOUND, reason="no weights here: make weights")


def state(**texts):
    read = typed(VIEW.fields, texts)
    assert not read.problems, read.problems
    return read.state


def computed(**texts):
    return VIEW.compute(state(**texts), Work(seconds=60))


def drawn(**texts):
    read = typed(VIEW.fields, texts)
    return region(VIEW, read.texts, read.state, computed(**texts))


@pytest.fixture(scope="module")
def eager():
    """(tokens, [layer][head][query][key]) of the sentence that the view starts with, without qkv."""
    place = model.FOUND["minilm"].place
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    theirs = transformers.AutoModel.from_pretrained(place, attn_implementation="eager").eval()
    given = tokenizer(model.SENTENCE, return_tensors="pt")
    with torch.no_grad():
        weights = theirs(given["input_ids"], output_attentions=True).attentions
    return tokenizer.convert_ids_to_tokens(given["input_ids"][0]), torch.cat(weights).double().numpy()


@pytest.mark.slow
@needs_minilm
def test_every_number_is_what_eager_attention_gives(eager):
    tokens, weights = eager
    found = computed(layer="2", head="5", query="4")
    assert found["tokens"] == tokens
    assert (found["layers"], found["heads"], found["cut"], found["kept"]) == (6, 12, 0, 17)
    assert np.allclose(found["weights"], weights[1, 4], atol=1e-5)
    assert np.allclose(found["row"]["weights"], weights[1, 4, 3], atol=1e-5)
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1).mean(-1)
    own = np.arange(len(tokens))
    wanted = {
        "entropy": entropy,
        "first": weights[..., 0].mean(-1),
        "previous": weights[..., own[1:], own[:-1]].mean(-1),
        "itself": weights[..., own, own].mean(-1),
    }
    for name, values in wanted.items():
        assert np.allclose([[head[name] for head in heads] for heads in found["overview"]], values, atol=1e-4)
        chosen = next(each for each in found["notable"] if each["name"] == name)
        at = np.unravel_index(values.argmax(), values.shape)
        assert (chosen["layer"] - 1, chosen["head"] - 1) == at
    assert found["habits"] == found["overview"][1][4]


@needs_minilm
def test_a_row_and_the_mean_of_all():
    whole, one = computed(), computed(query="3")
    assert np.allclose(whole["row"]["weights"], np.mean(whole["weights"], axis=0))
    assert one["row"]["weights"] == one["weights"][2]
    for found in (whole, one):
        row = found["row"]
        top = [each["weight"] for each in row["top"]]
        assert top == sorted(row["weights"], reverse=True)[: len(top)]
        assert len(top) == model.MOST_BARS or sum(top) >= model.MOST_COVERED > sum(top[:-1])
        assert all(found["tokens"][each["at"] - 1] == each["token"] for each in row["top"])
        assert row["rest"] + sum(top) == pytest.approx(1, abs=1e-6)
        assert row["others"] == 17 - len(top)


TEXTS = ("a", "The cat sat.", "😀" * 40, "<b>&amp;</b>\n\ttab", "\x00\u202e", "ß" * 2000)


@pytest.mark.slow
@needs_minilm
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_every_result_is_json_and_can_be_drawn(text):
    for layer, head in product((1, 6), (1, 12)):
        found = computed(text=text, layer=str(layer), head=str(head))
        json.dumps(found, allow_nan=False)
        assert set(found) == set(VIEW.schema)
        assert np.allclose(np.sum(found["weights"], axis=1), 1, atol=1e-5)
        assert len(found["tokens"]) == found["kept"] == len(found["weights"]) <= checkpoints.MOST_TOKENS
    assert ("were left out" in drawn(text=text)) == (found["cut"] > 0)


@needs_minilm
def test_long_texts_say_how_much_was_kept():
    found = computed(text="cat " * 400)
    assert (found["kept"], found["cut"], len(found["weights"])) == (128, 274, 128)
    page = drawn(text="cat " * 400)
    words = re.sub(r"<[^>]*>", "", page)
    assert "its first 128 tokens were kept, and 274 were left out" in words
    assert "averaged over 3 by 3 weights" in page


@needs_minilm
@pytest.mark.parametrize(
    ("field", "texts", "said"),
    [
        ("layer", {"layer": "7"}, "1 to 6"),
        ("query", {"query": "18"}, "0 to 17"),
        ("text", {"text": "  "}, "some words"),
        ("text", {"text": "\udc00"}, "some words"),
    ],
)
def test_what_cannot_be_asked_is_said_at_its_field(field, texts, said):
    if field == "layer" and model._MOST_LAYERS == 6:
        pytest.skip("the field itself refuses it")
    with pytest.raises(WrongField, match=said) as caught:
        computed(**texts)
    assert caught.value.field == field


def test_without_a_model_the_page_says_how_to_get_one(monkeypatch):
    given = {**state(), "checkpoint": "none"}
    with pytest.raises(WrongField, match="make weights") as caught:
        VIEW.compute(given, Work())
    assert caught.value.field == "checkpoint"
    with pytest.raises(SystemExit, match="make weights"):
        exec(VIEW.python(given), {})


@needs_minilm
def test_without_transformers_the_page_says_what_to_install(monkeypatch):
    monkeypatch.setattr(checkpoints.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(WrongField, match=r"pip install 'qkv\[hf\]'") as caught:
        computed()
    assert caught.value.field == "checkpoint"


@pytest.mark.slow
@needs_minilm
@pytest.mark.parametrize(
    "texts", [{}, {"layer": "6", "head": "12", "query": "2", "text": 'He said "no\\n".'}, {"text": "cat " * 300}]
)
def test_the_program_prints_the_numbers_of_the_view(texts):
    found, said = computed(**texts), io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(VIEW.python(state(**texts)), {})
    lines = [line.split() for line in said.getvalue().splitlines()]
    count = found["kept"]
    assert np.allclose(np.array(lines[:count], dtype=float), found["weights"], atol=1e-6)
    assert np.allclose(np.array(lines[count], dtype=float), found["row"]["weights"], atol=1e-6)
    assert {name: pytest.approx(float(value), abs=1e-6) for name, value in lines[count + 1 :]} == found["habits"]


@needs_minilm
def test_the_page_has_all_heads_and_escapes_the_text():
    page = drawn(text="a <script>x</script> b", query="2")
    assert page.count('data-set="layer=') == 72 + len(model.NOTABLE)
    assert len(re.findall(r'id="head-\d+-\d+"[^>]*aria-pressed="true"[^>]*tabindex="0"', page)) == 1
    assert "<script" not in page
    assert " style=" not in page
    assert "for the token before over those that have one" in page
    assert '<span class="live">Point at a cell' in page


@needs_minilm
def test_weights_are_printed_in_the_map_when_asked():
    weights = computed(numbers="yes")["weights"]
    assert f">{weights[1][0]:.2f}<" in drawn(numbers="yes")
