"""Shapes of tensors and expressions, blanks in listings, and what must change in a listing with a size."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice, product
from typing import Any

from ...cost.polynomial import Polynomial
from ...derivation import chain
from ...errors import MathsError
from ...maths import parse
from ..findings import CannotSolve
from ..listings import BLANK, Listing, marked, read, size_of
from ..record import Asked, Exercise, Given
from ..record import shape_of as value_shape
from ..solving import Also, Answer, solver
from .formulas import formula, naturals, table
from .tensors import Layer, Run, Shape, Tensor, execute, shown, sizes_of

MOST_TRIED = 200
Declared = tuple[tuple[str, tuple[int | str, ...]], ...]
_WORD = re.compile(r"[^\W\d]\w*")


def _declared(exercise: Exercise) -> Declared:
    """Shapes that are given, by name; a matrix of numbers has its own."""
    named = [given for given in exercise.givens if given.symbol and given.role != "listing"]
    shapes = {each.symbol: value_shape(each.value) if each.shape is None else each.shape for each in named}
    return tuple((name, tuple(shape)) for name, shape in shapes.items() if shape)


def _answer(shape: Sequence[Polynomial], title: str, names: Mapping[str, Polynomial] | None = None) -> Answer:
    text = shown(shape, names).replace("*", " ")
    symbols = naturals(*(name for size in shape for name in size.free_symbols), *_WORD.findall(text))
    return formula(text, chain(title, text), symbols=symbols, form="shape")


def _uses(wanted: str, name: str) -> bool:
    return re.search(rf"(?<![A-Za-z]){re.escape(name)}(?![A-Za-z])", wanted) is not None


# --- shapes


@solver("shape")
def shape(exercise: Exercise, asked: Asked) -> Answer:
    """The shape of a name of a listing, of an expression, or of a tensor of attention."""
    wanted = asked.object.strip().strip("`$")
    declared = dict(_declared(exercise))
    if wanted in declared:
        return _answer(sizes_of(declared[wanted]), f"{wanted} is given with its shape")
    listing = exercise.given("listing")
    if listing is not None and (found := _in_listing(exercise, str(listing.value), wanted)) is not None:
        return found
    if called := re.fullmatch(r"(?:nn\.)?Linear\((.*)\)(?:\.weight|\.bias)?", wanted.replace(" weight", ".weight")):
        inputs, outputs = [(part.partition("=")[2] or part).strip() for part in called[1].split(",")[:2]]
        sizes = sizes_of([outputs, inputs])
        return _answer(sizes[:1] if wanted.endswith("bias") else sizes, "a linear layer keeps (outputs, inputs)")
    if re.search(r"[.(]\s*\w+\s*\(|einsum|@|\.T\b|\.view|\.transpose|unsqueeze", wanted):
        letters = {name for sizes in declared.values() for size in sizes for name in _WORD.findall(str(size))}
        attributes = {f"self.{name}": Polynomial.name(name) for name in letters}
        run = execute(f"result = {wanted}", declared, attributes=attributes)
        if run.misfits:
            raise CannotSolve("misfit", what=wanted, why=run.misfits[0][1])
        if "result" in run.shapes:
            return _answer(run.shapes["result"], wanted)
    if not any(_uses(wanted, name) for name in declared) and (usual := _usual(exercise, wanted)) is not None:
        return _answer(usual, wanted)
    return _of_expression(exercise, wanted, declared)


def _in_listing(exercise: Exercise, text: str, wanted: str) -> Answer | None:
    run = execute(text, dict(_declared(exercise)))
    if exercise.of_role("out_features", "in_features"):
        run = _repaired(text, _changed_layer(exercise, (), run), wanted)[1]
    names = {name.removeprefix("self."): value for name, value in run.sizes().items()}
    names = {name: value for name, value in names.items() if len(value.terms) == 1 and str(value) != name}
    if wanted in run.shapes:
        if why := next((why for _, why in run.misfits if wanted in why), None):
            raise CannotSolve("misfit", what=wanted, why=why)
        found = _answer(run.shapes[wanted], wanted, names)
        if "key_length" not in found.text:
            return _in_numbers(exercise, run.shapes[wanted], found)
        # Nothing in the listing tells the length of the keys from that of the queries.
        also = (Also(found.text, found.text, "keys of another length, key_length", found.symbols),)
        text = found.text.replace("key_length", run.length)
        return replace(found, text=text, value=text, also=also)
    match run.attributes.get(f"self.{wanted.removeprefix('self.').removesuffix('.weight')}"):
        case Layer(inputs=Polynomial() as inputs, outputs=Polynomial() as outputs):
            return _answer((outputs, inputs), "a linear layer keeps (outputs, inputs)", names)
    if re.fullmatch(r"(?:the )?(?:output|result|return value)|return", wanted) and getattr(run.returned, "shape", None):
        return _answer(run.returned.shape, wanted, names)
    return None


def _in_numbers(exercise: Exercise, shape: Sequence[Polynomial], found: Answer) -> Answer:
    """The shape with the sizes that the exercise gives, where it gives all of them; by their names it is right too."""
    numbers = {each.symbol: each.value for each in exercise.givens if each.symbol and type(each.value) is int}
    if not found.symbols or any(size.free_symbols - {*numbers} for size in shape):
        return found
    sizes = [Polynomial.of(size.substituted(numbers)) for size in shape]
    return replace(_answer(sizes, found.text), also=(Also(found.text, found.value, "", found.symbols),))


def _usual(exercise: Exercise, wanted: str) -> Shape | None:
    """The tensors of attention by name, from the sizes that are given; axes without a size are left out."""
    roles = {"head": "head_width", "value": "value_width", "kv": "kv_heads", "keys": "keys_length"}
    size: dict[str, Any] = {}
    for name in ("batch", "heads", "width", "length", *roles):
        stated = exercise.size(roles.get(name, name))
        size[name] = None if stated is None else sizes_of([stated])[0]
    heads = size["heads"] or 1
    size["head"] = size["head"] or (size["width"] and size["width"] / heads)
    size["width"] = size["width"] or (size["head"] and size["head"] * heads)
    size["value"] = size["value"] or size["head"]
    size["keys"] = size["keys"] or size["length"]
    size["kv"] = Polynomial.of(1) if exercise.structure.variant == "mqa" else size["kv"] or size["heads"]
    size["output"] = size["width"] if size["heads"] else size["value"]
    name = re.sub(r"^the |\s+(?:matrix|tensor)$", "", wanted.lower()).replace("_", " ").strip()
    axes = next((axes.split() for words, axes in table("usual").items() if re.fullmatch(words, name)), None)
    if axes is None:
        return None
    joined = {f"{one}*{two}": size[two] and (size[one] or 1) * size[two] for one in ("heads", "kv") for two in roles}
    found = [(size | joined)[axis] for axis in axes]
    if None in found[-2:]:
        raise CannotSolve("missing", needs="a size of each axis")
    return tuple(axis for axis in found if axis is not None)


def _of_expression(exercise: Exercise, wanted: str, declared: Mapping[str, Sequence[int | str]]) -> Answer:
    """An expression of matrices; axes before the last two belong to a batch and are kept."""
    names = {name: shape for name, shape in declared.items() if _uses(wanted, name)}
    for name in re.findall(r"[A-Z](?:_[A-Za-z]+)?", wanted):
        if name not in names and name != "T" and (usual := _usual(exercise, name)) is not None:
            names[name] = tuple(str(size).replace(" ", "*") for size in usual)
    if not names:
        raise CannotSolve("not_understood", found=wanted)
    front = max((tuple(shape[:-2]) for shape in names.values()), key=len)
    if any(tuple(shape[:-2]) not in ((), front) for shape in names.values()):
        raise CannotSolve("misfit", what=wanted, why="the tensors have different axes before the last two")
    kinds = naturals(*(set(re.findall(r"(?<![A-Za-z\\])[a-z]\w*", wanted)) - {"softmax", "sqrt"}))
    for name, shape in names.items():
        kinds[name] = f"{'matrix' if len(shape) > 1 else 'vector'}[{','.join(map(str, shape[-2:]))}]"
    try:
        tree = parse(wanted.replace("@", " "), kinds)
    except MathsError as error:
        raise CannotSolve("misfit", what=wanted, why=str(error).splitlines()[0]) from None
    return _answer(sizes_of([*front, *tree.shape]), wanted)


@solver("head_width", ["width", "heads"])
def head_width(exercise: Exercise, asked: Asked) -> Answer:
    """width / heads."""
    width, heads = exercise.size("width"), exercise.size("heads")
    text, kinds = f"{width}/{heads}", naturals(width, heads)
    if not isinstance(width, int) or not isinstance(heads, int):
        return formula(text, chain("the width of a head", text), symbols=kinds)
    if heads < 1 or width % heads:
        raise CannotSolve("misfit", what=f"{heads} heads", why=f"they do not divide the width {width}")
    found = str(width // heads)
    return formula(found, chain("the width of a head", text, found), form="number", value=width // heads)


# --- blanks


@solver("blank", ["listing"])
def blank(exercise: Exercise, asked: Asked) -> Answer:
    """What belongs in a blank: the one candidate with which everything fits and everything is used."""
    text = _text(exercise)
    listing = read(text)
    declared, label = _declared(exercise), _label(asked, listing)
    questions = [each for each in (*exercise.asked, asked) if each.quantity == "blank" and each.options]
    offered = {_label(each, listing): tuple(_clean(option.text) for option in each.options) for each in questions}
    settled = _settled(text, declared, tuple(offered.items()))
    rest = _filled(text, {each: value for each, value in settled.items() if each != label})
    fitting = _best(rest, listing, label, declared, offered.get(label))
    if not fitting:
        raise CannotSolve("not_understood", found=f"what may stand in blank {label}")
    if _distinct(fitting, rest, label, declared) > 1:
        raise CannotSolve("ambiguous", what=f"blank {label}", found=", ".join(fitting[:4]))
    found = fitting[0]
    misfits, unused = _score(_filled(rest, {label: found}), declared)
    if misfits > _score(rest, declared)[0] or (unused and label not in offered):
        raise CannotSolve("misfit", what=f"blank {label}", why="no candidate fits the shapes around it")
    steps = chain(f"blank {label}: {found}")
    for option in asked.options:
        if _clean(option.text) == found:
            return formula(option.text, steps, form="choice", value=option.label)
    return formula(found, steps, form="blank", symbols=naturals(*_WORD.findall(found)))


def _text(exercise: Exercise) -> str:
    return marked("\n".join(str(given.value) for given in exercise.of_role("listing")[:1]))


def _label(asked: Asked, listing: Listing) -> str:
    wanted = asked.object or asked.label
    plain = re.sub(r"(?i)^blank\b|[\s()_]", "", wanted).lower()
    found = [label for label in listing.blanks if label.lower() == plain] or listing.blanks
    if len(found) != 1:
        raise CannotSolve("not_understood", found=f"the blank {wanted}")
    return found[0]


def _clean(text: str) -> str:
    return text.strip().strip("`$").strip()


@lru_cache(maxsize=32)
def _settled(text: str, declared: Declared, offered: tuple[tuple[str, tuple[str, ...]], ...]) -> dict[str, str]:
    """Every blank filled with what fits best, again and again until nothing changes; only those with one best."""
    listing, options = read(text), dict(offered)
    chosen: dict[str, str] = {}
    ties: dict[str, list[str]] = {}

    def others(label: str) -> str:
        return _filled(text, {other: value for other, value in chosen.items() if other != label})

    for _ in range(5):
        before = dict(chosen)
        for each in listing.blanks:
            ties[each] = _best(others(each), listing, each, declared, options.get(each))
            if ties[each] and chosen.get(each) not in ties[each]:
                chosen[each] = ties[each][0]
        if chosen == before:
            break
    return {each: chosen[each] for each in chosen if _distinct(ties[each], others(each), each, declared) == 1}


def _best(
    text: str, listing: Listing, label: str, declared: Declared, offered: tuple[str, ...] | None = None
) -> list[str]:
    """The candidates for a blank that leave least that does not fit, and then least unused."""
    own = offered or dict.fromkeys(islice(_candidates(execute(text, dict(declared)), listing, label), MOST_TRIED))
    scores = {candidate: _score(_filled(text, {label: candidate}), declared) for candidate in own}
    least = min(scores.values(), default=None)
    return [candidate for candidate, score in scores.items() if score == least]


def _filled(text: str, values: Mapping[str, str]) -> str:
    return BLANK.sub(lambda found: values.get(found[1], found[0]), text)


def _distinct(candidates: Sequence[str], text: str, label: str, declared: Declared) -> int:
    """How many candidates differ: sizes and axes with which every shape is the same are one."""
    if any(not re.fullmatch(r"(?:nn\.Linear\()?[-\d\s*/a-z_.,]+\)?", each) for each in candidates):
        return len(set(candidates))
    runs = [execute(_filled(text, {label: each}), dict(declared)) for each in candidates]
    return len({str(sorted((name, shown(shape)) for name, shape in run.shapes.items())) for run in runs})


@lru_cache(maxsize=4096)
def _score(text: str, declared: Declared) -> tuple[int, int]:
    """How much does not fit, and how much is left unused: tensors, layers, methods, the softmax."""
    run = execute(text, dict(declared))
    misfits = len(run.misfits) + sum(not _closes(run, name) for name in run.open)
    layers = [name for name, value in run.attributes.items() if getattr(value, "kind", "") == "Linear"]
    methods = [f"self.{name}" for name in _methods(run.listing, "__call__", "call")]
    unused = sum(name not in run.used for name in (*layers, *methods, *run.made))
    softmax = abs(run.softmaxes - 1) if run.products > 1 else 0
    again = sum(count - 1 for count in run.applications.values())
    return misfits, run.wasted + unused + softmax + again + 2 * run.mismatches


def _methods(listing: Listing, *without: str) -> list[str]:
    hidden = {"__init__", "forward", *without}
    return [each.name for each in listing.functions.values() if each.owner and each.name not in hidden]


def _closes(run: Run, name: str) -> bool:
    """Whether what a blank line must give can come from the input and the weights of that name."""
    shapes = [run.shapes.get(each) for each in (name, "x", f"W_{name}")]
    if None in shapes:
        return True
    axes = [(size, place) for place, shape in enumerate(shapes) for size in shape or ()]
    return all(any(run.equal(size, other) for other, there in axes if there != place) for size, place in axes)


def _candidates(run: Run, listing: Listing, label: str) -> Iterator[str]:
    """What may stand in a blank, by where it stands."""
    known = table("candidates")
    scope, where = run.scopes.get(label, ({}, ""))
    if where.startswith("shape "):
        name = where.removeprefix("shape ")
        yield from [shown(run.shapes[name])] if name in run.shapes else []
        return
    lines = (line.text for each in (listing.top, *listing.functions.values()) for line in each.body)
    line = next((text for text in lines if re.search(rf"BLANK_{re.escape(label)}(?!\w)", text)), "")
    try:
        tree = ast.parse(line)
    except SyntaxError:
        return
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    named = {getattr(each, "id", getattr(each, "attr", None)): each for each in parents}
    node = named.get(f"BLANK_{label}")
    if node is None:
        yield from _einsum_specs(run, scope, tree)
        return
    parent = parents[node]
    called = ast.unparse(parent.func).rpartition(".")[2] if isinstance(parent, ast.Call) else ""
    tensors = [each for each, value in scope.items() if isinstance(value, Tensor)]
    layers = [each for each, value in run.attributes.items() if isinstance(value, Layer)]
    methods = [f"self.{name}" for name in _methods(listing, where)]
    sizes = _size_texts(run, scope, where)
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
        yield from (each.removeprefix("self.") for each in (*layers, *methods, *run.sizes()))
    elif isinstance(node, ast.Attribute):
        yield from known["attribute"]
    elif isinstance(parent, ast.Call) and parent.func is node:
        yield from (*layers, *methods, *known["function"])
    elif isinstance(parent, ast.keyword) or called in known["by_axis"]:
        signed = isinstance(parent, ast.keyword) or bool(re.search(r"[(,=]\s*-\d", ast.unparse(parent)))
        yield from sorted(known["axis"], key=lambda axis: (axis[0] == "-") != signed)
    elif called in known["by_size"]:
        yield from sizes
    elif isinstance(parent, ast.BinOp) and not isinstance(parent.op, ast.MatMult):
        yield from (*sizes, *(f"math.sqrt({each})" for each in sizes))
    elif isinstance(parent, ast.Assign | ast.Return):
        target = ast.unparse(parent.targets[0]) if isinstance(parent, ast.Assign) else ""
        weights, out, given = (run.shapes.get(name) for name in (f"W_{target}", target, "x"))
        if where == "__init__":
            yield from _constructed(sizes[:6], target)
        elif weights is not None and out is not None and given is not None:
            yield f'torch.einsum("{_spec(run, (given, weights), out)}", x, W_{target})'
        elif weights is not None or f"W_{target}" not in scope:
            root = next((name for name in sizes if re.search(r"d_k|head_dim|d_head", name)), "")
            scale = f" / math.sqrt({root})" if root else ""
            yield from _written(known["line"], l=layers, m=methods, t=tensors, u=tensors, scale=[scale])
    else:
        yield from _written(known["value"], f=[*layers, *methods], t=tensors)


def _written(templates: Sequence[str], **names: list[str]) -> Iterator[str]:
    """Every template with every choice of names; two tensors differ."""
    for template in templates:
        used = [key for key in names if f"{{{key}}}" in template]
        for choice in product(*(names[key] for key in used)):
            put = dict(zip(used, choice, strict=True))
            if "u" not in put or put["t"] != put["u"]:
                yield template.format(**put)


def _constructed(sizes: Sequence[str], target: str) -> Iterator[str]:
    """Right-hand sides in a constructor: layers and sizes."""
    if re.search(r"W|proj|linear|fc", target):
        yield from (f"nn.Linear({a}, {b})" for a in sizes for b in sizes)
        return
    yield from sizes
    yield from (f"{a} // {b}" for a in sizes for b in sizes if a != b and "1" not in (a, b))


def _size_texts(run: Run, scope: Mapping[str, Any], where: str) -> list[str]:
    """Sizes in scope: names, then attributes, then the number of heads times a head's width."""
    names = [name for name, value in scope.items() if isinstance(value, Polynomial)]
    inside = where == "__init__"
    own = [name for name in run.sizes() if not inside or name.removeprefix("self.") not in names]
    found = [*names, *own] if inside else [*own, *names]
    heads = [name for name in found if "head" in name]
    widths = [name for name in found if re.search(r"d_k|d_v|head_dim|d_head|dim_head", name)]
    joined = [f"{a} * {b}" for a in heads for b in widths]
    return list(dict.fromkeys([*found, *joined, *(f"2 * {name}" for name in found), "1", "-1"]))


