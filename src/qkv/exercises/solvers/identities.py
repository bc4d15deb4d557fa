"""Identities proved, kernels and their feature maps, attention rewritten with them, and the softmax Jacobian's norm."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from itertools import combinations, combinations_with_replacement
from math import comb, factorial, prod
from string import Template
from typing import Any

from ...cost.polynomial import Polynomial
from ...derivation import Step, chain
from ...errors import MathsError, OptionError
from ...maths import compare, parse
from ..findings import CannotSolve, Finding
from ..record import Asked, Exercise, shape_of
from ..solving import Also, Answer, solver
from .formulas import assumed, formula, naturals, split, table

MOST_FEATURES = 60
_SIZES = {"N": "length", "D": "width", "D_k": "head_width", "D_v": "value_width"}
_MATRICES = {"tokens": "N D", "query_weight": "D D_k", "value_weight": "D D_v", "query": "N D_k", "value": "N D_v"}


def _sizes(exercise: Exercise) -> dict[str, str]:
    """Numbers or names for N, D, D_k and D_v: from matrices, from sizes, or as they are usually called."""
    found: dict[str, Any] = {}
    for role, names in _MATRICES.items():
        given = exercise.given(role)
        shape = () if given is None else given.shape or shape_of(given.value)
        if len(shape) == 2:
            turned = exercise.convention("layout") == "columns" and not role.endswith("weight")
            found = dict(zip(names.split(), shape[::-1] if turned else shape, strict=True)) | found
    sizes = {name: exercise.size(role) or name for name, role in _SIZES.items()}
    return {name: str(found.get(name, size)) for name, size in sizes.items()}


def _from_left(exercise: Exercise) -> bool:
    """Whether weights stand to the left of tokens: q = W x."""
    return any(re.search(r"=\s*W_?\w?\s*\(?x", each.text) for each in exercise.definitions)


def _matrix(rows: object, columns: object, turned: bool = False) -> str:
    return f"matrix[{columns},{rows}]" if turned else f"matrix[{rows},{columns}]"


def types(exercise: Exercise, claim: str, weights: bool = False) -> dict[str, str]:
    """The names of attention with their types: what is given, and what it defines; `weights` makes A a softmax."""
    if re.search(r"\\?(?:gamma|beta|rho)\b|γ|β", claim):
        norm = "rms" if exercise.structure.norm == "rms" or "rho" in claim else "layer"
        width = exercise.size("width")
        return table("norm_types")[norm] | {"d": f"natural = {width}" if isinstance(width, int) else "natural"}
    size = _sizes(exercise)
    n, d, dk, dv = size.values()
    if re.search(r"\bP\b", claim):
        # A permutation that moves every token; the same proof holds for any other.
        three = {"Q": _matrix(3, dk), "K": _matrix(3, dk), "V": _matrix(3, dv), **naturals(dk, dv)}
        return three | {"P": "matrix[3,3] = [[0, 1, 0], [0, 0, 1], [1, 0, 0]]"}
    found = {name: f"natural = {text}" if text.isdigit() else "natural" for name, text in size.items()}
    found |= naturals(n, d, dk, dv)
    columns, left = exercise.convention("layout") == "columns", _from_left(exercise)
    projected = exercise.given("tokens") is not None or bool(re.search(r"\bx_|X\b|W_", claim))
    if projected:
        found |= {"X": _matrix(n, d, columns), "x": f"{_matrix(n, d)} = X{'^T' if columns else ''}"}
    for name, wide in (("q", dk), ("k", dk), ("v", dv)):
        big = name.upper()
        found[f"W_{big}"] = _matrix(d, wide, left)
        found[big] = _matrix(n, wide, columns) + (f" = {name}{'^T' if columns else ''}" if projected else "")
        source = f"x W_{big}{'^T' if left else ''}" if projected else f"{big}{'^T' if columns else ''}"
        found[name] = f"{_matrix(n, wide)} = {source}"
    scale = f" / \\sqrt{{{dk}}}" if exercise.convention("scale") == "sqrt" else ""
    found |= {"z": f"{_matrix(n, n)} = (q k^T){scale}", "A": _matrix(n, n) + (" = softmax(z)" if weights else "")}
    found |= {"a": f"{_matrix(n, n)} = A", "i": f"index[{n}]", "j": f"index[{n}]", "l": f"index[{dk}]"}
    found |= {"phi_Q": _matrix(n, "C"), "phi_K": _matrix(n, "C"), "C": "natural", "c": "scalar", "lambda": "positive"}
    if re.search(r"\bs\b", claim):
        found |= {"s": "vector[n]", "n": "natural", "a": "vector[n] = softmax(s)"}
    for given in exercise.givens:
        if given.symbol and given.shape and given.symbol not in found and len(given.shape) <= 2:
            found[given.symbol] = f"{('vector', 'matrix')[len(given.shape) - 1]}[{','.join(map(str, given.shape))}]"
    for definition in exercise.definitions:
        name, sign, text = (part.strip() for part in definition.text.partition("="))
        if sign and re.fullmatch(r"[A-Za-z]+(?:_[A-Z])?", name) and "=" not in found.get(name, ""):
            found[name] = f"{found.get(name, 'scalar')} = {text}"
    return found


@solver("identity")
def identity(exercise: Exercise, asked: Asked) -> Answer:
    """A claim proved by a chain, or refuted by a counterexample."""
    claim = asked.object.strip().strip("$")
    if "=" not in claim:
        known = (equation for words, equation in table("claims").items() if re.search(words, claim.lower()))
        claim = next(known, claim)
    claim = re.sub(r"(\\beta|\\mu|β|μ)\s*1\b(?!_)", r"\1 \\mathbf{1}", claim)
    first, *others = split(claim, "=")
    if not others:
        raise CannotSolve("not_understood", found=asked.object)
    verdicts = []
    for weights in (False, True):
        symbols = types(exercise, claim, weights)
        try:
            verdicts = [compare(first, part, symbols) for part in others]
        except (MathsError, OptionError) as error:
            raise CannotSolve("misfit", what=claim, why=str(error).splitlines()[0]) from None
        if all(verdict.kind == "equal" and verdict.evidence == "proved" for verdict in verdicts):
            texts = dict.fromkeys([first, *_steps_between(first, others[-1], symbols), *others])
            steps = chain("the claim", *texts, reason="each link by algebra", symbols=symbols)
            return formula(claim, steps, symbols=symbols, form="proof", value=True)
    for verdict in verdicts:
        if verdict.kind == "different" and verdict.counterexample:
            steps = chain("a counterexample", reason=verdict.reason)
            return formula(f"false: {verdict.reason}", steps, form="proof", value=False)
    raise CannotSolve("not_proved", claim=claim)


def _steps_between(first: str, last: str, symbols: Mapping[str, str]) -> list[str]:
    """Expressions that are proved to be equal to both sides: products written out, definitions put in."""
    found = [text for name, texts in table("between").items() if name in symbols for text in texts]
    factor = r"([A-Z]\w*(?:\^T)?)"
    entry = re.match(rf"\(\s*{factor}\s+{factor}\s*(/.*?)?\)_\{{?(\\cdot\s*)?([a-z]),?\s*([a-z])?\}}?$", first)
    if entry and (entry[6] or not entry[4]):
        left, right, below, _, i, j = entry.groups()
        inner = parse(left, symbols).shape[-1]
        summed = rf"(\sum_{{l=1}}^{{{inner}}} ({left})_{{{i} l}} ({right})_{{l {j}}}) {below or ''}".strip()
        found.insert(0, summed if j else rf"\sum_{{j=1}}^{{{inner}}} ({left})_{{{i} j}} ({right})_j")
    unfolded = first
    for name in "qkvQKV":
        _, sign, definition = symbols.get(name, "").partition(" = ")
        if sign:
            unfolded = re.sub(rf"(?<![A-Za-z\\_]){name}(?![A-Za-z])", lambda _, text=definition: f"({text})", unfolded)
    found.append(unfolded)
    return [text for text in found if text not in (first, last) and compare(first, text, symbols).kind == "equal"][:3]


@solver("matrix_form")
def matrix_form(exercise: Exercise, asked: Asked) -> Answer:
    """Queries, keys and values, scores, weights or the output as products of matrices, with their sizes."""
    size, columns, left = _sizes(exercise), exercise.convention("layout") == "columns", _from_left(exercise)
    n, d, dk, dv = size.values()
    wanted = asked.object.strip() or "Q, K, V"
    if re.search(r"score|output|weight|attention", wanted.lower()):
        if exercise.convention("scale") not in ("sqrt", "none") and not exercise.said("scale"):
            raise CannotSolve("unsettled", convention="whether scores are divided by the root of the width")
        scale = f" / sqrt({dk})" if exercise.convention("scale") == "sqrt" else ""
        text = f"Q^T K{scale}" if columns else f"Q K^T{scale}"
        text = text if "score" in wanted.lower() else f"softmax({text})"
        if re.search(r"output|attention$", wanted.lower()):
            text = f"V {text}^T" if columns else f"{text} V"
        symbols = {name: _matrix(n, wide, columns) for name, wide in (("Q", dk), ("K", dk), ("V", dv))}
        return formula(text, chain(wanted, text), symbols=symbols | naturals(n, d, dk, dv))
    x = _symbol(exercise, "tokens", "X")
    symbols, items = {x: _matrix(n, d, columns), **naturals(n, d, dk, dv)}, {}
    for name, role, wide in (("Q", "query_weight", dk), ("K", "key_weight", dk), ("V", "value_weight", dv)):
        weight = _symbol(exercise, role, f"W_{name}")
        symbols[weight] = _matrix(d, wide, left)
        turned = weight if left == columns else f"{weight}^T"
        text, shape = (f"{turned} {x}", f"{wide} by {n}") if columns else (f"{x} {turned}", f"{n} by {wide}")
        if re.search(rf"\b{name}\b", wanted):
            note = (Finding("note", {"text": f"{name} is {shape}"}),)
            items[name] = formula(text, chain(f"{name}, {shape}", text), symbols=symbols, assumed=note)
    if not items:
        raise CannotSolve("not_understood", found=wanted)
    if len(items) == 1:
        return next(iter(items.values()))
    return Answer.joined(items, form="formula", symbols=symbols)


def _symbol(exercise: Exercise, role: str, usual: str) -> str:
    given = exercise.given(role)
    return given.symbol if given is not None and given.symbol else usual


# --- kernels


def _vectors(exercise: Exercise, wanted: tuple[str, ...] = ()) -> tuple[str, str, str, dict[str, str]]:
    """The names of a query, a key and their width, and the types of all names of a kernel.

    `wanted` are the symbols of the answer: the only one that is no vector is the width.
    """
    named = [_symbol(exercise, role, "") for role in ("query", "key")]
    q, k = (name if name.islower() else usual for name, usual in zip(named, "qk", strict=True))
    query = exercise.given("query")
    width = exercise.size("head_width") or exercise.size("width")
    wanted = tuple(name for name in wanted if name not in (q, k))
    width = str(
        wanted[0] if len(wanted) == 1 else width or (query.shape[-1] if query is not None and query.shape else "D")
    )
    symbols = {q: f"vector[{width}]", k: f"vector[{width}]", **naturals(width)}
    for role, kind in (("offset", "nonnegative"), ("degree", "natural")):
        given = exercise.given(role)
        symbols |= {given.symbol: kind} if given is not None and given.value is None and given.symbol else {}
    return q, k, width, symbols


def _polynomial(exercise: Exercise, words: str) -> tuple[int | str, str, bool]:
    """Degree and constant of a polynomial kernel, and whether the constant was given."""
    named = {"quadratic": 2, "cubic": 3, "linear": 1, "dot product": 1}
    degree = exercise.size("degree") or next((value for name, value in named.items() if name in words), None)
    if degree is None:
        raise CannotSolve("missing", needs="the degree of the kernel")
    offset = exercise.given("offset")
    if offset is None:
        return degree, "0" if degree == 1 else "1", degree == 1
    return degree, str(offset.value if offset.value is not None else offset.symbol), True


@solver("kernel")
def kernel(exercise: Exercise, asked: Asked) -> Answer:
    """sim(q, k) of a named kernel."""
    q, k, width, symbols = _vectors(exercise)
    words, scale = f"{asked.object} {exercise.structure.similarity}".lower(), exercise.convention("scale")

    def found(text: str, other: str = "", convention: str = "", **fields: Any) -> Answer:
        also = (Also(other, other, convention, symbols),) if other else ()
        return formula(text, chain("the kernel", text), symbols=symbols, also=also, **fields)

    if re.search(r"gauss|rbf", words):
        return found(rf"\exp(-\|{q} - {k}\|^2/2)")
    if re.search(r"exponential|softmax", words) and not re.search(r"polynomial|quadratic|cubic", words):
        scaled = f"exp({q}^T {k} / sqrt({width}))"
        if scale != "none" and (scale is not None or "exponential" not in words):
            return found(scaled)
        return found(f"exp({q}^T {k})", "" if scale else scaled, "scores divided by the root of the width")
    degree, constant, given = _polynomial(exercise, words)
    power = "" if degree == 1 else f"^{degree}"
    bare = f"({q}^T {k}){power}" if power else f"{q}^T {k}"
    text = bare if constant == "0" else f"({q}^T {k} + {constant}){power}"
    usual = assumed("the constant of the kernel", "1")
    return found(text) if given else found(text, bare, "no constant", assumed=usual)


@solver("feature_map")
def feature_map(exercise: Exercise, asked: Asked) -> Answer:
    """A map phi with phi(q)^T phi(k) = sim(q, k), every monomial once; with object "count", how many there are."""
    q, k, width, symbols = _vectors(exercise, asked.in_terms_of)
    words = f"{asked.object} {exercise.structure.similarity}".lower()
    if re.search(r"exponential|softmax|random|gauss|rbf", words) and "polynomial" not in words:
        return _random_features(q, k, width, bool(re.search(r"gauss|rbf", words)))
    degree, constant, given = _polynomial(exercise, words)
    if not isinstance(degree, int) or degree > 4:
        raise CannotSolve("missing", needs="a degree of at most 4")
    if re.search(r"count|number|dimension", words):
        return _feature_count(width, degree, constant != "0", given)
    target = kernel(exercise, asked)
    if width.isdigit():
        features = _monomials(int(width), degree, constant)
        if len(features) > MOST_FEATURES:
            raise CannotSolve("too_large", what="the feature map", size=f"{len(features)} features", most=MOST_FEATURES)
        text, other = (f"({', '.join(' '.join(each).format(name) for each in features)})" for name in (q, k))
        inner, form = f"({text})^T ({other})", "vector"
    else:
        text, inner = _general_map(q, k, width, degree, constant)
        form = "formula"
    steps = chain("the inner product of the features", inner, target.text, symbols=symbols)
    return formula(text, steps, symbols=symbols, form=form, assumed=target.assumed)


def _monomials(width: int, degree: int, constant: str) -> list[list[str]]:
    """The factors of each monomial, "{0}" for the vector's name: the root of its coefficient, then powers."""
    found = []
    for total in range(degree, -1 if constant != "0" else degree - 1, -1):
        spread = degree - total
        kinds = combinations_with_replacement(range(1, width + 1), total)
        for parts in sorted(kinds, key=lambda each: len(set(each))):
            ways = factorial(degree) // (factorial(spread) * prod(factorial(parts.count(each)) for each in set(parts)))
            added = Polynomial.of(int(constant)) if constant.isdigit() else Polynomial.name(constant)
            square = ways * added**spread
            root = square.root() if square.number is not None else None
            factors = [] if square == 1 else [str(root) if root is not None else f"sqrt({square})"]
            for each in dict.fromkeys(parts):
                factors.append(f"{{0}}_{each}" + (f"^{parts.count(each)}" if parts.count(each) > 1 else ""))
            found.append(factors or ["1"])
    return found


