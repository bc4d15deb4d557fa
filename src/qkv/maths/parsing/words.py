"""The words and signs that the parser knows: Greek letters, functions, LaTeX commands, Unicode signs."""

from __future__ import annotations

LONGEST = 2_000


def _split(text: str) -> list[str]:
    return text.split()


GREEK = {
    name: chr(code)
    for code, name in enumerate(
        _split(
            "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho finalsigma sigma "
            "tau upsilon phi chi psi omega"
        ),
        start=0x3B1,
    )
    if name not in ("omicron", "finalsigma")
}
GREEK |= {
    "Gamma": "Γ",
    "Delta": "Δ",
    "Theta": "Θ",
    "Lambda": "Λ",
    "Xi": "Ξ",
    "Pi": "Π",
    "Sigma": "Σ",
    "Upsilon": "Υ",
    "Phi": "Φ",
    "Psi": "Ψ",
    "Omega": "Ω",
}
VARIANTS = {
    "varepsilon": "epsilon",
    "varphi": "phi",
    "vartheta": "theta",
    "varrho": "rho",
    "varsigma": "sigma",
    "varkappa": "kappa",
    "varpi": "pi",
}

# Names of functions in the tree, by their spellings.
FUNCTIONS = {
    "exp": "exp",
    "log": "log",
    "ln": "log",
    "tr": "trace",
    "Tr": "trace",
    "trace": "trace",
    "Trace": "trace",
    "diag": "diag",
    "Diag": "diag",
    "softmax": "softmax",
    "Softmax": "softmax",
    "argmax": "argmax",
    "max": "max",
    "min": "min",
    "Var": "Var",
    "var": "Var",
    "Cov": "Cov",
    "cov": "Cov",
    "norm": "norm",
    "abs": "abs",
    "relu": "relu",
    "ReLU": "relu",
    "sign": "sign",
    "sgn": "sign",
    "det": "det",
}
# Functions that are not supported; they must not be read as products of letters.
UNREAD = frozenset(_split("sin cos tan cot sinh cosh tanh arcsin arccos arctan erf sigmoid gelu floor ceil"))

RELATIONS = {
    "=": "=",
    "==": "=",
    ":=": "=",
    "equiv": "=",
    "coloneqq": "=",
    "approx": "≈",
    "simeq": "≈",
    "approxeq": "≈",
    "<": "<",
    "lt": "<",
    ">": ">",
    "gt": ">",
    "<=": "<=",
    "le": "<=",
    "leq": "<=",
    "leqslant": "<=",
    ">=": ">=",
    "ge": ">=",
    "geq": ">=",
    "geqslant": ">=",
    "!=": "!=",
    "ne": "!=",
    "neq": "!=",
}

# Commands that change the layout only.
SKIPPED = frozenset(
    _split(
        "displaystyle textstyle scriptstyle scriptscriptstyle left right middle mleft mright big Big bigg Bigg bigl "
        "bigr bigm Bigl Bigr Bigm biggl biggr biggm Biggl Biggr Biggm negthinspace negmedspace negthickspace nonumber "
        "notag quad qquad boxed limits nolimits mathstrut strut thinspace medspace thickspace enspace fbox mathopen "
        "mathclose mathbin mathrel mathord bf rm it cal sf tt bfseries hfill , ; : ! > ( ) [ ] space"
    )
) | {" "}
STYLES = frozenset(
    _split(
        "mathbf boldsymbol bm bold mathrm mathit mathcal mathsf mathtt mathfrak mathscr vec overrightarrow mathbb "
        "mathbbm mathop pmb mathnormal symbf mathds"
    )
)
TEXTS = frozenset(_split("text textbf textit textrm textsf texttt operatorname mbox hbox mathrm mathsf mathtt"))
# Commands of old TeX, which style the rest of their group.
OLD_STYLES = frozenset(_split("rm bf it sf tt cal"))
ACCENTS = {"hat": "hat", "widehat": "hat", "bar": "bar", "overline": "bar", "tilde": "tilde", "widetilde": "tilde"}
# Commands with an argument that has no mathematical meaning.
SPACES = frozenset(_split("hspace vspace mspace label tag phantom hphantom vphantom"))
# Environments whose lines continue one another.
BLOCKS = frozenset(_split("aligned align split gathered gather equation alignat alignedat eqnarray multline"))
MATRICES = frozenset(_split("matrix pmatrix bmatrix Bmatrix smallmatrix psmallmatrix bsmallmatrix array"))

OPERATORS = {
    "cdot": ("TIMES", "dot"),
    "bullet": ("TIMES", "dot"),
    "times": ("TIMES", "times"),
    "ast": ("TIMES", "times"),
    "div": ("DIV", "/"),
    "odot": ("ODOT", "odot"),
    "circ": ("ODOT", "odot"),
    "otimes": ("OTIMES", "otimes"),
    "pm": ("PM", "pm"),
    "mp": ("PM", "mp"),
    "sum": ("BIG", "sum"),
    "prod": ("BIG", "prod"),
    "frac": ("FRAC", "frac"),
    "dfrac": ("FRAC", "frac"),
    "tfrac": ("FRAC", "frac"),
    "cfrac": ("FRAC", "frac"),
    "nicefrac": ("FRAC", "frac"),
    "sfrac": ("FRAC", "frac"),
    "flatfrac": ("FRAC", "frac"),
    "binom": ("FRAC", "binom"),
    "dbinom": ("FRAC", "binom"),
    "tbinom": ("FRAC", "binom"),
    "over": ("OVER", "over"),
    "sqrt": ("SQRT", "sqrt"),
    "partial": ("PARTIAL", "partial"),
    "nabla": ("PARTIAL", "nabla"),
    "infty": ("CONST", "infinity"),
    "top": ("TOP", "T"),
    "intercal": ("TOP", "T"),
    "dagger": ("REFUSED", "†"),
    "star": ("REFUSED", "*"),
    "cr": ("ROW", "row"),
}

