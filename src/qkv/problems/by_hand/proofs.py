"""By hand, in letters: queries, keys and values as products of matrices, and two proofs about them."""

from __future__ import annotations

import re

from ..exact import matrix, transposed
from ..judging.answers import Value
from ..judging.chains import Chain
from ..judging.sized import Products
from ..problem import Misconception, Part, Step
from .instance import Instance

SCORES = ("entry", "form")  # which fact part e proves
SUMS = ("row", "order", "total")  # which fact part f proves

_ROWS = (r"\brows?\b", r"\bcolumns?\b|\brows?\b.*\brows?\b", r"(?:dot|inner|matrix) product|multipl|product|\btimes\b")


def _line_of(which: str) -> str:
    """A pattern for "row i of Q" or "the i-th row of Q", in brackets or within LaTeX's text, with two or one index."""
    gap, index = r"[\s${}]*(?:\\(?:text|mathrm)\s*\{)?[\s${}]*", r"([a-z])"
    name = r"([A-Z](?:\s?\^\s?(?:T|\\top|\{\s?(?:T|\\top)\s?\})|ᵀ)?)"
    named = rf"(?:{which}{gap}{index}|{index}\$?-?(?:th)?{gap}{which}){gap}of{gap}(?:the )?{name}"
    return rf"(?:\\(?:text|mathrm)\s*\{{\s*)?[(\[]?\s*(?:\\(?:text|mathrm)\s*\{{\s*)?(?:the )?{named}\$?\s*[)\]]?"


_TIMES = r"[\s${}]*(?:(?:\\text\s*\{\s*)?(?:·|\\cdot|\\times|×|\*|times)|(?<=\))(?=\())[\s${}]*"
_SPELLINGS = (
    (r"D_(?:K|\{\s*K\s*\})(?![A-Za-z])", "D_k"),
    (r"D_(?:V|\{\s*V\s*\})(?![A-Za-z])", "D_v"),
    (rf"{_line_of('row')}{_TIMES}{_line_of('column')}", r" (\3)_{\1\2\\cdot} (\6)_{\\cdot \4\5} "),
)
# A softmax whose denominator runs over the first index of the scores.
_DOWN_A_COLUMN = re.compile(
    r"\\sum_\{?\s*([a-z])\b[^$]{0,40}?z_?\{?\s*\1\s*,?\s*[a-z]|\bcolumns?\b.{0,30}\b(?:sums?|adds?)\b", re.IGNORECASE
)


def letters(given: Instance) -> dict[str, str]:
    """The names of the problem without their values: what a proof about queries, keys and values may use."""
    sizes = given.sizes
    # Large sizes, and sizes of 1, stay letters: what is proved does not depend on them.
    n, d, k, v = (str(sizes[name]) if given.small else name for name in ("N", "D", "D_k", "D_v"))
    found = {name: f"natural = {size}" if given.small else "natural" for name, size in sizes.items()}
    for letter, wide in (("Q", k), ("K", k), ("V", v)):
        found[f"W_{letter}"] = f"matrix[{wide},{d}]" if given.plain else f"matrix[{d},{wide}]"
    if given.columns:
        found |= {"X": f"matrix[{d},{n}]", "x": f"matrix[{n},{d}] = X^T"}
    else:
        found |= {"X": f"matrix[{n},{d}]", "x": f"matrix[{n},{d}] = X"}
    for small, wide in (("q", k), ("k", k), ("v", v)):
        big = small.upper()
        found[small] = f"matrix[{n},{wide}] = x {'W_' + big + '^T' if given.plain else 'W_' + big}"
        found[big] = f"matrix[{wide},{n}] = {small}^T" if given.columns else f"matrix[{n},{wide}] = {small}"
    found["z"] = f"matrix[{n},{n}] = {given.scaled('q k^T')}"
    return found | {"i": f"index[{n}]", "j": f"index[{n}]"}


def weighing(given: Instance, *, softmax: bool = False) -> dict[str, str]:
    """What a proof about weights may use: any scores, and any weights or those that softmax makes of the scores."""
    n = str(given.sizes["N"]) if given.small else "N"
    left_out = ("q", "k", "Q", "K", "z", "W_Q", "W_K")
    found = {name: text for name, text in letters(given).items() if name not in left_out}
    weights = f"matrix[{n},{n}] = softmax(z)" if softmax else f"matrix[{n},{n}]"
    return found | {"z": f"matrix[{n},{n}]", "A": weights, "a": f"matrix[{n},{n}] = A"}


