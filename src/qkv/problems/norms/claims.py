"""What can be proved of normalised vectors: their length, their sum, and what of the input leaves no trace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from ...maths import compare, equal
from ...theory.normalisation import LAYER, WITH_EPSILON
from ..judging.answers import Answer, Value, from_verdict, unreadable
from ..judging.chains import Chain
from ..outcome import Outcome
from ..problem import Misconception, Part, Step

_LENGTH = r"\|y - \beta \mathbf{1}\|"
_IN_WORDS = (
    r"(?:unit variance|variance (?:of |is )?(?:1|one))|squares?d?\b.{0,40}(?:add|sum)|mean (?:of the )?square",
    r"root|√|\\sqrt|sqrt",
)
_BATCH = re.compile(
    r"(?:over|across|along|in|of) the (?:whole )?batch|batch (?:mean|statistics)|per[- ]feature", re.IGNORECASE
)
_DEFINES = re.compile(
    # It begins a line or a clause: after an operator the name is a factor of what stands before.
    r"(?:^|[\n,;:.]|\b(?:where|with|let|and|define|as|put|take|for|then|so|since))\s*((?:[yz]|\\?mu|\\?sigma|μ|σ)(?:\^\{?2\}?|²)?)\s*:?=\s*((?:(?!,\s|;|=|\n|\.\s|\b(?:so|and|with|where|then|hence)\b).)+)"
)
_LETTER = r"(?<![\\A-Za-z])(\\[a-z]+|[A-Za-z])\s*\$?"
_CALLED = {
    name: re.compile(
        rf"{_LETTER}\s+(?:for|be|is|denotes?|as)\s+(?:(?:the|its|their)\s+)?{what}\b|\b{what},?\s+\$?\s*{_LETTER}(?![\w'])",
    )
    for name, what in ((r"\mu", "mean"), (r"\sigma", "(?:standard )?deviation"))
}
_WITH_BATCH = (
    r"$\|y - \beta \mathbf{1}\|^2 = \gamma^2 \sum_j (x_j - \mu_j)^2 / \sigma_j^2 = \gamma^2 d$, where "
    r"$\sigma_j$ is the deviation of feature j over the batch"
)
_SIGNED = {**LAYER, "gamma": "nonnegative"}
_ROOT_MEAN = {
    "x": "vector[d]",
    "gamma": "scalar",
    "rho": r"scalar = \sqrt{\frac{1}{d} \|x\|^2}",
    "y": r"vector[d] = \gamma x / \rho",
}
# With the input c x + b 1 in the place of x; y is what x itself gives.
_OTHER = {
    **{name: LAYER[name] for name in ("x", "gamma", "beta", "mu", "sigma", "y", "z")},
    "c": "positive",
    "b": "scalar",
    "epsilon": "nonnegative",
}


@dataclass(frozen=True)
class AsWritten(Value):
    """A value that is read as it stands first: a stroke at its beginning is an absolute value, not a table's edge."""

    def check(self, answer: str) -> Outcome:
        if unreadable(answer) is None and (verdict := compare(self.gold, answer, self.symbols)).kind != "unreadable":
            return from_verdict(verdict)
        return super().check(answer)

    def same(self, wrong: str, answer: str) -> bool:
        return equal(wrong, answer, self.symbols) or super().same(wrong, answer)


@dataclass(frozen=True)
class _Proof(Chain):
    """A proof about one vector: statistics of the batch have no place in it."""

    def in_own_names(self, answer: str) -> str:
        """An answer with this proof's names for mean and deviation, where it says which letters it has for them."""
        for name, pattern in _CALLED.items():
            for found in islice(pattern.finditer(answer), 4):
                letter = found[1] or found[2]
                if letter.lstrip("\\") not in {*self.symbols, "a", "A", "I"}:
                    own = rf"(?<![A-Za-z\\]){re.escape(letter)}(?![A-Za-z])"
                    answer = re.sub(own, lambda _, name=name: name, answer)
                    break
        return answer

    def check(self, answer: str) -> Outcome:
        answer = self.in_own_names(answer)
        outcome = super().check(answer)
        if outcome.kind == "incomplete" and _BATCH.search(answer):
            return Outcome("wrong", "mean and variance are those of one vector, over its features, not over the batch")
        if outcome.kind == "right" and (false := self._false_definition(answer)) is not None:
            return Outcome("wrong", f"{false} does not hold: look at the definitions")
        return outcome

    def _false_definition(self, answer: str) -> str | None:
        """What an answer says of y, z, the mean or the deviation on the way that is not so; None where all holds."""
        plain = answer.replace("$", " ")
        for pattern, spelling in self.spellings:
            plain = re.sub(pattern, spelling, plain)
        plain = re.sub(r"(?<![\\\w])(mu|beta) 1\b(?!_)", r"\1 1_{d}", plain)
        for found in islice(_DEFINES.finditer(plain), 8):
            said = found[2].strip(" .")
            # "z has mu = 0 and sigma = 1" speaks of z's own.
            if not re.fullmatch(r"[\d.\s]*", said) and compare(found[1], said, self.symbols).kind in (
                "different",
                "conditional",
            ):
                return f"{found[1]} = {said}"
        return None


