"""The walk as a program."""

from __future__ import annotations

from ...problems.exact import Matrix
from ..fields import State
from .walk_given import MOST_TOKENS, kinds_of, shift_of


def python(state: State) -> str:
    """Public calls that give what the page shows: `scores`, `weights` and `out`."""
    heads, kv_heads = state["heads"], state["kvheads"]
    if state["source"] == "text":
        lines, heads, kv_heads = _of_text(state), 1, 1
    else:
        names = ("x", "wq", "wk", "wv") if state["source"] == "x" else ("q", "k", "v")
        lines = ["import torch", "", "import qkv", "", *(f"{name} = {_tensor(state[name])}" for name in names)]
        if state["source"] == "x":
            lines.append("q, k, v = x @ wq, x @ wk, x @ wv")
        if heads > 1:
            lines.append("# (tokens, columns) becomes (batch, heads, tokens, width)")
            for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
                lines.append(f"{name} = {name}.unflatten(-1, ({count}, -1)).transpose(0, 1)[None]")
    call = ["q", "k", "v", f"similarity={_similarity(state)}"]
    if mask := _mask(state):
        call.append(f"mask={mask}")
    shared = f".repeat_interleave({heads // kv_heads}, dim=1)" if heads > kv_heads else ""
    lines += [
        f"out, weights = qkv.attention({', '.join(call)}, return_weights=True)",
        f"print((q @ k{shared}.mT).tolist())",
        "print(weights.tolist())",
        "print(out.tolist())",
    ]
    return "\n".join(lines) + "\n"


def _tensor(rows: Matrix) -> str:
    written = ", ".join(f"[{', '.join(map(str, row))}]" for row in rows)
    return f"torch.tensor([{written}], dtype=torch.float64)"


def _similarity(state: State) -> str:
    match state["similarity"]:
        case "softmax" if state["source"] == "text":
            return "qkv.Softmax(scale=layer.scale)"
        case "softmax":
            return "qkv.Softmax()" if state["scale"] == "root" else "qkv.Softmax(scale=1.0)"
        case "argmax":
            return "qkv.Argmax()"
        case "polynomial":
            return f"qkv.Polynomial(degree={state['degree']}, offset={float(state['offset'])!r})"
        case name:
            return f"qkv.FeatureMap(qkv.features.{name})"


def _mask(state: State) -> str:
    kinds = kinds_of(state, _model_is_causal(state))
    parts = []
    if "causal" in kinds:
        parts.append(f"qkv.Causal(offset={shift_of(state)})")
    if "window" in kinds:
        right = "" if "causal" in kinds else f"right={state['right']}, "
        parts.append(f"qkv.Window(left={state['left']}, {right}offset={shift_of(state)})")
    if "padding" in kinds:
        parts.append(f"qkv.Padding(lengths=[{state['lengths']}])")
    return " & ".join(parts)


def _model_is_causal(state: State) -> bool:
    from ..checkpoints import available

    if state["source"] != "text":
        return False
    installed = available()
    return bool(installed) and installed[0].kind == "decoder"


def _of_text(state: State) -> list[str]:
    from ..checkpoints import available

    installed = available()
    place = installed[0].python if installed else 'Path("model")'
    return [
        "import importlib.util" if "importlib" in place else "import os",
        "from pathlib import Path",
        "",
        "import qkv",
        "import qkv.hf",
        "",
        f"model, tokenizer = qkv.hf.load({place}, generates=False)",
        f"inputs = tokenizer({state['text']!r}, truncation=True, max_length={MOST_TOKENS}, return_tensors='pt')",
        'layers = qkv.hf.look(model, {name: inputs[name] for name in ("input_ids", "attention_mask")})',
        f"layer = layers[{state['layer'] - 1}]",
        f"read = {state['head'] - 1} // (layer.query.shape[1] // layer.key.shape[1])",
        f"q = layer.query[0, {state['head'] - 1}].double()",
        "k, v = layer.key[0, read].double(), layer.value[0, read].double()",
    ]
