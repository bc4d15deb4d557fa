"""Characters and their source positions; canonical names, and where a name ends."""

import pytest

from qkv.errors import Unreadable
from qkv.maths.parsing import naming
from qkv.maths.parsing.naming import CleanText
from qkv.maths.parsing.parse import parse

S = {"x": "scalar", "alpha": "scalar", "A": "matrix[d,d]", "u": "vector[d]", "E": "scalar"}


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("𝐱", "x"),
        ("𝑥", "x"),
        ("𝔸", "A"),
        ("𝒩", "N"),
        ("ℎ", "h"),
        ("ℂ", "C"),
        ("𝟐", "2"),
        ("𝟡", "9"),
        ("𝛂", "\\alpha "),
        ("𝜎", "\\sigma "),
        ("𝚺", "\\Sigma "),
        ("𝛛", "\\partial "),
        ("𝛁", "\\nabla "),
        ("x²", "x^{2}"),
        ("x⁻¹²", "x^{-12}"),
        ("xᵢⱼ", "x_{ij}"),
        ("x₁₀y", "x_{10}y"),
        ("x₁²", "x_{1}^{2}"),
        ("½", "\\frac{1}{2}"),
        ("𝟏", "\\mathbf{1}"),
        ("ℝ", "\\mathbb{R}"),
        ("ℕ", "\\mathbb{N}"),
        ("a~ b", "a~ b"),
    ],
)
def test_what_is_made_of_a_character(text, clean) -> None:
    assert CleanText(text).text == clean


RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱᵃᵇᶜᵈᵉᶠᵍʰʲᵏˡᵐᵒᵖʳˢᵗᵘᵛʷˣʸᶻ"


LOWERED = "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ"


def test_scripts() -> None:
    assert CleanText(RAISED).text == "^{0123456789+-=()niabcdefghjklmoprstuvwxyz}"
    assert CleanText(LOWERED).text == "_{0123456789+-=()aehijklmnoprstuvx}"


def test_places_lead_back_to_the_text() -> None:
    clean = CleanText("2x₁₂ + ½α")
    assert clean.text == r"2x_{12} + \frac{1}{2}\alpha "
    for part, origin in [
        ("2", "2"),
        ("x", "x"),
        ("_{12}", "₁₂"),
        ("12", "₁₂"),
        ("1", "₁"),
        (r"\frac{1}{2}", "½"),
        (r"\alpha ", "α"),
        ("x_{12} + ", "x₁₂ + "),
    ]:
        start = clean.text.index(part)
        assert clean.source[slice(*clean.span(start, start + len(part)))] == origin, part
    length = len(clean.text)
    assert clean.span(length, length) == (9, 9)
    assert clean.span(length, length + 5) == (9, 9)
    assert clean.span(length + 3, length + 5) == (9, 9)
    assert clean.span(1, 1) == (1, 2)
    assert CleanText("").span(0, 0) == (0, 0)


@pytest.mark.parametrize(
    ("letter", "reason"),
    [
        ("а", "а is U+0430 CYRILLIC SMALL LETTER A, which only looks like a: type the Latin letter"),
        ("Ѕ", "Ѕ is U+0405 CYRILLIC CAPITAL LETTER DZE, which only looks like S: type the Latin letter"),
        ("Α", "Α is U+0391 GREEK CAPITAL LETTER ALPHA, which only looks like A: type the Latin letter"),
        ("ο", "ο is U+03BF GREEK SMALL LETTER OMICRON, which only looks like o: type the Latin letter"),
        ("\u202e", "U+202E RIGHT-TO-LEFT OVERRIDE changes or follows the direction of writing, and is not read"),
        ("\u202b", "U+202B RIGHT-TO-LEFT EMBEDDING changes or follows the direction of writing, and is not read"),
        ("\u202a", "U+202A LEFT-TO-RIGHT EMBEDDING changes or follows the direction of writing, and is not read"),
        ("\u202d", "U+202D LEFT-TO-RIGHT OVERRIDE changes or follows the direction of writing, and is not read"),
        (
            "\u202c",
            "U+202C POP DIRECTIONAL FORMATTING changes or follows the direction of writing, and is not read",
        ),
        ("\u2066", "U+2066 LEFT-TO-RIGHT ISOLATE changes or follows the direction of writing, and is not read"),
        ("\u2067", "U+2067 RIGHT-TO-LEFT ISOLATE changes or follows the direction of writing, and is not read"),
        ("\u2068", "U+2068 FIRST STRONG ISOLATE changes or follows the direction of writing, and is not read"),
        ("\u2069", "U+2069 POP DIRECTIONAL ISOLATE changes or follows the direction of writing, and is not read"),
        ("א", "U+05D0 HEBREW LETTER ALEF changes or follows the direction of writing, and is not read"),
        ("ع", "U+0639 ARABIC LETTER AIN changes or follows the direction of writing, and is not read"),
        ("\u200b", "U+200B ZERO WIDTH SPACE does not print by itself, and is not read"),
        ("\u2028", "U+2028 LINE SEPARATOR does not print by itself, and is not read"),
        ("\u2029", "U+2029 PARAGRAPH SEPARATOR does not print by itself, and is not read"),
        ("\u0301", "U+0301 COMBINING ACUTE ACCENT does not print by itself, and is not read"),
        ("\x07", "U+0007 a character without a name does not print by itself, and is not read"),
        ("℡", "℡ (U+2121 TELEPHONE SIGN) is not a sign that qkv reads"),
        ("№", "№ (U+2116 NUMERO SIGN) is not a sign that qkv reads"),
        ("ℵ", "ℵ (U+2135 ALEF SYMBOL) is not a sign that qkv reads"),
        ("℃", "℃ (U+2103 DEGREE CELSIUS) is not a sign that qkv reads"),
        ("é", "é (U+00E9 LATIN SMALL LETTER E WITH ACUTE) is not a sign that qkv reads"),
        ("ж", "ж (U+0436 CYRILLIC SMALL LETTER ZHE) is not a sign that qkv reads"),
        ("\x7f", "U+007F a character without a name does not print by itself, and is not read"),
    ],
)
def test_characters_that_are_refused(letter, reason) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(f"x + {letter}x\x07", S)
    assert caught.value.reason == reason
    assert caught.value.span == (4, 5)
    shown = letter if letter.isprintable() else "\ufffd"
    assert caught.value.source == f"x + {shown}x\ufffd"


