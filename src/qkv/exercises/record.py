"""The record of an exercise: what is given, by which conventions, and what is asked.

The bank, a sheet, the command line, the lab and a language model's tool call all make this one record; solving,
checking, variants and exports work on it alone. A TOML or JSON file of it is accepted wherever an exercise is.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import OptionError, complaint

SCHEMA_VERSION = 1
_DOTTED = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){64}""")

# fmt: off
Role: TypeAlias = Literal[
    # numbers: matrices have tokens as rows unless the layout says columns
    "tokens", "context", "query", "key", "value", "query_weight", "key_weight", "value_weight", "output_weight",
    "scores", "weights", "output", "vector", "input", "gamma", "beta", "epsilon", "mask", "bias", "upstream",
    "running_mean", "running_variance", "position", "base", "temperature", "degree", "offset", "ridge", "scale",
    "features", "decay",
    # sizes: whole numbers, or symbols where `value` is empty
    "batch", "length", "keys_length", "width", "head_width", "value_width", "heads", "kv_heads", "layers", "ff_width",
    "vocabulary", "experts", "active_experts", "shared_experts", "latent_width", "rope_width", "query_latent_width",
    "feature_count", "groups", "channels", "window", "in_features", "out_features", "positions_learned",
    # totals
    "parameters", "active_parameters", "training_tokens", "tokens_count", "bytes", "flops", "seconds", "requests",
    "target_variance",
    # a machine
    "rate", "bandwidth", "memory", "link", "chips", "utilisation",
    # named or written things
    "law", "model", "machine", "listing", "expression", "dtype", "claim", "other",
]
Quantity: TypeAlias = str
Form: TypeAlias = Literal[
    "number", "vector", "matrix", "tensor", "formula", "class", "shape", "choice", "blank", "proof", "words", "code",
]
ConventionName: TypeAlias = Literal[
    "scale", "normaliser", "layout", "index_base", "keys_are_values", "pairs", "flops_per_mac", "exp_counts",
    "bytes_per_element", "byte_unit", "overlap", "utilisation", "digits", "tolerance",
]
# fmt: on
Span: TypeAlias = tuple[int, int]
# The roles that a solver asks for, while a reading listens: no given of its text may be left unused.
LOOKED_AT: ContextVar[set[str] | None] = ContextVar("looked_at", default=None)
Size: TypeAlias = int | str | None
_FIELDS = {"latent_width": "latent"}  # roles that the structure calls otherwise


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Given(_Record):
    """One thing that is given: `symbol` as written, its `role`, and a value, a shape or a law.

    `value` is a number, a text ("1/3", "sqrt(2)", a formula, a listing, a model's name), or nested lists of them.
    `unit` is a unit or a dtype ("GB", "TB/s", "bfloat16"). A size without a value is a symbol. `of` names what a law,
    a shape or a figure belongs to, where it is another symbol.
    """

    symbol: str = ""
    role: Role
    value: Any = None
    shape: tuple[int | str, ...] | None = None
    law: str | None = None
    unit: str = ""
    of: str = ""
    span: Span | None = None


class Definition(_Record):
    """An equation in the notation of `qkv.maths`: "C = softmax(Q K^T / sqrt(d)) V"."""

    text: str
    span: Span | None = None


class Structure(_Record):
    """How the attention, or the model around it, is built; sizes may stand here or among the givens.

    `similarity` is "softmax", "argmax", "sigmoid", "relu", "linear" (the dot product), "polynomial" (degree and offset
    are givens), "exponential" or "feature_map". `mask` is "none", "causal", "window(left, right)", "padding(n)" (the
    first n keys are real), joined by "&" and "|"; a given with the role "mask" replaces it.
    """

    similarity: str = "softmax"
    mask: str = "none"
    source: Literal["self", "cross"] | None = None
    phase: Literal["forward", "backward", "prefill", "decode", "training"] | None = None
    variant: Literal["mha", "gqa", "mqa", "mla"] | None = None
    heads: Size = None
    kv_heads: Size = None
    layers: Size = None
    experts: Size = None
    active_experts: Size = None
    latent: Size = None
    gated: bool | None = None
    biases: bool | None = None
    tied: bool | None = None
    norm: Literal["layer", "rms", "batch", "group", "none"] | None = None
    positions: Literal["learned", "sinusoidal", "rotary", "none"] | None = None
    residual: bool | None = None


