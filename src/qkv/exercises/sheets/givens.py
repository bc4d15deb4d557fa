"""Find what a text gives: matrices, sizes, machine figures, laws, listings, definitions."""

from __future__ import annotations

import re
import tomllib
from fractions import Fraction
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Any

from ...documents.document import Draft
from ..record import Definition, Given, Span
from .arrays import interpret
from .laws import find_laws, find_shapes
from .literals import array_at, closing, read_number

_GREEK = {"µ": "mu", "μ": "mu", "σ": "sigma", "Σ": "Sigma", "λ": "lambda", "τ": "tau", "γ": "gamma", "β": "beta",
          "ε": "epsilon", "ϵ": "epsilon", "θ": "theta", "α": "alpha", "φ": "phi", "ϕ": "phi"}  # fmt: skip
_LOW = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SIGNS = {r"\times": "×", r"\cdot": "·", r"\in": "∈", r"\sim": "∼", r"\approx": "≈", r"\top": "T", r"\intercal": "T",
          r"\left": "", r"\right": "", r"\quad": " ", r"\qquad": " ", r"\ldots": "…", r"\dots": "…"}  # fmt: skip
_MATRICES = r"\\begin\s*\{[bpBvV]?(?:matrix|array)\*?\}(?:[^\\]|\\(?!end\b))*+\\end\s*\{[^{}]*\}"
# Formulas as one would type them; what is replaced is remembered, so that spans can be mapped back.
_PASSES: tuple[tuple[re.Pattern[str], Any], ...] = (
    (re.compile(rf"({_MATRICES})|\\(?:text|mathrm|mathbf|boldsymbol|bm|mathit|textbf|operatorname|vec|mathsf|mathcal)\b\s*"
                r"(?:\{([^{}]*)\}|([A-Za-z]))"), lambda found: None if found[1] else found[2] or found[3] or ""),
    (re.compile(rf"({_MATRICES})|\\mathbb\s*\{{?R\}}?|\\[a-z]+(?![A-Za-z])|\\[,;!: _%&#]|\$|\{{,\}}"
                rf"|[{''.join(_GREEK)}₀-₉−]"), lambda found: None if found[1] else _sign(found)),
    (re.compile(rf"({_MATRICES})|([_^])\s*(?:\{{\s*\(?([A-Za-z0-9,+]{{1,12}})\)?\s*\}}|\(([A-Za-z0-9])\))"),
     lambda found: None if found[1] else f"{found[2]}{found[3] or found[4]}"),
)  # fmt: skip
_SCALES = {"k": 10**3, "K": 10**3, "thousand": 10**3, "M": 10**6, "million": 10**6, "B": 10**9, "billion": 10**9,
           "T": 10**12, "trillion": 10**12}  # fmt: skip
_FENCE = re.compile(r"^[ ]*```[^\n]*\n(?P<code>(?:(?![ ]*```)[^\n]*\n)*+)[ ]*```[ ]*$", re.MULTILINE)
_MOST_CHARACTERS = 400_000
_MOST_CHAINS = 2000  # assignments of a text


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(files("qkv.exercises.sheets").joinpath("sizes.toml").read_text(encoding="utf-8"))


@cache
def _pattern(pattern: str, words: bool = False) -> re.Pattern[str]:
    """A pattern with its parts put in: one of the file's by its name, or a rule of `words` that may be over lines."""
    data = _data()
    pattern = data["patterns"].get(pattern, pattern)
    if words:
        space = data["parts"]["space"]
        pattern = pattern.replace("[- ]", " ").replace(" ?", f"{space}*").replace(" ", f"{space}+")
    for part in ("is", "V", "N", "S", "letter", "name"):
        pattern = pattern.replace(f"{{{part}}}", data["parts"][part])
    return re.compile(re.sub(r"\(\?<(?=[a-z])", "(?P<", pattern), re.IGNORECASE if words else 0)


def find_givens(text: str, context: str = "") -> list[Given]:
    """Everything that a text gives, each with its role and its span in `text`, in order.

    What only `context` gives comes after it, with the span None; where both give one symbol or one role, the text's
    stands. A symbol whose role the words next to it do not settle has the role "other". Laws are written
    "N(mu, Sigma)", "uniform(a, b)", or "iid mean m variance v" for independent components of any distribution. A
    vector is one list of numbers, a matrix a list of rows; numbered vectors x_1, …, x_n come as one matrix with a row
    for each (symbol "x"). An identity of unknown size has the value "I". Values are ints, floats as printed, or texts
    ("1/3", "sqrt(2)"). A figure that the text only supposes ("what if we dropped it to 1?") has `of="change"`.
    """
    found = _Finder(text, context).givens()
    if not context.strip():
        return found
    own = [given for given in found if given.of != "change"]
    symbols = {given.symbol for given in own if given.symbol}
    roles = {given.role for given in own} - {"other", "listing", "law", "expression"}
    shared = [
        given for given in _Finder(context, text).givens() if given.symbol not in symbols and given.role not in roles
    ]
    return found + [given.model_copy(update={"span": None}) for given in shared]


