"""Inspect's provider `qkv/PATH` with tiny random models: its answers are those of `generate`."""

from __future__ import annotations

import json

import anyio
import pytest

pytest.importorskip("inspect_ai")
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    ResponseSchema,
    get_model,
)
from inspect_ai.tool import ToolCall, ToolInfo
from inspect_ai.util import JSONSchema

from qkv.grading import from_bank, grade
from qkv.reading import ExplicitReader, read_chat
from qkv.reading.model import ModelReader
from qkv.runtime import Constraint, load
from tests.helpers.runtime_files import build, write_gguf

pytestmark = pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning")  # Inspect's own
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }};{% endfor %}"
    "{% for t in tools or [] %}{{ t.function.name }},{% endfor %}"
)
PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
CHAT = read_chat("User: Please solve problem 1.\n\nAssistant: (a)\n\nAnswer (a): d mu^2\n\nThe variance is d there.")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("local") / "model.gguf"
    return write_gguf(
        build("llama", max_position_embeddings=4001), path, vocabulary=PRINTABLE, tokenizer__chat_template=TEMPLATE
    )


@pytest.fixture
def named(path):
    return get_model(f"qkv/{path}", activations="float32", memoize=False)


def answers(model, *calls):
    async def every():
        return [await model.generate(words, **options) for words, options in calls]

    return anyio.run(every)


def test_an_answer_is_that_of_generate_and_a_prefix_runs_once(named, path):
    model, same = load(path), "user: It has more than thirty-two tokens. What "
    prompts = (f"{same}is it?;", f"{same}was it?;")
    config = GenerateConfig(max_tokens=11)
    found = answers(named, *(([ChatMessageUser(content=prompt[6:-1])], {"config": config}) for prompt in prompts))
    for prompt, one in zip(prompts, found, strict=True):
        wanted = model.generate(prompt, 11)
        assert (one.completion, one.usage.output_tokens) == (wanted.text, len(wanted.tokens))
        assert one.stop_reason == {"length": "max_tokens", "stop": "stop"}[wanted.finish]
    assert [each.usage.input_tokens_cache_read for each in found] == [0, len(same)]
    assert found[1].usage.input_tokens == len("was it?;")


def test_options_reach_the_model(named, path):
    model = load(path)
    config = GenerateConfig(max_tokens=17, temperature=1.3, seed=5, top_k=40, top_p=0.9)
    (found,) = answers(named, ("a", {"config": config}))
    wanted = model.generate("user: a;", 17, temperature=1.3, seed=5, top_k=40, top_p=0.9)
    assert found.completion == wanted.text
    (found,) = answers(named, ("a", {"config": config.merge(GenerateConfig(stop_seqs=[wanted.text[4:6]]))}))
    assert found.completion == wanted.text[: wanted.text.find(wanted.text[4:6])]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    response = ResponseSchema(name="n", json_schema=JSONSchema.model_validate(schema | {"additionalProperties": False}))
    (found,) = answers(named, ("a", {"config": GenerateConfig(max_tokens=90, response_schema=response)}))
    assert isinstance(json.loads(found.completion)["n"], int)


def test_tools_are_offered_and_called(named, monkeypatch):
    add = ToolInfo(name="add", description="adds")
    said = '{"name": "add", "arguments": {"a": 2}}'
    api = named.api
    generate, rendered = api.model.generate, []

    def constrained(tokens, *words, **options):
        return generate(tokens, 99, **options | {"constraint": Constraint(grammar=f"start: {json.dumps(said)}")})

    monkeypatch.setattr(api.model, "generate", constrained)
    monkeypatch.setattr(api.template, "render", lambda *given: rendered.append(given) or "x")
    (found,) = answers(named, ("2 + 3?", {"tools": [add]}))
    (call,) = found.message.tool_calls
    assert (call.function, call.arguments, found.stop_reason, found.completion) == ("add", {"a": 2}, "tool_calls", "")
    called = ChatMessageAssistant(content="", tool_calls=[ToolCall("1", "add", {"a": 2})])
    failed = {"type": "parsing", "message": "no b"}
    result = ChatMessageTool.model_validate({"content": "", "tool_call_id": "1", "function": "add", "error": failed})
    answers(named, ([ChatMessageUser(content="2 + 3?"), called, result], {"tools": [add], "tool_choice": "none"}))
    (first, offered), (second, none) = rendered
    assert first == [{"role": "user", "content": "2 + 3?"}]
    assert offered[0]["function"]["name"] == "add"
    assert none == []
    assert second[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 2}}
    assert second[2] == {"role": "tool", "content": "error: no b"}


def test_a_prompt_beyond_the_context_says_so(named):
    (found,) = answers(named, ("a" * 4100, {"config": GenerateConfig(max_tokens=3)}))
    assert (found.stop_reason, found.completion) == ("model_length", "")


def test_an_answer_that_is_not_awaited_any_more_ends(named):
    api = named.api
    config = GenerateConfig(max_tokens=3900, temperature=1.0, seed=1)

    async def cancelled():
        with anyio.move_on_after(0.1):
            await named.generate("a" * 7, config=config)
        with anyio.fail_after(20):
            return await named.generate("b", config=GenerateConfig(max_tokens=3))

    assert anyio.run(cancelled).usage.output_tokens <= 3
    assert all(len(tokens) < 3900 for tokens in api.prefixes._tokens)


def test_it_reads_and_only_confirms(path, tmp_path, monkeypatch):
    questions = from_bank(["1=scaling"])
    reader = ModelReader(get_model(f"qkv/{path}", memoize=False), cache=tmp_path, max_tokens=40)
    assert (reader.confirms, reader.readings) == (True, 1)
    assert reader.read(CHAT, questions) == ExplicitReader().read(CHAT, questions), "a random model reads nothing"
    right = {"part": "b", "quote": "The variance is d", "claim": "d"}
    wrong = {"part": "c", "quote": "The variance is d", "claim": "d"}
    head = {"question": "1", "stance": "asserted", "anchor": "box"}
    rows = json.dumps({"claims": [head | right, head | wrong]})
    for file in tmp_path.iterdir():
        file.unlink()
    monkeypatch.setattr(reader.model.api, "_answer", lambda *_: _output(rows))
    report = grade(CHAT, questions, reader)
    # Rules read the wrong answer to (a); the model's right one to (b) confirms, its wrong one to (c) is no accusation.
    assert [(row.part, row.status) for row in report.rows] == [
        ("a", "never right"), ("b", "one shot"), ("c", "unread"),
    ]  # fmt: skip


def _output(text):
    from inspect_ai.model import ModelOutput, ModelUsage

    found = ModelOutput.from_content("qkv", text)
    return found.model_copy(update={"usage": ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)})
