"""Identities proved, kernels and their feature maps, attention rewritten with them, and the softmax Jacobian's norm."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations_with_replacement
from math import comb, factorial, isqrt, prod
from typing import Any

from ...derivation import Derivation, Step, chain
from ...errors import MathsError, OptionError
from ...maths import compare, parse
from ..findings import CannotSolve, Finding
from ..record import Asked, Exercise, shape_of
from ..solving import Also, Answer, solver

MOST_FEATURES = 60
_LAYER = {
    "x": "vector[d]",
    "gamma": "nonnegative",
    "beta": "scalar",
    "mu": r"scalar = \frac{1}{d} \mathbf{1}^\top x",
    "sigma": r"scalar = \sqrt{\frac{1}{d} \|x - \mu \mathbf{1}\|^2}",
    "z": r"vector[d] = (x - \mu \mathbf{1}) / \sigma",
    "y": r"vector[d] = \gamma z + \beta \mathbf{1}",
}
_RMS = {
    "x": "vector[d]",
    "gamma": "nonnegative",
    "rho": r"scalar = \sqrt{\frac{1}{d} \|x\|^2}",
    "y": r"vector[d] = \gamma x / \rho",
}
_WORDS = {
    r"permutation|equivarian": r"softmax((P Q)(P K)^T) (P V) = P softmax(Q K^T) V",
    r"associativ|linear form": r"\phi_Q (\phi_K^T V) = (\phi_Q \phi_K^T) V",
    r"shift|translation|adding a constant|max(?:imum)? subtract": r"softmax(s + c 1_n) = softmax(s)",
    r"rows? (?:of the (?:attention )?weights? )?sums? to (?:1|one)": r"\sum_{j=1}^n a_j = 1",
}
# Expressions that may stand between two sides of a claim, by a name that has to be declared for them.
_BETWEEN = {
    "sigma": (
        r"\|\gamma z\|",
        r"\gamma \|z\|",
        r"\gamma \frac{\|x - \mu \mathbf{1}\|}{\sigma}",
        r"\|z\|^2",
        r"\frac{1}{\sigma^2} \|x - \mu \mathbf{1}\|^2",
    ),
    "rho": (r"\frac{\gamma}{\rho} \|x\|",),
    "P": (r"(P Q)(P K)^T", r"P softmax(Q K^T) P^T P V"),
}


def _sizes(exercise: Exercise) -> dict[str, str]:
    """Numbers or names for N, D, D_k and D_v: from matrices, from sizes, or as they are usually called."""
    found: dict[str, Any] = {}
    columns = exercise.convention("layout") == "columns"
    for role, names in (("tokens", ("N", "D")), ("query_weight", ("D", "D_k")), ("value_weight", ("D", "D_v")),
                        ("query", ("N", "D_k")), ("value", ("N", "D_v"))):  # fmt: skip
        given = exercise.given(role)
        shape = () if given is None else given.shape or shape_of(given.value)
        if len(shape) == 2:
            pair = shape[::-1] if columns and role in ("tokens", "query", "value") else shape
            for name, size in zip(names, pair, strict=True):
                found.setdefault(name, size)
    for name, role in (("N", "length"), ("D", "width"), ("D_k", "head_width"), ("D_v", "value_width")):
        size = exercise.size(role)
        if size is not None:
            found.setdefault(name, size)
    found.setdefault("N", "N")
    found.setdefault("D", "D")
    return {name: str(found.get(name, name)) for name in ("N", "D", "D_k", "D_v")}


def types(exercise: Exercise, claim: str, weights: bool = False) -> dict[str, str]:
    """The names of attention with their types: what is given, and what it defines; `weights` makes A a softmax."""
    if re.search(r"\\?(?:gamma|beta|rho)\b|γ|β", claim):
        return _with_size(dict(_RMS if exercise.structure.norm == "rms" or "rho" in claim else _LAYER), exercise)
    size = _sizes(exercise)
    n, d, dk, dv = size.values()
    found = {name: f"natural = {text}" if text.isdigit() else "natural" for name, text in size.items()}
    found |= {text: "natural" for text in size.values() if not text.isdigit()}
    columns = exercise.convention("layout") == "columns"
    projected = exercise.given("tokens") is not None or bool(re.search(r"\bx_|X\b|W_", claim))
    left = any(re.search(r"=\s*W_?\w?\s*\(?x", each.text) for each in exercise.definitions)
    if projected:
        found |= {"X": f"matrix[{d},{n}]" if columns else f"matrix[{n},{d}]"}
        found["x"] = f"matrix[{n},{d}] = {'X^T' if columns else 'X'}"
    for name, wide in (("q", dk), ("k", dk), ("v", dv)):
        big = name.upper()
        found[f"W_{big}"] = f"matrix[{wide},{d}]" if left else f"matrix[{d},{wide}]"
        if projected:
            found[name] = f"matrix[{n},{wide}] = x W_{big}{'^T' if left else ''}"
            found[big] = f"matrix[{wide},{n}] = {name}^T" if columns else f"matrix[{n},{wide}] = {name}"
        else:
            found[big] = f"matrix[{wide},{n}]" if columns else f"matrix[{n},{wide}]"
            found[name] = f"matrix[{n},{wide}] = {big}{'^T' if columns else ''}"
    scale = f" / \\sqrt{{{dk}}}" if exercise.convention("scale") == "sqrt" else ""
    found["z"] = f"matrix[{n},{n}] = (q k^T){scale}"
    found["A"] = f"matrix[{n},{n}]" + (" = softmax(z)" if weights else "")
    found |= {"a": f"matrix[{n},{n}] = A", "i": f"index[{n}]", "j": f"index[{n}]", "l": f"index[{dk}]"}
    found |= {"phi_Q": f"matrix[{n},C]", "phi_K": f"matrix[{n},C]", "C": "natural", "c": "scalar", "lambda": "positive"}
    if re.search(r"\bs\b", claim):
        found |= {"s": "vector[n]", "n": "natural", "a": "vector[n] = softmax(s)"}
    if re.search(r"\bP\b", claim):
        # A permutation that moves every token; the same proof holds for any other.
        three = {"P": "matrix[3,3] = [[0, 1, 0], [0, 0, 1], [1, 0, 0]]", "Q": f"matrix[3,{dk}]", "K": f"matrix[3,{dk}]"}
        return three | {"V": f"matrix[3,{dv}]", dk: "natural", dv: "natural"}
    for given in exercise.givens:
        if given.symbol and given.shape and given.symbol not in found and len(given.shape) <= 2:
            found[given.symbol] = f"{('vector', 'matrix')[len(given.shape) - 1]}[{','.join(map(str, given.shape))}]"
    for definition in exercise.definitions:
        name, sign, text = (part.strip() for part in definition.text.partition("="))
        if sign and re.fullmatch(r"[A-Za-z]+(?:_[A-Z])?", name) and "=" not in found.get(name, ""):
            found[name] = f"{found.get(name, 'scalar')} = {text}"
    return found


def _with_size(found: dict[str, str], exercise: Exercise) -> dict[str, str]:
    width = exercise.size("width")
    return found | {"d": f"natural = {width}" if isinstance(width, int) else "natural"}


def sides(claim: str) -> list[str]:
    """The sides of an equation; what stands in brackets or below a sum is no relation.

    >>> sides(r"(A V)_i = \\sum_{j=1}^N a_{ij} v_j")
    ['(A V)_i', '\\\\sum_{j=1}^N a_{ij} v_j']
    """
    depth, start, found = 0, 0, []
    for place, sign in enumerate(claim):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "=" and depth == 0:
            found.append(claim[start:place].strip())
            start = place + 1
    return [*found, claim[start:].strip()]


@solver("identity")
def identity(exercise: Exercise, asked: Asked) -> Answer:
    """A claim proved by a chain, or refuted by a counterexample."""
    claim = asked.object.strip().strip("$")
    if "=" not in claim:
        claim = next((equation for words, equation in _WORDS.items() if re.search(words, claim.lower())), claim)
    claim = re.sub(r"(\\beta|\\mu|β|μ)\s*1\b(?!_)", r"\1 \\mathbf{1}", claim)
    parts = sides(claim)
    if len(parts) < 2:
        raise CannotSolve("not_understood", found=asked.object)
    verdicts: list[Any] = []
    for weights in (False, True):
        symbols = types(exercise, claim, weights)
        try:
            verdicts = [compare(parts[0], part, symbols) for part in parts[1:]]
        except (MathsError, OptionError) as error:
            raise CannotSolve("misfit", what=claim, why=str(error).splitlines()[0]) from None
        if all(verdict.kind == "equal" and verdict.evidence == "proved" for verdict in verdicts):
            texts = list(dict.fromkeys([parts[0], *_steps_between(parts[0], parts[-1], symbols), *parts[1:]]))
            steps = chain("the claim", *texts, reason="each link by algebra", symbols=symbols)
            return Answer(claim, True, "proof", symbols=symbols, derivation=Derivation(steps, symbols))
    refuted = next((verdict for verdict in verdicts if verdict.kind == "different" and verdict.counterexample), None)
    if refuted is None:
        raise CannotSolve("not_proved", claim=claim)
    text = f"false: {refuted.reason}"
    return Answer(text, False, "proof", derivation=Derivation.of(chain("a counterexample", reason=refuted.reason)))


def _steps_between(first: str, last: str, symbols: Mapping[str, str]) -> list[str]:
    """Expressions that are proved to be equal to both sides: products written out, definitions put in."""
    found = [text for name, texts in _BETWEEN.items() if name in symbols for text in texts]
    entry = re.match(
        r"\(\s*([A-Z]\w*(?:\^T)?)\s+([A-Z]\w*(?:\^T)?)\s*(/.*?)?\)_\{?(\\cdot\s*)?([a-z]),?\s*([a-z])?\}?$", first
    )
    if entry:
        left, right, below = entry[1], entry[2], entry[3] or ""
        inner = _inner(left, symbols)
        if entry[6] is not None:
            found.insert(
                0, rf"(\sum_{{l=1}}^{{{inner}}} ({left})_{{{entry[5]} l}} ({right})_{{l {entry[6]}}}) {below}".strip()
            )
        elif not entry[4]:
            found.insert(0, rf"\sum_{{j=1}}^{{{inner}}} ({left})_{{{entry[5]} j}} ({right})_j")
    unfolded = first
    for name, kind in symbols.items():
        if " = " in kind and name in "QKVqkv" and re.search(rf"(?<![A-Za-z\\_]){name}(?![A-Za-z])", unfolded):
            unfolded = re.sub(rf"(?<![A-Za-z\\_]){name}(?![A-Za-z])", f"({kind.partition(' = ')[2]})", unfolded)
    found += [unfolded] if unfolded != first else []
    kept = []
    for text in found:
        if text not in (first, last) and compare(first, text, symbols).kind == "equal":
            kept.append(text)
    return kept[:3]


def _inner(text: str, symbols: Mapping[str, str]) -> str:
    try:
        return str(parse(text, symbols).shape[-1])
    except (MathsError, IndexError):
        return "N"


@solver("matrix_form")
def matrix_form(exercise: Exercise, asked: Asked) -> Answer:
    """Queries, keys and values, scores, weights or the output as products of matrices, with their sizes."""
    size = _sizes(exercise)
    columns = exercise.convention("layout") == "columns"
    left = any(re.search(r"=\s*W_?\w?\s*\(?x", each.text) for each in exercise.definitions)
    tokens = exercise.given("tokens")
    x = tokens.symbol if tokens is not None and tokens.symbol else "X"
    found, names = {}, {}
    for name, role, wide in (("Q", "query_weight", "D_k"), ("K", "key_weight", "D_k"), ("V", "value_weight", "D_v")):
        given = exercise.given(role)
        weight = given.symbol if given is not None and given.symbol else f"W_{name}"
        names[weight] = f"matrix[{size[wide]},{size['D']}]" if left else f"matrix[{size['D']},{size[wide]}]"
        turned = weight if left == columns else f"{weight}^T"
        shape = (size[wide], size["N"]) if columns else (size["N"], size[wide])
        found[name] = (f"{turned} {x}" if columns else f"{x} {turned}", shape)
    symbols = {x: f"matrix[{size['D']},{size['N']}]" if columns else f"matrix[{size['N']},{size['D']}]", **names}
    symbols |= {text: "natural" for text in size.values() if not text.isdigit()}
    scale = f" / sqrt({size['D_k']})" if exercise.convention("scale") == "sqrt" else ""
    scores = f"Q^T K{scale}" if columns else f"Q K^T{scale}"
    wanted = asked.object.strip() or "Q, K, V"
    if re.search(r"score|output|weight|attention", wanted.lower()):
        types_of = {name: f"matrix[{shape[0]},{shape[1]}]" for name, (_, shape) in found.items()}
        if exercise.convention("scale") not in ("sqrt", "none") and not exercise.said("scale"):
            raise CannotSolve("unsettled", convention="whether scores are divided by the root of the width")
        text = scores if re.search(r"score", wanted.lower()) else f"softmax({scores})"
        if re.search(r"output|attention$", wanted.lower()):
            text = f"V softmax({scores})^T" if columns else f"softmax({scores}) V"
        types_of |= {name: "natural" for name in size.values() if not name.isdigit()}
        steps = Derivation.of(chain(wanted, text), symbols=types_of)
        return Answer(text, text, "formula", symbols=types_of, derivation=steps)
    chosen = {name: each for name, each in found.items() if re.search(rf"\b{name}\b", wanted)}
    if not chosen:
        raise CannotSolve("not_understood", found=wanted)
    items = {}
    for name, (text, shape) in chosen.items():
        note = Finding("note", {"text": f"{name} is {shape[0]} by {shape[1]}"})
        steps = chain(f"{name}, {shape[0]} by {shape[1]}", text, symbols=symbols)
        items[name] = Answer(
            text, text, "formula", symbols=symbols, assumed=(note,), derivation=Derivation(steps, symbols)
        )
    if len(items) == 1:
        return next(iter(items.values()))
    text = "; ".join(f"{name} = {item.text}" for name, item in items.items())
    notes = tuple(note for item in items.values() for note in item.assumed)
    steps = sum((item.derivation for item in items.values()), Derivation())
    return Answer(text, text, "formula", symbols=symbols, items=items, assumed=notes, derivation=steps)


# --- kernels


def _vectors(exercise: Exercise) -> tuple[str, str, str]:
    """The names of a query, a key and their width."""
    names = []
    for role, usual in (("query", "q"), ("key", "k")):
        given = exercise.given(role)
        names.append(given.symbol if given is not None and given.symbol and given.symbol.islower() else usual)
    shaped = exercise.given("query")
    width = exercise.size("head_width") or exercise.size("width")
    width = width or (shaped.shape[-1] if shaped is not None and shaped.shape else None) or "D"
    return names[0], names[1], str(width)


def _polynomial(exercise: Exercise, words: str) -> tuple[int | str, str, bool]:
    """Degree and constant of a polynomial kernel, and whether the constant was given."""
    named = {"quadratic": 2, "cubic": 3, "linear": 1, "dot product": 1}
    degree = exercise.size("degree") or next((value for name, value in named.items() if name in words), None)
    if degree is None and exercise.structure.similarity == "linear":
        degree = 1
    if degree is None:
        raise CannotSolve("missing", needs="the degree of the kernel")
    offset = exercise.given("offset")
    if offset is None:
        return degree, "0" if degree == 1 else "1", degree == 1
    return degree, str(offset.value if offset.value is not None else offset.symbol), True


def _kernel_text(exercise: Exercise, asked: Asked) -> tuple[str, tuple[Also, ...], tuple[Finding, ...]]:
    q, k, width = _vectors(exercise)
    words = f"{asked.object} {exercise.structure.similarity}".lower()
    symbols = _kernel_symbols(exercise)
    if re.search(r"gauss|rbf", words):
        return rf"\exp(-\|{q} - {k}\|^2/2)", (), ()
    if re.search(r"exponential|softmax", words) and not re.search(r"polynomial|quadratic|cubic", words):
        scale = exercise.convention("scale")
        scaled = f"exp({q}^T {k} / sqrt({width}))"
        if scale == "none" or (scale is None and "exponential" in words):
            return (
                f"exp({q}^T {k})",
                () if scale else (Also(scaled, scaled, "scores divided by the root of the width", symbols),),
                (),
            )
        return scaled, (), ()
    degree, constant, given = _polynomial(exercise, words)

    def text(added: str) -> str:
        inside = f"{q}^T {k}" if added == "0" else f"({q}^T {k} + {added})"
        return inside if degree == 1 else f"{inside}^{degree}" if added != "0" else f"({inside})^{degree}"

    if given:
        return text(constant), (), ()
    return text(constant), (Also(text("0"), text("0"), "no constant", symbols),), (
        Finding("assumed", {"convention": "the constant of the kernel", "value": "1"}),)  # fmt: skip


def _kernel_symbols(exercise: Exercise) -> dict[str, str]:
    q, k, width = _vectors(exercise)
    found = {q: f"vector[{width}]", k: f"vector[{width}]"}
    offset, degree = exercise.given("offset"), exercise.given("degree")
    if offset is not None and offset.value is None and offset.symbol:
        found[offset.symbol] = "nonnegative"
    if degree is not None and degree.value is None and degree.symbol:
        found[degree.symbol] = "natural"
    return found if width.isdigit() else {**found, width: "natural"}


@solver("kernel")
def kernel(exercise: Exercise, asked: Asked) -> Answer:
    """sim(q, k) of a named kernel."""
    text, also, assumed = _kernel_text(exercise, asked)
    symbols = _kernel_symbols(exercise)
    return Answer(text, text, "formula", symbols=symbols, also=also, assumed=assumed,
                  derivation=Derivation.of(chain("the kernel", text), symbols=symbols))  # fmt: skip


@solver("feature_map")
def feature_map(exercise: Exercise, asked: Asked) -> Answer:
    """A map phi with phi(q)^T phi(k) = sim(q, k), every monomial once; with object "count", how many there are."""
    q, k, width = _vectors(exercise)
    words = f"{asked.object} {exercise.structure.similarity}".lower()
    if re.search(r"exponential|softmax|random|gauss|rbf", words) and "polynomial" not in words:
        return _random_features(q, k, width, words)
    degree, constant, given = _polynomial(exercise, words)
    if not isinstance(degree, int) or degree > 4:
        raise CannotSolve("missing", needs="a degree of at most 4")
    also: tuple[Also, ...] = ()
    if "count" in words or "number" in words or "dimension" in words:
        text = _count_text(width, degree, constant != "0")
        kinds = {} if width.isdigit() else {width: "natural"}
        value: Any = text
        if width.isdigit():
            value = comb(int(width) + degree, degree) if constant != "0" else comb(int(width) + degree - 1, degree)
        plain = _summed_kinds(width, degree, constant != "0")
        steps = chain(
            "monomials of each degree, added", *dict.fromkeys((plain, text if not width.isdigit() else str(value)))
        )
        if not given:
            also = (Also(_count_text(width, degree, False), None, "no constant", kinds),)
        return Answer(str(value), value, "number" if width.isdigit() else "formula", symbols=kinds, also=also,
                      derivation=Derivation(steps, kinds))  # fmt: skip
    symbols = _kernel_symbols(exercise)
    kernel_text, _, assumed = _kernel_text(exercise, asked)
    if not width.isdigit():
        return _general_map(q, k, width, degree, constant, kernel_text, symbols, assumed)
    features = _monomials(int(width), degree, constant)
    if len(features) > MOST_FEATURES:
        raise CannotSolve("too_large", what="the feature map", size=f"{len(features)} features", most=MOST_FEATURES)
    text = f"({', '.join(_monomial(q, each) for each in features)})"
    other = f"({', '.join(_monomial(k, each) for each in features)})"
    steps = chain("the inner product of the features", f"({text})^T ({other})", kernel_text, symbols=symbols)
    return Answer(text, text, "vector", symbols=symbols, assumed=assumed, derivation=Derivation(steps, symbols))


Feature = tuple[
    tuple[int, ...], int, str
]  # the components that are multiplied, a number under the root, and a constant's power


def _monomials(width: int, degree: int, constant: str) -> list[Feature]:
    """Each monomial with the square of its coefficient, from the multinomial theorem."""
    found = []
    for total in range(degree, -1 if constant != "0" else degree - 1, -1):
        spread = degree - total
        kinds = list(combinations_with_replacement(range(1, width + 1), total))
        for parts in sorted(kinds, key=lambda each: len(set(each))):
            ways = factorial(degree) // (factorial(spread) * prod(factorial(parts.count(each)) for each in set(parts)))
            power = "" if constant in ("0", "1") or not spread else constant if spread == 1 else f"{constant}^{spread}"
            found.append((parts, ways, power))
    return found


def _monomial(name: str, feature: Feature) -> str:
    parts, ways, constant = feature
    if constant.replace("^", "").isdigit():
        base, _, power = constant.partition("^")
        ways, constant = ways * int(base) ** int(power or 1), ""
    root = isqrt(ways)
    inside = f"{ways} {constant}" if ways > 1 else constant
    numbers = f"sqrt({inside})" if constant or root * root != ways else str(root) if root > 1 else ""
    powers = [
        f"{name}_{each}" + (f"^{parts.count(each)}" if parts.count(each) > 1 else "") for each in dict.fromkeys(parts)
    ]
    return " ".join(filter(None, [numbers, *powers])) or "1"


def _count_text(width: str, degree: int, constant: bool) -> str:
    first = 1 if constant else 0
    factors = [width if not shift else f"({width} + {shift})" for shift in range(first, first + degree)]
    return f"{' '.join(factors)}/{factorial(degree)}" if degree > 1 else factors[0].strip("()")


def _summed_kinds(width: str, degree: int, constant: bool) -> str:
    if not constant:
        return _count_text(width, degree, False)
    return " + ".join([*(_count_text(width, each, False) for each in range(degree, 0, -1)), "1"])


def _general_map(
    q: str,
    k: str,
    width: str,
    degree: int,
    constant: str,
    kernel_text: str,
    symbols: dict[str, str],
    assumed: tuple[Finding, ...],
) -> Answer:
    """The map for any width, with dots; the proof is a sum over the kinds of features."""
    if degree > 2:
        raise CannotSolve("missing", needs="a width that is a number, for a degree above 2")
    squares = rf"\sum_{{i=1}}^{{{width}}} {q}_i^2 {k}_i^2 + 2 \sum_{{i<j}} {q}_i {q}_j {k}_i {k}_j"
    single = rf"\sum_{{i=1}}^{{{width}}} {q}_i {k}_i"
    if degree == 1:
        text = q if constant == "0" else rf"({q}_1, \dots, {q}_{{{width}}}, sqrt({constant}))"
        inner = single if constant == "0" else f"{single} + {constant}"
    else:
        last = rf"{q}_{{{width}}}"
        text = rf"({q}_1^2, \dots, {last}^2, sqrt(2) {q}_1 {q}_2, \dots, sqrt(2) {q}_{{{width}-1}} {last}"
        two = "2" if constant == "1" else f"2 {constant}"
        text += ")" if constant == "0" else rf", sqrt({two}) {q}_1, \dots, sqrt({two}) {q}_{{{width}}}, {constant})"
        inner = (
            squares if constant == "0" else f"{squares} + {two} {single} + {constant}{'' if constant == '1' else '^2'}"
        )
    steps = chain("the inner product of the features", inner, kernel_text, symbols=symbols)
    return Answer(text, text, "formula", symbols=symbols, assumed=assumed, derivation=Derivation(steps, symbols))


def _random_features(q: str, k: str, width: str, words: str) -> Answer:
    """Positive features, whose mean over w is the exponential kernel, or the Gaussian one."""
    symbols = {q: f"vector[{width}]", k: f"vector[{width}]", "w": f"random vector[{width}] ~ N(0, I)"}
    symbols |= {} if width.isdigit() else {width: "natural"}
    gauss = bool(re.search(r"gauss|rbf", words))
    less = "" if gauss else r"/2"
    text = rf"e^{{w^T {q} - \|{q}\|^2{less}}}"
    other = rf"e^{{w^T {k} - \|{k}\|^2{less}}}"
    target = rf"e^{{-\|{q} - {k}\|^2/2}}" if gauss else f"e^{{{q}^T {k}}}"
    steps = chain("the mean of the product of two features", f"E[{text} {other}]", target, symbols=symbols)
    note = Finding("note", {"text": "w is drawn from N(0, I); the mean over several draws is taken"})
    return Answer(text, text, "formula", symbols=symbols, assumed=(note,), derivation=Derivation(steps, symbols))


@solver("kernel_form")
def kernel_form(exercise: Exercise, asked: Asked) -> Answer:
    """Attention with a feature map: as a quotient of sums, with the sums over keys made once, or with states."""
    n = str(exercise.size("length") or "N")
    d, m = str(exercise.size("head_width") or exercise.size("width") or "D"), str(exercise.size("value_width") or "M")
    symbols = {"phi": f"map vector[{d}] -> vector[F]", "Q": f"matrix[{n},{d}]", "K": f"matrix[{n},{d}]",
               "V": f"matrix[{n},{m}]", "i": f"index[{n}]", "F": "natural"}  # fmt: skip
    symbols |= {name: "natural" for name in (n, d, m) if not name.isdigit()}
    words = f"{asked.object} {exercise.structure.mask}".lower()
    causal = "causal" in words
    end = "i" if causal else n
    total = rf"\sum_{{j=1}}^{{{end}}}"
    quotient = rf"\frac{{{total} (\phi(Q_i)^T \phi(K_j)) V_j}}{{{total} \phi(Q_i)^T \phi(K_j)}}"
    linear = rf"\frac{{({total} V_j \phi(K_j)^T) \phi(Q_i)}}{{\phi(Q_i)^T ({total} \phi(K_j))}}"
    asks_linear = re.search(r"linear|once|associativ|state|recurren", words)
    text, reason = (
        (linear, "the features of the query do not depend on j")
        if asks_linear
        else (quotient, "the kernel is the inner product of the features")
    )
    also = (Also(quotient if asks_linear else linear, None, "", symbols),)
    steps = chain("attention of query i", *dict.fromkeys((quotient, text)), reason=reason, symbols=symbols)
    if causal:
        steps += chain("states: S_i = S_{i-1} + phi(K_i) V_i^T and z_i = z_{i-1} + phi(K_i)")
    return Answer(text, text, "formula", symbols=symbols, also=also, derivation=Derivation(steps, symbols))


@solver("condition")
def condition(exercise: Exercise, asked: Asked) -> Answer:
    """When the output of attention with any similarity is finite."""
    text = (
        "sim(q, k) > 0 for all q and k; it is enough that sim is nonnegative and positive for at least one key of "
        "every query, so that the sum of similarities is positive"
    )
    reason = "the output is divided by the sum of similarities, which must not be 0"
    return Answer(text, text, "words", derivation=Derivation.of(chain("the denominator", reason=reason)))


@solver("ridge")
def ridge(exercise: Exercise, asked: Asked) -> Answer:
    """Ridge attention: values are fitted to keys with a penalty, and the fit is read at the query."""
    key, value = exercise.given("key"), exercise.given("value")
    query, penalty = exercise.given("query"), exercise.given("ridge")
    numbers = all(given is not None and given.value is not None for given in (key, value, query, penalty))
    strength = (
        "lambda" if penalty is None else str(penalty.value if penalty.value is not None else penalty.symbol or "lambda")
    )
    if numbers and key is not None and value is not None and query is not None:
        return _ridge_numbers(query.value, key.value, value.value, strength)
    n, d = (
        str(exercise.size("length") or exercise.size("keys_length") or "n"),
        str(exercise.size("head_width") or exercise.size("width") or "d"),
    )
    m = str(exercise.size("value_width") or "m")
    symbols = {"q": f"vector[{d}]", "K": f"matrix[{n},{d}]", "V": f"matrix[{n},{m}]", strength: "positive"}
    symbols |= {name: "natural" for name in (n, d, m) if not name.isdigit()}
    weights = rf"K (K^T K + {strength} I)^{{-1}} q"
    if re.search(r"weight", asked.object.lower()):
        text, dual = weights, rf"(K K^T + {strength} I)^{{-1}} K q"
    else:
        text, dual = rf"V^T K (K^T K + {strength} I)^{{-1}} q", rf"V^T (K K^T + {strength} I)^{{-1}} K q"
    reason = f"the minimum of the squared error plus {strength} times the squared weights"
    steps = chain("ridge attention at a query", text, dual, reason=reason, symbols=symbols)
    return Answer(
        text,
        text,
        "formula",
        symbols=symbols,
        also=(Also(dual, dual, "", symbols),),
        derivation=Derivation(steps, symbols),
    )


def _ridge_numbers(query: Any, key: Any, value: Any, strength: str) -> Answer:
    from ...maths.values.evaluate import evaluate

    def written(rows: Any) -> str:
        return f"[{', '.join(map(written, rows))}]" if isinstance(rows, list | tuple) else str(rows)

    q = query[0] if len(shape_of(query)) == 2 and len(query) == 1 else query
    values = [row if isinstance(row, list | tuple) else [row] for row in value]
    rows, column = written(key), f"({', '.join(map(str, q))})"
    formula = f"{written(values)}^T {rows} ({rows}^T {rows} + ({strength}) I)^{{-1}} {column}"
    try:
        found = evaluate(parse(formula, {}), {}, {})
    except (MathsError, OptionError, ArithmeticError, ValueError) as error:
        raise CannotSolve("misfit", what="ridge attention", why=str(error).splitlines()[0]) from None
    output: tuple[Any, ...] = tuple(found) if isinstance(found, tuple | list) else (found,)
    text = ", ".join(map(str, output))
    text = f"({text})" if len(output) > 1 else text
    return Answer(text, output, "vector", derivation=Derivation(chain("ridge attention", formula, text)))


@solver("jacobian_norm")
def jacobian_norm(exercise: Exercise, asked: Asked) -> Answer:
    """The squared Frobenius norm of the softmax Jacobian; with object "bound", its bound near a single weight of 1."""
    weights = exercise.given("weights")
    a = weights.symbol if weights is not None and weights.symbol else "a"
    n = str(exercise.size("keys_length") or exercise.size("length") or "n")
    symbols = {a: f"vector[{n}]", **({} if n.isdigit() else {n: "natural"})}
    if re.search(r"bound", asked.object.lower()):
        given = exercise.given("epsilon")
        small = given.symbol if given is not None and given.symbol else "epsilon"
        symbols = {name: kind for name, kind in symbols.items() if name != a} | {small: "positive"}
        text = f"{n}^2 {small}^2"
        sharper = f"4 {small}^2"
        sums = f"{small}^2 + ({n} - 1) {small}^2 + {n} ({n} - 1) {small}^2"
        reason = "each of the diagonal entries and of the products of two weights is below epsilon"
        steps = chain("the bounds of all entries, squared and added", sums, text, reason=reason, symbols=symbols)
        also = (Also(sharper, sharper, "the norm is at most the trace", symbols),)
        return Answer(text, text, "formula", symbols=symbols, also=also, derivation=Derivation(steps, symbols))
    start = rf"\|\operatorname{{diag}}({a}) - {a} {a}^T\|_F^2"
    text = rf"\sum_i {a}_i^2 (1 - {a}_i)^2 + 2 \sum_{{i<j}} {a}_i^2 {a}_j^2"
    short = rf"\|{a}\|^2 - 2 \sum_i {a}_i^3 + \|{a}\|^4"
    scores = exercise.given("scores")
    values = _weight_values(exercise)
    if values is not None:
        return _norm_at(values, a)
    if scores is not None and scores.value is not None:
        raise CannotSolve("missing", needs="weights that are rational numbers")
    reason = "entries on the diagonal once, each pair off it twice"
    steps = (
        *chain("the squares of all entries", start, text, reason=reason, symbols=symbols),
        Step(short, "multiplied out"),
    )
    return Answer(
        text,
        text,
        "formula",
        symbols=symbols,
        also=(Also(short, short, "", symbols),),
        derivation=Derivation(steps, symbols),
    )


def _weight_values(exercise: Exercise) -> list[Any] | None:
    """Weights as fractions: given, or the softmax of logarithms of whole numbers."""
    from fractions import Fraction

    weights, scores = exercise.given("weights"), exercise.given("scores")
    if weights is not None and isinstance(weights.value, list | tuple):
        return [Fraction(str(each)) for each in weights.value]
    if scores is None or not isinstance(scores.value, list | tuple):
        return None
    raised = []
    for score in scores.value:
        found = re.fullmatch(r"\s*(?:ln|log)\s*\(?\s*(\d+)(?:/(\d+))?\s*\)?\s*", str(score))
        if found is None and str(score).strip() not in ("0", "0.0"):
            return None
        raised.append(Fraction(int(found[1]), int(found[2] or 1)) if found else Fraction(1))
    return [each / sum(raised) for each in raised]


def _norm_at(values: list[Any], a: str) -> Answer:
    diagonal = [value**2 * (1 - value) ** 2 for value in values]
    pairs = [one**2 * other**2 for place, one in enumerate(values) for other in values[place + 1 :]]
    total = sum(diagonal) + 2 * sum(pairs)
    shown = " + ".join(f"({value})^2 (1 - {value})^2" for value in values)
    products = " + ".join(f"({one})^2 ({other})^2" for place, one in enumerate(values) for other in values[place + 1 :])
    steps = chain(
        "the squares of all entries",
        f"{shown} + 2 ({products})",
        str(total),
        reason="each pair off the diagonal stands twice",
    )
    return Answer(str(total), total, "number", derivation=Derivation(steps))