def find_definitions(text: str) -> list[Definition]:
    """The equations of a text that define a symbol by others, in the notation of `qkv.maths`."""
    return _Finder(text, "").definitions()


class _Finder:
    def __init__(self, text: str, around: str) -> None:
        self.source = text[:_MOST_CHARACTERS]
        self.about = f"{self.source}\n{around[:_MOST_CHARACTERS]}"
        self.draft = Draft(self.source)
        self.listings = [(found["code"], found.span()) for found in _FENCE.finditer(self.source)]
        self.draft.replace([(*span, "\n") for _, span in self.listings])
        for pattern, put in _PASSES:
            self.draft.substitute(pattern, put)
        self.text = self.draft.text
        self.found: list[Given] = []
        self.taken: list[Span] = []

    def givens(self) -> list[Given]:
        for code, span in self.listings:
            self.listing(code, span)
        self.arrays()
        self.worded_arrays()
        self.tables()
        self.names()
        self.sizes()
        self.scalars()
        self.supposed()
        for law in find_laws(self.text):
            self.add(span=law.span, **law.model_dump(exclude={"span"}, exclude_defaults=True))
        for shape in find_shapes(self.text):
            if not any(each.symbol == shape.symbol for each in self.found):
                role = self.role_of(shape.symbol or "", matrix=True)
                self.add(span=shape.span, symbol=shape.symbol, role=role, shape=shape.shape)
        stated = {given.symbol for given in self.found if given.value is not None}
        kept = [given for given in self.found if given.value is not None or given.law or given.symbol not in stated]
        return _gathered(sorted(kept, key=lambda given: given.span or (0, 0)))

    def add(self, span: Span | None, **fields: Any) -> None:
        if span is not None:
            self.taken.append(span)
            fields["span"] = self.back(span)
        self.found.append(Given(**fields))

    def back(self, span: Span) -> Span:
        """A span of the typed text as a span of the text that was given."""
        return self.draft.back(span)

    def free(self, span: Span) -> bool:
        return not any(start < span[1] and span[0] < stop for start, stop in self.taken)

    # --- arrays

    def listing(self, code: str, span: Span) -> None:
        self.found.append(Given(role="listing", value=code.rstrip("\n"), span=span))
        for name, value in interpret(code).values.items():
            if isinstance(value, str) or re.match(r"expected|actual|result|output|answer", name):
                continue
            role = self.role_of(name, isinstance(value, list)) if isinstance(value, list) else self.size_role(name)
            self.found.append(Given(symbol=name, role=role, value=value, span=span))  # pyright: ignore[reportArgumentType]

    def arrays(self) -> None:
        for chain in islice(_pattern("chain").finditer(self.text), _MOST_CHAINS):
            value = self.value_at(chain.end())
            if value is None or not isinstance(value[0], list | str):
                continue
            names = [_symbol(each) for each in _pattern("{name}").findall(chain.group().replace("^T", ""))]
            if isinstance(value[0], str) and value[0] != "I":
                continue
            for name in names:
                matrix = isinstance(value[0], str) or isinstance(value[0][0], list)
                self.add((chain.start(), value[1]), symbol=name, role=self.role_of(name, matrix), value=value[0])

    def value_at(self, start: int) -> tuple[Any, int] | None:
        """An array, an identity, or a column of numbers that lost its brackets."""
        text = self.text
        if identity := _pattern("identity").match(text, start):
            size = int(identity[1] or identity[2] or 0)
            eye = [[int(row == column) for column in range(size)] for row in range(size)]
            return (eye if 0 < size <= 64 else "I"), identity.end()
        if made := re.compile(r"\s*(?:np|numpy|torch)\.\w+\(").match(text, start):
            end = self.call_end(made.end() - 1)
            value = interpret(f"value = {text[made.start() : end].strip()}").values.get("value")
            return None if value is None else (value, end)
        column = re.compile(r"\s*(?:[ ]*-?\d+(?:\.\d+)?(?:[ ]+-?\d+(?:\.\d+)?)*[ ]*(?:\n|$)){2,}").match(text, start)
        if column and "\n" in re.findall(r"\s*$", text[:start])[0] + column.group()[:1]:
            rows = [[read_number(cell) for cell in line.split()] for line in column.group().split("\n") if line.strip()]
            if len({len(row) for row in rows}) == 1:
                return ([row[0] for row in rows] if len(rows[0]) == 1 else rows), column.end()
        return array_at(text, start)

    def call_end(self, start: int) -> int:
        end = closing(self.text, start) + 1
        more = re.compile(r"(?:\.\w+(?:\([^()]*\))?)*").match(self.text, end)
        return more.end() if more else end

    def worded_arrays(self) -> None:
        """Vectors after a word: "keys: (1, 0), (0, 1)", "the query is [1, 2]"."""
        for words, role in _data()["words"].items():
            for found in re.compile(_pattern("worded").pattern.replace("WORDS", words), re.IGNORECASE).finditer(
                self.text
            ):
                end, rows = found.end(), []
                while (value := array_at(self.text, end)) and isinstance(value[0], list) and self.free((end, value[1])):
                    rows.append(value[0])
                    end = value[1]
                    joined = re.compile(r"\s*(?:,?\s*and\b|[,;])\s*").match(self.text, end)
                    if joined is None or array_at(self.text, joined.end()) is None:
                        break
                    end = joined.end()
                if rows:
                    several = len(rows) > 1 or (role in ("key", "value", "tokens") and not isinstance(rows[0][0], list))
                    self.add((found.start(), end), symbol=_symbol(found["name"] or ""), role=role,
                             value=rows if several else rows[0])  # fmt: skip

    def role_of(self, name: str, matrix: bool) -> Any:
        """The role of an array by its letter; "other" where the letter may mean several things."""
        base = re.sub(r"_?\d+$", "", _symbol(name))
        if base in ("x", "X") and not _pattern("about_attention").search(self.about):
            return "input" if matrix or re.search(r"norm", self.about, re.IGNORECASE) else "vector"
        if base == "x" and base == _symbol(name) and not matrix:
            return "input" if re.search(r"norm", self.about, re.IGNORECASE) else "vector"
        needed = _data()["asking"].get(base)
        if needed is not None:
            return needed[1] if re.search(needed[0], self.about, re.IGNORECASE) else "vector" if not matrix else "other"
        return _data()["arrays"].get(base) or _data()["arrays"].get(base.lower()) or "other"

    # --- sizes

    def tables(self) -> None:
        """Tables of hyperparameters: a name and a number in each row, or names above one row of numbers."""
        for table in re.finditer(r"(?:^[ ]*\|[^\n]*\|[ ]*(?:\n|$)){2,}", self.text, re.MULTILINE):
            lines = [(table.start() + at.start(), at.group()) for at in re.finditer(r"[^\n]+", table.group())]
            rows = [(start, [cell.strip() for cell in line.strip().strip("|").split("|")]) for start, line in lines]
            rows = [(start, cells) for start, cells in rows if not all(re.fullmatch(r"[-: ]*", cell) for cell in cells)]
            if len(rows) == 2 and len(rows[0][1]) > 2:
                rows = [(rows[1][0], list(pair)) for pair in zip(rows[0][1], rows[1][1], strict=False)]
            for start, cells in rows:
                number = len(cells) == 2 and _pattern("cell").match(cells[1])
                if number:
                    alias = re.search(rf"\(({_data()['parts']['letter']})\)", cells[0])
                    name = re.sub(r"\([^()]*\)", "", cells[0]).strip(" :*`")
                    role = self.size_role(name)
                    at = self.text.find(cells[1], start)
                    self.add((at, at + len(cells[1])), symbol=alias[1] if alias else _symbol(name), role=role,
                             value=_number(number["number"]), unit=number["unit"])  # fmt: skip

    def size_role(self, name: str) -> Any:
        """The role of a name of a table or of code, without a number."""
        for probe in (f"{name} = 7", f"{name.replace('_', ' ')} = 7", f"7 {name}"):
            for rule in _data()["rule"]:
                if any(hint in probe.lower() for hint in rule["hint"].split("|")) and any(
                    (found := _pattern(each, True).fullmatch(probe)) and found.groupdict().get("number")
                    for each in rule["patterns"]
                ):
                    return rule["role"]
        fixed = {
            "gamma": "gamma",
            "beta": "beta",
            "eps": "epsilon",
            "pos": "position",
            "scale": "scale",
            "tau": "temperature",
        }
        return fixed.get(name.lower(), "other")

    def sizes(self) -> None:
        lower = self.text.lower()
        for rule in _data()["rule"]:
            if not any(hint in lower for hint in rule["hint"].split("|")):
                continue
            for pattern in rule["patterns"]:
                for found in _pattern(pattern, True).finditer(self.text):
                    self.size(rule["role"], found)

    def size(self, role: str, found: re.Match[str]) -> None:
        groups = found.groupdict()
        part = next((name for name in ("number", "only", "slice") if groups.get(name)), "")
        condition = re.search(r"\b(?:if|when|unless)\s+\W*$", self.text[max(0, found.start() - 12) : found.start()])
        if not part or not self.free(found.span(part)) or condition:
            return
        symbol = _symbol(groups.get("symbol") or groups.get("alias") or "")
        if part == "only":
            if any(given.symbol == groups["only"] and given.role == role for given in self.found):
                return
            self.add(found.span("only"), symbol=_symbol(groups["only"]), role=role)
            return
        before = self.text[max(0, found.start(part) - 24) : found.start(part)]
        if not symbol and (named := _pattern("assigned").search(before)):
            symbol = _symbol(named[1])
        value = groups["slice"] if part == "slice" else _number(groups["number"])
        if role == "length" and isinstance(value, int) and value >= 10**9:
            role = "training_tokens" if re.search("train", self.about, re.IGNORECASE) else "tokens_count"
        said = self.text[max(0, found.start() - 120) : found.start(part)]
        changed = "change" if _pattern("changed").search(said) else ""
        unit = re.sub(r"\s*(?:per|a) ?second", "/s", re.sub(r"\s+", " ", groups.get("unit") or "")).replace(" ", "")
        self.add(found.span(part), symbol=symbol, role=role, value=value, of=changed, unit=unit)

    def scalars(self) -> None:
        """Assignments of one number whose role only the letter may say."""
        model = bool(_pattern("about_model").search(self.about))
        for chain in islice(_pattern("chain").finditer(self.text), _MOST_CHAINS):
            found = _pattern("scalar").match(self.text, chain.end())
            if found is None or not self.free(found.span()) or _pattern("expression").match(self.text, found.end()):
                continue
            if _pattern("summed").search(self.text[max(0, chain.start() - 12) : chain.start()]):
                continue
            value = _number(found["number"]) if found["number"] else read_number(found["other"])
            for name in _pattern("{name}").findall(chain.group()):
                symbol = _symbol(name)
                role = _data()["letters"].get(symbol, "other") if model else "other"
                if role == "vocabulary" and not (isinstance(value, int) and value >= 1000):
                    role = "other"
                if role == "other":
                    role = self.size_role(name)
                # A letter that the words give to another size is not taken for its usual one.
                if any(each.symbol == symbol and each.role != role and each.value is None for each in self.found):
                    role = next(each.role for each in self.found if each.symbol == symbol)
                    self.found = [each for each in self.found if each.symbol != symbol or each.value is not None]
                self.add((chain.start(), found.end()), symbol=symbol, role=role, value=value)

    def supposed(self) -> None:
        """Sizes that a question changes by their letter: "if you increased h to 64"."""
        for found in _pattern("supposed").finditer(self.text):
            symbol = _symbol(found["name"])
            known = next((given.role for given in self.found if given.symbol == symbol), None)
            role = known or _data()["letters"].get(symbol)
            if role and self.free(found.span("number")):
                self.add(found.span("number"), symbol=symbol, role=role, value=_number(found["number"]), of="change")

    def names(self) -> None:
        """Formats of numbers, machines and models by their names."""
        patterns = _data()["names"]
        for found in re.finditer(patterns["dtype"], self.text, re.IGNORECASE):
            before = _pattern("stored").findall(self.text[max(0, found.start() - 40) : found.start()].lower())
            after = _pattern("stored").findall(self.text[found.end() : found.end() + 25].lower())
            of = (before[-1:] or after[:1] or [""])[0].strip(" ,.;")
            name = found.group().lower().replace(" ", "-")
            name = {"half-precision": "float16", "single-precision": "float32", "full-precision": "float32"}.get(
                name, name
            )
            name = re.sub(
                r"^(\d+)-bit.*",
                lambda bits: {"8": "int8", "4": "int4", "2": "int2", "16": "float16", "32": "float32"}[bits[1]],
                name,
            )
            self.add(found.span(), role="dtype", value=name, of=of)
        for role in ("machine", "model"):
            for found in re.finditer(patterns[role], self.text):
                before = self.text[max(0, found.start() - 40) : found.start()]
                if not re.search(
                    r"(?:based on|similar to|inspired by|such as|like|variant of|unlike)\s+(?:the\s+|a\s+)?$", before
                ):
                    self.add(found.span(), role=role, value=found.group().strip())

    # --- definitions

    def definitions(self) -> list[Definition]:
        found: list[Definition] = []
        for equation in _pattern("equation").finditer(self.text):
            left, _, right = equation.group().partition("=")
            text = f"{left.strip()} = {' '.join(right.split())}".rstrip(" .,;")
            plain = self.value_at(self.text.index("=", equation.start()) + 1) is not None or re.fullmatch(
                r"\s*[\d.,^]+\s*\w{0,8}\s*", right
            )
            if (
                right.strip()
                and not plain
                and re.search(r"[A-Za-z]", right)
                and not re.search(r"\b[a-z]{4,}\s+[a-z]{2,}\b", right)
            ):
                found.append(Definition(text=text, span=self.back(equation.span())))
        return found


