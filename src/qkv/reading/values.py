"""What a text is as an answer: a formula, a growth class, an option, a piece of code, or none of them."""

from __future__ import annotations

import re

from ..exercises.forms.statement import closing, squeezed
from ..exercises.forms.statement import phrases as form_phrases
from ..exercises.record import Exercise
from .questions import Place, pattern, phrases
from .torn import whole

_CODE = re.compile(r"[\w.]+(?:\(.*\))?|[\w.\s*/+-]{1,40}|\[[^\[\]]*\]|-?\d+|[\w.]*\(?[\"'][\w,\s]+->\s*\w*[\"'].*")
_BIG_O = re.compile(r"(?:\\(?:mathcal|mathrm|operatorname)\s*\{\s*O\s*\}|\\Theta|[OΘ𝒪])\s*(?:\\left)?\s*\(")
_LABEL = re.compile(
    r"(?:option|choice)?\s*\(?([A-Za-z]{1,4}|\d)\)?(?:(?:\s*,|\s+and)\s*\(?[A-Za-z]{1,4}\)?)*", re.IGNORECASE
)
_TRANSPOSED = r"(?:\s*(?:ᵀ|\^\{?(?:T|\\top)\}?))?"
# An array: nested lists, a list, a tuple of numbers, or a matrix of LaTeX.
GROUP = re.compile(
    rf"\[\s*\[[^\n]*?\]\s*\]|\[[^\[\]\n]+\]{_TRANSPOSED}|\(\s*[-−]?[\d./]+(?:\s*,\s*[-−]?[\d./]+)+\s*\){_TRANSPOSED}"
    rf"|\\begin\{{[bpv]matrix\}}.*?\\end\{{[bpv]matrix\}}{_TRANSPOSED}"
)


def array_in(text: str) -> str | None:
    """The one array of a text, with its factors where it is a product; None where there are several, or it is torn."""
    found = list({match.group(): match for match in GROUP.finditer(text)}.values())
    if len(found) != 1:
        return None
    before, after = text[: found[0].start()].rstrip(" $"), text[found[0].end() :].lstrip(" $")
    if not re.search(r"[\d)}\]/*·×⋅+\-−√]$|\\(?:cdot|times|,|;)$", before) and not re.match(
        r"[/*·×⋅+^]|\\(?:cdot|times)", after
    ):
        return found[0].group()
    # An array that a factor stands before or behind is the answer only with it.
    end = re.split(r"=|≈|\\approx|:\s", text)[-1].strip(" $.")
    return end if found[0].group() in end and is_formula(end, 0) else None


def is_formula(text: str, words_allowed: int = 1) -> bool:
    """Whether a line is a formula, with no more than so many words that are not of mathematics."""
    text = re.sub(phrases()["remark"], "", re.sub(phrases()["arrow"], "", text.strip()))
    text = re.sub(r"\\(?:text|mathrm|operatorname|mathbf)\s*\{([^{}]*)\}", r" \1 ", text)
    words = list(re.findall(r"[A-Za-z]{3,}", re.sub(r"[\"'][^\"']*[\"']|\w+_\w+|\w+\.\w+", " ", text)))
    known = set(phrases()["formula_words"])
    words = [word for word in words if word.lower() not in known and word not in known]
    plain = [word for word in words if not re.fullmatch(r"[A-Z]{2,4}|[bdnhkqvDNMO]{2,6}", word)]
    return (
        len(plain) <= words_allowed
        and len(text) < 600
        and bool(re.search(r"[=\\^²√()\[\]\d]|^\$|^\w{1,3}$", text))
        and not text.endswith("?")
    )


def is_code(text: str, exercise: Exercise) -> bool:
    """Whether a text is what may stand in a blank of a listing."""
    text = named(re.sub(phrases()["given_away"], "", text.strip("` *$")), exercise)
    text = re.sub(phrases()["alternative"], "", text, flags=re.IGNORECASE).strip(" `=:")
    return (
        bool(text)
        and _CODE.fullmatch(text) is not None
        and len(re.findall(r"[A-Za-z_]\w{2,}", re.sub(r"[\"'][^\"']*[\"']", "", text))) <= 3
        and not re.search(r"[a-z]{2,} [a-z]{2,}", text)
    )


def listings(exercise: Exercise) -> str:
    """The listings of an exercise, and its text."""
    records = [exercise, *getattr(exercise, "records", {}).values()]
    given = [str(each.value) for record in records for each in record.givens if each.role == "listing"]
    return "\n".join([*dict.fromkeys(given), exercise.text])