class Convention(_Record):
    """A convention that may change the figure: said in the text, assumed (the usual one), or missing.

    Values: scale "sqrt" (divide by the root of the head width), "none" or a number that scores are multiplied by;
    normaliser "softmax", "sum" or "none"; layout "rows" or "columns" (tokens); index_base 0 or 1; keys_are_values and
    exp_counts true or false; pairs "all" or "causal"; flops_per_mac 1 or 2; bytes_per_element a number or a dtype;
    byte_unit "GB" or "GiB"; overlap "max" or "sum"; utilisation from 0 to 1; digits and tolerance numbers.
    """

    value: Any = None
    source: Literal["said", "assumed", "missing"] = "said"


class Option(_Record):
    """One option of a choice: its label, and its text."""

    label: str
    text: str


class Asked(_Record):
    """One question: the `quantity` (a name of `qkv.exercises.quantities()`), of which `object`, in which `form`.

    `object` names what the quantity is of: a symbol ("Q", "W_v", "k_2"), a part of a model ("attention", "norms",
    "feed-forward", "embeddings"), a norm ("layer", "batch"), a blank's letter, or a claim to prove ("Q K^T = Z").
    `row` picks one token or position, counted from the index base; `in_terms_of` are the symbols of the answer; `unit`
    is the unit asked for. `changes` are givens that this question replaces ("with 64 heads instead"). `rubric` names a
    rubric for words.
    """

    label: str = ""
    quantity: Quantity
    object: str = ""
    row: int | None = None
    in_terms_of: tuple[str, ...] = ()
    form: Form | None = None
    unit: str = ""
    options: tuple[Option, ...] = ()
    several: bool = False
    depends_on: tuple[str, ...] = ()
    changes: tuple[Given, ...] = ()
    rubric: str = ""
    text: str = ""
    span: Span | None = None
    confidence: float = Field(default=1.0, ge=0, le=1)
    mistakes: tuple[str, ...] = ()


