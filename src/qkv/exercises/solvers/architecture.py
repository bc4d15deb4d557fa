"""The model, or the layer, that an exercise describes: every size a name in formulas, with its value where given."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from importlib.resources import files
from math import floor
from typing import Any, NamedTuple

from ...cost.architecture import Latent, Model, model_named
from ...cost.polynomial import Polynomial, whole
from ...derivation import Derivation, Step, chain
from ...errors import QkvError
from .. import units
from ..findings import CannotSolve, Finding, refuse
from ..record import Asked, Exercise
from ..solving import Also, Answer, solver

DATA = tomllib.loads(files("qkv.exercises").joinpath("sizes.toml").read_text(encoding="utf-8"))
LETTERS, FIELDS = DATA["letters"], DATA["fields"]
Lines = list[tuple[str, Any]]


class Found(NamedTuple):
    """What a solver found: a formula and why, its parts, the formulas under other conventions, steps before it.

    A `unit` goes before the one that is asked; a number of things is rounded.
    """

    formula: Any
    reason: str = ""
    lines: Sequence[tuple[str, Any]] = ()
    also: Sequence[tuple[str, Any]] = ()
    before: Sequence[tuple[Step, ...]] = ()
    unit: str = ""
    rounding: Callable[[Any], int] | None = None


def called(role: str) -> str:
    """A size in words."""
    return DATA["called"].get(role, role.replace("_", " "))


@dataclass
class Setting:
    """The sizes of an exercise, and what was assumed on the way.

    `names` are the names of sizes in formulas, by role; `values` the numbers behind them. A name without one stays a
    symbol. `defaults` are formulas, and their words, in place of sizes that are not given.
    """

    exercise: Exercise
    asked: Asked
    values: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    assumed: list[Finding] = field(default_factory=list)
    defaults: dict[str, tuple[Any, str]] = field(default_factory=dict)

    def assume(self, convention: str, value: str) -> None:
        self._found(Finding("assumed", {"convention": convention, "value": value}))

    def note(self, text: str) -> None:
        self._found(Finding("note", {"text": text}))

    def _found(self, finding: Finding) -> None:
        self.assumed += [] if finding in self.assumed else [finding]

    @property
    def words(self) -> str:
        """What the question is about, in small letters."""
        return self.asked.object.strip().lower()

    def says(self, mark: str) -> bool:
        return re.search(DATA["marks"][mark], self.words) is not None

    def kind(self, quantity: str = "") -> str:
        """What the object of the question is, by the table of objects; words that it does not have are refused."""
        for name, pattern in DATA["objects"][quantity or self.asked.quantity].items():
            if re.search(pattern, self.words) and not re.search(DATA["parts"]["refused"], self.words):
                return name
        raise CannotSolve("not_understood", found=f"{self.asked.quantity.replace('_', ' ')} of {self.asked.object}")

    def has(self, *roles: str) -> bool:
        return all(self.size(role) is not None for role in roles)

    @cached_property
    def preset(self) -> Model | None:
        """The model, where it is a known one."""
        given = self.exercise.given("model")
        if given is None:
            return None
        try:
            return model_named(str(given.value if given.value is not None else given.symbol))
        except QkvError as error:
            if any(self.exercise.size(role) is not None for role in ("width", "layers", "parameters")):
                return None
            raise CannotSolve("unknown_name", what="the model", name=given.value, hint=str(error)) from None

    def size(self, role: str) -> Any:
        """A size as a name in formulas, or as a formula of other names; None where it is not given."""
        if role in self.names:
            return Polynomial.name(self.names[role])
        given, stated = self.exercise.given(role), self.exercise.size(role)
        if stated is None:
            return None
        unit = given.unit if given is not None and given.value == stated else ""
        try:
            number = units.quantity(stated, unit, units.DIMENSIONS.get(role, ""), binary=units.is_binary(self.exercise))
        except CannotSolve:
            if not isinstance(stated, str) or (re.match(r"\s*[\d.]", stated) and not self._is_formula(stated)):
                raise
            name = _clean(stated)
            return Polynomial.name(self.names.setdefault(role, name)) if name else self.expression(stated, role)
        if role not in units.DIMENSIONS and (Fraction(number).denominator != 1 or number < 1):
            raise CannotSolve("misfit", what=role.replace("_", " "), why=f"{number} is no whole number of at least 1")
        if isinstance(stated, str) and role in ("length", "keys_length") and re.search(r"\d\s*[kK]\b", stated):
            self.assume("what k is in the length", "1000")
        return self.named(role, number)

    def named(self, role: str, value: Any = None) -> Polynomial:
        """The name of a size in formulas, its symbol where it has one, with a value unless it is None."""
        if role not in self.names:
            given = self.exercise.given(role)
            name = (_clean(given.symbol) if given else "") or LETTERS[role]
            while name in self.names.values():
                name += "'"
            self.names[role] = name
        if value is not None:
            self.values[self.names[role]] = value
        return Polynomial.name(self.names[role])

    def lacking(self, role: str, default: Any = None, words: str = "") -> Polynomial:
        """A size that is not given: an answer that depends on it has the default in its place, or is refused."""
        if default is not None:
            self.defaults[f"?{role}"] = default, words
        return Polynomial.name(f"?{role}")

    def settled(self, formula: Any) -> Polynomial:
        """A formula with defaults in place of sizes that are not given; one without a default is needed."""
        formula = Polynomial.of(formula)
        while open_names := sorted(name for name in formula.free_symbols if name.startswith("?")):
            needs = [called(name[1:]) for name in open_names if name not in self.defaults]
            refuse(needs, "missing", needs=" and ".join(needs))
            for name in open_names:
                default, words = self.defaults[name]
                formula = Polynomial.of(formula.substituted({name: default}))
                if words:
                    self.assume(called(name[1:]).partition(" (")[0], words)
        return formula

    def short(self, role: str, formula: Any) -> Any:
        """A formula under one letter, where it is a number: later formulas stay short."""
        found = evaluated(self, formula)
        return found if isinstance(found, Polynomial) else self.named(role, found)

    def need(self, *roles: str) -> Any:
        """The first of these sizes that is given; refused where none is."""
        found = next((found for role in roles if (found := self.size(role)) is not None), None)
        refuse(found is None, "missing", needs=" or ".join(map(called, roles)))
        return found

    def one(self, role: str) -> Any:
        """A size, or 1 where it is not given."""
        return self.need(role) if self.has(role) else Polynomial.of(1)

    def _is_formula(self, text: str) -> bool:
        """Whether a text that begins with a number, such as "4 d", has names of sizes and not a unit after it."""
        known = {_clean(given.symbol) for given in self.exercise.givens}
        return all(len(name) == 1 or "_" in name or _clean(name) in known for name in re.findall(r"[A-Za-z]\w*", text))

    def expression(self, text: str, what: str) -> Polynomial:
        """A formula in the notation of `qkv.maths` as a polynomial; its names get the values of givens."""
        from ...maths import parse
        from ...maths.sizes import polynomial

        names = {_clean(each) or each for each in re.findall(r"[A-Za-z]+(?:_(?:\{\w+\}|\w+))?", text)}
        found = None
        with suppress(QkvError):
            found = polynomial(parse(text, dict.fromkeys(names - {"frac", "cdot", "times"}, "natural")))
        if found is None:
            raise CannotSolve("not_understood", found=f"{what} {text}")
        for given in self.exercise.givens:
            if _clean(given.symbol) in names and given.role in LETTERS and self.exercise.size(given.role) is not None:
                self.size(given.role)
        return Polynomial(found)

    @property
    def known(self) -> dict[str, Any]:
        """The values that are put into the answer: all, but those of the symbols that it shall be in terms of."""
        kept = {_clean(name) for name in self.asked.in_terms_of}
        return {name: value for name, value in self.values.items() if name not in kept}

    def format_of(self, what: str) -> Any:
        """The format of "weights", "cache" or "activations" that the text says, or None."""
        formats = self.exercise.of_role("dtype")
        own = [given for given in formats if what[:5] in given.of.lower() or (what == "cache" and given.of[:2] == "KV")]
        stated = self.exercise.convention("bytes_per_element")
        if stated is not None and not own:
            return stated
        for given in own or [given for given in formats if not given.of]:
            return given.value if given.value is not None else given.unit or given.symbol
        return None

    def bytes_of(self, what: str) -> Any:
        """Bytes of one number of "weights", "cache" or "activations", as the text says, else 16 bits."""
        if (stated := self.format_of(what)) is not None:
            return units.element_bytes(stated)
        self.assume("the format of numbers", "16 bits, 2 bytes,")
        return 2


def _clean(symbol: str) -> str:
    """A symbol as the name that `qkv.maths` gives it, "" where it is none."""
    from ...maths.parsing.naming import canonical_name, is_reserved

    text = re.sub(r"\\(?:text|mathrm|_)|[\s$\\]", lambda found: "_" if found[0] == r"\_" else "", symbol)
    text = re.sub(r"_\{\{?(\w+)\}?\}", r"_\1", text)
    if not re.fullmatch(r"[A-Za-z]+'*(?:_[A-Za-z0-9]+)?'*|[Ͱ-Ͽ]", text):
        return ""
    name = canonical_name(text)
    return "" if name is None or is_reserved(name) else name


def model_of(setting: Setting, part: str = "") -> Model:
    """The model with names for its sizes; an answer that depends on one that is not given is refused.

    It has one layer where a layer is asked for, or where the part is not the whole model and no number is given.
    """
    preset, one = setting.preset, part == "layer" or setting.says("one_layer")
    fields: dict[str, Any] = {"vocabulary": setting.lacking("vocabulary"), "norm": "none", "norms_per_layer": 0}
    fields |= {"gated": False, "final_norm": False}
    if preset is not None:
        fields = {name: getattr(preset, name) for name in preset.__dataclass_fields__}
        fields |= {"expert_d_ff": None} if setting.has("ff_width") else {}
        fields |= {"window_layers": None} if setting.exercise.size("layers") is not None else {}
    for role, name in FIELDS.items():
        if (found := setting.size(role)) is not None:
            fields[name] = found
        elif preset is not None and fields[name]:
            fields[name] = setting.named(role, fields[name])
    _fill_heads(setting, fields)
    _structure(setting, fields)
    if one:
        fields |= {"layers": 1, "window_layers": None if fields.get("window") else 0, "dense_layers": 0}
        fields["final_norm"] = False
    elif "layers" not in fields:
        needed = {"weights": True, "cache": setting.asked.quantity != "cache_bytes"}
        needed |= dict.fromkeys(("model", "active"), setting.has("vocabulary"))
        says = "one" if part in ("model", "active", "cache", "activations") else ""
        fields["layers"] = setting.lacking("layers", None if needed.get(part) else 1, says)
    fields.setdefault("d_ff", setting.lacking("ff_width", 4 * fields["d_model"], "4 times the width of the model"))
    if fields.get("experts") and not fields.get("experts_active"):
        fields["experts_active"] = setting.lacking("active_experts")
    _check(setting, fields)
    try:
        return Model(**fields)
    except QkvError as error:
        raise CannotSolve("misfit", what="the sizes", why=str(error)) from None


def _fill_heads(setting: Setting, fields: dict[str, Any]) -> None:
    variant = setting.exercise.structure.variant
    if "heads" not in fields and "d_model" in fields and "head_width" in fields:
        fields["heads"] = fields["d_model"] / fields["head_width"]
    elif "heads" not in fields:
        alone = "kv_heads" not in fields and setting.asked.quantity in DATA["one_head"]
        fields["heads"] = setting.lacking("heads", 1 if alone else None, "one")
    if "d_model" not in fields:
        product = fields["heads"] * fields["head_width"] if "head_width" in fields else None
        fields["d_model"] = setting.lacking("width", product, "heads times the width of a head")
    if variant == "mqa":
        fields["kv_heads"] = 1
    elif variant == "mha" or (variant == "gqa" and "kv_heads" not in fields):
        fields["kv_heads"] = None if variant == "mha" else setting.need("kv_heads", "groups")


def _structure(setting: Setting, fields: dict[str, Any]) -> None:
    """What the structure says of the kind of layers."""
    structure = setting.exercise.structure
    said = {"gated": structure.gated, "tied": structure.tied}
    said |= dict.fromkeys(("qkv_bias", "out_bias", "ff_bias"), structure.biases)
    fields |= {name: value for name, value in said.items() if value is not None}
    if structure.norm is not None:
        there = structure.norm != "none"
        fields |= {"norm": structure.norm if structure.norm in ("rms", "none") else "layer", "final_norm": there}
        fields["norms_per_layer"] = 2 if there else 0
    if structure.positions == "learned" and not fields.get("positions"):
        fields["positions"] = setting.need("positions_learned", "length")
    if setting.has("window"):
        fields |= {"window": setting.size("window"), "window_layers": None}
    if setting.has("latent_width"):
        rope = setting.size("rope_width")
        fields["latent"] = Latent(setting.need("latent_width"), setting.size("query_latent_width"), rope or 0)
    elif structure.variant == "mla" and fields.get("latent") is None:
        raise CannotSolve("missing", needs="the width of the latent vector")
    elif structure.variant is not None and structure.variant != "mla":
        fields["latent"] = None


def _check(setting: Setting, fields: dict[str, Any]) -> None:
    """Heads that do not divide the width are refused here: the counts do not see it in formulas."""
    names = ("d_model", "heads", "kv_heads", "head_width", "experts", "experts_active")
    found = [Polynomial.of(fields.get(name) or 0).substituted(setting.values) for name in names]
    width, heads, kv_heads, head_width, experts, active = (
        0 if isinstance(each, Polynomial) else each for each in found
    )
    wrong = [
        (heads and not head_width and width % heads, f"{heads} heads", f"they do not divide the width {width}"),
        (heads and kv_heads and heads % kv_heads, f"{kv_heads} key/value heads", f"they do not divide {heads} heads"),
        (Fraction(heads).denominator != 1, "the width of a head", "it does not divide the width"),
        (experts and active > experts, f"{active} active experts", f"there are {experts}"),
    ]
    for fails, what, why in wrong:
        refuse(fails, "misfit", what=what, why=why)
    if setting.preset is None and heads * head_width not in (0, width) and width:
        setting.note(f"{heads} heads of width {head_width} are {heads * head_width} wide, and the model {width}")


def total(lines: Lines) -> Any:
    return sum((count for _, count in lines), start=Polynomial({}))


def rule(setting: Setting, *names: str) -> Polynomial | None:
    """A formula for the asked quantity that the exercise states ("C = 6 N D"): it goes before an exact count."""
    for definition in setting.exercise.definitions:
        left, equals, right = definition.text.partition("=")
        lone = len(setting.exercise.definitions) == len(setting.exercise.asked) == 1
        if not (_clean(left).lower() in {name.lower() for name in names} if equals else lone):
            continue
        try:
            found = setting.expression(right if equals else left, "the rule")
        except CannotSolve:
            continue
        for role, letter in LETTERS.items():
            given = setting.exercise.given(role)
            unnamed = not (given and given.symbol) and role not in setting.names
            if letter in found.free_symbols and letter not in setting.names.values() and unnamed:
                setting.size(role)
        if not found.free_symbols - set(setting.names.values()) - ({"N"} if equals else set()):
            setting.note("the rule of the text is evaluated as it stands")
            return found
    return None


def evaluated(setting: Setting, formula: Any) -> Any:
    """A formula with every known value: a number, or a formula of what is left."""
    return setting.settled(formula).substituted(setting.known)


def numbers(setting: Setting, *formulas: Any) -> list[Any]:
    """The values of formulas; refused where a size has none."""
    found = [evaluated(setting, each) for each in formulas]
    refuse(any(isinstance(each, Polynomial) for each in found), "missing", needs="a number for every size")
    return found


def symbols_of(setting: Setting, formula: Any) -> dict[str, str]:
    names, known = sorted(getattr(formula, "free_symbols", ())), setting.known
    return {name: f"positive = {known[name]}" if name in known else "positive" for name in names}


def steps(setting: Setting, title: str, formula: Any, reason: str = "") -> tuple[Step, ...]:
    """A chain: the formula, with its numbers, and its value."""
    formula, found = setting.settled(formula), evaluated(setting, formula)
    with_numbers = [] if isinstance(found, Polynomial) or formula.compound else [formula.written(setting.known)]
    texts = dict.fromkeys([str(formula), *with_numbers, str(found)])
    return chain(title, *texts, reason=reason, value=_plain(found), symbols=symbols_of(setting, formula))


def sized(function: Callable[[Setting], Found | Answer]) -> Callable[[Setting], Found | Answer]:
    """Register the solver of the quantity that a function is named after.

    The object of the question must be one of its table, and a rule that the text states goes before the solver.
    """
    quantity = function.__name__
    title, dimension, rules = DATA["solvers"][quantity]

    @solver(quantity, changed=quantity != "savings")
    def solve(exercise: Exercise, asked: Asked) -> Answer:
        setting = Setting(exercise, asked)
        if quantity in DATA["objects"]:
            setting.kind()
        stated = rule(setting, *rules) if rules else None
        found = function(setting) if stated is None else Found(stated, "the rule that the exercise gives")
        return answer(setting, found, title, dimension) if isinstance(found, Found) else found

    return function


def answer(setting: Setting, result: Found, title: str, dimension: str) -> Answer:
    """The answer that a formula gives, with its parts as steps."""
    formula, found = result.formula, evaluated(setting, result.formula)
    parts = [(name, count) for name, count in result.lines if evaluated(setting, count) != 0]
    worked = [steps(setting, name, count) for name, count in parts] if len(parts) > 1 else []
    if worked and not isinstance(found, Polynomial):
        sums = " + ".join(str(evaluated(setting, count)) for _, count in parts)
        worked.append(chain(title, sums, str(found), reason=result.reason, value=found, symbols={}))
    else:
        worked.append(steps(setting, title, formula, result.reason))
    if result.rounding is not None and not isinstance(found, Polynomial):
        way, found = "down" if result.rounding is floor else "up", result.rounding(found)
        worked.append((Step(str(found), f"rounded {way}", "", title, {}, None, found),))
    text, unit, others = written(setting, found, dimension, result.unit)
    assumed = tuple(setting.assumed)
    for convention, count in result.also:
        with suppress(CannotSolve):  # it may take a size that the answer does not
            if (other := evaluated(setting, count)) != found:
                shown = written(setting, other, dimension)[0]
                others.append(Also(shown, _plain(other), convention, symbols_of(setting, other)))
    return Answer(
        text, _plain(found), "formula" if isinstance(found, Polynomial) else "number", unit, symbols_of(setting, found),
        also=tuple(others), assumed=assumed, derivation=Derivation.of(*result.before, *worked),
    )  # fmt: skip


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Polynomial) else whole(value)


def written(setting: Setting, value: Any, dimension: str, own: str = "") -> tuple[str, str, list[Also]]:
    """A result as text, in the unit that is asked, an own or an easy one; bytes also in the other kind of unit."""
    digits, unit = int(setting.exercise.convention("digits", 5)), setting.asked.unit.strip()
    if isinstance(value, Polynomial):
        return str(value), own or {"B": "bytes", "s": "s"}.get(dimension, ""), []
    if own:
        return f"{units.number_text(value, digits)}{'' if own == '%' else ' '}{own}", own, []
    if unit in ("%", "percent"):
        return f"{units.number_text(whole(Fraction(value) * 100), digits)}%", "%", []
    if dimension in ("", "FLOP") and (not unit or dimension == "" or re.fullmatch(r"\w+illion", unit)):
        # "billion" is written out, which every reader of numbers accepts.
        units.factor(unit, dimension)
        return units.number_text(value, digits), "", []
    chosen = unit or units.readable_unit(value, dimension, binary=units.is_binary(setting.exercise))
    others: list[Also] = []
    if dimension == "B" and re.fullmatch("[kKMGTP]B", chosen) and not (unit and setting.exercise.said("byte_unit")):
        other = f"{chosen[0].upper()}iB"
        others.append(Also(units.with_unit(value, other, "B", digits), value, f"{other}, powers of 1024"))
    return units.with_unit(value, chosen, dimension, digits), chosen, others