def _feature_count(width: str, degree: int, constant: bool, given: bool) -> Answer:
    """How many monomials there are of the degree, and with a constant of those below."""

    def text(each: int, first: int) -> str:
        factors = [width if not shift else f"({width} + {shift})" for shift in range(first, first + each)]
        return f"{' '.join(factors)}/{factorial(each)}" if each > 1 else factors[0].strip("()")

    value: Any = text(degree, int(constant))
    if width.isdigit():
        value = comb(int(width) + degree - (not constant), degree)
    summed = [text(each, 0) for each in range(degree, 0 if constant else degree - 1, -1)] + ["1"] * constant
    steps = chain("monomials of each degree, added", *dict.fromkeys((" + ".join(summed), str(value))))
    kinds, form = naturals(width), "number" if width.isdigit() else "formula"
    also = () if given else (Also(text(degree, 0), None, "no constant", kinds),)
    return formula(str(value), steps, symbols=kinds, value=value, form=form, also=also)


def _general_map(q: str, k: str, width: str, degree: int, constant: str) -> tuple[str, str]:
    """The map for any width, with dots, and the inner product as sums over the kinds of features."""
    if degree > 2:
        raise CannotSolve("missing", needs="a width that is a number, for a degree above 2")
    two, square = ("2", "1") if constant == "1" else (f"2 {constant}", f"{constant}^2")
    text, inner = table("general_maps")[f"{degree} {'0' if constant == '0' else 'c'}"]
    known = {"q": q, "k": k, "w": width, "c": constant, "two": two, "square": square}
    return Template(text).substitute(known), Template(inner).substitute(known)


