"""Inspect's provider `qkv/PATH` with tiny random models: its answers are those of `generate`."""

from __future__ import annotations

import json
from functools import partial

import anyio
import pytest
import torch

pytest.importorskip("inspect_ai")
from inspect_ai.model import (
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    ResponseSchema,
    get_model,
)
from inspect_ai.tool import ToolFunction, ToolInfo, ToolParams
from inspect_ai.util import JSONSchema

from qkv.grading import from_bank, grade
from qkv.reading import ExplicitReader, read_chat
from qkv.reading.model import ModelReader, Row
from qkv.runtime import load
from tests.helpers.runtime_files import build, write_gguf
from tests.helpers.serving import CHARACTERS

pytestmark = pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning")  # Inspect's own
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }};{% endfor %}"
    "{% for t in tools or [] %}{{ t.function.name }},{% endfor %}"
)
CHAT = read_chat("User: Please solve problem 1.\n\nAssistant: (a)\n\nAnswer (a): d mu^2\n\nThe variance is d there.")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("local") / "model.gguf"
    return write_gguf(
        build("llama", max_position_embeddings=6007), path, vocabulary=CHARACTERS, tokenizer__chat_template=TEMPLATE
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


def test_tools_are_offered_and_called(named, path):
    one = {"type": "object", "properties": {"a": {"enum": [2]}}, "required": ["a"], "additionalProperties": False}
    add, sub = (
        ToolInfo(name=name, description="", parameters=ToolParams.model_validate(one)) for name in ("add", "sub")
    )
    config, question = GenerateConfig(max_tokens=99), ChatMessageUser(content="2 + 3?")
    choices = "any", ToolFunction("sub"), "auto", "none"
    asked = [("2 + 3?", {"tools": [add, sub], "tool_choice": each, "config": config}) for each in choices]
    called, forced, free, alone = answers(named, *asked)
    for found, names in ((called, {"add", "sub"}), (forced, {"sub"})):
        (call,) = found.message.tool_calls
        assert call.function in names
        assert (call.arguments, found.stop_reason, found.completion) == ({"a": 2}, "tool_calls", "")
    model, offered = load(path), "user: 2 + 3?;add,sub,"
    assert free.completion == model.generate(offered, 99).text
    assert called.usage.total_tokens - called.usage.output_tokens == len(offered)
    assert alone.completion == model.generate("user: 2 + 3?;", 99).text
    failed = {"type": "parsing", "message": "no b"}
    given = {"content": "", "tool_call_id": called.message.tool_calls[0].id, "function": "add", "error": failed}
    result = ChatMessageTool.model_validate(given)
    call = [{"type": "function", "function": {"name": call.function, "arguments": {"a": 2}}}]
    (after,) = answers(named, ([question, forced.message, result], {"config": config}))
    said = f"user: 2 + 3?;assistant: {json.dumps(call)};tool: error: no b;"
    assert after.completion == model.generate(said, 99).text


def test_rows_run_together(path):
    model = load(path)
    named = get_model(f"qkv/{path}", activations="float32", rows=3, memoize=False)
    prompts, config = ("a", "bc", "d" * 70, "ef", "g"), GenerateConfig(max_tokens=600)

    async def together():
        found = {}

        async def one(prompt):
            found[prompt] = await named.generate(prompt, config=config)

        async with anyio.create_task_group() as tasks:
            for prompt in prompts:
                tasks.start_soon(one, prompt)
        return found

    found = anyio.run(together)
    steps, written = named.api.engine.figures.steps, sum(each.usage.output_tokens for each in found.values())
    assert steps < 0.8 * written, "answers ran one after the other"
    for prompt, one in found.items():
        assert one.completion == model.generate(f"user: {prompt};", 600).text
    with pytest.raises(Exception, match="rows: got 0"):
        get_model(f"qkv/{path}", rows=0, memoize=False)


def test_a_prompt_beyond_the_context_says_so(named):
    (found,) = answers(named, ("a" * 6100, {"config": GenerateConfig(max_tokens=3)}))
    assert (found.stop_reason, found.completion) == ("model_length", "")


def test_an_answer_that_is_not_awaited_any_more_ends(named):
    api = named.api
    config = GenerateConfig(max_tokens=5900, temperature=1.0, seed=1)

    async def cancelled():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(named.generate, "a" * 7, config=config))
            with anyio.fail_after(60):
                while not api.engine.running:
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        with anyio.fail_after(20):
            return await named.generate("b", config=GenerateConfig(max_tokens=3))

    assert anyio.run(cancelled).usage.output_tokens <= 3
    assert all(len(tokens) < 5900 for tokens in api.engine.prefixes._tokens)
    assert api.engine.figures.outcomes["left"] == 1


@pytest.mark.slow
def test_it_reads_and_only_confirms(path, tmp_path):
    questions = from_bank(["1=scaling"])
    reader = ModelReader(get_model(f"qkv/{path}", memoize=False), cache=tmp_path, max_tokens=40)
    assert (reader.confirms, reader.readings) == (True, 1)
    assert reader.read(CHAT, questions) == ExplicitReader().read(CHAT, questions), "a random model reads nothing"
    right = {"part": "b", "quote": "The variance is d", "claim": "d"}
    wrong = {"part": "c", "quote": "The variance is d", "claim": "d"}
    head = {"question": "1", "stance": "asserted", "anchor": "box"}
    rows = [{name: (head | row)[name] for name in Row.model_fields} for row in (right, wrong)]
    reciting = write_reciting(tmp_path / "reciting.gguf", json.dumps({"claims": rows}), reader.used["input"])
    report = grade(CHAT, questions, ModelReader(get_model(f"qkv/{reciting}", memoize=False), cache=tmp_path))
    # Rules read the wrong answer to (a); the model's right one to (b) confirms, its wrong one to (c) is no accusation.
    assert [(row.part, row.status) for row in report.rows] == [
        ("a", "never right"), ("b", "one shot"), ("c", "unread"),
    ]  # fmt: skip


def write_reciting(path, text, after):
    """A model that writes a text after a prompt of so many tokens: its logits depend on the position alone."""
    options = {"n_embd": 105, "n_layer": 1, "n_positions": 6007, "vocab_size": 101, "tie_word_embeddings": False}
    model = build("gpt2", **options)
    tokens = [*(3 + CHARACTERS.index(sign) for sign in text), 1]
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.transformer.ln_f.weight.fill_(1)
        model.lm_head.weight.copy_(torch.eye(101, 105))
        model.transformer.wpe.weight[range(after - 1, after - 1 + len(tokens)), tokens] = 1
    return write_gguf(model, path, vocabulary=CHARACTERS, tokenizer__chat_template=TEMPLATE)
