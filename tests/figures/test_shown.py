"""A figure in a notebook: SVG for any front end, and HTML whose colours follow the notebook's theme."""

import re

import pytest

from qkv.errors import OptionError
from qkv.figures import Axis, Line, chart, heat_map, show

FIGURES = [
    chart("Time", Axis("n"), Axis("t", "s"), [Line("a < b", [(1, 2), (3, 5)])]),
    heat_map("Weights", [[1, 0], [0.25, 0.75]]),
]


@pytest.mark.parametrize("figure", FIGURES, ids=["chart", "heat map"])
def test_both_forms_hold_the_figure(figure: str) -> None:
    bundle = show(figure)._repr_mimebundle_()
    assert bundle["image/svg+xml"] == figure
    assert bundle["text/html"].count(figure) == 1
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|<script", bundle["text/html"])
    assert str(len(figure)) in bundle["text/plain"]


def test_dark_colours_are_only_for_pages_that_say_so() -> None:
    style = re.search("<style>(.*?)</style>", show(FIGURES[0])._repr_mimebundle_()["text/html"])
    assert style is not None
    assert re.match(r":is\(([^{]*)\)\{", style[1])
    assert all(place in style[1] for place in ("data-jp-theme-light", ".vscode-dark", "data-md-color-scheme"))
    assert style[1].count("{") == style[1].count("}")


def test_what_is_no_figure_is_refused() -> None:
    with pytest.raises(OptionError, match="figures: got"):
        show("<p>no</p>")