def _spec(run: Run, operands: Sequence[Shape], out: Shape) -> str:
    """The einsum of these shapes: equal sizes have one letter, the one of their name where it is free."""
    letters: dict[str, Polynomial] = {}

    def letter(size: Polynomial) -> str:
        for sign, known in letters.items():
            if run.equal(known, size):
                return sign
        free = (sign for sign in f"{str(size)[:1].lower()}abcdefghijklmnopqrstuvwxyz" if sign.isalpha())
        sign = next(sign for sign in free if sign not in letters)
        letters[sign] = size
        return sign

    return ",".join("".join(map(letter, shape)) for shape in operands) + "->" + "".join(map(letter, out))


def _einsum_specs(run: Run, scope: Mapping[str, Any], tree: ast.AST) -> Iterator[str]:
    """The subscripts of an einsum whose operands and result are known."""
    shapes = [getattr(each, "shape", None) for each in scope.get("operands", ())]
    assigned = next((node for node in ast.walk(tree) if isinstance(node, ast.Assign)), None)
    out = run.shapes.get(ast.unparse(assigned.targets[0])) if assigned is not None else None
    if shapes and None not in shapes and out is not None:
        yield _spec(run, [shape for shape in shapes if shape is not None], out)


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
        size = plain.value(ast.parse(str(change.value), mode="eval").body, {}) or size_of(str(change.value))
    except SyntaxError:
        size = size_of(str(change.value))
    if not isinstance(layer, Layer) or not isinstance(size, Polynomial):
        raise CannotSolve("not_understood", found=f"the change of {change.symbol}")
    return {name: replace(layer, **{"inputs" if change.role == "in_features" else "outputs": size})}