def matrices_part(given: Instance) -> Part:
    """Part d: Q, K and V as products, with their sizes."""
    symbols = letters(given)
    numbers = {name: text for name, text in symbols.items() if name not in ("Q", "K", "V")} | given.symbols
    items: dict[str, Value] = {}
    sides: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    tokens, sizes = (str(given.sizes["N"]), "N"), given.sizes
    for letter, wide in (("Q", "D_k"), ("K", "D_k"), ("V", "D_v")):
        items[letter] = Value(given.stacked(letter), symbols)
        across = (str(sizes[wide]), wide)
        sides[letter] = (across, tokens) if given.columns else (tokens, across)
    stacked = "columns" if given.columns else "rows"
    mark = "^T" if given.plain else ""
    wrong_order = {name: f"X W_{name}{mark}" if given.columns else f"W_{name}{mark} X" for name in items}
    turned = {name: f"X^T W_{name}{mark}" if given.columns else f"{given.applied(name)} X" for name in items}
    swapped = {"Q": given.stacked("K"), "K": given.stacked("Q"), "V": given.stacked("V")}
    answer = Products(items, sides, numbers)
    weights = f"{sizes['D_k']} by {sizes['D']}" if given.plain else f"{sizes['D']} by {sizes['D_k']}"
    which = "A row of a product depends on the same row of the left factor"
    if given.columns:
        which = "A column of a product depends on the same column of the right factor"
    return Part(
        name="d",
        ask=f"The tokens are stacked as the {stacked} of $X$, and the queries, keys and values in the same way as the "
        f"{stacked} of $Q$, $K$ and $V$. Write each of the three as a product of $X$ and a weight matrix. What are "
        "their dimensions?",
        answer=answer,
        steps=lambda: _matrix_steps(given, symbols),
        hints=(
            "Write down the sizes of $X$ and of $W_Q$: only one order of the factors fits, transposed or not.",
            f"One of the {stacked} of a product comes from one of the {stacked} of one factor: which has to be $X$?",
            f"$X$ is {_by(given, 'X')}, $W_Q$ is {weights}, the result is {_by(given, 'Q')}.",
        ),
        points=2,
        misconceptions=tuple(
            Misconception(name, "; ".join(f"{letter} = {text}" for letter, text in wrong.items()))
            for name, wrong in (
                ("factors in the wrong order", wrong_order),
                ("rows and columns mixed up", turned),
                ("query and key swapped", swapped),
            )
        ),
        symbols=symbols,
        cues=(
            r"\b(?:stack|data matrix|matri(?:x|ces).{0,40}(?:in terms of|dimensions?))",
            r"(?<![A-Za-z_])Q\}?\s*=\s*(?:\\mathbf\s*\{?)?[XW]",
            r"dimensions? of (?:these|the|Q)",
        ),
        explanation=f"{which}: ${items['Q'].gold}$ does to all what $q_i = {given.applied('Q')} x_i$ does to one.",
    )


def _by(given: Instance, name: str) -> str:
    rows, columns = given.sizes["N"], given.sizes["D" if name == "X" else "D_k" if name in "QK" else "D_v"]
    return f"{columns} by {rows}" if given.columns else f"{rows} by {columns}"


