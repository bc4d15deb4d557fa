"""Shapes of tensors and expressions, blanks in listings, and what must change in a listing with a size."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice, product
from typing import Any

from ...derivation import Derivation, chain
from ...errors import MathsError
from ...maths import parse
from ..findings import CannotSolve
from ..listings import BLANK, Listing, marked, read, size_of
from ..record import Asked, Exercise, Given
from ..record import shape_of as value_shape
from ..solving import Also, Answer, solver
from .formulas import ONE, Terms, inverse, number, show, symbol, times
from .tensors import Layer, Run, Tensor, execute, shown

MOST_TRIED = 200
_BY_AXIS = ("transpose", "permute", "unsqueeze", "swapaxes", "squeeze")
_BY_SIZE = ("view", "reshape", "Linear", "sqrt", "zeros", "ones", "randn")
_AXES = [str(place) for place in (-1, -2, 0, 1, 2, 3, -3)]


def _declared(exercise: Exercise) -> dict[str, tuple[int | str, ...]]:
    """Shapes that are given, by name; a matrix of numbers has its own."""
    found: dict[str, tuple[int | str, ...]] = {}
    for given in exercise.givens:
        shape = given.shape if given.shape is not None else value_shape(given.value)
        if given.symbol and shape and given.role != "listing":
            found[given.symbol] = tuple(shape)
    return found


def _sizes(shape: Sequence[int | str]) -> tuple[Terms, ...]:
    return tuple(number(size) if isinstance(size, int) else size_of(size) or symbol(size) for size in shape)


def _answer(
    shape: Sequence[Any], title: str = "", names: Mapping[str, Terms] | None = None, also: tuple[Also, ...] = ()
) -> Answer:
    text = shown(shape, names).replace("*", " ")
    words = {name: "natural" for size in shape for powers in size for name, _ in powers}
    words |= dict.fromkeys(re.findall(r"[^\W\d]\w*", text), "natural")
    return Answer(
        text, text, "shape", symbols=words, also=also, derivation=Derivation.of(chain(title or "the shape", text))
    )


# --- shapes


@solver("shape")
def shape(exercise: Exercise, asked: Asked) -> Answer:
    """The shape of a name of a listing, of an expression, or of a tensor of attention."""
    wanted = asked.object.strip().strip("`$")
    declared = _declared(exercise)
    listing = exercise.given("listing")
    if wanted in declared:
        return _answer(_sizes(declared[wanted]), f"{wanted} is given with its shape")
    if listing is not None:
        found = _in_listing(exercise, str(listing.value), declared, wanted)
        if found is not None:
            return found
    if called := re.fullmatch(r"(?:nn\.)?Linear\((.*)\)(?:\.weight|\.bias)?", wanted.replace(" weight", ".weight")):
        inputs, outputs = [part.partition("=")[2] or part for part in called[1].split(",")[:2]]
        sizes = _sizes([outputs.strip(), inputs.strip()])
        return _answer(sizes[:1] if wanted.endswith("bias") else sizes, "a linear layer keeps (outputs, inputs)")
    if re.search(r"[.(]\s*\w+\s*\(|einsum|@|\.T\b|\.view|\.transpose|unsqueeze", wanted):
        letters = {
            name for sizes in declared.values() for size in sizes for name in re.findall(r"[^\W\d]\w*", str(size))
        }
        run = execute(f"result = {wanted}", declared, attributes={f"self.{name}": symbol(name) for name in letters})
        if run.misfits:
            raise CannotSolve("misfit", what=wanted, why=run.misfits[0][1])
        if "result" in run.shapes:
            return _answer(run.shapes["result"], wanted)
    uses = any(re.search(rf"(?<![A-Za-z]){re.escape(name)}(?![A-Za-z])", wanted) for name in declared)
    if not uses and (usual := _usual(exercise, wanted)) is not None:
        return _answer(usual, wanted)
    return _of_expression(exercise, wanted, declared)


def _in_listing(
    exercise: Exercise, text: str, declared: Mapping[str, Sequence[int | str]], wanted: str
) -> Answer | None:
    run = execute(text, declared)
    if exercise.of_role("out_features", "in_features"):
        repaired = _repaired(text, _changed_layer(exercise, (), run))
        if repaired is None:
            raise CannotSolve("misfit", what=wanted, why="no change of views and layers makes the rest fit")
        run = repaired[1]
    names = {name.removeprefix("self."): value for name, value in run.attributes.items() if isinstance(value, dict)}
    names = {name: value for name, value in names.items() if len(value) == 1 and (name,) != _only_name(value)}
    layer = run.attributes.get(f"self.{wanted.removeprefix('self.').removesuffix('.weight')}")
    if wanted in run.shapes:
        if any(wanted in why for _, why in run.misfits):
            raise CannotSolve("misfit", what=wanted, why=next(why for _, why in run.misfits if wanted in why))
        found = _answer(run.shapes[wanted], wanted, names)
        if "key_length" not in found.text:
            return found
        # Nothing in the listing tells the length of the keys from that of the queries.
        also = (Also(found.text, found.text, "keys of another length, key_length", found.symbols),)
        text = found.text.replace("key_length", run.length)
        return replace(found, text=text, value=text, also=also)
    if isinstance(layer, Layer) and isinstance(layer.outputs, dict) and isinstance(layer.inputs, dict):
        return _answer((layer.outputs, layer.inputs), "a linear layer keeps (outputs, inputs)", names)
    if re.fullmatch(r"(?:the )?(?:output|result|return value)|return", wanted) and isinstance(run.returned, Tensor):
        return _answer(run.returned.shape, wanted, names) if run.returned.shape is not None else None
    return None


def _only_name(size: Terms) -> tuple[str, ...]:
    return tuple(name for powers in size for name, _ in powers)


def _usual(exercise: Exercise, wanted: str) -> tuple[Terms, ...] | None:
    """The tensors of attention by name, from the sizes that are given; axes without a size are left out."""

    def size(role: str) -> Terms | None:
        found = exercise.size(role)
        return None if found is None else number(found) if isinstance(found, int) else size_of(found) or symbol(found)

    batch, heads, kv = size("batch"), size("heads"), size("kv_heads")
    width, head = size("width"), size("head_width")
    length, keys = size("length"), size("keys_length") or size("length")
    if exercise.structure.variant == "mqa":
        kv = ONE
    if head is None and width is not None:
        head = width if heads is None else times(width, inverse(heads) or ONE)
    if width is None and head is not None:
        width = head if heads is None else times(head, heads)
    value = size("value_width") or head
    kv = kv or heads
    name = re.sub(r"^the |\s+(?:matrix|tensor)$", "", wanted.lower()).replace("_", " ").strip()
    tables: dict[str, tuple[Terms | None, ...]] = {
        r"(?:split |per-?head )?(?:q|queries|query)(?: per head| after split\w*| heads)?": (batch, heads, length, head),
        r"(?:split |per-?head )?(?:k|keys|key)(?: per head| after split\w*| heads)?": (batch, kv, keys, head),
        r"(?:split |per-?head )?(?:v|values|value)(?: per head| after split\w*| heads)?": (batch, kv, keys, value),
        r"(?:attention )?(?:scores?|logits|weights|probabilities|matrix)|a|q k\^t|qk\^t": (batch, heads, length, keys),
        r"(?:output|context)s?(?: of (?:each|every) head| per head)": (batch, heads, length, value),
        r"(?:concatenated|joined|combined)(?: heads| output)?|concatenation(?: of (?:the )?heads)?": (
            batch, length, times(heads or ONE, value) if value else None),
        r"x|inputs?|tokens|embeddings": (batch, length, width),
        r"(?:k|key|v|value|kv)[- ]?cache": (batch, kv, keys, head),
        r"w ?q|query (?:weight|projection)s?": (width, times(heads or ONE, head) if head else None),
        r"w ?k|key (?:weight|projection)s?": (width, times(kv or ONE, head) if head else None),
        r"w ?v|value (?:weight|projection)s?": (width, times(kv or ONE, value) if value else None),
        r"w ?o|output (?:weight|projection)s?": (times(heads or ONE, value) if value else None, width),
        r"(?:attention )?output|multi-?head output": (batch, length, width if heads is not None else value),
    }  # fmt: skip
    for pattern, axes in tables.items():
        if re.fullmatch(pattern, name):
            core = 2 if len(axes) > 1 else 1
            if any(axis is None for axis in axes[-core:]):
                raise CannotSolve("missing", needs="a size of each axis")
            return tuple(axis for axis in axes if axis is not None)
    return None


def _of_expression(exercise: Exercise, wanted: str, declared: Mapping[str, Sequence[int | str]]) -> Answer:
    """An expression of matrices; axes before the last two belong to a batch and are kept."""
    names = {
        name: shape
        for name, shape in declared.items()
        if re.search(rf"(?<![A-Za-z]){re.escape(name)}(?![A-Za-z])", wanted)
    }
    for name in re.findall(r"[A-Z](?:_[A-Za-z]+)?", wanted):
        if name not in names and name != "T" and (usual := _usual(exercise, name)) is not None:
            names[name] = tuple(show(size).replace(" ", "*") for size in usual)
    if not names:
        raise CannotSolve("not_understood", found=wanted)
    front = max((tuple(shape[:-2]) for shape in names.values()), key=len)
    if any(tuple(shape[:-2]) not in ((), front) for shape in names.values()):
        raise CannotSolve("misfit", what=wanted, why="the tensors have different axes before the last two")
    kinds = {
        name: f"{'matrix' if len(shape) > 1 else 'vector'}[{','.join(map(str, shape[-2:]))}]"
        for name, shape in names.items()
    }
    for name in re.findall(r"(?<![A-Za-z\\])[a-z]\w*", wanted):
        kinds.setdefault(name, "natural") if name not in ("softmax", "sqrt") else None
    try:
        tree = parse(wanted.replace("@", " "), kinds)
    except MathsError as error:
        raise CannotSolve("misfit", what=wanted, why=str(error).splitlines()[0]) from None
    return _answer((*_sizes(front), *_sizes(tree.shape)), wanted)


@solver("head_width", ["width", "heads"])
def head_width(exercise: Exercise, asked: Asked) -> Answer:
    """width / heads."""
    width, heads = exercise.size("width"), exercise.size("heads")
    if isinstance(width, int) and isinstance(heads, int):
        if heads < 1 or width % heads:
            raise CannotSolve("misfit", what=f"{heads} heads", why=f"they do not divide the width {width}")
        found = width // heads
        return Answer(
            str(found),
            found,
            "number",
            derivation=Derivation.of(chain("the width of a head", f"{width}/{heads}", str(found))),
        )
    text = f"{width}/{heads}"
    kinds = {name: "natural" for name in (width, heads) if isinstance(name, str)}
    return Answer(
        text,
        text,
        "formula",
        symbols=kinds,
        derivation=Derivation.of(chain("the width of a head", text), symbols=kinds),
    )


# --- blanks


@solver("blank", ["listing"])
def blank(exercise: Exercise, asked: Asked) -> Answer:
    """What belongs in a blank: the one candidate with which everything fits and everything is used."""
    given = exercise.given("listing")
    assert given is not None
    text = marked(str(given.value))
    listing = read(text)
    label = _label(asked.object or asked.label, listing)
    declared = _declared(exercise)
    offered = {label: _options(asked)} if asked.options else {}
    for other in exercise.asked:
        if other.quantity == "blank" and other.options and other is not asked and other.object != asked.object:
            offered.setdefault(_label(other.object or other.label, listing), _options(other))
    found = _solve_blank(text, listing, label, declared, offered)
    if asked.options:
        option = next(each for each in asked.options if _clean(each.text) == found)
        return Answer(option.text, option.label, "choice", derivation=Derivation.of(chain(f"blank {label}: {found}")))
    kinds = dict.fromkeys(re.findall(r"[^\W\d]\w*", found), "natural")
    return Answer(found, found, "blank", symbols=kinds, derivation=Derivation.of(chain(f"blank {label}: {found}")))


def _label(wanted: str, listing: Listing) -> str:
    plain = re.sub(r"(?i)^blank\b|[\s()_]", "", wanted)
    found = [label for label in listing.blanks if label.lower() == plain.lower()]
    found = found or (list(listing.blanks) if len(listing.blanks) == 1 else [])
    if len(found) != 1:
        raise CannotSolve("not_understood", found=f"the blank {wanted}")
    return found[0]


def _clean(text: str) -> str:
    return text.strip().strip("`$").strip()


def _options(asked: Asked) -> list[str]:
    return [_clean(option.text) for option in asked.options]


def _solve_blank(
    text: str,
    listing: Listing,
    label: str,
    declared: Mapping[str, Sequence[int | str]],
    offered: Mapping[str, list[str]],
) -> str:
    """What fits best in a blank, with the other blanks as they are settled; it must be the only one."""
    settled = _settled(text, tuple(declared.items()), tuple((each, tuple(texts)) for each, texts in offered.items()))
    rest = _filled(text, {each: value for each, value in settled.items() if each != label})
    fitting = _best(rest, listing, label, declared, offered.get(label))
    if not fitting:
        raise CannotSolve("not_understood", found=f"what may stand in blank {label}")
    if _distinct(fitting, rest, label, declared) > 1:
        raise CannotSolve("ambiguous", what=f"blank {label}", found=", ".join(fitting[:4]))
    misfits, unused = _score(_filled(rest, {label: fitting[0]}), declared)
    if misfits > _score(rest, declared)[0] or (unused and label not in offered):
        raise CannotSolve("misfit", what=f"blank {label}", why="no candidate fits the shapes around it")
    return fitting[0]


@lru_cache(maxsize=32)
def _settled(text: str, declared: tuple[Any, ...], offered: tuple[Any, ...]) -> dict[str, str]:
    """Every blank filled with what fits best, again and again until nothing changes; only those with one best."""
    listing, shapes, options = read(text), dict(declared), {label: list(texts) for label, texts in offered}
    chosen: dict[str, str] = {}
    ties: dict[str, list[str]] = {}
    for _ in range(5):
        before = dict(chosen)
        for each in listing.blanks:
            others = _filled(text, {other: value for other, value in chosen.items() if other != each})
            ties[each] = _best(others, listing, each, shapes, options.get(each))
            if ties[each]:
                chosen[each] = chosen[each] if chosen.get(each) in ties[each] else ties[each][0]
        if chosen == before:
            break
    found = {}
    for each, value in chosen.items():
        others = _filled(text, {other: kept for other, kept in chosen.items() if other != each})
        if _distinct(ties[each], others, each, shapes) == 1:
            found[each] = value
    return found


def _best(
    text: str, listing: Listing, label: str, declared: Mapping[str, Sequence[int | str]], offered: list[str] | None
) -> list[str]:
    """The candidates for a blank that leave least that does not fit, and then least unused."""
    own = offered or list(dict.fromkeys(islice(_candidates(execute(text, declared), listing, label), MOST_TRIED)))
    scores = {candidate: _score(_filled(text, {label: candidate}), declared) for candidate in own}
    least = min(scores.values(), default=None)
    return [candidate for candidate, score in scores.items() if score == least]


def _filled(text: str, values: Mapping[str, str]) -> str:
    return BLANK.sub(lambda found: values.get(found[1], found[0]), text)


def _distinct(candidates: Sequence[str], text: str, label: str, declared: Mapping[str, Sequence[int | str]]) -> int:
    """How many candidates differ: sizes and axes with which every shape is the same are one."""
    if any(not re.fullmatch(r"(?:nn\.Linear\()?[-\d\s*/a-z_.,]+\)?", each) for each in candidates):
        return len(set(candidates))
    runs = [execute(_filled(text, {label: each}), declared) for each in candidates]
    return len({str(sorted((name, shown(shape)) for name, shape in run.shapes.items())) for run in runs})


def _score(text: str, declared: Mapping[str, Sequence[int | str]]) -> tuple[int, int]:
    """How much does not fit, and how much is left unused: tensors, layers, methods, the softmax."""
    run = execute(text, declared)
    misfits = len(run.misfits) + sum(not _closes(run, name) for name in run.open)
    layers = [name for name, value in run.attributes.items() if isinstance(value, Layer) and value.kind == "Linear"]
    unused = [name for name in (*layers, *run.made) if name not in run.used]
    entry = {"__init__", "forward", "__call__", "call"}
    methods = [
        f.name
        for f in run.listing.functions.values()
        if f.owner and f.name not in entry and f"self.{f.name}" not in run.used
    ]
    softmax = abs(run.softmaxes - 1) if run.products > 1 else 0
    again = sum(count - 1 for count in run.applications.values())
    return misfits, run.wasted + len(unused) + len(methods) + softmax + again + 2 * run.mismatches


def _closes(run: Run, name: str) -> bool:
    """Whether what a blank line must give can come from the input and the weights of that name."""
    out, given = run.shapes.get(name), run.shapes.get("x")
    weights = run.shapes.get(f"W_{name}")
    if out is None or given is None or weights is None:
        return True

    def within(size: Terms, *shapes: Sequence[Terms]) -> bool:
        return any(run.equal(size, other) for shape in shapes for other in shape)

    return (
        all(within(size, given, weights) for size in out)
        and all(within(size, out, given) for size in weights)
        and all(within(size, out, weights) for size in given)
    )


def _candidates(run: Run, listing: Listing, label: str) -> Iterator[str]:
    """What may stand in a blank, by where it stands."""
    scope, where = run.scopes.get(label, ({}, ""))
    if where.startswith("shape "):
        name = where.removeprefix("shape ")
        if name in run.shapes:
            yield shown(run.shapes[name])
        return
    tree = _statement_with(listing, label)
    if tree is None:
        return
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    name = f"BLANK_{label}"
    node = next((n for n in ast.walk(tree) if getattr(n, "id", getattr(n, "attr", None)) == name), None)
    if node is None:
        yield from _einsum_specs(run, listing, label, tree)
        return
    parent = parents.get(node)
    tensors = [each for each, value in scope.items() if isinstance(value, Tensor)]
    layers = [each for each, value in run.attributes.items() if isinstance(value, Layer)]
    methods = [
        f"self.{f.name}" for f in listing.functions.values() if f.owner and f.name not in ("__init__", where, "forward")
    ]
    if isinstance(node, ast.Attribute):
        base = ast.unparse(node.value)
        if base == "self":
            yield from (each.removeprefix("self.") for each in (*layers, *methods))
            yield from (each.removeprefix("self.") for each, value in run.attributes.items() if isinstance(value, dict))
        else:
            yield from ("softmax", "matmul", "relu", "Linear", "transpose", "sum", "cat")
    elif isinstance(parent, ast.Call) and parent.func is node:
        yield from (*layers, *methods, "torch.softmax", "torch.matmul", "torch.relu", "torch.sum", "nn.Linear")
    elif isinstance(parent, ast.keyword) or _called(parent) in _BY_AXIS:
        signed = isinstance(parent, ast.keyword) or re.search(r"[(,=]\s*-\d", ast.unparse(parent) if parent else "")
        yield from sorted(_AXES, key=lambda axis: (axis[0] == "-") != bool(signed))
    elif _called(parent) in _BY_SIZE:
        yield from _size_texts(run, scope, where)
    elif isinstance(parent, ast.BinOp) and not isinstance(parent.op, ast.MatMult):
        yield from _size_texts(run, scope, where)
        yield from (f"math.sqrt({each})" for each in _size_texts(run, scope, where))
    elif isinstance(parent, ast.Assign | ast.Return):
        target = ast.unparse(parent.targets[0]) if isinstance(parent, ast.Assign) else ""
        yield from _expressions(run, scope, where, (tensors, layers, methods), target)
    else:
        yield from tensors
        yield from (f"{each}.transpose(-2, -1)" for each in tensors)
        yield from (f"{function}({each})" for function in (*layers, *methods) for each in tensors)


def _called(node: ast.AST | None) -> str:
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def _statement_with(listing: Listing, label: str) -> ast.AST | None:
    for function in (listing.top, *listing.functions.values()):
        for each in function.body:
            if re.search(rf"BLANK_{re.escape(label)}(?!\w)", each.text):
                try:
                    return ast.parse(each.text)
                except SyntaxError:
                    return None
    return None


def _size_texts(run: Run, scope: Mapping[str, Any], where: str) -> list[str]:
    """Sizes in scope: names, then attributes, then the number of heads times a head's width."""
    names = [name for name, value in scope.items() if isinstance(value, dict)]
    attributes = [name for name, value in run.attributes.items() if isinstance(value, dict)]
    plain = [name for name in attributes if where != "__init__" or name.removeprefix("self.") not in names]
    found = [*names, *plain] if where == "__init__" else [*plain, *names]
    heads = [name for name in found if re.search(r"head", name)]
    widths = [name for name in found if re.search(r"d_k|d_v|head_dim|d_head|dim_head", name)]
    return list(
        dict.fromkeys(
            [*found, *(f"{a} * {b}" for a in heads for b in widths), *(f"2 * {name}" for name in found), "1", "-1"]
        )
    )


