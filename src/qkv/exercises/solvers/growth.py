"""How operations, memory and memory traffic grow, counted from the shapes of a program; and which part leads when."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ...cost.polynomial import Polynomial
from ...derivation import chain
from ...errors import MathsError, OptionError
from ...maths import parse
from ...maths import tree as t
from ..findings import CannotSolve
from ..record import Asked, Exercise
from ..solving import Also, Answer, solver
from .formulas import ONE, as_polynomial, assumed, formula, leading, naturals, product, table
from .tensors import execute, sizes_of

_HEADS = re.compile(r"<heads>|multi-?\s?head|\bmha\b|multi-?\s?query|group")
_NOTHING = Polynomial({})


@dataclass(frozen=True)
class Work:
    """One operation: what it counts, and the tensors that it reads and writes."""

    name: str
    operations: Polynomial
    tensors: tuple[str, ...] = ()
    group: str = ""


@dataclass
class Program:
    """Operations on tensors whose axes are letters with sizes."""

    sizes: dict[str, Polynomial] = field(default_factory=dict)
    called: str = ""
    tensors: dict[str, Polynomial] = field(default_factory=dict)
    work: list[Work] = field(default_factory=list)

    def add(self, *names: str, key_heads: str = "h") -> None:
        """Operations of the table: each counts as many products as all of its axes together have places."""
        for name in names:
            for line in table("operations")[name]:
                tensors = re.findall(r"(\w+(?:\(\w\))?)\[(\w+)\]", line)
                axes = {tensor: letters.replace("g", key_heads) for tensor, letters in tensors}
                for tensor, letters in axes.items():
                    self.tensors.setdefault(tensor, self.size(letters))
                letters = set("".join(axes.values()))
                # A query head meets one key head, and a query some keys of a window.
                letters -= {"g"} if "h" in letters else set()
                letters -= {"m"} if "s" in letters else set()
                if "->" in line:
                    used = tuple(tensor for tensor, _ in tensors)
                    self.work.append(Work(line.partition(":")[0], self.size(letters), used, name.partition("_")[0]))

    def size(self, letters: Iterable[str]) -> Polynomial:
        return product(self.sizes[letter] for letter in letters)

    def time(self, group: str = "") -> Polynomial:
        return sum((each.operations for each in self.work if group in ("", each.group)), _NOTHING)

    def space(self) -> Polynomial:
        return sum(self.tensors.values(), _NOTHING)

    def moved(self, fused: bool) -> Polynomial:
        """Numbers read and written; `fused` leaves out what may stay on the chip between two operations."""
        hidden = ("scores", "weights") if fused else ()
        names = [name for each in self.work for name in each.tensors if name not in hidden]
        return sum((self.tensors.get(name, _NOTHING) for name in names), _NOTHING)


def axis_sizes(exercise: Exercise, asked: Asked) -> dict[str, Polynomial]:
    """The size of every axis by name: declared, used in the question, or usual; fixed relations are put in."""
    axes, names = table("axes"), {}
    for letter, (role, _, _) in axes.items():
        given, stated = exercise.given(role), exercise.size(role)
        if name := given.symbol if given is not None and given.symbol else stated if isinstance(stated, str) else "":
            names[letter] = name
    for wanted in asked.in_terms_of:
        free = (letter for letter, (_, _, usual) in axes.items() if letter not in names and wanted in usual.split())
        if wanted not in names.values() and (letter := next(free, None)):
            names[letter] = wanted
    usual = {letter: name if name not in names.values() else name.upper() for letter, (_, name, _) in axes.items()}
    sizes = {letter: Polynomial.name(name) for letter, name in {**usual, **names}.items() if name}
    heads = sizes["h"] if "h" in names else ONE
    unwanted = bool(asked.in_terms_of) and names.get("d") not in asked.in_terms_of
    if "k" in names and ("d" not in names or (unwanted and "h" in names)):
        sizes["d"] = heads * sizes["k"]
    elif "k" not in names or "h" in names:
        sizes["k"] = sizes["d"] / heads
    same = {"m": sizes["n"], "v": sizes["k"], "w": sizes["d"]}
    return {"b": ONE, "l": ONE, **same, **sizes}


def program(exercise: Exercise, asked: Asked, words: str) -> Program:
    """The program that a question is about."""
    sizes, said = axis_sizes(exercise, asked), exercise.structure
    heads = exercise.size("heads") is not None or {"h", "H"} & set(asked.in_terms_of)
    weight = exercise.of_role("query_weight", "key_weight", "value_weight", "output_weight")
    marks = {"window": "window" in said.mask, "heads": heads, "weight": weight, said.phase: said.phase}
    marks |= {said.similarity: said.similarity != "softmax"}
    words = f"{words} {' '.join(f'<{mark}>' for mark, holds in marks.items() if holds)}"
    variant = said.variant or ("mqa" if re.search(r"\bmqa\b|multi-?\s?query", words) else "")
    variant = variant or ("gqa" if re.search(r"\bgqa\b|group", words) or exercise.size("kv_heads") else "mha")
    if not _HEADS.search(words):
        sizes["h"] = ONE
    for entry in table("programs"):
        if re.search(entry["words"], words) and not re.search(entry.get("unless", r"(?!)"), words):
            break
    else:
        raise CannotSolve("not_understood", found=asked.object)
    if "attention_linear" in entry["operations"] and "f" not in sizes:
        sizes["f"] = _features(exercise, words, sizes["k"])
    found = Program(sizes, entry["called"])
    found.add(*entry["operations"], key_heads={"mqa": "", "gqa": "g"}.get(variant, "h"))
    if "only" in entry:
        found.work = [each for each in found.work if each.name == entry["only"]]
        found.tensors = {name: found.tensors[name] for name in found.work[0].tensors}
    for name in entry.get("not_stored", ()):
        del found.tensors[name]
    return found


def _features(exercise: Exercise, words: str, width: Polynomial) -> Polynomial:
    """The number of features of a kernel, from its degree."""
    degree = exercise.size("degree")
    named = {"quadratic": 2, "cubic": 3}
    power = degree if isinstance(degree, int) else next((named[name] for name in named if name in words), None)
    if re.search(r"elu|relu|element-?wise|component", words):
        return width
    if power is None and exercise.structure.similarity == "polynomial":
        raise CannotSolve("missing", needs="the degree of the kernel")
    return width**power if power else Polynomial.name("C")


def expression(exercise: Exercise, asked: Asked) -> Program:
    """The program of an expression: every product, softmax and sum in the order that it is written in."""
    sizes = axis_sizes(exercise, asked)
    heads, text = _heads_of(exercise, asked, sizes["h"])
    text = re.sub(r"\\?phi\s*\(\s*(\w)\s*\)|φ\((\w)\)", lambda m: f"phi_{m[1] or m[2]}", text)
    letters = {letter: str(size) for letter, size in {"f": Polynomial.name("C"), **sizes}.items()}
    usual = {name: [letters[axis] for axis in axes] for name, axes in table("expression").items()}
    declared = {given.symbol: given.shape for given in exercise.givens if given.symbol and given.shape}
    types: dict[str, str] = {}
    for name in dict.fromkeys(re.findall(r"[A-Za-z]\w*", text)):
        shape = declared.get(name) or usual.get(name) or usual.get(name.upper() if name.startswith("W") else "")
        if shape is not None:
            types[name] = f"{'matrix' if len(shape) == 2 else 'vector'}[{','.join(map(str, shape))}]"
        elif name not in ("softmax", "sqrt", "T", "exp", "relu"):
            types[name] = "natural"
    try:
        tree = parse(text, types)
    except (MathsError, OptionError) as error:
        raise CannotSolve("misfit", what=text, why=str(error).splitlines()[0]) from None
    found = Program(called="the expression")

    def times(node: t.Node) -> Polynomial:
        """How often there is such a tensor: for every sequence, unless it is a weight, and for every head, unless X."""
        names = {each.name for each in t.walk(node) if isinstance(each, t.Symbol)} - declared.keys()
        batch = sizes["b"] if any(not name.startswith("W") for name in names) else ONE
        return batch * (heads if names - {"X"} else ONE)

    def visit(node: t.Node) -> None:
        for child in t.children(node):
            if child.shape:
                visit(child)
        size = product([times(node), *sizes_of(node.shape)])
        if isinstance(node, t.Symbol):
            found.tensors[node.name] = size
        elif not isinstance(node, t.Transpose):
            inner = sizes_of(node.left.shape[-1:]) if isinstance(node, t.Contract) else ()
            words = {t.Contract: "product", t.Call: getattr(node, "name", "")}.get(type(node), "entry by entry")
            found.work.append(Work(words, product([size, *inner])))
            found.tensors[f"step {len(found.work)}"] = size

    visit(tree)
    return found


def _heads_of(exercise: Exercise, asked: Asked, heads: Polynomial) -> tuple[Polynomial, str]:
    """The number of heads that an expression is counted for, and the expression without the words that say so."""
    known, text = table("counted_heads"), asked.object
    said = {name: re.search(known[name], f"{asked.text} {text}", re.IGNORECASE) for name in ("one", "all")}
    for words in known.values():
        text = re.sub(words, " ", text, flags=re.IGNORECASE)
    declared = {given.symbol for given in exercise.givens if given.shape}
    if exercise.size("heads") in (None, 1) or declared >= set(re.findall(r"\b[QKV]\b", text)):
        return ONE, text.strip()
    if bool(said["one"]) == bool(said["all"]):
        raise CannotSolve("missing", needs="whether one head or all heads are counted")
    return ONE if said["one"] else heads, text.strip()


def listed(exercise: Exercise, asked: Asked, text: str) -> Program:
    """The program of a listing, a line an operation."""
    sizes = axis_sizes(exercise, asked)
    known: dict[str, Any] = {}
    if "self." in text:  # a method without its class: tokens are as wide as the model
        usual = {"q": "bnd", "k": "bmd", "v": "bmd", "x": "bnd", "query": "bnd", "key": "bmd", "value": "bmd"}
        known = {name: [str(sizes[axis]).replace(" ", "*") for axis in axes] for name, axes in usual.items()}
    known |= {each.symbol: each.shape for each in exercise.givens if each.symbol and each.shape}
    heads = {f"self.{name}": sizes["h"] for name in ("n_heads", "num_heads", "h", "heads", "nhead", "n_head")}
    found = Program(called="the listing")
    for line in execute(text, known, attributes=heads).lines:
        found.tensors |= line.tensors
        if line.operations:
            found.work.append(Work(f"line {line.number}", line.operations))
    if not found.work:
        raise CannotSolve("not_understood", found="a listing whose shapes are not known")
    return found


def _counted(exercise: Exercise, asked: Asked) -> Program:
    words = asked.object.lower().strip()
    listing = exercise.given("listing")
    if listing is not None and re.fullmatch(r"|(?:the )?(?:listing|code)|total|line \d+", words):
        return listed(exercise, asked, str(listing.value))
    if re.search(r"\^\s*\{?\\?T|ᵀ|softmax\s*\(|@|phi\s*\(|φ\(|^[A-Z](?:_\w)? \(?[A-Z](?:_\w)?\b", asked.object):
        return expression(exercise, asked)
    return program(exercise, asked, words)


def _names(exercise: Exercise, p: Program, total: Polynomial) -> dict[str, str]:
    """The names of an answer: its sizes, and others that the question has for them, by definitions and shapes."""
    width = p.sizes.get("k", ONE)
    found = naturals(*sorted(total.free_symbols | width.free_symbols))
    shapes = " ".join(str(given.value) for given in exercise.of_role("listing"))
    widths = [name for name in re.findall(r"\[[\w+, ]+, ?([qkv])\]", shapes) if name not in found]
    others = {name: str(width) for name in widths if p.called == "one step of decoding"}
    for name, value in _defined(exercise):
        if name not in others and set(re.findall(r"[A-Za-z]\w*", value)) <= total.free_symbols - {name}:
            others[name] = value
    return found | {name: f"natural = {value}" for name, value in others.items()}


def _defined(exercise: Exercise) -> Iterator[tuple[str, str]]:
    """Names that definitions say to be equal to something: "M ≈ D", "d_ff = 4 d"."""
    for definition in exercise.definitions:
        found = re.match(r"\s*([A-Za-z]\w*)\s*(?:=|≈|~|\\approx|\\sim)\s*(.+?)\s*$", definition.text)
        if found:
            yield found[1], found[2]


def _reduced(total: Polynomial, exercise: Exercise, p: Program) -> tuple[Polynomial, Polynomial]:
    """A count with the definitions between sizes put in, and its leading terms."""
    values = {}
    for name, value in _defined(exercise):
        if name in total.free_symbols:
            try:
                values[name] = as_polynomial(parse(value, naturals(*re.findall(r"[A-Za-z]\w*", value))))
            except MathsError:
                continue
    # Heads divide the width, key heads are among the heads; so is what another size is divided by.
    names = {letter: str(size) for letter, size in p.sizes.items() if len(size.terms) == 1}
    pairs = [(names[low], names[high]) for low, high in ("hd", "gh", "gd", "sn", "sm") if {low, high} <= names.keys()]
    divided = [re.fullmatch(r".*=\s*(\w+)\s*/\s*(\w+)\s*", each.text) for each in exercise.definitions]
    related = Polynomial.of(total.substituted(values))
    return related, leading(related, [*pairs, *((each[2], each[1]) for each in divided if each)])


def _class(total: Polynomial, exercise: Exercise, asked: Asked, p: Program) -> str:
    sign = "Theta" if re.search(r"Θ|\\Theta|\btheta\b", asked.text) else "O"
    return f"{sign}({_reduced(total, exercise, p)[1]})"


# What is counted: operations; what is stored, inputs and results of every operation included; what is read and written.
_COUNTS: dict[str, Callable[[Program, bool], Polynomial]] = {
    "growth_time": lambda p, fused: p.time(),
    "growth_space": lambda p, fused: p.space(),
    "growth_moved": Program.moved,
}


def growth(exercise: Exercise, asked: Asked) -> Answer:
    """The class of a count."""
    if asked.quantity == "growth_moved" and re.search(r"flash|tile", asked.object):
        raise CannotSolve("missing", needs="the size of the memory on the chip")
    exercise, count = _without_projections(exercise, asked), _COUNTS[asked.quantity]
    p = _counted(exercise, asked)
    fused = p.called == "one step of decoding" or "scores" not in p.tensors
    total = count(p, fused)
    if not total:
        raise CannotSolve("not_understood", found=f"{p.called} has no operations to count")
    text = _class(total, exercise, asked, p)
    fields: dict[str, Any] = {}
    if (other := _class(count(p, False), exercise, asked, p)) != text:
        fields["also"] = (Also(other, other, "scores and weights written to memory"),)
        fields["assumed"] = assumed("whether scores go through memory", "that they do not")
    if p.called == "softmax attention" and asked.quantity != "growth_moved":
        wider = Program(p.sizes)
        wider.add("projections", "attention")
        other = _class(count(wider, False), exercise, asked, wider)
        fields["also"] = (Also(other, other, "the projections counted"),) if other != text else ()
    chains = []
    for each in p.work if asked.quantity == "growth_time" else ():
        factors = str(_reduced(each.operations, exercise, p)[0])
        chains.append(chain(f"{each.name}: {factors}", factors, reason="all sizes of its axes, multiplied"))
    if asked.quantity == "growth_space":
        chains = [chain(f"{name}: {_reduced(size, exercise, p)[0]}") for name, size in p.tensors.items()]
    related, kept = _reduced(total, exercise, p)
    # Terms that are left out only because heads are at most the width have no place in a chain of equal classes.
    terms = [Polynomial({powers: factor}) for powers, factor in related.terms.items()]
    plain = sum((term for term in terms if leading(kept + term) == kept), _NOTHING)
    reason = "constants and smaller terms are left out" + ("; heads are at most the width" if plain != related else "")
    chains.append(chain("together", *dict.fromkeys((f"{text.partition('(')[0]}({plain})", text)), reason=reason))
    return formula(text, *chains, symbols=_names(exercise, p, total), form="class", **fields)


for _quantity in _COUNTS:
    solver(_quantity)(growth)


@solver("growth_lines")
def growth_lines(exercise: Exercise, asked: Asked) -> Answer:
    """The class of every operation, by its name or its line."""
    p = _counted(exercise, asked)
    wanted = re.search(r"line\s*(\d+)", asked.object)
    items = {}
    for each in p.work:
        if wanted is None or each.name == f"line {wanted[1]}":
            symbols = naturals(*each.operations.free_symbols)
            items[each.name] = formula(_class(each.operations, exercise, asked, p), symbols=symbols, form="class")
    if not items:
        raise CannotSolve("not_understood", found=asked.object)
    found = Answer.joined(items, ": ", form="class")
    return replace(found, text=next(iter(items.values())).text) if len(items) == 1 else found


def regime(text: str) -> tuple[int, int]:
    """How width and length are said to be: 1 for large, -1 for small, 0 for neither.

    >>> regime("width large, sequences short"), regime("n >> d")
    ((1, -1), (-1, 1))
    """
    known = table("regime")
    either = f"({known['width']}|{known['length']})"
    if compared := re.search(rf"{either}\s*(>>|≫|\\gg|<<|≪|\\ll|>|<)\s*{either}", text):
        width_first = re.fullmatch(known["width"], compared[1]) is not None
        return (1, -1) if width_first == (compared[2] in (">>", "≫", r"\gg", ">")) else (-1, 1)
    found = []
    clauses = re.split(r"[,;]|\b(?:but|and|while|with|when)\b", text)
    for of in ("width", "length"):
        about = [clause for clause in clauses if re.search(known[of], clause, re.IGNORECASE)]
        senses = {value for clause in about for words, value in (("large", 1), ("small", -1))
                  if re.search(rf"\b{known[words]}\b", clause)}  # fmt: skip
        found.append(senses.pop() if len(senses) == 1 else 0)
    if found == [0, 0]:
        found = [int(bool(re.search(rf"\b{word}\b", text))) for word in ("wide", "long")]
    return found[0], found[1]


def _without_projections(exercise: Exercise, asked: Asked) -> Exercise:
    """Without weight matrices whose sizes the class may not name: it is asked of attention alone."""
    weights = [given for given in exercise.givens if given.role.endswith("_weight") and given.shape]
    sizes = {str(size) for given in weights for size in given.shape or ()}
    if not asked.in_terms_of or sizes <= {*asked.in_terms_of}:
        return exercise
    kept = (given for given in exercise.givens if given not in weights and given.role not in ("tokens", "context"))
    return exercise.model_copy(update={"givens": tuple(kept)})


@solver("bottleneck")
def bottleneck(exercise: Exercise, asked: Asked) -> Answer:
    """The operations whose terms lead in the regime that is asked about."""
    width, length = regime(asked.object or asked.text)
    p = Program(axis_sizes(exercise, asked))
    if exercise.size("heads") is None and exercise.size("head_width") is None:
        p.sizes["h"] = ONE
    if exercise.structure.phase == "decode":
        key_heads = {"mqa": "", "gqa": "g"}.get(exercise.structure.variant or "", "h")
        p.add("projections_decode", "attention_decode", key_heads=key_heads)
    else:
        p.add("projections", "attention")
    if re.search(r"feed", f"{asked.object} {asked.text}"):
        p.add("feed-forward")
    # Large sizes count twice, others once or not at all; heads do not grow.
    weight: dict[str, int] = {}
    for letter, sense in (("d", width), ("n", length), ("m", length)):
        weight |= {name: sense + 1 for powers in p.sizes[letter].terms for name, power in powers if power > 0}
    heights: dict[str, int] = {}
    for group in dict.fromkeys(each.group for each in p.work):
        terms = [sum(weight.get(name, 0) * power for name, power in powers) for powers in p.time(group).terms]
        heights[group] = max(terms)
    best = [group for group, height in heights.items() if height == max(heights.values())]
    if width == length or len(best) == len(heights):
        raise CannotSolve("not_understood", found=f"the regime {asked.object}")
    known, classes = table("leading"), {group: _class(p.time(group), exercise, asked, p) for group in heights}
    steps = [chain(f"{known[group]['called']}: {classes[group]}") for group in heights]
    cue = known[best[0]]["option"]
    fitting = [each.label for each in asked.options if re.search(cue, each.text, re.IGNORECASE)]
    if len(fitting) == 1:
        return formula(fitting[0], *steps, form="choice")
    text = " and ".join(f"{known[group]['called']}, {classes[group]}" for group in best)
    return formula(text, *steps, form="words", value=tuple(best))
