"""Process faults: what happens at the same time in one process, and how it has to end. All is drawn from a seed.

Each runs in a separate process (process_fault_worker.py). A failed check raises, and the process ends with 1.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import qkv

HEADS, KV_HEADS, WIDTH = 4, 2, 16
LIMIT = 40  # seconds that a process may take
ELU1, SQUARE = qkv.FeatureMap(qkv.features.elu1), qkv.Polynomial(2)


def numbers(seed: int, heads: int, n: int) -> Tensor:
    return torch.randn(1, heads, n, WIDTH, generator=torch.Generator().manual_seed(seed))


def token(seed: int, n: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    return numbers(3 * seed, HEADS, n), numbers(3 * seed + 1, KV_HEADS, n), numbers(3 * seed + 2, KV_HEADS, n)


def new_cache(draw: random.Random) -> Any:
    """A cache of any kind, with a prompt."""
    kind = draw.choice(("float32", "bfloat16", "int8", "ring", "elu1", "square"))
    if kind in ("elu1", "square"):
        cache = qkv.LinearState(ELU1 if kind == "elu1" else SQUARE, 1, KV_HEADS, WIDTH)
    else:
        window = 300 if kind == "ring" else None
        dtype = torch.float32 if kind == "ring" else getattr(torch, kind)
        cache = qkv.KVCache(1, KV_HEADS, WIDTH, dtype=dtype, window=window)
    cache.append(*token(draw.randrange(1000), draw.choice((1, 63, 64, 700)))[1:])
    return cache


def walk(cache: Any, seed: int, steps: int) -> list[Tensor]:
    """The answers of `steps` decoding steps; forks that are changed on the way must not matter."""
    found = []
    for t in range(steps):
        found.append(qkv.decode(*token(seed + t), cache))
        if t % 7 == 3:
            branch = cache.fork()
            branch.append(*token(seed - t, 5)[1:])
            branch.crop(cache.length)
    return found


def same(found: list[Tensor], wanted: list[Tensor], what: str) -> None:
    for t, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert torch.equal(one, other), f"{what}: answer {t} has other bits"


def plain_calls(draw: random.Random) -> list[Callable[[], Tensor]]:
    """Calls without a cache on native backends: torch's operators do not work in a forked child or during an exit."""
    q, k, v = token(draw.randrange(1000), draw.choice((1, 33, 257)))
    return [
        lambda: qkv.attention(q, k, v, backend="native"),
        lambda: qkv.attention(q, k, v, mask=qkv.Causal(), backend="native"),
        lambda: qkv.attention(q, k, v, similarity=qkv.Argmax(), backend="argmax"),
    ]


def start_busy_threads(draw: random.Random, stop: threading.Event, daemon: bool) -> list[threading.Thread]:
    """Threads that run kernels nearly all the time, each with a separate cache and separate calls."""

    def work(cache: Any, calls: list[Callable[[], Tensor]], seed: int) -> None:
        fresh = token(seed)
        while not stop.is_set():
            qkv.decode(*fresh, cache)
            calls[seed % len(calls)]()
            if cache.length > 3000:
                cache.reset()

    threads = []
    for _ in range(draw.randint(1, 3)):
        args = new_cache(draw), plain_calls(draw), draw.randrange(1000)
        threads.append(threading.Thread(target=work, args=args, daemon=daemon))
    for thread in threads:
        thread.start()
    return threads


def in_child(run: Callable[[], None]) -> None:
    """Run in a forked child, which must end in time."""
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT // 2)
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"the forked child ended with {code}" + (": it hung" if code == -signal.SIGALRM else "")


def fork_fault(draw: random.Random) -> None:
    """Fork while other threads decode: child and parent can both continue with every cache."""
    idle, shared, seed = new_cache(draw), new_cache(draw), draw.randrange(1000)
    calls = plain_calls(draw)
    wanted, answers = walk(idle.fork(), seed, 9), [call() for call in calls]
    stop = threading.Event()

    def keep_shared_busy() -> None:
        while not stop.is_set():
            qkv.decode(*token(seed), shared)
            if shared.length > 3000:
                shared.reset()

    def continue_in_child() -> None:
        same(walk(idle.fork(), seed, 9), wanted, "a fork of the cache in a child")
        same([call() for call in calls], answers, "calls in a child")
        before = shared.length
        qkv.decode(*token(seed), shared)
        assert shared.length == before + 1, f"{shared.length} tokens after a step from {before}"

    busy = threading.Thread(target=keep_shared_busy)
    busy.start()
    threads = start_busy_threads(draw, stop, daemon=False)
    try:
        for _ in range(6):
            time.sleep(draw.random() / 200)
            in_child(continue_in_child)
            same(walk(idle.fork(), seed, 9), wanted, "the parent after a fork")
    finally:
        stop.set()
        for thread in (busy, *threads):
            thread.join(LIMIT)


