"""Which split runs a call, why not the others, and what each would take."""

from __future__ import annotations

import html
from dataclasses import dataclass

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..backends import BACKENDS
from ..backends.dispatch import describe
from ..cost.links import Link
from ..cost.price import readable_bytes
from ..cost.readable import counted, readable_seconds, wrapped
from ..cost.wire import Wire
from ..errors import BackendRefused
from ..functional import explain as explain_here
from ..inputs import AttentionInputs
from ..masks import Mask
from ..similarity import AnySimilarity
from . import best, gather, heads, ring, scan
from .agreement import known_axis
from .dtensors import opened
from .links import figures
from .pricing import Sight, priced
from .share import Share, read_share
from .ways import Way

WAYS: dict[str, Way] = {way.name: way for way in (ring.RING, gather.GATHER, heads.HEADS, scan.SCAN, best.BEST)}
# Of two that take about as long, the first: what holds least comes first.
ORDER = ("best", "scan", "ring", "heads", "gather")
WORTH, MOMENT = 0.95, 5e-4  # a later one has to take less than this part of the time, and so many seconds less
NOTHING = "none"  # the name of a split where every rank has what it needs


@dataclass(frozen=True)
class Candidate:
    """A split beside the call: the reasons against it, or what it takes and the seconds that are predicted for it."""

    split: str
    reasons: tuple[str, ...]
    wire: Wire | None = None
    seconds: float = float("inf")


@dataclass(frozen=True)
class Splits:
    """What `split` came to, the same on every rank. split: the one that runs. link: the figures that predict."""

    split: str
    asked: str
    candidates: tuple[Candidate, ...]
    call: str
    ranks: int
    link: Link | None = None

    @property
    def taken(self) -> Candidate:
        return next(each for each in self.candidates if each.split == self.split)

    @property
    def wire(self) -> Wire | None:
        """What travels and what is held."""
        return self.taken.wire

    @property
    def seconds(self) -> float:
        """Predicted, forward and backward if anything is learnt."""
        return self.taken.seconds

    @property
    def reasons(self) -> dict[str, tuple[str, ...]]:
        """Why each of the others was not taken."""
        return {each.split: self._why_not(each) for each in self.candidates if each.split != self.split}

    def _why_not(self, candidate: Candidate) -> tuple[str, ...]:
        if candidate.reasons:
            return candidate.reasons
        takes = self._takes(candidate)
        if self.asked != "auto":
            return (f"split={self.asked!r} was asked for; it would take {takes}",)
        return (f"slower: {takes}" if candidate.seconds >= self.seconds else f"not worth its cache: {takes}",)

    def _takes(self, candidate: Candidate) -> str:
        assert candidate.wire is not None
        sent = f"{readable_bytes(candidate.wire.sent)} sent"
        return f"about {readable_seconds(candidate.seconds)}, {sent}, {readable_bytes(candidate.wire.held)} held"

    def __str__(self) -> str:
        if self.split == NOTHING:
            said = [f"{self.call}, on this rank", "-> nothing travels: every rank has whole sequences"]
            return "\n".join(line for text in said for line in wrapped(text, ""))
        lines = wrapped(f"{self.call}, over {counted(self.ranks, 'rank')}", "")
        found = self.taken.wire
        assert found is not None
        assert self.link is not None
        lines += wrapped(f"-> {self.split}: {WAYS[self.split].summary}", "")
        passes = "forward and backward" if found.backward is not None else "forward"
        sent = f"{readable_bytes(found.sent)} sent in {found.messages} messages and {readable_bytes(found.held)} held"
        time = f"about {readable_seconds(self.seconds)}, {passes}"
        lines += wrapped(f"{sent} by the busiest rank, {readable_bytes(found.total)} sent in all; {time}", "   ")
        lines += wrapped(f"by {self.link}", "   ")
        for split, reasons in self.reasons.items():
            lines += [line for reason in reasons for line in wrapped(f"not {split}: {reason}", "   ")]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = ""
        for each in self.candidates:
            why = "taken" if each.split == self.split else html.escape("; ".join(self._why_not(each)))
            known = each.wire is not None
            cells = (
                [readable_bytes(each.wire.sent), readable_bytes(each.wire.held)] if each.wire is not None else ["", ""]
            )
            cells.append(readable_seconds(each.seconds) if known else "")
            numbers = "".join(f"<td>{cell}</td>" for cell in cells)
            rows += f"<tr><th scope='row'>{html.escape(each.split)}</th><td>{why}</td>{numbers}</tr>"
        titles = ("split", "why", "sent by a rank", "held by a rank", "time")
        head = "".join(f"<th scope='col'>{title}</th>" for title in titles)
        caption = html.escape(f"{self.call}, over {counted(self.ranks, 'rank')}")
        return f"<table><caption>{caption}</caption><tr>{head}</tr>{rows}</table>"


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mesh: DeviceMesh | None = None,
    axis: str | int | None = None,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
    split: str = "auto",
    return_lse: bool = False,
    return_weights: bool = False,
) -> Splits:
    """What `qkv.parallel.attention` would do with the same call: the split that it takes, bytes and seconds of each,
    and the reasons against the others. Every rank has to ask, and all get the same answer; only the question travels.

    Bytes are those that will be sent, counted from the shards and the mask. Seconds are from built-in figures until
    `qkv.parallel.measure` has measured the axis.
    """
    opening = opened(query, key, value, similarity, mask, bias, mesh, axis)
    query, key, value, similarity, mask, bias, mesh, axis, _ = opening
    if not opening.travels:
        here = explain_here(
            query, key, value, similarity=similarity, mask=mask, bias=bias, dropout=dropout, backend=backend
        )
        return Splits(NOTHING, split, (Candidate(NOTHING, (), seconds=here.seconds),), here.call, 1)
    place = known_axis(mesh, axis)
    share = read_share(
        place, query, key, value, similarity, mask, bias, dropout, backend, split, return_lse, return_weights, "explain"
    )
    _check_form(share)
    candidates, whole = _candidates(share), describe(whole_call(share))
    return Splits(_taken(share, candidates), share.split, candidates, whole, place.size, figures(place))


