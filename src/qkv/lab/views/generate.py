"""Generate: a real model writes on qkv.runtime, token by token, with what it found probable and where a head looked."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from threading import Thread
from typing import TYPE_CHECKING, Any

from ...errors import OptionError, complaint
from ..checkpoints import HOW_TO_GET_ONE, Checkpoint, available, check_range, maps
from ..fields import Choice, Flag, Number, State, Words, WrongField
from ..view import Result, View, Work

if TYPE_CHECKING:
    from torch import Tensor

    from ...runtime import Model

SECONDS = 60
MOST_NEW = 48
MOST_PROMPT = 240  # characters
MOST_BARS = 8
SINKS, RECENT = 4, 8  # tokens that a mask leaves, of the first and of the last
MASKS = {"all": None, "recent": (0, RECENT), "sinks": (SINKS, RECENT)}
NONE = {"none": "none is installed"}
FOUND = {each.name: each for each in available() if each.kind == "decoder"}
_MOST_LAYERS = max((each.layers for each in FOUND.values()), default=1)
_MOST_HEADS = max((each.heads for each in FOUND.values()), default=1)

FIELDS = (
    Choice(name="checkpoint", label="Model", options={name: each.title for name, each in FOUND.items()} or NONE,
           default=next(iter(FOUND), "none")),
    Words(name="prompt", label="Prompt", default="The capital of France is", longest=MOST_PROMPT, lines=2),
    Number(name="new", label="Tokens written", low=0, high=MOST_NEW, default=0, whole=True),
    Number(name="temperature", label="Temperature", low=0, high=2, default=0.7, step=0.1,
           help="0 takes the most probable token; more lets others in."),
    Number(name="seed", label="Seed", low=0, high=9999, default=0, whole=True, slider=False),
    Choice(name="mask", label="Sees", default="all",
           options={"all": "all tokens", "recent": f"the last {RECENT}",
                    "sinks": f"the first {SINKS} and the last {RECENT}"},
           help="A mask on the tokens before."),
    Flag(name="look", label="Where a head looks", help="Read by transformers once more, which takes longer."),
    Number(name="layer", label="Layer", needs=("look", ("yes",)), low=1, high=_MOST_LAYERS, default=1, whole=True),
    Number(name="head", label="Head", needs=("look", ("yes",)), low=1, high=_MOST_HEADS, default=1, whole=True),
)  # fmt: skip


class _Text:
    """A prompt and what was written after it, as far as anybody asked: a longer question goes on from here."""

    def __init__(self, model: Model, prompt: str, temperature: float, seed: int, mask: str) -> None:
        import torch

        from ...cache import FirstLast

        assert model.tokenizer is not None
        self.model, self.temperature = model, temperature
        self.generator = torch.Generator().manual_seed(seed)
        kept = MASKS[mask]
        self.cache = model.cache(eviction=None if kept is None else FirstLast(*kept, every=1))
        self.prompt = list(model.tokenizer.encode(prompt))
        self.tokens: list[int] = []
        self.nbytes: list[int] = []
        self.log_probs: list[Tensor] = []  # of the next token: one more than tokens
        self._run(self.prompt)

    def _run(self, tokens: list[int]) -> None:
        logits = self.model.step(tokens, self.cache)
        self.log_probs.append(self.model.log_probabilities(logits)[0])
        self.nbytes.append(self.cache.nbytes)

    def write(self, count: int, work: Work) -> None:
        from ...nn.generate import choose_token

        while len(self.tokens) < count and not self.ended:
            work.say("writing", len(self.tokens), count)
            chosen = choose_token(self.log_probs[-1][None], self.temperature, None, None, self.generator)
            self.tokens.append(int(chosen))
            self._run(self.tokens[-1:])

    @property
    def ended(self) -> bool:
        return bool(self.tokens) and self.tokens[-1] in self.model.stop_tokens


# One model and one text are kept in a process.
_MODELS: dict[str, Future[Any]] = {}
_TEXTS: dict[tuple[str, str, float, int, str], _Text] = {}


def compute(state: State, work: Work) -> Result:
    checkpoint = FOUND.get(state["checkpoint"])
    if checkpoint is None:
        raise WrongField("checkpoint", complaint("checkpoint", "none", "a decoder on this machine", HOW_TO_GET_ONE))
    check_range(checkpoint, state["layer"], state["head"])
    if not state["prompt"].strip():
        raise WrongField("prompt", complaint("prompt", "nothing", "some words to go on from"))
    model = _loaded(checkpoint, work)
    asked = checkpoint.name, state["prompt"], float(state["temperature"]), state["seed"], state["mask"]
    text = _TEXTS.get(asked) or _Text(model, *asked[1:])
    _TEXTS.clear()
    _TEXTS[asked] = text
    text.write(state["new"], work)
    written = text.tokens[: state["new"]]
    assert model.tokenizer is not None
    name = model.tokenizer.decode
    pieces = [_piece(name, token) for token in (*text.prompt, *written)]
    words, weights = [], []
    if state["look"] and state["mask"] == "all":
        seen = maps(checkpoint, name([*text.prompt, *[t for t in written if t not in model.stop_tokens]]), work)
        words = seen.tokens
        weights = seen.layers[state["layer"] - 1].weights[0, state["head"] - 1, -1].tolist()
    return {
        "title": checkpoint.title,
        "tokens": pieces,
        "hidden": _hidden(state["mask"], len(pieces)),
        "prompted": len(text.prompt),
        "written": len(written),
        "most": MOST_NEW,
        "ended": text.ended and len(written) == len(text.tokens),
        "next": _next(text.log_probs[len(written)], float(state["temperature"]), name),
        "layer": state["layer"],
        "head": state["head"],
        "layers": checkpoint.layers,
        "heads": checkpoint.heads,
        "seen": words,
        "weights": weights,
        "cache": {"tokens": len(pieces), "nbytes": text.nbytes[len(written)]},
    }


def _hidden(mask: str, count: int) -> list[int]:
    """From which to which token the mask hides them from the newest one."""
    first, last = MASKS[mask] or (0, count)
    return [min(first, count), max(count - last, min(first, count))]


def _piece(name: Any, token: int) -> str:
    return str(name([token])).replace(" ", "␣").replace("\n", "⏎") or "∅"


def _next(log_probs: Tensor, temperature: float, name: Any) -> list[dict[str, Any]]:
    """The most probable next tokens: as the model has them, and at the temperature."""
    import torch

    tempered = torch.softmax(log_probs.double() / temperature, 0) if temperature else None
    best = log_probs.topk(MOST_BARS)
    found = []
    for place, (token, value) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True)):
        chance = float(tempered[token]) if tempered is not None else float(place == 0)
        found.append({"token": _piece(name, token), "logprob": value, "chance": chance})
    return found


def _loaded(checkpoint: Checkpoint, work: Work) -> Model:
    """Read once, in a thread that ends what it began: a question that is stopped leaves it to the next."""
    if checkpoint.name not in _MODELS or (_MODELS[checkpoint.name].done() and _MODELS[checkpoint.name].exception()):
        _MODELS.clear()
        _TEXTS.clear()
        _MODELS[checkpoint.name] = future = Future()
        Thread(target=_read, args=(checkpoint, future), daemon=True).start()
    future, began = _MODELS[checkpoint.name], time.monotonic()
    while not future.done():
        work.say(f"reading {checkpoint.title}, {time.monotonic() - began:.0f} s")
        wait([future], 0.25)
    return future.result()


def _read(checkpoint: Checkpoint, future: Future[Any]) -> None:
    from ...runtime import load

    try:
        model = load(checkpoint.place)
        if model.tokenizer is None:
            raise OptionError(complaint("checkpoint", f"{checkpoint.title}, without a tokenizer", "one with it"))
        future.set_result(model)
    except BaseException as error:
        words = str(error).replace(str(checkpoint.place), checkpoint.name)
        future.set_exception(OptionError(words) if isinstance(error, Exception) else error)


def pictures(state: State, result: Result) -> Mapping[str, str]:
    """The arcs from the newest token to those before it, as wide as its weights."""
    count = len(result["seen"])
    last = count - 1
    arcs = []
    for at, weight in enumerate(result["weights"]):
        start, end = 100 * last + 50, 100 * at + 50
        high = 90 - 85 * (last - at) / max(last, 1)
        shape = f"M{start} 100C{start} {high:.1f} {end} {high:.1f} {end} 100"
        if at == last:
            shape = f"M{start - 18} 100C{start - 18} 55 {start + 18} 55 {start + 18} 100"
        arcs.append(f'<path class="generate-arc" d="{shape}" stroke-width="{12 * weight:.2f}"/>')
    drawn = f'<svg viewBox="0 0 {100 * count} 100" preserveAspectRatio="none" aria-hidden="true">{"".join(arcs)}</svg>'
    return {"arcs": drawn}


def python(state: State) -> str:
    checkpoint = FOUND.get(state["checkpoint"])
    if checkpoint is None:
        return f'raise SystemExit("no model is installed: {HOW_TO_GET_ONE}")\n'
    kept = MASKS[state["mask"]]
    cache = "" if kept is None else f", cache=model.cache(eviction=FirstLast{(*kept,)}"[:-1] + ", every=1))"
    policy = "" if kept is None else "from qkv.cache import FirstLast\n"
    imports = "import importlib.util" if "importlib" in checkpoint.python else "import os"
    return f"""\
{imports}
from pathlib import Path