@dataclass(frozen=True)
class Claim:
    """A question about a norm in general: the chain of expressions that answers it, and the mistakes on the way."""

    name: str
    given: str
    ask: str
    chain: tuple[str, ...]
    symbols: Mapping[str, str] = field(hash=False)
    what: str
    why: str
    wrong: tuple[tuple[str, str], ...]
    hints: tuple[str, str, str]
    explanation: str
    proof: bool = False
    scale: str = r"\gamma"

    @property
    def answer(self) -> Answer:
        if self.proof:
            return _Proof(
                self.chain[0],
                self.chain[-1],
                self.symbols,
                through=self.chain[1:-1],
                also=(r"|\gamma| \sqrt{d}", rf"{self.scale} \sqrt{{d}}"),
                words=_IN_WORDS,
                spellings=(
                    (r"(\\(?:beta|mu)|[βμ])\s*(?:\{\s*)?1(?:\s*\})?(?![\d_.])", r"\1 1_{d}"),
                    (r"\\mathbf\s*(?:\{\s*1\s*\}|1)(?!\s*_)|𝟏", "1_{d}"),
                ),
            )
        return AsWritten(self.chain[-1], self.symbols)


CLAIMS: dict[str, Claim] = {
    each.name: each
    for each in (
        Claim(
            "proof",
            r"Layer normalisation with one scale $\gamma \ge 0$ and one shift $\beta$ for all components, and "
            r"$\epsilon = 0$, turns a vector $x$ of $d$ components, not all equal, into $y$.",
            r"Prove that $\|y - \beta \mathbf{1}\| = \gamma \sqrt{d}$.",
            (_LENGTH, r"\|\gamma z\|", r"\gamma \|z\|", (r"\gamma \frac{\|x - \mu "
                                                        r"\mathbf{1}\|}{\sigma}"), r"\gamma \sqrt{d}"),
            _SIGNED,
            "Put in the definitions, from the outside in.",
            r"$y = \gamma z + \beta \mathbf{1}$ and $z = (x - \mu \mathbf{1}) / \sigma$; a norm takes out a factor "
            r"that is not negative; and $\sigma$ is $\|x - \mu \mathbf{1}\|$ divided by $\sqrt{d}$.",
            (("width instead of its root", r"\|y - \beta \mathbf{1}\|_2 = \|\gamma z\|_2 = \gamma d"),),
            (
                r"Write $y$ with the normalised vector $z$ first.",
                r"What is $\|z\|$? Use the definition of $\sigma$.",
                r"$\|x - \mu \mathbf{1}\|^2 = d \sigma^2$; take the root and divide by $\sigma$.",
            ),
            r"After the shift is taken off, $\gamma z$ is left, and $\|z\| = \sqrt{d}$ because $\sigma$ is the root "
            r"of the mean of the squares that $\|z\|$ adds up.",
            proof=True,
        ),
        Claim(
            "length",
            r"Layer normalisation with one scale $\gamma$ of any sign, one shift $\beta$ and $\epsilon = 0$ turns "
            r"$x$, a vector of $d$ components that are not all equal, into $y$.",
            r"What is $\|y - \beta \mathbf{1}\|$ in terms of $\gamma$ and $d$?",
            (_LENGTH, r"\|\gamma z\|", r"|\gamma| \|z\|", r"|\gamma| \sqrt{d}"),
            LAYER,
            "Take the shift off and the factor out.",
            r"A norm takes the absolute value of a factor, and $\|z\| = \sqrt{d}$.",
            (("sign of the scale", r"\gamma \sqrt{d}"), ("width instead of its root", r"|\gamma| d")),
            (
                r"What is left of $y$ when $\beta \mathbf{1}$ is taken off?",
                r"A norm takes out the absolute value of a factor; then find $\|z\|$.",
                (r"The mean of the squares of $z$ is 1 and there are $d$ of them: what is the root of their sum, times "
                r"$|\gamma|$?"),
            ),
            r"What is left is $\gamma z$; a norm takes out $|\gamma|$, and $\|z\| = \sqrt{d}$.",
        ),
        Claim(
            "epsilon",
            r"Layer normalisation divides by $\sqrt{\sigma^2 + \epsilon}$ with $\epsilon > 0$, where $\sigma$ is the "
            r"deviation of the $d$ components of $x$; scale $\gamma$ and shift $\beta$ are one number each, and $y$ "
            r"is what comes out.",
            r"What is $\|y - \beta \mathbf{1}\|$ in terms of $\gamma$, $d$, $\sigma$ and $\epsilon$?",
            (_LENGTH, r"\frac{|\gamma|}{\sqrt{\sigma^2 + \epsilon}} \|x - \mu \mathbf{1}\|",
             r"|\gamma| \sqrt{d} \frac{\sigma}{\sqrt{\sigma^2 + \epsilon}}"),
            WITH_EPSILON,
            "Take the shift off and the factor out.",
            r"$\|x - \mu \mathbf{1}\| = \sigma \sqrt{d}$, whatever it is divided by afterwards.",
            (("epsilon left out", r"|\gamma| \sqrt{d}"),),
            (
                r"Which step of the proof without $\epsilon$ still holds?",
                r"$\|x - \mu \mathbf{1}\|$ is $\sigma \sqrt{d}$; what is it divided by?",
                r"Multiply $|\gamma|$ by $\sigma \sqrt{d}$ and divide by the root in the denominator.",
            ),
            r"The vector has length $\sigma \sqrt{d}$ before it is divided by $\sqrt{\sigma^2 + \epsilon}$.",
        ),
        Claim(
            "sum",
            r"Layer normalisation with one scale $\gamma$, one shift $\beta$ and $\epsilon = 0$ turns $x$, a vector "
            r"of $d$ components that are not all equal, into $y$.",
            r"What is the sum of the components of $y$?",
            (r"\mathbf{1}_d^\top y", r"\gamma \mathbf{1}_d^\top z + \beta \mathbf{1}_d^\top \mathbf{1}_d", r"d \beta"),
            LAYER,
            "Add up both terms.",
            r"The components of $z$ add up to 0, for the mean was taken off; the shift is added $d$ times.",
            (("sum for the mean", r"\beta"), ("shift left out", "0")),
            (
                r"What do the components of $z$ add up to?",
                r"Add up $\gamma z$ and $\beta \mathbf{1}$ one after the other.",
                r"Only the shift is left, once for each component: how many are there?",
            ),
            r"The mean was taken off, so that $z$ adds up to 0; $\beta$ is there $d$ times.",
        ),
        Claim(
            "scaled",
            r"Layer normalisation (one scale $\gamma$, one shift $\beta$, $\epsilon = 0$) turns $x$, a vector of $d$ "
            r"components that are not all equal, into $y$. Now $c x$ with $c > 0$ comes in the place of $x$.",
            r"What comes out, in terms of $y$ and $c$?",
            (r"\gamma \frac{c x - c \mu \mathbf{1}}{c \sigma} + \beta \mathbf{1}",
             r"\gamma \frac{x - \mu \mathbf{1}}{\sigma} + \beta \mathbf{1}", "y"),
            _OTHER,
            "Put in the new mean and the new deviation.",
            r"The mean becomes $c \mu$ and the deviation $c \sigma$, so that $c$ cancels.",
            (("norm follows the scale", "c y"),),
            (
                r"What happens to the mean and to the deviation?",
                r"Write the mean and the deviation of $c x$ with those of $x$.",
                r"Mean and deviation are both multiplied by $c$: cancel it, and compare with what came out before.",
            ),
            r"Mean and deviation are multiplied by $c$ as well, and it cancels: $y$ again.",
        ),
        Claim(
            "shifted",
            r"Layer normalisation (one scale $\gamma$, one shift $\beta$, $\epsilon = 0$) turns $x$, a vector of $d$ "
            r"components that are not all equal, into $y$. Now $x + b \mathbf{1}$ comes in the place of $x$.",
            r"What comes out, in terms of $y$ and $b$?",
            (r"\gamma \frac{x + b \mathbf{1} - (\mu + b) \mathbf{1}}{\sigma} + \beta \mathbf{1}",
             r"\gamma \frac{x - \mu \mathbf{1}}{\sigma} + \beta \mathbf{1}", "y"),
            _OTHER,
            "Put in the new mean.",
            r"The mean becomes $\mu + b$ and the deviation stays, so that $b$ is taken off again.",
            (("norm follows the shift", r"y + b \mathbf{1}"),),
            (
                r"What happens to the mean and to the deviation?",
                r"Write the mean and the deviation of $x + b \mathbf{1}$ with those of $x$.",
                r"The mean moves by $b$ and is taken off; the deviation stays. Compare with what came out before.",
            ),
            r"The mean moves by $b$ too and is taken off: $y$ again.",
        ),
        Claim(
            "turned",
            r"Layer normalisation (one scale $\gamma$, one shift $\beta$, $\epsilon = 0$) turns $x$, a vector of $d$ "
            r"components that are not all equal, into $y$. Now $-c x$ with $c > 0$ comes in the place of $x$.",
            r"What comes out, in terms of $y$ and $\beta$?",
            (r"\gamma \frac{c \mu \mathbf{1} - c x}{c \sigma} + \beta \mathbf{1}", r"-\gamma z + \beta \mathbf{1}",
             r"2 \beta \mathbf{1} - y"),
            _OTHER,
            "Put in the new mean and the new deviation.",
            r"The mean becomes $-c \mu$, the deviation $c \sigma$, for a deviation is never negative: the sign stays.",
            (("sign of the factor left out", "y"), ("shift left out", "-y")),
            (
                r"Can a deviation be negative?",
                r"Find what becomes of $z$, then scale and shift it.",
                r"$z$ becomes $-z$; write $-\gamma z + \beta \mathbf{1}$ with $y$.",
            ),
            r"$z$ changes its sign and the shift does not: $-\gamma z + \beta \mathbf{1} = 2 \beta \mathbf{1} - y$.",
        ),
        Claim(
            "root mean square",
            r"RMS normalisation divides $x$, a vector of $d$ components that are not all 0, by the root of the mean "
            r"of its squares and multiplies by $\gamma$, a number of any sign; $y$ is what comes out.",
            r"What is $\|y\|$ in terms of $\gamma$ and $d$?",
            (r"\|y\|", r"|\gamma| \frac{\|x\|}{\rho}", r"|\gamma| \sqrt{d}"),
            _ROOT_MEAN,
            "Take the factor out.",
            r"The root of the mean square is $\|x\|$ divided by $\sqrt{d}$.",
            (("sign of the scale", r"\gamma \sqrt{d}"), ("width instead of its root", r"|\gamma| d")),
            (
                r"How is the root of the mean square tied to $\|x\|$?",
                r"Write the norm of $y$ as $|\gamma|$ times a quotient of two lengths.",
                r"Divide $\|x\|$ by $\|x\| / \sqrt{d}$ and multiply by $|\gamma|$.",
            ),
            r"The root of the mean square is $\|x\| / \sqrt{d}$, so that $\sqrt{d}$ is left, times $|\gamma|$.",
        ),
    )
}  # fmt: skip


