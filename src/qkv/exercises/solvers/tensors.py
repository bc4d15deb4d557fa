"""The shapes of a listing: every line carried out on symbolic sizes, with what does not fit and what is not used."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from ..listings import BLANK, TRAILING, Function, Listing, Statement, read, shape_of, size_of
from .formulas import ONE, Terms, inverse, number, plus, show, symbol, times

_SIZE_NAME = re.compile(
    r"(?:n|num|d|dim|embed|hidden|h|head|kv)_\w+|\w+_(?:dim|size|heads|len|length)|d|h|heads|dim|width|n_?heads?"
)
_SAME = re.compile(
    r"contiguous|masked_fill_?|dropout|float|double|half|to|clone|detach|type_as|tril|triu|relu|gelu|exp|tanh|sigmoid|abs|"
    r"clamp|where|softplus|elu|silu|normalize|log|asarray|array|tensor|Dropout|LayerNorm|ReLU|GELU|RMSNorm|Identity"
)
_ROLE = re.compile(
    r"(?i)(?:[wW]_?|w)?(q(?=$|_|uer|s$|[A-Z])|k(?=$|_|ey|s$)|v(?=$|_|al|s$)|o(?=$|_|ut))"
    r"(?:uery|ueries|ey|alue|ut|utput|s)*(?:_?(?:proj(?:ection)?|linear|layer|heads?|states?))?"
)
_WIDTHS = frozenset(["q", "k", "v", "d_q", "d_k", "d_v", "dq", "dk", "dv"])


def role_of(name: str) -> str:
    """The role that a name has: q, k, v, o, or none.

    >>> role_of("self.W_q"), role_of("Keys"), role_of("value_proj"), role_of("scores")
    ('q', 'k', 'v', '')
    """
    found = _ROLE.fullmatch(name.rpartition(".")[2])
    return found[1].lower() if found else ""


@lru_cache(maxsize=2048)
def _parsed(text: str) -> tuple[ast.stmt, ...]:
    try:
        return tuple(ast.parse(text).body)
    except SyntaxError:
        return ()


class Unknown:
    """A value of which nothing is known."""


UNKNOWN = Unknown()


@dataclass(frozen=True)
class Tensor:
    """A tensor; `summed` is the size that the last product summed over; a `guessed` shape is an einsum's alone.

    `role` is q, k, v, o, or w for weights after a softmax, by names and by what was done.
    """

    shape: tuple[Terms, ...] | None
    summed: Terms | None = field(default=None, hash=False)
    guessed: bool = False
    role: str = ""


@dataclass(frozen=True)
class Root:
    of: Terms = field(hash=False)


@dataclass(frozen=True)
class Layer:
    """A linear layer, or (with `same`) one that keeps shapes."""

    name: str
    inputs: Any = None
    outputs: Any = None
    kind: str = "Linear"


@dataclass
class Line:
    """What one line computes: the size of every tensor that it makes, and the number of products."""

    number: int
    target: str
    operations: Terms = field(default_factory=dict)
    tensors: dict[str, Terms] = field(default_factory=dict)


@dataclass
class Run:
    """One pass over a listing: what fits, what does not, what was used, and every line's cost."""

    listing: Listing
    misfits: list[tuple[int, str]] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)
    lines: list[Line] = field(default_factory=list)
    scopes: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    shapes: dict[str, tuple[Terms, ...]] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)
    applications: Counter[str] = field(default_factory=Counter)
    wasted: int = 0
    mismatches: int = 0
    softmaxes: int = 0
    products: int = 0
    returned: Any = None
    length: str = "seq_length"
    repair: Callable[[Run, str, Any], Any] | None = None
    depth: int = 0
    number: int = 0
    line: Line = field(default_factory=lambda: Line(0, ""))
    where: str = ""

    def misfit(self, why: str) -> Unknown:
        self.misfits.append((self.number, why))
        return UNKNOWN

    def equal(self, one: Any, other: Any) -> bool:
        """Whether two sizes can be the same; names of a head's widths are one number where nothing else is said."""
        if isinstance(one, Unknown) or isinstance(other, Unknown) or one == other:
            return True
        names = [next(iter(size))[0][0] if len(size) == 1 and next(iter(size)) else "" for size in (one, other)]
        return all(name in _WIDTHS for name in names)

    # --- statements

    def call(self, function: Function, given: Mapping[str, Any]) -> Any:
        if self.depth > 6:
            return UNKNOWN
        names = dict(given)
        for name, text in function.declared.items():
            if isinstance(names.get(name, UNKNOWN), Unknown) and (shape := shape_of(text)) is not None:
                self.shapes.setdefault(name, shape)
                if name in function.parameters or not function.name:
                    names[name] = Tensor(shape)
            if found := BLANK.search(text):
                self.scopes[found[1]] = dict(names), f"shape {name}"
                names[name] = Tensor(None)
        outer = self.where, self.number, self.line
        self.depth, self.where = self.depth + 1, function.name
        for name, value in names.items():
            if isinstance(value, Tensor):
                self.mismatches += _differ(role_of(name), value.role)
                names[name] = replace(value, role=value.role or role_of(name))
        self.made.update(f"{function.name}:{name}" for name, value in names.items() if isinstance(value, Tensor))
        result, skipping = UNKNOWN, -1
        for statement in function.body:
            if skipping >= 0 and statement.indent > skipping:
                continue
            skipping = statement.indent if re.match(r"(?:else|elif|except)\b", statement.text) else -1
            returned = self.statement(statement, names)
            if returned is not None:
                result = returned
        self.depth -= 1
        self.where, self.number, self.line = outer
        return result

    def statement(self, statement: Statement, names: dict[str, Any]) -> Any:
        """Carry out one line; what it returns, if it is a return."""
        text = re.sub(r"^(?:(?:if|for|while|with|else|elif|try|assert|import|from|super)\b|@).*", "", statement.text)
        self.number = statement.number
        for tree in _parsed(text):
            self.line = Line(statement.number, "")
            self.lines.append(self.line)
            if isinstance(tree, ast.Return):
                value = self.value(tree.value, names) if tree.value else UNKNOWN
                self.line.target = "return"
                return value
            if isinstance(tree, ast.Expr):
                self.value(tree.value, names)
            elif isinstance(tree, ast.Assign | ast.AugAssign | ast.AnnAssign) and tree.value is not None:
                value = self.value(tree.value, names)
                targets = tree.targets if isinstance(tree, ast.Assign) else [tree.target]
                if isinstance(tree.value, ast.Name) and (found := BLANK.match(tree.value.id)):
                    self.open[ast.unparse(targets[0])] = found[1]
                self.assign(targets[0], value, names, statement.comment)
        return None

    def assign(self, target: ast.expr, value: Any, names: dict[str, Any], comment: str) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            values = (
                value if isinstance(value, tuple) and len(value) == len(target.elts) else [UNKNOWN] * len(target.elts)
            )
            if isinstance(value, tuple) and len(value) != len(target.elts):
                self.misfit(f"{len(value)} values for {len(target.elts)} names")
            for each, part in zip(target.elts, values, strict=True):
                self.assign(each, part, names, "")
            return
        name = ast.unparse(target)
        said = shape_of(found[1]) if (found := TRAILING.match(comment)) else None
        if found and (blank := BLANK.search(found[1])):
            self.scopes[blank[1]] = dict(names), f"shape {name}"
        if isinstance(value, Unknown) and said is None and name in names and isinstance(names[name], dict):
            return
        if said is not None and isinstance(value, Tensor) and value.guessed:
            value = Tensor(said, value.summed)
        elif said is not None and isinstance(value, Tensor) and value.shape is not None:
            same = len(said) == len(value.shape) and all(map(self.equal, said, value.shape))
            if not same:
                self.misfit(f"{name} is {shown(value.shape)}, not {shown(said)}")
        elif said is not None and (not isinstance(value, Tensor) or value.shape is None):
            value = Tensor(said)
        if isinstance(value, Layer):
            value = Layer(name, value.inputs, value.outputs, value.kind)
        if isinstance(value, Tensor):
            self.mismatches += _differ(role_of(name), value.role)
            value = replace(value, role=value.role or role_of(name))
            key = f"{self.where}:{name}"
            self.wasted += key in self.made and key not in self.used
            self.made.add(key)
            self.used.discard(key)
            if value.shape is not None:
                self.shapes[name] = value.shape
                self.line.tensors[name] = times(*value.shape)
        self.line.target = name
        (self.attributes if name.startswith("self.") else names)[name] = value

    # --- expressions

    def value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        match node:
            case ast.Constant(value=value):
                return number(value) if isinstance(value, int) and not isinstance(value, bool) else value
            case ast.Name(id=name) if found := BLANK.match(name):
                self.scopes[found[1]] = dict(names), self.where
                return UNKNOWN
            case ast.Name(id=name):
                self.used.add(f"{self.where}:{name}")
                return names.get(name, self.attributes.get(f"self.{name}", self.constants.get(name, UNKNOWN)))
            case ast.Attribute():
                return self.attribute(node, names)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return tuple(self.value(part, names) for part in parts)
            case ast.BinOp():
                return self.binary(node, names)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                value = self.value(inner, names)
                return times(number(-1), value) if isinstance(value, dict) else value
            case ast.Subscript():
                return self.subscript(node, names)
            case ast.IfExp(body=body):
                return self.value(body, names)
            case ast.Call():
                return self.called(node, names)
        return UNKNOWN

    def attribute(self, node: ast.Attribute, names: dict[str, Any]) -> Any:
        whole = ast.unparse(node)
        if found := BLANK.match(node.attr):
            self.scopes[found[1]] = dict(names), self.where
            return UNKNOWN
        if whole.startswith("self.") and whole.count(".") == 1:
            self.used.add(whole)
            return self.attributes.get(whole, UNKNOWN)
        base = self.value(node.value, names)
        if isinstance(base, Tensor):
            if node.attr == "shape":
                return base.shape if base.shape is not None else UNKNOWN
            if node.attr in ("T", "mT") and base.shape is not None and len(base.shape) > 1:
                return Tensor((*base.shape[:-2], base.shape[-1], base.shape[-2]), role=base.role)
        if isinstance(base, Layer) and node.attr == "weight":
            self.used.add(base.name)
            return Tensor((base.outputs, base.inputs))
        return UNKNOWN

    def binary(self, node: ast.BinOp, names: dict[str, Any]) -> Any:
        left, right = self.value(node.left, names), self.value(node.right, names)
        if isinstance(node.op, ast.MatMult):
            return self.matmul(left, right)
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            if isinstance(left, Tensor) and isinstance(node.op, ast.Div) and left.summed is not None:
                self.scaled(left, right)
            return self.broadcast(left, right)
        if isinstance(left, dict) and isinstance(right, dict):
            match node.op:
                case ast.Add():
                    return plus(left, right)
                case ast.Sub():
                    return plus(left, times(number(-1), right))
                case ast.Mult():
                    return times(left, right)
                case ast.Div() | ast.FloorDiv():
                    below = inverse(right)
                    return UNKNOWN if below is None else times(left, below)
        if isinstance(left, dict) and isinstance(node.op, ast.Pow):
            exponent = ast.unparse(node.right).strip("()")
            return Root(left) if exponent in ("0.5", "1 / 2") else UNKNOWN
        return UNKNOWN

    def scaled(self, scores: Tensor, by: Any) -> None:
        """Scores are divided by the root of the size that was summed over."""
        width = by.of if isinstance(by, Root) else None
        if isinstance(by, dict):
            self.misfit(f"scores are divided by {show(by)}, not by a root")
        elif width is not None and scores.summed is not None and not self.equal(width, scores.summed):
            if self.repair is not None:
                self.repair(self, "scale", scores.summed)
                return
            self.misfit(f"scores are divided by the root of {show(width)}, not of {show(scores.summed)}")

    def broadcast(self, left: Any, right: Any) -> Any:
        tensors = [each for each in (left, right) if isinstance(each, Tensor)]
        kept = next((each for each in tensors if each.summed is not None), tensors[0])
        shapes = [each.shape for each in tensors]
        if len(tensors) < 2 or shapes[0] is None or shapes[1] is None:
            known = next((shape for shape in shapes if shape is not None), None)
            return Tensor(known, kept.summed) if len(tensors) < 2 else Tensor(None)
        return Tensor(self.batch(shapes[0], shapes[1]), kept.summed)

    def batch(self, one: tuple[Terms, ...], other: tuple[Terms, ...]) -> tuple[Terms, ...]:
        """Axes broadcast against each other."""
        size = max(len(one), len(other))
        pairs = zip((ONE,) * (size - len(one)) + one, (ONE,) * (size - len(other)) + other, strict=True)
        found = []
        for a, b in pairs:
            if a != ONE and b != ONE and not self.equal(a, b):
                self.misfit(f"{show(a)} and {show(b)} do not fit")
            found.append(b if a == ONE else a)
        return tuple(found)

    def matmul(self, left: Any, right: Any) -> Any:
        self.products += 1
        pair = getattr(left, "role", ""), getattr(right, "role", "")
        fitting = {"w": "v", "q": "k"}
        if all(pair):
            self.mismatches += fitting.get(pair[0]) != pair[1]
        if not isinstance(left, Tensor) or not isinstance(right, Tensor) or left.shape is None or right.shape is None:
            return Tensor(None)
        a, b = left.shape, right.shape
        if len(a) < 1 or len(b) < 1:
            return self.misfit("a product of a number")
        if not self.equal(a[-1], b[-2] if len(b) > 1 else b[-1]):
            return self.misfit(f"{shown(a)} times {shown(b)}: {show(a[-1])} and {show(b[-2] if len(b) > 1 else b[-1])}")
        front = self.batch(a[:-2], b[:-2])
        shape = (*front, *(a[-2:-1]), *(b[-1:] if len(b) > 1 else ()))
        self.count(times(*shape, a[-1]))
        return Tensor(shape, a[-1])

    def count(self, operations: Terms) -> None:
        self.line.operations = plus(self.line.operations, operations)

    def einsum(self, spec: str, operands: Sequence[Any]) -> Any:
        self.products += 1
        spec = spec.replace(" ", "").replace("...", "")
        inputs, arrow, out = spec.partition("->")
        terms = inputs.split(",")
        if not arrow or len(terms) != len(operands):
            return self.misfit(f'einsum "{spec}" has {len(terms)} operands for {len(operands)}')
        if set(out) - set(inputs):
            return self.misfit(f"{', '.join(sorted(set(out) - set(inputs)))} of the result is in no operand")
        known: dict[str, Any] = {}
        for letters, operand in zip(terms, operands, strict=True):
            shape = operand.shape if isinstance(operand, Tensor) else None
            if shape is None:
                continue
            if len(letters) != len(shape):
                self.misfit(f"{letters} for {shown(shape)}")
                continue
            for letter, size in zip(letters, shape, strict=True):
                if letter in known and not self.equal(known[letter], size):
                    self.misfit(f"{letter} is {show(known[letter])} and {show(size)}")
                known.setdefault(letter, size)
        guessed = bool(set(out) - set(known))
        for letter in dict.fromkeys(inputs.replace(",", "")):
            known.setdefault(letter, symbol(letter))
        self.count(times(*(known[letter] for letter in dict.fromkeys(inputs.replace(",", "")))))
        self.infer(terms, operands, known)
        gone = [known[letter] for letter in dict.fromkeys(inputs.replace(",", "")) if letter not in out]
        return Tensor(tuple(known[letter] for letter in out), gone[0] if len(gone) == 1 else None, guessed)

    def infer(self, terms: Sequence[str], operands: Sequence[Any], known: Mapping[str, Terms]) -> None:
        """Operands of unknown shape have the axes that the einsum names."""
        for letters, node in zip(terms, self.asked_operands, strict=False):
            if isinstance(node, ast.Name) and node.id not in self.shapes:
                self.shapes[node.id] = tuple(known[letter] for letter in letters)

    def infer_joined(self, shape: tuple[Terms, ...], place: int) -> None:
        """A new entry of unknown shape, joined to known ones, has their axes without the one that grows."""
        for node in ast.walk(ast.Tuple([*self.asked_operands])):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="unsqueeze")) if name not in self.shapes:
                    self.shapes[name] = (*shape[:place], *shape[place + 1 :])

    asked_operands: Sequence[ast.expr] = ()

    def subscript(self, node: ast.Subscript, names: dict[str, Any]) -> Any:
        base = self.value(node.value, names)
        index = node.slice
        if isinstance(base, tuple):
            place = self.integer(self.value(index, names))
            return base[place] if place is not None and -len(base) <= place < len(base) else UNKNOWN
        if not isinstance(base, Tensor) or base.shape is None:
            return UNKNOWN
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        shape, rest = [], list(base.shape)
        for part in parts:
            if isinstance(part, ast.Constant) and part.value is None:
                shape.append(ONE)
            elif isinstance(part, ast.Constant) and part.value is Ellipsis:
                left = sum(not (isinstance(p, ast.Constant) and p.value in (None, Ellipsis)) for p in parts)
                shape += rest[: len(rest) - left]
                rest = rest[len(rest) - left :]
            elif isinstance(part, ast.Slice) and rest:
                size = rest.pop(0)
                whole = part.lower is None and part.upper is None
                upper = self.value(part.upper, names) if part.upper is not None and part.lower is None else UNKNOWN
                shape.append(size if whole else upper if isinstance(upper, dict) else symbol("?"))
            elif rest:
                rest.pop(0)
        return Tensor((*shape, *rest))

    def integer(self, value: Any) -> int | None:
        return int(value.get((), 0)) if isinstance(value, dict) and set(value) <= {()} else None

    # --- calls

    def called(self, node: ast.Call, names: dict[str, Any]) -> Any:
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        if found := BLANK.match(last):
            self.scopes[found[1]] = dict(names), self.where
        arguments = [self.value(each, names) for each in node.args if not isinstance(each, ast.Starred)]
        options = {each.arg: self.value(each.value, names) for each in node.keywords if each.arg}
        if any(isinstance(each, ast.Starred) for each in node.args):
            arguments.append(UNKNOWN)
        target = self.attributes.get(name) if name.startswith("self.") else names.get(name)
        if isinstance(target, Layer):
            self.used.add(name)
            return self.applied(target, arguments)
        if target is None and re.fullmatch(r"self\.(?:\w*(?:proj|linear|dense)\w*|[Ww]_?\w{1,3})", name) and arguments:
            given = arguments[0]
            width = given.shape[-1] if isinstance(given, Tensor) and given.shape else None
            if width is not None and last not in self.listing.functions:
                return self.applied(Layer(name, width, width), arguments)
        function = self.listing.functions.get(last)
        if function is not None and (name == last or name.startswith("self.")):
            self.used.add(name)
            values = dict(zip(function.parameters, arguments, strict=False)) | options
            return self.call(function, values)
        module = isinstance(node.func, ast.Name) or name.split(".")[0] in (
            "torch",
            "np",
            "numpy",
            "F",
            "nn",
            "math",
            "jnp",
            "tf",
            "einops",
        )
        if not module and isinstance(node.func, ast.Attribute):
            arguments.insert(0, self.value(node.func.value, names))
            if last == "item" or isinstance(arguments[0], Unknown):
                return UNKNOWN
        self.asked_operands = node.args[1:] if last == "einsum" else node.args[:1]
        if _SAME.fullmatch(last):
            kept = [each for each in arguments if isinstance(each, Tensor)]
            return kept[0] if kept else Layer(last, kind="same") if name.startswith("nn.") else UNKNOWN
        operation = _OPERATIONS.get(last)
        result = operation(self, arguments, options) if operation is not None else UNKNOWN
        if isinstance(result, Tensor) and last not in ("matmul", "bmm", "mm", "einsum", "softmax", "cat"):
            result = replace(result, role=next((each.role for each in arguments if isinstance(each, Tensor)), ""))
        return result

    def applied(self, layer: Layer, arguments: Sequence[Any]) -> Any:
        if layer.kind == "same":
            return arguments[0] if arguments else UNKNOWN
        if layer.kind == "softmax":
            return _OPERATIONS["softmax"](self, list(arguments), {"dim": layer.inputs})
        given = arguments[0] if arguments else UNKNOWN
        if not isinstance(given, Tensor):
            return Tensor(None)
        if given.shape is None:
            return Tensor(None)
        self.applications[layer.name] += 1
        self.mismatches += _differ(role_of(layer.name), given.role)
        if not self.equal(given.shape[-1], layer.inputs):
            if self.repair is None:
                self.misfit(f"{layer.name} takes {show(layer.inputs)}, not {show(given.shape[-1])}")
            else:
                self.repair(self, layer.name, given.shape[-1])
        if isinstance(layer.outputs, Unknown):
            return Tensor(None)
        self.count(times(*given.shape, layer.outputs))
        return Tensor((*given.shape[:-1], layer.outputs), role=role_of(layer.name))


