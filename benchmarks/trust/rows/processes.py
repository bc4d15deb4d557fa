"""Rows 45 to 48: threads, a fork, Ctrl-C, out of memory, no native library. Each runs in a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from typing import Any

import torch

from ..inputs import by_way, problem, right
from ..subjects import Subject
from ..verdict import Crashed, NotOffered, Wrong, close, each, in_one_line, same_bits
from . import row
from .sizes import address_space

TIMEOUT = 30  # seconds for a call of milliseconds
LARGE = {"batch": 2, "heads_q": 6, "len_q": 256, "len_k": 256, "width": 64}


def _in_threads(count: int, run: Any) -> list[BaseException]:
    failed: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            run(number)
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(40)
    if any(worker.is_alive() for worker in workers):
        raise Crashed("a thread hangs")
    return failed


@row(45, "two threads on one problem; on one cache", alone=True)
def threads(subject: Subject) -> str:
    tensors = problem(subject, **LARGE)

    def reading(way: str) -> None:
        want = subject.attend(way, *tensors)
        found: list[list[torch.Tensor]] = [[], []]
        failed = _in_threads(2, lambda number: found[number].extend(subject.attend(way, *tensors) for _ in range(20)))
        if failed:
            raise Wrong(f"a thread ended with {in_one_line(failed[0])}")
        for out in found[0] + found[1]:
            same_bits(out, want, "in a thread")

    def writing() -> str:
        cache = subject.cache("growing")
        token = torch.ones(2, 3, 1, 8)
        cache.append(token, token)

        def run(number: int) -> None:
            for _ in range(400):
                cache.append(token, token)

        switch = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            failed = _in_threads(2, run)
        finally:
            sys.setswitchinterval(switch)
        if failed:
            if isinstance(failed[0], subject.error) and subject.name == "qkv":
                return "refused"
            raise Wrong(f"a thread ended with {in_one_line(failed[0])}")
        if cache.length != 801:
            raise Wrong(f"{cache.length} of 801 tokens are in the cache, and no error was raised")
        return "every token is there once"

    each({"one problem": lambda: by_way(subject, reading), "one cache": writing})
    return "the same bits in both threads; a cache that two threads append to has every token once"


@row(46, "fork after a call, and a call in the child", alone=True)
def forked(subject: Subject) -> str:
    torch.set_num_threads(2)
    tensors = problem(subject, **LARGE)
    wanted = {way: subject.attend(way, *tensors) for way in subject.ways}
    warnings.simplefilter("ignore")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for way in subject.ways:
                close(subject.attend(way, *tensors), wanted[way], torch.float32)
            code = 0
        except Wrong:
            code = 2
        except BaseException:
            code = 3
        finally:
            os._exit(code)
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.02)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise Crashed(f"the call in the child hangs ({TIMEOUT} s)")
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        raise Crashed(f"the child died of signal {-code}")
    if code == 2:
        raise Wrong("other numbers in the child")
    return "right in the child" if code == 0 else "refused in the child at once"


@row(47, "Ctrl-C in the middle; out of memory", alone=True)
def interrupted(subject: Subject) -> str:
    tensors = problem(subject)
    want = right(tensors).out

    def sound(way: str) -> None:
        close(subject.attend(way, *tensors), want, torch.float32, "a call afterwards")

    def ctrl_c(way: str) -> None:
        large = problem(subject, batch=1, heads_q=6, len_q=512, len_k=512, width=64)
        subject.attend(way, *large)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            for _ in range(2000):
                subject.attend(way, *large)
        except KeyboardInterrupt:
            sound(way)
            return
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        raise Wrong("Ctrl-C was lost")

    def no_memory(way: str) -> None:
        heads = {"heads_kv": 1}
        scores = problem(subject, batch=1, heads_q=1, len_q=24000, len_k=24000, width=8, **heads)
        sound(way)
        with address_space(3 * 10**8):
            for given in [scores, *_wide(subject)]:
                try:
                    subject.attend(way, *given)
                except Exception:  # any exception is right, as long as the process survives
                    continue
        sound(way)

    # A background job of a shell ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    return (
        each(
            {
                "Ctrl-C": lambda: by_way(subject, ctrl_c),
                "no memory": lambda: by_way(subject, no_memory),
            }
        )
        and "the exception arrives, and the next call is right"
    )


def _wide(subject: Subject) -> list[list[torch.Tensor]]:
    """Expanded inputs whose result has 10^9 numbers, which cannot be allocated."""
    if not subject.takes_strides:
        return []
    shapes = ((1, 4096, 4096, 64), (1, 4096, 1, 64), (1, 4096, 1, 64))
    return [[torch.ones(1, 1, 1, 1).expand(shape) for shape in shapes]]


WITHOUT = """
import torch, qkv
from qkv.testing.oracle import oracle
q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
for similarity in (qkv.Softmax(), qkv.Argmax(), qkv.FeatureMap(qkv.features.elu1)):
    found = qkv.attention(q, k, v, similarity=similarity)
    torch.testing.assert_close(found.double(), oracle(q, k, v, similarity=similarity).out, atol=1e-4, rtol=1e-4)
