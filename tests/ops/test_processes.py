"""Processes: exit while daemon threads run kernels, and work in a forked child."""

import subprocess
import sys

import pytest

DAEMON = """
import sys, threading, time
import torch, qkv

torch.set_num_threads(1)
cache, ring = qkv.KVCache(1, 2, 64), qkv.KVCache(1, 2, 64, window=3000)
prompt = torch.randn(1, 2, 1024, 64)
cache.append(prompt, prompt)
ring.append(prompt, prompt)
query, token = torch.randn(1, 8, 1, 64), torch.randn(1, 2, 1, 64)
calls = {
    "step": lambda: qkv.decode(query, token, token, ring),
    "many queries": lambda: qkv.attention(prompt, prompt, prompt, backend="native"),
    "argmax": lambda: qkv.attention(prompt, prompt, prompt, similarity=qkv.Argmax(), backend="argmax"),
}
started = threading.Event()

def work(call):
    while True:
        call()
        started.set()

threading.Thread(target=work, args=(calls[sys.argv[1]],), daemon=True).start()
started.wait(30)
time.sleep(0.02)
sys.exit(7)
"""


@pytest.mark.slow
@pytest.mark.parametrize("call", ["step", "many queries", "argmax"])
def test_a_daemon_thread_in_a_kernel_does_not_abort_the_process(call: str) -> None:
    done = subprocess.run([sys.executable, "-c", DAEMON, call], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (7, "")


CACHE_AT_EXIT = """
import builtins
import torch, qkv

class Last:
    def __init__(self, cache):
        self.cache = cache
    def __del__(self):
        self.cache.reset()

cache = qkv.KVCache(2, 2, 8)
cache.append(torch.ones(2, 2, 70, 8), torch.ones(2, 2, 70, 8))
builtins.last = Last(cache)  # deleted after all modules
"""


@pytest.mark.slow
def test_a_cache_can_be_reset_while_the_interpreter_shuts_down() -> None:
    done = subprocess.run([sys.executable, "-c", CACHE_AT_EXIT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


FORK = """
import os, sys, warnings
import torch
from qkv import ops

torch.set_num_threads(2)
query = torch.randn(1, 4, 257, 17)
finite = torch.zeros(3_000_017)
wanted = ops.argmax_scores(query, query)
assert ops.all_finite(finite) and ops.reasons_for_one_thread() == ()
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    same = torch.equal(ops.argmax_scores(query, query), wanted) and ops.all_finite(finite)
    os._exit(0 if same and "forked" in ops.reasons_for_one_thread()[0] else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(ops.argmax_scores(query, query), wanted)
"""


@pytest.mark.slow
def test_forked_child_works_on_one_thread() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


LOCKED = """
import os, sys
from qkv import ops

# As if another thread were starting a block: that thread does not exist in the child.
with sys.modules["qkv.ops.loader"]._lock:
    child = os.fork()
    if child == 0:
        with ops.count_executed():
            pass
        os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_forked_child_counts_although_its_parent_held_the_lock() -> None:
    done = subprocess.run([sys.executable, "-c", LOCKED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
