"""`Constraint`: whatever a random model writes under it is what it says, row by row."""

import json
import re

import jsonschema
import pytest
import torch
from lark import Lark

import qkv
from qkv.errors import OptionError, OptionTypeError
from qkv.runtime import Constraint
from tests.helpers.runtime_files import build, write_gguf

PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
NAMES = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "kind": {"enum": ["a", "bc", 3]},
        "size": {"type": "integer", "minimum": -7, "maximum": 113},
        "rows": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "kind", "size", "rows"],
    "additionalProperties": False,
}
SCHEMAS = {
    "object": NAMES,
    "references": {"$ref": "#/$defs/x", "$defs": {"x": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 5}}},
    "union": {"anyOf": [{"type": "null"}, {"const": {"p": 1}}]},
    "number": {"type": "number", "minimum": 0.5, "maximum": 0.75, "multipleOf": 0.25},
}
SUMS = """
start: product ("+" product)~0..2
product: NUMBER | "(" start ")"
NUMBER: /[0-9]{1,3}/
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("constraints") / "model.gguf"
    return qkv.runtime.load(write_gguf(build("llama"), path, vocabulary=PRINTABLE))


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_answer_fulfils_its_schema(model, name):
    constraint = Constraint(schema=SCHEMAS[name])
    for seed in range(5):
        found = model.generate("x", 150, temperature=1.7, seed=seed, constraint=constraint)
        assert found.finish == "stop"
        jsonschema.validate(value := json.loads(found.text), SCHEMAS[name])
        assert json.dumps(value) in (found.text, found.text.rstrip("0")), "JSON stands on one line"
        assert len(found.logprobs) == len(found.tokens)
        assert all(value > -torch.inf for value in found.logprobs)


def test_an_answer_is_a_whole_match_of_its_expression(model):
    for seed in range(7):
        found = model.generate(
            "x", 50, temperature=2.0, seed=seed, constraint=Constraint(regex=r"[a-c]{2,5}-\d+(x|yz)")
        )
        assert found.finish == "length" or re.fullmatch(r"[a-c]{2,5}-\d+(x|yz)", found.text)
    assert model.generate("x", 50, constraint=Constraint(regex="yes|no")).text in ("yes", "no")


def test_an_answer_parses_with_its_grammar(model):
    parser = Lark(SUMS)
    found = [
        model.generate("x", 200, temperature=2.0, seed=seed, constraint=Constraint(grammar=SUMS)) for seed in range(5)
    ]
    assert any(each.finish == "stop" for each in found)
    for each in found:
        assert each.finish == "length" or parser.parse(each.text)


def test_json_is_an_object(model):
    found = [model.generate("x", 90, temperature=1.0, seed=seed, constraint=Constraint(json=True)) for seed in range(9)]
    whole = [json.loads(each.text) for each in found if each.finish == "stop"]
    assert whole
    assert all(isinstance(each, dict) for each in whole)
    assert all(each.text.startswith("{") for each in found)


def test_each_row_of_a_batch_has_its_own(model):
    each = [Constraint(regex="a{3}"), None, Constraint(schema=NAMES), Constraint(regex="[bc]{7}")]
    prompts = ["x", "yy", "zzz", "x"]
    found = model.generate(prompts, 150, constraint=each)
    assert (found[0].text, found[0].finish) == ("aaa", "stop")
    jsonschema.validate(json.loads(found[2].text), NAMES)
    assert re.fullmatch("[bc]{7}", found[3].text)
    for prompt, constraint, one in zip(prompts, each, found, strict=True):
        assert one.tokens == model.generate(prompt, 150, constraint=constraint).tokens


def test_a_constraint_of_all_text_changes_nothing(model):
    free = model.generate("x", 18, logprobs=2)
    assert min(free.tokens) > 2, "tokens that control the model are forbidden"
    assert free == model.generate("x", 18, logprobs=2, constraint=Constraint(grammar=r"start: /(.|\n)*/"))


def test_stops_and_the_end_of_an_answer(model):
    found = model.generate("x", 60, constraint=Constraint(regex="ab{20}"), stop="bbb")
    assert (found.text, found.finish) == ("a", "stop")
    seen = []
    found = model.generate("x", 60, constraint=Constraint(regex="ab{4}"), on_token=lambda *new: seen.append(new[2]))
    assert (found.tokens, "".join(seen)) == (model.tokenizer.encode("abbbb"), "abbbb")
    assert model.generate("x", 4, constraint=Constraint(regex="ab{20}")).finish == "length"
    tokens = model.generate([5, 17], 4, constraint=Constraint(regex="ab"))
    assert tokens.tokens == model.tokenizer.encode("ab")


def test_a_state_says_what_may_come_next(model):
    state = Constraint(regex="(no|nay)").start(model.tokenizer, model.vocabulary, model.stop_tokens)
    said = []
    for token in model.tokenizer.encode("nay"):
        row = torch.zeros(model.vocabulary)
        state.mask(row)
        said.append(model.tokenizer.decode(row.isfinite().nonzero().flatten().tolist()))
        assert not state.finished
        state.accept(token)
    assert said == ["n", "ao", "y"]
    assert state.finished
    with pytest.raises(OptionError, match="doesn't satisfy"):
        Constraint(regex="a").start(model.tokenizer, model.vocabulary, frozenset()).accept(9)


@pytest.mark.parametrize(
    "given", [{"schema": NAMES}, {"regex": "[k-z]{9}[0-9W]*"}, {"schema": {"type": "string", "minLength": 20}}]
)
def test_greedy_tokens_are_the_most_probable_that_are_allowed(model, given):
    """`generate` needs no mask where the most probable token of all is allowed; a loop with a mask for each agrees."""
    found = model.generate("kW", 40, constraint=Constraint(**given), logprobs=1)
    state = Constraint(**given).start(model.tokenizer, model.vocabulary, model.stop_tokens)
    cache = model.cache()
    logits = model.step(model.tokenizer.encode("kW"), cache)
    tokens, free = [], 0
    while len(tokens) < 40 and not state.finished:
        row = model.log_probabilities(logits)[0]
        best = int(row.argmax())
        state.mask(row)
        tokens.append(int(row.argmax()))
        free += tokens[-1] == best
        if tokens[-1] in model.stop_tokens:
            break
        state.accept(tokens[-1])
        logits = model.step(tokens[-1:], cache)
    assert found.tokens == tokens
    assert 0 < free < len(tokens), "some tokens were allowed at once, and some were not"


def test_a_model_without_a_stop_token(model):
    state = Constraint(regex="ab?").start(model.tokenizer, model.vocabulary, frozenset())
    (a,), (b,) = map(model.tokenizer.encode, "ab")
    state.accept(a)
    row = torch.zeros(model.vocabulary)
    state.mask(row)
    assert row.isfinite().nonzero().flatten().tolist() == [b]


@pytest.mark.parametrize(
    ("error", "match", "given"),
    [
        (OptionError, "none, wanted exactly one", {}),
        (OptionError, "regex and json, wanted exactly one", {"regex": "a", "json": True}),
        (OptionError, "regex: .*unclosed", {"regex": "(a"}),
        (OptionError, "regex: .*look-around", {"regex": "(?=a)b"}),
        (OptionError, "grammar: .*unknown name", {"grammar": "start: x"}),
        (OptionError, "schema: .*line 1 column 2", {"schema": "{"}),
        (OptionError, "schema: .*not JSON serializable", {"schema": {"type": {1, 2}}}),
        (OptionError, "schema: .*Invalid type", {"schema": {"type": "nonsense"}}),
        (OptionError, "schema: .*Unimplemented", {"schema": {"not": {}}}),
        (OptionError, "schema: .*anyOf is empty", {"schema": {"enum": []}}),
        (OptionError, "schema: .*minimum", {"schema": {"type": "integer", "minimum": 5, "maximum": 2}}),
        (OptionError, "schema: .*does not fetch", {"schema": {"$ref": "http://example.com/x"}}),
        (OptionTypeError, "schema: .*int", {"schema": 5}),
        (OptionTypeError, "regex: .*bytes", {"regex": b"a"}),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_refused(error, match, given):
    with pytest.raises(error, match=match) as found:
        Constraint(**given)
    assert "\n" not in str(found.value)


def test_what_no_answer_fulfils_is_refused_at_the_first_token(model):
    for given in ({"regex": "[a&&b]"}, {"regex": "é"}):
        with pytest.raises(OptionError, match="no token of the model that may come next"):
            model.generate("x", 4, constraint=Constraint(**given))
    with pytest.raises(OptionError, match="regex: "):
        model.generate("x", 4, constraint=Constraint(regex="((a{1000}){1000}){1000}"))


def test_other_arguments(model):
    with pytest.raises(OptionError, match="2 rows"):
        model.generate(["x", "y"], 4, constraint=[Constraint(regex="a")])
    with pytest.raises(OptionError, match="for 1 rows"):
        model.generate("x", 4, constraint=["a"])
    with pytest.raises(OptionError, match="beams: got 2"):
        model.generate("x", 4, constraint=Constraint(regex="a"), beams=2)