class Exercise(_Record):
    """An exercise about attention.

    >>> exercise = Exercise(
    ...     givens=[
    ...         Given(symbol="Q", role="query", value=[[1, 0]]),
    ...         Given(symbol="K", role="key", value=[[1, 0], [0, 1]]),
    ...     ],
    ...     asked=[Asked(label="a", quantity="scores")],
    ... )
    >>> print(exercise)
    given: Q (query, 1×2), K (key, 2×2)
    asked: (a) scores
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    label: str = ""
    title: str = ""
    text: str = ""
    span: Span | None = None
    givens: tuple[Given, ...] = ()
    definitions: tuple[Definition, ...] = ()
    structure: Structure = Structure()
    conventions: dict[ConventionName, Convention] = Field(default_factory=dict)
    asked: tuple[Asked, ...] = ()

    def __str__(self) -> str:
        return "\n".join(f"{name}: {', '.join(words)}" for name, words in self.understood() if words)

    def _repr_html_(self) -> str:
        from ..render import Table, html_of
        from .printing import statement_blocks

        rows = tuple((name, ", ".join(words)) for name, words in self.understood() if words)
        return html_of(*statement_blocks(self), Table(("understood", ""), rows))

    def of_role(self, *roles: str) -> list[Given]:
        """The givens with one of these roles, in their order."""
        if (looked_at := LOOKED_AT.get()) is not None:
            looked_at.update(roles)
        return [given for given in self.givens if given.role in roles]

    def given(self, role: str) -> Given | None:
        """The first given with this role, or None; `contradictions` finds a second that differs."""
        return next(iter(self.of_role(role)), None)

    def convention(self, name: str, default: Any = None) -> Any:
        """The value of a convention, or `default` where it is not said."""
        found = self.conventions.get(name)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return default if found is None or found.value is None else found.value

    def said(self, name: str) -> bool:
        """Whether the text settles a convention."""
        found = self.conventions.get(name)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return found is not None and found.source == "said" and found.value is not None

    def size(self, role: str) -> Size:
        """A size as a whole number, or as the symbol that stands for it, or None where it is not given."""
        stated = getattr(self.structure, _FIELDS.get(role, role), None)
        if isinstance(stated, int | str) and not isinstance(stated, bool):
            return stated
        given = self.given(role)
        if given is None:
            return None
        value: Any = given.value if given.value is not None else given.symbol or None
        if isinstance(value, float):
            return int(value) if value.is_integer() else str(value)
        return value

    def with_changes(self, asked: Asked) -> Exercise:
        """The exercise as one of its questions changes it."""
        return self.changed(*asked.changes) if asked.changes else self

    def changed(
        self, *added: Given | Definition, without: Iterable[str] = (), structure: Any = None, **said: Any
    ) -> Exercise:
        """The record with givens in place of those of their roles, definitions added, and conventions said.

        Roles of `without` are left out; `structure` are fields of the structure with their new values.
        """
        givens = tuple(each for each in added if isinstance(each, Given))
        roles = {*without, *(given.role for given in givens)}
        names = (_FIELDS.get(role, role) for role in roles)
        cleared = {name: Structure.model_fields[name].default for name in names if name in Structure.model_fields}
        new = {
            "givens": (*(given for given in self.givens if given.role not in roles), *givens),
            "definitions": (*self.definitions, *(each for each in added if isinstance(each, Definition))),
            "structure": self.structure.model_copy(update={**cleared, **(structure or {})}),
            "conventions": {**self.conventions, **{name: Convention(value=value) for name, value in said.items()}},
        }
        return self.model_copy(update=new)

    def only(self, label: str) -> Exercise:
        """The exercise with one question."""
        found = [asked for asked in self.asked if plain_label(asked.label) == plain_label(label)]
        if not found:
            there = ", ".join(asked.label or "(no label)" for asked in self.asked)
            raise OptionError(complaint("part", repr(label), "a part of the exercise", f"it has {there}"))
        return self.model_copy(update={"asked": tuple(found)})

    def understood(self) -> Iterator[tuple[str, list[str]]]:
        """What the record says, as short words under a heading each: printed before every answer."""
        yield "given", [_given_words(given) for given in self.givens]
        structure = self.structure.model_dump(exclude_defaults=True)
        yield "structure", [f"{name.replace('_', ' ')} {_plain(value)}" for name, value in structure.items()]
        for source in ("said", "assumed", "missing"):
            chosen = {name: each for name, each in self.conventions.items() if each.source == source}
            words = [f"{name.replace('_', ' ')} {'' if each.value is None else _plain(each.value)}".strip()
                     for name, each in chosen.items()]  # fmt: skip
            yield f"conventions {source}", words
        yield "asked", [_asked_words(asked) for asked in self.asked]

    @classmethod
    def from_text(cls, text: str, suffix: str = ".json") -> Exercise:
        """The exercise that a JSON or TOML text holds."""
        try:
            # A name of thousands of dotted parts would take tomllib minutes and gigabytes; no field has any.
            if suffix == ".toml" and _DOTTED.search(text):
                raise ValueError("a name with many dots")
            plain = tomllib.loads(text) if suffix == ".toml" else json.loads(text)
        except (ValueError, RecursionError) as error:
            raise OptionError(complaint("exercise", f"a text that is not {suffix[1:].upper()} ({error})",
                                        "an exercise as TOML or JSON")) from None  # fmt: skip
        return cls.from_plain(plain)

    @classmethod
    def from_plain(cls, plain: Any) -> Exercise:
        """The exercise that plain values describe; an error names the field, what was given and what was expected."""
        try:
            return cls.model_validate(plain)
        except ValidationError as error:
            raise OptionError(invalid(error, "exercise", "qkv solve --schema prints the fields")) from None

    @classmethod
    def load(cls, path: str | Path) -> Exercise:
        """The exercise of a .toml or .json file."""
        path = Path(path)
        return cls.from_text(path.read_text(encoding="utf-8"), path.suffix.lower())


def invalid(error: ValidationError, whole: str = "arguments", hint: str = "") -> str:
    """The complaint about values that do not fit: the wrong value rather than the wrong type, deepest in `whole`."""
    ranked: dict[tuple[bool, int, str], list[Any]] = {}
    for each in error.errors():
        # Names of types in a union are left out of the place.
        place = [str(key) for key in each["loc"] if re.fullmatch(r"(?!(?:int|float|str)$)[a-z_]+|\d+", str(key))]
        ranked.setdefault((not each["type"].endswith("_type"), len(place), ".".join(place)), []).append(each)
    (*_, place), found = max(ranked.items(), key=lambda item: item[0][:2])
    first, place = found[0], place or whole
    if first["type"] == "missing":
        return complaint(place, "nothing", "a value", hint)
    if first["type"] == "extra_forbidden":
        return complaint(place, f"a field {str(first['loc'][-1])[:60]!r}", "only fields that the schema has", hint)
    messages = (re.sub(r"^\w+ should (be|have) ", "", each["msg"]) for each in found)
    wanted = dict.fromkeys(re.sub(r"dictionary or instance of (\w+)", r"object (\1)", each) for each in messages)
    return complaint(place, repr(first["input"])[:200], " or ".join(wanted), hint)


def plain_label(label: str) -> str:
    """A label without brackets, dots and spaces.

    >>> plain_label("(b)(ii)"), plain_label("b.ii"), plain_label("12.1")
    ('bii', 'bii', '12.1')
    """
    kept = "".join(sign for sign in label.lower() if sign.isalnum() or sign == ".")
    return kept if kept.replace(".", "").isdigit() else kept.replace(".", "")


def roles() -> tuple[str, ...]:
    """Every role of a given."""
    return get_args(Role)


def schema() -> dict[str, Any]:
    """The JSON schema of an exercise.

    Returns:
        The schema as `json.dumps` takes it.

    >>> sorted(schema()["properties"])[:3]
    ['asked', 'conventions', 'definitions']
    """
    return Exercise.model_json_schema()


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of nested lists; a number or a text has none."""
    if isinstance(value, list | tuple):
        return (len(value), *(shape_of(value[0]) if value else ()))
    return ()


def _given_words(given: Given) -> str:
    words = given.role.replace("_", " ")
    name = given.symbol or words
    role = "" if name in (words, given.role) else words
    shape = given.shape or shape_of(given.value)
    if shape:
        return f"{name} ({f'{role}, ' if role else ''}{'×'.join(map(str, shape))})"
    if given.law:
        return f"{name} ~ {given.law}"
    if given.role == "listing":
        return f"a listing of {str(given.value).count(chr(10)) + 1} lines"
    value = "" if given.value is None else f" = {_plain(given.value)}{f' {given.unit}' if given.unit else ''}"
    return f"{name}{value}{f' ({role})' if role else ''}"


def _asked_words(asked: Asked) -> str:
    label = f"({asked.label}) " if asked.label else ""
    words = asked.quantity.replace("_", " ")
    words += f" of {asked.object}" if asked.object else ""
    words += f", row {asked.row}" if asked.row is not None else ""
    words += f" in terms of {', '.join(asked.in_terms_of)}" if asked.in_terms_of else ""
    words += f" with {', '.join(_given_words(given) for given in asked.changes)}" if asked.changes else ""
    return label + words


def _plain(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