def _differ(name: str, role: str) -> bool:
    """Whether a name promises another role than a tensor has; outputs and weights are named in many ways."""
    return bool(name) and bool(role) and name != role and {name, role} <= set("qkv")


Operation = Callable[[Run, list[Any], dict[str, Any]], Any]
_OPERATIONS: dict[str, Operation] = {}


def operation(*names: str) -> Callable[[Operation], Operation]:
    def register(function: Operation) -> Operation:
        _OPERATIONS.update(dict.fromkeys(names, function))
        return function

    return register


def on_shape(*names: str) -> Callable[[Callable[[Run, Tensor, list[Terms], list[Any], dict[str, Any]], Any]], None]:
    """Register an operation on a tensor; of an unknown shape nothing is known afterwards either."""

    def register(function: Callable[[Run, Tensor, list[Terms], list[Any], dict[str, Any]], Any]) -> None:
        def guarded(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
            given = a[0] if a else UNKNOWN
            if not isinstance(given, Tensor) or given.shape is None:
                return Tensor(None)
            return function(run, given, list(given.shape), a[1:], o)

        operation(*names)(guarded)

    return register


def _axis(run: Run, a: list[Any], o: dict[str, Any], default: Any = UNKNOWN, place: int = 0) -> int | None:
    return run.integer(o.get("dim", o.get("axis", a[place] if len(a) > place else default)))


@operation("Linear")
def _linear(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
    inputs = a[0] if a else o.get("in_features", UNKNOWN)
    return Layer("", inputs, a[1] if len(a) > 1 else o.get("out_features", UNKNOWN))


@operation("Softmax")
def _softmax_layer(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
    return Layer("", o.get("dim", a[0] if a else number(-1)), kind="softmax")


@operation("sqrt")
def _sqrt(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
    return Root(a[0]) if a and isinstance(a[0], dict) else a[0] if a else UNKNOWN


@operation("matmul", "bmm", "mm", "dot")
def _matmul(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
    return run.matmul(a[0], a[1]) if len(a) > 1 else UNKNOWN


@operation("einsum")
def _einsum(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
    if not a or not isinstance(a[0], str):
        return Tensor(None)
    if found := BLANK.search(a[0]):
        run.scopes[found[1]] = {"operands": tuple(a[1:])}, "einsum"
        return Tensor(None)
    return run.einsum(a[0], a[1:])


@operation("softmax")
def _softmax(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
    run.softmaxes += 1
    if not a or not isinstance(a[0], Tensor) or a[0].shape is None:
        return Tensor(None, role="w")
    given, place = a[0], _axis(run, a[1:], o, number(-1))
    if place is not None and given.summed is not None and place % len(given.shape or ()) != len(given.shape or ()) - 1:
        run.misfit("the softmax is not over the keys, the last axis")
    run.count(times(*(given.shape or ())))
    return Tensor(given.shape, role="w")


@operation("view", "reshape")
def _view(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
    given, sizes = a[0], a[1:]
    sizes = list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple) else list(sizes)
    if not isinstance(given, Tensor) or given.shape is None:
        known = all(isinstance(size, dict) and size != number(-1) for size in sizes)
        return Tensor(tuple(sizes) if known and sizes else None)
    total = times(*given.shape)
    unknown = [place for place, size in enumerate(sizes) if not isinstance(size, dict) or size == number(-1)]
    rest = times(*(size for place, size in enumerate(sizes) if place not in unknown))
    below = inverse(rest)
    if len(unknown) == 1 and below is not None:
        sizes[unknown[0]] = times(total, below)
    elif unknown:
        return Tensor(None)
    elif total != rest:
        if run.repair is not None and below is not None:
            sizes = run.repair(run, run.where, (sizes, times(total, below)))
            return Tensor(tuple(sizes))
        return run.misfit(f"view of {shown(given.shape)} as {shown(sizes)}")
    return Tensor(tuple(sizes), given.summed if len(sizes) == len(given.shape) else None)


@on_shape("transpose", "swapaxes", "t")
def _transpose(run: Run, given: Tensor, shape: list[Terms], a: list[Any], o: dict[str, Any]) -> Any:
    places = [place for each in a[:2] if (place := run.integer(each)) is not None]
    if len(places) < 2:
        return Tensor(tuple(reversed(shape)) if not a else None)
    if not all(-len(shape) <= place < len(shape) for place in places):
        return run.misfit("an axis that does not exist")
    i, j = places
    shape[i], shape[j] = shape[j], shape[i]
    return Tensor(tuple(shape))


@on_shape("permute")
def _permute(run: Run, given: Tensor, shape: list[Terms], a: list[Any], o: dict[str, Any]) -> Any:
    order = [run.integer(each) for each in (a[0] if len(a) == 1 and isinstance(a[0], tuple) else a)]
    places = [place for place in order if place is not None]
    if len(places) != len(order):
        return Tensor(None)
    if sorted(place % len(shape) for place in places) != list(range(len(shape))):
        return run.misfit("an order that is no order of the axes")
    return Tensor(tuple(shape[place] for place in places))


@on_shape("unsqueeze", "expand_dims")
def _unsqueeze(run: Run, given: Tensor, shape: list[Terms], a: list[Any], o: dict[str, Any]) -> Any:
    place = _axis(run, a, o)
    if place is None:
        return Tensor(None)
    shape.insert(place + len(shape) + 1 if place < 0 else place, ONE)
    return Tensor(tuple(shape))


@on_shape("squeeze")
def _squeeze(run: Run, given: Tensor, shape: list[Terms], a: list[Any], o: dict[str, Any]) -> Any:
    place = _axis(run, a, o)
    gone = {place % len(shape)} if place is not None else set(range(len(shape)))
    return Tensor(tuple(size for axis, size in enumerate(shape) if size != ONE or axis not in gone))


@operation("cat", "concatenate", "concat")
def _cat(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
    parts = a[0] if a and isinstance(a[0], tuple) else ()
    place = _axis(run, a[1:], o, number(0))
    shapes = [part.shape for part in parts if isinstance(part, Tensor) and part.shape is not None]
    if len(shapes) != len(parts) or not shapes or place is None:
        if shapes and place is not None:
            run.infer_joined(shapes[0], place)
        return Tensor(None)
    if len({len(shape) for shape in shapes}) > 1:
        return run.misfit("tensors of different rank are joined")
    place %= len(shapes[0])
    for axis in range(len(shapes[0])):
        if axis != place and not all(run.equal(shapes[0][axis], shape[axis]) for shape in shapes):
            return run.misfit(f"{' and '.join(map(shown, shapes))} are joined on axis {place}")
    return Tensor((*shapes[0][:place], plus(*(shape[place] for shape in shapes)), *shapes[0][place + 1 :]))


@on_shape("size")
def _size(run: Run, given: Tensor, shape: list[Terms], a: list[Any], o: dict[str, Any]) -> Any:
    place = _axis(run, a, o)
    return tuple(shape) if place is None else shape[place]


@on_shape("sum", "mean", "max", "amax", "argmax")
def _sum(run: Run, given: Tensor, shape: list[Terms], a: list[Any], o: dict[str, Any]) -> Any:
    place = _axis(run, a, o)
    if place is None:
        return Tensor(())
    kept = [ONE] if o.get("keepdim", o.get("keepdims")) is True else []
    place %= len(shape)
    return Tensor((*shape[:place], *kept, *shape[place + 1 :]))


@operation("randn", "zeros", "ones", "rand", "empty")
def _randn(run: Run, a: list[Any], o: dict[str, Any]) -> Any:
    sizes = list(a[0]) if len(a) == 1 and isinstance(a[0], tuple) else a
    return Tensor(tuple(sizes) if all(isinstance(size, dict) for size in sizes) else None)


@on_shape("scaled_dot_product_attention")
def _attention(run: Run, given: Tensor, shape: list[Terms], a: list[Any], o: dict[str, Any]) -> Any:
    run.softmaxes += 1
    keys, values = (each.shape if isinstance(each, Tensor) else None for each in (*a[:2], UNKNOWN, UNKNOWN)[:2])
    if not keys or not values:
        return Tensor(None)
    run.count(plus(times(*shape, keys[-2]), times(*shape[:-1], keys[-2], values[-1])))
    return Tensor((*shape[:-1], values[-1]))


@on_shape("rearrange", "repeat")
def _rearrange(run: Run, given: Tensor, shape: list[Terms], a: list[Any], o: dict[str, Any]) -> Any:
    """einops: axes by name, joined in brackets; a name to which one side alone gives a size is worked out."""
    if not a or not isinstance(a[0], str) or "->" not in a[0]:
        return Tensor(None)
    left, _, right = a[0].partition("->")
    sides = [re.findall(r"\(([^)]*)\)|(\S+)", side) for side in (left, right)]
    known = {name: size for name, size in o.items() if isinstance(size, dict)}
    if len(sides[0]) != len(shape):
        return run.misfit(f"{left.strip()} for {shown(shape)}")
    for (joined, single), size in zip(sides[0], shape, strict=True):
        names = joined.split() or [single]
        free = [name for name in names if name not in known]
        over = inverse(times(*(known[name] for name in names if name in known)))
        if len(free) == 1 and over is not None:
            known[free[0]] = times(size, over)
        elif not free and times(*(known[name] for name in names)) != size:
            return run.misfit(f"({' '.join(names)}) is not {show(size)}")
    known["1"] = ONE
    return Tensor(tuple(
        times(*(known.get(name, symbol(name)) for name in joined.split() or [single])) for joined, single in sides[1]
    ))  # fmt: skip


def shown(shape: Sequence[Any], names: Mapping[str, Terms] | None = None) -> str:
    """A shape as text; a size that has a name is shown by it."""
    back = {tuple(sorted(size.items())): name for name, size in (names or {}).items()}
    sizes = []
    for size in shape:
        text = (
            "?" if not isinstance(size, dict) else back.get(tuple(sorted(size.items())), show(size).replace(" ", "*"))
        )
        sizes.append(text.replace("*+*", " + ").replace("*-*", " - "))
    return f"[{', '.join(sizes)}]"


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
    run = Run(listing, repair=repair, attributes=dict(attributes or {}))
    outside = {name: Tensor(tuple(number(s) if isinstance(s, int) else size_of(s) or symbol(s) for s in shape))
               for name, shape in (declared or {}).items() if shape}  # fmt: skip
    names: dict[str, Any] = dict(outside)
    run.call(Function("", (), listing.top.body, listing.top.declared), names)
    start = listing.functions.get("__init__")
    if start is not None:
        # Methods may use the constructor's parameters by their bare names.
        run.constants = {name: symbol(name) for name in start.parameters}
        run.call(start, run.constants)
        for name, value in (changes or {}).items():
            run.attributes[name] = value
    called = {name for function in listing.functions.values() for each in function.body
              for name in re.findall(r"(\w+)\s*\(", each.text)}  # fmt: skip
    entry = [f for f in listing.functions.values() if f.name in ("forward", "__call__", "call")]
    entry = entry or [f for f in listing.functions.values() if f.name not in called and f.name != "__init__"]
    for function in entry:
        given = {name: outside.get(name, _argument(run, function, name)) for name in function.parameters}
        run.returned = run.call(function, given)
        if start is not None and isinstance(run.returned, Tensor):
            _check_output(run, function, given)
    return run


def _argument(run: Run, function: Function, name: str) -> Any:
    """A parameter: a size, something without a shape, or a tensor as wide as the layer that it goes into."""
    if name in function.declared or re.search(r"mask|bias|dropout|causal|training|scale|past|cache", name):
        return UNKNOWN
    if _SIZE_NAME.fullmatch(name):
        return symbol(name)
    owned = any("self." in each.text for each in function.body)
    layer = next((run.attributes.get(f"self.{found[1]}") for each in function.body
                  if (found := re.search(rf"self\.(\w+)\(\s*{re.escape(name)}\s*[,)]", each.text))), None)  # fmt: skip
    width = (
        layer.inputs
        if isinstance(layer, Layer) and isinstance(layer.inputs, dict)
        else run.attributes.get("self.d_model")
    )
    width = width if isinstance(width, dict) else symbol("d_model") if owned else None
    if width is None:
        return UNKNOWN
    words = [found for each in run.listing.functions.values() for line in each.body
             if (found := re.match(r"(\w+)\s*,\s*(\w+)\s*,\s*\w+\s*=.*(?:size\(\)|\.shape)", line.text))]  # fmt: skip
    batch, length = (words[0][1], words[0][2]) if words else ("batch_size", "seq_length")
    run.length = length
    other = re.match(r"(?i)k|v|mem|context|enc|src", name) and len(function.parameters) > 1
    return Tensor((symbol(batch), symbol("key_length" if other else length), width))


def _check_output(run: Run, function: Function, given: Mapping[str, Any]) -> None:
    """A module of attention gives back a row for every query, as wide as the model."""
    first = next((value for value in given.values() if isinstance(value, Tensor)), None)
    out = run.returned.shape
    if first is None or first.shape is None or out is None:
        return
    if len(out) != len(first.shape) or not all(run.equal(a, b) for a, b in zip(out, first.shape, strict=True)):
        run.misfit(f"the result is {shown(out)}, not {shown(first.shape)}")