def thread_fault(draw: random.Random) -> None:
    """8 to 16 threads, each with a fork of one cache, all with a shared one; the number of kernel threads changes."""
    count, seed = draw.randint(8, 16), draw.randrange(1000)
    cache, shared = new_cache(draw), qkv.KVCache(1, 1, WIDTH)
    calls = plain_calls(draw)
    alone, answers = [walk(cache.fork(), seed + 50 * n, 12) for n in range(count)], [call() for call in calls]
    failed: list[BaseException] = []
    start = threading.Barrier(count)

    def work(number: int) -> None:
        try:
            mine, pick = cache.fork(), random.Random(seed + number)
            start.wait(LIMIT)
            same(walk(mine, seed + 50 * number, 12), alone[number], f"thread {number}")
            for t in range(20):
                mark = torch.full((1, 1, 1, WIDTH), float(100 * number + t + 1))
                qkv.decode(mark, mark, mark, shared)
                torch.set_num_threads(pick.randint(1, 4))
                same([calls[t % 3]()], [answers[t % 3]], f"a call in thread {number}")
                if pick.random() < 0.1:
                    shared.fork().append(-mark, mark)
                if pick.random() < 0.05:
                    back = max(0, shared.length - 2)
                    with shared.lock:
                        shared.crop(min(back, shared.length))
                if pick.random() < 0.1:
                    key, value = shared.tensors()
                    assert torch.equal(key, value), "half a token"
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if failed:
        raise failed[0]
    key, value = shared.tensors()
    assert torch.equal(key, value), "a key with another token's value"
    assert bool((key == key[..., :1]).all()), "a torn token"
    assert bool((key > 0).all()), "a token of a branch"
    marks = key[0, 0, :, 0].tolist()
    assert len(set(marks)) == len(marks), "a token twice"


def interrupt_fault(draw: random.Random) -> None:
    """SIGINT at any moment: a step is in the cache completely or not at all, and later steps have the right bits."""
    cache, seed = new_cache(draw), draw.randrange(1000)
    model, start = cache.fork(), cache.length
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    wanted = [qkv.decode(*token(seed + t), model) for t in range(400)]
    t, hits, end = 0, 0, time.monotonic() + 1.0
    while t < 380 and hits < 40 and time.monotonic() < end:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.00002 + draw.random() / 2000)
            while t < 380:
                found = qkv.decode(*token(seed + t), cache)
                assert torch.equal(found, wanted[t]), f"step {t} after {hits} interruptions"
                t += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            hits += 1
            done = cache.length - start
            assert done in (t, t + 1), f"{done} steps are in the cache, {t} were taken"
            assert cache.lengths.tolist() == [cache.length]
            t = done
    for later in range(t, min(t + 12, 400)):
        assert torch.equal(qkv.decode(*token(seed + later), cache), wanted[later]), f"step {later} after {hits}"
    assert hits, "nothing was interrupted"


def pool_task(seed: int) -> list[Tensor]:
    torch.set_num_threads(1)
    draw = random.Random(seed)
    return walk(new_cache(draw), seed, 9) + [call() for call in plain_calls(draw)]


def _pool_fault(draw: random.Random, method: str) -> None:
    """A pool of processes that give the same answers as this one."""
    seeds = [draw.randrange(1000) for _ in range(6)]
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.map_async(pool_task, seeds).get(LIMIT)
    for seed, answers in zip(seeds, found, strict=True):
        same(answers, pool_task(seed), f"a process of a {method} pool, seed {seed}")


class Teardown:
    """Keep caches until the interpreter clears the modules, and reset them there."""

    def __init__(self, *caches: Any) -> None:
        self.caches = caches

    def __del__(self) -> None:
        for cache in self.caches:
            cache.reset()


KEPT: list[Any] = []
EXIT_CODES = {
    "falls off its end": 0,
    "sys.exit": 7,
    "os._exit": 9,
    "raises": 1,
    "SIGTERM": -signal.SIGTERM,
    "SIGINT": -signal.SIGINT,
    "sys.exit in a thread": 0,
    "atexit handlers that decode": 0,
    "caches that outlive the modules": 0,
}


def exit_kind(seed: int) -> str:
    return random.Random(seed).choice(list(EXIT_CODES))


def exit_fault(draw: random.Random) -> None:
    """A process that ends, in one of many ways, while daemon threads run kernels."""
    way, cache, seed = draw.choice(list(EXIT_CODES)), new_cache(draw), draw.randrange(1000)
    wanted = walk(cache.fork(), seed, 5)
    if draw.random() < 0.8:
        start_busy_threads(draw, threading.Event(), daemon=True)
    time.sleep(draw.random() / 50)

    def decode_at_exit() -> None:
        try:
            same(walk(cache, seed, 5), wanted, "an atexit handler")
        except BaseException:
            os._exit(3)

    match way:
        case "sys.exit" | "os._exit":
            (sys.exit if way == "sys.exit" else os._exit)(EXIT_CODES[way])
        case "raises":
            raise RuntimeError("this process ends with an error")
        case "SIGTERM" | "SIGINT":
            os.kill(os.getpid(), getattr(signal, way))
            time.sleep(LIMIT)
        case "sys.exit in a thread":
            threading.Thread(target=sys.exit, args=(5,)).start()
        case "atexit handlers that decode":
            atexit.register(decode_at_exit)
        case "caches that outlive the modules":
            KEPT.append(Teardown(cache, cache.fork(), new_cache(draw)))


KINDS: dict[str, Callable[[random.Random], None]] = {
    "fork": fork_fault,
    "threads": thread_fault,
    "interrupt": interrupt_fault,
    "exit": exit_fault,
    "pool of forks": lambda draw: _pool_fault(draw, "fork"),
    "pool of a fork server": lambda draw: _pool_fault(draw, "forkserver"),
    "pool of spawned": lambda draw: _pool_fault(draw, "spawn"),
}


def cause_fault(kind: str, seed: int) -> None:
    """Cause one fault in this process, which must not be used for anything else afterwards."""
    warnings.simplefilter("error")
    KINDS[kind](random.Random(seed))