def _sign(found: re.Match[str]) -> str | None:
    sign = found.group()
    if sign.startswith(r"\mathbb"):
        return "ℝ"
    if sign in _GREEK or sign[1:] in _GREEK.values() or sign in (r"\varepsilon", r"\varphi"):
        name = _GREEK.get(sign) or sign[1:].replace("varepsilon", "epsilon").replace("varphi", "phi")
        glued = found.start() and found.string[found.start() - 1].isalnum()
        return f" {name}" if glued else name
    if sign[0] == "\\" and len(sign) == 2:
        return sign[1] if sign[1] in "_%&#" else " "
    if "₀" <= sign <= "₉":
        return f"_{sign.translate(_LOW)}"
    return {"$": "", "−": "-", "{,}": ","}.get(sign, _SIGNS.get(sign))


def _symbol(name: str) -> str:
    """A symbol in one form: W^Q, W_{q}, Wq and WQ are W_Q; x1 is x_1.

    >>> _symbol("W^Q"), _symbol("Wq"), _symbol("x1"), _symbol("d_model")
    ('W_Q', 'W_Q', 'x_1', 'd_model')
    """
    if weight := re.fullmatch(r"([Ww])[_^]?([QKVOqkvo])(?:[_^]?(\d))?", name):
        return f"W_{weight[2].upper()}" + (f"_{weight[3]}" if weight[3] else "")
    if numbered := re.fullmatch(r"([A-Za-z])[_^]?(\d{1,2})", name):
        return f"{numbered[1]}_{numbered[2]}"
    return name


