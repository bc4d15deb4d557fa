"""Start: attention in one picture. Words are points that can be dragged; one of them is the query."""

from __future__ import annotations

import math
from fractions import Fraction

from ...errors import complaint
from ..fields import Flag, Matrix, Number, State, Words, WrongField
from ..view import Result, View, Work

MOST_WORDS = 8
SENTENCE = "The cat sat because it was tired"
POINTS = "-2.4,0.5;1.9,1.1;-0.9,-1.3;-1.7,1.4;1.4,0.3;0.1,-0.9;1,1.6"
REACH = Fraction(3), Fraction(2)  # of the plane, to each side

FIELDS = (
    Words(name="words", label="Sentence", default=SENTENCE, longest=80, help=f"Two to {MOST_WORDS} words."),
    Number(name="query", label="Query", low=1, high=MOST_WORDS, default=5, whole=True, help="Which word asks."),
    Flag(name="causal", label="Causal mask", help="A word sees itself and the words before it."),
    Matrix(name="points", label="Points", default=POINTS, most_rows=MOST_WORDS, most_columns=2, rows="word",
           columns="coordinate"),
)  # fmt: skip


def compute(state: State, work: Work) -> Result:
    import torch

    from ... import Causal, attention

    words, points, at = _checked(state)
    x = torch.tensor([[float(entry) for entry in point] for point in points], dtype=torch.float64)[None, None]
    query = x[:, :, at : at + 1]
    mask = Causal(offset=at) if state["causal"] else None
    output, weights = attention(query, x, x, mask=mask, return_weights=True)
    return {
        "words": words,
        "at": at,
        "asking": words[at],
        "points": x[0, 0].tolist(),
        "scores": (query @ x.mT / math.sqrt(2))[0, 0, 0].tolist(),
        "weights": weights[0, 0, 0].tolist(),
        "masked": [state["causal"] and place > at for place in range(len(words))],
        "output": output[0, 0, 0].tolist(),
    }


def _checked(state: State) -> tuple[list[str], tuple[tuple[Fraction, ...], ...], int]:
    words, points, query = state["words"].split(), state["points"], state["query"]
    if not 2 <= len(words) <= MOST_WORDS:
        raise WrongField("words", complaint("words", f"{len(words)} words", f"2 to {MOST_WORDS} words"))
    if len(points) != len(words) or len(points[0]) != 2:
        found = f"{len(points)} rows of {len(points[0])} entries"
        raise WrongField("points", complaint("points", found, f"{len(words)} rows of 2: a point for each word"))
    for point in points:
        if any(abs(entry) > most for entry, most in zip(point, REACH, strict=True)):
            given = ", ".join(f"{float(entry):g}" for entry in point)
            raise WrongField("points", complaint("points", given, "entries up to 3 in x and 2 in y, either sign"))
    if query > len(words):
        raise WrongField("query", complaint("query", query, f"1 to {len(words)}, the number of words"))
    return words, points, query - 1


def python(state: State) -> str:
    _, points, at = _checked(state)
    rows = ", ".join(f"[{', '.join(str(float(entry)) for entry in point)}]" for point in points)
    mask = f", mask=qkv.Causal(offset={at})" if state["causal"] else ""
    return (
        "import torch\n\nimport qkv\n\n"
        f"# A row for each word of {state['words']!r}: query, key and value at once.\n"
        f"x = torch.tensor([{rows}], dtype=torch.float64)\n"
        f"output, weights = qkv.attention(x[{at}:{at + 1}], x, x{mask}, return_weights=True)\n"
        "print(weights.tolist())\nprint(output.tolist())\n"
    )


_NUMBERS = {"type": "array", "items": {"type": "number"}}
VIEW = View(
    name="start",
    title="Attention in one picture",
    verb="teach",
    lead="softmax(q·k/√d) weighs the values; here d = 2, and a word's point is its query, its key and its value.",
    simple="One word asks; every word answers a little or a lot.",
    fields=FIELDS,
    compute=compute,
    python=python,
    schema={
        "words": {"type": "array", "items": {"type": "string"}},
        "at": {"type": "integer"},
        "asking": {"type": "string"},
        "points": {"type": "array", "items": _NUMBERS},
        **dict.fromkeys(("scores", "weights", "output"), _NUMBERS),
        "masked": {"type": "array", "items": {"type": "boolean"}},
    },
    scripts=("views/start.js",),
    alone=True,
)
