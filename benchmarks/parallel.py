"""Attention over ranks: equal answers, memory, bytes on the wire and speed, with real processes on this machine.

Answers of 2, 3 and 4 ranks are compared with float64 in one process. Memory is the peak of resident bytes, inputs and
answer included. Bytes are those of the loopback device, headers included. For the speed, one process with two threads
and two ranks with one thread each run alternately.

`python -m benchmarks parallel`; `--quick` takes short sequences and few rounds.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch

import qkv
from qkv.backends import BACKENDS
from qkv.cost.communication import Spread, wire, write_points
from qkv.figures.plans import clearest, scaling_chart
from qkv.profiling.ranks import measure_ranks

from .decode import bar
from .harness import RESULTS, report
from .ranks import Ranks, on_the_wire, ranks
from .resident import CLEAR, _kilobytes

HEADS, KV_HEADS, WIDTH = 8, 8, 64
SIMILARITIES = {
    "softmax": qkv.Softmax(),
    "softcap": qkv.Softmax(softcap=3.0),
    "argmax": qkv.Argmax(),
    "polynomial": qkv.Polynomial(2),
    "elu1": qkv.FeatureMap(qkv.features.elu1),
}
MASKS: dict[str, Any] = {
    "none": None,
    "causal": qkv.Causal(),
    "window": qkv.Causal() & qkv.Window(left=37),
    "padding": qkv.Padding([211, 97]),
    "segments": qkv.Segments([0] * 90 + [1] * 121),
}
LENGTHS = {2: (106, 105), 3: (150, 0, 61), 4: (53, 53, 53, 52)}


def drawn(length: int, dtype: torch.dtype, heads: int = HEADS, batch: int = 1) -> list[torch.Tensor]:
    seed = torch.Generator().manual_seed(11)
    return [torch.randn(batch, heads, length, WIDTH, generator=seed, dtype=torch.float64).to(dtype) for _ in range(4)]


def split_answer(mesh, name: str, mask: str, lengths: tuple[int, ...]) -> list[torch.Tensor]:
    """The answer and the three gradients of this rank's shard, in float32."""
    rank, (q, k, v, grad) = mesh.get_local_rank(), drawn(sum(lengths), torch.float32, 4, 2)
    own = [t.split(lengths, dim=2)[rank].clone().requires_grad_() for t in (q, k, v)]
    out = qkv.parallel.attention(*own, mesh=mesh, similarity=SIMILARITIES[name], mask=MASKS[mask])
    assert isinstance(out, torch.Tensor)
    out.backward(grad.split(lengths, dim=2)[rank])
    return [out.detach(), *(t.grad for t in own if t.grad is not None)]


def equality(quick: bool) -> list[list[str]]:
    """The largest difference from float64, in units of the bound of the backend that one process uses."""
    rows = []
    for size, lengths in LENGTHS.items():
        with ranks(size) as group:
            for name, similarity in SIMILARITIES.items():
                worst, worst_gradient = 0.0, 0.0
                for mask in MASKS if not quick else ("causal",):
                    found = group.run(split_answer, name, mask, lengths)
                    got = [torch.cat([each[place] for each in found], dim=2) for place in range(4)]
                    exact, single = _one_process(similarity, MASKS[mask], torch.float64), None
                    backend = qkv.explain(
                        *drawn(211, torch.float32, 4, 2)[:3], similarity=similarity, mask=MASKS[mask]
                    ).backend
                    single = _one_process(similarity, MASKS[mask], torch.float32)
                    bound = max(BACKENDS[backend].bound[torch.float32], 1.0)
                    ulp = torch.finfo(torch.float32).eps * drawn(211, torch.float64, 4, 2)[2].abs().max().item()
                    worst = max(worst, (got[0].double() - exact[0]).abs().max().item() / ulp / bound)
                    for mine, theirs, true in zip(got[1:], single[1:], exact[1:], strict=True):
                        own = (theirs.double() - true).abs().max().item() + 8 * ulp
                        worst_gradient = max(worst_gradient, (mine.double() - true).abs().max().item() / own)
                rows.append([f"{name}, {size} ranks", f"{worst:.2f}", f"{worst_gradient:.2f}"])
    return rows