def _number(text: str) -> int | float | str:
    """A number with its scale: "8k", "13B", "2 million", "1.5e9", "2^10"."""
    found = re.fullmatch(r"([\d,.]+(?:[eE][+-]?\d+)?)(?: ?[×x·] ?10\^(-?\d+)|\^(\d+))?[ -]?([A-Za-z]*)", text.strip())
    if found is None or (found[3] and int(found[3]) > 100) or (found[2] and abs(int(found[2])) > 100):
        return text
    plain = found[1].replace(",", "").rstrip(".")
    value = Fraction(plain) ** int(found[3] or 1) * Fraction(10) ** int(found[2] or 0) * _SCALES.get(found[4], 1)
    return int(value) if value.denominator == 1 else float(value)


def _gathered(givens: list[Given]) -> list[Given]:
    """Numbered vectors of one letter as the rows of one matrix."""
    groups: dict[str, list[Given]] = {}
    for given in givens:
        numbered = re.fullmatch(r"([A-Za-z])_(\d{1,2})", given.symbol)
        if numbered and isinstance(given.value, list) and given.value and not isinstance(given.value[0], list):
            groups.setdefault(numbered[1], []).append(given)
    for letter, group in groups.items():
        numbers = [int(given.symbol.rpartition("_")[2]) for given in group]
        same = len({len(given.value) for given in group}) == 1
        if (
            len(group) > 1
            and same
            and numbers[0] in (0, 1)
            and numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        ):
            spans = [given.span for given in group if given.span]
            whole = group[0].model_copy(update={"symbol": letter, "value": [given.value for given in group],
                                                "span": (spans[0][0], spans[-1][1]) if spans else None})  # fmt: skip
            at = givens.index(group[0])
            givens = [*givens[:at], whole, *(given for given in givens[at:] if given not in group)]
    return givens
