"""Mean and variance of scores under given laws, and the divisor for a target variance."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ...derivation import Derivation, Step, chain
from ...errors import MathsError, OptionError
from ...maths import parse
from ...maths.moments import moments
from ..findings import CannotSolve
from ..record import Asked, Exercise, Given
from ..solving import Also, Answer, solver
from .formulas import as_polynomial, assumed, formula, number_in, simplified, split, table

_NAME = re.compile(r"[A-Za-z]\w*")
_MATRIX = re.compile(r"(?<![A-Za-z])(?:[A-Z]|diag)")


@dataclass(frozen=True)
class Law:
    """Mean and covariance of a vector of independent draws, as texts, and how its mean is to be read.

    `mean_kind` is "scalar" (every component has this mean), "vector", or "open" where both are usual. `fourth` is the
    variance of a component's square where the mean is 0 and the law is not normal, for norms.
    """

    mean: str
    spread: str
    normal: bool = True
    mean_kind: str = "scalar"
    fourth: str = ""

    def declared(self, width: str, reading: str) -> str:
        mean = self.mean if reading == "vector" or self.mean == "0" else f"({self.mean}) 1_{{{width}}}"
        spread = re.sub(r"\bI_(?:\{\w+\}|\w+)", "I", self.spread)
        spread = spread if _MATRIX.search(spread) else f"({spread}) I"
        return f"random vector[{width}] ~ {'N' if self.normal else ''}({mean}, {spread})"

    @property
    def multiple(self) -> str:
        """c, of a covariance c I or of a variance c."""
        bare = re.sub(r"\s*(?<![A-Za-z])I(?:_\{?\w+\}?)?$", "", self.spread).strip() or "1"
        if _MATRIX.search(bare):
            raise CannotSolve("not_understood", found=f"components under the covariance {self.spread}")
        return bare


def read_law(text: str, vector_means: frozenset[str] = frozenset()) -> Law:
    """The law that a text states: "normal(mu, sigma^2 I)", "uniform(-1, 1)", "mean 0 variance 1".

    >>> read_law("uniform(-1, 1)").spread, read_law("iid with mean 0 and standard deviation 3").spread
    ('1/3', '9')
    """
    plain = _ascii(text)
    lower = plain.lower()
    each = bool(re.search(r"\b(?:iid|i\.i\.d|components?|entries|elements|each|independent coordinates)\b", lower))
    if re.search(r"\brademacher\b|\bsigns?\b|\{\s*[-+±]\s*1\s*,\s*[-+]?\s*1\s*\}", lower):
        return Law("0", "1", normal=False, fourth="0")
    if re.search(r"\bstandard (?:normal|gaussian)", lower):
        return Law("0", "1")
    if bare := re.fullmatch(r"\s*\((.*)\)\s*", plain):
        return replace(_normal(split(bare[1], ",;"), each, vector_means), normal=False)
    named = re.search(r"\b(normal|gaussian|n|uniform|laplace|bernoulli|exponential)\s*\((.*)\)", plain, re.IGNORECASE)
    if named is None:
        return _stated(plain, each, vector_means)
    parts, known = split(named[2], ",;"), table("laws").get(named[1].lower())
    if known is None:
        return _normal(parts, each, vector_means)
    try:
        found = {name: _exact(template.format(*parts)) for name, template in known.items()}
    except IndexError:
        raise CannotSolve("not_understood", found=f"the law {text}") from None
    law = Law(**found, normal=False)
    return law if law.mean == "0" else replace(law, fourth="")


def _normal(parts: list[str], each: bool, vector_means: frozenset[str]) -> Law:
    if len(parts) != 2:
        raise CannotSolve("not_understood", found=f"a law with {len(parts)} parameters")
    mean, spread = map(_exact, parts)
    if re.fullmatch(r"(?:sigma|std)\w*", spread):
        raise CannotSolve("unsettled", convention=f"whether {spread} is the variance or the standard deviation")
    if ones := re.fullmatch(r"(.*?)\s*(?:\\mathbf\s*\{?1\}?|\b1_\{?\w+\}?|\*\s*ones\(\w*\)|(?<=[a-z])\s+1)", mean):
        return Law(ones[1].strip() or "1", spread)
    kind = "open" if _MATRIX.search(spread) and not each else "scalar"
    kind = "vector" if mean in vector_means else kind if _NAME.fullmatch(mean) else "scalar"
    return Law(mean, spread, mean_kind=kind)


def _stated(text: str, each: bool, vector_means: frozenset[str]) -> Law:
    """A law given by its moments alone: "mean 0 and variance 1", "zero mean, unit variance"."""
    for words, moment in table("stated_laws").items():
        text = re.sub(words, moment, text, flags=re.IGNORECASE)
    value = r"(?:is\s+|of\s+|=\s*|\s)*\$?((?:-?\d[\d./]*|[A-Za-z]\w*)(?:\s*\^\s*\{?\d\}?)?)\$?"
    found = {}
    for name in ("means?", "variances?", "(?:standard deviations?|std)"):
        stated = re.search(rf"\b{name}\b{value}", text, re.IGNORECASE)
        found[name[:4]] = stated[1] if stated else ""
    mean, variance, deviation = found.values()
    if not mean or not (variance or deviation):
        raise CannotSolve("not_understood", found=f"the law {text}")
    kind = "vector" if mean in vector_means and not each else "scalar"
    normal = bool(re.search(r"\b(?:normal|gaussian)", text, re.IGNORECASE))
    return Law(_exact(mean), _exact(variance or f"({deviation})^2"), normal, kind)


def _ascii(text: str) -> str:
    for sign, plain in table("plain_signs").items():
        text = text.replace(sign, plain)
    return re.sub(r"\\(?:mathcal|mathbf|boldsymbol|mathrm|left|right|,|;)\s*", "", text).replace("\\", "")


def _exact(text: str) -> str:
    """Decimals as fractions, and a formula of numbers as its value."""
    text = re.sub(r"(?<![\w.])\d+\.\d+", lambda found: f"({Fraction(found[0])})", text)
    value = number_in(text)
    return text if value is None else str(value)


@dataclass(frozen=True)
class Setting:
    """What is asked of; `symbols` are the types of all names for every way to read the mean, the usual one first.

    `width` is the letter of the width, and `size` its number where it has one.
    """

    target: str
    symbols: tuple[dict[str, str], ...]
    laws: dict[str, Law]
    width: str
    size: str

    def law(self, name: str) -> Law:
        if name not in self.laws:
            raise CannotSolve("missing", needs=f"the law of {name}")
        return self.laws[name]


def setting(exercise: Exercise, wanted: str) -> Setting:
    """The laws of an exercise as types, and the object as an expression."""
    stated = [given for given in exercise.givens if given.law or given.role == "law"]
    laws = {name: law for given in stated for name, law in _named(exercise, given)}
    if not laws:
        raise CannotSolve("missing", needs="the law of the vectors")
    target = _target(wanted, list(laws))
    used = re.findall(r"[A-Za-z]+(?:_[A-Za-z0-9]+)?", re.sub(r"\^\{?T\}?|sqrt|\\\w+", " ", target))
    vectors = list(dict.fromkeys(re.sub(r"_[ij\d]$", "", name) for name in used))
    if len(laws) == 1 and not set(laws) & set(vectors):
        laws = dict.fromkeys((name for name in vectors if name in "qkwxabuv"), *laws.values())
    width, size = _width(exercise, stated)
    values = _values(exercise)
    types: dict[str, str] = {width: "natural"}
    for law in laws.values():
        for name in set(_NAME.findall(f"{law.mean} {law.spread}")) - {*values, "I", "diag", "sqrt"}:
            if not name.startswith("I_"):
                kind = f"matrix[{width},{width}]" if name[0].isupper() else "scalar"
                kind = "positive" if re.match(r"sigma|tau|s$", name) else kind
                types[name] = f"vector[{width}]" if f"diag({name})" in law.spread else kind
    fixed = {given.symbol for given in exercise.of_role("vector", "other", "query", "key") if given.law is None}
    for name in vectors:
        if name not in laws and name not in types and name not in values:
            if name not in fixed and name not in ("s", "c", "d"):
                raise CannotSolve("missing", needs=f"the law of {name}")
            types |= {name: f"vector[{width}]"} if name in fixed else {"s": "positive"} if name == "s" else {}
    laws = {name: replace(law, mean=_put(law.mean, values), spread=_put(law.spread, values))
            for name, law in laws.items()}  # fmt: skip
    found = []
    for reading in ("vector", "scalar"):
        names = dict(types)
        for name, law in laws.items():
            read = reading if law.mean_kind == "open" else law.mean_kind
            if read == "vector" and _NAME.fullmatch(law.mean):
                names[law.mean] = f"vector[{width}]"
            names[name] = law.declared(width, "scalar" if number_in(law.mean) is not None else read)
        found += [names] if names not in found else []
    target = _put(target, {name: value for name, value in values.items() if name not in {*laws, width}})
    return Setting(target, tuple(found), laws, width, size)


def _target(wanted: str, names: list[str]) -> str:
    """The object in the notation of `qkv.maths`."""
    target = _ascii(wanted.strip())
    target = table("scores").get(target.lower().removeprefix("the "), target)
    usual = "q^T k" if len(names) < 2 or {"q", "k"} <= set(names) else f"{names[0]}^T {names[1]}"
    target = re.sub(r"(?:\|\||‖)\s*(\w+)\s*(?:\|\||‖)(?:_2)?", r"\\|\1\\|", target or usual)
    product = r"<\s*(\w+)\s*,\s*(\w+)\s*>|(\w+)\s*(?:\.|@|\\cdot|⋅)\s*(?=[a-z]\b)(\w+)"
    return re.sub(product, lambda found: f"{found[1] or found[3]}^T {found[2] or found[4]}", target)


def _named(exercise: Exercise, given: Given) -> list[tuple[str, Law]]:
    vector_means = frozenset(each.symbol for each in exercise.givens if each.shape is not None and len(each.shape) == 1)
    law = read_law(given.law or str(given.value or ""), vector_means)
    if given.shape == () or any(each.symbol == law.mean and each.shape == () for each in exercise.givens):
        law = replace(law, mean_kind="scalar")  # a mean that is declared to be one number
    names = [re.sub(r"_[ij]$", "", name) for name in _NAME.findall(given.of or given.symbol or "")]
    return [(name, law) for name in names if name not in ("and", "iid")] or [("components", law)]


def _width(exercise: Exercise, stated: list[Given]) -> tuple[str, str]:
    """The letter of the width, and its number, or the letter again where it has none."""
    width = next((str(given.shape[0]) for given in stated if given.shape and len(given.shape) == 1), "")
    sizes = exercise.of_role("head_width", "width")
    letter = width if width and not width.isdigit() else next((size.symbol for size in sizes if size.symbol), "d")
    if width.isdigit():
        return letter, width
    known = [size for size in sizes if size.value is not None and (not width or size.symbol == width)]
    size, heads = str(known[0].value) if known else letter, exercise.size("heads")
    if size.isdigit() and isinstance(heads, int) and heads and not width and exercise.given("head_width") is None:
        size = str(int(size) // heads) if int(size) % heads == 0 else size
    return letter, size


def _values(exercise: Exercise) -> dict[str, str]:
    """Names with a number: "sigma = 1" among the givens or the definitions."""
    plain = [given for given in exercise.givens if given.symbol and given.law is None and given.role != "law"]
    stated = [(given.symbol, given.value) for given in plain if type(given.value) in (int, float, str)]
    defined = (re.fullmatch(r"(.+?)=\s*(-?[\d./]+)\s*", each.text) for each in exercise.definitions)
    stated += [(each[1], each[2]) for each in defined if each]
    values = {_ascii(name).strip(): _exact(_ascii(str(value))) for name, value in stated}
    return {name: value for name, value in values.items() if number_in(value) is not None}


def _put(text: str, values: dict[str, str]) -> str:
    """A text with numbers for names; a formula of numbers is worked out."""
    put = _NAME.sub(lambda found: f"({values[found[0]]})" if found[0] in values else found[0], text)
    return put if put == text else _exact(put)


def moment(at: Setting, which: str, symbols: dict[str, str]) -> tuple[str, Derivation]:
    """The mean or the variance of the object under one reading, with its derivation."""
    squared = re.fullmatch(r"\\\|(\w+)\\\|\^\{?2\}?|(\w+)\^T\s*\2", at.target)
    single = re.fullmatch(r"([a-z])_([ij\d])\s*\*?\s*([a-z])_\2", at.target)
    if squared:
        text, derivation = _norm(at, which, symbols, squared[1] or squared[2])
    elif single:
        text, derivation = _component(at, which, symbols, *single.groups())
    else:
        text, derivation = _bilinear(at, which, symbols)
    if at.size == at.width:
        return text, derivation
    put = {**derivation.symbols, at.width: f"natural = {at.size}"}
    short = simplified(text, put)
    return short, derivation + Derivation.of(chain(f"with {at.width} = {at.size}", text, short), symbols=put)


def _bilinear(at: Setting, which: str, symbols: dict[str, str]) -> tuple[str, Derivation]:
    try:
        found = moments(at.target, symbols)
    except (MathsError, OptionError) as error:
        raise CannotSolve("misfit", what=at.target, why=str(error).splitlines()[0]) from None
    text = found.mean if which == "mean" else found.variance
    begins = r"\operatorname{Var}" if which == "variance" else r"\mathbb{E}"
    steps = tuple(Step(step.text, step.reason, step.relation) for step in found.steps)
    chains = (each.steps for each in Derivation(steps).chains())
    first, *rest = next(each for each in chains if each[0].text.startswith(begins))
    shown = [Step(first.text, "", "", f"the {which} of {at.target}"), *rest]
    short = simplified(text, symbols)
    shown += [Step(short, "simplified")] if short != text else []
    return short, Derivation(tuple(shown), symbols)


def _norm(at: Setting, which: str, symbols: dict[str, str], name: str) -> tuple[str, Derivation]:
    """Mean and variance of the squared length of one vector."""
    law, width = at.law(name), at.width
    spread, vector = law.multiple, symbols.get(law.mean, "").startswith("vector")
    square = f"({law.mean})^T ({law.mean})" if vector else f"{width} ({law.mean})^2"
    asked = rf"E[\|{name}\|^2]" if which == "mean" else rf"\operatorname{{Var}}(\|{name}\|^2)"
    if which == "mean":
        text = f"{width} ({spread}) + {square}"
    elif law.normal:
        text = f"2 {width} ({spread})^2 + 4 ({spread}) {square}"
    elif law.fourth:
        asked, text = "", f"{width} ({law.fourth})"
    else:
        raise CannotSolve("missing", needs="the fourth moments of the components")
    short = simplified(text, symbols)
    texts = dict.fromkeys(filter(None, (asked, text, short)))
    return short, Derivation.of(chain(f"the {which} of the squared length", *texts), symbols=symbols)


def _component(
    at: Setting, which: str, symbols: dict[str, str], one: str, index: str, other: str
) -> tuple[str, Derivation]:
    """Mean and variance of the product of two components."""
    if one == other:
        raise CannotSolve("missing", needs="two independent vectors")
    types = symbols | ({index: f"index[{at.width}]"} if index.isalpha() else {})
    laws = at.law(one), at.law(other)
    m, n = (f"({law.mean}_{index})" if types.get(law.mean, "").startswith("v") else f"({law.mean})" for law in laws)
    s, u = (f"({law.multiple})" for law in laws)
    text = f"{m} {n}" if which == "mean" else f"{s} {u} + {m}^2 {u} + {n}^2 {s}"
    short = simplified(text, types)
    asked = f"{'E' if which == 'mean' else 'Var'}({one}_{index} {other}_{index})"
    return short, Derivation.of(chain(f"the {which} of one term", asked, text, short), symbols=types)


def _chosen(results: list[tuple[str, dict[str, str], Derivation]]) -> Answer:
    """The answer under the usual reading of the mean, with the other one named."""
    (text, symbols, derivation), *others = results
    fields: dict[str, Any] = {}
    for other, types, _ in others:
        if other != text:
            fields["also"] = (Also(other, other, "one mean for all components", types),)
            fields["assumed"] = assumed("whether the mean is a vector or one number", "a vector")
    root = re.fullmatch(r"sqrt\((.*)\)", text)
    inside = number_in(root[1]) if root else None
    value = number_in(text) if inside is None else float(inside) ** 0.5
    fields |= {"derivation": derivation, "symbols": symbols}
    return formula(text, **fields) if value is None else formula(text, value=value, form="number", **fields)


def _moment(exercise: Exercise, asked: Asked) -> Answer:
    """E or Var of the object."""
    at = setting(exercise, asked.object)
    found = [(*moment(at, asked.quantity, symbols), symbols) for symbols in at.symbols]
    return _chosen([(text, {**derivation.symbols, **symbols}, derivation) for text, derivation, symbols in found])


solver("mean")(_moment)
solver("variance")(_moment)


@solver("scale_for_variance")
def scale_for_variance(exercise: Exercise, asked: Asked) -> Answer:
    """The positive s for which object / s has the target variance; with object "factor", what to multiply by."""
    factor = asked.object.strip().lower() in ("factor", "scale factor", "scaling factor")
    target = exercise.given("target_variance")
    wanted = "1" if target is None or target.value is None else _exact(_ascii(str(target.value)))
    bare = re.sub(r"\s*/\s*s\b|^\s*s\s+", "", asked.object)
    at = setting(exercise, "" if factor or re.fullmatch(r"(?i)\s*(?:divisor|s|scale)?\s*", bare) else bare)
    results = []
    for symbols in at.symbols:
        spread, derivation = moment(at, "variance", symbols)
        quotient = simplified(f"({spread})/({wanted})", symbols) if wanted != "1" else spread
        if quotient == "0":
            raise CannotSolve("misfit", what="the variance", why="it is 0, and no divisor changes it")
        squared = as_polynomial(parse(quotient, symbols))
        root = (1 / squared if factor else squared).root()
        text = f"{'1/' * factor}sqrt({quotient})" if root is None else str(root)
        types = {**symbols, "s": f"positive = {f'1/({text})' if factor else text}"}
        reason = "a divisor leaves a variance squared"
        solved = chain("the positive s with this variance", f"({spread})/s^2", wanted, reason=reason, symbols=types)
        results.append((text, symbols, derivation + Derivation(solved, types)))
    return _chosen(results)