LOOKALIKES = "аеорсухіјѕԁһӏАВЕКМНОРСТХІЈЅΑΒΕΖΗΙΚΜΝΟΡΤΧο"


@pytest.mark.parametrize(
    ("letter", "latin"), list(zip(LOOKALIKES, "aeopcyxijsdhlABEKMHOPCTXIJSABEZHIKMNOPTXo", strict=True))
)
def test_letters_that_only_look_like_latin_ones(letter, latin) -> None:
    with pytest.raises(Unreadable, match=f"only looks like {latin}: type the Latin letter"):
        parse(letter, S)


def test_how_long_a_text_may_be() -> None:
    assert CleanText(" " * 2000).text == " " * 2000
    with pytest.raises(Unreadable) as caught:
        CleanText("y" * 2001)
    assert caught.value.reason == "2,001 characters are too many: at most 2,000 are read"
    assert (caught.value.source, caught.value.span) == ("y" * 60, (0, 60))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("x", "x"),
        (" x ", "x"),
        ("mu", "mu"),
        ("μ", "mu"),
        ("µ", "mu"),
        (r"\mu", "mu"),
        (r"\varphi", "phi"),
        (r"\boldsymbol{\mu}", "mu"),
        (r"\mathbf x", "x"),
        (r"\mathbf{x}_{q}", "x_q"),
        (r"{\bf x}", "x"),
        (r"\operatorname*{loss}", "loss"),
        ("μ_q", "mu_q"),
        (r"\mu_{q}", "mu_q"),
        ("x₁", "x_1"),
        ("x_12", "x_12"),
        ("x_{ij}", "x_ij"),
        ("d_model", "d_model"),
        (r"d_{\text{model}}", "d_model"),
        (r"d_{\mathrm{model}}", "d_model"),
        (r"d_\text{model}", "d_model"),
        (r"i_{\max}", "i_max"),
        (r"x_{\alpha}", "x_alpha"),
        ("x'", "x'"),
        ("x′", "x'"),
        ("x''", "x''"),
        (r"x^\prime", "x'"),
        (r"x^{\prime}", "x'"),
        (r"x^{\prime\prime}", "x''"),
        ("x'_1", "x'_1"),
        ("x_1'", "x_1'"),
        (r"\hat{x}", "x_hat"),
        (r"\hat x", "x_hat"),
        (r"\widehat{\mu}", "mu_hat"),
        (r"\bar\mu", "mu_bar"),
        (r"\overline{x}", "x_bar"),
        (r"\tilde{x}", "x_tilde"),
        (r"\widetilde x", "x_tilde"),
        ("log", "log"),
        (r"\log", "log"),
        ("2x", None),
        ("x2", None),
        ("", None),
        ("x y", "xy"),
        ("x+y", None),
        ("x_", None),
        ("_x", None),
        ("x_{1,2}", None),
        ("x_1_2", None),
        (r"\foo", None),
        (r"\foo{x}", None),
        (r"\hatx", None),
        (r"\mathbfx", None),
        ("x\u202e", None),
        ("а", None),
        ("x" * 2001, None),
    ],
)
def test_one_spelling(written, name) -> None:
    assert naming.canonical_name(written) == name


