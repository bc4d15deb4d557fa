"""Ways in which a right answer could be accused, or a wrong one pass: a sheet misread, a unit, a factor, a speaker."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from qkv.exercises import Exercise
from qkv.exercises.sheets.questions import NOT_UNDERSTOOD
from qkv.grading import from_bank, grade
from qkv.grading.questions import from_sheet, judge
from qkv.reading import read_chat

SHEET = """# Assignment 3: costs

Work alone.

## 1. A layer

An attention layer has d_model = 96 and 6 heads of width 16. Its projections have no biases.

(a) How many parameters does the layer have?

(b) The layer is changed to grouped-query attention with 2 key/value heads. How many parameters does it have now?

## 2. A cache

A model has 10 layers. Each layer has 12 query heads and 3 key/value heads, all of width 32, cached in float16.

(a) How many bytes does one token add to the cache, over all layers?

(b) How many bytes does the cache take for a batch of 5 sequences of 300 tokens each?

## 3. Laws

Let q and k be independent random vectors with n components each. The components of q are independent with mean 0 and
variance σ². The components of k are independent with mean 0 and variance τ².

(a) Find Var(q^T k) in terms of n, σ and τ.

## 4. By hand

A query q = (2, 0) meets the keys k1 = (1, 1), k2 = (0, 1) with the values v1 = (6, 0), v2 = (0, 6). The width of a
key is d_k = 2.

(a) Compute the scaled scores q^T k_j / sqrt(d_k).

(b) Compute the attention weights.

(c) Another query has the scores (ln 2, 0). Give their softmax.

## 5. A kernel

Take the similarity sim(q, k) = (1 + q^T k)² with q, k in R^d.

(a) What is the smallest number of features of a feature map for it, as a formula in d?
"""


def of_sheet(text: str) -> dict[str, Exercise]:
    """The questions of a sheet that is a file."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "sheet.md")
        path.write_text(text, encoding="utf-8")
        return from_sheet(path)


QUESTIONS = of_sheet(SHEET)


def test_the_number_of_a_sheet_is_not_that_of_its_questions():
    assert {"1", "2", "3", "4", "5"} <= QUESTIONS.keys()
    parts = [asked.quantity for number in "12345" for asked in QUESTIONS[number].asked]
    assert NOT_UNDERSTOOD not in parts


@pytest.mark.parametrize(
    ("place", "claim", "kind"),
    [
        ("1a", "4 · 96² = 36,864", "right"),
        ("1a", "36 864", "right"),
        ("1a", "about 37 thousand", "unread"),
        ("1b", "24,576", "right"),
        ("1b", "36,864", "wrong"),
        ("2a", "3,840 bytes", "right"),
        ("2a", "3.84 kB (3.75 KiB)", "right"),
        ("2a", "1,920 bytes (1.875 KiB)", "wrong"),
        ("2b", "5,760,000 bytes, which is 5.76 MB", "right"),
        ("2b", "5,760 kB", "right"),
        ("2b", "about 6 MB", "unread"),
        ("3a", "Var(q^T k) = n σ² τ²", "right"),
        ("3a", "Var(q^T k) = n σ²", "wrong"),
        ("4c", "(2/3, 1/3)", "right"),
        ("5a", "(d + 1)(d + 2)/2", "right"),
        ("5a", "1 + d + d^2", "wrong"),
    ],
)
def test_what_a_sheet_asks_is_judged_for_what_it_is(place, claim, kind):
    assert judge(QUESTIONS[place[0]], place[1], claim).kind == kind


def test_the_weights_take_the_scale_that_a_part_before_them_says():
    assert judge(QUESTIONS["4"], "b", "(0.804, 0.196)").kind == "right"
    assert judge(QUESTIONS["4"], "b", "(0.881, 0.119)").kind != "right"


def test_what_the_reader_of_sheets_would_not_answer_is_not_judged():
    sheet = (
        "## Question 1\n\nA transformer has d_model = 64 and 4 heads.\n\n(a) How many parameters does one layer have?\n"
    )
    assert judge(of_sheet(f"{sheet}\n(b) Compute the softmax of (0, 0).\n")["1"], "a", "16,384").kind == "unread"


def test_a_part_takes_the_givens_of_the_part_that_it_names():
    laws = r"Let q and k be independent random vectors in $\mathbb{R}^m$ with $q \sim N(\alpha, \tau^2 I)$ and"
    vectors = r"$k \sim N(\beta, \tau^2 I)$, where $\alpha, \beta \in \mathbb{R}^m$ are vectors."
    after = r"(b) In the setting of (a), scores are divided by $s > 0$. Which $s$ gives $\mathrm{Var}(q^T k / s) = 1$?"
    first = r"(a) From here on let $\alpha = \beta = 0$. Find $\mathrm{Var}(q^T k)$ in terms of $m$ and $\tau$."
    exercise = of_sheet(f"## Question 1\n\n{laws} {vectors}\n\n{first}\n\n{after}\n")["1"]
    assert judge(exercise, "a", r"m \tau^4").kind == "right"
    assert judge(exercise, "b", r"s = \tau^2 \sqrt{m}").kind == "right"


