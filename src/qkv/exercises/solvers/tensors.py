"""The shapes of a listing: every line carried out on symbolic sizes, with what does not fit and what is not used."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from ...cost.polynomial import Polynomial
from ..listings import BLANK, OPERATORS, TRAILING, Function, Listing, Statement, read, shape_of, size_of
from .formulas import ONE, product, table

Shape = tuple[Polynomial, ...]
_PATTERN = {name: re.compile(pattern) for name, pattern in table("listing").items()}
_WIDTHS = frozenset(["q", "k", "v", "d_q", "d_k", "d_v", "dq", "dk", "dv"])


def role_of(name: str) -> str:
    """The role that a name has: q, k, v, o, or none.

    >>> role_of("self.W_q"), role_of("Keys"), role_of("value_proj"), role_of("scores")
    ('q', 'k', 'v', '')
    """
    found = _PATTERN["role"].fullmatch(name.rpartition(".")[2])
    return found[1].lower() if found else ""


def differ(name: str, role: str) -> bool:
    """Whether a name promises another role than a tensor has; outputs and weights are named in many ways."""
    return role_of(name) != role and {role_of(name), role} <= set("qkv")


@lru_cache(maxsize=2048)
def _parsed(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return []


@dataclass(frozen=True)
class Tensor:
    """A tensor; `summed` is the size that the last product summed over; a `guessed` shape is an einsum's alone.

    `role` is q, k, v, o, or w for weights after a softmax, by names and by what was done.
    """

    shape: Shape | None
    summed: Polynomial | None = None
    guessed: bool = False
    role: str = ""


@dataclass(frozen=True)
class Root:
    of: Polynomial


@dataclass(frozen=True)
class Layer:
    """A linear layer, a softmax over the axis `inputs`, or (of the kind "same") a layer that keeps shapes."""

    name: str
    inputs: Any = None
    outputs: Any = None
    kind: str = "Linear"


@dataclass
class Line:
    """What one line computes: the size of every tensor that it makes, and the number of products."""

    number: int
    target: str = ""
    operations: Polynomial = field(default_factory=lambda: Polynomial({}))
    tensors: dict[str, Polynomial] = field(default_factory=dict)


class Misfit(Exception):
    """Shapes that do not fit."""


@dataclass
class Run:
    """One pass over a listing: what fits, what does not, what was used, and every line's cost.

    Values are tensors, sizes (polynomials), layers, tuples of them, or None where nothing is known.
    """

    listing: Listing
    attributes: dict[str, Any]
    repair: Callable[[Run, str, Any], Any] | None = None
    misfits: list[tuple[int, str]] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)
    lines: list[Line] = field(default_factory=list)
    scopes: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)
    applications: Counter[str] = field(default_factory=Counter)
    operands: Sequence[ast.expr] = ()
    wasted: int = 0
    mismatches: int = 0
    softmaxes: int = 0
    products: int = 0
    returned: Any = None
    length: str = "seq_length"
    depth: int = 0
    line: Line = field(default_factory=lambda: Line(0))
    where: str = ""

    def misfit(self, why: str) -> None:
        self.misfits.append((self.line.number, why))

    def equal(self, one: Any, other: Any) -> bool:
        """Whether two sizes can be the same; names of a head's widths are one number where nothing else is said."""
        return one is None or other is None or one == other or {str(one), str(other)} <= _WIDTHS

    def sizes(self) -> dict[str, Polynomial]:
        """The attributes that are sizes."""
        return {name: value for name, value in self.attributes.items() if isinstance(value, Polynomial)}

    def blank(self, name: str, names: Mapping[str, Any]) -> str:
        """The label of a blank, which is noted with what is known where it stands."""
        found = BLANK.match(name)
        if found:
            self.scopes[found[1]] = dict(names), self.where
        return found[1] if found else ""

    def named(self, name: str, value: Tensor) -> Tensor:
        """A tensor under a name, which has the name's role if it has no other."""
        self.mismatches += differ(name, value.role)
        return replace(value, role=value.role or role_of(name))

    # --- statements

    def call(self, function: Function, given: Mapping[str, Any]) -> Any:
        if self.depth > 6:
            return None
        names = dict(given)
        for name, text in function.declared.items():
            if names.get(name) is None and (shape := shape_of(text)) is not None:
                self.shapes.setdefault(name, shape)
                if name in function.parameters or not function.name:
                    names[name] = Tensor(shape)
            if found := BLANK.search(text):
                self.scopes[found[1]] = dict(names), f"shape {name}"
                names[name] = Tensor(None)
        outer = self.where, self.line
        self.depth, self.where = self.depth + 1, function.name
        for name, value in names.items():
            if isinstance(value, Tensor):
                names[name] = self.named(name, value)
                self.made.add(f"{function.name}:{name}")
        result, skipped = None, -1
        for statement in function.body:
            if skipped >= 0 and statement.indent > skipped:
                continue
            skipped = statement.indent if re.match(r"(?:else|elif|except)\b", statement.text) else -1
            returned = self.statement(statement, names)
            result = result if returned is None else returned
        self.depth -= 1
        self.where, self.line = outer
        return result

    def statement(self, statement: Statement, names: dict[str, Any]) -> Any:
        """Carry out one line; what it returns, if it is a return."""
        self.line = Line(statement.number)
        if _PATTERN["skipped"].match(statement.text):
            return None
        for tree in _parsed(statement.text):
            self.line = Line(statement.number)
            self.lines.append(self.line)
            match tree:
                case ast.Return(value=ast.expr() as node):
                    self.line.target = "return"
                    return self.value(node, names)
                case ast.Expr(value=node):
                    self.value(node, names)
                case ast.Assign(targets=[target, *_], value=node) | ast.AugAssign(target=target, value=node):
                    value = self.value(node, names)
                    if isinstance(node, ast.Name) and (label := BLANK.match(node.id)):
                        self.open[ast.unparse(target)] = label[1]
                    self.assign(target, value, names, statement.comment)
        return None

    def assign(self, target: ast.expr, value: Any, names: dict[str, Any], comment: str) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            count = len(target.elts)
            if isinstance(value, tuple) and len(value) != count:
                self.misfit(f"{len(value)} values for {count} names")
            values = value if isinstance(value, tuple) and len(value) == count else [None] * count
            for each, part in zip(target.elts, values, strict=True):
                self.assign(each, part, names, "")
            return
        name = ast.unparse(target)
        found = TRAILING.match(comment)
        said = shape_of(found[1]) if found else None
        if found and (label := BLANK.search(found[1])):
            self.scopes[label[1]] = dict(names), f"shape {name}"
        if value is None and said is None and isinstance(names.get(name), Polynomial):
            return
        if said is not None and isinstance(value, Tensor) and value.shape is not None and not value.guessed:
            if len(said) != len(value.shape) or not all(map(self.equal, said, value.shape)):
                self.misfit(f"{name} is {shown(value.shape)}, not {shown(said)}")
        elif said is not None:
            value = Tensor(said, getattr(value, "summed", None))
        if isinstance(value, Layer):
            value = replace(value, name=name)
        if isinstance(value, Tensor):
            value = self.named(name, value)
            key = f"{self.where}:{name}"
            self.wasted += key in self.made and key not in self.used
            self.made.add(key)
            self.used.discard(key)
            if value.shape is not None:
                self.shapes[name] = value.shape
                self.line.tensors[name] = product(value.shape)
        self.line.target = name
        (self.attributes if name.startswith("self.") else names)[name] = value

    # --- expressions

    def value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        match node:
            case ast.Constant(value=value):
                return Polynomial.of(value) if type(value) is int else value
            case ast.Name(id=name) | ast.Attribute(attr=name) if self.blank(name, names):
                return None
            case ast.Name(id=name):
                self.used.add(f"{self.where}:{name}")
                return names.get(name, self.attributes.get(f"self.{name}", self.constants.get(name)))
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                self.used.add(f"self.{name}")
                return self.attributes.get(f"self.{name}")
            case ast.Attribute(value=inner, attr=name):
                return self.attribute(self.value(inner, names), name)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return tuple(self.value(part, names) for part in parts)
            case ast.BinOp(left=left, op=sign, right=right):
                return self.binary(self.value(left, names), sign, self.value(right, names), ast.unparse(right))
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                value = self.value(inner, names)
                return -value if isinstance(value, Polynomial) else value
            case ast.Subscript(value=inner, slice=index):
                return self.subscript(self.value(inner, names), index, names)
            case ast.IfExp(body=body):
                return self.value(body, names)
            case ast.Call():
                return self.called(node, names)
        return None

    def attribute(self, base: Any, name: str) -> Any:
        match base, name:
            case Tensor(shape=shape), "shape":
                return shape
            case Tensor(shape=(_, _, *_) as shape), "T" | "mT":
                return Tensor((*shape[:-2], shape[-1], shape[-2]), role=base.role)
            case Layer(), "weight":
                self.used.add(base.name)
                return Tensor((base.outputs, base.inputs))
        return None

    def binary(self, left: Any, sign: ast.operator, right: Any, written: str) -> Any:
        if isinstance(sign, ast.MatMult):
            return self.matmul(left, right)
        tensors = [each for each in (left, right) if isinstance(each, Tensor)]
        if tensors:
            if isinstance(left, Tensor) and isinstance(sign, ast.Div) and left.summed is not None:
                self.scaled(left.summed, right)
            summed = next((each.summed for each in tensors if each.summed is not None), None)
            if len(tensors) == 1:
                return Tensor(tensors[0].shape, summed)
            one, other = (each.shape for each in tensors)
            return Tensor(None) if one is None or other is None else Tensor(self.batch(one, other), summed)
        if isinstance(left, Polynomial) and isinstance(sign, ast.Pow):
            return Root(left) if written.strip("()") in ("0.5", "1 / 2") else None
        if isinstance(left, Polynomial) and isinstance(right, Polynomial) and type(sign) in OPERATORS:
            divides = isinstance(sign, ast.Div | ast.FloorDiv)
            return None if divides and not right else OPERATORS[type(sign)](left, right)
        return None

    def scaled(self, summed: Polynomial, by: Any) -> None:
        """Scores are divided by the root of the size that was summed over."""
        if isinstance(by, Polynomial):
            self.misfit(f"scores are divided by {by}, not by a root")
        elif isinstance(by, Root) and not self.equal(by.of, summed):
            if self.repair is not None:
                self.repair(self, "scale", summed)
            else:
                self.misfit(f"scores are divided by the root of {by.of}, not of {summed}")

    def batch(self, one: Shape, other: Shape) -> Shape:
        """Axes broadcast against each other."""
        size = max(len(one), len(other))
        found = []
        for a, b in zip((ONE,) * (size - len(one)) + one, (ONE,) * (size - len(other)) + other, strict=True):
            if a != 1 and b != 1 and not self.equal(a, b):
                self.misfit(f"{a} and {b} do not fit")
            found.append(b if a == 1 else a)
        return tuple(found)

    def matmul(self, left: Any, right: Any) -> Any:
        self.products += 1
        roles = getattr(left, "role", ""), getattr(right, "role", "")
        self.mismatches += all(roles) and roles not in (("w", "v"), ("q", "k"))
        match left, right:
            case Tensor(shape=(*_, inner) as a), Tensor(shape=(*_, _) as b):
                below = b[-2:][0]
                if not self.equal(inner, below):
                    return self.misfit(f"{shown(a)} times {shown(b)}: {inner} and {below}")
                shape = (*self.batch(a[:-2], b[:-2]), *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))
                self.count(*shape, inner)
                return Tensor(shape, inner)
        return Tensor(None)

    def count(self, *sizes: Polynomial) -> None:
        self.line.operations += product(sizes)

    def subscript(self, base: Any, index: ast.expr, names: dict[str, Any]) -> Any:
        if isinstance(base, tuple):
            place = _integer(self.value(index, names))
            return base[place] if isinstance(place, int) and -len(base) <= place < len(base) else None
        if not isinstance(base, Tensor) or base.shape is None:
            return None
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        plain = [part.value if isinstance(part, ast.Constant) else part for part in parts]
        shape, rest = [], list(base.shape)
        for part in plain:
            if part is None:
                shape.append(ONE)
            elif part is Ellipsis:
                kept = len(rest) - sum(each is not None and each is not Ellipsis for each in plain)
                shape, rest = [*shape, *rest[:kept]], rest[kept:]
            elif rest:
                size = rest.pop(0)
                if isinstance(part, ast.Slice) and (part.lower or part.upper):
                    upper = self.value(part.upper, names) if part.upper and not part.lower else None
                    size = upper if isinstance(upper, Polynomial) else Polynomial.name("?")
                shape += [size] if isinstance(part, ast.Slice) else []
        return Tensor((*shape, *rest))

    # --- calls

    def called(self, node: ast.Call, names: dict[str, Any]) -> Any:
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        self.blank(last, names)
        arguments = [None if isinstance(each, ast.Starred) else self.value(each, names) for each in node.args]
        options = {each.arg: self.value(each.value, names) for each in node.keywords if each.arg}
        given = arguments[0] if arguments else None
        target = self.attributes.get(name) if name.startswith("self.") else names.get(name)
        function = self.listing.functions.get(last)
        if target is None and function is None and _PATTERN["layer"].fullmatch(name) and getattr(given, "shape", None):
            target = Layer(name, given.shape[-1], given.shape[-1])  # pyright: ignore[reportOptionalMemberAccess]
        try:
            if isinstance(target, Layer):
                self.used.add(name)
                return self.applied(target, given)
            if function is not None and (name == last or name.startswith("self.")):
                self.used.add(name)
                return self.call(function, dict(zip(function.parameters, arguments, strict=False)) | options)
            if isinstance(node.func, ast.Attribute) and not _PATTERN["module"].match(name):
                arguments.insert(0, self.value(node.func.value, names))
                if last == "item" or arguments[0] is None:
                    return None
            self.operands = node.args[1:] if last == "einsum" else node.args[:1]
            return self.operation(name, last, arguments, options)
        except (Misfit, ZeroDivisionError) as misfit:
            return self.misfit(str(misfit))

    def operation(self, name: str, last: str, arguments: list[Any], options: dict[str, Any]) -> Any:
        """A function of PyTorch, NumPy or einops."""
        tensor = next((each for each in arguments if isinstance(each, Tensor)), None)
        if _PATTERN["same"].fullmatch(last):
            return tensor or (Layer(last, kind="same") if name.startswith("nn.") else None)
        if last in _OPERATIONS:
            return _OPERATIONS[last](self, arguments, options)
        if last not in _RULES:
            return None
        given, *rest = arguments or [None]
        if not isinstance(given, Tensor) or given.shape is None:
            return Tensor(None)
        plain = {{"axis": "dim", "keepdims": "keepdim"}.get(key, key): _integer(each) for key, each in options.items()}
        plain = {key: each for key, each in plain.items() if key in ("dim", "keepdim")}
        try:
            found = _RULES[last](list(given.shape), *map(_integer, rest), **plain)
        except IndexError:
            raise Misfit("an axis that does not exist") from None
        except TypeError:
            return Tensor(None)
        return Tensor(tuple(found), role=given.role) if isinstance(found, list) else found

    def applied(self, layer: Layer, given: Any) -> Any:
        if layer.kind == "same":
            return given
        if layer.kind == "softmax":
            return _softmax(self, [given], {"dim": layer.inputs})
        if not isinstance(given, Tensor) or given.shape is None:
            return Tensor(None)
        self.applications[layer.name] += 1
        self.mismatches += differ(layer.name, given.role)
        if not self.equal(given.shape[-1], layer.inputs):
            if self.repair is None:
                self.misfit(f"{layer.name} takes {layer.inputs}, not {given.shape[-1]}")
            else:
                self.repair(self, layer.name, given.shape[-1])
        if layer.outputs is None:
            return Tensor(None)
        self.count(*given.shape, layer.outputs)
        return Tensor((*given.shape[:-1], layer.outputs), role=role_of(layer.name))


