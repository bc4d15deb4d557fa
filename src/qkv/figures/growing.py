"""What a decoder keeps, token by token: caches that grow by a column a step, and a state that does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.cost.readable import counted
from qkv.errors import OptionError, complaint
from qkv.figures.chart import CAPTION, EDGE, NOTE, TITLE, whole
from qkv.figures.legend import text_block
from qkv.figures.svg import LINE, tag, text_width, title
from qkv.figures.theme import COLOURS, GRID, INK, PAPER, RULE, SOFT

BEFORE, AFTER = 24, 16  # columns of tokens that were there, and of those that may come
TALL, THIN = 48, 3
EARLIER = 56  # width of what stands for all tokens that are not drawn one by one
OLD, NEW = 0, 1  # colours of what was there, and of what the last step wrote
CELLS = 8


@dataclass(frozen=True)
class Lane:
    """heads: that keep something, of `most` in the figure. said: beside the name. grows: by a column for each token;
    else it is a square that each step writes anew. chosen: what the reader looks at."""

    name: str
    heads: int
    said: str
    grows: bool = True
    chosen: bool = False


def growing(heading: str, lanes: Sequence[Lane], past: int, steps: int, page: int, width: float = 720) -> str:
    """After `past` tokens and so many steps of one more. A page holds so many tokens.

    >>> lanes = [Lane("MHA", 8, "1 kB"), Lane("linear", 2, "1 kB", grows=False)]
    >>> svg = growing("Kept", lanes, past=64, steps=3, page=64)
    >>> svg.count('class="qkv-column qkv-fill-0"'), svg.count("qkv-newest")
    (26, 2)
    """
    if not 0 <= steps <= AFTER or past < 0 or not lanes:
        given = f"{len(lanes)} lanes, {past} tokens, {steps} steps"
        raise OptionError(complaint("lanes, past, steps", given, f"lanes, tokens, and 0 to {AFTER} steps"))
    drawing = _Drawing(past, steps, page, max(lane.heads for lane in lanes), width)
    y, body = EDGE, text_block([heading], EDGE, EDGE, TITLE, "qkv-title qkv-ink", INK, font_weight="bold")
    y += TITLE * LINE + 6
    kept, states = [lane for lane in lanes if lane.grows], [lane for lane in lanes if not lane.grows]
    top = y
    for lane in kept:
        body += _label(lane, y) + drawing.columns(lane, y + CAPTION * LINE + 4)
        y += CAPTION * LINE + 4 + drawing.tall(lane) + 10
    if kept:
        body += drawing.pages(top + CAPTION * LINE, y - 6) + drawing.places(y - 2)
        y += 2 * NOTE * LINE + 8
    for lane in states:
        body += _label(lane, y) + drawing.square(lane, y + CAPTION * LINE + 4)
        y += CAPTION * LINE + 4 + TALL + 12
    body += _legend(y)
    y += NOTE * LINE + EDGE
    return whole(heading, drawing.words(lanes), body, width, round(y))


class _Drawing:
    def __init__(self, past: int, steps: int, page: int, most: int, width: float) -> None:
        self.past, self.steps, self.page, self.most = past, steps, page, most
        self.first = max(0, past - BEFORE)
        self.left = EDGE + EARLIER + 8
        self.pitch = (width - EDGE - self.left) / (BEFORE + AFTER)
        self.right = width - EDGE

    @property
    def tokens(self) -> int:
        return self.past + self.steps

    def x(self, token: int) -> float:
        return self.left + (token - self.first) * self.pitch

    def tall(self, lane: Lane) -> float:
        return max(THIN, TALL * lane.heads / self.most)

    def columns(self, lane: Lane, y: float) -> str:
        high, drawn = self.tall(lane), ""
        if self.first:
            said = f"{lane.name}: {counted(self.first, 'earlier token')}"
            drawn += _filled("qkv-earlier", OLD, EDGE, y, EARLIER, high, said, 0.45)
        for token in range(self.first, self.past + AFTER):
            place = {"x": self.x(token) + 1, "y": y, "width": self.pitch - 2, "height": high}
            if token >= self.tokens:
                drawn += tag("rect", class_="qkv-room qkv-grid", **place, fill="none", stroke=GRID)
                continue
            newest = token == self.tokens - 1 and self.steps > 0
            said = f"{lane.name}: key and value of token {token + 1:,}, for {lane.heads} {_heads(lane.heads)}"
            name = "qkv-column qkv-newest" if newest else "qkv-column"
            share = 1 if token >= self.past else 0.45
            drawn += _filled(name, NEW if newest else OLD, **place, said=said, share=share)
        return tag("g", drawn, class_="qkv-lane")

    def pages(self, top: float, bottom: float) -> str:
        """Where one page ends and the next begins."""
        drawn = ""
        for token in range(self.first + (-self.first) % self.page, self.past + AFTER + 1, self.page):
            if token == self.first and self.first == 0:
                continue
            x = self.x(token)
            drawn += tag("line", class_="qkv-level", x1=x, y1=top, x2=x, y2=bottom, stroke=SOFT, stroke_dasharray="4 3")
        return drawn

    def places(self, y: float) -> str:
        """Pages in a first line, numbers of tokens in a second."""
        drawn, end = "", 0.0
        numbers = sorted({token // self.page for token in range(self.first, self.past + AFTER)})
        for number in numbers:
            text = f"page {number + 1:,}"
            x = max(self.x(number * self.page), self.left)
            if x >= end and x + text_width(text, NOTE) <= self.right:
                drawn += text_block([text], x, y, NOTE, "qkv-tick qkv-soft", SOFT)
                end = x + text_width(text, NOTE) + 8
        if self.first:
            drawn += text_block([f"{self.first:,}"], EDGE, y, NOTE, "qkv-tick qkv-soft", SOFT)
            drawn += text_block(["earlier"], EDGE, y + NOTE * LINE, NOTE, "qkv-tick qkv-soft", SOFT)
        said = counted(self.tokens, "token")
        half = text_width(said, NOTE) / 2
        middle = self.x(self.tokens) - self.pitch / 2 if self.tokens else self.left
        at = min(max(middle, self.left + half), self.right - half)
        return drawn + text_block([said], at, y + NOTE * LINE, NOTE, "qkv-tick qkv-ink", INK, "middle")

    def square(self, lane: Lane, y: float) -> str:
        """Sums: all of them are read and written by each step."""
        newest = self.steps > 0
        said = f"{lane.name}: sums of {lane.heads} {_heads(lane.heads)}, the same size after any number of tokens"
        name = "qkv-column qkv-newest" if newest else "qkv-column"
        drawn = _filled(name, NEW if newest else OLD, EDGE, y, TALL, TALL, said, 1 if newest else 0.45)
        for k in range(1, CELLS):
            at = TALL * k / CELLS
            across = {"x1": EDGE, "y1": y + at, "x2": EDGE + TALL, "y2": y + at}
            upright = {"x1": EDGE + at, "y1": y, "x2": EDGE + at, "y2": y + TALL}
            drawn += "".join(tag("line", class_="qkv-halo", **ends, stroke=PAPER) for ends in (across, upright))
        words = ["every step reads and writes all of it,", "and it stays as large as it is"]
        beside = text_block(words, EDGE + TALL + 12, y + 6, NOTE, "qkv-note qkv-soft", SOFT)
        return tag("g", drawn + beside, class_="qkv-lane")

    def words(self, lanes: Sequence[Lane]) -> str:
        """The figure for those who hear it."""
        said = [f"{lane.name}: {lane.heads} {_heads(lane.heads)}, {lane.said}." for lane in lanes]
        return f"After {counted(self.past, 'token')} and {counted(self.steps, 'step')}. {' '.join(said)}"


def _label(lane: Lane, y: float) -> str:
    text = f"{lane.name}: {lane.heads} {_heads(lane.heads)}, {lane.said}"
    weight = {"font_weight": "bold"} if lane.chosen else {}
    return text_block([text], EDGE, y, CAPTION, "qkv-caption qkv-ink", INK, **weight)


def _heads(count: int) -> str:
    return "key/value head" if count == 1 else "key/value heads"


def _filled(
    name: str, colour: int, x: float, y: float, width: float, height: float, said: str = "", share: float = 1
) -> str:
    place = {"x": x, "y": y, "width": width, "height": height}
    inside = [title(said)] if said else []
    return tag("rect", *inside, class_=f"{name} qkv-fill-{colour}", **place, fill=COLOURS[colour], fill_opacity=share)


def _legend(y: float) -> str:
    """What the colours mean, in one line."""
    x, drawn, side = float(EDGE), "", 10.0
    entries = [("before the steps", OLD, 0.45), ("since then", OLD, 1.0), ("by the last step", NEW, 1.0)]
    for text, colour, share in entries:
        drawn += _filled("qkv-swatch", colour, x, y + 3, side, side, share=share)
        drawn += text_block([text], x + side + 6, y, NOTE, "qkv-note qkv-ink", INK)
        x += side + 6 + text_width(text, NOTE) + 18
    drawn += tag("rect", class_="qkv-room qkv-rule", x=x, y=y + 3, width=side, height=side, fill="none", stroke=RULE)
    return drawn + text_block(["steps to come"], x + side + 6, y, NOTE, "qkv-note qkv-ink", INK)
