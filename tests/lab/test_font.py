"""The mathematics font: small, its own name, and a sign for all that `render` can write as MathML."""

import ast
import hashlib
import inspect
import json
import re
import string
import struct
import unicodedata
from pathlib import Path

import pytest

import qkv
from qkv.exercises import bank, solve
from qkv.exercises.printing import solution_document
from qkv.maths import tree as t
from qkv.maths.parsing import words
from qkv.render import escapes, html, layout, mathml

FONTS = Path(qkv.__file__).parent / "lab" / "static" / "fonts"
FONT = FONTS / "qkv-math.woff2"
# The tables that WOFF2 knows by number, in order (W3C, WOFF 2.0, section 4.1).
KNOWN = (
    "cmapheadhheahmtxmaxpnameOS/2postcvt_fpgmglyflocaprepCFF_VORGEBDTEBLCgasphdmxkernLTSH"
    "PCLTVDMXvheavmtxBASEGDEFGPOSGSUBEBSCJSTFMATHCBDTCBLCCOLRCPALSVG_sbixacntavarbdatbloc"
    "bslncvarfdscfeatfmtxfvargvarhstyjustlcarmortmorxopbdproptrakZapfSilfGlatGlocFeatSill"
)
# What a browser shows a letter alone in <mi> as.
ITALIC = {
    unicodedata.normalize("NFKC", chr(code)): chr(code)
    for code in range(0x1D71B, 0x1D433, -1)
    if unicodedata.name(chr(code), "").startswith("MATHEMATICAL ITALIC")
} | {"h": "ℎ"}


@pytest.fixture(scope="module")
def told():
    return json.loads((FONTS / "qkv-math.json").read_text(encoding="utf-8"))


def tables(font):
    """The names in the directory of a WOFF2 file, which is not compressed."""
    count, at = struct.unpack(">H", font[12:14])[0], 48
    for _ in range(count):
        flags, at = font[at], at + 1
        if flags & 63 == 63:
            name, at = font[at : at + 4].decode(), at + 4
        else:
            name = KNOWN[4 * (flags & 63) :][:4]
        yield name
        transformed = (flags >> 6 == 0) if name in ("glyf", "loca") else flags >> 6 != 0
        for _ in range(1 + transformed):
            while font[at] & 128:
                at += 1
            at += 1


def signs_of(module):
    """Every sign in the texts of a module that are no docstrings."""
    tree = ast.parse(inspect.getsource(module))
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (
        n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in told
    )
    return {sign for text in texts for sign in text.value}


def test_the_font_is_small_and_what_its_list_says(told):
    font = FONT.read_bytes()
    assert len(font) < 200_000
    assert font[:4] == b"wOF2"
    assert struct.unpack(">I", font[8:12])[0] == len(font)
    assert hashlib.sha256(font).hexdigest() == told["sha256"], "make font"
    assert told["family"] == "qkv Math"


def test_it_keeps_the_tables_of_mathematics_and_no_hinting(told):
    found = set(tables(FONT.read_bytes()))
    assert {"MATH", "GSUB", "cmap", "glyf", "name"} <= found
    assert found == set(told["tables"].split())
    assert not found & {"fpgm", "prep", "cvt_", "DSIG"}


def test_its_licence_is_in_its_folder():
    licence = (FONTS / "OFL.txt").read_text(encoding="utf-8")
    assert "The STIX Fonts Project Authors" in licence
    assert "SIL OPEN FONT LICENSE" in licence
    assert "PERMISSION & CONDITIONS" in licence


def test_it_has_every_sign_that_formulas_are_laid_out_with(told):
    signs = signs_of(layout) | signs_of(layout) | {layout.TIMES, layout.APPLY} | set(string.printable.strip())
    signs |= {sign for letters in (escapes.GREEK, words.GREEK) for sign in letters.values() if len(sign) == 1}
    signs -= {"\n", "\t", "\\"}
    assert len(signs) > 140
    assert not signs - set(told["characters"])


def test_it_has_every_letter_slanted(told):
    letters = {*string.ascii_letters, *escapes.GREEK.values(), *words.GREEK.values()} - {"ℓ"}  # has no slanted form
    assert letters <= set(ITALIC)
    assert not {ITALIC[letter] for letter in letters} - set(told["characters"])


def test_what_stretches_can_grow(told):
    assert set("()[]|‖√∑∏{}⟨⟩") <= set(told["grows"])


def formula_signs(page):
    formulas = re.findall(r"<math[ >].*?</math>", page, re.DOTALL)
    text = "".join(re.sub("<[^>]*>", "", formula) for formula in formulas)
    return set(text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def test_it_has_every_sign_of_the_bank(told):
    found = set()
    for name in bank.names():
        found |= formula_signs(html(solution_document(solve(bank.named(name)))))
    assert len(found) > 50
    assert not found - set(told["characters"])


def test_every_name_that_can_be_declared_is_shown(told):
    """Names are Latin letters, Greek ones by their words, digits below and primes: all of them, drawn."""
    names = [*string.ascii_letters, *words.GREEK, "ell", "x'", "x''", "d_model", "mu_q", "W_Q"]
    shown = "".join(mathml(t.Symbol((), name, t.Type("scalar"))) for name in names)
    assert not formula_signs(shown) - set(told["characters"])