def _one_process(similarity: Any, mask: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    q, k, v, grad = drawn(211, dtype, 4, 2)
    own = [t.clone().requires_grad_() for t in (q, k, v)]
    out = qkv.attention(
        *own, similarity=similarity, mask=mask, backend="reference" if dtype is torch.float64 else "auto"
    )
    out.backward(grad)
    return [out.detach(), *(t.grad for t in own if t.grad is not None)]


def peak(mesh, length: int, heads: int, causal: bool) -> int:
    """The growth of the peak resident memory of this rank, for a context of `length`."""
    mask = qkv.Causal() if causal else None
    small = [torch.randn(1, heads, 256, WIDTH) for _ in range(3)]
    alone = mesh is None
    if alone:
        qkv.attention(*small, mask=mask)
    else:
        qkv.parallel.attention(*small, mesh=mesh, mask=mask, split="ring")
    CLEAR.write_text("5")
    before = _kilobytes("VmRSS")
    own = length if alone else length // mesh.size()
    q, k, v = (torch.randn(1, heads, own, WIDTH) for _ in range(3))
    out = (
        qkv.attention(q, k, v, mask=mask)
        if alone
        else qkv.parallel.attention(q, k, v, mesh=mesh, mask=mask, split="ring")
    )
    assert isinstance(out, torch.Tensor)
    assert out.shape[2] == own
    return (_kilobytes("VmHWM") - before) << 10


def alone(_, length: int, heads: int, causal: bool) -> int:
    torch.set_num_threads(2)
    try:
        return peak(None, length, heads, causal)
    finally:
        torch.set_num_threads(1)


def memory(quick: bool) -> tuple[list[list[str]], list[float]]:
    """One process and four ranks, all new, so that no other call's memory counts."""
    length, heads = (16384, 2) if quick else (131072, 2)
    rows, ratios = [], []
    for causal in (False, True):
        with ranks(1) as one:
            (single,) = one.run(alone, length, heads, causal)
        with ranks(4) as four:
            each = max(four.run(peak, length, heads, causal))
        ratios.append(each / single)
        name = f"{'causal' if causal else 'full'}, {length} tokens, {heads} heads"
        rows.append([name, f"{single / 2**20:.0f}", f"{each / 2**20:.0f}", f"{each / single:.3f}"])
    return rows, ratios


def once(mesh, length: int, name: str, causal: bool, split: str) -> dict[str, Any]:
    """Bytes and messages that this rank counted in one call, and its seconds."""
    from qkv.parallel.transfer import TRAFFIC

    own = length // mesh.size()
    q, k, v = (torch.randn(1, HEADS if name == "softmax" else 2, own, WIDTH) for _ in range(3))
    TRAFFIC.clear()
    started = time.perf_counter()
    mask = qkv.Causal() if causal else None
    qkv.parallel.attention(q, k, v, mesh=mesh, similarity=SIMILARITIES[name], mask=mask, split=split)
    return {"seconds": time.perf_counter() - started, **TRAFFIC}


def carried(group: Ranks, *arguments: Any) -> tuple[int, list[dict[str, Any]]]:
    before = on_the_wire()
    found = group.run(once, *arguments)
    return on_the_wire() - before, found


def ring_formula(length: int, size: int, causal: bool) -> int:
    """Bytes that all ranks together send: keys and values that are attended, and queries and answers that move."""
    sizes: dict[str, Any] = {"batch": 1, "heads": HEADS, "kv_heads": KV_HEADS, "width": WIDTH, "value_width": WIDTH}
    return wire("ring", Spread(**sizes, tokens=length, ranks=size, causal=causal)).total


def bytes_sent(quick: bool) -> tuple[list[list[str]], list[float], float]:
    rows, off = [], []
    length = 4096 if quick else 16384
    with ranks(4) as group:
        for causal in (False, True):
            seen, _ = carried(group, length, "softmax", causal, "ring")
            predicted = ring_formula(length, 4, causal)
            off.append(abs(seen / predicted - 1))
            rows.append(
                [
                    f"ring, {'causal' if causal else 'full'}, {length}",
                    str(predicted),
                    str(seen),
                    f"{seen / predicted:.4f}",
                ]
            )
        found = []
        for long in (length, 16 * length):
            for name in ("elu1", "polynomial") if not quick else ("elu1",):
                seen, each = carried(group, long, name, True, "scan")
                found.append((name, sum(rank.get("data bytes", 0) for rank in each), seen))
                rows.append([f"scan, {name}, {long}", str(found[-1][1]), str(seen), f"{seen / found[-1][1]:.4f}"])
    by_name = {name: {sent for other, sent, _ in found if other == name} for name, _, _ in found}
    return rows, off, float(max(len(sent) for sent in by_name.values()))


def speed(quick: bool) -> tuple[list[list[str]], dict[str, float], list[dict[str, Any]]]:
    """One process with two threads and ranks with one thread each, alternately."""
    length, rounds = (4096, 3) if quick else (16384, 7)
    q, k, v = drawn(length, torch.float32)[:3]
    rows, ratios, points = [], {}, []
    torch.set_num_threads(2)
    with ranks(2) as two, ranks(4) as four:
        for causal in (False, True):
            mask = qkv.Causal() if causal else None
            times: dict[str, list[float]] = {"one": [], "two": [], "four": []}
            qkv.attention(q, k, v, mask=mask)
            two.run(once, length, "softmax", causal, "ring")
            four.run(once, length, "softmax", causal, "ring")
            for number in range(rounds):
                started = time.perf_counter()
                qkv.attention(q, k, v, mask=mask)
                times["one"].append(time.perf_counter() - started)
                for name, group in (("two", two), ("four", four)) if number % 2 else (("four", four), ("two", two)):
                    found = group.run(once, length, "softmax", causal, "ring")
                    times[name].append(max(rank["seconds"] for rank in found))
            kind = "causal" if causal else "full"
            each = [a / b for a, b in zip(times["one"], times["two"], strict=True)]
            ratios[kind] = statistics.median(each)
            rows.append([
                f"{kind}, {length} tokens, {HEADS} heads", *(f"{statistics.median(t):.3f}" for t in times.values()),
                f"{ratios[kind]:.3f}", f"{min(each):.2f}-{max(each):.2f}",
            ])  # fmt: skip
            points += [
                {"ranks": n, "tokens": length, "heads": HEADS, "width": WIDTH, "causal": causal, "split": "ring",
                 "seconds": statistics.median(times[name])}
                for n, name in ((1, "one"), (2, "two"), (4, "four"))
            ]  # fmt: skip
    return rows, ratios, points


def picture(quick: bool) -> None:
    """Predicted scaling to thousands of machines, with the measurements of this machine: scaling.svg."""
    points = measure_ranks(4, 2048 if quick else 8192)
    write_points(points, RESULTS / "parallel-points.json")
    found = qkv.cost.plan("llama-3-8b", "h100-sxm", context=1_000_000, machines=4096, link="25GBps").scaling
    assert found is not None
    drawn = scaling_chart("llama-3-8b on h100-sxm, and ranks here", found, clearest(points))
    (RESULTS / "scaling.svg").write_text(drawn, encoding="utf-8")
    rows = [
        [f"{p.split}, {p.ranks} ranks", f"{p.seconds:.3f}", f"{p.predicted():.3f}" if p.ranks > 1 else ""]
        for p in points
    ]
    title, columns = (
        f"Seconds, {points[0].tokens} tokens, causal, one thread a rank",
        ["split", "measured", "predicted"],
    )
    report("parallel-points", title, columns, rows, [dict(zip(columns, row, strict=True)) for row in rows])


def run() -> None:
    quick = "--quick" in sys.argv
    equal = equality(quick)
    report(
        "parallel-equal",
        "Largest difference from float64, over masks, uneven shards: answer / bound, gradients / one process's own",
        ["similarity", "answer", "gradients"],
        equal,
        [dict(zip(("case", "answer", "gradient"), row, strict=True)) for row in equal],
    )
    peaks, shares = memory(quick)
    report("parallel-memory", "Peak memory, MiB", ["context", "one process", "each of 4", "ratio"], peaks,
           [dict(zip(("case", "one", "each", "ratio"), row, strict=True)) for row in peaks])  # fmt: skip
    sent, off, kinds = bytes_sent(quick)
    report("parallel-bytes", "Bytes on the wire, 4 ranks", ["split", "formula or sent", "loopback", "ratio"], sent,
           [dict(zip(("case", "formula", "wire", "ratio"), row, strict=True)) for row in sent])  # fmt: skip
    timed, ratios, points = speed(quick)
    report("parallel-speed", "Seconds a call, forward", ["context", "1 x 2 threads", "2 ranks", "4 ranks", "2 to 1",
    "spread"],
           timed, points)  # fmt: skip
    picture(quick)
    rows = [
        bar("answers within the backend's bound", max(float(row[1]) for row in equal), ".2f", most=1.0),
        bar("gradients, to one process's own error", max(float(row[2]) for row in equal), ".2f", most=4.0),
        bar("peak memory of one rank of 4 to one process", max(shares), ".3f", most=0.30),
        bar("ring: bytes from the formula", max(off), ".4f", most=0.02),
        bar("scan: different byte counts over lengths", kinds, ".0f", most=1.0),
        *(bar(f"two ranks to one process, {kind}", value, ".3f", least=0.85) for kind, value in ratios.items()),
    ]
    report("parallel", "Targets", ["figure", "measured", "target", ""], rows,
           [dict(zip(("figure", "measured", "target", "met"), row, strict=True)) for row in rows])  # fmt: skip