def choose(share: Share) -> Way:
    """The way that runs this call. It looks only at what all ranks agreed on, so all choose the same."""
    _check_form(share)
    if share.split != "auto":
        return WAYS[_asked_for(share, {name: way.reasons_against(share) for name, way in WAYS.items()})]
    return WAYS[_taken(share, _candidates(share))]


def whole_call(share: Share) -> AttentionInputs:
    """The call as one process would have it, but for its tensors."""
    return share.call._replace(extent=share.extent, mask=share.mask, bias=share.bias)


def _check_form(share: Share) -> None:
    """Refused by what the whole is: a rank with nothing to do refuses with the others."""
    backend = share.call.backend
    against = () if backend == "auto" else BACKENDS[backend].reasons_against(whole_call(share))
    if against:
        listed = "".join(f"\n  - {reason}" for reason in against)
        said = f"backend: got {backend!r}, wanted a backend that can run {describe(whole_call(share))}. Against it:{listed}"
        raise BackendRefused(f"{said}\nHint: backend='auto' lets each rank choose.", against)


def _candidates(share: Share) -> tuple[Candidate, ...]:
    link, sight, found = figures(share.axis), Sight(share), []
    for name in ORDER:
        reasons = WAYS[name].reasons_against(share)
        wire = None if reasons else priced(sight, name)
        found.append(Candidate(name, reasons, wire, float("inf") if wire is None else link.seconds(wire)))
    return tuple(found)


def _taken(share: Share, candidates: tuple[Candidate, ...]) -> str:
    if share.split != "auto":
        return _asked_for(share, {each.split: each.reasons for each in candidates})
    possible = [each for each in candidates if each.wire is not None]
    taken = possible[0]
    for each in possible[1:]:
        if each.seconds < min(WORTH * taken.seconds, taken.seconds - MOMENT):
            taken = each
    return taken.split


def _asked_for(share: Share, reasons: dict[str, tuple[str, ...]]) -> str:
    against = reasons[share.split]
    if against:
        others = ", ".join(name for name, why in reasons.items() if not why)
        listed = "".join(f"\n  - {reason}" for reason in against)
        raise BackendRefused(
            f"split: got {share.split!r}, wanted one that can run this call. Against it:{listed}\n"
            f"Hint: split='auto' chooses among: {others}.",
            against,
        )
    return share.split