def _random_features(q: str, k: str, width: str, gauss: bool) -> Answer:
    """Positive features, whose mean over w is the exponential kernel, or the Gaussian one."""
    kinds = {q: f"vector[{width}]", k: f"vector[{width}]", "w": f"random vector[{width}] ~ N(0, I)", **naturals(width)}
    text, other = (rf"e^{{w^T {name} - \|{name}\|^2{'' if gauss else '/2'}}}" for name in (q, k))
    target = rf"e^{{-\|{q} - {k}\|^2/2}}" if gauss else f"e^{{{q}^T {k}}}"
    steps = chain("the mean of the product of two features", f"E[{text} {other}]", target, symbols=kinds)
    note = Finding("note", {"text": "w is drawn from N(0, I); the mean over several draws is taken"})
    return formula(text, steps, symbols=kinds, assumed=(note,))


@solver("kernel_form")
def kernel_form(exercise: Exercise, asked: Asked) -> Answer:
    """Attention with a feature map: as a quotient of sums, with the sums over keys made once, or with states."""
    n, m = str(exercise.size("length") or "N"), str(exercise.size("value_width") or "M")
    d = str(exercise.size("head_width") or exercise.size("width") or "D")
    symbols = {"phi": f"map vector[{d}] -> vector[F]", "Q": _matrix(n, d), "K": _matrix(n, d), "V": _matrix(n, m)}
    symbols |= {"i": f"index[{n}]", **naturals("F", n, d, m)}
    words = f"{asked.object} {exercise.structure.mask}".lower()
    causal = "causal" in words
    total = rf"\sum_{{j=1}}^{{{'i' if causal else n}}}"
    quotient = rf"\frac{{{total} (\phi(Q_i)^T \phi(K_j)) V_j}}{{{total} \phi(Q_i)^T \phi(K_j)}}"
    linear = rf"\frac{{({total} V_j \phi(K_j)^T) \phi(Q_i)}}{{\phi(Q_i)^T ({total} \phi(K_j))}}"
    text, other, reason = quotient, linear, "the kernel is the inner product of the features"
    if re.search(r"linear|once|associativ|state|recurren", words):
        text, other, reason = linear, quotient, "the features of the query do not depend on j"
    steps = chain("attention of query i", *dict.fromkeys((quotient, text)), reason=reason, symbols=symbols)
    if causal:
        steps += chain("states: S_i = S_{i-1} + phi(K_i) V_i^T and z_i = z_{i-1} + phi(K_i)")
    return formula(text, steps, symbols=symbols, also=(Also(other, None, "", symbols),))