def named(text: str, exercise: Exercise) -> str:
    """A text with the names of the listings as they are there: "d model" for d_model."""
    names = set(re.findall(r"\b[A-Za-z]+(?:_[A-Za-z0-9]+)+\b", listings(exercise)))
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<![\w]){name.replace('_', ' ')}(?!\w)", name, text)
    return text


def options(place: Place) -> dict[str, str]:
    return {squeezed(option.text).removeprefix("torch"): option.text for option in place.asked.options}


def value_of(text: str, place: Place) -> str | None:
    """The answer that a text is, as the checker reads it; None where it is none, or has more than one reading."""
    text = re.sub(phrases()["arrow"], "", text.strip())
    text = re.sub(phrases()["given_away"], "", text, flags=re.IGNORECASE).strip().strip("`").rstrip(" .,;")
    text = re.sub(r"^(?:=|:|is\b)\s*", "", re.sub(phrases()["remark"], "", text)).strip()
    if not text or text.endswith("?"):
        return None
    if place.kind in ("choice", "blank", "blanks"):
        return _chosen(text, place)
    if place.kind in ("class", "pieces") and not is_class(text):
        return None
    if place.kind != "array" and not is_formula(text):
        return None
    names = frozenset(given.symbol for given in place.exercise.givens if given.symbol)
    return whole(text, names)


def is_class(text: str) -> bool:
    """Whether a text is nothing but growth classes that are said to be equal, with a name before them at most."""
    text = re.sub(r"^\W*[A-Za-z_]{1,12}(?:\([^()=]{0,20}\))?\s*[=∈]\s*(?=\\?[A-ZΘ𝒪\\])", "", text)
    left, found = text, 0
    while mark := _BIG_O.search(left):
        end = closing(left, mark.end() - 1)
        if end < 0:
            return False
        left, found = left[: mark.start()] + left[end + 1 :], found + 1
    return found > 0 and not re.search(r"[A-Za-z\d]", re.sub(r"\\[A-Za-z]+|\\[,;!]", "", left))


def _chosen(text: str, place: Place) -> str | None:
    """One of the options, its label, or a piece of code."""
    text = named(text, place.exercise).strip("` ")
    offered = options(place)
    text = re.sub(r"^[A-Z]\s*=\s*", "", text) if re.match(r"^[A-Z]\s*=\s*[^=]", text) and place.asked.object else text
    if offered:
        chosen = next(
            (found for each in _bare(text) if (found := offered.get(squeezed(each).removeprefix("torch")))), None
        )
        label = _LABEL.fullmatch(text)
        known = {option.label.lower() for option in place.asked.options if not option.label.isdigit()}
        return text if chosen is None and label and label[1].lower() in known else chosen
    bare = [re.sub(phrases()["alternative"], "", each, flags=re.IGNORECASE).strip(" `") for each in _bare(text)]
    return next((each for each in bare if is_code(each, place.exercise)), None)


def _bare(text: str) -> list[str]:
    """A text, and what it may say without a name before and a remark behind: "shape of A: [d, k] (shared)"."""
    remark = re.sub(r"\s+\([^()]*\)\s*$", "", text)
    named = [re.split(r":\s+|\s(?:is|=|→)\s", each) for each in (text, remark)]
    ends = [pieces[-1] for pieces in named if not pattern("denied").search(" ".join(pieces[:-1]))]
    return [text, remark, *(each.strip("` .") for each in ends)]


def fits(text: str, place: Place) -> bool:
    """Whether a formula has the form of the answer to a part."""
    if place.kind == "class":
        return is_class(text)
    if place.kind == "choice":
        return squeezed(named(text, place.exercise)).removeprefix("torch") in options(place)
    if place.kind == "array":
        return GROUP.search(text) is not None
    return place.kind == "formula" and not is_class(text)


def asked_in(prompt: str, place: Place) -> int:
    """How long a name of the quantity of a part stands in a prompt; 0 for none."""
    names = [name for name in form_phrases()["names"].get(place.asked.quantity, ()) if len(name) > 5]
    found = [re.search(rf"\b{name}\b", prompt, re.IGNORECASE) for name in names]
    return max((len(each.group()) for each in found if each), default=0)


def has_other_names(text: str, place: Place) -> bool:
    """Whether a growth class has names that the question does not have; "bnd" is a product of one-letter names."""
    known = place.asked.in_terms_of
    if not known or place.kind not in ("class", "pieces"):
        return False
    long = "|".join(re.escape(name) for name in sorted(known, key=len, reverse=True) if len(name) > 1)
    text = re.sub(rf"\\[a-z]+|[A-Za-z]+\s*=|\b(?:max|min|log|O)\b{f'|{long}' if long else ''}", " ", text)
    return not set(re.findall(r"[A-Za-z]", text)) <= set(known)
