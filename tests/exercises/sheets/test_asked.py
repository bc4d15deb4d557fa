"""What a text asks, and the conventions that it settles."""

import pytest

from qkv.exercises.record import Convention, Structure
from qkv.exercises.sheets.asked import find_asked, plain, row_number, sentences, table
from qkv.exercises.sheets.conventions import settled
from qkv.exercises.solving import quantities


def asked(text: str) -> list[tuple[str, str]]:
    return [(wanted.quantity, wanted.object) for wanted in find_asked(text).wanted]


def test_every_phrase_names_a_quantity() -> None:
    known = {phrase.quantity for phrase in table().phrases}
    assert known <= quantities().keys()
    assert quantities().keys() - known == {"words"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Compute the queries and the keys.", [("projections", "Q"), ("projections", "K")]),
        ("Find the attention weights of the first token.", [("weights", "")]),
        ("What is the variance of $q^T k$ in terms of d?", [("variance", "q^T k")]),
        ("Compute the softmax of the scores.", [("weights", "")]),
        ("How many parameters are in the embedding matrix?", [("parameters", "embeddings")]),
        ("How large is the KV cache per token?", [("cache_bytes", "token")]),
        ("Derive the time complexity and the space complexity.", [("growth_time", ""), ("growth_space", "")]),
        ("Using the scores, compute the output matrix.", [("output", "")]),
        ("What should s be so that Var(q^T k / s) = 1?", [("scale_for_variance", "")]),
    ],
)
def test_what_is_asked(text: str, found: list[tuple[str, str]]) -> None:
    assert asked(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "The scores are computed first. For example softmax([1, 3, 2]) is a vector.",
        "Hint: compute the scores first.",
        "Recall that the attention output is a weighted sum.",
        "Show all your work. Round your answer to three decimals.",
        "Explain why the scores are scaled.",
    ],
)
def test_what_is_not_asked(text: str) -> None:
    assert asked(text) == []


def test_the_fields_of_a_question() -> None:
    wanted = find_asked("Compute the attention output of the second token, in terms of a and b.").wanted[0]
    assert (wanted.row, wanted.in_terms_of) == ("second", ("a", "b"))
    assert find_asked("How large is the KV cache, in GiB?").wanted[0].unit == "GiB"
    assert [row_number(row, 1, 5) for row in ("second", "last", "4", "")] == [2, 5, 4, None]
    assert row_number("second", 0, None) == 1
    assert row_number("last", 1, None) is None


def test_plain_text_keeps_places() -> None:
    text = r"Find $\mathbf{Q}$ and `d_{\text{model}}` for **all**."
    assert len(plain(text)) == len(text)
    assert plain(text).index("Q") == text.index("Q")


def test_sentences_end_where_they_end() -> None:
    text = "Let d = 0.5, e.g. small. What is Q? Compute K:\n\nand V"
    assert [text[slice(*span)].strip() for span in sentences(text)] == [
        "Let d = 0.5, e.g. small.", "What is Q?", "Compute K:", "and V",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("Use attention without scaling.", "scale", "none"),
        ("Scores are divided by sqrt(d_k).", "scale", "sqrt"),
        ("Use scaled dot-product attention.", "scale", "sqrt"),
        ("Positions are counted from 0.", "index_base", 0),
        ("Tokens are the columns of X.", "layout", "columns"),
        ("Count a multiply-add as two FLOPs.", "flops_per_mac", 2),
        ("Give the size in GiB.", "byte_unit", "GiB"),
        ("Round to three decimal places.", "digits", 6),
        ("The weights are stored in 4 bits.", "bytes_per_element", "int4"),
    ],
)
def test_conventions(text: str, name: str, value: object) -> None:
    assert settled(text).conventions.get(name) == value
    assert settled("Compute.", text).as_conventions()[name] == Convention(value=value)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("Each token attends to itself and the two previous tokens.", {"mask": "window(2, 0)"}),
        ("A decoder-only model.", {"mask": "causal"}),
        ("Tokens attend within a window of radius 3.", {"mask": "window(3, 3)"}),
        ("The embeddings are tied, without biases; ignore norms.", {"tied": True, "biases": False, "norm": "none"}),
        ("A SwiGLU feed-forward network.", {"gated": True}),
        ("It uses grouped-query attention.", {"variant": "gqa"}),
        ("Softmax is replaced by argmax attention.", {"similarity": "argmax"}),
    ],
)
def test_structure(text: str, fields: dict[str, object]) -> None:
    found = settled(text).as_structure()
    assert {name: getattr(found, name) for name in fields} == fields
    assert settled("Nothing is said.").as_structure() == Structure()


def test_what_is_said_later_wins() -> None:
    assert settled("Use scaling by 1/sqrt(d). Now leave out the scaling.").conventions["scale"] == "none"
    assert settled("Attention without scaling.", "Scaled dot-product attention.").conventions["scale"] == "none"