import qkv.runtime
{policy}
model = qkv.runtime.load({checkpoint.python})
found = model.generate({state["prompt"]!r}, {max(state["new"], 1)}, temperature={float(state["temperature"])!r},
                       seed={state["seed"]}, logprobs={MOST_BARS}{cache})
print(repr(found.text))
for best in found.top:
    print({{model.tokenizer.decode([token]): value for token, value in best.items()}})
"""


_WHOLE, _TEXT, _LIST = {"type": "integer"}, {"type": "string"}, {"type": "array"}
VIEW = View(
    name="generate",
    title="Generate",
    verb="compute",
    simple="A real model writes: what it finds probable next, and where it looks.",
    lead="A checkpoint decodes on qkv.runtime: probabilities of the next token, the weights of a head, and the cache.",
    bar=("prompt", "temperature", "mask", "look", "layer", "head"),
    fields=FIELDS,
    compute=compute,
    pictures=pictures,
    python=python,
    heavy=True,
    seconds=SECONDS,
    scripts=("views/generate.js",),
    schema={
        **dict.fromkeys(("prompted", "written", "most", "layer", "head", "layers", "heads"), _WHOLE),
        "title": _TEXT,
        "ended": {"type": "boolean"},
        **dict.fromkeys(("tokens", "seen", "weights", "next", "hidden"), _LIST),
        "cache": {"type": "object"},
    },
)