cache = qkv.KVCache(2, 3, 8)
found = qkv.decode(q, k, v, cache)
causal = torch.ones(5, 5, dtype=torch.bool).tril()
torch.testing.assert_close(found.double(), oracle(q, k, v, mask=causal).out, atol=1e-4, rtol=1e-4)
print("explained:", " ".join(str(qkv.explain(q, k, v, similarity=qkv.Argmax())).split()))
try:
    qkv.attention(q, k, v, backend="native")
    print("by name: ran")
except qkv.errors.QkvError as error:
    print("by name:", " ".join(str(error).split()))
"""

TWO_RUNTIMES = """
import ctypes, re, shutil, tempfile, torch, qkv
def runtimes():
    return set(re.findall(r"/\\S*lib(?:gomp|omp|iomp5)\\S*", open("/proc/self/maps").read()))
with tempfile.TemporaryDirectory() as folder:
    copy = shutil.copy(next(iter(runtimes())), folder + "/libgomp-second.so")
    ctypes.CDLL(copy, mode=ctypes.RTLD_GLOBAL)
    assert len(runtimes()) == 2
torch.set_num_threads(2)
from qkv.testing.oracle import oracle
q, k, v = (torch.randn(2, 3, 65, 8) for _ in range(3))
for backend in ("auto", "reference", "blockwise", "sdpa"):
    found = qkv.attention(q, k, v, backend=backend)
    torch.testing.assert_close(found.double(), oracle(q, k, v).out, atol=1e-4, rtol=1e-4)
"""


def script(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text], env=os.environ | environment, capture_output=True, text=True, timeout=60
    )


@row(48, "no native library, a wrong ISA, two OpenMPs", alone=True)
def without_the_native_library(subject: Subject) -> str:
    if subject.name != "qkv":
        raise NotOffered("it has no switch for this")
    run = script(WITHOUT, QKV_NATIVE="0")
    if run.returncode != 0:
        raise Wrong(f"without the native library: {run.stderr.strip().splitlines()[-1]}")
    explained, by_name = run.stdout.splitlines()[-2:]
    for line in (explained, by_name):
        if "QKV_NATIVE=0" not in line:
            raise Wrong(f"the reason is missing: {line}")
    wrong = script("import qkv, torch; qkv.ops.isa()", QKV_ISA="sve9")
    if wrong.returncode == 0 or "QKV_ISA" not in wrong.stderr:
        raise Wrong("QKV_ISA=sve9 is not refused")
    two = script(TWO_RUNTIMES)
    if two.returncode != 0:
        raise Wrong(f"with a second OpenMP: {two.stderr.strip().splitlines()[-1]}")
    return "torch's backends run, and explain says why; `native` by name is refused; a second OpenMP changes nothing"
