"""How operations, memory and memory traffic grow, counted from the shapes of a program; and which part leads when."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ...derivation import Derivation, Step, chain
from ...errors import MathsError, OptionError
from ...maths import parse
from ...maths import tree as t
from ..findings import CannotSolve, Finding
from ..record import Asked, Exercise
from ..solving import Also, Answer, solver
from .formulas import ONE, Terms, inverse, leading, number, plus, show, substituted, symbol, terms_of, times

# Letter of an axis to its role, the name it has by default, and names that a question uses without declaring them.
_AXES = {
    "b": ("batch", "b", "b B"),
    "n": ("length", "n", "N n T n_t n_q T_q L"),
    "m": ("keys_length", "", "n_s n_k S T_k m"),
    "d": ("width", "d", "d_model D d C E"),
    "k": ("head_width", "", "d_head d_k d_h D_k d_q"),
    "v": ("value_width", "", "M d_v D_v m"),
    "h": ("heads", "h", "h H"),
    "g": ("kv_heads", "g", "g G h_kv"),
    "f": ("feature_count", "", "C R F r m D_phi"),
    "w": ("ff_width", "", "d_ff f"),
    "s": ("window", "w", "w W k"),
    "l": ("layers", "", "L"),
}
_APPROXIMATELY = re.compile(r"\s*([A-Za-z]\w*)\s*(?:=|≈|~|\\approx|\\sim)\s*(.+?)\s*$")


@dataclass(frozen=True)
class Work:
    """One operation: what it counts, and the tensors that it reads and writes; `inner` ones may stay on the chip."""

    name: str
    operations: Terms
    reads: tuple[str, ...]
    writes: str
    group: str = ""
    inner: tuple[str, ...] = ()


@dataclass
class Program:
    """Operations on tensors whose axes are letters; sizes of the letters are formulas."""

    sizes: dict[str, Terms]
    tensors: dict[str, str] = field(default_factory=dict)
    work: list[Work] = field(default_factory=list)

    def size(self, axes: str) -> Terms:
        return times(*(self.sizes[letter] for letter in axes))

    def product(
        self, name: str, out: tuple[str, str], *operands: tuple[str, str], group: str = "", inner: str = ""
    ) -> None:
        """A contraction, einsum or a map: as many products as all of its axes together have places."""
        for tensor, axes in (*operands, out):
            self.tensors.setdefault(tensor, axes)
        letters = "".join(dict.fromkeys("".join(axes for _, axes in (*operands, out))))
        letters = letters.replace("g", "") if "h" in letters else letters  # a query head meets one key head
        reads = tuple(tensor for tensor, _ in operands)
        self.work.append(Work(name, self.size(letters), reads, out[0], group or name, tuple(inner.split())))

    def time(self, group: str = "") -> Terms:
        return plus(*(each.operations for each in self.work if group in ("", each.group)))

    def space(self) -> Terms:
        return plus(*(self.size(axes) for axes in self.tensors.values()))

    def moved(self, fused: bool) -> Terms:
        """Numbers read and written; `fused` leaves out what may stay on the chip between two operations."""
        total: Terms = {}
        for each in self.work:
            for tensor in (*each.reads, each.writes):
                if tensor in self.tensors and not (fused and tensor in each.inner):
                    total = plus(total, self.size(self.tensors[tensor]))
        return total


def axis_sizes(exercise: Exercise, asked: Asked) -> dict[str, Terms]:
    """The size of every axis by name: declared, used in the question, or usual; fixed relations are put in."""
    names: dict[str, str] = {}
    for letter, (role, _, _) in _AXES.items():
        given = exercise.given(role)
        stated = exercise.size(role)
        if given is not None and given.symbol:
            names[letter] = given.symbol
        elif isinstance(stated, str):
            names[letter] = stated
    for wanted in asked.in_terms_of:
        free = (letter for letter, (_, _, usual) in _AXES.items() if letter not in names and wanted in usual.split())
        if wanted not in names.values() and (letter := next(free, None)):
            names[letter] = wanted
    sizes = {letter: symbol(name) for letter, name in names.items()}
    for letter, (_, usual, _) in _AXES.items():
        if letter not in sizes and usual and letter != "b":
            clear = usual if usual not in names.values() else usual.upper()
            sizes[letter] = symbol(clear)
    sizes.setdefault("b", ONE)
    sizes.setdefault("m", sizes["n"])
    unwanted = bool(asked.in_terms_of) and names.get("d") not in asked.in_terms_of
    only_heads = "k" in names and (unwanted or "d" not in names)
    if only_heads and "h" in names:
        sizes["d"] = times(sizes["h"], sizes["k"])
    elif "d" in names and "h" in names:
        sizes["k"] = times(sizes["d"], inverse(sizes["h"]) or ONE)
    elif "k" in names and "d" not in names:
        sizes["d"] = sizes["k"] if "h" not in names else times(sizes["h"], sizes["k"])
    sizes.setdefault("k", sizes["d"] if "h" not in names else times(sizes["d"], inverse(sizes["h"]) or ONE))
    sizes.setdefault("v", sizes["k"])
    sizes.setdefault("w", sizes["d"])
    sizes.setdefault("l", ONE)
    return sizes


def _related(formula: Terms, exercise: Exercise) -> Terms:
    """With the definitions between sizes put in: "M = D", "d_ff = 4 d"."""
    values = {}
    for definition in exercise.definitions:
        found = _APPROXIMATELY.match(definition.text)
        used = {name for powers in formula for name, _ in powers}
        if found and found[1] in used:
            try:
                value = terms_of(parse(found[2], dict.fromkeys(re.findall(r"[A-Za-z]\w*", found[2]), "natural")))
            except MathsError:
                continue
            values[found[1]] = {powers: value[powers] for powers in value}
    try:
        return substituted(formula, values)
    except ValueError:
        return formula


def _pairs(sizes: dict[str, Terms], exercise: Exercise) -> list[tuple[str, str]]:
    """Which names never exceed which: heads divide the width, key heads are among the heads."""
    divided = [re.fullmatch(r".*=\s*(\w+)\s*/\s*(\w+)\s*", each.text) for each in exercise.definitions]
    name = {letter: next(iter(size))[0][0] for letter, size in sizes.items() if len(size) == 1 and _single(size)}
    order = [("h", "d"), ("g", "h"), ("g", "d"), ("s", "n"), ("s", "m")]
    found = [(name[low], name[high]) for low, high in order if low in name and high in name]
    return found + [(each[2], each[1]) for each in divided if each]


def _single(size: Terms) -> bool:
    ((powers, _),) = size.items()
    return len(powers) == 1 and powers[0][1] == 1


def attention(p: Program, queries: str = "n", keys: str = "m", heads: str = "h", key_heads: str = "h") -> None:
    """Scores, softmax and the weighted sum of values."""
    q, k, v = f"b{heads}{queries}k", f"b{key_heads}{keys}k", f"b{key_heads}{keys}v"
    scores = f"b{heads}{queries}{keys}"
    p.product("scores", ("scores", scores), ("Q", q), ("K", k), group="attention", inner="scores")
    p.product("softmax", ("weights", scores), ("scores", scores), group="attention", inner="scores weights")
    p.product(
        "weighted values",
        ("O", f"b{heads}{queries}v"),
        ("weights", scores),
        ("V", v),
        group="attention",
        inner="weights",
    )


def linear_attention(p: Program, projected: bool) -> None:
    """With a feature map: the sums over the keys are made once; `projected` features take a product with a matrix."""
    q, k, v = "bhnk", "bhmk", "bhmv"
    for name, of, axes in (("Q", "n", q), ("K", "m", k)):
        extra = (("projection", "kf"),) if projected else ()
        features = f"bh{of}f"
        if projected:
            p.product(f"features of {name}", (f"phi({name})", features), (name, axes), *extra, group="features")
        else:
            p.tensors.setdefault(name, axes)
            p.product(f"features of {name}", (f"phi({name})", features), (f"phi({name})", features), group="features")
    p.product("sums over the keys", ("S", "bhfv"), ("phi(K)", "bhmf"), ("V", v), group="attention")
    p.product("sum of features", ("z", "bhf"), ("phi(K)", "bhmf"), group="attention")
    p.product("output", ("O", "bhnv"), ("phi(Q)", "bhnf"), ("S", "bhfv"), group="attention")
    p.product("normaliser", ("N", "bhn"), ("phi(Q)", "bhnf"), ("z", "bhf"), group="attention")


def projections(p: Program, queries: str = "n", keys: str = "m", key_heads: str = "h", output: bool = True) -> None:
    """Queries, keys and values from tokens, and the output projection."""
    x, y = f"b{queries}d", f"b{keys}d"
    q, k, v = f"bh{queries}k", f"b{key_heads}{keys}k", f"b{key_heads}{keys}v"
    source = "X" if queries == keys else "Y"
    p.product("query projection", ("Q", q), ("X", x), ("W_q", "hdk"), group="projections")
    p.product("key projection", ("K", k), (source, y), ("W_k", f"{key_heads}dk"), group="projections")
    p.product("value projection", ("V", v), (source, y), ("W_v", f"{key_heads}dv"), group="projections")
    if output:
        p.product("output projection", ("Y_out", x), ("O", f"bh{queries}v"), ("W_o", "hvd"), group="projections")


def feed_forward(p: Program) -> None:
    p.product("first layer", ("H", "bnw"), ("X", "bnd"), ("W_1", "dw"), group="feed-forward")
    p.product("second layer", ("F", "bnd"), ("H", "bnw"), ("W_2", "wd"), group="feed-forward")


def decode_step(p: Program, key_heads: str) -> None:
    """One token a sequence, with m tokens in the cache."""
    p.sizes["1"] = ONE
    projections(p, "1", "1", key_heads)
    # The cache is read once for the scores and once for the values; the new key and value are written to it.
    p.tensors["K_new"], p.tensors["V_new"] = p.tensors.pop("K"), p.tensors.pop("V")
    p.work[:] = [replace(each, writes={"K": "K_new", "V": "V_new"}.get(each.writes, each.writes)) for each in p.work]
    attention(p, "1", "m", "h", key_heads)


def program(exercise: Exercise, asked: Asked, words: str) -> tuple[Program, str]:
    """The program that a question is about, and what to call it."""
    sizes = axis_sizes(exercise, asked)
    p = Program(sizes)
    said = exercise.structure
    variant = said.variant or ("mqa" if re.search(r"\bmqa\b|multi-?\s?query", words) else "")
    variant = variant or ("gqa" if re.search(r"\bgqa\b|group", words) or exercise.size("kv_heads") else "mha")
    key_heads = {"mqa": "", "gqa": "g"}.get(variant, "h")
    has_heads = exercise.size("heads") is not None or "h" in asked.in_terms_of or "H" in asked.in_terms_of
    heads = has_heads or re.search(r"multi-?\s?head|\bmha\b|multi-?\s?query|group", words)
    if not heads:
        sizes["h"] = ONE
    if re.search(r"cache", words):
        p.tensors = {"K": f"lb{key_heads}mk", "V": f"lb{key_heads}mv"}
        return p, "the cache"
    if re.search(r"feed-?\s?forward|\bmlp\b|\bffn\b", words):
        feed_forward(p)
        return p, "the feed-forward layer"
    if re.search(r"decod|incremental|(?:single|one|new|each) token|per token|generat", words) or said.phase == "decode":
        if exercise.given("keys_length") is None and "m" in sizes:
            sizes["m"] = sizes["n"]
        decode_step(p, key_heads)
        return p, "one step of decoding"
    if re.search(r"\bprojections?\b", words) and not re.search(r"attention|with", words):
        projections(p, key_heads=key_heads)
        return p, "the projections"
    kernel = said.similarity in ("polynomial", "feature_map", "linear", "exponential")
    naive = re.search(r"naive|direct|explicit|without (?:linear|feature|reorder)|quadratic time", words)
    if (re.search(r"linear|kernel|feature|associativ", words) or kernel) and "softmax" not in words and not naive:
        degree = exercise.size("degree")
        power = (
            degree
            if isinstance(degree, int)
            else {"quadratic": 2, "cubic": 3}.get((re.findall(r"quadratic|cubic", words) or [""])[0])
        )
        if "f" not in sizes:
            elementwise = re.search(r"elu|relu|element-?wise|component", words)
            if power is None and not elementwise and said.similarity == "polynomial":
                raise CannotSolve("missing", needs="the degree of the kernel")
            sizes["f"] = sizes["k"] if elementwise else times(*[sizes["k"]] * power) if power else symbol("C")
        linear_attention(p, bool(re.search(r"random", words)))
        return p, "attention with a feature map"
    if re.search(r"window|sliding|local", words) or "window" in said.mask:
        q, k = "bhnk", "bhmk"
        p.product("scores", ("scores", "bhns"), ("Q", q), ("K", k), group="attention", inner="scores")
        p.work[-1] = replace(p.work[-1], operations=p.size("bhnsk"))
        p.product("softmax", ("weights", "bhns"), ("scores", "bhns"), group="attention", inner="scores weights")
        p.product(
            "weighted values", ("O", "bhnv"), ("weights", "bhns"), ("V", "bhnv"), group="attention", inner="weights"
        )
        return p, "attention with a window"
    layer = re.search(r"\blayer\b|\bblock\b|transformer", words) and not re.search(r"attention", words)
    weights = exercise.of_role("query_weight", "key_weight", "value_weight", "output_weight")
    bare = re.search(r"softmax|scaled dot|without (?:the )?projection", words)
    if (
        (heads and not bare)
        or layer
        or weights
        or re.search(r"(?<!without )(?<!out the )projection|attention layer", words)
    ):
        projections(p, key_heads=key_heads)
        attention(p, key_heads=key_heads)
        if layer or re.search(r"feed", words):
            feed_forward(p)
        return p, "a layer" if layer else "multi-head attention"
    if only := re.fullmatch(
        r"(?:the )?(scores?|attention scores?|softmax|weighted (?:sum|values)(?: of values)?)", words.strip()
    ):
        attention(p)
        name = {"sc": "scores", "at": "scores", "so": "softmax", "we": "weighted values"}[only[1][:2]]
        p.work = [each for each in p.work if each.name == name]
        p.tensors = {name: p.tensors[name] for name in (*p.work[0].reads, p.work[0].writes)}
        return p, f"the {only[1]}"
    if not words or re.search(r"attention|softmax", words):
        attention(p)
        if re.search(r"flash|stream|online|block|tile", words):
            p.tensors = {name: axes for name, axes in p.tensors.items() if name not in ("scores", "weights")}
        return p, "softmax attention"
    raise CannotSolve("not_understood", found=asked.object)


def expression(exercise: Exercise, asked: Asked, text: str) -> Program:
    """The program of an expression: every product, softmax and sum in the order that it is written in."""
    sizes = axis_sizes(exercise, asked)
    text = re.sub(r"\\?phi\s*\(\s*(\w)\s*\)|φ\((\w)\)", lambda m: f"phi_{m[1] or m[2]}", text)
    types: dict[str, str] = {}
    n, m, k, v, d = (show(sizes[letter]) for letter in "nmkvd")
    f = show(sizes["f"]) if "f" in sizes else "C"
    usual = {"Q": (n, k), "K": (m, k), "V": (m, v), "X": (n, d), "W_Q": (d, k), "W_K": (d, k), "W_V": (d, v),
             "A": (n, m), "phi_Q": (n, f), "phi_K": (m, f)}  # fmt: skip
    declared = {given.symbol: given.shape for given in exercise.givens if given.symbol and given.shape}
    for name in dict.fromkeys(re.findall(r"[A-Za-z](?:\w*)", text)):
        shape = declared.get(name) or usual.get(name) or usual.get(name.upper() if name.startswith("W") else "")
        if shape is not None:
            types[name] = f"{'matrix' if len(shape) == 2 else 'vector'}[{','.join(map(str, shape))}]"
        elif name not in ("softmax", "sqrt", "T", "exp", "relu"):
            types[name] = "natural"
    try:
        tree = parse(text, types)
    except (MathsError, OptionError) as error:
        raise CannotSolve("misfit", what=text, why=str(error).splitlines()[0]) from None
    p = Program({})

    def visit(node: t.Node) -> str:
        if isinstance(node, t.Transpose):
            return visit(node.body)
        below = [visit(child) for child in t.children(node) if child.shape]
        size = _shape_size(node.shape)
        if isinstance(node, t.Symbol):
            p.tensors[node.name] = _letter(p, size)
            return node.name
        name = f"step {len(p.work) + 1}"
        p.tensors[name] = _letter(p, size)
        operations = size
        if isinstance(node, t.Contract):
            operations = times(size, _shape_size((node.left.shape[-1],)))
        p.work.append(Work(_words(node), operations, tuple(below), name, _words(node)))
        return name

    visit(tree)
    return p


def _letter(p: Program, size: Terms) -> str:
    letter = chr(0x100 + len(p.sizes))
    p.sizes[letter] = size
    return letter


def _words(node: t.Node) -> str:
    return {t.Contract: "product", t.Call: getattr(node, "name", "function")}.get(type(node), "entry by entry")


def _shape_size(shape: Iterable[int | str]) -> Terms:
    found = ONE
    for size in shape:
        found = times(found, number(size) if isinstance(size, int) else size_terms(size))
    return found


def size_terms(text: str) -> Terms:
    """A size such as "n+1" or "d/h" as a formula."""
    return terms_of(
        parse(text.replace("//", "/").replace("*", " "), dict.fromkeys(re.findall(r"[^\W\d]\w*", text), "natural"))
    )


def _counted(exercise: Exercise, asked: Asked) -> tuple[Program, str]:
    words = asked.object.lower().strip()
    listing = exercise.given("listing")
    if listing is not None and re.fullmatch(r"|(?:the )?(?:listing|code)|total|line \d+", words):
        return listed(exercise, asked), "the listing"
    if re.search(r"\^\s*\{?\\?T|ᵀ|softmax\s*\(|@|phi\s*\(|φ\(|^[A-Z](?:_\w)? \(?[A-Z](?:_\w)?\b", asked.object):
        return expression(exercise, asked, asked.object), "the expression"
    return program(exercise, asked, words)


def listed(exercise: Exercise, asked: Asked) -> Program:
    """The program of a listing, a line an operation."""
    from .tensors import execute

    given = exercise.given("listing")
    assert given is not None
    sizes = axis_sizes(exercise, asked)
    text = {letter: show(size).replace(" ", "*") for letter, size in sizes.items()}
    # A method without its class: tokens are as wide as the model, one sequence unless a batch is named.
    usual = {"q": "bnd", "k": "bmd", "v": "bmd", "x": "bnd", "query": "bnd", "key": "bmd", "value": "bmd"}
    known = (
        {name: tuple(text[axis] for axis in axes) for name, axes in usual.items()}
        if "self." in str(given.value)
        else {}
    )
    known |= {each.symbol: each.shape for each in exercise.givens if each.symbol and each.shape}
    heads = {f"self.{name}": sizes["h"] for name in ("n_heads", "num_heads", "h", "heads", "nhead", "n_head")}
    run = execute(str(given.value), known, attributes=heads)
    p = Program({})
    for line in run.lines:
        name = f"line {line.number}"
        for tensor, size in line.tensors.items():
            p.tensors[tensor] = _letter(p, size)
        if line.operations:
            p.work.append(Work(name, line.operations, (), line.target, name))
            p.tensors.setdefault(line.target, _letter(p, ONE))
    if not p.work:
        raise CannotSolve("not_understood", found="a listing whose shapes are not known")
    return p


def _class(formula: Terms, exercise: Exercise, asked: Asked, p: Program) -> str:
    reduced = leading(_related(formula, exercise), _pairs(p.sizes, exercise))
    sign = "Theta" if re.search(r"Θ|\\Theta|\btheta\b", asked.text) else "O"
    return f"{sign}({show(reduced)})"


def _solved(exercise: Exercise, asked: Asked, which: str) -> Answer:
    p, what = _counted(exercise, asked)
    fused = what == "one step of decoding" or "scores" not in p.tensors
    total = {"time": p.time, "space": p.space, "moved": lambda: p.moved(fused)}[which]()
    if not total:
        raise CannotSolve("not_understood", found=f"{what} has no operations to count")
    text = _class(total, exercise, asked, p)
    also: tuple[Also, ...] = ()
    assumed: tuple[Finding, ...] = ()
    if which == "moved" and re.search(r"flash|tile", asked.object):
        raise CannotSolve("missing", needs="the size of the memory on the chip")
    if fused and which == "moved" and (other := _class(p.moved(fused=False), exercise, asked, p)) != text:
        also = (Also(other, other, "scores and weights written to memory"),)
        assumed = (Finding("assumed", {"convention": "whether scores go through memory", "value": "that they do not"}),)
    if what == "softmax attention" and "softmax" not in asked.object and which != "moved":
        wider = Program(p.sizes)
        projections(wider)
        attention(wider)
        other = _class(wider.time() if which == "time" else wider.space(), exercise, asked, wider)
        also = (Also(other, other, "the projections counted"),) if other != text else ()
    return Answer(text, text, "class", symbols=_symbols(total), also=also, assumed=assumed,
                  derivation=_steps(p, total, text, which, exercise))  # fmt: skip


def _symbols(formula: Terms) -> dict[str, str]:
    return {name: "natural" for powers in formula for name, _ in powers}


def _steps(p: Program, total: Terms, text: str, which: str, exercise: Exercise) -> Derivation:
    chains: list[tuple[Step, ...]] = []
    if which == "time":
        for each in p.work:
            factors = show(_related(each.operations, exercise))
            chains.append(chain(f"{each.name}: {factors}", factors, reason="all sizes of its axes, multiplied"))
    elif which == "space":
        chains += [chain(f"{name}: {show(_related(p.size(axes), exercise))}") for name, axes in p.tensors.items()]
    sign = text.partition("(")[0]
    related = _related(total, exercise)
    kept = leading(related, _pairs(p.sizes, exercise))
    # Terms that are left out only because heads are at most the width have no place in a chain of equal classes.
    plain = {each: by for each, by in related.items() if each in kept or each not in leading({**kept, each: by})}
    sums = f"{sign}({show(plain)})"
    reason = "constants and smaller terms are left out" + ("; heads are at most the width" if plain != related else "")
    chains.append(chain("together", *dict.fromkeys((sums, text)), reason=reason))
    return Derivation.of(*chains, symbols=_symbols(total))


@solver("growth_time")
def growth_time(exercise: Exercise, asked: Asked) -> Answer:
    """The class of the number of operations."""
    return _solved(exercise, asked, "time")


@solver("growth_space")
def growth_space(exercise: Exercise, asked: Asked) -> Answer:
    """The class of what is stored, inputs and results of every operation included."""
    return _solved(exercise, asked, "space")


@solver("growth_moved")
def growth_moved(exercise: Exercise, asked: Asked) -> Answer:
    """The class of what is read from and written to memory."""
    return _solved(exercise, asked, "moved")


@solver("growth_lines")
def growth_lines(exercise: Exercise, asked: Asked) -> Answer:
    """The class of every operation, by its name or its line."""
    p, _ = _counted(exercise, asked)
    if wanted := re.search(r"line\s*(\d+)", asked.object):
        p.work = [each for each in p.work if each.name == f"line {wanted[1]}"]
    items = {}
    for each in p.work:
        text = _class(each.operations, exercise, asked, p)
        items[each.name] = Answer(text, text, "class", symbols=_symbols(each.operations))
    if not items:
        raise CannotSolve("not_understood", found=asked.object)
    text = "; ".join(f"{name}: {item.text}" for name, item in items.items())
    alone = next(iter(items.values())) if len(items) == 1 else None
    return Answer(alone.text if alone else text, text, "class", items=items,
                  symbols={name: kind for item in items.values() for name, kind in item.symbols.items()})  # fmt: skip


_LARGE = r"(?:very )?(?:large|long|wide|big|huge|much larger|dominates)"
_SMALL = r"(?:very )?(?:small|short|narrow|few|little|much smaller)"
_OF_WIDTH = r"(?:d_?\{?model\}?|width|dimension\w*|hidden size|model|embedding\w*|\bd\b|\bD\b)"
_OF_LENGTH = r"(?:sequences?|contexts?|lengths?|inputs?|\bn\b|\bN\b|\bT\b|prompts?|caches?)"


def regime(text: str) -> tuple[int, int]:
    """How width and length are said to be: 1 for large, -1 for small, 0 for neither.

    >>> regime("width large, sequences short"), regime("n >> d")
    ((1, -1), (-1, 1))
    """
    compared = re.search(rf"({_OF_WIDTH}|{_OF_LENGTH})\s*(>>|≫|\\gg|<<|≪|\\ll|>|<)\s*({_OF_WIDTH}|{_OF_LENGTH})", text)
    if compared:
        width_first = re.fullmatch(_OF_WIDTH, compared[1]) is not None
        larger_first = compared[2] in (">>", "≫", r"\gg", ">")
        return (1, -1) if width_first == larger_first else (-1, 1)
    found = []
    clauses = re.split(r"[,;]|\b(?:but|and|while|with|when)\b", text)
    for of in (_OF_WIDTH, _OF_LENGTH):
        senses = {value for clause in clauses if re.search(of, clause, re.IGNORECASE)
                  for words, value in ((_LARGE, 1), (_SMALL, -1)) if re.search(rf"\b{words}\b", clause)}  # fmt: skip
        found.append(senses.pop() if len(senses) == 1 else 0)
    if found == [0, 0]:
        found = [1 if re.search(r"\bwide\b", text) else 0, 1 if re.search(r"\blong\b", text) else 0]
    return found[0], found[1]


@solver("bottleneck")
def bottleneck(exercise: Exercise, asked: Asked) -> Answer:
    """The operations whose terms lead in the regime that is asked about."""
    width, length = regime(asked.object or asked.text)
    if (width, length) == (0, 0) or width == length:
        raise CannotSolve("not_understood", found=f"the regime {asked.object}")
    sizes = axis_sizes(exercise, asked)
    p = Program(sizes)
    if exercise.size("heads") is None and exercise.size("head_width") is None:
        sizes["h"] = ONE
    if exercise.structure.phase == "decode":
        decode_step(p, {"mqa": "", "gqa": "g"}.get(exercise.structure.variant or "", "h"))
    else:
        projections(p)
        attention(p)
    if re.search(r"feed", f"{asked.object} {asked.text}"):
        feed_forward(p)
    weight = {**_powers(sizes["d"], width), **_powers(sizes["n"], length), **_powers(sizes["m"], length)}
    groups = list(dict.fromkeys(each.group for each in p.work))

    def height(formula: Terms) -> int:
        return max(int(sum(weight.get(name, 0) * power for name, power in powers)) for powers in formula)

    heights = {group: height(p.time(group)) for group in groups}
    best = [group for group in groups if heights[group] == max(heights.values())]
    if len(best) == len(groups):
        raise CannotSolve("not_understood", found=f"the regime {asked.object}")
    named = {"projections": "the projections of queries, keys, values and output",
             "attention": "the scores and the weighted sum of values",
             "feed-forward": "the feed-forward layer"}  # fmt: skip
    classes = {group: _class(p.time(group), exercise, asked, p) for group in groups}
    text = " and ".join(f"{named[group]}, {classes[group]}" for group in best)
    chosen = _option(asked, best)
    steps = [chain(f"{named[group]}: {classes[group]}") for group in groups]
    return Answer(
        chosen or text, chosen or tuple(best), "choice" if chosen else "words", derivation=Derivation.of(*steps)
    )


def _powers(size: Terms, sense: int) -> dict[str, int]:
    """Large sizes count twice, others once or not at all; heads do not grow."""
    large = {1: 2, 0: 1, -1: 0}[sense]
    return {name: large for powers in size for name, power in powers if power > 0}


def _option(asked: Asked, best: list[str]) -> str:
    """The label of the one option that names what leads."""
    cues = {"projections": r"projection|linear layer|W_", "attention": r"score|QK|Q K|attention matrix|weighted",
            "feed-forward": r"feed|mlp|ffn"}  # fmt: skip
    fitting = [each.label for each in asked.options if re.search(cues[best[0]], each.text, re.IGNORECASE)]
    return fitting[0] if len(fitting) == 1 else ""