RMS_PROOF = replace(
    CLAIMS["root mean square"],
    name="proof of the root mean square",
    given=CLAIMS["root mean square"].given.replace(r"$\gamma$, a number of any sign", r"$\gamma \ge 0$"),
    ask=r"Prove that $\|y\| = \gamma \sqrt{d}$.",
    chain=(r"\|y\|", r"\gamma \frac{\|x\|}{\rho}", r"\gamma \sqrt{d}"),
    symbols={**_ROOT_MEAN, "gamma": "nonnegative"},
    wrong=(("width instead of its root", r"\|y\| = \gamma \frac{\|x\|}{\rho} = \gamma d"),),
    proof=True,
)


def with_letters(claim: Claim, scale: str, shift: str) -> Claim:
    """The claim where a text has letters of its own for the scale and the shift."""
    own = {letter: f"scalar = {name}" for letter, name in ((scale, r"\gamma"), (shift, r"\beta")) if letter}
    own = {letter: said for letter, said in own.items() if letter not in claim.symbols}
    if shift and r"\beta" not in " ".join(claim.chain):
        own.pop(shift, None)
    called = " and ".join(f"${said.rpartition(' ')[2]}$ is called ${letter}$" for letter, said in own.items())
    given = f"{claim.given} {called[0].upper()}{called[1:]}." if called else claim.given
    return replace(claim, given=given, symbols={**claim.symbols, **own}, scale=scale if scale in own else claim.scale)


def claim_part(name: str, claim: Claim, alone: bool = True) -> Part:
    """The question of a claim; `alone` where the statement does not say what is given."""
    batch = Misconception("layer norm over the batch", _WITH_BATCH, lambda text: _BATCH.search(text) is not None)
    known = (batch,) if claim.proof else ()
    return Part(
        name,
        f"{claim.given} {claim.ask}" if alone else claim.ask,
        claim.answer,
        lambda: (Step(claim.what, claim.why, claim.chain, claim.chain[-1], claim.symbols),),
        claim.hints,
        3,
        (*(Misconception(mistake, text) for mistake, text in claim.wrong), *known),
        claim.symbols,
        (r"\\\|\s*\\?(?:mathbf|boldsymbol)?\{?y", r"‖\s*y", r"prove", r"norm of"),
        claim.explanation,
    )
