"""The end of a process while daemon threads are in kernels: its own exit code, and not a word from C++."""

import subprocess
import sys

import pytest

CODE = """
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


@pytest.mark.parametrize("call", ["step", "many queries", "argmax"])
def test_a_daemon_thread_in_a_kernel_does_not_abort_the_process(call: str) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, call], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (7, "")


HELD = """
import builtins
import torch, qkv

class Last:
    def __init__(self, cache):
        self.memory = cache
    def __del__(self):
        self.cache.reset()

cache = qkv.KVCache(2, 2, 8)
cache.append(torch.ones(2, 2, 70, 8), torch.ones(2, 2, 70, 8))
builtins.last = Last(cache)  # taken apart after all modules
"""


def test_a_memory_can_be_emptied_when_nothing_can_be_imported_any_more() -> None:
    """Found by the campaign of storms."""
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
