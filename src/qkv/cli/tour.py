"""`qkv tour`: a worked example by hand and by the library, four similarities, a mask, a choice, a decoding step,
where linear time begins, and an answer, a variant and a transcript judged."""

from __future__ import annotations

import json
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import qkv
from qkv import features, problems, tutor
from qkv.backends.dispatch import Choice
from qkv.cli.race import HEADS, HEADS_KV, PAST, WIDTH, crossover_here, decode_step

# Three tokens of width 2; queries and keys of width 3, values of width 2.
X = torch.tensor([[2, 3], [-1, 0], [1, -2]])
W_Q = torch.tensor([[1, 0, 2], [0, 1, -3]])
W_K = torch.tensor([[0, 0, -1], [-2, 0, 1]])
W_V = torch.tensor([[8, 0], [0, 9]])
TOKEN = 2

SIMILARITIES = {
    "softmax": qkv.Softmax(scale=1.0),
    "argmax": qkv.Argmax(),
    "quadratic (q·k + 1)²": qkv.Polynomial(degree=2),
    "elu + 1 features": qkv.FeatureMap(features.elu1),
}

# A tutor's slip, and the question that finds it.
CHAT = r"""
Student: 1. The vectors q and k are independent, both with mean $\mu \in \mathbb{R}^d$ and covariance $\sigma^2 I$.
(a) What is $E[q^T k]$? (b) With $\mu = 0$ and $\sigma = 1$, what is the variance of $q^T k$?

Tutor: (a) Every component has mean $\mu$, so $E[q^T k] = d \mu^2$. (b) There are $d$ terms of variance 1: $d$.

Student: In part (a), what kind of object is $\mu$?

Tutor: A vector, and I took it for a number. (a) $E[q^T k] = \mu^T \mu$.
"""


def worked_example() -> dict[str, Any]:
    """Every number of the tour; integers are exact, the rest is float64."""
    queries, keys, values = X @ W_Q, X @ W_K, X @ W_V
    q, k, v = queries.double(), keys.double(), values.double()

    def answer(similarity: Any) -> dict[str, list]:
        out, weights = qkv.attention(q, k, v, similarity=similarity, return_weights=True)
        return {"weights": weights[TOKEN].tolist(), "output": out[TOKEN].tolist()}

    return {
        "queries": queries.tolist(),
        "keys": keys.tolist(),
        "values": values.tolist(),
        "scores": (queries @ keys.T).tolist(),
        "token": TOKEN + 1,
        "unscaled": answer(qkv.Softmax(scale=1.0)),
        "scaled": answer(qkv.Softmax()),
        "similarities": {name: answer(similarity) for name, similarity in SIMILARITIES.items()},
    }


def larger_call() -> Choice:
    """A call of the size of one layer: 32 query heads on 8 key/value heads, causal, padded."""
    query, key = torch.zeros(2, 32, 1024, 64), torch.zeros(2, 8, 1024, 64)
    return qkv.explain(query, key, key, mask=qkv.Causal() & qkv.Padding(lengths=[1024, 700]))


def taught() -> dict[str, Any]:
    """An answer judged, a variant worked out, and a conversation graded."""
    judged = problems.named("scaling").check("a", r"d \mu^2")
    variant = problems.named("argmax", seed=7).solve()
    rows = tutor.grade(tutor.read(CHAT)).rows
    return {
        "answer": judged.as_dict(),
        "variant": variant.summary,
        "transcript": [row.as_dict() for row in rows],
    }


def show_json() -> None:
    choice = larger_call()
    print(
        json.dumps(
            {
                "example": worked_example(),
                "choice": {"backend": choice.backend, "reasons": choice.reasons},
                "decode": decode_step(),
                "crossover": crossover_here(),
                "taught": taught(),
            },
            indent=2,
        )
    )