@solver("listing_changes", ["listing"])
def listing_changes(exercise: Exercise, asked: Asked) -> Answer:
    """What else must change: the layers and views that no longer fit, in the order in which they are met."""
    text = _text(exercise)
    if any(re.search(r"_{2,}\s*\(?\w\)?\s*_{2,}", str(given.value)) for given in exercise.of_role("listing")):
        raise CannotSolve("missing", needs="the listing without blanks, which hide what else must change,")
    plain = execute(text, dict(_declared(exercise)))
    changes = _changed_layer(exercise, asked.changes, plain)
    ((name, changed),) = changes.items()
    # Queries and keys meet in a product, so that a change of one may need the same change of the other.
    others = [value for value in plain.attributes.values() if isinstance(value, Layer) and value.name != name]
    found: dict[str, str] | None = None
    for other in (None, *(others if plain.attributes[name].outputs != changed.outputs else ())):
        together = {} if other is None else {other.name: replace(other, outputs=changed.outputs)}
        try:
            found = _repaired(text, changes | together, name)[0]
        except CannotSolve:
            continue
        for each in together.values():
            found = {each.name.removeprefix("self."): _linear(plain, each.inputs, each.outputs), **found}
        break
    if found is None:
        raise _no_repair(name)
    items = {where: formula(what, form="code") for where, what in found.items()}
    text = "; ".join(f"{where}: {what}" for where, what in found.items()) or "nothing else changes"
    steps = (chain(f"{where}: {what}") for where, what in found.items())
    return formula(text, *steps, form="words", items=items)