@solver("condition")
def condition(exercise: Exercise, asked: Asked) -> Answer:
    """When the output of attention with any similarity is finite."""
    known = table("condition")
    return formula(known["text"], chain("the denominator", reason=known["reason"]), form="words")


@solver("ridge")
def ridge(exercise: Exercise, asked: Asked) -> Answer:
    """Ridge attention: values are fitted to keys with a penalty, and the fit is read at the query."""
    query, key, value, penalty = (exercise.given(role) for role in ("query", "key", "value", "ridge"))
    if all(given is not None and given.value is not None for given in (query, key, value, penalty)):
        return _ridge_numbers(query.value, key.value, value.value, penalty.value)  # pyright: ignore[reportOptionalMemberAccess]
    strength = str(penalty.value if penalty and penalty.value is not None else _symbol(exercise, "ridge", "lambda"))
    n = str(exercise.size("length") or exercise.size("keys_length") or "n")
    d, m = str(exercise.size("head_width") or exercise.size("width") or "d"), str(exercise.size("value_width") or "m")
    symbols = {"q": f"vector[{d}]", "K": _matrix(n, d), "V": _matrix(n, m), strength: "positive", **naturals(n, d, m)}
    front = "" if "weight" in asked.object.lower() else "V^T "
    text, dual = rf"{front}K (K^T K + {strength} I)^{{-1}} q", rf"{front}(K K^T + {strength} I)^{{-1}} K q"
    reason = f"the minimum of the squared error plus {strength} times the squared weights"
    steps = chain("ridge attention at a query", text, dual, reason=reason, symbols=symbols)
    return formula(text, steps, symbols=symbols, also=(Also(dual, dual, "", symbols),))


