"""The endpoints, asked by OpenAI's own client: answers are those of `generate`, and every refusal has words."""

import json
import re
import threading
import time
from contextlib import suppress

import anyio
import httpx
import jsonschema
import openai
import pytest

import qkv
from qkv.serving.app import Stream
from tests.helpers.serving import serving, wait_for, write

CONTEXT = 601
HELLO = [{"role": "user", "content": "hello"}]
IN_TEMPLATE = "u:hello\na:"
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}, "name": {"enum": ["a", "bc"]}},
    "required": ["x", "name"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "move", "description": "go", "parameters": POINT}}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("served"), max_position_embeddings=CONTEXT)


@pytest.fixture(scope="module")
def model(path):
    return qkv.runtime.load(path, threads=1)


@pytest.fixture(scope="module")
def served(path):
    with serving(path) as found:
        yield found


@pytest.fixture(scope="module")
def client(served):
    return served[0]


@pytest.fixture(scope="module")
def server(served):
    return served[1]


def address(client, path):
    return str(client.base_url.join(path))


def chat(client, messages=HELLO, model="tiny", **options):
    return client.chat.completions.create(model=model, messages=messages, **options)


def test_the_model_is_listed(client):
    (found,) = client.models.list().data
    assert found.id == "tiny"
    assert client.models.retrieve("tiny") == found
    with pytest.raises(openai.NotFoundError, match="model: got 'other', wanted 'tiny'"):
        client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError, match="model: got 'other', wanted 'tiny'"):
        chat(client, model="other")


def test_a_completion_is_that_of_generate(client, model):
    found = client.completions.create(
        model="tiny", prompt="once", max_tokens=19, temperature=0.9, top_p=0.95, seed=3, logprobs=2, stop=["zq", "Q"]
    )
    own = model.generate("once", 19, temperature=0.9, top_p=0.95, seed=3, logprobs=2, stop=["zq", "Q"])
    (choice,) = found.choices
    assert (choice.text, choice.finish_reason) == (own.text, own.finish)
    assert choice.logprobs.token_logprobs == own.logprobs
    assert [list(top.values()) for top in choice.logprobs.top_logprobs] == [list(top.values()) for top in own.top]
    said = choice.logprobs.tokens
    assert "".join(each for each in said if each != "<pad>") == own.text
    assert choice.logprobs.text_offset == [len("".join(said[:at])) for at in range(len(said))]
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (4, len(own.tokens))
    tokens = client.completions.create(model="tiny", prompt=model.tokenizer.encode("once"), temperature=0)
    assert tokens.choices[0].text == model.generate("once", 16).text, "16 tokens by default, as at OpenAI's"


def test_a_chat_is_the_template_continued(client, model):
    found = chat(client, max_completion_tokens=23, temperature=1.1, seed=5, logprobs=True, top_logprobs=3)
    own = model.generate(IN_TEMPLATE, 23, temperature=1.1, seed=5, logprobs=3)
    (choice,) = found.choices
    assert choice.message.content == own.text
    assert [each.logprob for each in choice.logprobs.content] == own.logprobs
    assert [bytes(each.bytes).decode() for each in choice.logprobs.content] == list(own.text)
    assert all(len(each.top_logprobs) == 3 for each in choice.logprobs.content)
    assert found.usage.prompt_tokens == len(IN_TEMPLATE)
    unlimited = chat(client, temperature=0)
    assert unlimited.usage.total_tokens == CONTEXT or unlimited.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("with_logprobs", [False, True])
def test_a_stream_is_the_same_answer_in_pieces(client, with_logprobs):
    more = {"logprobs": True, "top_logprobs": 2} if with_logprobs else {}
    options = {"max_tokens": 31, "temperature": 1.0, "seed": 7, "stop": ["wx"]} | more
    whole = chat(client, **options)
    pieces = list(chat(client, **options, stream=True, stream_options={"include_usage": True}))
    deltas = [piece.choices[0] for piece in pieces if piece.choices]
    assert deltas[0].delta.role == "assistant"
    assert "".join(each.delta.content or "" for each in deltas) == whole.choices[0].message.content
    assert [each.finish_reason for each in deltas if each.finish_reason] == [whole.choices[0].finish_reason]
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({piece.id for piece in pieces}) == 1
    said = [entry for each in deltas if each.logprobs for entry in each.logprobs.content]
    assert said == (whole.choices[0].logprobs.content if with_logprobs else [])
    given = {"model": "tiny", "prompt": "once", "max_tokens": 9, "seed": 5, "logprobs": 1}
    parts = [piece.choices[0] for piece in client.completions.create(**given, stream=True)]
    whole = client.completions.create(**given).choices[0]
    assert "".join(part.text for part in parts) == whole.text
    assert [at for part in parts if part.logprobs for at in part.logprobs.text_offset] == whole.logprobs.text_offset


