"""One step of decoding as a listing: its tensors, its einsums, and the blanks that can be left in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..judging.blanks import Einsum, ShapeOf
from ..problem import Misconception

KINDS = ("multi-query", "grouped", "multi-head")
SHAPES = ("keys", "W_q", "W_k", "W_v", "W_o")
LINES = ("q", "k", "v", "scores", "o", "y")


@dataclass(frozen=True)
class Setting:
    """How heads share keys and values, and the letters of the sizes.

    `head_width` letters are q, k and v in the documents: three names of d/h. With groups, a query head is named by its
    group and its place in the group: h = g·r.
    """

    kind: str = "multi-query"
    batch: str = "b"
    width: str = "d"
    heads: str = "h"
    length: str = "n"
    widths: tuple[str, str, str] = ("q", "k", "v")
    groups: str = "g"
    members: str = "r"
    function: str = "einsum"
    aliases: tuple[tuple[str, str], ...] = ()  # other names of sizes, as a text has them, and the letter of each

    @property
    def of_queries(self) -> str:
        """Subscripts of a query head."""
        return self.groups + self.members if self.kind == "grouped" else self.heads

    @property
    def of_keys(self) -> str:
        """Subscripts of a key and value head; none where all share one."""
        return {"multi-query": "", "grouped": self.groups, "multi-head": self.heads}[self.kind]

    @property
    def key_heads(self) -> str:
        """How many heads of keys and values there are, as a factor."""
        return {"multi-query": "1", "grouped": self.groups, "multi-head": self.heads}[self.kind]

    @property
    def symbols(self) -> dict[str, str]:
        """The sizes with their types: the three widths of a head are one number."""
        found = dict.fromkeys((self.batch, self.width, self.heads, self.length), "natural")
        if self.kind == "grouped":
            found |= dict.fromkeys((self.groups, self.members), "natural")
        defined = self.equal_sizes | dict(self.aliases)
        return found | {name: f"natural = {size}" for name, size in defined.items()}

    @property
    def equal_sizes(self) -> dict[str, str]:
        """Names of sizes that are no sizes of their own, with those that people use though the question does not."""
        heads = f"{self.groups} {self.members}" if self.kind == "grouped" else self.heads
        one = f"{self.width}/({heads})"
        found = {"d_model": self.width, **dict.fromkeys(("d_head", "d_h", "d_k", *self.widths), one)}
        return found | ({self.heads: heads} if self.kind == "grouped" else {})

    def shape(self, name: str) -> str:
        """The axes of a tensor, as letters."""
        query, key, value = self.widths
        return {
            "x": self.batch + self.width,
            "W_q": self.of_queries + self.width + query,
            "W_k": self.of_keys + self.width + key,
            "W_v": self.of_keys + self.width + value,
            "W_o": self.of_queries + value + self.width,
            "keys": self.batch + self.of_keys + self.length + key,
            "values": self.batch + self.of_keys + self.length + value,
            "q": self.batch + self.of_queries + query,
            "k": self.batch + self.of_keys + key,
            "v": self.batch + self.of_keys + value,
            "scores": self.batch + self.of_queries + self.length,
            "o": self.batch + self.of_queries + value,
            "y": self.batch + self.width,
        }[name]

    def einsum(self, line: str) -> tuple[str, tuple[str, ...]]:
        """The subscripts of a line and its operands."""
        operands = {"q": ("x", "W_q"), "k": ("x", "W_k"), "v": ("x", "W_v"), "scores": ("q", "keys"),
                    "o": ("weights", "values"), "y": ("o", "W_o")}[line]  # fmt: skip
        axes = [self.shape("scores" if name == "weights" else name) for name in operands]
        if line == "scores":  # a query's components are named as a key's, or they would not be summed
            axes[0] = axes[0][:-1] + axes[1][-1]
        return f"{','.join(axes)}->{self.shape(line)}", operands

    def answer(self, blank: str, options: tuple[str, ...] = ()) -> ShapeOf | Einsum:
        """What belongs in a blank, with the options that are offered."""
        if blank in SHAPES:
            return ShapeOf(tuple(self.shape(blank)), self.equal_sizes, options, self.about(blank), blank)
        return Einsum(*self.einsum(blank), options=options, function=self.function)

    def wrong(self, blank: str) -> dict[str, str]:
        """Name of a mistake to what it puts into the blank; only what differs from the right answer."""
        per_head, shared = replace(self, kind="multi-head"), replace(self, kind="multi-query")
        found: dict[str, str] = {}
        if blank in ("W_k", "W_v", "keys", "k", "v", "scores", "o"):
            if self.kind != "multi-head":
                found["per-head keys in multi-query attention"] = per_head.written(blank)
            if self.kind != "multi-query":
                found["one key head for all"] = shared.written(blank)
        if blank in ("W_q", "q", "W_o"):
            found["one query head"] = self.without_heads(blank)
        if blank in ("W_q", "W_k", "W_v"):
            shape = [letter for letter in self.shape(blank) if letter != self.width]
            found["input width forgotten"] = f"[{', '.join(shape)}]"
        if blank in ("keys", "scores", "o", "k", "v", "q"):
            found["batch forgotten"] = self.without_batch(blank)
        if blank == "y":
            found["heads not added up"] = self.written(blank)[: -len("bd")] + self.shape("o")[:-1] + self.width
        return {name: text for name, text in found.items() if not self.answer(blank).check(text)}

    def written(self, blank: str) -> str:
        """What belongs in a blank, as one would type it."""
        return f"[{', '.join(self.shape(blank))}]" if blank in SHAPES else self.einsum(blank)[0]

    def without_heads(self, blank: str) -> str:
        """The blank as if there were one head."""
        written = self.written(blank)
        for letter in self.of_queries:
            written = written.replace(f"{letter}, ", "") if blank in SHAPES else written.replace(letter, "")
        return written

    def without_batch(self, blank: str) -> str:
        """The blank as if there were one sequence."""
        if blank in SHAPES:
            return self.written(blank).replace(f"{self.batch}, ", "")
        return self.written(blank).replace(self.batch, "")

    @lru_cache(maxsize=512)  # noqa: B019 - settings are few, and each is asked for the same blanks again and again
    def misconceptions(self, blank: str) -> tuple[Misconception, ...]:
        """The mistakes of a blank as what they put there; each once."""
        found = [(name, text) for name, text in self.wrong(blank).items()]
        batch, width, heads = self.batch, self.width, self.of_queries
        if blank == "q":
            query = self.widths[0]
            found.append(("one query head", f"{batch}{width},{width}{query}->{batch}{heads}{query}"))
            found.append(("one query head", f"{batch}{heads}{width},{width}{query}->{batch}{heads}{query}"))
        if blank in ("k", "v") and self.kind == "multi-query":
            key = self.widths["qkv".index(blank)]
            name = "per-head keys in multi-query attention"
            found.append((name, f"{batch}{width},{width}{key}->{batch}{heads}{key}"))
        return tuple(Misconception(name, text) for name, text in found)

    def offered(self, blank: str) -> tuple[str, ...]:
        """Three options for a blank, the right one first."""
        others = [known.planted for known in self.misconceptions(blank) if known.name != "batch forgotten"]
        shape = list(self.shape(blank))
        turned = f"[{', '.join(shape[::-1])}]" if blank in SHAPES else _turned(self.written(blank))
        return (self.written(blank), *dict.fromkeys([*others, turned]))[:3]

    def about(self, blank: str) -> str:
        """Why a tensor has the axes that it has."""
        sharing = {
            "multi-query": "all heads share one set of keys and values",
            "grouped": f"the {self.members} heads of a group share keys and values",
            "multi-head": "every head has keys and values of its own",
        }[self.kind]
        each = f"{self.groups} times {self.members}" if self.kind == "grouped" else self.heads
        return {
            "W_q": f"each of the {each} query heads has its own matrix from {self.width} to {self.widths[0]}",
            "W_k": f"{sharing}; a matrix takes {self.width} numbers to {self.widths[1]}",
            "W_v": f"{sharing}; a matrix takes {self.width} numbers to {self.widths[2]}",
            "W_o": f"each query head brings {self.widths[2]} numbers, and its matrix takes them to {self.width}",
            "keys": f"{sharing}; each sequence has {self.length} of them",
            "q": "each head projects the new token by its own matrix; the width is summed over",
            "k": f"{sharing}; the width is summed over",
            "v": f"{sharing}; the width is summed over",
            "scores": f"each query head meets every key of its sequence; {sharing}",
            "o": f"the weights of a head sum the values over the positions; {sharing}",
            "y": "each head's result goes through its own matrix, and the heads are summed",
        }[blank]

    def listing(self, blanks: Sequence[tuple[str, str]]) -> str:
        """The step as code; `blanks` are (letter, what it stands for) and are left open."""
        left = {what: f"____{letter}____" for letter, what in blanks}

        def shape(name: str) -> str:
            return left.get(name) or f"[{', '.join(self.shape(name))}]"

        def line(name: str) -> str:
            spec, operands = self.einsum(name)
            return left.get(name) or f'{self.function}("{spec}", {", ".join(operands)})'

        axis = len(self.of_keys) + 1
        new = ", ".join([":"] * axis + ["None"])
        words = {
            "x": "the newest token of every sequence",
            "keys": "the keys of the tokens before it",
            "values": "the values of the tokens before it",
            "W_q": "takes a token to its queries",
            "W_k": "takes a token to its keys",
            "W_v": "takes a token to its values",
            "W_o": "takes the heads' results back",
        }
        comments = [f"    # {name:<7} {shape(name):<14} {said}" for name, said in words.items()]
        return "\n".join([
            "def next_token(x, keys, values, W_q, W_k, W_v, W_o):",
            *comments,
            f"    q = {line('q')}",
            f"    k = {line('k')}",
            f"    v = {line('v')}",
            f"    keys = concatenate([keys, k[{new}]], axis={axis})",
            f"    values = concatenate([values, v[{new}]], axis={axis})",
            f"    scores = {line('scores')} / sqrt(keys.shape[-1])",
            "    weights = softmax(scores, axis=-1)",
            f"    o = {line('o')}",
            f"    y = {line('y')}",
            "    return y, keys, values",
        ])  # fmt: skip


def _turned(spec: str) -> str:
    """An einsum whose result has its last two axes changed over."""
    return spec[:-2] + spec[-1] + spec[-2]