def _expressions(
    run: Run, scope: Mapping[str, Any], where: str, known: tuple[list[str], list[str], list[str]], target: str
) -> Iterator[str]:
    """Whole right-hand sides: sizes and layers in a constructor, projections, scores, weights and outputs elsewhere."""
    tensors, layers, methods = known
    if where == "__init__":
        sizes = _size_texts(run, scope, where)[:6]
        if re.search(r"W|proj|linear|fc", target):
            yield from (f"nn.Linear({a}, {b})" for a in sizes for b in sizes)
            return
        yield from sizes
        yield from (f"{a} // {b}" for a in sizes for b in sizes if a != b and "1" not in (a, b))
        return
    weights, out, given = run.shapes.get(f"W_{target}"), run.shapes.get(target), run.shapes.get("x")
    if weights is None and f"W_{target}" in scope:
        return
    if weights is not None and out is not None and given is not None:
        yield f'torch.einsum("{_spec(run, (given, weights), out)}", x, W_{target})'
        return
    yield from (f"{layer}({each})" for layer in layers for each in tensors)
    yield from (f"{method}({each})" for method in methods for each in tensors)
    yield from (f"{method}({layer}({each}))" for method in methods for layer in layers for each in tensors)
    yield from (f"{layer}({method}({each}))" for method in methods for layer in layers for each in tensors)
    yield from (f"torch.softmax({each}, dim=-1)" for each in tensors)
    yield from (f"torch.matmul({a}, {b})" for a in tensors for b in tensors if a != b)
    root = next((name for name in _size_texts(run, scope, where) if re.search(r"d_k|head_dim|d_head", name)), "")
    scale = f" / math.sqrt({root})" if root else ""
    yield from (f"torch.matmul({a}, {b}.transpose(-2, -1)){scale}" for a in tensors for b in tensors if a != b)


