"""By hand, in numbers: queries, keys and values; the scores of one token; its weighted sum of values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal

from ..exact import (
    Matrix,
    Scale,
    Vector,
    dot,
    listed,
    matrix,
    mixed,
    rounded,
    softmax,
    times,
    transposed,
    vector,
    written_out,
)
from ..judging.answers import Value, Values
from ..problem import Misconception, Part, Step
from .answers import WeightedSum
from .instance import UNSCALED, Instance, at

WORDS = {"q": "query", "k": "key", "v": "value"}
SPOKEN = 8  # weights that a question names one by one
LEAST = Decimal("0.001")  # a weight below it is not written out where there are many


def vectors_part(given: Instance) -> Part:
    """Part a: the query, the key and the value of every token."""
    items = {
        f"{letter}_{place}": Value(vector(rows[place - 1]), {}, shown=vector(given.printed_row(rows[place - 1])))
        for letter, rows in (("q", given.q), ("k", given.k), ("v", given.v))
        for place in given.places
    }
    few = given.small or len(given.k) == 1
    tokens = spoken([f"$x_{place}$" for place in given.places]) if few else f"all {len(given.k)} tokens"
    wide, out = given.sizes["D_k"], given.sizes["D_v"]
    sizes = f"A query has {_counted(wide)}, a key {wide} and a value {out}."
    applied, line = given.applied("Q"), "row" if given.plain else "column"
    begun = written_out(given.printed_row(_column(given.wq, 0)), given.printed_row(_row(given.x, 0)))
    return Part(
        name="a",
        ask=f"Compute the query, the key and the value vector of {tokens}.",
        answer=Values(items, _aliases(given), _stems(given)),
        steps=lambda: tuple(_vector_steps(given)),
        hints=(
            "Each of the three weight matrices is applied to each token by itself: no token meets another yet.",
            f"Entry $l$ of $q_i$ is {line} $l$ of $W_Q$ times $x_i$. {sizes}",
            f"$q_1 = {applied} x_1$; its first entry is ${begun}$. Go on like this, a {line} of the weights at a time.",
        ),
        points=3,
        misconceptions=_mistaken_vectors(given),
        symbols=given.names,
        cues=(
            r"quer(?:y|ies)\W+keys?\W+(?:and\W+)?values?.{0,40}(?:vectors?|for|of)",
            r"(?:compute|calculate|find).{0,30}(?:q|k|v)_?\{?[1i]",
            r"(?<![A-Za-z])[qkv]\}?_\{?1\}?\s*=",
        ),
        explanation=f"Every token is multiplied by the weight matrices, $q_i = {applied} x_i$, and likewise for keys "
        "and values.",
    )


def _counted(entries: int) -> str:
    return f"{entries} entr{'y' if entries == 1 else 'ies'}"


def _row(rows: Matrix | None, place: int) -> Vector:
    return rows[place] if rows is not None else ()


def _column(rows: Matrix | None, place: int) -> Vector:
    return transposed(rows)[place] if rows is not None else ()


def _vector_steps(given: Instance) -> Iterable[Step]:
    weights = (("q", given.wq, given.q), ("k", given.wk, given.k), ("v", given.wv, given.v))
    for letter, weight, rows in weights:
        if weight is None or given.x is None:
            continue
        big = letter.upper()
        for place in given.places:
            token, found = given.printed_row(given.x[place - 1]), rows[place - 1]
            columns, shown = given.printed(transposed(weight)), given.printed_row(found)
            sums = [written_out(column, token) for column in (columns if given.small else columns[:1])]
            line = "row" if given.plain else "column"
            why = f"${letter}_i = {given.applied(big)} x_i$: each entry is a {line} of $W_{big}$ times the token."
            what = f"The {WORDS[letter]} of token {place}"
            if given.small:
                applied = f"{matrix(columns)} {vector(token)}"
                chain = (f"{letter}_{place}", f"{given.applied(big)} x_{place}", applied, listed(sums), vector(shown))
                yield Step(what, why, chain, found, given.symbols)
            else:
                if len(found) > 1:
                    what += ": its first entry"
                    why += f" The first of {len(found)} entries is written out; the others go the same way."
                yield Step(what, why, tuple(dict.fromkeys((sums[0], str(shown[0])))), found)


def _mistaken_vectors(given: Instance) -> tuple[Misconception, ...]:
    found = [("query and key swapped", given.k, given.q, given.v)]
    if given.x is not None and given.wq is not None and given.wk is not None and given.wv is not None:
        square = [len(weight) == len(weight[0]) for weight in (given.wq, given.wk, given.wv)]
        turned = [
            times(given.x, transposed(weight)) if fits else rows
            for weight, fits, rows in zip(
                (given.wq, given.wk, given.wv), square, (given.q, given.k, given.v), strict=True
            )
        ]
        if any(square) and not given.plain:
            found.append(("weights not transposed", turned[0], turned[1], turned[2]))
    right = (given.q, given.k, given.v)
    return tuple(Misconception(name, _vectors_text(*wrong)) for name, *wrong in found if tuple(wrong) != right)


def _vectors_text(q: Matrix, k: Matrix, v: Matrix) -> str:
    return "; ".join(
        f"{letter}_{place + 1} = {vector(row)}"
        for letter, rows in (("q", q), ("k", k), ("v", v))
        for place, row in enumerate(rows)
    )


def _aliases(given: Instance) -> dict[str, tuple[str, ...]]:
    link = r"(?:\s(?:vectors?|of|for|token|number)){0,3}\s?(?:\$|\\mathbf\{?|\()?\s?(?:x|token)?\}?_?\{?\s?"
    return {
        f"{letter}_{place}": (rf"(?i:\b{word}){link}{place}\}}?(?!\d)",)
        for letter, word in WORDS.items()
        for place in given.places
    }


def _stems(given: Instance) -> dict[str, tuple[str, ...]]:
    stems: dict[str, tuple[str, ...]] = {}
    for letter, word in WORDS.items():
        names = tuple(f"{letter}_{place}" for place in given.places)
        several = "queries" if letter == "q" else f"{word}s"
        stems |= {letter.upper(): names, letter: names, several: names, several.capitalize(): names}
    return stems


def scores_part(given: Instance) -> Part:
    """Part b: the scores of the asked token."""
    t, names = given.token, [f"z_{{{given.token},{place}}}" for place in given.places]
    seen = [names[place - 1] for place in given.attended]
    symbols = {} if not given.small else given.symbols
    items = {
        names[place - 1]: Value(given.scores[place - 1], symbols, shown=given.shown_scores[place - 1])
        for place in given.attended
    }
    score = given.score
    causal = " Under the causal mask it attends to itself and to what comes before it." if given.causal else ""
    first = given.attended[0]
    out = written_out(given.printed_row(given.q[t - 1]), given.printed_row(given.k[first - 1]))
    return Part(
        name="b",
        ask=f"The score of {_pair(given)} is ${score}$. Calculate the scores that "
        f"{_asking(given)} gives to {_looked_at(given)}.{causal}",
        answer=Values(
            items,
            {names[place - 1]: _score_aliases(t, place) for place in given.attended},
            {stem: tuple(seen) for stem in (f"z_{t}", f"z_{{{t},\\cdot}}", f"z_{{{t},:}}", "z", "scores", "Scores")},
        ),
        steps=lambda: tuple(_score_steps(given)),
        hints=(
            f"Token {t} asks: it brings its query. Every token that it looks at, itself included, brings its key.",
            f"Multiply ${at('q', t)}$ entry by entry with each key and add up"
            + ("." if given.scale.plain else "; then divide, as the definition of the score says."),
            f"For token {first}: ${given.scaled(out)}$; the other keys go the same way.",
        ),
        points=2,
        misconceptions=_mistaken_scores(given, names),
        symbols=given.names,
        cues=(
            r"(?:attention|scores?|similarit).{0,60}token.{0,20}(?:places?|gives?|pays?|for)",
            rf"(?<![A-Za-z])z\}}?_\{{?{t}\s*,?\s*\d\}}?\s*=",
            r"(?:calculate|compute).{0,20}(?:attention|scores?)",
        ),
        explanation=f"The scores are the dot products of ${at('q', t)}$ with the keys"
        + ("." if given.scale.plain else f", scaled: ${score}$."),
    )


def _asking(given: Instance) -> str:
    """The token that attends; where there are queries alone, its query."""
    return f"token ${at('x', given.token)}$" if given.x is not None else f"the query ${at('q', given.token)}$"


def _pair(given: Instance) -> str:
    if given.x is not None:
        return "token $i$ for token $j$"
    return "the query for key $j$" if len(given.q) == 1 else "query $i$ for key $j$"


def _looked_at(given: Instance) -> str:
    letter, word = ("x", "tokens") if given.x is not None else ("k", "keys")
    if len(given.attended) <= SPOKEN:
        return spoken([f"${at(letter, place)}$" for place in given.attended])
    return f"all {len(given.k)} {word}" if given.seen is None else f"the {len(given.attended)} {word} that it may see"


def _score_aliases(token: int, place: int) -> tuple[str, ...]:
    bold = r"(?:\\mathbf\s?\{?\s?)?"
    low = r"\}?\s?_?\{?\s?"
    turned = r"\s?\}?\s?(?:\^\s?\{?(?:T|\\top)\}?|ᵀ)?"
    return (rf"(?<![\w\\]){bold}q{low}{token}{turned}\s?(?:\\cdot|·|\*)?\s?{bold}k{low}{place}\s?\}}?(?!\w)",)


def _score_steps(given: Instance) -> Iterable[Step]:
    t = given.token
    for place in given.attended:
        product, score = given.products[place - 1], given.shown_scores[place - 1]
        out = written_out(given.printed_row(given.q[t - 1]), given.printed_row(given.k[place - 1]))
        what = f"The score of token {t} for token {place}"
        why = "The query of the token that attends times the key of the one that is attended to, entry by entry."
        if not given.scale.plain:
            why += " The sum is then scaled."
        value = product * given.scale.factor if given.scale.under == 1 else score
        if given.small:
            formula = given.scaled(f"q_{t}^T k_{place}")
            chain = [f"z_{{{t},{place}}}", formula, given.scaled(out) if not given.scale.plain else out]
            if not given.scale.plain and (given.scale.under == 1 or given.scale.factor != 1):
                chain.append(given.scaled(given.printed_number(product)))
            yield Step(what, why, tuple(dict.fromkeys([*chain, score])), value, given.symbols)
        else:
            formula = given.scaled(f"{at('q', t)}^T {at('k', place)}")
            what += f", $z_{{{t},{place}}} = {formula}$"
            yield Step(what, why, tuple(dict.fromkeys((given.scaled(out), score))), value)


def _mistaken_scores(given: Instance, names: list[str]) -> tuple[Misconception, ...]:
    found: list[tuple[str, list[str]]] = []
    t = given.token
    if len(given.q) == len(given.k):
        found.append(("query and key swapped", [given.scale.text(dot(given.k[t - 1], query)) for query in given.q]))
    for name, scale in _wrong_scales(given):
        found.append((name, [scale.text(product) for product in given.products]))
    right = [given.scores[place - 1] for place in given.attended]
    planted = []
    for name, scores in found:
        wrong = [scores[place - 1] for place in given.attended]
        if wrong != right:
            text = "; ".join(f"{names[p - 1]} = {s}" for p, s in zip(given.attended, wrong, strict=True))
            planted.append(Misconception(name, text))
    return tuple(planted)


def _wrong_scales(given: Instance) -> list[tuple[str, Scale]]:
    right = Scale.by_root(given.sizes["D_k"])
    if given.scale.plain:
        return [("scaling where none is asked", right)] if right != given.scale else []
    wide = Scale.by_root(given.sizes.get("D", given.sizes["D_k"]))
    return [("no scaling", UNSCALED), *([("model width for head width", wide)] if wide != right else [])]


def sum_part(given: Instance) -> Part:
    """Part c: the weighted sum of values, from the exact softmax."""
    t = given.token
    symbols = given.symbols
    total = rf"\sum_{{j=1}}^{{{len(given.k)}}} a_{{{t},j}} v_j"
    if given.small:
        answer = WeightedSum(total, symbols, (given.plugged,), given.shown_output, plugged=True)
    else:
        gold = listed([rounded(entry, 12) for entry in given.output])
        answer = WeightedSum(gold, {}, (), given.shown_output, plugged=True)
    few = given.small or len(given.attended) <= SPOKEN
    chosen = given.attended if few else given.heaviest
    weights = spoken([f"$a_{{{t},{p}}} \\approx {given.sheet_weights[p - 1]}$" for p in chosen])
    if not few:
        weights = f"the {len(chosen)} largest are {weights}"
    last = f"It is ${given.plugged}$; what remains is to add up."
    if not given.small:
        last = f"Entry 1 is the sum of $a_{{{t},j}}$ times the first entry of $v_j$, over the tokens that are seen."
    causal = " What the mask hides gets no weight." if given.causal else ""
    return Part(
        name="c",
        ask=f"Softmax turns these scores into weights: {weights}.{causal} Write the weighted sum of the value vectors "
        f"for ${at('x' if given.x is not None else 'q', t)}$ and put in the numbers.",
        answer=answer,
        steps=lambda: tuple(_sum_steps(given, total)),
        hints=(
            "The weights belong to one token and add up to 1; each of them multiplies a whole value vector.",
            f"Take every value vector times its weight and add them up, entry by entry: $\\sum_j a_{{{t},j}} v_j$.",
            last,
        ),
        points=2,
        misconceptions=_mistaken_sums(given),
        symbols=given.names,
        cues=(
            r"weighted sum",
            rf"\\sum.{{0,20}}a.{{0,12}}v.{{0,20}}=|a\}}?_\{{?{t}\s*,?\s*\d\}}?.{{0,30}}v\}}?_\{{?\d",
            r"softmax (?:scores?|weights?).{0,60}value",
        ),
        explanation=f"The output for token {t} is the sum of the values, each times its softmax weight: "
        f"about ${given.shown_output}$.",
    )


def _sum_steps(given: Instance, total: str) -> Iterable[Step]:
    t = given.token
    if not given.small:
        yield from _large_sum_steps(given)
        return
    powers = {place: f"e^{{{given.shown_scores[place - 1]}}}" for place in given.attended}
    below = " + ".join(powers.values())
    exact = len(powers) > 1
    for place in given.attended:
        chain = (f"a_{{{t},{place}}}", rf"\frac{{{powers[place]}}}{{{below}}}", given.shown_weights()[place - 1])
        yield Step(
            f"The weight of token {place}",
            "Softmax: the power of its score over the sum of all of them; only the last step rounds.",
            chain if exact else (chain[0], "1"),
            chain[1],
            given.symbols,
        )
    terms = " + ".join(f"a_{{{t},{place}}} v_{place}" for place in given.attended)
    above = " + ".join(f"{power} {vector(given.printed_row(given.v[place - 1]))}" for place, power in powers.items())
    sum_chain = (
        (total, terms, rf"\frac{{{above}}}{{{below}}}", given.shown_output) if exact else (terms, given.shown_output)
    )
    yield Step(
        "The weighted sum",
        "Each value times its weight, added entry by entry; the numbers are rounded at the very end.",
        sum_chain,
        tuple(given.output),
        given.symbols,
    )


def _large_sum_steps(given: Instance) -> Iterable[Step]:
    """Every weight as a number, and the first entry of the sum with its terms."""
    t, weights = given.token, given.sheet_weights
    largest = given.heaviest[0]
    written = "; ".join(f"$a_{{{t},{place}}} \\approx {weights[place - 1]}$" for place in given.attended)
    about = f"the largest is that of token {largest}, {weights[largest - 1]}"
    yield Step(
        f"The weights of token {t} are the softmax of its scores: {written}",
        f"Every power of a score over the sum of all the powers, so that they add up to 1; {about}.",
    )
    counted = [place for place in given.attended if given.weights[place - 1] >= LEAST]
    values = {place: given.printed_number(given.v[place - 1][0]) for place in counted}
    terms = " + ".join(
        rf"{weights[place - 1]} \cdot {f'({value})' if value.startswith('-') else value}"
        for place, value in values.items()
    )
    left = len(given.attended) - len(counted)
    why = "Each value times its weight, added entry by entry; the numbers are rounded at the very end."
    if left:
        why += f" Terms with a weight below {LEAST} are left out here ({left})."
    which = "" if len(given.output) == 1 else ": its first entry"
    yield Step(f"The weighted sum{which}, ${terms} \\approx {rounded(given.output[0])}$", why, (), tuple(given.output))


def _mistaken_sums(given: Instance) -> tuple[Misconception, ...]:
    found: list[tuple[str, tuple[Decimal, ...]]] = []
    t, n = given.token, len(given.k)

    def add(name: str, weights: list[Decimal], rows: Matrix) -> None:
        found.append((name, mixed(weights, rows)))

    if len(given.q) == n:
        columns = [softmax([given.scale.value(dot(query, key)) for query in given.q])[t - 1] for key in given.k]
        add("softmax over the wrong axis", [w if p in given.attended else Decimal(0)
                                            for p, w in zip(given.places, columns, strict=True)], given.v)  # fmt: skip
        swapped = softmax([given.scale.value(dot(given.k[t - 1], given.q[place - 1])) for place in given.attended])
        kept = dict(zip(given.attended, swapped, strict=True))
        add("query and key swapped", [kept.get(place, Decimal(0)) for place in given.places], given.v)
    for name, scale in _wrong_scales(given):
        found.append((name, replace(given, scale=scale).output))
    if given.seen is not None:
        found.append(("mask forgotten", replace(given, seen=None).output))
    if len(given.k[0]) == len(given.v[0]):
        add("key for value", list(given.weights), given.k)
    raw = [given.scale.value(given.products[p - 1]) if p in given.attended else Decimal(0) for p in given.places]
    add("scores used as weights", raw, given.v)
    # Far enough from the right answer that no rounding makes the two one.
    allowed = max(map(abs, given.output), default=Decimal(0)) / 100 + Decimal("0.001")
    return tuple(
        Misconception(name, listed([rounded(entry) for entry in output]))
        for name, output in found
        if any(abs(a - b) > allowed for a, b in zip(output, given.output, strict=True))
    )


def spoken(words: list[str]) -> str:
    """A list as it is said.

    >>> spoken(["a", "b", "c"]), spoken(["a"])
    ('a, b and c', 'a')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
