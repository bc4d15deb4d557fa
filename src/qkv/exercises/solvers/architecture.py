"""The model, or the layer, that an exercise describes: every size a name in formulas, with its value where given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ...cost.architecture import Latent, Model, model_named
from ...cost.polynomial import Polynomial, whole
from ...derivation import Derivation, Step, chain
from ...errors import MathsError, QkvError
from ..findings import CannotSolve, Finding
from ..record import Asked, Exercise
from ..solving import Also, Answer
from ..units import element_bytes, factor, is_binary, number_text, quantity, readable_unit, with_unit

LETTERS = {
    "layers": "L", "width": "d", "heads": "h", "kv_heads": "h_kv", "head_width": "d_h", "value_width": "d_v",
    "ff_width": "d_ff", "vocabulary": "V", "length": "n", "keys_length": "m", "batch": "b", "experts": "E",
    "active_experts": "k", "shared_experts": "E_s", "latent_width": "d_c", "rope_width": "d_r",
    "query_latent_width": "d_q", "positions_learned": "n_p", "window": "w", "in_features": "d_in",
    "out_features": "d_out", "parameters": "N", "active_parameters": "N_a", "training_tokens": "D", "tokens_count": "T",
    "feature_count": "m_f", "requests": "R", "flops": "C", "bytes": "M", "seconds": "t",
}  # fmt: skip
FIELDS = {
    "layers": "layers", "width": "d_model", "heads": "heads", "kv_heads": "kv_heads", "head_width": "head_width",
    "value_width": "value_width", "ff_width": "d_ff", "vocabulary": "vocabulary", "experts": "experts",
    "active_experts": "experts_active", "shared_experts": "shared_experts", "positions_learned": "positions",
}  # fmt: skip
Lines = list[tuple[str, Any]]


@dataclass
class Setting:
    """The sizes of an exercise, and what was assumed on the way.

    `values` are the numbers behind the names of formulas; a name without one stays a symbol.
    """

    exercise: Exercise
    asked: Asked
    values: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    assumed: list[Finding] = field(default_factory=list)

    def assume(self, convention: str, value: str) -> None:
        finding = Finding("assumed", {"convention": convention, "value": value})
        if finding.data not in [each.data for each in self.assumed]:
            self.assumed.append(finding)

    def note(self, text: str) -> None:
        self.assumed.append(Finding("note", {"text": text}))

    def size(self, role: str) -> Any:
        """A size as a name in formulas, as a formula of other names, or None where it is not given."""
        if role in self.names:
            return self.named(role, None)
        given = self.exercise.size(role)
        if given is None:
            return None
        of_role = self.exercise.given(role)
        if isinstance(given, str):
            try:
                return self.named(role, quantity(given, of_role.unit if of_role else ""))
            except CannotSolve:
                if re.match(r"\s*[\d.]", given) and not self._is_formula(given):
                    raise
                return self._symbol(role, given)
        number = quantity(given, of_role.unit if of_role and of_role.value is not None else "")
        if role not in ("flops", "bytes", "seconds") and (Fraction(number).denominator != 1 or number < 1):
            raise CannotSolve("misfit", what=role.replace("_", " "), why=f"{number} is no whole number of at least 1")
        return self.named(role, number)

    def named(self, role: str, value: Any) -> Polynomial:
        """The name of a size, with its value unless it is None."""
        if role not in self.names:
            given = self.exercise.given(role)
            wanted = _clean(given.symbol) if given and given.symbol else ""
            while not wanted or wanted in self.names.values():
                wanted = LETTERS.get(role, "x") if not wanted else f"{wanted}'"
            self.names[role] = wanted
        if value is not None:
            self.values[self.names[role]] = value
        return Polynomial.name(self.names[role])

    def need(self, *roles: str) -> Any:
        """The first of these sizes that is given; refused where none is."""
        for role in roles:
            if (found := self.size(role)) is not None:
                return found
        raise CannotSolve("missing", needs=" or ".join(role.replace("_", " ") for role in roles))

    def _is_formula(self, text: str) -> bool:
        """Whether a text that begins with a number, such as "4 d", has names of sizes and not a unit after it."""
        known = {_clean(given.symbol) for given in self.exercise.givens}
        return all(len(name) == 1 or "_" in name or _clean(name) in known for name in re.findall(r"[A-Za-z]\w*", text))

    def _symbol(self, role: str, text: str) -> Polynomial:
        name = _clean(text)
        if name:
            self.names.setdefault(role, name)
            return Polynomial.name(name)
        return self.expression(text, role)

    def expression(self, text: str, what: str) -> Polynomial:
        """A formula in the notation of `qkv.maths` as a polynomial."""
        from ...maths import parse
        from ...maths.sizes import polynomial

        names = {_clean(each) or each for each in re.findall(r"[A-Za-z]+(?:_(?:\{\w+\}|\w+))?", text)}
        try:
            found = polynomial(parse(text, dict.fromkeys(names - {"frac", "cdot", "times"}, "natural")))
        except (MathsError, QkvError):
            found = None
        if found is None:
            raise CannotSolve("not_understood", found=f"{what} {text}")
        self.know(names)
        return Polynomial(found)

    def know(self, names: set[str]) -> None:
        """Give the names of a formula the values of the givens with these symbols."""
        for given in self.exercise.givens:
            name = _clean(given.symbol)
            if name in names and name not in self.values:
                if given.role in LETTERS:
                    self.size(given.role)
                elif isinstance(given.value, int | float | str):
                    try:
                        self.values[name] = quantity(given.value, given.unit)
                    except CannotSolve:
                        continue

    @property
    def known(self) -> dict[str, Any]:
        """The values that are put into the answer: all, but those of the symbols that it shall be in terms of."""
        kept = {_clean(name) for name in self.asked.in_terms_of}
        return {name: value for name, value in self.values.items() if name not in kept}

    def bytes_of(self, what: str) -> Any:
        """Bytes of one number of "weights", "cache" or "activations", as the text says, else 16 bits."""
        for given in self.exercise.of_role("dtype"):
            short = {"kv": "cache", "k": "cache", "v": "cache"}.get(given.of.lower()[:2].strip(), given.of.lower())
            if given.of and what[:5] in short:
                return element_bytes(given.value if given.value is not None else given.unit)
        if self.exercise.convention("bytes_per_element") is not None:
            return element_bytes(self.exercise.convention("bytes_per_element"))
        for given in self.exercise.of_role("dtype"):
            if not given.of:
                return element_bytes(given.value if given.value is not None else given.unit or given.symbol)
        self.assume("the format of numbers", "16 bits, 2 bytes,")
        return 2


def _clean(symbol: str) -> str:
    """A symbol as the name that `qkv.maths` gives it, "" where it is none."""
    from ...maths.parsing.naming import canonical_name, is_reserved

    text = symbol.strip().strip("$\\").replace("\\_", "_").replace("\\text", "").replace("\\mathrm", "")
    text = re.sub(r"_\{\{?(\w+)\}?\}", r"_\1", text)
    if not re.fullmatch(r"[A-Za-z]+'*(?:_[A-Za-z0-9]+)?'*|[Ͱ-Ͽ]", text):
        return ""
    name = canonical_name(text)
    return "" if name is None or is_reserved(name) else name


def model_of(setting: Setting, *needed: str) -> Model:
    """The model with names for its sizes. Sizes that are not given and not needed have no effect: they are 1."""
    exercise, structure = setting.exercise, setting.exercise.structure
    preset = _preset(exercise)
    sizes: dict[str, Any] = {}
    for role, name in FIELDS.items():
        given = setting.size(role)
        stored = None if preset is None else getattr(preset, name)
        if given is None and stored:
            given = setting.named(role, stored) if isinstance(stored, int) else stored
        if given is not None:
            sizes[name] = given
    _fill_widths(setting, sizes)
    for role in needed:
        if FIELDS[role] not in sizes:
            if role == "ff_width":
                setting.assume("the width of the feed-forward network", "4 times the width of the model")
                continue
            raise CannotSolve("missing", needs={"width": "the width", "layers": "the number of layers"}.get(
                role, role.replace("_", " ")))  # fmt: skip
    if "d_model" not in sizes:
        sizes |= {"d_model": sizes.get("heads", 1), "head_width": 1}
    sizes.setdefault("d_ff", 4 * sizes["d_model"])
    fields: dict[str, Any] = {"name": "exercise", "layers": 1, "vocabulary": 1, "heads": 1, "gated": False,
                              "norm": "none", "norms_per_layer": 0, "final_norm": False}  # fmt: skip
    if preset is not None:
        fields = {each: getattr(preset, each) for each in preset.__dataclass_fields__} | {"latent": preset.latent}
        if "expert_d_ff" in fields and setting.size("ff_width") is not None:
            fields["expert_d_ff"] = None
    fields |= sizes
    if fields.get("experts") and not fields.get("experts_active"):
        fields["experts_active"] = 1
        if "active_experts" in needed:
            raise CannotSolve("missing", needs="the number of active experts")
    _structure(setting, structure, fields)
    _check(setting, fields)
    try:
        return Model(**fields)
    except QkvError as error:
        raise CannotSolve("misfit", what="the sizes", why=str(error)) from None


def _preset(exercise: Exercise) -> Model | None:
    given = exercise.given("model")
    if given is None:
        return None
    try:
        return model_named(str(given.value if given.value is not None else given.symbol))
    except QkvError as error:
        if any(exercise.size(role) is not None for role in ("width", "layers", "parameters")):
            return None
        raise CannotSolve("unknown_name", what="the model", name=given.value, hint=str(error)) from None


def _fill_widths(setting: Setting, sizes: dict[str, Any]) -> None:
    variant = setting.exercise.structure.variant
    if "d_model" not in sizes and "head_width" in sizes:
        sizes["d_model"] = sizes["head_width"] * sizes.get("heads", 1)
    if variant == "mqa":
        sizes["kv_heads"] = 1
    elif variant == "mha":
        sizes.pop("kv_heads", None)
    elif variant == "gqa" and "kv_heads" not in sizes:
        groups = setting.size("groups")
        if groups is None:
            raise CannotSolve("missing", needs="the number of key/value heads")
        sizes["kv_heads"] = groups
    if "heads" not in sizes and "head_width" in sizes and setting.size("width") is not None:
        sizes["heads"] = sizes["d_model"] / sizes["head_width"]


def _structure(setting: Setting, structure: Any, fields: dict[str, Any]) -> None:
    """What the structure says of the kind of layers."""
    if structure.gated is not None:
        fields["gated"] = structure.gated
    if structure.tied is not None:
        fields["tied"] = structure.tied
    if structure.biases is not None:
        fields |= dict.fromkeys(("qkv_bias", "out_bias", "ff_bias"), structure.biases)
    if structure.norm is not None:
        there = structure.norm != "none"
        fields |= {"norm": structure.norm if structure.norm in ("rms", "none") else "layer", "final_norm": there}
        fields["norms_per_layer"] = 2 if there else 0
    if structure.positions == "learned" and not fields.get("positions"):
        fields["positions"] = setting.need("positions_learned", "length")
    latent = setting.size("latent_width")
    if latent is not None:
        rope = setting.size("rope_width")
        fields["latent"] = Latent(latent, setting.size("query_latent_width"), 0 if rope is None else rope)
    elif structure.variant == "mla" and fields.get("latent") is None:
        raise CannotSolve("missing", needs="the width of the latent vector")
    elif fields.get("latent") is not None and structure.variant in ("mha", "gqa", "mqa"):
        fields["latent"] = None


def _check(setting: Setting, fields: Mapping[str, Any]) -> None:
    """Heads that do not divide the width are refused; the counts do not see it in formulas."""
    number = {name: fields[name].substituted(setting.values) if isinstance(fields.get(name), Polynomial)
              else fields.get(name) for name in ("d_model", "heads", "kv_heads", "head_width", "experts",
                                                 "experts_active")}  # fmt: skip
    width, heads, kv_heads = number["d_model"], number["heads"], number["kv_heads"]
    if number["head_width"] is None and isinstance(width, int) and isinstance(heads, int) and width % heads:
        raise CannotSolve("misfit", what=f"{heads} heads", why=f"they do not divide the width {width}")
    if isinstance(heads, int) and isinstance(kv_heads, int) and heads % kv_heads:
        raise CannotSolve("misfit", what=f"{kv_heads} key/value heads", why=f"they do not divide {heads} heads")
    if not isinstance(heads, int | Polynomial):
        raise CannotSolve("misfit", what="the width of a head", why="it does not divide the width")
    experts, active = number["experts"], number["experts_active"]
    if isinstance(experts, int) and isinstance(active, int) and active > experts:
        raise CannotSolve("misfit", what=f"{active} active experts", why=f"there are {experts}")


def total(lines: list[tuple[str, Any]]) -> Any:
    found: Any = 0
    for _, count in lines:
        found = found + count
    return found


def rule(setting: Setting, *names: str) -> Polynomial | None:
    """A formula for the asked quantity that the exercise states ("C = 6 N D"): it goes before an exact count."""
    wanted = {name.lower() for name in names} | {setting.asked.object.lower()} - {""}
    for definition in setting.exercise.definitions:
        left, equals, right = definition.text.partition("=")
        lone = not equals and len(setting.exercise.definitions) == 1 and len(setting.exercise.asked) == 1
        if (equals and _clean(left).lower() in wanted) or lone:
            try:
                found = setting.expression(right if equals else left, "the rule")
            except CannotSolve:
                continue
            missing = found.free_symbols - set(setting.values)
            for name in missing:
                _from_letter(setting, name)
            return found
    return None


def _from_letter(setting: Setting, name: str) -> None:
    """A letter of a rule whose size is given without a symbol, such as N for the parameters."""
    for role, letter in LETTERS.items():
        given = setting.exercise.given(role)
        if letter.lower() == name.lower() and setting.exercise.size(role) is not None and not (given and given.symbol):
            size = setting.size(role)
            if isinstance(size, Polynomial) and not size.free_symbols - set(setting.values):
                setting.values[name] = size.value(setting.values)


def evaluated(setting: Setting, formula: Any) -> Any:
    """A formula with every known value: a number, or a formula of what is left."""
    return formula.substituted(setting.known) if isinstance(formula, Polynomial) else formula


def symbols_of(setting: Setting, *formulas: Any) -> dict[str, str]:
    names = {name for each in formulas if isinstance(each, Polynomial) for name in each.free_symbols}
    known = setting.known
    return {name: f"positive = {known[name]}" if name in known else "positive" for name in sorted(names)}


def steps(setting: Setting, title: str, formula: Any, reason: str = "", unit: str = "") -> tuple[Step, ...]:
    """A chain: the formula, with its numbers, and its value."""
    found = evaluated(setting, formula)
    shown = exact_text(found)
    if not isinstance(formula, Polynomial):
        return chain(title, shown, reason=reason, value=found)
    numbers = [] if isinstance(found, Polynomial) or formula.compound else [formula.written(setting.known)]
    texts = list(dict.fromkeys([str(formula), *numbers, shown]))
    value = None if isinstance(found, Polynomial) else found
    return chain(title, *texts, reason=reason, value=value, symbols=symbols_of(setting, formula))


def exact_text(value: Any) -> str:
    return str(value) if isinstance(value, Polynomial | int | Fraction) else number_text(value)


def answer(
    setting: Setting,
    formula: Any,
    *,
    lines: list[tuple[str, Any]] | None = None,
    title: str = "",
    reason: str = "",
    also: list[tuple[str, Any]] | None = None,
    dimension: str = "",
    before: Derivation | None = None,
) -> Answer:
    """The answer that a formula gives, with its parts as steps; `also` are formulas under other conventions."""
    found = evaluated(setting, formula)
    parts = [(name, count) for name, count in lines or [] if evaluated(setting, count) != 0]
    worked = [steps(setting, name, count) for name, count in parts] if len(parts) > 1 else []
    if worked and not isinstance(found, Polynomial):
        sums = " + ".join(exact_text(evaluated(setting, count)) for _, count in parts)
        worked.append(chain(title, sums, exact_text(found), reason=reason, value=found, symbols={}))
    else:
        worked.append(steps(setting, title, formula, reason))
    text, unit, others = written(setting, found, dimension)
    alternatives = list(others)
    for convention, other in also or []:
        other = evaluated(setting, other)
        if other != found:
            shown = written(setting, other, dimension)[0]
            alternatives.append(Also(shown, _plain(other), convention, symbols_of(setting, other)))
    derivation = Derivation.of(*worked)
    return Answer(
        text,
        _plain(found),
        "formula" if isinstance(found, Polynomial) else "number",
        unit,
        symbols_of(setting, found),
        also=tuple(alternatives),
        assumed=tuple(setting.assumed),
        derivation=derivation if before is None else before + derivation,
    )


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Polynomial) else whole(value)


def written(setting: Setting, value: Any, dimension: str) -> tuple[str, str, list[Also]]:
    """A result as text, in the unit that is asked or an easy one, and the same in the other kind of bytes."""
    digits = int(setting.exercise.convention("digits", 5))
    if isinstance(value, Polynomial):
        return str(value), {"B": "bytes", "s": "s"}.get(dimension, ""), []
    unit = setting.asked.unit.strip()
    if dimension in ("", "FLOP", "FLOP/s") and not unit:
        return number_text(value, digits), "", []
    if unit in ("%", "percent"):
        return f"{number_text(whole(Fraction(value) * 100), digits)}%", "%", []
    if dimension == "" or unit in ("million", "billion", "trillion"):
        # A plain number with a unit such as "billion" is written out, which every reader of numbers accepts.
        factor(unit, dimension)
        return number_text(value, digits), unit, []
    binary = is_binary(setting.exercise)
    chosen = unit or readable_unit(value, dimension, binary=binary)
    text = with_unit(value, chosen, dimension, digits)
    if dimension != "B" or (unit and setting.exercise.said("byte_unit")):
        return text, chosen, []
    if re.fullmatch(r"[kKMGTP]B", chosen) and not binary:
        other = f"{chosen[0].upper()}iB"
        return text, chosen, [Also(with_unit(value, other, "B", digits), value, f"in {other}, powers of 1024")]
    return text, chosen, []
