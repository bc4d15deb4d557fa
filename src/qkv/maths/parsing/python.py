"""Python, NumPy and PyTorch expressions read as mathematics: parsed by `ast`, never run."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, NoReturn

from qkv.maths import tree
from qkv.maths.parsing import functions, naming, scripts, shapes
from qkv.maths.parsing.elaborate import Elaborator, finish_member
from qkv.maths.parsing.grammar import Syntax, Token
from qkv.maths.parsing.words import PYTHON
from qkv.maths.sizes import size_node, size_of
from qkv.maths.tree import Call, Index, Node, Number, Shape, Span, Special, Type

_MARKS = re.compile(
    rf"\b(?:{'|'.join(PYTHON['prefixes'])})\.(?:(?:\w+\.)*\w+\s*\(|pi\b)|@|//|\*\*|\.T\b|\beinsum\(|,\s*\)\s*$"
    r"|[\w)\]]\.(?:sum|mean|max|min|exp|log|sqrt|softmax|dot|t|transpose|norm|trace|matmul|abs|pow)\("
)
_HEAD = re.compile(r"\s*[A-Za-z_]\w*\s*=(?!=)\s*")
_DEEPEST = 40


def read(text: str, types: Mapping[str, Type], expected: Shape | None) -> Node | None:
    """The tree of a Python expression; None if the text is not unmistakably one."""
    if "\\" in text or not _MARKS.search(text):
        return None
    head = _HEAD.match(text)
    start = head.end() if head else len(text) - len(text.lstrip())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = ast.parse(text[start:].rstrip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    build = Elaborator(text, types, Syntax("chain", (), (start, len(text)), 0))
    return finish_member(build, _Reader(build, start).node(parsed), expected)


class _Reader:
    """Builds the tree of one expression whose text begins at `start`, with the operations of the build."""

    def __init__(self, build: Elaborator, start: int) -> None:
        self.elaborator, self.start, self.depth = build, start, 0
        self.row_sums: dict[int, Node] = {}  # the matrix of each sum along its rows that keeps its axis

    def span(self, part: ast.AST) -> Span:
        written = self.elaborator.source[self.start :].encode()
        ends = (getattr(part, "col_offset", 0), getattr(part, "end_col_offset", None) or len(written))
        first, last = (self.start + len(written[:end].decode(errors="ignore")) for end in ends)
        return (first, last) if getattr(part, "lineno", 1) == 1 else (self.start, len(self.elaborator.source))

    def refuse(self, reason: str, part: ast.AST) -> NoReturn:
        self.elaborator.unreadable(reason, self.span(part))

    def node(self, part: ast.expr) -> Node:
        self.depth += 1
        if self.depth > _DEEPEST:
            self.refuse("this is nested too deeply to read", part)
        made = self._node(part, self.span(part))
        self.depth -= 1
        return made

    def _node(self, part: ast.expr, span: Span) -> Node:
        match part:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                digits = str(value) if isinstance(value, int) else self.elaborator.source[slice(*span)].replace("_", "")
                return self.elaborator.term(Token("NUMBER", digits, *span))
            case ast.Name(id=name):
                return self.elaborator.name(naming.canonical_name(name) or name, span)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                value = self.node(operand)
                return self.elaborator.negate(value, span) if isinstance(sign, ast.USub) else value
            case ast.BinOp(op=operator) if type(operator).__name__ in PYTHON["operators"]:
                return self.binary(
                    PYTHON["operators"][type(operator).__name__], self.node(part.left), self.node(part.right), span
                )
            case ast.Attribute(attr="T" | "mT"):
                return self.elaborator.transpose(self.node(part.value), span)
            case ast.Attribute(attr=name) if self.is_library(part.value) and name in PYTHON["constants"]:
                return tree.Constant((), PYTHON["constants"][name], span=span)
            case ast.List(elts=entries) | ast.Tuple(elts=entries) if entries:
                bracket = "[" if isinstance(part, ast.List) else "("
                return self.elaborator.listed([self.node(entry) for entry in entries], span, bracket)
            case ast.Call():
                return self.call(part, span)
        return self.refuse("this part of Python is not read as mathematics", part)

    def is_library(self, part: ast.expr) -> bool:
        """np, torch.nn.functional: a library, not a declared name."""
        while isinstance(part, ast.Attribute):
            part = part.value
        return isinstance(part, ast.Name) and part.id in PYTHON["prefixes"] and not self.is_array(part.id)

    def is_array(self, name: str) -> bool:
        return name in self.elaborator.types and bool(self.elaborator.types[name].shape)

    def binary(self, how: str, left: Node, right: Node, span: Span) -> Node:
        """An operation of NumPy: entry by entry, a scalar with every entry."""
        make = self.elaborator
        if how in ("add", "subtract"):
            right = make.negate(right, right.span) if how == "subtract" else right
            shape = left.shape or right.shape
            ones = Special(shape, "ones", span=span)
            return make.add(
                [make.multiply(x, ones, "", span) if shape and not x.shape else x for x in (left, right)], span
            )
        if how == "multiply":
            return make.multiply(left, right, "odot" if left.shape and right.shape else "", span)
        if how == "outer":
            return make.multiply(left, right, "otimes", span)
        if how == "matmul":
            if not left.shape or not right.shape:
                make.ill_typed("@ is of vectors and matrices, and one of these is a scalar", span)
            if len(left.shape) == 1 and len(right.shape) == 2 and shapes.resolved_size(right.shape[0]) != 1:
                turned = right.body if isinstance(right, tree.Transpose) else make.transpose(right, span)
                return make.multiply(turned, left, "", span)
            return make.multiply(left, right, "dot" if len(left.shape) == len(right.shape) == 1 else "", span)
        if how == "power":
            return self.power(left, right, span)
        summed = self.row_sums.get(id(right))
        if summed is not None and left == summed and isinstance(left, Call) and left.name == "exp":
            return functions.known_call(make, "softmax", [*left.arguments], span)
        if right.shape:
            make.unreadable("a division by the entries of a vector or a matrix is not read", span)
        quotient = make.divide(left, right, span)
        return quotient if how == "divide" else functions.known_call(make, "floor", [quotient], span)

    def power(self, base: Node, exponent: Node, span: Span) -> Node:
        exact = replace(exponent, unit=None) if isinstance(exponent, Number) else exponent
        if isinstance(exact, Number) and exact.value * 2 == 1:
            return Call(base.shape, "sqrt", (base,), span=span)
        if base.shape and isinstance(exact, Number) and exact.value == 2:
            return tree.Hadamard(base.shape, base, base, span=span)
        return scripts.power(self.elaborator, base, exact, span)

    def call(self, part: ast.Call, span: Span) -> Node:
        function, arguments, make = part.func, list(part.args), self.elaborator
        options: dict[str | None, Any] = {one.arg: one.value for one in part.keywords}
        if isinstance(function, ast.Attribute):
            name = function.attr
            arguments = arguments if self.is_library(function.value) else [function.value, *arguments]
        elif isinstance(function, ast.Name):
            name = function.id
            kind = make.types.get(naming.canonical_name(name) or name)
            if kind is not None and kind.kind == "map":
                given = [self.node(one) for one in arguments]
                return functions.map_call(make, naming.canonical_name(name) or name, given, span)
        else:
            self.refuse("only functions are called", part)
        name = PYTHON["spelt"].get(name, name)
        if name == "einsum" and arguments and isinstance(arguments[0], ast.Constant):
            return self.einsum(str(arguments[0].value), [self.node(one) for one in arguments[1:]], span)
        if name in ("array", "tensor", "asarray", "Size") and len(arguments) == 1:
            return self.node(arguments[0])
        if name in ("eye", "ones", "zeros") and len(arguments) == 1:
            return self.special(name, arguments[0], span)
        numbers = [number for one in arguments[1:] if (number := _whole(one)) is not None]
        if not arguments:
            self.refuse(f"{name} has no argument", part)
        first = self.node(arguments[0])
        if name in ("transpose", "t", "swapaxes", "permute") and len(numbers) == len(arguments) - 1:
            if {number % 2 for number in numbers} not in (set(), {0, 1}) or not set(numbers) <= {-2, -1, 0, 1}:
                self.refuse("only two axes are exchanged", part)
            return make.transpose(first, span)
        if name in PYTHON["binary"] and len(arguments) == 2:
            return self.binary(PYTHON["binary"][name], first, self.node(arguments[1]), span)
        if name in ("maximum", "minimum", "max", "min") and len(arguments) == 2 and not options:
            other = self.node(arguments[1])
            if name == "maximum" and first.shape and shapes.is_zero(other):
                return Call(first.shape, "relu", (first,), span=span)
            return functions.known_call(make, name[:3], [first, other], span)
        if name in PYTHON["known"]:
            axis = options.pop("axis", options.pop("dim", None))
            given = ([axis] if axis is not None else []) + arguments[1:]
            if (
                not set(options) <= {"keepdims", "keepdim"}
                or len(given) > 1
                or not all(_whole(one) is not None for one in given)
            ):
                self.refuse(f"these options of {name} are not read", part)
            return self.known(name, first, _whole(given[0]) if given else None, bool(options), part, span)
        return self.refuse(f"the function {name} is not read in Python", part)

    def known(self, name: str, body: Node, axis: int | None, kept: bool, part: ast.expr, span: Span) -> Node:
        """A known function of one argument, perhaps along one axis."""
        make = self.elaborator
        if name == "square":
            return self.power(body, make.number(2, span), span)
        if name == "inv":
            return scripts.power(make, body, make.number(-1, span), span)
        if name in ("log2", "log10"):
            base = Call((), "log", (make.number(int(name[3:]), span),), span=span)
            return make.divide(functions.known_call(make, "log", [body], span), base, span)
        if name == "norm":
            which = "F" if len(body.shape) == 2 and axis is None else "" if axis in (None, -1) else str(axis)
            return functions.norm(make, body, which, span)
        if axis is None or len(body.shape) < 2 or name not in PYTHON["along"]:
            if axis not in (None, -1, 0) or (kept and len(body.shape) == 2):
                self.refuse("this axis is not read", part)
            return functions.known_call(make, name, [body], span)
        if axis not in (-2, -1, 0, 1) or (kept and (name != "sum" or axis in (-2, 0))):
            self.refuse("this axis is not read", part)
        turned = make.transpose(body, span) if axis in (-2, 0) else body
        if name in ("softmax", "log_softmax"):
            made = functions.known_call(make, name, [turned], span)
            return make.transpose(made, span) if turned is not body else made
        if name not in ("sum", "mean"):
            self.refuse(f"{name} along an axis of a matrix is not read", part)
        made = make.multiply(turned, Special(turned.shape[1:], "ones", span=span), "", span)
        if kept:
            self.row_sums[id(made)] = body
        return make.divide(made, size_node(turned.shape[1]), span) if name == "mean" else made

    def special(self, name: str, size: ast.expr, span: Span) -> Node:
        sizes = [self.node(one) for one in (size.elts if isinstance(size, ast.Tuple | ast.List) else [size])]
        shape = tuple(found for one in sizes if (found := size_of(one)) is not None)
        if len(shape) != len(sizes) or len(shape) > 2 or (name == "eye" and len(shape) > 1):
            self.refuse("these are not one or two sizes", size)
        return Special(shape * 2 if name == "eye" else shape, "identity" if name == "eye" else name, span=span)

    def einsum(self, spec: str, operands: list[Node], span: Span) -> Node:
        """Σ of the product of the operands' entries over the letters that the result does not have."""
        make = self.elaborator
        found = re.fullmatch(r"([A-Za-z]+(?:,[A-Za-z]+)*)->([A-Za-z]*)", spec.replace(" ", ""))
        given = found[1].split(",") if found else []
        if not found or len(given) != len(operands) or not set(found[2]) <= set("".join(given)):
            make.unreadable("einsum is read with letters for the axes of each argument and of the result", span)
        indices: dict[str, Index] = {}
        parts: list[Node] = []
        for letters, operand in zip(given, operands, strict=True):
            if len(letters) != len(operand.shape) or len(found[2]) > 2:
                reason = f"{letters} are {len(letters)} axes, and {make.text(operand)} is"
                described = shapes.describe_shape(operand.shape)
                make.unreadable(f"{reason} {described}: only vectors and matrices are read", span)
            for letter, size in zip(letters, operand.shape, strict=True):
                fresh = indices.get(letter) or Index((), functions.fresh_name(make, letter), size, span=span)
                if not shapes.unify(indices.setdefault(letter, fresh).size, size):
                    make.ill_typed(f"the axes {letter} of this einsum have different sizes", span)
            parts.append(tree.Part((), operand, tuple(indices[letter] for letter in letters), span=span))
        if product := self.product(given, found[2], operands, span):
            return product
        body = reduce(lambda left, right: make.multiply(left, right, "", span), parts)
        summed = tuple(index for letter, index in indices.items() if letter not in found[2])
        body = tree.Sum((), summed, body, span=span) if summed else body
        for place, letter in enumerate(reversed(found[2])):
            index = indices[letter]
            body = functions.stacked(make, body, index, span) if place else functions.vector_over(body, index)
        return body

    def product(self, given: list[str], result: str, operands: list[Node], span: Span) -> Node | None:
        """ij,jk->ik, with any order of the axes, as a product of matrices; None for anything else."""
        shared = set(given[0]) & set(given[-1]) - set(result)
        if [len(set(one)) for one in given] != [2, 2] or len(shared) != 1 or len(set(result)) != 2:
            return None
        make = self.elaborator
        left = operands[0] if given[0][1] in shared else make.transpose(operands[0], span)
        right = operands[1] if given[1][0] in shared else make.transpose(operands[1], span)
        made = make.multiply(left, right, "", span)
        return made if result[0] in given[0] else make.transpose(made, span)


def _whole(part: ast.expr) -> int | None:
    """The whole number that this is, or None."""
    if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub):
        inner = _whole(part.operand)
        return None if inner is None else -inner
    return part.value if isinstance(part, ast.Constant) and type(part.value) is int else None