LISTING = """## Question 1

```python
class Heads(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.size = width // heads
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(width, width)

    def forward(self, x):  # x: [B, T, width]
        B, T, _ = x.shape
        q = self.to_q(x).view(B, T, self.heads, self.size).transpose(1, 2)
        k = self.to_k(x).view(B, T, self.heads, self.size).transpose(1, 2)
        scores = q @ k.transpose(-2, -1)
        return scores
```
"""


def test_a_shape_in_numbers_is_no_fault():
    sized = "(a) What is the shape of `scores` for B = 3, T = 7, width = 48 and heads = 4?"
    exercise = of_sheet(f"{LISTING}\n{sized}\n\n(b) What is the shape of `scores`?\n")["1"]
    kinds = [judge(exercise, "a", text).kind for text in ("[3, 4, 7, 7]", "(B, heads, T, T)", "[3, 7, 7]")]
    assert kinds == ["right", "right", "wrong"]
    assert judge(exercise, "b", "[3, 4, 7, 7]").kind == "unread"


def rows(text: str) -> dict[str, str]:
    return {row.label: row.status for row in grade(read_chat(text, name="chat.md"), QUESTIONS).rows}


def test_an_array_is_read_with_its_factor():
    chat = "User: Solve question 4 part (c).\n\nAssistant: **Answer (c):** $\\frac{1}{3}$ {}\n\nUser: Thanks!\n"
    assert rows(chat.replace("{}", "[2, 1]"))["4(c)"] in ("one shot", "unread")
    behind = chat.replace("$\\frac{1}{3}$ {}", "[2, 1] / 3")
    assert rows(behind)["4(c)"] in ("one shot", "unread")
    assert rows(chat.replace("$\\frac{1}{3}$ {}", "[2/3, 1/3]"))["4(c)"] == "one shot"


@pytest.mark.parametrize("names", [("### Ines:", "### Tutor:"), ("**Me**", "**Corvid**"), ("## Prompt", "## Response")])
def test_the_partner_of_a_known_name_is_known(names):
    turns = ["Please solve question 2.", "**(a)** 1,920 bytes", "Are you sure about (a)?", "**(a)** 3,840 bytes"]
    text = "\n\n".join(f"{names[at % 2]}\n\n{said}" for at, said in enumerate(turns))
    chat = read_chat(text, name="chat.md")
    assert [turn.speaker for turn in chat.turns] == ["student", "tutor"] * 2
    assert {row.label: row.status for row in grade(chat, QUESTIONS).rows}["2(a)"] == "needed correction"


def test_names_that_do_not_take_turns_are_no_speakers():
    text = "**Me**\n\nQuestion 2.\n\n**Summary**\n\nx\n\n**Summary**\n\ny\n\n**Me**\n\nThanks.\n"
    assert {turn.speaker for turn in read_chat(text, name="chat.md").turns} == {"unknown"}


def test_a_table_with_a_column_for_the_question():
    table = "| Question | Part | Answer |\n| --- | --- | --- |\n| 1 | (a) | 36,864 |\n| 2 | (a) | 1,920 bytes |"
    found = rows(f"User: Solve questions 1 and 2.\n\nAssistant: {table}\n\nUser: Thank you!\n")
    assert (found["1(a)"], found["2(a)"]) == ("one shot", "never right")


def test_an_unread_answer_before_the_right_one_in_a_turn_without_a_speaker():
    text = "solve question 4 please, part c\n\nAnswer (c): [0, 1, 0]\n\nare you sure?\n\nAnswer (c): [2/3, 1/3]\n"
    assert rows(text)["4(c)"] != "one shot"


@pytest.mark.parametrize(
    "text",
    [
        "Common mistakes to avoid:\n\n- (a) $d\\mu^2$\n- (b) $d^2$",
        "Do not write:\n\n(b) $2d$",
        "| part | student's attempt |\n|---|---|\n| (a) | $d\\mu^2$ |\n| (b) | $d^2$ |",
        "Your claim was that\n\n(b) $\\boxed{d^2}$\n\nTry it with two components.",
        "(b) $d^2$\n\nThis is not right, since the components are independent.",
        "If q and k were the same vector, then Answer (b): $2d$, but they are independent.",
        "(b) The last step:\n\n$$\\mathrm{Var}(q_1 k_1) = 1$$\n\nThe components add up.",
        "(b) $$\\mathrm{Var}(q^Tk) \\le d^2$$",
        "(c) The factor is $\\boxed{1/\\sqrt{d}}$, i.e. $s = \\sqrt{d}$.",
        "(c) $$\\boxed{\\frac{q^Tk}{\\sqrt{d}}}$$",
        "(b) Suppose for a contradiction that\n\n$$\\boxed{\\mathrm{Var}(q^Tk) = d^2}$$",
    ],
)
def test_mistakes_hypotheses_steps_and_bounds_are_not_the_answer(text):
    report = grade(read_chat(f"User: Solve problem 1.\n\nAssistant: Problem 1\n\n{text}\n"), from_bank(["1=scaling"]))
    assert {row.status for row in report.rows} <= {"unread", "one shot"}
    plain = grade(read_chat("User: Solve problem 1.\n\nAssistant: Answer (b): $d^2$\n"), from_bank(["1=scaling"]))
    assert "never right" in {row.status for row in plain.rows}