def _integer(value: Any) -> Any:
    """A size that is a number as an int, and tuples of them; anything else as it is."""
    if isinstance(value, tuple):
        return tuple(map(_integer, value))
    return int(value.number) if isinstance(value, Polynomial) and value.number is not None else value


# --- operations that change a shape alone: the sizes, then the arguments, as whole numbers where they are


def _transpose(shape: list[Polynomial], *axes: int) -> list[Polynomial]:
    if not axes:
        return shape[::-1]
    i, j = axes if len(axes) == 2 else (None, None)
    shape[i], shape[j] = shape[j], shape[i]  # pyright: ignore[reportArgumentType, reportCallIssue]
    return shape


def _permute(shape: list[Polynomial], *order: Any) -> list[Polynomial]:
    places = order[0] if len(order) == 1 else order
    if sorted(place % len(shape) for place in places) != list(range(len(shape))):
        raise Misfit("an order that is no order of the axes")
    return [shape[place] for place in places]


def _unsqueeze(shape: list[Polynomial], dim: int) -> list[Polynomial]:
    shape.insert(dim + len(shape) + 1 if dim < 0 else dim, ONE)
    return shape


def _squeeze(shape: list[Polynomial], dim: int | None = None) -> list[Polynomial]:
    gone = range(len(shape)) if dim is None else [range(len(shape))[dim]]
    return [size for axis, size in enumerate(shape) if size != 1 or axis not in gone]


