"""Questions on a kernel at numbers: a similarity, a denominator that vanishes, the length from which sums pay."""

from __future__ import annotations

from fractions import Fraction

from ..judging.answers import Value
from ..problem import Misconception, Part, Step
from ..saturation.numbers import fraction
from .setting import Setting


def similarity_part(at: Setting, name: str) -> Part:
    query, key = at.query, at.key
    dot = sum(a * b for a, b in zip(query, key, strict=True))
    gold = (dot + at.constant) ** at.degree
    types = {at.q: f"vector[{len(query)}] = ({', '.join(map(str, query))})"}
    types[at.k] = f"vector[{len(key)}] = ({', '.join(map(str, key))})"
    inside = f"({dot} + {at.constant})" if at.constant else f"({dot})"
    wrong = [("degree not applied", dot + at.constant), ("constant left out of the kernel", dot**at.degree)]
    wrong.append(("constant added to the kernel", (dot + 1) ** at.degree))
    planted = dict.fromkeys(str(value) for _, value in wrong if value != gold)
    named = {str(value): title for title, value in reversed(wrong) if value != gold}
    return Part(
        name,
        f"Take ${at.q} = ({', '.join(map(str, query))})$ and ${at.k} = ({', '.join(map(str, key))})$. How large is "
        f"$sim({at.q}, {at.k})$?",
        Value(str(gold), types),
        lambda: (
            Step("Take the dot product.", "Component by component.", (f"{at.q}^T {at.k}", str(dot)), dot, types),
            Step(
                "Put it into the kernel.",
                "Add the constant and raise to the degree.",
                (at.kernel, f"{inside}^{at.degree}", str(gold)),
                gold,
                types,
            ),
        ),
        (
            "The kernel needs one number of the two vectors only.",
            "That is their dot product; then the constant, then the power.",
            f"The dot product is ${dot}$: put it into the kernel.",
        ),
        1,
        tuple(Misconception(named[value], value) for value in planted),
        types,
        (r"\bsim\b",),
        "One dot product, a constant and a power.",
    )


def vanishing_part(at: Setting, name: str) -> Part:
    """For which first component of the key the similarity with a query vanishes."""
    first, second = at.query[0], at.query[1]
    other = at.key[1]
    # first · t + second · other + constant = 0
    root = Fraction(-at.constant - second * other, first)
    gold = fraction(root)
    types = {"t": "scalar", at.q: f"vector[2] = ({first}, {second})", at.k: f"vector[2] = (t, {other})"}
    solved = {**types, "t": f"scalar = {gold}"}
    sign = Fraction(at.constant + second * other, first)
    wrong = fraction(sign)
    planted = [Misconception("sign lost", wrong)] if sign != root else []
    linear = f"{first} t + {second * other + at.constant}"
    return Part(
        name,
        f"A query $({first}, {second})$ meets one key, $(t, {other})$. For which $t$ is the sum below the fraction "
        "0, so that the answer is not defined?",
        Value(gold, {}),
        lambda: (
            Step(
                "Write the similarity out.",
                "With one key the sum is one similarity.",
                (at.kernel, f"({linear})^{at.degree}"),
                f"({linear})^{at.degree}",
                types,
            ),
            Step("Set it to 0.", "A power is 0 where its base is.", (f"({linear})^{at.degree}", "0"), gold, solved),
        ),
        (
            "With one key the sum has one term.",
            "A power vanishes where its base does: a linear equation for $t$.",
            f"Solve ${linear} = 0$.",
        ),
        2,
        tuple(planted),
        types,
        (r"\bnot defined\b", r"\bvanish"),
        "A power of an inner product is 0 where the product is: such a kernel does not keep the denominator from "
        "vanishing.",
    )


def crossover_part(at: Setting, name: str) -> Part:
    d = at.concrete
    base = {(2, 1): (d + 1) * (d + 2) // 2, (2, 0): d * (d + 1) // 2, (3, 1): (d + 1) * (d + 2) * (d + 3) // 6}
    features = base.get((at.degree, at.constant), d * (d + 1) * (d + 2) // 6)
    n = at.length
    types = {n: "natural"}
    return Part(
        name,
        f"Take ${at.width} = {at.value} = {d}$. Softmax attention takes ${n}^2 {at.width} + {n}^2 {at.value}$ products "
        f"and the linear form $2 {n} F {at.value}$, with $F$ monomials. At which length ${n}$ are they equal?",
        Value(str(features), types),
        lambda: (
            Step(
                "Count the monomials.",
                f"Put ${at.width} = {d}$ into their number.",
                (at.features.replace(at.width, str(d)), str(features)),
                features,
            ),
            Step(
                "Set the two counts equal and divide by what both have.",
                f"Both hold ${2 * d}$ times the length, which leaves the length on one side and $F$ on the other.",
                (f"{2 * d} {n}^2", f"{2 * d} {n} \\cdot {features}"),
                features,
                {n: f"natural = {features}"},
            ),
        ),
        (
            "Write both counts with the number put in; what do they share?",
            f"Divide both by ${2 * d} {n}$.",
            "What is left is the number of monomials: count them for this width.",
        ),
        2,
        (
            Misconception("d features instead of d squared", str(d)),
            Misconception("ordered products counted", str(d**at.degree)),
        ),
        types,
        (r"\bequal\b", r"\bcross"),
        "The linear form pays as soon as the sequence is longer than the number of features.",
    )