# Commands that are not part of an expression, and the message for each.
REFUSALS = {
    "mathbb{R}": "a set of numbers is not an expression: give the value itself",
    "in": "membership (∈) is not an expression: give the value itself",
    "sim": "∼ says how something is distributed: give the value itself",
    "propto": "∝ leaves a factor open: give the value itself",
    "to": "an arrow is not an expression: give the value itself",
    "rightarrow": "an arrow is not an expression: give the value itself",
    "Rightarrow": "an arrow is not an expression: give the value itself",
    "implies": "an arrow is not an expression: give the value itself",
    "Longrightarrow": "an arrow is not an expression: give the value itself",
    "iff": "an arrow is not an expression: give the value itself",
    "therefore": "∴ separates two statements: give the value itself",
    "mapsto": "an arrow is not an expression: give the value itself",
    "ldots": "dots leave open what is meant: write the sum with Σ",
    "cdots": "dots leave open what is meant: write the sum with Σ",
    "dots": "dots leave open what is meant: write the sum with Σ",
    "vdots": "dots leave open what is meant: write the sum with Σ",
    "ddots": "dots leave open what is meant: write the sum with Σ",
    "int": "integrals are not read",
    "forall": "quantifiers are not read: give the value itself",
    "exists": "quantifiers are not read: give the value itself",
}

SIGNS = {
    "√": "\\sqrt ",
    "‖": "\\|",
    "∥": "\\|",
    "∣": "|",
    "·": "\\cdot ",
    "⋅": "\\cdot ",
    "∙": "\\cdot ",
    "•": "\\cdot ",
    "×": "\\times ",
    "÷": "\\div ",
    "∗": "*",
    "⊙": "\\odot ",
    "∘": "\\odot ",
    "⊗": "\\otimes ",
    "±": "\\pm ",
    "∓": "\\mp ",
    "−": "-",
    "–": "-",
    "⁄": "/",
    "∕": "/",
    "≤": "\\le ",
    "≥": "\\ge ",
    "⩽": "\\le ",
    "⩾": "\\ge ",
    "≠": "\\ne ",
    "≈": "\\approx ",
    "≃": "\\approx ",
    "≅": "\\approx ",
    "≡": "\\equiv ",
    "∑": "\\sum ",
    "∏": "\\prod ",
    "∂": "\\partial ",
    "∞": "\\infty ",
    "⟨": "\\langle ",
    "⟩": "\\rangle ",
    "〈": "\\langle ",
    "〉": "\\rangle ",
    "′": "'",
    "’": "'",
    "″": "''",
    "ᵀ": "^{T}",
    "⊤": "\\top ",
    "⊺": "\\top ",
    "†": "\\dagger ",
    "∈": "\\in ",
    "∼": "\\sim ",
    "∝": "\\propto ",
    "→": "\\to ",
    "⇒": "\\Rightarrow ",
    "⟹": "\\implies ",
    "⇔": "\\iff ",
    "⟺": "\\iff ",
    "∴": "\\therefore ",
    "…": "\\ldots ",
    "⋯": "\\cdots ",
    "∇": "\\nabla ",
    "∫": "\\int ",
    "∀": "\\forall ",
    "∃": "\\exists ",
    "ϵ": "\\epsilon ",
    "ϕ": "\\phi ",
    "ϑ": "\\theta ",
    "ϱ": "\\rho ",
    "ϖ": "\\pi ",
    "ϰ": "\\kappa ",
    "µ": "\\mu ",
    "𝟏": "\\mathbf{1}",
    "𝟙": "\\mathbf{1}",
    "𝟎": "\\mathbf{0}",
    "𝟘": "\\mathbf{0}",
    "𝔼": "\\mathbb{E}",
    "ℝ": "\\mathbb{R}",
    "ℕ": "\\mathbb{N}",
    "½": "\\frac{1}{2}",
    "¼": "\\frac{1}{4}",
    "¾": "\\frac{3}{4}",
    "⅓": "\\frac{1}{3}",
    "⅔": "\\frac{2}{3}",
    "\u00a0": " ",
    "\u2009": " ",
    "\u202f": " ",
    "\u2002": " ",
    "\u2003": " ",
    "\u2005": " ",
    "\u200a": " ",
    "\t": " ",
    "\n": " ",
    "\r": " ",
}
SIGNS |= {sign: f"\\{name} " for name, sign in GREEK.items()} | {"ς": "\\sigma "}

# Words of sentences: a text that has one between other words, undeclared, is prose.
SENTENCES = frozenset(
    _split(
        "the is are was be and or of because answer dont don not know therefore thus hence where when if so we it its "
        "to by for with then choose equals equal gives since which that this there has have than as from at on an into "
        "would should could can mean means value yes no none"
    )
)

# Words that, in a \\text{}, separate two statements.
JOINING = frozenset(
    _split("where or and when if for with since because then thus hence therefore so but otherwise else")
)

RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱᵃᵇᶜᵈᵉᶠᵍʰʲᵏˡᵐᵒᵖʳˢᵗᵘᵛʷˣʸᶻ", "0123456789+-=()niabcdefghjklmoprstuvwxyz", strict=True))
LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", "0123456789+-=()aehijklmnoprstuvx", strict=True))