def test_a_shared_beginning_is_not_computed_again(client):
    long = [{"role": "user", "content": "x" * 150}]
    first, second = (
        chat(client, long, max_tokens=3),
        chat(client, [{"role": "user", "content": "x" * 143}], max_tokens=3),
    )
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens >= 143 - 5


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_json_fulfils_its_schema(client, stream):
    wanted = {"type": "json_schema", "json_schema": {"name": "point", "schema": POINT}}
    for seed in range(3):
        found = chat(client, response_format=wanted, seed=seed, temperature=1.7, stream=stream)
        if stream:
            text = "".join(each.choices[0].delta.content or "" for each in found)
        else:
            text = found.choices[0].message.content
            assert found.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(text), POINT)
    found = chat(client, response_format={"type": "json_object"}, seed=3, max_tokens=3)
    assert found.choices[0].message.content.startswith("{")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "move"}}])
def test_a_tool_that_must_be_called_is_called(client, choice):
    other = {"type": "function", "function": {"name": "stay"}}
    tools = [TOOL, other] if choice != "required" else [TOOL]
    options = {"tools": tools, "tool_choice": choice, "temperature": 1.5, "seed": 3}
    found = chat(client, **options).choices[0]
    (call,) = found.message.tool_calls
    assert (found.finish_reason, found.message.content, call.function.name) == ("tool_calls", None, "move")
    jsonschema.validate(json.loads(call.function.arguments), POINT)
    deltas = [piece.choices[0] for piece in chat(client, **options, stream=True)]
    (said,) = [each.delta.tool_calls for each in deltas if each.delta.tool_calls]
    assert said[0].function.model_dump() == call.function.model_dump()
    assert not any(each.delta.content for each in deltas)
    assert deltas[-1].finish_reason == "tool_calls"
    turn = [*HELLO, found.message.model_dump(exclude_none=True)]
    turn.append({"role": "tool", "content": "done", "tool_call_id": call.id})
    assert chat(client, turn, tools=tools, max_tokens=1, tool_choice="none").usage.prompt_tokens > len(IN_TEMPLATE)


def test_text_is_streamed_although_tools_are_offered(client):
    options = {"tools": [TOOL], "temperature": 1.0, "seed": 11, "max_tokens": 40}
    whole = chat(client, **options).choices[0].message.content
    pieces = [piece.choices[0].delta.content or "" for piece in chat(client, **options, stream=True)]
    assert "".join(pieces) == whole


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 2}, "n: got 2"),
        ({"max_tokens": 1000}, "max_tokens: got 1000 after a prompt of 10 tokens, wanted at most 601"),
        ({"messages": [{"role": "user", "content": "x" * 700}]}, "max_tokens: got 1 after a prompt of 705 tokens"),
        ({"top_logprobs": 2}, "top_logprobs: got 2"),
        ({"tool_choice": "required"}, "tool_choice: got required, wanted tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice: got 'f'"),
        ({"response_format": {"type": "json_schema"}}, r"response_format\.json_schema: got nothing"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "integer", "minimum": 5, "maximum": 3}},
                }
            },
            "schema: got Unsatisfiable",
        ),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 7}}}],
                "tool_choice": "required",
            },
            "grammar: got .*type must be a string",
        ),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused_in_words(client, options, words):
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        chat(client, **{"messages": HELLO, **options})
    if words.startswith(("schema", "grammar")):
        assert caught.value.param == next(iter(options))


def test_a_schema_that_no_token_can_fulfil_ends_the_answer_and_nothing_else(client):
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": "日本"}}}
    with pytest.raises(openai.BadRequestError, match="schema: got Parser Error"):
        chat(client, response_format=wanted)
    assert chat(client, max_tokens=2).usage.completion_tokens == 2


@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m.content }}{% endfor %}"])
def test_what_a_model_lacks_is_said(tmp_path, template):
    with serving(write(tmp_path, template=template)) as (client, _):
        words = "without a chat template" if template is None else "tools: got a chat template without tools"
        with pytest.raises(openai.BadRequestError, match=words):
            chat(client, tools=[TOOL])
        assert client.completions.create(model="tiny", prompt="once", max_tokens=2).usage.completion_tokens == 2


@pytest.mark.parametrize(
    ("where", "headers", "status", "code"),
    [
        ("nothing", {}, 404, "not_found"),
        ("chat/completions", {"content-type": "text/plain"}, 415, "invalid_content_type"),
        ("chat/completions", {"origin": "http://evil.example"}, 403, "refused"),
        ("chat/completions", {"host": "evil.example"}, 421, "refused"),
        ("chat/completions", {"padding": "5000000"}, 413, "refused"),
        ("chat/completions", {}, 400, "invalid_json"),
    ],
)
def test_requests_of_another_kind_are_refused_in_its_form(client, where, headers, status, code):
    given = {"content-type": "application/json"} | headers
    content = b"{" + b" " * int(given.pop("padding", 0))
    with suppress(httpx.WriteError), httpx.Client() as plain:
        found = plain.post(address(client, where), headers=given, content=content)
        assert (found.status_code, found.json()["error"]["code"]) == (status, code)
        assert set(found.json()["error"]) == {"message", "type", "param", "code"}


