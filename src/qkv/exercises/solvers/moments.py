"""Mean and variance of scores under given laws, and the divisor for a target variance."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from ...derivation import Derivation, Step, chain
from ...errors import MathsError, OptionError
from ...maths.moments import moments
from ..findings import CannotSolve, Finding
from ..record import Asked, Exercise, Given
from ..solving import Also, Answer, solver
from .formulas import number_in, root_text, simplified

_NUMBER = r"-?\d+(?:\.\d+)?(?:/\d+)?"
_WORDS = {
    "score": "q^T k", "dot product": "q^T k", "inner product": "q^T k", "attention score": "q^T k", "logit": "q^T k",
    "scaled score": "q^T k / sqrt(d)", "scaled dot product": "q^T k / sqrt(d)", "term": "q_i k_i",
    "one term": "q_i k_i",
}  # fmt: skip
_GREEK = {"μ": "mu", "σ": "sigma", "λ": "lambda", "Σ": "Sigma", "ν": "nu", "τ": "tau", "θ": "theta", "²": "^2",
          "⁴": "^4", "√": "sqrt", "ᵀ": "^T", "·": " "}  # fmt: skip


@dataclass(frozen=True)
class Law:
    """Mean and covariance of a vector of independent draws, as texts, and how its mean is to be read.

    `mean_kind` is "scalar" (every component has this mean), "vector", or "open" where both are usual. `fourth` is the
    variance of a component's square where the mean is 0 and the law is not normal, for norms.
    """

    mean: str
    spread: str
    normal: bool
    mean_kind: str = "scalar"
    fourth: str = ""

    def declared(self, width: str, reading: str) -> str:
        mean = self.mean if reading == "vector" or self.mean == "0" else f"({self.mean}) 1_{{{width}}}"
        matrix = re.search(r"(?<![A-Za-z])(?:I(?:_\w+|_\{\w+\})?|[A-Z]\w*|diag|Sigma\w*)(?![A-Za-z])", self.spread)
        spread = re.sub(r"\bI_(?:\{\w+\}|\w+)", "I", self.spread) if matrix else f"({self.spread}) I"
        return f"random vector[{width}] ~ {'N' if self.normal else ''}({mean}, {spread})"


def read_law(text: str, vector_means: frozenset[str] = frozenset()) -> Law:
    """The law that a text states: "normal(mu, sigma^2 I)", "uniform(-1, 1)", "mean 0 variance 1".

    >>> read_law("uniform(-1, 1)").spread, read_law("iid with mean 0 and standard deviation 3").spread
    ('1/3', '9')
    """
    plain = _ascii(text)
    lower = plain.lower()
    each = bool(re.search(r"\b(?:iid|i\.i\.d|components?|entries|elements|each|independent coordinates)\b", lower))
    named = re.search(r"\b(normal|gaussian|n|uniform|laplace|bernoulli|exponential)\s*\((.*)\)", plain, re.IGNORECASE)
    if re.search(r"\brademacher\b|\bsigns?\b|\{\s*[-+±]\s*1\s*,\s*[-+]?\s*1\s*\}", lower):
        return Law("0", "1", False, fourth="0")
    if re.search(r"\bstandard (?:normal|gaussian)", lower):
        return Law("0", "1", True)
    if named is None and (pair := re.fullmatch(r"\s*(?:N|\\mathcal\s*\{?N\}?)?\s*\((.*)\)\s*", plain)):
        named = re.match(r"(N)\s*\((.*)\)", f"N({pair[1]})")
        return replace(_normal(_parts(pair[1]), each, vector_means), normal=plain.strip()[0] != "(")
    if named is None:
        return _stated(plain, each, vector_means)
    kind, parts = named[1].lower(), _parts(named[2])
    if kind in ("normal", "gaussian", "n"):
        return _normal(parts, each, vector_means)
    if kind == "uniform" and len(parts) == 2:
        low, high = parts
        mean, width = _exact(f"(({low}) + ({high}))/2"), _exact(f"(({high}) - ({low}))^2/12")
        fourth = _exact(f"(({high}) - ({low}))^4/180") if mean == "0" else ""
        return Law(mean, width, False, fourth=fourth)
    if kind == "laplace" and len(parts) == 2:
        return Law(parts[0], _exact(f"2 ({parts[1]})^2"), False)
    if kind == "bernoulli" and len(parts) == 1:
        return Law(parts[0], _exact(f"({parts[0]}) (1 - ({parts[0]}))"), False)
    if kind == "exponential" and len(parts) == 1:
        return Law(_exact(f"1/({parts[0]})"), _exact(f"1/({parts[0]})^2"), False)
    raise CannotSolve("not_understood", found=f"the law {text}")


def _normal(parts: list[str], each: bool, vector_means: frozenset[str]) -> Law:
    if len(parts) != 2:
        raise CannotSolve("not_understood", found=f"a law with {len(parts)} parameters")
    mean, spread = (_exact(part) for part in parts)
    if re.fullmatch(r"(?:sigma|std)\w*", spread):
        raise CannotSolve("unsettled", convention=f"whether {spread} is the variance or the standard deviation")
    ones = re.fullmatch(r"(.*?)\s*(?:\\mathbf\s*\{?1\}?|\b1_\{?\w+\}?|\*\s*ones\(\w*\)|(?<=[a-z])\s+1)", mean)
    if ones:
        return Law(ones[1].strip() or "1", spread, True)
    named = re.fullmatch(r"[A-Za-z]\w*", mean)
    if not named:
        return Law(mean, spread, True)
    if mean in vector_means:
        return Law(mean, spread, True, "vector")
    matrix = re.search(r"(?<![A-Za-z])(?:I|Sigma|diag|[A-Z])", spread)
    return Law(mean, spread, True, "open" if matrix and not each else "scalar")


def _stated(text: str, each: bool, vector_means: frozenset[str]) -> Law:
    """A law given by its moments alone: "mean 0 and variance 1", "zero mean, unit variance"."""
    value = r"(?:is\s+|of\s+|=\s*|\s)*\$?((?:-?\d[\d./]*|[A-Za-z]\w*)(?:\s*\^\s*\{?\d\}?)?)\$?"
    text = re.sub(r"\bzero[- ]mean\b|\bmean[- ]zero\b|\bcent(?:red|ered)\b", "mean 0", text, flags=re.IGNORECASE)
    text = re.sub(r"\bunit[- ]variance\b", "variance 1", text, flags=re.IGNORECASE)
    text = re.sub(r"\bzero\b", "0", re.sub(r"\b(?:one|unit)\b", "1", text))
    mean = re.search(rf"\bmeans?\b{value}", text, re.IGNORECASE)
    variance = re.search(rf"\bvariances?\b{value}", text, re.IGNORECASE)
    deviation = re.search(rf"\b(?:standard deviations?|std)\b{value}", text, re.IGNORECASE)
    if mean is None or (variance is None and deviation is None):
        raise CannotSolve("not_understood", found=f"the law {text}")
    spread = variance[1] if variance else f"({deviation[1]})^2" if deviation else ""
    kind = "vector" if mean[1] in vector_means and not each else "scalar"
    normal = bool(re.search(r"\b(?:normal|gaussian)", text, re.IGNORECASE))
    return Law(_exact(mean[1]), _exact(spread), normal, kind)


def _ascii(text: str) -> str:
    for sign, plain in _GREEK.items():
        text = text.replace(sign, plain)
    return re.sub(r"\\(?:mathcal|mathbf|boldsymbol|mathrm|left|right|,|;)\s*", "", text).replace("\\", "")


def _parts(text: str) -> list[str]:
    """The arguments of a call, split at commas outside brackets."""
    depth, start, found = 0, 0, []
    for place, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign in ",;" and depth == 0:
            found.append(text[start:place].strip())
            start = place + 1
    return [*found, text[start:].strip()]


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


def setting(exercise: Exercise, asked: Asked) -> Setting:
    """The laws of an exercise as types, and the object as an expression."""
    laws = {
        name: law
        for given in exercise.givens
        if given.law or given.role == "law"
        for name, law in _named(exercise, given)
    }
    if not laws:
        raise CannotSolve("missing", needs="the law of the vectors")
    target = _ascii(asked.object.strip())
    target = _WORDS.get(target.lower().removeprefix("the "), target)
    names = list(laws)
    if not target:
        target = "q^T k" if len(names) < 2 or {"q", "k"} <= set(names) else f"{names[0]}^T {names[1]}"
    target = re.sub(r"\|\|\s*(\w+)\s*\|\|(?:_2)?|‖\s*(\w+)\s*‖(?:_2)?", lambda m: rf"\|{m[1] or m[2]}\|", target)
    target = re.sub(r"<\s*(\w+)\s*,\s*(\w+)\s*>|(\w+)\s*(?:\.|@|\\cdot|⋅)\s*(?=[a-z]\b)(\w+)",
                    lambda m: f"{m[1] or m[3]}^T {m[2] or m[4]}", target)  # fmt: skip
    used = re.findall(r"[A-Za-z]+(?:_[A-Za-z0-9]+)?", re.sub(r"\^\{?T\}?|sqrt|\\\w+", " ", target))
    vectors = list(dict.fromkeys(re.sub(r"_[ij\d]$", "", name) for name in used))
    if len(laws) == 1 and not set(laws) & set(vectors):
        shared = next(iter(laws.values()))
        laws = {name: shared for name in vectors if name in ("q", "k", "w", "x", "a", "b", "u", "v")}
    (width, size), values = _width(exercise), _values(exercise)
    fixed = {
        given.symbol
        for given in exercise.givens
        if given.law is None and given.role in ("vector", "other", "query", "key")
    }
    types: dict[str, str] = {width: "natural"}
    for law in laws.values():
        for name in re.findall(r"[A-Za-z]\w*", f"{law.mean} {law.spread}"):
            if name in values or name in ("I", "diag", "sqrt") or re.fullmatch(r"I_\w+", name):
                continue
            kind = "positive" if re.match(r"sigma|tau|s$", name) else "scalar"
            kind = f"matrix[{width},{width}]" if name[0].isupper() else kind
            kind = f"vector[{width}]" if re.search(rf"diag\({name}\)", law.spread) else kind
            types[name] = kind
    for name in vectors:
        if name not in laws and name not in types and name not in values:
            if name in fixed:
                types[name] = f"vector[{width}]"
            elif name not in ("s", "c", "d"):
                raise CannotSolve("missing", needs=f"the law of {name}")
    if re.search(r"\bs\b", target) and "s" not in types and "s" not in values:
        types["s"] = "positive"
    kinds = {law.mean_kind for law in laws.values()}
    readings = ("vector", "scalar") if "open" in kinds else ("vector",) if "vector" in kinds else ("scalar",)
    found = []
    laws = {
        name: replace(law, mean=_put(law.mean, values), spread=_put(law.spread, values)) for name, law in laws.items()
    }
    for reading in readings:
        names = dict(types)
        for name, law in laws.items():
            read = reading if law.mean_kind == "open" else law.mean_kind
            if read == "vector" and re.fullmatch(r"[A-Za-z]\w*", law.mean):
                names[law.mean] = f"vector[{width}]"
            names[name] = law.declared(width, read)
        found.append(names)
    same = len(found) == 2 and found[0] == found[1]
    numeric = all(re.fullmatch(_NUMBER, law.mean) for law in laws.values())
    keep = 1 if same or numeric else len(found)
    target = _put(target, {name: value for name, value in values.items() if name not in {*laws, width}})
    return Setting(target, tuple(found[:keep]), laws, width, size)


def _named(exercise: Exercise, given: Given) -> list[tuple[str, Law]]:
    text = given.law or str(given.value or "")
    vector_means = frozenset(each.symbol for each in exercise.givens if each.shape is not None and len(each.shape) == 1)
    law = read_law(text, vector_means)
    if given.shape == () and law.mean_kind == "open":
        law = replace(law, mean_kind="scalar")
    for each in exercise.givens:  # a mean that is declared to be one number
        if each.symbol == law.mean and each.shape == ():
            law = replace(law, mean_kind="scalar")
    names = re.findall(r"[A-Za-z]\w*", given.of or given.symbol or "")
    names = [re.sub(r"_[ij]$", "", name) for name in names if name not in ("and", "iid")]
    return [(name, law) for name in names or ["components"]]


def _width(exercise: Exercise) -> tuple[str, str]:
    """The letter of the width, and its number, or the letter again where it has none."""
    shapes = [given.shape for given in exercise.givens if given.law or given.role == "law"]
    width = next((str(shape[0]) for shape in shapes if shape and len(shape) == 1), "")
    sizes = exercise.of_role("head_width", "width")
    letter = width if width and not width.isdigit() else next((size.symbol for size in sizes if size.symbol), "d")
    if not width.isdigit():
        known = [size.value for size in sizes if size.value is not None and (not width or size.symbol == width)]
        width = str(known[0]) if known else letter
    heads = exercise.size("heads")
    if exercise.given("head_width") is None and width.isdigit() and isinstance(heads, int) and not any(shapes):
        width = str(int(width) // heads) if heads and int(width) % heads == 0 else width
    return letter, width


def _values(exercise: Exercise) -> dict[str, str]:
    """Names with a number: "sigma = 1" among the givens or the definitions."""
    found = {}
    for given in exercise.givens:
        plain = isinstance(given.value, int | float | str) and not isinstance(given.value, bool)
        if plain and given.symbol and given.law is None and given.role != "law":
            value = _exact(_ascii(str(given.value)))
            if number_in(value) is not None:
                found[_ascii(given.symbol)] = value
    for definition in exercise.definitions:
        if named := re.fullmatch(rf"\s*(\w+)\s*=\s*({_NUMBER})\s*", _ascii(definition.text)):
            found[named[1]] = _exact(named[2])
    return found


def _put(text: str, values: dict[str, str]) -> str:
    """A text with numbers for names; a formula of numbers is worked out."""
    put = re.sub(r"[A-Za-z]\w*", lambda m: f"({values[m[0]]})" if m[0] in values else m[0], text)
    return put if put == text else _exact(put)


def moment(at: Setting, which: str, symbols: dict[str, str]) -> tuple[str, Derivation]:
    """The mean or the variance of the object under one reading, with its derivation."""
    text, derivation = _in_letters(at, which, symbols)
    if at.size == at.width:
        return text, derivation
    put = {**derivation.symbols, at.width: f"natural = {at.size}"}
    short = simplified(text, put)
    return short, derivation + Derivation.of(chain(f"with {at.width} = {at.size}", text, short), symbols=put)


def _in_letters(at: Setting, which: str, symbols: dict[str, str]) -> tuple[str, Derivation]:
    squared = re.fullmatch(r"\\\|(\w+)\\\|\^\{?2\}?|(\w+)\^T\s*\2", at.target)
    single = re.fullmatch(r"([a-z])_([ij\d])\s*\*?\s*([a-z])_\2", at.target)
    if squared:
        return _norm(at, which, symbols, squared[1] or squared[2])
    if single:
        return _component(at, which, symbols, single[1], single[3], single[2])
    try:
        found = moments(at.target, symbols)
    except (MathsError, OptionError) as error:
        raise CannotSolve("misfit", what=at.target, why=str(error).splitlines()[0]) from None
    text = found.mean if which == "mean" else found.variance
    short = simplified(text, symbols, [at.width])
    begins = r"\operatorname{Var}" if which == "variance" else r"\mathbb{E}"
    starts = [place for place, step in enumerate(found.steps) if step.relation == ""]
    start = next(place for place in starts if found.steps[place].text.startswith(begins))
    shown = [Step(found.steps[start].text, "", "", f"the {which} of {at.target}")]
    for step in found.steps[start + 1 :]:
        if step.relation == "":
            break
        shown.append(Step(step.text, step.reason))
    if short != text:
        shown.append(Step(short, "simplified"))
    return short, Derivation(tuple(shown), symbols)


def _norm(at: Setting, which: str, symbols: dict[str, str], name: str) -> tuple[str, Derivation]:
    """Mean and variance of the squared length of one vector."""
    if name not in at.laws:
        raise CannotSolve("missing", needs=f"the law of {name}")
    law, width = at.laws[name], at.width
    scalar = _multiple(law.spread)
    vector = symbols.get(law.mean, "").startswith("vector")
    if scalar is None and not vector and law.mean != "0":
        raise CannotSolve("not_understood", found=f"the covariance {law.spread} with a mean for all components")
    square = f"({law.mean})^T ({law.mean})" if vector else f"{width} ({law.mean})^2"
    asked = rf"E[\|{name}\|^2]" if which == "mean" else rf"\operatorname{{Var}}(\|{name}\|^2)"
    if which == "mean":
        text = f"{width} ({scalar}) + {square}" if scalar else rf"\operatorname{{tr}}({law.spread}) + {square}"
    elif law.normal:
        text = f"2 {width} ({scalar})^2 + 4 ({scalar}) {square}"
        if not scalar:
            form = f"4 ({law.mean})^T {law.spread} ({law.mean})" if vector else "0"
            text = rf"2 \operatorname{{tr}}({law.spread} {law.spread}) + {form}"
    elif law.fourth:
        asked, text = "", f"{width} ({law.fourth})"
    else:
        raise CannotSolve("missing", needs="the fourth moments of the components")
    short = simplified(text, symbols, [width])
    texts = dict.fromkeys(filter(None, (asked, text, short)))
    return short, Derivation.of(chain(f"the {which} of the squared length", *texts), symbols=symbols)


def _multiple(spread: str) -> str | None:
    """c, of a covariance c I or of a variance c; None for any other matrix."""
    bare = re.sub(r"\s*(?<![A-Za-z])I(?:_\{?\w+\}?)?$", "", spread).strip() or "1"
    return None if re.search(r"(?<![A-Za-z])(?:[A-Z]|diag)", bare) else bare


def _component(
    at: Setting, which: str, symbols: dict[str, str], one: str, other: str, index: str
) -> tuple[str, Derivation]:
    """Mean and variance of the product of two components."""
    if one == other:
        raise CannotSolve("missing", needs="two independent vectors")
    types = symbols | ({index: f"index[{at.width}]"} if index.isalpha() else {})
    texts = []
    for name in (one, other):
        if name not in at.laws:
            raise CannotSolve("missing", needs=f"the law of {name}")
        law = at.laws[name]
        mean = f"{law.mean}_{index}" if types.get(law.mean, "").startswith("vector") else law.mean
        if (spread := _multiple(law.spread)) is None:
            raise CannotSolve("not_understood", found=f"one component under the covariance {law.spread}")
        texts.append((f"({mean})", f"({spread})"))
    (m, s), (n, u) = texts
    text = f"{m} {n}" if which == "mean" else f"{s} {u} + {m}^2 {u} + {n}^2 {s}"
    short = simplified(text, types, [at.width])
    asked = f"{'E' if which == 'mean' else 'Var'}({one}_{index} {other}_{index})"
    return short, Derivation.of(chain(f"the {which} of one term", asked, text, short), symbols=types)


def _value(text: str) -> Fraction | float | None:
    root = re.fullmatch(r"sqrt\((.*)\)", text)
    inside = number_in(root[1]) if root else None
    return number_in(text) if inside is None else float(inside) ** 0.5


Result = tuple[str, dict[str, str], Derivation]


def _answer(exercise: Exercise, asked: Asked, which: str) -> Answer:
    at = setting(exercise, asked)
    results: list[Result] = []
    for symbols in at.symbols:
        text, derivation = moment(at, which, symbols)
        results.append((text, {**derivation.symbols, **symbols}, derivation))
    return _chosen(results)


def _chosen(results: list[Result]) -> Answer:
    """The answer under the usual reading of the mean, with the other one named."""
    text, symbols, derivation = results[0]
    also: tuple[Also, ...] = ()
    assumed: tuple[Finding, ...] = ()
    if len(results) == 2 and results[1][0] != text:
        also = (Also(results[1][0], results[1][0], "one mean for all components", results[1][1]),)
        reading = {"convention": "whether the mean is a vector or one number", "value": "a vector"}
        assumed = (Finding("assumed", reading),)
    value = _value(text)
    form = "formula" if value is None else "number"
    value = text if value is None else value
    return Answer(text, value, form, symbols=symbols, also=also, assumed=assumed, derivation=derivation)


@solver("mean")
def mean(exercise: Exercise, asked: Asked) -> Answer:
    """E of the object."""
    return _answer(exercise, asked, "mean")


@solver("variance")
def variance(exercise: Exercise, asked: Asked) -> Answer:
    """Var of the object."""
    return _answer(exercise, asked, "variance")


@solver("scale_for_variance")
def scale_for_variance(exercise: Exercise, asked: Asked) -> Answer:
    """The positive s for which object / s has the target variance; with object "factor", what to multiply by."""
    factor = asked.object.strip().lower() in ("factor", "scale factor", "scaling factor")
    target = exercise.given("target_variance")
    wanted = "1" if target is None or target.value is None else _exact(_ascii(str(target.value)))
    bare = re.sub(r"\s*/\s*s\b|^\s*s\s+", "", asked.object) if not factor else ""
    bare = "" if re.fullmatch(r"(?i)\s*(?:divisor|s|scale)?\s*", bare) else bare
    at = setting(exercise, asked.model_copy(update={"object": bare}))
    results: list[Result] = []
    for symbols in at.symbols:
        spread, derivation = moment(at, "variance", symbols)
        quotient = simplified(f"({spread})/({wanted})", symbols, [at.width]) if wanted != "1" else spread
        if quotient == "0":
            raise CannotSolve("misfit", what="the variance", why="it is 0, and no divisor changes it")
        text = root_text(f"1/({quotient})" if factor else quotient, symbols)
        text = f"1/sqrt({quotient})" if factor and text.startswith("sqrt(1/") else text
        types = {**symbols, "s": f"positive = {f'1/({text})' if factor else text}"}
        solved = chain("the positive s with this variance", f"({spread})/s^2", wanted,
                       reason="a divisor leaves a variance squared", symbols=types)  # fmt: skip
        results.append((text, symbols, derivation + Derivation(solved, types)))
    return _chosen(results)
