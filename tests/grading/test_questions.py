"""Questions of a sheet, of the bank and of a chat, a record for each part."""

import pytest

from qkv.errors import OptionError
from qkv.exercises.sheets.questions import NOT_UNDERSTOOD, split_label
from qkv.grading.questions import from_bank, from_chat, from_sheet, judge
from qkv.reading import read_chat

LAWS = r"Let $q$ and $k$ be independent with $q, k \sim N(\mu, \sigma^2 I)$, where $\mu \in \mathbb{R}^d$."
SHEET = rf"""# Homework

## Problem 1

{LAWS}

(a) Find $E[q^T k]$ in terms of $\mu$, $\sigma$ and $d$.

(b) Compute the softmax of the scores $(0, 0)$.

(c) What did you like about this question?

## Problem 2

Compute the softmax of the scores $(0, 0)$.
"""


def asked(exercise):
    return [each.label for each in exercise.asked]


def test_a_sheet_by_question_and_part():
    found = from_sheet(SHEET)
    assert list(found) == ["1", "2"]
    assert asked(found["1"]) == ["a", "b", "c"]
    assert found["1"].asked[2].quantity == NOT_UNDERSTOOD
    assert judge(found["1"], "a", r"\mu^T \mu")
    assert judge(found["1"], "a", "0").kind == "wrong"
    assert judge(found["1"], "b", "(1/2, 1/2)")
    assert judge(found["1"], "c", "everything").kind == "unread"
    assert judge(found["2"], "", "(1/2, 1/2)")


def test_a_text_without_questions_is_refused():
    with pytest.raises(OptionError, match="sheet"):
        from_sheet("Thanks for the fish.\n\nSee you soon.")


def test_the_bank():
    found = from_bank(["4=decoding", "1 = scaling:7"])
    assert (found["4"].name, found["1"].name, found["1"].seed) == ("decoding", "scaling", 7)
    for wrong in ("decoding", "4=", "=decoding", "4=nothing at all"):
        with pytest.raises(OptionError):
            from_bank([wrong])


@pytest.mark.parametrize(
    ("lead", "number"),
    [("Problem 3.", "3"), ("I am stuck on problem 3 of our sheet.", "3"), ("3. Scores\n\n", "3"),
     ("Ok, thanks. Now question 3:", "3"), ("", "1")],
)  # fmt: skip
def test_the_number_of_a_prompt(lead, number):
    chat = read_chat(f"User: {lead} {LAWS}\n\n(a) Find $E[q^T k]$ in terms of $\\mu$ and $d$.\n\nAssistant: It is 0.")
    found = from_chat(chat)
    assert list(found) == [number]
    assert asked(found[number]) == ["a"]


def test_parts_that_come_later_belong_to_the_question_before():
    chat = read_chat(
        f"User: Problem 3. {LAWS}\n\n(a) Find $E[q^T k]$ in terms of $\\mu$ and $d$.\n\nAssistant: It is 0.\n\n"
        "User: Are you sure about (a)?\n\nAssistant: No.\n\n"
        "User: Fine. The next one.\n\n(b) Compute the softmax of the scores $(0, 0)$.\n\nAssistant: It is d."
    )
    found = from_chat(chat)
    assert list(found) == ["3"]
    assert asked(found["3"]) == ["a", "b"]
    assert judge(found["3"], "b", "(1/2, 1/2)")


def test_a_heading_at_the_end_of_a_turn_numbers_the_next():
    chat = read_chat(
        "User: Wait until I ask.\n\nAssistant: I am ready.\n\n## 6. Scores\n\n"
        f"User: {LAWS}\n\n1. Find $E[q^T k]$ in terms of $\\mu$ and $d$.\n"
        "2. Apart from part (a): compute the softmax of the scores $(0, 0)$.\n\n"
        "Assistant: 0."
    )
    found = from_chat(chat)
    assert list(found) == ["6"]
    assert asked(found["6"]) == ["a", "b"]


def test_numbers_of_other_questions_are_not_taken():
    chat = read_chat("User: I did all of them except question 5.\n\nAssistant: Well done.")
    assert not from_chat(chat)


def test_several_things_asked_in_one_part_are_one_answer():
    sheet = (
        "## 1. Attention\n\nA sequence of $N$ queries and keys in $\\mathbb{R}^D$ with values in $\\mathbb{R}^M$ goes "
        "through softmax attention.\n\n(a) Derive the time complexity and the space complexity of softmax attention in "
        "terms of $N$, $D$ and $M$.\n\n(b) How many parameters does a linear layer with 3 inputs and 5 outputs have?\n"
    )
    found = from_sheet(sheet)["1"]
    assert found.asked[0].quantity == "growth_time+growth_space"
    right = "time O(N^2 D + N^2 M); space O(N^2 + N D + N M)"
    assert judge(found, "a", right).kind in ("right", "unread")
    assert judge(found, "a", "time O(N); space O(N)").kind == "wrong"


@pytest.mark.parametrize(
    ("claim", "kind"),
    [
        (r"\mu^T \mu (or equivalently \|\mu\|^2 or \mu \cdot \mu)", "right"),
        (r"\mu^T \mu or d \mu^2", "unread"),
        (r"\sqrt{d} or d \mu^2", "unread"),
    ],
)
def test_the_same_in_several_ways(claim, kind):
    assert judge(from_bank(["1=scaling"])["1"], "a", claim).kind == kind


def test_labels():
    assert split_label("Test 2") == ("2", "")
    assert split_label("") == ("", "")
    assert split_label("A(b)") == ("A", "b")
    assert split_label("(c)") == ("", "c")


def test_what_a_sheet_asks_to_explain_has_its_rubric():
    sheet = f"{SHEET}\n## Problem 3\n\nHow does argmax in place of softmax affect our ability to train the model?\n"
    found = from_sheet(sheet)["3"]
    assert judge(found, "", "The gradient is zero almost everywhere, so queries and keys cannot be trained.")
    assert judge(found, "", "It makes no difference: gradients flow to the queries as before.").kind != "right"
    assert judge(found, "", "It keeps gradients from flowing back to queries and keys, so they cannot learn.")


def test_questions_of_a_chat_keep_their_titles():
    text = f"Problem 4. Products of random vectors\n\n{LAWS}\n\n(a) Find $E[q^T k]$ in terms of $\\mu$ and $d$."
    found = from_chat(read_chat(f"User: {text}\n\nAssistant: Sure.\n", name="chat.md"))
    assert found["4"].title == "Products of random vectors"
    assert "Find" in found["4"].printed


def test_sizes_by_the_letters_of_a_listing():
    decoding = from_bank(["4=decoding"])["4"]
    part = next(each.label for each in decoding.asked if each.quantity == "growth_moved")
    assert judge(decoding, part, "O(d^2 + b d + b n k)")
    assert judge(decoding, part, "O(d^2 + b d + b n d / h)")
    assert judge(decoding, part, "O(d^2 + b d + b n h k)").kind == "wrong"
