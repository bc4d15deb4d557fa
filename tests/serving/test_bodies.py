"""Bodies of requests: what cannot be used is refused by its name."""

import json

import pytest

from qkv.serving.bodies import Chat, Completion, read
from qkv.serving.limits import Refused

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("more", "words", "param"),
    [
        ({"temperature": 2.3}, r"temperature: got 2\.3, wanted less than or equal to 2", "temperature"),
        ({"n": 2}, r"n: got 2, wanted 1\.", "n"),
        ({"presence_penalty": 0.5}, r"presence_penalty: got 0\.5", "presence_penalty"),
        ({"logit_bias": {"5": 1}}, r"logit_bias: got", "logit_bias"),
        ({"frobnicate": 1}, "frobnicate: got 1, wanted no such field", "frobnicate"),
        ({"messages": []}, "messages: got", "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages\.0\.content: got 3", "messages.0.content"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, r"messages\.0\.role", "messages.0.role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            r"messages\.0\.content\.0",
            None,
        ),
        ({"model": None}, "model: got None", "model"),
        ({"seed": -1}, "seed: got -1", "seed"),
        ({"max_tokens": 0}, "max_tokens: got 0", "max_tokens"),
        ({"stop": list("abcdefghijklmnopq")}, "stop: got .*, wanted at most 16 items", "stop"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, r"tools\.0\.function\.name", None),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(more, words, param):
    with pytest.raises(Refused, match=f"^{words}") as caught:
        read(Chat, json.dumps(HELLO | more).encode())
    assert caught.value.status == 400
    assert param in (None, caught.value.param)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff", b'{"a": ' * 5000, b"null"])
def test_what_is_no_object_is_refused(body):
    with pytest.raises(Refused, match=r"^body: got"):
        read(Chat, body)


@pytest.mark.parametrize(
    ("prompt", "only"),
    [("one", "one"), (["one"], "one"), ([3, 5], [3, 5]), ([[3, 5]], [3, 5]), ([], None), (["a", "b"], None)],
)
def test_a_completion_has_one_prompt(prompt, only):
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    if only is not None:
        assert read(Completion, body).only == only
    else:
        with pytest.raises(Refused, match=r"^prompt: got .*, wanted at (least|most) 1 item"):
            read(Completion, body)


def test_messages_are_what_templates_expect():
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": 3}'}}
    said = [
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    first, second = read(Chat, json.dumps(HELLO | {"messages": said}).encode()).messages
    assert first.for_template() == {"role": "system", "content": "be brief"}
    assert second.for_template()["tool_calls"][0]["function"]["arguments"] == {"a": 3}
    call["function"]["arguments"] = "{"
    broken = read(Chat, json.dumps(HELLO | {"messages": said}).encode()).messages[1]
    with pytest.raises(Refused, match=r"^tool_calls: got \{"):
        broken.for_template()