def _ridge_numbers(query: Any, key: Any, value: Any, strength: Any) -> Answer:
    from ...maths.values.evaluate import evaluate

    def written(rows: Any) -> str:
        return f"[{', '.join(map(written, rows))}]" if isinstance(rows, list | tuple) else str(rows)

    q = query[0] if len(shape_of(query)) == 2 and len(query) == 1 else query
    rows, values = written(key), written([row if isinstance(row, list | tuple) else [row] for row in value])
    text = f"{values}^T {rows} ({rows}^T {rows} + ({strength}) I)^{{-1}} ({', '.join(map(str, q))})"
    try:
        found: Any = evaluate(parse(text, {}), {}, {})
    except (MathsError, OptionError, ArithmeticError, ValueError) as error:
        raise CannotSolve("misfit", what="ridge attention", why=str(error).splitlines()[0]) from None
    output: tuple[Any, ...] = tuple(found) if isinstance(found, tuple | list) else (found,)
    shown = ", ".join(map(str, output))
    shown = f"({shown})" if len(output) > 1 else shown
    return formula(shown, chain("ridge attention", text, shown), form="vector", value=output)


@solver("jacobian_norm")
def jacobian_norm(exercise: Exercise, asked: Asked) -> Answer:
    """The squared Frobenius norm of the softmax Jacobian; with object "bound", its bound near a single weight of 1."""
    a, n = _symbol(exercise, "weights", "a"), str(exercise.size("keys_length") or exercise.size("length") or "n")
    if "bound" in asked.object.lower():
        small = _symbol(exercise, "epsilon", "epsilon")
        symbols, sharper = {small: "positive", **naturals(n)}, f"4 {small}^2"
        sums, text = f"{small}^2 + ({n} - 1) {small}^2 + {n} ({n} - 1) {small}^2", f"{n}^2 {small}^2"
        reason = "each of the diagonal entries and of the products of two weights is below epsilon"
        steps = chain("the bounds of all entries, squared and added", sums, text, reason=reason, symbols=symbols)
        also = (Also(sharper, sharper, "the norm bounded by the trace", symbols),)
        unsaid = assumed("which bound is meant", "the sum of the bounds of all entries")
        return formula(text, steps, symbols=symbols, also=also, assumed=unsaid)
    values = _weight_values(exercise)
    if values:
        diagonal = " + ".join(f"({value})^2 (1 - {value})^2" for value in values)
        pairs = " + ".join(f"({one})^2 ({other})^2" for one, other in combinations(values, 2))
        total = sum((value**2 * (1 - value) ** 2 for value in values), Fraction(0))
        total += 2 * sum((one**2 * other**2 for one, other in combinations(values, 2)), Fraction(0))
        reason = "each pair off the diagonal stands twice"
        steps = chain("the squares of all entries", f"{diagonal} + 2 ({pairs})", str(total), reason=reason)
        return formula(str(total), steps, form="number", value=total)
    symbols = {a: f"vector[{n}]", **naturals(n)}
    start = rf"\|\operatorname{{diag}}({a}) - {a} {a}^T\|_F^2"
    text = rf"\sum_i {a}_i^2 (1 - {a}_i)^2 + 2 \sum_{{i<j}} {a}_i^2 {a}_j^2"
    short = rf"\|{a}\|^2 - 2 \sum_i {a}_i^3 + \|{a}\|^4"
    reason = "entries on the diagonal once, each pair off it twice"
    steps = chain("the squares of all entries", start, text, reason=reason, symbols=symbols)
    also = (Also(short, short, "", symbols),)
    return formula(text, steps, (Step(short, "multiplied out"),), symbols=symbols, also=also)


def _weight_values(exercise: Exercise) -> list[Fraction]:
    """Weights as fractions: given, or the softmax of logarithms of whole numbers."""
    weights, scores = exercise.given("weights"), exercise.given("scores")
    if weights is not None and isinstance(weights.value, list | tuple):
        return [Fraction(str(each)) for each in weights.value]
    if scores is None or not isinstance(scores.value, list | tuple):
        return []
    found = [re.fullmatch(r"\s*(?:(?:ln|log)\s*\(?\s*([\d/]+)\s*\)?|0|0\.0)\s*", str(score)) for score in scores.value]
    raised = [Fraction(each[1] or 1) for each in found if each is not None]
    if len(raised) < len(found):
        raise CannotSolve("missing", needs="weights that are rational numbers")
    return [each / sum(raised) for each in raised]
