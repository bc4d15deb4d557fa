"""Attention over a long causal context that is sharded over ranks.

    torchrun --nproc-per-node 4 examples/long_context.py

Every rank creates its shard of queries, keys and values; no rank holds the whole sequence. Printed are the time, the
bytes sent, the memory, and the error of sampled rows against the equation in float64.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Ctrl-C ends a rank at once and without a traceback, also while it loads or waits for others.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import qkv

SIMILARITIES = {
    "softmax": qkv.Softmax(),
    "elu1": qkv.FeatureMap(qkv.features.elu1),
    "polynomial": qkv.Polynomial(degree=2),
}
EXAMPLE = """example:
  torchrun --nproc-per-node 4 examples/long_context.py --tokens 65536 --similarity elu1
"""
ROWS_PER_RANK = 3
ITEM = 4  # bytes of a number
MOST = 2**63 - 1


def main() -> None:
    options = read_options()
    check_memory(options)
    mesh = join()
    try:
        found = [measured(mesh, options, name) for name in options.similarity]
        if dist.get_rank() == 0:
            print(json.dumps(found, indent=2) if options.json else table(options, found), flush=True)
        dist.barrier()  # no rank leaves while another still receives
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "alloc" not in str(error):
            raise
        sys.exit(f"long_context: rank {dist.get_rank()} is out of memory; use fewer tokens or heads, or more ranks")
    finally:
        dist.destroy_process_group()


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compute attention over a long causal context that is sharded over ranks.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tokens", type=count, default=16384, help="set the length of the whole context (16384)")
    parser.add_argument("--heads", type=count, default=4, help="set the number of heads (4)")
    parser.add_argument("--width", type=count, default=64, help="set the width of a head (64)")
    names = ", ".join(SIMILARITIES)
    parser.add_argument(
        "--similarity", nargs="+", choices=SIMILARITIES, default=["softmax", "elu1"], metavar="NAME",
        help=f"choose what to measure: {names} (softmax elu1)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON, with sizes in bytes and times in seconds")
    return parser.parse_args()


def count(text: str) -> int:
    if not text.isdecimal() or len(text) > len(str(MOST)) or not 1 <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"got {text[:40]!r}, wanted a whole number from 1 to 2^63 - 1")
    return int(text)


def check_memory(options: argparse.Namespace) -> None:
    """Exit if queries, keys, values and outputs of the ranks on this machine do not fit its memory."""
    ranks, here = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    needed = 4 * -(-options.tokens // ranks) * here * options.heads * options.width * ITEM
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        sizes = f"{needed / 1e9:.3g} GB for the shards on this machine, which has {available / 1e9:.3g} GB"
        # Every rank comes to the same result; one prints it.
        sys.exit(
            f"long_context: {sizes}; use fewer tokens or more machines"
            if os.environ.get("LOCAL_RANK", "0") == "0"
            else 1
        )


def join() -> DeviceMesh:
    """The ranks that torchrun started, or this process alone."""
    if "RANK" in os.environ:
        if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all on this machine
        dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ranks",))


def shard(options: argparse.Namespace, rank: int) -> list[Tensor]:
    """Query, key and value of a rank, (1, heads, own tokens, width); the same numbers on any rank that creates them."""
    draw = torch.Generator().manual_seed(rank)
    start, stop = span(options, rank)
    shape = 1, options.heads, stop - start, options.width
    return [torch.randn(shape, generator=draw) for _ in range(3)]


def span(options: argparse.Namespace, rank: int) -> tuple[int, int]:
    ranks = dist.get_world_size()
    return rank * options.tokens // ranks, (rank + 1) * options.tokens // ranks


def measured(mesh: DeviceMesh, options: argparse.Namespace, name: str) -> dict[str, Any]:
    """One call: time, bytes sent and memory, each of the rank with the most."""
    similarity, mask = SIMILARITIES[name], qkv.Causal()
    small = [torch.zeros(1, options.heads, 1, options.width) for _ in range(3)]
    qkv.parallel.attention(*small, mesh=mesh, similarity=similarity, mask=mask)  # opens the connections
    own = shard(options, dist.get_rank())
    split = qkv.parallel.explain(*own, mesh=mesh, similarity=similarity, mask=mask).split
    sent, resident = qkv.parallel.bytes_sent(), resident_before_call()
    dist.barrier()
    begin = time.perf_counter()
    out = qkv.parallel.attention(*own, mesh=mesh, similarity=similarity, mask=mask)
    seconds = time.perf_counter() - begin
    assert isinstance(out, Tensor)
    start, stop = span(options, dist.get_rank())
    places = sorted({start + (stop - start - 1) * n // (ROWS_PER_RANK - 1) for n in range(ROWS_PER_RANK)})
    mine = {
        "tokens": stop - start,
        "seconds": seconds,
        "bytes_sent": qkv.parallel.bytes_sent() - sent,
        "bytes_held": max(process_bytes("VmHWM") - resident, 0),
        "rows": [(place, out[0, :, place - start]) for place in places if start <= place < stop],
    }
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    found = {
        "similarity": name,
        "split": split,
        "ranks": len(everyone),
        "tokens": options.tokens,
        "tokens_per_rank": max(each["tokens"] for each in everyone),
        "seconds": max(each["seconds"] for each in everyone),
        "bytes_sent_per_rank": max(each["bytes_sent"] for each in everyone),
        "bytes_held_per_rank": max(each["bytes_held"] for each in everyone),
    }
    if dist.get_rank() == 0:
        rows = [row for each in everyone for row in each["rows"]]
        found |= {"rows_compared": len(rows), "largest_difference": difference(options, name, rows)}
    return found


def difference(options: argparse.Namespace, name: str, rows: list[tuple[int, Tensor]]) -> float:
    """Largest difference of rows, (heads, width) each, from Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j) in float64.

    This process creates every shard again, one after the other.
    """
    places = torch.tensor([place for place, _ in rows])
    answer = torch.stack([row for _, row in rows], dim=1).double()
    queries = torch.zeros(options.heads, len(rows), options.width, dtype=torch.float64)
    for rank in range(dist.get_world_size()):
        start, stop = span(options, rank)
        here = (places >= start) & (places < stop)
        queries[:, here] = shard(options, rank)[0][0, :, places[here] - start].double()
    numerator, denominator = torch.zeros_like(answer), torch.zeros(*answer.shape[:2], 1, dtype=torch.float64)
    for rank in range(dist.get_world_size()):
        start, stop = span(options, rank)
        _, key, value = (tensor[0].double() for tensor in shard(options, rank))
        attended = torch.arange(start, stop) <= places[:, None]
        sims = torch.where(attended, similarities(name, queries, key), 0.0)
        numerator += sims @ value
        denominator += sims.sum(-1, keepdim=True)
    return (numerator / denominator - answer).abs().max().item()


def similarities(name: str, query: Tensor, key: Tensor) -> Tensor:
    if name == "elu1":
        return qkv.features.elu1(query) @ qkv.features.elu1(key).mT
    products = query @ key.mT
    return (products + 1.0) ** 2 if name == "polynomial" else torch.exp(products / query.shape[-1] ** 0.5)


def resident_before_call() -> int:
    """Resident bytes of this process, after free memory is returned and the peak is reset."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except (OSError, AttributeError):  # not Linux: the peak is that of the whole run
        pass
    return process_bytes("VmRSS")


def process_bytes(name: str) -> int:
    """Resident bytes of this process: VmRSS now, VmHWM at the peak."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


def table(options: argparse.Namespace, found: list[dict[str, Any]]) -> str:
    ranks = found[0]["ranks"]
    sizes = f"{options.tokens} tokens, causal, {options.heads} heads of width {options.width}, float32"
    lines = [
        f"{sizes}; each of {ranks} rank{'s' * (ranks > 1)}:",
        "",
        "similarity  split    tokens     time       sent    memory  off float64",
    ]
    for each in found:
        sent, held = (f"{each[name] / 1e6:.3f} MB" for name in ("bytes_sent_per_rank", "bytes_held_per_rank"))
        lines.append(
            f"{each['similarity']:<11} {each['split']:<6} {each['tokens_per_rank']:>8} {each['seconds']:>6.2f} s "
            f"{sent:>10} {held:>10}  {each['largest_difference']:>11.1e}"
        )
    lines += ["", "memory: in addition to the shard; off float64: largest error of sampled rows"]
    if ranks == 1:
        lines.append("one rank only: torchrun --nproc-per-node 4 examples/long_context.py starts four")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