def test_get_is_for_other_addresses(client):
    assert httpx.get(address(client, "completions")).status_code == 405
    assert httpx.get(address(client, "/health")).json() == {"status": "ok"}


def figures(client):
    text = httpx.get(address(client, "/metrics")).text
    return {name: float(value) for name, value in re.findall(r"^(qkv_\S+) (\S+)$", text, re.MULTILINE)}


def test_metrics_count_what_happens(client):
    before = figures(client)
    chat(client, max_tokens=5, temperature=0, messages=[{"role": "user", "content": "m" * 77}])
    after = figures(client)
    moved = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert moved['qkv_requests_total{outcome="answered"}'] == 1
    assert moved["qkv_new_tokens_total"] <= 5
    assert moved["qkv_prompt_tokens_total"] + moved.get("qkv_cached_prompt_tokens_total", 0) == 82
    assert after["qkv_running_rows"] == after['qkv_cache_bytes{of="rows"}'] == 0
    assert after['qkv_cache_bytes{of="prefixes"}'] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_row(client, server, stream):
    left = server.engine.figures.outcomes["left"]
    holds = [server.engine._changed] if not stream else []
    body = {"model": "tiny", "messages": HELLO, "stream": stream, "temperature": 0, "max_tokens": 580}
    with httpx.Client() as plain:
        for lock in holds:  # the answer cannot be over before the client is gone
            lock.acquire()
        try:
            with (
                suppress(httpx.ReadTimeout),
                plain.stream("POST", address(client, "chat/completions"), json=body, timeout=0.3) as found,
            ):
                next(found.iter_lines())
                server.engine._changed.acquire() if stream else None
                holds = [server.engine._changed]
        finally:
            plain.close()
            time.sleep(0.05)
            for lock in holds:
                lock.release()
    wait_for(lambda: server.engine.figures.outcomes["left"] == left + 1)
    assert not server.engine.running


def test_a_token_is_required_where_there_is_one(path):
    with serving(path, token="a-token-of-the-test") as (client, _):
        assert [each.id for each in client.models.list().data] == ["tiny"]
        other = openai.OpenAI(base_url=client.base_url, api_key="another", max_retries=0)
        with pytest.raises(openai.AuthenticationError, match="authorization: got no bearer token, or a wrong one"):
            other.models.list()
        for where in ("/metrics", "/health", "chat/completions"):
            assert httpx.get(address(client, where)).status_code == 401


@pytest.mark.slow
def test_a_full_queue_is_said_and_time_is_limited(tmp_path):
    long = write(tmp_path, max_position_embeddings=60_000)
    with serving(long, rows=1, queue=0, seconds=1.5) as (client, server):
        stream = chat(client, temperature=0, stop=[], stream=True)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError, match="which is all that this server takes") as caught:
            chat(client)
        assert caught.value.response.headers["retry-after"] == "1"
        with pytest.raises(openai.APIError, match=r"longer than 1\.5 s"):
            list(stream)
        with pytest.raises(openai.InternalServerError, match=r"longer than 1\.5 s"):
            chat(client, temperature=0)
        assert server.engine.figures.outcomes["late"] == 2


def test_many_clients_at_once_get_their_own_answers(path, model):
    wanted = {at: model.generate(f"u:{'hi' * at}\na:", 40).text for at in range(24)}
    found, refused = {}, []
    with serving(path, rows=5, queue=9) as (client, server):

        def ask(at):
            try:
                found[at] = (
                    chat(client, [{"role": "user", "content": "hi" * at}], max_tokens=40, temperature=0)
                    .choices[0]
                    .message.content
                )
            except openai.RateLimitError as error:
                refused.append(error.response.headers["retry-after"])

        threads = [threading.Thread(target=ask, args=(at,)) for at in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.engine.figures.outcomes["refused"] == len(refused)
    assert len(found) + len(refused) == 24
    assert set(refused) <= {"1"}
    assert len(found) >= 14
    assert found == {at: wanted[at] for at in found}


def test_a_stream_that_never_begins_leaves_too():
    left, events = [], iter(())

    async def pieces():
        for event in events:
            yield event

    async def gone():
        return {"type": "http.disconnect"}

    async def blocked(message):
        await anyio.sleep_forever()

    anyio.run(
        Stream(pieces(), lambda: left.append(1)), {"type": "http", "asgi": {"spec_version": "2.3"}}, gone, blocked
    )
    assert left == [1]