def _spec(run: Run, operands: Sequence[Sequence[Terms]], out: Sequence[Terms]) -> str:
    """The einsum of these shapes: equal sizes have one letter, the one of their name where it is free."""
    letters: list[tuple[Terms, str]] = []

    def letter(size: Terms) -> str:
        for known, sign in letters:
            if run.equal(known, size):
                return sign
        name = show(size)
        free = [sign for sign in (name[:1].lower(), *"abcdefghijklmnopqrstuvwxyz") if sign.isalpha()]
        sign = next(sign for sign in free if sign not in [used for _, used in letters])
        letters.append((size, sign))
        return sign

    return ",".join("".join(map(letter, shape)) for shape in operands) + "->" + "".join(map(letter, out))


def _einsum_specs(run: Run, listing: Listing, label: str, tree: ast.AST) -> Iterator[str]:
    """The subscripts of an einsum whose operands and result are known."""
    scope, _ = run.scopes.get(label, ({}, ""))
    operands = [each.shape for each in scope.get("operands", ()) if isinstance(each, Tensor) and each.shape is not None]
    assigned = next((node for node in ast.walk(tree) if isinstance(node, ast.Assign)), None)
    out = run.shapes.get(ast.unparse(assigned.targets[0])) if assigned is not None else None
    if len(operands) == len(scope.get("operands", ())) and operands and out is not None:
        yield _spec(run, operands, out)


