"""Chat templates: the text that transformers renders, and templates that are stopped."""

import datetime

import pytest
import tokenizers
import transformers

from qkv.errors import OptionError
from qkv.runtime.templates import TemplateProcess

TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' }}\n"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "tokens": "{{ bos_token }}{{ messages[0].content | trim }}{{ eos_token }}",
    "tools": "{% if tools is none %}no tools{% endif %}{{ messages | tojson }}{{ messages | tojson(indent=2) }}",
    "blocks": "  {% set x = 1 %}\n{% for i in range(9) %}\n{% if i > 3 %}{% break %}{% endif %}\n{{ i }}{% endfor %}",
    "generation": "a{% generation %}b{{ messages[0].role }}{% endgeneration %}c",
    "date": "{{ strftime_now('%Y') }}",
}


def in_template(template, messages, words, tools=None):
    with TemplateProcess() as process:
        return process.render(template, messages, words, tools)


@pytest.fixture(scope="module")
def tokenizer():
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1, "?": 2}, unk_token="?"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>")


def test_turns_and_tools(tokenizer):
    add = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    chat = [{"role": "system", "content": "Add."}, {"role": "user", "content": "2 + 3?"}]
    template = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    template += "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    for tools in (None, [add]):
        wanted = tokenizer.apply_chat_template(chat, tools=tools, chat_template=template, tokenize=False)
        assert in_template(template, chat, {}, tools) == wanted
        assert ("add" in wanted) == bool(tools)


@pytest.mark.parametrize("name", TEMPLATES)
def test_it_renders_what_transformers_renders(name, tokenizer):
    chat = [{"role": "user", "content": ' Größe, <b>"2"</b>\n '}]
    given = {"tokenize": False, "add_generation_prompt": True, "chat_template": TEMPLATES[name]}
    wanted = tokenizer.apply_chat_template(chat, **given)
    words = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    assert in_template(TEMPLATES[name], chat[0]["content"], words) == wanted
    assert wanted


def test_the_date_is_today():
    assert in_template("{{ strftime_now('%Y-%m') }}", "x", {}) == datetime.datetime.now().strftime("%Y-%m")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('system is\nrefused') }}", "system is refused"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ 'a' * 10**12 }}", "MemoryError"),
        ("{% for i in range(9999) %}{{ 'a' * 9999 }}{% endfor %}", "more than 4194304 characters"),
        ("{% for i in range(10**9) %}{% endfor %}", "OverflowError"),
        ("{% if %}", "TemplateSyntaxError"),
    ],
)
def test_templates_that_are_refused(template, said):
    with pytest.raises(OptionError) as caught:
        in_template(template, "x", {})
    assert said in str(caught.value)
    assert str(caught.value).startswith("chat: ")
    assert "\n" not in str(caught.value)


def test_a_template_without_an_end_is_stopped(monkeypatch):
    monkeypatch.setattr("qkv.runtime.templates.MAX_SECONDS", 2)
    inner = "{% for j in range(99999) %}{% endfor %}"
    with pytest.raises(OptionError, match="takes more than 2 seconds"):
        in_template("{% for i in range(99999) %}" + inner + "{% endfor %}", "x", {})
