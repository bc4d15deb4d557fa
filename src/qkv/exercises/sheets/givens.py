"""Find what a text gives: matrices, sizes, machine figures, laws, listings, definitions."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from itertools import islice
from typing import Any

from ...documents.document import Draft
from ...documents.patterns import Table
from ..forms.statement import closing
from ..record import Definition, Given, Span
from .arrays import interpret
from .laws import find_laws, find_shapes
from .literals import array_at, read_array, read_number

_MOST_CHARACTERS = 400_000
_MOST_CHAINS = 2000  # assignments of a text
_TABLE = Table("qkv.exercises.sheets", "sizes.toml", 0)
_DATA = _TABLE.data
_RAISED = dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", strict=True))
_NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
            "twelve": 12, "sixteen": 16}  # fmt: skip
_SPELLED = re.compile(
    rf"\b(?:{'|'.join(_NUMBERS)})(?= (?:(?:query|attention|kv|key[-/]value|decoder|encoder|identical) )?"
    r"(?:heads|layers|blocks|experts|groups)\b)",
    re.IGNORECASE,
)


@cache
def _rule(pattern: str) -> re.Pattern[str]:
    """A pattern of a rule, whose words may be over lines."""
    space = _DATA["parts"]["space"]
    pattern = pattern.replace("[- ]", " ").replace(" ?", f"{space}*").replace(" ", f"{space}+")
    return re.compile(_TABLE.filled(pattern), re.IGNORECASE)


def with_digits(text: str) -> str:
    """A text of the same length in which numbers of parts are written with digits.

    >>> with_digits("with four heads")
    'with    4 heads'
    """
    return _SPELLED.sub(lambda found: str(_NUMBERS[found.group().lower()]).rjust(len(found.group())), text)


def find_givens(text: str, context: str = "") -> list[Given]:
    """Everything that a text gives, each with its role and its span in `text`, in order.

    What only `context` gives comes after it, with the span None; where both give one symbol or one role, the text's
    stands. A symbol whose role the words next to it do not settle has the role "other". Laws are written
    "N(mu, Sigma)", "uniform(a, b)", or "iid mean m variance v" for independent components of any distribution. A
    vector is one list of numbers, a matrix a list of rows; numbered vectors x_1, …, x_n come as one matrix with a row
    for each (symbol "x"). An identity of unknown size has the value "I". Values are ints, floats as printed, or texts
    ("1/3", "sqrt(2)"). A figure that the text only supposes ("what if we dropped it to 1?") has `of="change"`.
    """
    text, context = with_digits(text), with_digits(context)
    found = _Finder(text, context).givens()
    own = [given for given in found if given.of != "change"]
    symbols = {given.symbol for given in own if given.symbol}
    roles = {given.role for given in own} - {"other", "listing", "law", "expression"}
    shared = _Finder(context, text).givens() if context.strip() else []
    more = [given for given in shared if given.symbol not in symbols and given.role not in roles]
    return found + [given.model_copy(update={"span": None}) for given in more]


def find_definitions(text: str) -> list[Definition]:
    """The equations of a text that define a symbol by others, in the notation of `qkv.maths`."""
    finder = _Finder(text, "")
    found: list[Definition] = []
    for equation in _TABLE["equation"].finditer(finder.text):
        left, _, right = equation.group().partition("=")
        torn = _TABLE["torn_fraction"].match(finder.text, equation.end())
        if (
            torn is None
            and _TABLE["defining"].match(right)
            and finder.value_at(equation.start() + len(left) + 1) is None
        ):
            text = f"{left.strip()} = {' '.join(right.split())}".rstrip(" .,;")
            found.append(Definition(text=text, span=finder.draft.back(equation.span())))
    for each in _TABLE["alike"].finditer(finder.text):
        found.append(Definition(text=f"{each['name']} ≈ {each['other']}", span=finder.draft.back(each.span())))
    return found


class _Finder:
    def __init__(self, text: str, around: str) -> None:
        source = text[:_MOST_CHARACTERS]
        self.about = f"{source}\n{around[:_MOST_CHARACTERS]}"
        self.draft = Draft(source)
        self.listings = list(_TABLE["listing"].finditer(source))
        self.draft.replace([(*found.span(), "\n") for found in self.listings])
        for name, put in (("decorated", _inner), ("sign", _sign), ("script", _script)):
            self.draft.substitute(_TABLE[name], put)
        self.text = self.draft.text
        self.found: list[Given] = []
        self.taken: list[Span] = []

    def givens(self) -> list[Given]:
        self.in_listings()
        self.arrays()
        self.worded_arrays()
        self.tables()
        self.names()
        self.sizes()
        self.scalars()
        self.supposed()
        for law in find_laws(self.text):
            self.add(law.span, **law.model_dump(exclude={"span"}, exclude_defaults=True))
        for shape in find_shapes(self.text):
            if not any(each.symbol == shape.symbol for each in self.found):
                self.add(shape.span, symbol=shape.symbol, role=self.role_of(shape.symbol, True), shape=shape.shape)
        stated = {given.symbol for given in self.found if given.value is not None}
        kept = [given for given in self.found if given.value is not None or given.law or given.symbol not in stated]
        return _gathered(sorted(kept, key=lambda given: given.span or (0, 0)))

    def add(self, span: Span | None, **fields: Any) -> None:
        assert span is not None
        self.taken.append(span)
        self.found.append(Given(span=self.draft.back(span), **fields))

    def free(self, span: Span) -> bool:
        return not any(start < span[1] and span[0] < stop for start, stop in self.taken)

    def before(self, start: int, length: int) -> str:
        return self.text[max(0, start - length) : start]

    def mentions(self, words: str) -> bool:
        return re.search(words, self.about, re.IGNORECASE) is not None

    # --- arrays

    def in_listings(self) -> None:
        for listing in self.listings:
            self.found.append(Given(role="listing", value=listing["code"].rstrip("\n"), span=listing.span()))
            for name, value in interpret(listing["code"]).values.items():
                if isinstance(value, str) or _TABLE["result"].match(name):
                    continue
                role = self.role_of(name, True) if isinstance(value, list) else self.size_role(name)
                self.found.append(Given(symbol=name, role=role, value=value, span=listing.span()))

    def arrays(self) -> None:
        for chain in islice(_TABLE["chain"].finditer(self.text), _MOST_CHAINS):
            value, end = self.value_at(chain.end()) or (None, 0)
            if not isinstance(value, list) and value != "I":
                continue
            for name in _TABLE["name"].findall(chain.group().replace("^T", "")):
                role = self.role_of(name, value == "I" or isinstance(value[0], list))
                self.add((chain.start(), end), symbol=_symbol(name), role=role, value=value)

    def value_at(self, start: int) -> tuple[Any, int] | None:
        """An array, an identity, or a column of numbers that lost its brackets."""
        if identity := _TABLE["identity"].match(self.text, start):
            size = int(identity[1] or identity[2] or 0)
            eye = [[int(row == column) for column in range(size)] for row in range(size)] if size <= 64 else []
            return eye or "I", identity.end()
        if made := _TABLE["made"].match(self.text, start):
            more = _TABLE["more_calls"].match(self.text, closing(self.text, made.end() - 1) + 1)
            end = more.end() if more else made.end()
            value = interpret(f"value = {self.text[made.start() : end].strip()}").values.get("value")
            return None if value is None else (value, end)
        column = _TABLE["column"].match(self.text, start)
        if column and "\n" in self.text[start - 2 : start + 1]:
            value = read_array(f"[{column.group()}]")
            if value is not None:
                return value, column.end()
        return array_at(self.text, start)

    def worded_arrays(self) -> None:
        """Vectors after a word: "keys: (1, 0), (0, 1)", "the query is [1, 2]"."""
        for words, role in _DATA["words"].items():
            pattern = _TABLE.filled(_DATA["patterns"]["worded"].replace("WORDS", words))
            for found in re.finditer(pattern, self.text, re.IGNORECASE):
                end, rows = found.end(), []
                following = found
                while following and (value := array_at(self.text, following.end())) and isinstance(value[0], list):
                    if not self.free((following.end(), value[1])):
                        break
                    rows.append(value[0])
                    end = value[1]
                    following = _TABLE["joined"].match(self.text, end)
                if rows:
                    several = len(rows) > 1 or (role in ("key", "value", "tokens") and not isinstance(rows[0][0], list))
                    value = rows if several else rows[0]
                    self.add((found.start(), end), symbol=_symbol(found["name"] or ""), role=role, value=value)

    def role_of(self, name: str, matrix: bool) -> Any:
        """The role of an array by its letter; "other" where the letter may mean several things."""
        symbol = _symbol(name)
        base = re.sub(r"_?\d+$", "", symbol)
        attention = _TABLE["about_attention"].search(self.about)
        if (base in ("x", "X") and not attention) or (symbol == "x" and not matrix):
            return "input" if matrix or self.mentions("norm") else "vector"
        if base in _DATA["asking"]:
            words, role = _DATA["asking"][base]
            return role if self.mentions(words) else "other" if matrix else "vector"
        return _DATA["arrays"].get(base) or _DATA["arrays"].get(base.lower(), "other")

    # --- sizes

    def tables(self) -> None:
        """Tables of hyperparameters: a name and a number in each row, or names above one row of numbers."""
        for table in _TABLE["table"].finditer(self.text):
            lines = _TABLE["table_row"].finditer(self.text, *table.span())
            rows = [list(_TABLE["table_cell"].finditer(self.text, *line.span())) for line in lines]
            if len(rows) == 2 and len(rows[0]) > 2:
                rows = [list(pair) for pair in zip(*rows, strict=False)]
            for row in rows:
                number = len(row) == 2 and _TABLE["cell"].match(row[1].group())
                if number:
                    alias = _TABLE["alias"].search(row[0].group())
                    name = re.sub(r"\([^()]*\)", "", row[0].group()).strip(" :*`")
                    symbol, value = alias[1] if alias else _symbol(name), _number(number["number"])
                    self.add(row[1].span(), symbol=symbol, role=self.size_role(name), value=value, unit=number["unit"])

    def rules(self, text: str) -> list[tuple[str, re.Pattern[str]]]:
        """The roles and patterns of the rules that may match a text."""
        lower = text.lower()
        chosen = [rule for rule in _DATA["rule"] if any(hint in lower for hint in rule["hint"].split("|"))]
        return [(rule["role"], _rule(pattern)) for rule in chosen for pattern in rule["patterns"]]

    def size_role(self, name: str) -> Any:
        """The role of a name of a table or of code, without a number."""
        for probe in (f"{name} = 7", f"{name.replace('_', ' ')} = 7", f"7 {name}"):
            for role, pattern in self.rules(probe):
                if (found := pattern.fullmatch(probe)) and found.groupdict().get("number"):
                    return role
        return _DATA["named"].get(name.lower(), "other")

    def sizes(self) -> None:
        for role, pattern in self.rules(self.text):
            for found in pattern.finditer(self.text):
                self.size(role, found)

    def size(self, role: str, found: re.Match[str]) -> None:
        groups = found.groupdict()
        part = next((name for name in ("number", "only", "slice") if groups.get(name)), "")
        if not part or not self.free(found.span(part)) or _TABLE["condition"].search(self.before(found.start(), 12)):
            return
        if part == "only":
            if not any(given.symbol == groups["only"] and given.role == role for given in self.found):
                self.add(found.span("only"), symbol=_symbol(groups["only"]), role=role)
            return
        named = _TABLE["assigned"].search(self.before(found.start(part), 24))
        symbol = groups.get("symbol") or groups.get("alias") or (named[1] if named else "")
        value = groups["slice"] if part == "slice" else _number(groups["number"])
        if role == "length" and isinstance(value, int) and value >= 10**9:
            role = "training_tokens" if self.mentions("train") else "tokens_count"
        changed = _TABLE["changed"].search(self.text[max(0, found.start() - 120) : found.start(part)])
        unit = re.sub(r"(?:per|a)second", "/s", "".join((groups.get("unit") or "").split()))
        self.add(found.span(part), symbol=_symbol(symbol), role=role, value=value, of="change" if changed else "",
                 unit=unit)  # fmt: skip

    def scalars(self) -> None:
        """Assignments of one number whose role only the letter may say."""
        model = _TABLE["about_model"].search(self.about)
        for chain in islice(_TABLE["chain"].finditer(self.text), _MOST_CHAINS):
            found = _TABLE["scalar"].match(self.text, chain.end())
            if found is None or not self.free(found.span()) or _TABLE["expression"].match(self.text, found.end()):
                continue
            if _TABLE["summed"].search(self.before(chain.start(), 12)):
                continue
            value = _number(found["number"]) if found["number"] else read_number(found["other"])
            for name in _TABLE["name"].findall(chain.group()):
                symbol = _symbol(name)
                role = _DATA["letters"].get(symbol, "other") if model else "other"
                if role == "other" or (role == "vocabulary" and not (isinstance(value, int) and value >= 1000)):
                    role = self.size_role(name)
                # A letter that the words give to another size is not taken for its usual one.
                if any(each.symbol == symbol and each.role != role and each.value is None for each in self.found):
                    role = next(each.role for each in self.found if each.symbol == symbol)
                    self.found = [each for each in self.found if each.symbol != symbol or each.value is not None]
                self.add((chain.start(), found.end()), symbol=symbol, role=role, value=value)

    def supposed(self) -> None:
        """Sizes that a question changes by their letter: "if you increased h to 64"."""
        for found in _TABLE["supposed"].finditer(self.text):
            symbol = _symbol(found["name"])
            known = [given.role for given in self.found if given.symbol == symbol]
            role = known[0] if known else _DATA["letters"].get(symbol)
            if role and self.free(found.span("number")):
                self.add(found.span("number"), symbol=symbol, role=role, value=_number(found["number"]), of="change")

    def names(self) -> None:
        """Formats of numbers, machines and models by their names."""
        for found in re.finditer(_DATA["names"]["dtype"], self.text, re.IGNORECASE):
            before = _TABLE["stored"].findall(self.before(found.start(), 40).lower())
            after = _TABLE["stored"].findall(self.text[found.end() : found.end() + 25].lower())
            of = (before[-1:] or after[:1] or [""])[0].strip(" ,.;")
            name = re.sub(r"(?<=-bit).*", "", found.group().lower().replace(" ", "-"))
            self.add(found.span(), role="dtype", value=_DATA["dtypes"].get(name, name), of=of)
        for role in ("machine", "model"):
            for found in re.finditer(_DATA["names"][role], self.text):
                if not _TABLE["likened"].search(self.before(found.start(), 40)):
                    self.add(found.span(), role=role, value=found.group().strip())


def _inner(found: re.Match[str]) -> str | None:
    return None if found["matrix"] else found["inner"] or found["letter"] or ""


def _script(found: re.Match[str]) -> str | None:
    return None if found["matrix"] else f"{found['place']}{found['inner'] or found['letter']}"


def _sign(found: re.Match[str]) -> str | None:
    sign = found.group()
    if greek := _DATA["greek"].get(sign.lstrip("\\")):
        return f" {greek}" if found.string[max(0, found.start() - 1) : found.start()].isalnum() else greek
    if sign[-1] in _RAISED:
        return f"^{''.join(_RAISED[each] for each in sign)}"
    return "ℝ" if found["reals"] else _DATA["signs"].get(sign)


def _symbol(name: str) -> str:
    """A symbol in one form: W^Q, W_{q}, Wq and WQ are W_Q; x1 is x_1.

    >>> _symbol("W^Q"), _symbol("Wq"), _symbol("x1"), _symbol("d_model")
    ('W_Q', 'W_Q', 'x_1', 'd_model')
    """
    if weight := _TABLE["weight"].fullmatch(name):
        return f"W_{weight[2].upper()}" + (f"_{weight[3]}" if weight[3] else "")
    numbered = _TABLE["indexed"].fullmatch(name)
    return f"{numbered[1]}_{numbered[2]}" if numbered else name


def _number(text: str) -> int | float | str:
    """A number with its scale: "8k", "13B", "2 million", "1.5e9", "2^10"."""
    found = _TABLE["scaled"].fullmatch(text.strip())
    if found is None:
        return text
    value = Fraction(found[1].replace(",", "").rstrip(".")) ** int(found[3] or 1) * Fraction(10) ** int(found[2] or 0)
    value *= _DATA["scales"].get(found[4], 1)
    return int(value) if value.denominator == 1 else float(value)


def _gathered(givens: list[Given]) -> list[Given]:
    """Numbered vectors of one letter as the rows of one matrix."""
    groups: dict[str, list[Given]] = {}
    for given in givens:
        letter, _, number = given.symbol.partition("_")
        vector = isinstance(given.value, list) and given.value and not isinstance(given.value[0], list)
        if len(letter) == 1 and number.isdigit() and vector:
            groups.setdefault(letter, []).append(given)
    for letter, group in groups.items():
        symbols = [given.symbol for given in group]
        counted = [[f"{letter}_{at + base}" for at in range(len(group))] for base in (0, 1)]
        if len(group) > 1 and symbols in counted and len({len(given.value) for given in group}) == 1:
            spans = [given.span for given in group if given.span]
            rows = {"symbol": letter, "value": [given.value for given in group], "span": (spans[0][0], spans[-1][1])}
            at = givens.index(group[0])
            rest = [given for given in givens[at:] if given not in group]
            givens = [*givens[:at], group[0].model_copy(update=rows), *rest]
    return givens