def _no_repair(what: str) -> CannotSolve:
    return CannotSolve("misfit", what=what, why="no change of views and layers makes the rest fit")


def _repaired(text: str, changes: Mapping[str, Layer], what: str) -> tuple[dict[str, str], Run]:
    """The fewest repairs that make a listing fit: at each view one size may change, at each layer its inputs."""
    tried = []
    for choices in product(range(4), repeat=3):
        made: dict[str, str] = {}
        run = execute(text, repair=_repair(made, iter(choices)), changes=changes)
        tried += [] if run.misfits else [(made, run)]
    if not tried:
        raise _no_repair(what)
    return min(tried, key=lambda each: len(each[0]))


def _repair(made: dict[str, str], turns: Iterator[int]) -> Callable[[Run, str, Any], Any]:
    """Note what is changed; of a view, the size whose turn it is takes what the shape has more."""

    def repair(run: Run, where: str, found: Any) -> Any:
        if isinstance(found, tuple):
            sizes, ratio = found
            place = next(turns, 0) % len(sizes)
            sizes = [size * ratio if axis == place else size for axis, size in enumerate(sizes)]
            made[f"{where} (line {run.line.number})"] = f"view({', '.join(_name(run, size) for size in sizes)})"
            return sizes
        if where == "scale":
            made[where] = f"sqrt({_name(run, found)})"
        else:
            made[where.removeprefix("self.")] = _linear(run, found, run.attributes[where].outputs)
        return None

    return repair


def _linear(run: Run, inputs: Polynomial, outputs: Polynomial) -> str:
    return f"nn.Linear({_name(run, inputs)}, {_name(run, outputs)})"


def _name(run: Run, size: Polynomial) -> str:
    """A size by its name in the listing, or as a multiple of one."""
    names = {name.removeprefix("self."): value for name, value in run.sizes().items()}
    for name, value in {**names, **run.constants}.items():
        factor = (size / value).number if value else None
        if factor is not None:
            return name if factor == 1 else f"{factor}*{name}" if factor.denominator == 1 else f"{name}//{1 / factor}"
    return str(size).replace(" ", "*").replace("key_length", run.length)
