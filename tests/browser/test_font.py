"""The served mathematics font draws: brackets, bars and roots grow, sums are large, letters are its own."""

import pytest

pytestmark = pytest.mark.slow

FORMULAS = """
  <p class="probe"><span id="line">x</span>
  <math><mrow id="tall"><mo id="bracket" form="prefix" fence="true" stretchy="true">[</mo>
    <mtable>
      <mtr><mtd><mn>1</mn></mtd></mtr><mtr><mtd><mn>2</mn></mtd></mtr><mtr><mtd><mn>3</mn></mtd></mtr>
      <mtr><mtd><mn>4</mn></mtd></mtr><mtr><mtd><mn>5</mn></mtd></mtr>
    </mtable><mo form="postfix" fence="true" stretchy="true">]</mo></mrow></math>
  <math><mo id="small" stretchy="false">[</mo></math>
  <math display="block"><mo id="large" largeop="true">∑</mo></math><math><mo id="usual" largeop="false">∑</mo></math>
  <math><msqrt id="root"><mfrac><mi>a</mi><mi>b</mi></mfrac></msqrt></math>
  <math><msqrt id="flat"><mi>a</mi></msqrt></math>
  <math><mfrac id="fraction"><mi>a</mi><mi>b</mi></mfrac></math></p>
"""


@pytest.fixture
def probe(page, lab):
    """A page of the lab with formulas of our own put into it; the font is asked for as its style sheet says."""
    page.goto(lab)
    page.evaluate("(html) => { document.querySelector('main').innerHTML = html }", FORMULAS)
    page.evaluate("document.fonts.load('16px \"qkv Math\"', '∑[x𝑥').then(() => document.fonts.ready).then(() => 0)")
    return page


def heights(page, *names):
    return [page.evaluate("(id) => document.getElementById(id).getBoundingClientRect().height", name) for name in names]


def test_formulas_are_drawn_with_the_served_font(probe):
    faces = probe.evaluate("[...document.fonts].map(f => [f.family.replaceAll('\"', ''), f.status])")
    assert ["qkv Math", "loaded"] in faces
    assert probe.evaluate("document.fonts.check('16px \"qkv Math\"', '∑')")
    family = probe.evaluate("getComputedStyle(document.querySelector('math')).fontFamily")
    assert family.replace('"', "").split(",")[0].strip() == "qkv Math"


def test_what_is_tall_is_drawn_tall(probe):
    line, bracket, small, large, usual, root, flat, fraction = heights(
        probe, "line", "bracket", "small", "large", "usual", "root", "flat", "fraction"
    )
    assert bracket > 4 * line
    assert bracket > 3 * small
    assert large > 1.2 * usual
    assert root > 1.4 * flat
    assert fraction > 1.3 * line


def test_letters_come_out_of_the_font(probe):
    """Each is as wide in the font alone as in the font before any other: nothing falls back."""
    widths = probe.evaluate(
        """() => {
          const pen = document.createElement("canvas").getContext("2d")
          const wide = (family) => {
            pen.font = "64px " + family
            return [..."𝑥𝜇𝔼𝟏𝐖ℓ⊤⊙∂∑∏√‖≤"].map(sign => pen.measureText(sign).width)
          }
          return [wide('"qkv Math", monospace'), wide('"qkv Math", serif')]
        }"""
    )
    assert widths[0] == widths[1]
    assert min(widths[0]) > 0
