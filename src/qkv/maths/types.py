"""Declarations: from `{"mu": "vector[d]", "sigma": "positive"}` to the types of names, checked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from qkv.errors import MathsError, OptionError, OptionTypeError, complaint
from qkv.maths.parsing import naming
from qkv.maths.parsing.parse import DEEPEST, depth, read
from qkv.maths.parsing.shapes import describe_shape
from qkv.maths.sizes import NATURAL, is_impossible, size_of
from qkv.maths.symmetry import symmetric_in, symmetric_names
from qkv.maths.tree import Law, Multiply, Node, Number, Shape, Size, Special, Type, Written, symbols_of

_KIND = re.compile(r"\s*(random\s+)?(scalar|real|positive|nonnegative|natural|vector|matrix|index|map)(?![A-Za-z])\s*")
_SIZES = re.compile(r"\s*(?:\[([^\[\]]*)\]|\(([^()]*)\))\s*")
_TILDE = re.compile(r"~|∼|\\sim(?![A-Za-z])")
_NAME = re.compile(r"\\?[A-Za-zµͰ-Ͽ]+'*(?:_(?:[A-Za-z0-9]+|\{[^{}]*\}))?'*")
_AXES = {"vector": 1, "matrix": 2, "index": 1}
_EXPECTED_TYPES = (
    "scalar, positive, nonnegative, natural, vector[d], matrix[n,d], index[n], map vector[d] -> scalar, "
    "or random vector[d] ~ N(mu, sigma^2 I)"
)
_MOST_NAMES = 200
_LONGEST_CHAIN = 20


@dataclass(frozen=True)
class Declared:
    """The types of all names, including sizes that only types mention, and the names that are maps."""

    types: Mapping[str, Type]
    maps: frozenset[str]


@dataclass(frozen=True)
class _Declaration:
    """A declaration split into its parts, none of them parsed yet."""

    text: str
    kind: str
    sizes: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    result: str = ""
    law: str | None = None
    definition: str | None = None


def declare(symbols: Mapping[str, str] | Declared) -> Declared:
    """The declared types, parsed and checked; cached for equal declarations.

    Raises:
        OptionTypeError: If `symbols` is not a mapping from text to text.
        OptionError: If a name or a type is malformed, circular, or cannot be what it says.

    >>> declare({"mu": "vector[d]"}).types["d"].kind
    'natural'
    """
    if isinstance(symbols, Declared):
        return symbols
    if not isinstance(symbols, Mapping):
        raise OptionTypeError(complaint("symbols", type(symbols).__name__, "a mapping from names to types"))
    for name, text in symbols.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise OptionTypeError(complaint("symbols", f"{name!r}: {text!r}", "names and types written as text"))
    if len(symbols) > _MOST_NAMES:
        raise OptionError(complaint("symbols", f"{len(symbols)} names", f"at most {_MOST_NAMES}"))
    return _declared(tuple(symbols.items()))


@lru_cache(maxsize=512)
def _declared(items: tuple[tuple[str, str], ...]) -> Declared:
    declarations: dict[str, _Declaration] = {}
    for written, text in items:
        name = naming.canonical_name(written)
        if name is None:
            raise OptionError(complaint("symbols", repr(written), "a name such as mu, W_Q, d_model or x'"))
        if name in declarations:
            raise OptionError(complaint("symbols", repr(written), f"each name once, and {name} is declared already"))
        declarations[name] = _split_declaration(name, text)
    types = _Types(declarations)
    found = {name: types[name] for name in types}
    check_declarations(found)
    return Declared(MappingProxyType(found), types.maps)


def _split_declaration(name: str, text: str) -> _Declaration:
    if len(text) > 500:
        raise OptionError(complaint(f"symbols[{name!r}]", f"{len(text)} characters", "at most 500"))
    body, equals, definition = text.partition("=")
    parts = _TILDE.split(body, maxsplit=1)
    found = _KIND.match(parts[0])
    if not found:
        raise _unknown(name, text)
    kind = "scalar" if found[2] == "real" else found[2]
    rest = parts[0][found.end() :]
    law = parts[1].strip() if len(parts) > 1 else None
    if bool(found[1]) != (law is not None) or (found[1] and kind not in ("scalar", "vector")):
        raise OptionError(
            complaint(f"symbols[{name!r}]", repr(text), "random scalar or random vector[d], then ~ and its law")
        )
    defined = definition.strip() if equals else None
    if kind == "map":
        given, arrow, result = rest.replace("→", "->").partition("->")
        arguments = tuple(_split_commas(given))
        if not arrow or not arguments or defined is not None:
            raise _unknown(name, text)
        return _Declaration(text, kind, (), arguments, result.strip())
    sizes = _SIZES.fullmatch(rest) if kind in _AXES else None
    listed = tuple(_split_commas(sizes[1] or sizes[2] or "")) if sizes else ()
    if len(listed) != _AXES.get(kind, 0) or (kind not in _AXES and rest.strip()) or (law and defined is not None):
        raise _unknown(name, text)
    return _Declaration(text, kind, listed, law=law, definition=defined)


def _unknown(name: str, text: str) -> OptionError:
    return OptionError(complaint(f"symbols[{name!r}]", repr(text), f"a type: {_EXPECTED_TYPES}"))


def _split_commas(text: str) -> list[str]:
    """Split at the commas that are outside all brackets."""
    pieces, level = [""], 0
    for letter in text:
        level += (letter in "([{") - (letter in ")]}")
        if letter == "," and level == 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    return [piece.strip() for piece in pieces]


class _Types(Mapping[str, Type]):
    """Parses each type at its first use, because a type may mention other names; cycles are refused."""

    def __init__(self, declarations: dict[str, _Declaration]) -> None:
        self.declarations = declarations
        self.maps = frozenset(name for name, one in declarations.items() if one.kind == "map")
        self.parsed: dict[str, Type] = {}
        self.in_progress: list[str] = []
        self.implied = self._implied()

    def __iter__(self) -> Iterator[str]:
        yield from self.declarations
        yield from self.implied

    def __len__(self) -> int:
        return len(self.declarations) + len(self.implied)

    def __contains__(self, name: object) -> bool:
        return name in self.declarations or name in self.implied

    def __getitem__(self, name: str) -> Type:
        if name in self.parsed:
            return self.parsed[name]
        if name in self.implied:
            return NATURAL
        one = self.declarations[name]
        if name in self.in_progress or len(self.in_progress) > _LONGEST_CHAIN:
            chain = " → ".join([*self.in_progress[-3:], name])
            raise OptionError(complaint(f"symbols[{name!r}]", chain, "definitions without cycles"))
        self.in_progress.append(name)
        try:
            self.parsed[name] = self._type(name, one)
        finally:
            self.in_progress.pop()
        return self.parsed[name]

    def _implied(self) -> dict[str, None]:
        """Names that occur only in sizes, which are naturals. A run of declared letters is a product instead."""
        found: dict[str, None] = {}
        for one in self.declarations.values():
            texts = [*one.sizes]
            for shaped in (*one.arguments, one.result):
                sizes = _SIZES.search(shaped)
                texts += _split_commas(sizes[1] or sizes[2] or "") if sizes else []
            for text in texts:
                for written in _NAME.findall(text):
                    name = naming.canonical_name(written)
                    if (
                        name
                        and not naming.is_reserved(name)
                        and name not in self.declarations
                        and not all(letter in self.declarations for letter in name)
                    ):
                        found[name] = None
        return found

    def _type(self, name: str, one: _Declaration) -> Type:
        if one.kind == "map":
            arguments = tuple(self._declared_shape(name, text) for text in one.arguments)
            return Type("map", self._declared_shape(name, one.result), arguments=arguments)
        shape = tuple(self._size(name, text) for text in one.sizes)
        if one.definition is not None:
            return Type(one.kind, shape, definition=self._definition(name, one, shape))
        if one.law is not None:
            return Type(one.kind, shape, law=self._law(name, one.law, shape))
        return Type(one.kind, shape)

    def _declared_shape(self, name: str, text: str) -> Shape:
        found = _KIND.match(text)
        sizes = _SIZES.fullmatch(text[found.end() :]) if found else None
        listed = _split_commas(sizes[1] or sizes[2] or "") if sizes else []
        bare = found is not None and not text[found.end() :].strip()
        if not found or found[2] in ("index", "map") or found[1] or len(listed) != _AXES.get(found[2], 0):
            raise _unknown(name, self.declarations[name].text)
        if not sizes and not bare:
            raise _unknown(name, self.declarations[name].text)
        return tuple(self._size(name, size) for size in listed)

    def _read(self, name: str, text: str, shape: Shape | None, *, naturals: bool = False) -> Node:
        try:
            node = read(text, self, self.maps, expected=shape, naturals=naturals)
        except MathsError as failed:
            raise OptionError(complaint(f"symbols[{name!r}]", repr(text), f"something readable: {failed}")) from None
        if depth(node) > DEEPEST // 2:
            raise OptionError(complaint(f"symbols[{name!r}]", "a deep definition", "one that is less nested"))
        return node

    def _size(self, name: str, text: str) -> Size:
        node = self._read(name, text, None, naturals=True)
        size = size_of(node) if not node.shape else None
        defined = isinstance(size, str) and not _NAME.search(size) and _NAME.search(text)  # d/n where both have values
        if size is None or (is_impossible(size) and not defined):
            raise OptionError(complaint(f"symbols[{name!r}]", f"the size {text!r}", "a whole number from 1, d or n+1"))
        return size

    def _definition(self, name: str, one: _Declaration, shape: Shape) -> Node:
        wanted = () if one.kind == "index" else shape
        node = self._read(name, one.definition or "", wanted)
        if node.shape != wanted:
            given = f"{one.definition}, which is {describe_shape(node.shape)}"
            raise OptionError(complaint(f"symbols[{name!r}]", given, describe_shape(wanted)))
        return node

    def _law(self, name: str, text: str, shape: Shape) -> Law:
        found = re.fullmatch(
            r"(N|𝒩|\\mathcal\s*\{?\s*N\s*\}?|)\s*(?:\\left\s*)?\((.*?)(?:\\right\s*)?\)\s*", text, re.DOTALL
        )
        pieces = _split_commas(found[2]) if found else []
        if not found or len(pieces) != 2:
            raise OptionError(
                complaint(f"symbols[{name!r}]", repr(text), "a law: N(mean, covariance) or (mean, covariance)")
            )
        mean = self._read(name, pieces[0], shape)
        spread = self._read(name, pieces[1], shape * 2)
        if shape and not mean.shape:
            zero = isinstance(mean, Number) and mean.value == 0
            mean = Special(shape, "zeros") if zero else _scaled_special(mean, Special(shape, "ones"))
        if shape and not spread.shape:
            spread = _scaled_special(spread, Special(shape * 2, "identity"))
        for what, node, wanted in (("mean", mean, shape), ("covariance", spread, shape * 2)):
            if node.shape != wanted:
                given = f"a {what} that is {describe_shape(node.shape)}"
                raise OptionError(complaint(f"symbols[{name!r}]", given, describe_shape(wanted)))
        return Law(mean, spread, bool(found[1]))


def _scaled_special(scalar: Node, special: Node) -> Node:
    factors = scalar.factors if isinstance(scalar, Multiply) else (scalar,)
    return Multiply(special.shape, (*factors, special))


def check_declarations(types: Mapping[str, Type]) -> None:
    """Raise OptionError for a law or a definition that contradicts its type, such as a negative variance."""
    known = symmetric_in(types.values()).known
    for name, kind in types.items():
        if kind.law is not None:
            _check_law(name, kind, known)
        if kind.definition is not None:
            _check_definition(name, kind)


def _check_law(name: str, kind: Type, known: frozenset[str]) -> None:
    law = kind.law
    assert law is not None
    where = f"symbols[{name!r}]"
    others = [other for other, symbol in symbols_of(law.mean, law.covariance).items() if symbol.type.random]
    if others:
        given = f"a law that mentions {others[0]}, which is random itself"
        raise OptionError(complaint(where, given, "a law without random names: distinct random names are independent"))
    if kind.shape and symmetric_names(law.covariance, known) is None:
        from qkv.maths.printing import plain

        given = f"the covariance {plain(law.covariance)}, which need not be symmetric"
        hint = 'declare a name for it, such as "S": "matrix[d,d]", and write that'
        raise OptionError(complaint(where, given, "a symmetric one, such as Sigma, sigma^2 I or A A^T", hint))
    value = _constant_value(law.covariance) if not kind.shape else None
    entries = _diagonal(law.covariance) if kind.shape else [value]
    if any(entry is not None and entry < 0 for entry in entries):
        raise OptionError(complaint(where, "a variance below zero", "one that is zero or more"))


def _check_definition(name: str, kind: Type) -> None:
    if kind.kind not in ("positive", "nonnegative", "natural"):
        return
    assert kind.definition is not None
    value: Any = _constant_value(kind.definition)
    if value is None:
        return
    fine = value > 0 or (value == 0 and kind.kind == "nonnegative")
    if not fine or (kind.kind == "natural" and value != int(value)):
        from qkv.maths.comparison.counterexample import number_text

        wanted = {"positive": "more than zero", "nonnegative": "zero or more", "natural": "a whole number from 1"}
        raise OptionError(complaint(f"symbols[{name!r}]", number_text(Fraction(value)), wanted[kind.kind]))


def _constant_value(node: Node) -> Any:
    """The value of a node without free names; None if it needs names or has no value."""
    from qkv.maths.values.arithmetic import Undefined, Unevaluable
    from qkv.maths.values.evaluate import evaluate

    if any(symbol.type.definition is None for symbol in symbols_of(node).values()):
        return None
    try:
        return evaluate(node, {}, {})
    except (Undefined, Unevaluable):
        return None


def _diagonal(covariance: Node) -> list[Any]:
    """The diagonal of a numeric covariance, or the factor of an identity; [−1] if it is not a covariance."""
    from qkv.maths.values.arithmetic import Undefined
    from qkv.maths.values.evaluate import ldl

    match covariance:
        case Written():
            numbers = [_constant_value(entry) for entry in covariance.entries]
            width = int(covariance.shape[1])
            if None not in numbers:
                rows = tuple(tuple(numbers[i : i + width]) for i in range(0, len(numbers), width))
                try:
                    ldl(rows)
                except Undefined:
                    return [-1]
            return numbers[:: width + 1]
        case Multiply(factors=(*scalars, Special(name="identity"))):
            return [_constant_value(Multiply((), tuple(scalars)))]
    return []