def show() -> None:
    console = Console(width=min(80, Console().width), highlight=False)
    example = worked_example()
    console.rule("[bold]attention, one equation")
    console.print("V'ᵢ = Σⱼ sim(qᵢ, kⱼ) vⱼ / Σⱼ sim(qᵢ, kⱼ)\n", justify="center")
    _show_by_hand(console, example)
    _show_similarities(console, example)
    console.rule("[bold]3. masks are drawn; True attends")
    console.print("qkv.Causal() & qkv.Padding(lengths=[4]), six queries and six keys:\n")
    console.print((qkv.Causal() & qkv.Padding(lengths=[4])).draw(6, 6), markup=False)
    console.print()
    console.rule("[bold]4. you say what, auto says how, explain says why")
    console.print("qkv.explain(query, key, value, mask=Causal() & Padding(lengths=[1024, 700]))\n")
    console.print(str(larger_call()), markup=False)
    console.print()
    console.rule("[bold]5. a cache that is never copied")
    step = decode_step()
    console.print(
        f"one token after {PAST}, {HEADS} query heads on {HEADS_KV}, width {WIDTH}, float32, on this machine:\n"
    )
    console.print(
        f"qkv.decode {step['qkv_ms']:.2f} ms, torch SDPA {step['torch_ms']:.2f} ms: {step['ratio']:.1f} times as fast"
    )
    console.print()
    console.rule("[bold]6. linear time, from N* on")
    length = crossover_here()
    console.print(
        f"causal, {HEADS_KV} heads of width 64: sums are cheaper than scores from N* keys on\n\n"
        f"elu + 1      N* = {length['elu1']}, counted; {length['elu1_measured']}, measured on this machine\n"
        f"(q·k + 1)²   N* = {length['quadratic']}, counted\n"
    )
    _show_taught(console, taught())


def _show_by_hand(console: Console, example: dict[str, Any]) -> None:
    console.rule("[bold]1. three tokens by hand")
    table = Table("token", "x", "q = W_Qᵀx", "k = W_Kᵀx", "v = W_Vᵀx", box=None, pad_edge=False)
    rows = zip(X.tolist(), example["queries"], example["keys"], example["values"], strict=True)
    for token, vectors in enumerate(rows, start=1):
        table.add_row(str(token), *(_vector(vector) for vector in vectors))
    console.print(table)
    scores = example["scores"][TOKEN]
    console.print(f"\ntoken 3 scores the three keys, q₃·kⱼ: {', '.join(map(_integer, scores))}   (exact)\n")
    table = Table("token 3 attends", "weights", "output", box=None, pad_edge=False)
    for name, key in (("unscaled, Softmax(scale=1.0)", "unscaled"), ("scaled by 1/√3, Softmax()", "scaled")):
        table.add_row(name, _numbers(example[key]["weights"]), _numbers(example[key]["output"]))
    console.print(table)
    console.print()


def _show_similarities(console: Console, example: dict[str, Any]) -> None:
    console.rule("[bold]2. the same tokens, four similarities")
    table = Table("similarity", "weights of token 3", "output", box=None, pad_edge=False)
    for name, answer in example["similarities"].items():
        table.add_row(name, _numbers(answer["weights"]), _numbers(answer["output"]))
    console.print(table)
    console.print()


def _show_taught(console: Console, lesson: dict[str, Any]) -> None:
    console.rule("[bold]7. answers judged, variants worked out, transcripts graded")
    answer = lesson["answer"]
    console.print(
        f"qkv check scaling a 'd mu^2'   {answer['kind']}: {', '.join(answer['misconceptions'])}\n"
        f"qkv solve argmax --seed 7      {lesson['variant']['a']}\n"
        "qkv grade chat.md              a small chat, part by part:\n",
        markup=False,
    )
    table = Table("part", "performance", "right in turn", "found by", "error", box=None, pad_edge=False)
    for row in lesson["transcript"]:
        errors = ", ".join(error["name"] for error in row["errors"])
        table.add_row(row["part"], row["status"], str(row["first_right_turn"]), row["found_by"] or "", errors)
    console.print(table)
    console.print("\nqkv solve works the first example out line by line; qkv practice asks you.")


def _integer(number: int) -> str:
    return str(number).replace("-", "−")


def _vector(numbers: list[int]) -> str:
    return f"({', '.join(map(_integer, numbers))})"


def _numbers(numbers: list[float]) -> str:
    def short(x: float) -> str:
        return f"{x:.3g}" if x == 0 or abs(x) >= 1e-4 else f"{x:.1e}"

    return f"({', '.join(short(x).replace('-', '−') for x in numbers)})"
