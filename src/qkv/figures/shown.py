"""A figure that a notebook draws, in the colours of its theme."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.figures.page import checked
from qkv.figures.theme import DARK_RULES

# How JupyterLab, VS Code, Colab and this project's site say that their theme is dark.
_DARK = (
    'body[data-jp-theme-light="false"]',
    ".vscode-dark",
    'html[theme="dark"]',
    '[data-md-color-scheme="slate"]',
)
_STYLE = f"<style>:is({','.join(_DARK)}){{{DARK_RULES}}}.qkv-shown svg{{max-width:100%;height:auto}}</style>"


@dataclass(frozen=True)
class Shown:
    """What `show` returns: a notebook draws it when it is the last line of a cell."""

    svg: str

    def __repr__(self) -> str:
        return f"Shown(<svg> of {len(self.svg)} characters)"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {
            "text/html": f'<div class="qkv-shown">{_STYLE}{self.svg}</div>',
            "image/svg+xml": self.svg,
            "text/plain": repr(self),
        }


def show(figure: str) -> Shown:
    """Show a figure in a notebook, light or dark as its theme is.

    Args:
        figure: the <svg> text of `chart`, `roofline`, `heat_map` or `small_map`.

    Returns:
        An object that a notebook draws.

    Raises:
        OptionError: the text is not an <svg> element.

    >>> from qkv.figures import heat_map
    >>> shown = show(heat_map("Weights", [[1, 0], [0.25, 0.75]]))
    >>> shown.svg.startswith("<svg")
    True
    """
    return Shown(checked(figure))