def _matrix_steps(given: Instance, symbols: dict[str, str]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for letter, weight, rows in (("Q", given.wq, given.q), ("K", given.wk, given.k), ("V", given.wv, given.v)):
        small = letter.lower()
        applied, product = given.applied(letter), given.stacked(letter)
        right = product.removeprefix("X ")
        if given.columns:
            chain = (f"{small}_i", f"{applied} x_i", rf"{applied} X_{{\cdot i}}", rf"({product})_{{\cdot i}}")
            why = f"Column $i$ of a product is the left factor times column $i$ of the right: ${letter} = {product}$"
        else:
            chain = (f"{small}_i", f"{applied} x_i", rf"(X_{{i\cdot}} {right})^T", f"({product})_i")
            why = f"Row $i$ of a product is row $i$ of the left factor times the right one: ${letter} = {product}$"
        steps.append(Step(f"All of ${small}_i$ at once", f"{why}, {_by(given, letter)}.", chain, product, symbols))
        if given.small and weight is not None and given.x is not None:
            shown = transposed(rows) if given.columns else rows
            factors = (transposed(weight), transposed(given.x)) if given.columns else (given.x, weight)
            written = " ".join(matrix(given.printed(factor)) for factor in factors)
            numbers = (letter, product, written, matrix(given.printed(shown)))
            steps.append(Step(f"${letter}$ in numbers", "The rows times the columns.", numbers, shown, given.symbols))
    return tuple(steps)


def scores_proof(given: Instance, kind: str) -> Part:
    """Part e: what an entry of the matrix of scores is."""
    symbols = letters(given) | {"e": f"matrix[{given.sizes['N']},{given.sizes['N']}] = I_{{{given.sizes['N']}}}"}
    product = "Q^T K" if given.columns else "Q K^T"
    out = r"\sum_{l=1}^{D_k} Q_{li} K_{lj}" if given.columns else r"\sum_{l=1}^{D_k} Q_{il} K_{jl}"
    if kind == "entry":
        start = f"({given.scaled(product)})_{{ij}}"
        target = given.scaled("q_i^T k_j")
        through = (given.scaled(out), given.scaled(r"\sum_{l=1}^{D_k} q_{il} k_{jl}"))
        also = ("z_{ij}", given.scaled(r"k_j^T q_i"), given.scaled(r"q_i \cdot k_j"))
        ask = f"Show that entry $(i, j)$ of ${given.scaled(product)}$ is exactly the score $z_{{i,j}}$ of part (b)."
        wrong = f"{start} = {given.scaled('q_j^T k_i')}"
        hints = (
            "Write down what entry $(i, j)$ of a product of two matrices is.",
            "The entry is a row of the left factor times a column of the right one: whose query, and whose key?",
            f"${start} = {given.scaled(out)}$; what is left is to see the two vectors in this sum.",
        )
    else:
        start, target = given.scaled("q_i^T k_j"), given.scaled("x_i^T W_Q W_K^T x_j")
        through = (given.scaled("(W_Q^T x_i)^T (W_K^T x_j)"),)
        also = (given.scaled("x_i^T (W_Q W_K^T) x_j"), given.scaled("(x_i^T W_Q) (W_K^T x_j)"))
        ask = (
            r"Show that a score depends on the two weight matrices only through the product $W_Q W_K^T$: "
            f"${start} = {target}$."
        )
        wrong = f"{start} = {given.scaled('x_j^T W_Q W_K^T x_i')}"
        hints = (
            "Put in what the query and the key are.",
            "The transpose of a product is the product of the transposes, the other way round.",
            f"${start} = {through[0]}$; what is left is to transpose the first bracket.",
        )
    chain = Chain(
        start, target, symbols, through=through, also=also, words=_ROWS if kind == "entry" else (), spellings=_SPELLINGS
    )
    return Part(
        name="e",
        ask=ask,
        answer=chain,
        steps=lambda: (_proved(chain, "The definition of the product, then of the vectors in it."),),
        hints=hints,
        points=2,
        misconceptions=(Misconception("query and key swapped", wrong),),
        symbols=symbols,
        cues=(
            r"(?:show|prove).{0,80}entry.{0,80}(?:QK|Q\s?K|z)",
            r"\(?(?:\\mathbf\s*\{)?\s*Q\s*\}?\s*(?:\\mathbf\s*\{)?K\}?\s*\^\s*\{?(?:T|\\top)\}?\s*\)?\s*_",
            r"(?:i,\s*j|ij)\)?.{0,12}entry",
        ),
        explanation="An entry of the product is a row of one factor times a column of the other: the query of token "
        "$i$ and the key of token $j$."
        if kind == "entry"
        else "Transposing the query turns $W_Q$ and $x_i$ round, so that the two weight matrices meet.",
    )


def _proved(chain: Chain, why: str) -> Step:
    return Step("The proof", why, (chain.start, *chain.through, chain.target), chain.target, chain.symbols)


def sum_proof(given: Instance, kind: str) -> Part:
    """Part f: what multiplying the values by the weights does."""
    return {"row": _weighted_rows, "order": _mixing_first, "total": _rows_add_up}[kind](given)


def _proof(ask: str, chain: Chain, why: str, hints: tuple[str, str, str], wrong: str, name: str, said: str) -> Part:
    return Part(
        name="f",
        ask=ask,
        answer=chain,
        steps=lambda: (_proved(chain, why),),
        hints=hints,
        points=2,
        misconceptions=(Misconception(name, wrong, lambda text: _DOWN_A_COLUMN.search(text) is not None),),
        symbols=chain.symbols,
        cues=(
            r"(?:show|prove).{0,80}(?:row|column).{0,60}(?:AV|A\s?V|V A)",
            r"\(?(?:\\mathbf\s*\{)?\s*A\s*\}?\s*(?:\\mathbf\s*\{)?V\}?\s*\)?\s*_",
            r"row.{0,30}weighted sum",
        ),
        explanation=said,
    )


def _by_entry(given: Instance) -> dict[str, str]:
    """Names for a proof entry by entry, or with unit vectors."""
    n, v = (str(given.sizes[name]) if given.small else name for name in ("N", "D_v"))
    return {"e": f"matrix[{n},{n}] = I_{{{n}}}", "c": f"index[{v}]"}


def _weighted_rows(given: Instance) -> Part:
    symbols = weighing(given) | _by_entry(given)
    target = r"\sum_{j=1}^{N} a_{ij} v_j"
    if given.columns:
        start, starts, where = r"(V A^T)_{\cdot i}", (r"((V A^T)^T)_{i\cdot}",), "Column $i$ of $V A^T$"
        through = (r"V (A^T)_{\cdot i}", r"\sum_{j=1}^{N} a_{ij} V_{\cdot j}")
    else:
        start, starts, where = "(A V)_i", (r"(A V)_{i\cdot}",), "Row $i$ of $A V$"
        through = (r"V^T A_i", r"\sum_{j=1}^{N} A_{ij} V_j")
    also = (r"\sum_{j=1}^N a_{ij} v_j^T",)
    if given.small:
        also += tuple(
            " + ".join(f"a_{{i{j}}} v_{j}{turned}" for j in range(1, given.sizes["N"] + 1)) for turned in ("", "^T")
        )
    return _proof(
        f"Let $A$ be the softmax of the scores, taken row by row. Show that {where[0].lower()}{where[1:]} is the "
        "weighted sum of the value vectors for $x_i$, with the softmax scores as weights.",
        Chain(start, target, symbols, through=through, starts=starts, also=also, words=_ROWS, spellings=_SPELLINGS),
        "The product's rows and columns; then every value is met with its weight.",
        (
            "Look at one row of weights and one column of values first.",
            "Entry $c$ of the result is a sum over the tokens $j$; then collect the entries into vectors.",
            r"Each entry is $\sum_{j=1}^N a_{ij} V_{jc}$: what is left is to write the entries as one vector."
            if not given.columns
            else r"Each entry is $\sum_{j=1}^N V_{cj} a_{ij}$: what is left is to write the entries as one vector.",
        ),
        rf"{start} = \sum_{{j=1}}^{{N}} a_{{ji}} v_j",
        "softmax over the wrong axis",
        f"{where} collects the values, each with the weight that token $i$ gives to it.",
    )


def _mixing_first(given: Instance) -> Part:
    symbols = weighing(given)
    if given.columns:
        start, through, target = "V A^T", ("(W_V^T X) A^T",), "W_V^T (X A^T)"
        also, wrong = (), "V A^T = W_V^T (X A)"
    else:
        start, through, target = "A V", ("A (X W_V)",), "(A X) W_V"
        also, wrong = ("A X W_V",), "A V = (A^T X) W_V"
    return _proof(
        "Let $A$ be the softmax of the scores, taken row by row. Show that mixing the tokens and projecting them to "
        f"values may change places: ${start} = {target}$.",
        Chain(start, target, symbols, through=through, also=also),
        "What the values are; then the product of matrices is associative.",
        (
            "What is $V$ made of?",
            "Put in what $V$ is; brackets in a product of three matrices may be moved.",
            f"${start} = {through[0]}$; what is left is to move the brackets.",
        ),
        wrong,
        "softmax over the wrong axis",
        "A product of three matrices is the same whichever two are multiplied first.",
    )


def _rows_add_up(given: Instance) -> Part:
    symbols = weighing(given, softmax=True)
    start, target = r"\sum_{j=1}^{N} a_{ij}", "1"
    through = (
        r"\sum_{j=1}^{N} \frac{e^{z_{ij}}}{\sum_{l=1}^{N} e^{z_{il}}}",
        r"\frac{\sum_{j=1}^{N} e^{z_{ij}}}{\sum_{l=1}^{N} e^{z_{il}}}",
    )
    return _proof(
        "Let $A$ be the softmax of the scores, taken row by row: "
        r"$a_{i,j} = \frac{e^{z_{i,j}}}{\sum_{l=1}^N e^{z_{i,l}}}$. Show that the weights of every token "
        r"add up to 1: $\sum_{j=1}^N a_{i,j} = 1$.",
        Chain(start, target, symbols, through=through),
        "The definition of softmax; the denominator is the same for every term.",
        (
            "Put in the definition of the softmax.",
            "The denominator does not depend on $j$: it can be taken out of the sum.",
            rf"$\sum_j a_{{ij}} = {through[1]}$; what is left is to compare the two sums.",
        ),
        rf"{start} = \sum_{{j=1}}^{{N}} \frac{{e^{{z_{{ij}}}}}}{{\sum_{{l=1}}^{{N}} e^{{z_{{lj}}}}}} = 1",
        "softmax over the wrong axis",
        "Every power is divided by the sum of the powers of the same row.",
    )