# --- changes


def _changed_layer(exercise: Exercise, changes: Sequence[Given], plain: Run) -> dict[str, Layer]:
    """The layer whose size a question changes, with its new size."""
    stated = (*changes, *exercise.of_role("out_features", "in_features"))
    change = next((each for each in stated if each.value is not None), None)
    if change is None:
        raise CannotSolve("missing", needs="the size that changes")
    name = f"self.{change.symbol.removeprefix('self.')}"
    layer = plain.attributes.get(name)
    try:
        value = plain.value(ast.parse(str(change.value), mode="eval").body, {})
    except SyntaxError:
        value = None
    size = value if isinstance(value, dict) else size_of(str(change.value))
    if not isinstance(layer, Layer) or size is None:
        raise CannotSolve("not_understood", found=f"the change of {change.symbol}")
    inputs = change.role == "in_features"
    return {name: Layer(name, size if inputs else layer.inputs, layer.outputs if inputs else size)}


@solver("listing_changes", ["listing"])
def listing_changes(exercise: Exercise, asked: Asked) -> Answer:
    """What else must change: the layers and views that no longer fit, in the order in which they are met."""
    given = exercise.given("listing")
    assert given is not None
    text = marked(str(given.value))
    plain = execute(text, _declared(exercise))
    changes = _changed_layer(exercise, asked.changes, plain)
    ((name, changed),) = changes.items()
    size = changed.outputs
    # Queries and keys meet in a product, so that a change of one may need the same change of the other.
    others = [each for each, value in plain.attributes.items() if isinstance(value, Layer) and each != name]
    found = _least(text, changes)
    for other in others if found is None else ():
        if found is None and plain.attributes[name].outputs != size:
            together = Layer(other, plain.attributes[other].inputs, size)
            found = _least(text, {name: changed, other: together})
            if found is not None:
                new = f"nn.Linear({_name(plain, together.inputs)}, {_name(plain, size)})"
                found = {other.removeprefix("self."): new, **found}
    if found is None:
        raise CannotSolve("misfit", what=name, why="no change of views and layers makes the rest fit")
    attributes = {
        each.removeprefix("self."): value for each, value in plain.attributes.items() if isinstance(value, dict)
    }
    items = {where: _answer_words(what, attributes) for where, what in found.items()}
    text = "; ".join(f"{where}: {item.text}" for where, item in items.items()) or "nothing else changes"
    return Answer(
        text,
        text,
        "words",
        items=items,
        derivation=Derivation.of(*(chain(f"{where}: {item.text}") for where, item in items.items())),
    )