def test_letters() -> None:
    assert [naming.greek_name(word) for word in ("mu", "varepsilon", "Sigma", "x", "foo", "omicron")] == [
        "mu",
        "epsilon",
        "Sigma",
        None,
        None,
        None,
    ]


def test_words_of_qkv_itself() -> None:
    assert all(map(naming.is_reserved, ("sqrt", "sum", "prod", "softmax", "ln", "Var")))
    assert not any(map(naming.is_reserved, ("x", "mu", "sine", "Sum", "")))


@pytest.mark.parametrize(
    ("text", "at", "found"),
    [
        ("x' y", 1, ("'", 2)),
        ("x'' y", 1, ("''", 3)),
        ("x ' y", 1, ("'", 3)),
        (r"x^\prime y", 1, ("'", 8)),
        (r"x^ \prime y", 1, ("'", 9)),
        (r"x^{\prime\prime} y", 1, ("''", 16)),
        (r"x^{ \prime } y", 1, ("'", 12)),
        (r"x^\primex", 1, ("", 1)),
        ("x^2", 1, ("", 1)),
        ("x", 1, ("", 1)),
    ],
)
def test_primes(text, at, found) -> None:
    assert naming.primes(text, at) == found


@pytest.mark.parametrize(
    ("text", "at", "place"),
    [
        ("{x}", 0, 2),
        ("{x{y}z}", 0, 6),
        ("{x{y}z}", 2, 4),
        ("{x", 0, -1),
        ("{x{y}", 0, -1),
        (r"{x\}y}", 0, 5),
        (r"{x\{y}", 0, 5),
        ("a{}b", 1, 2),
        ("{x}}", 0, 2),
    ],
)
def test_where_a_brace_is_closed(text, at, place) -> None:
    assert naming.closing(text, at) == place


@pytest.mark.parametrize(
    ("text", "at", "found"),
    [
        ("{xy} z", 0, ("xy", 4)),
        ("  {xy} z", 0, ("xy", 6)),
        ("xy", 0, ("x", 1)),
        (" xy", 0, ("x", 2)),
        (r"\mu x", 0, (r"\mu", 3)),
        (r"\mathbf{x}y", 0, (r"\mathbf{x}", 10)),
        (r"\text x", 0, (r"\text x", 7)),
        (r"\mathbf", 0, None),
        (r"\{", 0, None),
        ("{x", 0, None),
        ("", 0, None),
        ("x ", 1, None),
        ("ab{c}", 2, ("c", 5)),
    ],
)
def test_what_a_command_takes(text, at, found) -> None:
    assert naming.argument(text, at) == found


@pytest.mark.parametrize(
    ("text", "at", "found"),
    [
        ("x_ab", 1, [("ab", 4), ("a", 3)]),
        ("x_1", 1, [("1", 3)]),
        ("x _ ab", 1, [("ab", 6), ("a", 5)]),
        ("x_{ab} c", 1, [("ab", 6)]),
        (r"x_{\text{ab}} c", 1, [("ab", 13)]),
        (r"x_\mu c", 1, [("mu", 5)]),
        ("x_{a,b}", 1, []),
        ("x_{}", 1, []),
        ("x_", 1, []),
        ("x", 1, []),
        ("x y", 1, []),
        ("x_+", 1, []),
    ],
)
def test_lower_indices(text, at, found) -> None:
    assert naming.subscripts(text, at) == found


def test_a_long_lower_index_is_cut() -> None:
    found = naming.subscripts("x_" + "a" * 50, 1)
    assert found[0] == ("a" * 40, 42)
    assert found[-1] == ("a", 3)


@pytest.mark.parametrize(
    ("text", "base", "end", "found"),
    [
        ("x", "x", 1, [("x", 1)]),
        ("x'", "x", 1, [("x'", 2)]),
        ("x2", "x", 1, [("x_2", 2), ("x", 1)]),
        ("x2.5", "x", 1, [("x", 1)]),
        ("x2e5", "x", 1, [("x", 1)]),
        ("x2e", "x", 1, [("x_2", 2), ("x", 1)]),
        ("x_ab", "x", 1, [("x_ab", 4), ("x_a", 3), ("x", 1)]),
        ("x_a'", "x", 1, [("x_a'", 4), ("x", 1)]),
        ("x'_a'", "x", 1, [("x'_a'", 5), ("x'", 2)]),
    ],
)
def test_readings_of_a_name_longest_first(text, base, end, found) -> None:
    assert naming.name_readings(text, base, end) == found
