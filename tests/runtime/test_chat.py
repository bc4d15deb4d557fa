"""Templates of files, calls in answers, and prompts that begin alike and run once."""

import pytest

from qkv.errors import OptionError
from qkv.runtime.chat import ChatTemplate, ToolCall, read_tool_calls
from tests.helpers.runtime_files import build, write_gguf

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{% if tools %}{{ tools | length }}{% endif %}"
)


def test_the_template_of_a_file(tmp_path):
    path = write_gguf(build("llama"), tmp_path / "a.gguf", vocabulary=True, tokenizer__chat_template=TEMPLATE)
    template = ChatTemplate(path)
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert template.render(chat) == "user:a;assistant:b;"
    assert template.render(chat, [{}, {}]) == "user:a;assistant:b;2"
    assert template.takes_tools
    process = template._process._process
    assert process.poll() is None, "one process renders all chats"
    del template
    assert process.poll() is not None
    with pytest.raises(OptionError, match="without a chat template"):
        ChatTemplate(write_gguf(build("llama"), tmp_path / "b.gguf", vocabulary=True))


ADD, SUB = ToolCall("add", {"a": 2}), ToolCall("sub", {})


@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        ('<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>', "", [ADD]),
        ('So.\n<tool_call>\n{"name": "add", "arguments": "{\\"a\\": 2}"}\n</tool_call>\n', "So.", [ADD]),
        ('<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call><tool_call>{"name": "sub"}', "", [ADD, SUB]),
        ('[{"name": "add", "parameters": {"a": 2}}, {"name": "sub"}]', "", [ADD, SUB]),
        ('```json\n{"name": "add", "arguments": {"a": 2}}\n```', "", [ADD]),
        ('{"name": "sub", "arguments": {}}\n{"name": "add", "arguments": {"a": 2}}', "", [SUB, ADD]),
        ('{"name": "other", "arguments": {}}', None, []),
        ('{"name": "add", "arguments": 3}', None, []),
        ('{"name": "add", "arguments": {}} and more', None, []),
        ("<tool_call>add(2)</tool_call>", None, []),
        ("[3]", None, []),
        ("[" * 9999, None, []),
        ("{}", None, []),
        ("", None, []),
    ],
)
def test_calls_in_an_answer(text, said, calls):
    assert read_tool_calls(text, ["add", "sub"]) == (text if said is None else said, calls)