def _reduced(shape: list[Polynomial], dim: int | None = None, keepdim: Any = False) -> list[Polynomial]:
    if dim is None:
        return []
    shape[dim : dim + 1 or None] = [ONE] if keepdim is True else []
    return shape


def _size(shape: list[Polynomial], dim: int | None = None) -> Any:
    return tuple(shape) if dim is None else shape[dim]


_RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("transpose", "swapaxes", "t"), _transpose),
    **dict.fromkeys(("unsqueeze", "expand_dims"), _unsqueeze),
    **dict.fromkeys(("sum", "mean", "max", "amax", "argmax"), _reduced),
    "permute": _permute,
    "squeeze": _squeeze,
    "size": _size,
}


# --- operations that count, compare sizes or make something else than a tensor


def _einsum(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
    spec, *operands = a or [None]
    if not isinstance(spec, str):
        return Tensor(None)
    if found := BLANK.search(spec):
        run.scopes[found[1]] = {"operands": tuple(operands)}, "einsum"
        return Tensor(None)
    run.products += 1
    inputs, arrow, out = spec.replace(" ", "").replace("...", "").partition("->")
    terms, letters = inputs.split(","), dict.fromkeys(inputs.replace(",", ""))
    if not arrow or len(terms) != len(operands):
        raise Misfit(f'einsum "{spec}" has {len(terms)} operands for {len(operands)}')
    if lost := set(out) - set(letters):
        raise Misfit(f"{', '.join(sorted(lost))} of the result is in no operand")
    known: dict[str, Polynomial] = {}
    for axes, operand in zip(terms, operands, strict=True):
        shape = getattr(operand, "shape", None)
        if shape is not None and len(axes) != len(shape):
            run.misfit(f"{axes} for {shown(shape)}")
            continue
        for letter, size in zip(axes, shape or (), strict=False):
            if not run.equal(known.setdefault(letter, size), size):
                run.misfit(f"{letter} is {known[letter]} and {size}")
    guessed = not set(out) <= set(known)
    known = {letter: known.get(letter, Polynomial.name(letter)) for letter in letters}
    run.count(*known.values())
    # Operands of unknown shape have the axes that the einsum names.
    for axes, node in zip(terms, run.operands, strict=False):
        if isinstance(node, ast.Name):
            run.shapes.setdefault(node.id, tuple(known[letter] for letter in axes))
    gone = [size for letter, size in known.items() if letter not in out]
    return Tensor(tuple(known[letter] for letter in out), gone[0] if len(gone) == 1 else None, guessed)


def _softmax(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
    run.softmaxes += 1
    given = a[0] if a else None
    if not isinstance(given, Tensor) or not given.shape:
        return Tensor(None, role="w")
    place = _integer(o.get("dim", o.get("axis", a[1] if len(a) > 1 else -1)))
    if isinstance(place, int) and given.summed is not None and place % len(given.shape) != len(given.shape) - 1:
        run.misfit("the softmax is not over the keys, the last axis")
    run.count(*given.shape)
    return Tensor(given.shape, role="w")


def _view(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
    given, *sizes = a
    sizes = list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple) else sizes
    unknown = [place for place, size in enumerate(sizes) if not isinstance(size, Polynomial) or size == -1]
    if not isinstance(given, Tensor) or given.shape is None:
        return Tensor(None if unknown or not sizes else tuple(sizes))
    ratio = product(given.shape) / product(size for place, size in enumerate(sizes) if place not in unknown)
    if len(unknown) > 1:
        return Tensor(None)
    if unknown:
        sizes[unknown[0]] = ratio
    elif ratio != 1:
        if run.repair is None:
            raise Misfit(f"view of {shown(given.shape)} as {shown(sizes)}")
        sizes = run.repair(run, run.where, (sizes, ratio))
    return Tensor(tuple(sizes), given.summed if len(sizes) == len(given.shape) else None, role=given.role)


def _cat(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
    parts = a[0] if a and isinstance(a[0], tuple) else ()
    place = _integer(o.get("dim", o.get("axis", a[1] if len(a) > 1 else 0)))
    shapes = [part.shape for part in parts if isinstance(part, Tensor) and part.shape is not None]
    if not shapes or not isinstance(place, int):
        return Tensor(None)
    first, *others = shapes
    if len(shapes) != len(parts):
        # A new entry of unknown shape, joined to known ones, has their axes without the one that grows.
        for node in ast.walk(ast.Tuple([*run.operands])):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="unsqueeze")):
                    run.shapes.setdefault(name, (*first[:place], *first[place + 1 :]))
        return Tensor(None)
    place %= len(first)
    for shape in others:
        rest = [(one, two) for axis, (one, two) in enumerate(zip(first, shape, strict=False)) if axis != place]
        if len(shape) != len(first) or not all(run.equal(*pair) for pair in rest):
            raise Misfit(f"{' and '.join(map(shown, shapes))} are joined on axis {place}")
    return Tensor((*first[:place], sum((shape[place] for shape in shapes), Polynomial({})), *first[place + 1 :]))


def _made(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
    sizes = a[0] if len(a) == 1 and isinstance(a[0], tuple) else a
    return Tensor(tuple(sizes) if all(isinstance(size, Polynomial) for size in sizes) else None)


def _attention(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
    run.softmaxes += 1
    match a:
        case [Tensor(shape=(*front, width)), Tensor(shape=(*_, keys, _)), Tensor(shape=(*_, out)), *_]:
            run.count(*front, width, keys)
            run.count(*front, keys, out)
            return Tensor((*front, out))
    return Tensor(None)


def _rearrange(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
    """einops: axes by name, joined in brackets; a name to which one side alone gives a size is worked out."""
    match a:
        case [Tensor(shape=tuple() as shape), str() as spec] if "->" in spec:
            sides = [re.findall(r"\(([^)]*)\)|(\S+)", side) for side in spec.split("->")]
            left, right = ([(joined or single).split() for joined, single in side] for side in sides)
        case _:
            return Tensor(None)
    if len(left) != len(shape):
        raise Misfit(f"{spec} for {shown(shape)}")
    known = {"1": ONE} | {name: size for name, size in o.items() if isinstance(size, Polynomial)}
    for names, size in zip(left, shape, strict=True):
        free = [name for name in names if name not in known]
        rest = size / product(known[name] for name in names if name in known)
        if len(free) == 1:
            known[free[0]] = rest
        elif not free and rest != 1:
            raise Misfit(f"({' '.join(names)}) is not {size}")
    sizes = (product(known.get(name, Polynomial.name(name)) for name in names) for names in right)
    return Tensor(tuple(sizes), role=a[0].role)


Operation = Callable[[Run, list[Any], dict[str, Any]], Any]
_OPERATIONS: dict[str, Operation] = {
    "Linear": lambda run, a, o: Layer("", *(*a, *(o[key] for key in ("in_features", "out_features") if key in o))[:2]),
    "Softmax": lambda run, a, o: Layer("", o.get("dim", a[0] if a else Polynomial.of(-1)), kind="softmax"),
    "sqrt": lambda run, a, o: Root(a[0]) if a and isinstance(a[0], Polynomial) else a[0] if a else None,
    **dict.fromkeys(("matmul", "bmm", "mm", "dot"), lambda run, a, o: run.matmul(*a[:2]) if len(a) > 1 else None),
    "einsum": _einsum,
    "softmax": _softmax,
    **dict.fromkeys(("view", "reshape"), _view),
    **dict.fromkeys(("cat", "concatenate", "concat"), _cat),
    **dict.fromkeys(("randn", "zeros", "ones", "rand", "empty"), _made),
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("rearrange", "repeat"), _rearrange),
}


def shown(shape: Sequence[Any], names: Mapping[str, Polynomial] | None = None) -> str:
    """A shape as text; a size that has a name is shown by it."""
    back = {size: name for name, size in (names or {}).items()}
    sizes = ["?" if size is None else back.get(size, str(size).replace(" ", "*")) for size in shape]
    return f"[{', '.join(sizes)}]".replace("*+*", " + ").replace("*-*", " - ")


def sizes_of(shape: Sequence[int | str]) -> Shape:
    """A shape that is given outside of a listing."""
    return tuple(size_of(str(size)) or Polynomial.name(str(size)) for size in shape)


def execute(
    text: str,
    declared: Mapping[str, Sequence[int | str] | None] | None = None,
    repair: Callable[[Run, str, Any], Any] | None = None,
    changes: Mapping[str, Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> Run:
    """Work out the shapes of a listing.

    Args:
        text: The listing; blanks that are left are unknown.
        declared: Shapes of names that are given outside the listing.
        repair: Called instead of noting a misfit of a view or a layer, with what is there.
        changes: New values of layers after `__init__`, by name.
        attributes: Values of attributes that the listing does not set.
    """
    listing = read(text)
    run = Run(listing, dict(attributes or {}), repair)
    outside = {name: Tensor(sizes_of(shape)) for name, shape in (declared or {}).items() if shape}
    run.call(listing.top, outside)
    start = listing.functions.pop("__init__", None)
    if start is not None:
        # Methods may use the constructor's parameters by their bare names.
        run.constants = {name: Polynomial.name(name) for name in start.parameters}
        run.call(start, run.constants)
        run.attributes |= changes or {}
    functions = listing.functions.values()
    called = {name for each in functions for line in each.body for name in re.findall(r"(\w+)\s*\(", line.text)}
    entry = [each for each in functions if each.name in ("forward", "__call__", "call")]
    for function in entry or [each for each in functions if each.name not in called]:
        given = {name: outside.get(name, _argument(run, function, name)) for name in function.parameters}
        run.returned = run.call(function, given)
        first = next((value.shape for value in given.values() if isinstance(value, Tensor)), None)
        out = getattr(run.returned, "shape", None)
        # A module of attention gives back a row for every query, as wide as the model.
        if start is None or first is None or out is None:
            continue
        if len(out) != len(first) or not all(map(run.equal, out, first)):
            run.misfit(f"the result is {shown(out)}, not {shown(first)}")
    return run


def _argument(run: Run, function: Function, name: str) -> Any:
    """A parameter: a size, something without a shape, or a tensor as wide as the layer that it goes into."""
    if name in function.declared or _PATTERN["no_tensor"].search(name):
        return None
    if _PATTERN["size"].fullmatch(name):
        return Polynomial.name(name)
    body = "\n".join(each.text for each in function.body)
    found = re.search(rf"self\.(\w+)\(\s*{re.escape(name)}\s*[,)]", body)
    width = getattr(run.attributes.get(f"self.{found[1]}"), "inputs", None) if found else None
    width = width if isinstance(width, Polynomial) else run.attributes.get("self.d_model")
    if width is None and "self." not in body:
        return None
    lines = (line.text for each in run.listing.functions.values() for line in each.body)
    words = next(filter(None, map(_PATTERN["unpacked"].match, lines)), None)
    batch, run.length = words.groups() if words else ("batch_size", "seq_length")
    other = len(function.parameters) > 1 and _PATTERN["other_length"].match(name)
    sizes = Polynomial.name(batch), Polynomial.name("key_length" if other else run.length)
    return Tensor((*sizes, width or Polynomial.name("d_model")))
