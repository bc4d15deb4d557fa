"""The questions on a score's mean, its variance and what to divide it by: each a part, for any law."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import isqrt

from ..problem import Misconception, Part, Step
from .answers import Divisor, Moment
from .declared import NOT_DIVISOR, NOT_MEAN, NOT_VARIANCE, distinct, moment_of, whole_width, widths
from .law import Law, key, number, times
from .words import product_words, score_words, special_case, terms

_OBJECT = "What kind of object is the mean: one number, or one for every component?"
_THREE = (
    "Three terms stay: deviation with deviation, and twice a mean with the other vector's deviation. They have no "
    "covariance, so their variances are added."
)


def mean_part(law: Law, name: str) -> Part:
    """E of the score."""
    gold = worked(law, law.mean_text())
    symbols = law.symbols()
    planted = [Misconception("query and key taken for one vector", _dependent(law))] if _dependent(law) else []
    if not law.values:
        other = replace(law, mean="scalar" if law.mean == "vector" else "vector").mean_text()
        planted.insert(0, Misconception(_misreading(law), other))
    elif law.mean == "scalar":
        planted.append(Misconception("terms not added", worked(law, law.mean_text(), {key(law.width): "1"})))
    if law.mean == "scalar" and not law.values:
        planted.append(Misconception("model width for head width", replace(law, width=whole_width(law)).mean_text()))
    entry = "the entries of the mean" if law.mean == "vector" else "the mean, one number for all components"

    def steps() -> tuple[Step, ...]:
        total, outside = rf"\sum_{{i=1}}^{{{law.width}}}", times(law.copies, number(law.factor))
        q, k, below = law.q, law.k, "_i" if law.mean == "vector" else ""
        left, right = f"{law.mean_q}{below}", f"{law.mean_k}{below}"
        pair = f"{left}^2" if left == right else f"{left} {right}"
        apart = times(outside, rf"{total} E[{q}_i] E[{k}_i]")
        first = times(law.copies, f"E[{law.score}]")
        entries = [times(outside, rf"{total} {pair}")] if len(law.means) and "0" not in (left[0], right[0]) else []
        chain = (apart, *entries, law.mean_text(), gold)
        added = f"; ${law.copies}$ scores of one law are added" if law.copies else ""
        return (
            Step(
                "Write the dot product as a sum and take the expectation inside.",
                f"Expectation is linear{added}.",
                (first, times(outside, rf"{total} E[{q}_i {k}_i]")),
                times(outside, rf"{total} E[{q}_i {k}_i]"),
                symbols,
            ),
            Step(
                "Part the products and put in the means.",
                f"${q}$ and ${k}$ are independent: the mean of a product is the product of the means. What is left is "
                f"{entry}.",
                (times(outside, rf"{total} E[{q}_i {k}_i]"), *dict.fromkeys(chain)),
                gold,
                symbols,
            ),
        )

    what = score_words(law)
    return Part(
        name,
        f"Find the mean of {what}, in terms of {terms(law)}." if not law.values else f"Find the mean of {what}.",
        moment_of(law, gold, symbols, asides=NOT_MEAN),
        steps,
        (
            "A dot product is a sum; what does expectation do to a sum?",
            f"The vectors are independent, so each $E[{law.q}_i {law.k}_i]$ is a product of two means. {_OBJECT}",
            f"Add {product_words(law)} over the ${law.width}$ components"
            + (f", and mind what multiplies ${law.dot}$." if law.factor != 1 or law.copies else "."),
        ),
        symbols=symbols,
        misconceptions=distinct(planted, gold, symbols),
        cues=(r"\bE\}?\s*(?:\\left)?\s*[\[(]", r"\bexpect(?:ed|ation)", r"\bmean of\b"),
        explanation="Expectation is linear and the two vectors are independent, so each component adds the product of "
        "its two means"
        + (": together the dot product of the mean vectors." if law.mean == "vector" else ", the same every time."),
    )


def variance_part(law: Law, name: str) -> Part:
    """Var of the score, whatever the means."""
    gold, symbols = worked(law, law.variance_text()), law.symbols()
    planted = [Misconception("means left out of the variance", worked(law, law.centred_variance_text()))]
    if not law.values:
        other = replace(law, mean="scalar" if law.mean == "vector" else "vector")
        if law.mean == "scalar" or _plain(law):
            planted.insert(0, Misconception(_misreading(law), other.variance_text()))
    planted.append(Misconception("standard deviation for variance", _root(gold)))

    def steps() -> tuple[Step, ...]:
        one, two = law.spread_q.matrix(law.width), law.spread_k.matrix(law.width)
        outside = times(law.copies, number(law.factor**2))
        var = rf"\operatorname{{Var}}({law.dot})"
        first = times(law.copies, rf"\operatorname{{Var}}({law.score})")
        left, right = law.mean_q, law.mean_k
        if law.mean == "scalar":
            left, right = f"({left} 1_{{{law.width}}})", f"({right} 1_{{{law.width}}})"
        general = rf"\operatorname{{tr}}(({one}) ({two})) + {left}^T ({two}) {left} + {right}^T ({one}) {right}"
        general = f"{outside} ({general})" if outside else general
        found = [
            Step(
                "Split each vector into its mean and a deviation from it.",
                "The product of the deviations and the two products of a mean with a deviation have mean zero and no "
                "covariance with one another, so that three variances are added: a trace and two quadratic forms.",
                (times(outside, var), general),
                general,
                symbols,
            ),
            Step(
                "Put in the means and covariances.",
                f"A trace of the identity is ${law.width}$; a quadratic form of it is a squared length.",
                (general, *dict.fromkeys((law.variance_text(), gold))),
                gold,
                symbols,
            ),
        ]
        if outside:
            why = "A factor leaves a variance squared" + (
                "; variances of independent scores are added." if law.copies else "."
            )
            found.insert(0, Step("Take factors out.", why, (first, times(outside, var)), times(outside, var), symbols))
        return tuple(found)

    return Part(
        name,
        f"Find the variance of {score_words(law)}, whatever the means"
        + ("." if law.values else f", in terms of {terms(law)}."),
        moment_of(law, gold, symbols, asides=NOT_VARIANCE),
        steps,
        (
            "Write each vector as its mean and a deviation with mean zero. Which products are left?",
            _THREE,
            f"The two deviations give ${worked(law, law.trace_text())}$; the mean of ${law.q}$ against the other's "
            f"deviation gives ${worked(law, law.quadratic(law.mean_q, law.spread_k))}$; the third term is alike. Add "
            "them" + (" and mind the factors." if law.factor != 1 or law.copies else "."),
        ),
        3,
        distinct(planted, gold, symbols),
        symbols,
        (r"\bVar\b", r"\bvariance\b"),
        "Besides the product of the two deviations, each mean meets the other vector's deviation: a mean that is not "
        "zero adds to the variance.",
    )  # fmt: skip


def centred_part(law: Law, name: str, fixed: Mapping[str, str] | None = None) -> Part:
    """Var of the score where the means are zero; `fixed` gives values to standard deviations ("1" in the documents)."""
    fixed = law.unit() if fixed is None else fixed
    symbols = law.symbols(law.centred() | dict(fixed))
    formula = law.centred_variance_text({**law.values, **fixed})
    gold = worked(law, formula, dict(fixed))
    plain = _plain(law)
    known = {**law.values, **fixed}
    planted = [Misconception("standard deviation for variance", _root(gold))]
    if plain and not law.copies:
        planted.append(
            Misconception("terms not added", worked(law, replace(law, width="1").centred_variance_text(known)))
        )
    if plain and not law.values:
        wrong = replace(law, width=whole_width(law)).centred_variance_text(known)
        planted.append(Misconception("model width for head width", wrong))
    if law.factor != 1:
        once = times(str(law.factor), *replace(law, factor=1).centred_variance_text(known).split())
        planted.append(Misconception("factor not squared", worked(law, once)))

    def steps() -> tuple[Step, ...]:
        outside = times(law.copies, number(law.factor**2))
        start = times(law.copies, rf"\operatorname{{Var}}({law.score})")
        square = times(outside, f"E[({law.dot})^2]")
        q, k = law.q, law.k
        double = times(
            outside, rf"\sum_{{i=1}}^{{{law.width}}} \sum_{{j=1}}^{{{law.width}}} E[{q}_i {q}_j] E[{k}_i {k}_j]"
        )
        single = [times(outside, rf"\sum_{{i=1}}^{{{law.width}}} E[{q}_i^2] E[{k}_i^2]")] if plain else []
        return (
            Step(
                "The variance is the mean of the square.",
                "The mean of the score is zero when the means of the vectors are."
                + (" A factor comes out squared." if law.factor != 1 else "")
                + (" Variances of independent scores are added." if law.copies else ""),
                (start, square),
                square,
                symbols,
            ),
            Step(
                "Square the sum, and part the two vectors.",
                "Each product of two sums is a double sum; the vectors are independent.",
                (square, double),
                double,
                symbols,
            ),
            Step(
                "Only the terms that do not vanish are left.",
                "Different components are independent with mean zero, so that $i = j$ is left; a second moment is then "
                "a variance." if plain else "The second moments are the entries of the covariances: the sum over both "
                "indices is the trace of their product.",
                (double, *single, *dict.fromkeys((formula, gold))),
                gold,
                symbols,
            ),
        )  # fmt: skip

    special = special_case(law, fixed)
    return Part(
        name,
        f"{f'Now let {special}. ' if special else ''}What is the variance of {score_words(law)}"
        + (f", in terms of {terms(law, centred=fixed)}?" if not law.values else "?"),
        Moment(gold, widths(law, symbols), misread=law.symbols(), width=law.width, asides=NOT_VARIANCE),
        steps,
        (
            "With means of zero the variance is the mean of the square. What is the square of a sum?",
            f"Of the products $E[{law.q}_i {law.q}_j] E[{law.k}_i {law.k}_j]$ only some do not vanish. Which?",
            f"Each product ${law.q}_i {law.k}_i$ has a variance of its own, the product of two second moments; add one "
            "for every component" + (", and mind what multiplies them." if law.factor != 1 or law.copies else "."),
        ),
        misconceptions=distinct(planted, gold, symbols),
        symbols=symbols,
        cues=(r"\bVar\b", r"\bvariance\b"),
        explanation="The terms are independent with mean zero, so their variances are added, one for every component"
        + ("." if not law.model else f": ${law.width}$ of them, the width of one head."),
    )  # fmt: skip


def divisor_part(law: Law, name: str, fixed: Mapping[str, str] | None = None, wanted: str = "1") -> Part:
    """What to divide the score by for a variance of `wanted`, the means being zero."""
    fixed = law.unit() if fixed is None else fixed
    symbols = law.symbols(law.centred() | dict(fixed))
    variance = worked(law, law.centred_variance_text({**law.values, **fixed}), dict(fixed))
    over = variance if wanted == "1" else rf"\frac{{{variance}}}{{{wanted}}}"
    gold = _root(variance, wanted)
    wide = replace(law, width=whole_width(law)).centred_variance_text({**law.values, **fixed})
    wide = _root(wide, wanted)
    planted = [
        Misconception("divided by the variance", over),
        Misconception("no scaling", "1"),
        Misconception("factor for divisor", rf"\frac{{1}}{{{gold}}}"),
        Misconception("model width for head width", wide) if _plain(law) else None,
    ]  # fmt: skip

    def steps() -> tuple[Step, ...]:
        s, solved = law.divisor, law.symbols(law.centred() | dict(fixed) | {law.divisor: gold})
        var = times(law.copies, rf"\operatorname{{Var}}(\frac{{{law.score}}}{{{s}}})")
        out = times(rf"\frac{{1}}{{{s}^2}}", law.copies, rf"\operatorname{{Var}}({law.score})")
        quotient = rf"\frac{{{variance}}}{{{s}^2}}"
        return (
            Step(
                f"Take $1/{s}$ out of the variance.",
                "A factor leaves a variance squared; the mean stays zero whatever it is divided by.",
                (var, out, quotient),
                quotient,
                symbols,
            ),
            Step(
                f"Set it equal to ${wanted}$ and solve for ${s}$.",
                f"$-{gold}$ has the same variance but turns the order of the keys round: the positive root is meant.",
                (quotient, wanted),
                gold,
                solved,
            ),
        )

    special = special_case(law, fixed)
    summed = "the sum" if law.copies else "the score"
    return Part(
        name,
        f"{f'With {special}, {summed}' if special else summed.capitalize()} is divided by a positive number "
        f"${law.divisor}$. For which ${law.divisor}$ does "
        f"the quotient have mean 0 and variance ${wanted}$?",
        Divisor(
            gold,
            widths(law, symbols),
            misread=law.symbols(),
            width=law.width,
            unknown=law.divisor,
            asides=NOT_DIVISOR,
        ),
        steps,
        (
            f"What becomes of a variance when the variable is divided by ${law.divisor}$?",
            f"The variance is divided by ${law.divisor}^2$. Which equation does the wanted variance give?",
            f"Solve $\\frac{{{variance}}}{{{law.divisor}^2}} = {wanted}$ for the positive ${law.divisor}$.",
        ),
        misconceptions=distinct(planted, gold, widths(law, symbols)),
        symbols=symbols,
        cues=(rf"(?<![\w\\]){law.divisor}\s*=", r"\bscal(?:e|ing) (?:factor|by)", r"\bdivi(?:de|sor)"),
        explanation=f"Dividing by ${law.divisor}$ divides the variance by ${law.divisor}^2$, so the square root of "
        + ("the variance" if wanted == "1" else "the quotient of the two variances")
        + " is what to divide by; the mean is zero all the while.",
    )


def scaled_part(law: Law, name: str, moment: str) -> Part:
    """Mean or variance of the score divided by the root of the width, for any mean."""
    symbols = law.symbols()
    root = rf"\sqrt{{{law.width}}}"
    below, of = (root, law.mean_text()) if moment == "mean" else (law.width, law.variance_text())
    formula = rf"\frac{{{of}}}{{{below}}}"
    gold = worked(law, formula)
    if not law.means and _plain(law) and not law.values:  # the width cancels
        gold = "0" if moment == "mean" else replace(law, width="1").variance_text()
    operator = (
        (lambda inside: f"E[{inside}]") if moment == "mean" else (lambda inside: rf"\operatorname{{Var}}({inside})")
    )
    planted = [Misconception("no scaling", worked(law, of))]
    if moment == "variance":
        planted.append(Misconception("factor not squared", worked(law, rf"\frac{{{of}}}{{{root}}}")))
    if not law.values and _plain(law):
        other = replace(law, mean="scalar" if law.mean == "vector" else "vector")
        text = other.mean_text() if moment == "mean" else other.variance_text()
        planted.insert(0, Misconception(_misreading(law), rf"\frac{{{text}}}{{{below}}}"))

    def steps() -> tuple[Step, ...]:
        start = times(law.copies, operator(rf"\frac{{{law.score}}}{{{root}}}"))
        out = times(rf"\frac{{1}}{{{below}}}", law.copies, operator(law.score))
        why = "Expectation is linear." if moment == "mean" else "A factor leaves a variance squared."
        return (
            Step("Take the factor out.", why, (start, out), out, symbols),
            Step(
                f"Put in the {moment} of the score.",
                "It is that of the score as it stands.",
                (out, *dict.fromkeys((formula, gold))),
                gold,
                symbols,
            ),
        )

    return Part(
        name,
        f"The score is divided by ${root}$. Find the {moment} of the quotient, whatever the means"
        + ("." if law.values else f", in terms of {terms(law)}."),
        moment_of(law, gold, symbols, asides=NOT_MEAN if moment == "mean" else NOT_VARIANCE),
        steps,
        (
            f"How does a {moment} answer to a constant factor?",
            "A mean takes the factor as it is, a variance takes its square.",
            f"Divide the {moment} of the score by ${below}$.",
        ),
        misconceptions=distinct(planted, gold, symbols),
        symbols=symbols,
        cues=(r"\bE\}?\s*(?:\\left)?\s*[\[(]", r"\bmean\b") if moment == "mean" else (r"\bVar\b", r"\bvariance\b"),
        explanation=f"The {moment} of the score, divided by ${below}$.",
    )


def worked(law: Law, formula: str, fixed: Mapping[str, str] | None = None) -> str:
    """The formula, or its number where the law gives numbers to all of its names."""
    if not law.values:
        return formula
    from ...maths import parse
    from ...maths.values.evaluate import evaluate

    found = evaluate(parse(formula, law.symbols(fixed)), {}, {})
    if not isinstance(found, Fraction):
        return formula
    return str(found) if found.denominator == 1 else rf"\frac{{{found.numerator}}}{{{found.denominator}}}"


def _root(text: str, over: str = "1") -> str:
    """The square root of a text over a number, squares taken out of it.

    >>> _root("81 d", "4"), _root("12 d"), _root("16")
    ('\\\\frac{9}{2} \\\\sqrt{d}', '\\\\sqrt{12 d}', '4')
    """
    whole, _, rest = text.partition(" ") if not text.isdigit() else (text, "", "")
    if not whole.isdigit():
        whole, rest = "1", text
    top, bottom = isqrt(int(whole)), isqrt(int(over))
    if top**2 != int(whole) or bottom**2 != int(over) or rest.startswith("+"):
        return rf"\sqrt{{{text}}}" if over == "1" else rf"\sqrt{{\frac{{{text}}}{{{over}}}}}"
    factor = Fraction(top, bottom)
    shown = str(factor) if factor.denominator == 1 else rf"\frac{{{factor.numerator}}}{{{factor.denominator}}}"
    root = rf"\sqrt{{{rest}}}" if rest else ""
    return root if root and factor == 1 else times(shown, root)


def _dependent(law: Law) -> str:
    """What E would be if the key were the query itself; empty where the law does not allow the mistake."""
    if not (law.same_mean and law.same_spread and law.spread_q.kind == "equal") or law.values:
        return ""
    extra = times(law.copies, number(law.factor), law.width, law.spread_q.scale)
    return f"{law.mean_text()} + {extra}"


def _plain(law: Law) -> bool:
    """Whether both covariances are multiples of the identity."""
    return law.spread_q.plain and law.spread_k.plain


def _misreading(law: Law) -> str:
    return "mean read as a scalar" if law.mean == "vector" else "mean read as a vector"
