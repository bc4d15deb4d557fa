"""The questions on attention with a kernel as a formula: each a part, for any degree, sizes and names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..judging.answers import Value
from ..judging.prose import Idea
from ..judging.wording import normalised
from ..outcome import Outcome
from ..problem import Misconception, Part, Step
from .answers import Condition, Rewritten
from .features import FeatureMap, names_constant, no_mixed_products
from .setting import Setting

POSITIVE = (
    r"(?:(?:strictly )?positiv(?:e|ity)(?! (?:semi ?-?)?definite| or (?:equal|zero|0)| and negative)|"
    r"(?:is )?greater than (?:0|zero)(?! or equal))"
)
NOT_ZERO = (
    r"(?:non ?zero|not (?:equal to |be |become |reach |equal |is )?(?:0|zero)|not vanish|never (?:vanish|cancel)\w*|"
    r"never (?:be |reach\w* |become |equals? |is )?(?:0|zero)|bounded away from (?:0|zero)|"
    r"(?:differs?|different|distinct) from (?:0|zero))"
)
NOT_NEGATIVE = (
    r"(?:nonnegativ\w+|is at least (?:0|zero)|not (?:be )?negative|none (?:\w+ ){0,3}negative|never (?:be )?negative|"
    r"no negative|positive or (?:zero|0)|greater than or equal to (?:0|zero))"
)
BELOW = r"(?:denominators?|sums?|normali[sz]\w+(?: \w+)?|total)"
SIMILARITY = r"(?:sim\b|similarit(?:y|ies)|kernel)"
ONE_KEY = r"(?:at least one|not all|some (?:key|term|j|k)|one (?:term|key|of them))"

FINITE = Idea(
    "that the sum below the fraction is never 0",
    (
        rf"{BELOW} … {POSITIVE}",
        rf"{SIMILARITY} … {POSITIVE}",
        rf"{SIMILARITY} … {NOT_ZERO} … same sign",
        rf"^(?:it|this|they|must|has to|should|all|every|each|always|strict\w*) (?:\w+ ){{0,6}}?{POSITIVE}",
        rf"^{POSITIVE}",
        rf"{SIMILARITY} … (?:not|never) (?:be )?(?:negative or (?:0|zero)|(?:0|zero) or negative)",
        rf"{NOT_NEGATIVE} … {ONE_KEY}",
        rf"{ONE_KEY} … {NOT_NEGATIVE}",
    ),
    "The sum of the similarities of a query must not be 0: it is enough that every similarity is positive.",
)
ENOUGH = Idea(
    "not negative is enough",
    (rf"{NOT_NEGATIVE} (?:(?!not\b)[\w,]+ ){{0,6}}(?:enough|suffic\w+)", rf"(?:enough|suffic\w+) … {NOT_NEGATIVE}"),
    "similarities that are not negative can all be 0 for a query, and then there is nothing to divide by",
)  # fmt: skip
RESTATED = Idea(
    "that the sum below the fraction must not be 0, which the question says already: say what of sim ensures it",
    (rf"{BELOW} … {NOT_ZERO}", r"not (?:all )?(?:of them )?(?:divide|dividing) by (?:0|zero)", r"not all (?:0|zero)"),
)
OTHER_CONDITIONS = (
    Idea(
        "negative similarities",
        (rf"{SIMILARITY} … (?:at most|below|less than(?: or equal to)?) (?:0|zero)",
         rf"{SIMILARITY} … (?:negative|nonpositive)\b"),
        "negative similarities are no weights, and with 0 among them the sum may vanish",
    ),
    Idea(
        "not zero for every pair",
        (rf"{SIMILARITY} … {NOT_ZERO}", rf"{NOT_ZERO} … (?:pairs?|every|each|all)\b", r"sign … irrelevant"),
        "similarities that are not 0 may have both signs and cancel in the sum",
    ),
    Idea(
        "another property",
        (r"(?:symmetric|symmetry|differentiable|continuous|smooth|bounded|linear|convex|invertible|normali[sz]ed)\b",
         r"positive (?:semi ?-?)?definite", r"between -1 and 1", (rf"{SIMILARITY} … (?:at most|below|"
         rf"less than(?: or equal to)?) (?:1|one)\b")),
        "that property does not keep the sum of similarities from being 0",
    ),
    Idea(
        "no condition",
        (r"any (?:real )?(?:values?|numbers?|function|kernel|squared)", r"no condition", r"nothing (?:is|has)"),
        "without a condition the similarities of a query may cancel or all be 0",
    ),
    Idea(
        "a square is always positive",
        (rf"squar\w+ … {POSITIVE}",),
        "a square may be 0, and the question is about every similarity",
    ),
)  # fmt: skip


def condition_part(at: Setting, name: str) -> Part:
    n = at.length

    def steps() -> tuple[Step, ...]:
        vanishing = {
            "s": "scalar",
            "t": "scalar",
            "q": "vector[2] = (1, 0)",
            "k": "matrix[2,2] = [[s - 1, 0], [t - 1, 3]]",
        }
        return (
            Step(
                "Only the sum below the fraction can make it infinite.",
                "The sum above is finite; a quotient is finite where what is divided by is not 0. So the sum of "
                f"$sim(Q_i, K_j)$ over the ${n}$ keys must not be 0, for every query $i$.",
            ),
            Step(
                "No negative similarity, and one that is positive for every query, are enough.",
                "Then nothing cancels. The exponential is always positive. A square is not: the sum below can be 0.",
                (r"\sum_{j=1}^{2} (q^T k_j + 1)^2", "((s - 1) + 1)^2 + ((t - 1) + 1)^2", "s^2 + t^2"),
                "s^2 + t^2",
                vanishing,
            ),
        )

    planted = "It is enough that $sim(q, k) \\ge 0$ for all q and k."
    return Part(
        name,
        "Which condition must $sim$ meet for the answer to be finite, whatever the values are?",
        Condition(
            (FINITE,),
            (ENOUGH,),
            "The sum of sim(q_i, k_j) over the keys is never 0; every similarity being positive ensures it, or none "
            "being negative and at least one positive for every query.",
            partly=(RESTATED,),
            instead=OTHER_CONDITIONS,
        ),
        steps,
        (
            "A fraction is finite unless something happens to its denominator.",
            "When can a sum of similarities be 0? Think of terms that cancel, and of terms that are all 0.",
            "Say what must hold of the sum over the keys for every query, and which property of $sim$ ensures it.",
        ),
        2,
        (Misconception("nonnegative is enough", planted),),
        at.symbols,
        (r"\bfinite\b", r"\bdenominator\b", r"\bcondition"),
        "The sum over the keys stands below the fraction and must not vanish for any query. Positive similarities "
        "ensure that; similarities that are merely not negative may all be 0.",
        (Misconception("squared kernel assumed", "", squared_kernel_assumed),),
    )


def squared_kernel_assumed(text: str) -> bool:
    """Whether an explanation takes the kernel for a square, where the question is about every similarity."""
    pattern = r"(?:since|because|as|given that|we (?:are )?us\w+)\b[^.]{0,60}\b(?:squar\w+|quadratic)\b|squared kernel"
    return re.search(pattern, normalised(text)) is not None


def kernel_part(at: Setting, name: str) -> Part:
    kind = {2: "quadratic", 3: "cubic"}[at.degree]
    types = {at.q: f"vector[{at.width}]", at.k: f"vector[{at.width}]"}
    inside = f"{at.q}^T {at.k}"
    other = f"({inside})^{at.degree}" if at.constant else f"({inside} + 1)^{at.degree}"
    expanded = {
        (2, 1): (f"({inside})^2 + 2 {inside} + 1",),
        (2, 0): (rf"\sum_{{i=1}}^{{{at.width}}} \sum_{{j=1}}^{{{at.width}}} {at.q}_i {at.q}_j {at.k}_i {at.k}_j",),
        (3, 1): (f"({inside})^3 + 3 ({inside})^2 + 3 {inside} + 1",),
        (3, 0): (f"({inside})^2 {inside}",),
    }[at.degree, at.constant]
    return Part(
        name,
        f"Write down $sim({at.q}, {at.k})$ for {kind} kernel attention.",
        KernelValue(at.kernel, types, other=other, constant=at.constant, either=at.open_constant),
        lambda: (
            Step(
                f"Put the degree {at.degree} and the constant {at.constant} into the polynomial kernel.",
                "A polynomial kernel is a power of the dot product and a constant.",
                (at.kernel, *expanded),
                at.kernel,
                types,
            ),
        ),
        (
            "A polynomial kernel is a power of something simple.",
            "It is the dot product of the two vectors, with a constant added, raised to the degree.",
            f"Put the degree {at.degree} and the constant {at.constant} into $({inside} + c)^r$.",
        ),
        1,
        (
            Misconception("constant left out of the kernel" if at.constant else "constant added to the kernel", other),
            Misconception("degree not applied", f"{inside} + {at.constant}" if at.constant else inside),
        ),
        at.symbols,
        (r"\bquadratic kernel", r"\bpolynomial kernel", rf"sim\}}?\s*\(\s*{at.q}", r"\bkernel\s*:"),
        f"The degree is {at.degree} and the constant {at.constant}.",
    )


@dataclass(frozen=True)
class KernelValue(Value):
    """The kernel; with the other constant it is another one, unless the question leaves the constant open."""

    other: str = ""
    constant: int = 1
    either: bool = False

    def check(self, answer: str) -> Outcome:
        plain = re.sub(r"(?:<|\\langle|⟨)\s*([a-z])\s*,\s*([a-z])\s*(?:>|\\rangle|⟩)", r"\1^T \2", answer)
        outcome = super().check(plain)
        formulas = re.findall(r"\$+([^$]{1,400})\$+", plain)[-4:] if outcome.kind == "unread" else []
        for formula in reversed(formulas):
            if outcome.kind == "unread" and not _GENERAL.search(formula):
                outcome = super().check(formula.rpartition("=")[2])
        if outcome.kind in ("unread", "wrong") and _GENERAL.search(plain):
            return Outcome("incomplete", "that is every polynomial kernel: put in the degree and the constant")
        if outcome.kind == "wrong" and self.same(self.other, plain):
            if self.either:
                return Outcome("right", "the quadratic kernel without its constant, which the question leaves open")
            if names_constant(answer, 1 - self.constant):
                condition = f"the constant of the kernel is {1 - self.constant}, not {self.constant}"
                return Outcome("conditional", f"right only if {condition}", condition=condition)
        return outcome


_GENERAL = re.compile(r"\)\s*\^\s*\{?\s*(?!T\b)[a-zA-Z]\b")


def map_part(at: Setting, name: str) -> Part:
    d, q, k = at.width, at.q, at.k
    types = {q: f"vector[{d}]", k: f"vector[{d}]"}
    listed = rf"{q}_1^2, \dots, {q}_{d}^2, \sqrt{{2}} {q}_1 {q}_2, \dots, \sqrt{{2}} {q}_{{{d}-1}} {q}_{d}"
    if at.constant:
        listed += rf", \sqrt{{2}} {q}_1, \dots, \sqrt{{2}} {q}_{d}, 1"
    one, pairs = rf"\sum_{{i=1}}^{{{d}}}", rf"\sum_{{1 \le i < j \le {d}}}"

    def steps() -> tuple[Step, ...]:
        tail = f" + 2 {one} {q}_i {k}_i + 1" if at.constant else ""
        apart = rf" + {one} (\sqrt{{2}} {q}_i) (\sqrt{{2}} {k}_i) + 1" if at.constant else ""
        sums = f"{one} {q}_i^2 {k}_i^2 + 2 {pairs} {q}_i {q}_j {k}_i {k}_j{tail}"
        products = rf"{one} ({q}_i^2) ({k}_i^2) + {pairs} (\sqrt{{2}} {q}_i {q}_j) (\sqrt{{2}} {k}_i {k}_j){apart}"
        return (
            Step(
                "Multiply the kernel out.",
                "The square of the dot product has each square once and each mixed product twice.",
                (at.kernel, sums),
                sums,
                types,
            ),
            Step(
                "Write every term as a product of the same feature of both vectors.",
                r"$2 = \sqrt{2} \sqrt{2}$: each vector takes one of the roots.",
                (sums, products),
                rf"\phi({q}) = [{listed}]",
                types,
            ),
        )

    end = ", 1" if at.constant else ""
    single = rf"\phi({q}) = [{q}_1, \dots, {q}_{d}{end}]"
    wrong = (
        Misconception("d features instead of d squared", single, no_mixed_products),
        Misconception("square roots of two left out", rf"\phi({q}) = [{listed.replace(chr(92) + 'sqrt{2} ', '')}]"),
    )
    return Part(
        name,
        rf"Give a feature map $\phi$ with $\phi({q})^T \phi({k})$ equal to the quadratic kernel.",
        FeatureMap(at.constant, rf"\phi({q}) = [{listed}]", q, d, at.open_constant),
        steps,
        (
            "Multiply the kernel out, component by component.",
            "Every term must become a feature of the query times the same feature of the key. Which terms come twice?",
            r"Squares have weight 1 and mixed products weight 2, which two factors $\sqrt{2}$ share"
            + ("; the dot product itself has weight 2 as well, and a 1 is left." if at.constant else "."),
        ),
        3,
        wrong,
        at.symbols,
        (r"\bfeature map", r"\\phi\s*\(", r"\bphi\s*\("),
        "Every product of two components is a feature; what comes twice in the square carries a factor $\\sqrt{2}$.",
    )


def rewrite_part(at: Setting, name: str) -> Part:
    total = rf"\sum_{{j=1}}^{{{at.length}}}"
    gold = at.attention(r"(\phi(Q_i)^T \phi(K_j))")
    linear = rf"\frac{{({total} V_j \phi(K_j)^T) \phi(Q_i)}}{{\phi(Q_i)^T {total} \phi(K_j)}}"
    every = rf"\sum_{{l=1}}^{{{at.length}}} \phi(Q_l)^T \phi(K_j)"
    down = rf"{total} \frac{{\phi(Q_i)^T \phi(K_j)}}{{{every}}} V_j"
    symbols = at.symbols
    aliases = {
        small: f"matrix[{at.length},{size}] = {large}"
        for small, large, size in (("q", "Q", at.width), ("k", "K", at.width), ("v", "V", at.value))
        if small not in (at.length, at.width, at.value)
    }

    def steps() -> tuple[Step, ...]:
        return (
            Step(
                "Put the product of features in the place of the similarity.",
                r"The kernel is $\phi(Q_i)^T \phi(K_j)$.",
                (gold, at.attention(r"(\phi(K_j)^T \phi(Q_i))")),
                gold,
                symbols,
            ),
            Step(
                "Move what does not depend on the key out of the sums.",
                "The product of matrices is associative, so that the sums over the keys are made once for all queries.",
                (gold, linear),
                linear,
                symbols,
            ),
        )

    return Part(
        name,
        r"A kernel is $\phi(q)^T \phi(k)$ for some feature map $\phi$. Write the answer to query $i$ with $\phi$.",
        Rewritten(gold, symbols | aliases),
        steps,
        (
            "What stands in the place of the similarity?",
            r"Each similarity is a product of the features of the query and those of a key, above and below.",
            r"Replace $sim(Q_i, K_j)$ by the product of $\phi(Q_i)$ and $\phi(K_j)$, above and below.",
        ),
        2,
        (
            Misconception("normalisation left out", rf"{total} (\phi(Q_i)^T \phi(K_j)) V_j"),
            Misconception("query and key swapped", at.attention(r"(\phi(K_i)^T \phi(Q_j))")),
            Misconception("softmax over the wrong axis", down),
        ),
        symbols,
        (r"\brewrit", r"V'_\{?i", r"\blineari[sz]ed equation", r"\bassociativ"),
        "The similarity is replaced in both sums; as the features of the query do not depend on the key, they can "
        "stand outside.",
    )


def count_part(at: Setting, name: str) -> Part:
    d = at.width
    types = {d: "natural"}
    kinds = "of at most" if at.constant else "of exactly"
    squares = {
        (2, 1): rf"{d} + \frac{{{d} ({d} - 1)}}{{2}} + {d} + 1",
        (2, 0): rf"{d} + \frac{{{d} ({d} - 1)}}{{2}}",
        (3, 1): rf"\frac{{{d} ({d} + 1)({d} + 2)}}{{6}} + \frac{{{d} ({d} + 1)}}{{2}} + {d} + 1",
        (3, 0): rf"{d} + {d} ({d} - 1) + \frac{{{d} ({d} - 1)({d} - 2)}}{{6}}",
    }[at.degree, at.constant]
    return Part(
        name,
        "How many different monomials in the components of a vector does the kernel's feature map need, in terms of "
        f"${d}$?",
        Value(at.features, types),
        lambda: (
            Step(
                f"Count the monomials {kinds} degree {at.degree}.",
                "Each kind is counted by itself: powers of one component, and products of several.",
                (squares, at.features),
                at.features,
                types,
            ),
        ),
        (
            "Which monomials appear when the kernel is multiplied out?",
            f"They are all monomials {kinds} degree {at.degree} in ${d}$ variables; $x_1 x_2$ and $x_2 x_1$ are one.",
            f"Add the kinds: ${squares}$, and simplify.",
        ),
        2,
        (
            Misconception("d features instead of d squared", d),
            Misconception("ordered products counted", f"{d}^{at.degree}"),
        ),
        types,
        (r"\bhow many\b", r"\bfeatures\b", r"\bdimension"),
        f"Monomials {kinds} degree {at.degree}, each once: of the order of ${d}^{at.degree}$.",
    )