def _answer_words(what: Any, names: Mapping[str, Terms]) -> Answer:
    text = what if isinstance(what, str) else shown(what, names)
    return Answer(text, text, "code")


def _least(text: str, changes: Mapping[str, Layer]) -> dict[str, str] | None:
    """The fewest repairs that make a listing fit: at each view one size may change, at each layer its inputs."""
    best = _repaired(text, changes)
    return None if best is None else best[0]


def _repaired(text: str, changes: Mapping[str, Layer]) -> tuple[dict[str, str], Run] | None:
    best: tuple[dict[str, str], Run] | None = None
    for choices in product(range(4), repeat=3):
        made: dict[str, str] = {}
        turns = iter(choices)

        def repair(run: Run, where: str, found: Any, made: dict[str, str] = made, turns: Iterator[int] = turns) -> Any:
            if isinstance(found, tuple):
                sizes, ratio = found
                place = next(turns, 0) % len(sizes)
                sizes = [times(size, ratio) if axis == place else size for axis, size in enumerate(sizes)]
                made[f"{where} (line {run.number})"] = f"view({', '.join(_name(run, size) for size in sizes)})"
                return sizes
            if where == "scale":
                made[where] = f"sqrt({_name(run, found)})"
            else:
                outputs = run.attributes[where].outputs
                made[where.removeprefix("self.")] = f"nn.Linear({_name(run, found)}, {_name(run, outputs)})"
            return None

        run = execute(text, repair=repair, changes=changes)
        if not run.misfits and (best is None or len(made) < len(best[0])):
            best = made, run
    return best


def _name(run: Run, size: Terms) -> str:
    """A size by its name in the listing, or as a multiple of one."""
    names = {name.removeprefix("self."): value for name, value in run.attributes.items() if isinstance(value, dict)}
    for name, value in {**names, **run.constants}.items():
        over = inverse(value)
        ratio = times(size, over) if over is not None else {}
        if set(ratio) == {()}:
            factor = ratio[()]
            return name if factor == 1 else f"{factor}*{name}" if factor.denominator == 1 else f"{name}//{1 / factor}"
    return show(size).replace(" ", "*").replace("key_length", run.length)
