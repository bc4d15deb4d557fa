"""A forked child has none of torch's threads: it works alone and says so, and does not hang."""

import subprocess
import sys

CODE = """
import os, sys, warnings
import torch
from qkv import kernels

torch.set_num_threads(2)
query = torch.randn(1, 4, 257, 17)
finite = torch.zeros(3_000_017)
wanted = kernels.argmax_scores(query, query)
assert kernels.all_finite(finite) and kernels.reasons_for_one_thread() == ()
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    same = torch.equal(kernels.argmax_scores(query, query), wanted) and kernels.all_finite(finite)
    os._exit(0 if same and "forked" in kernels.reasons_for_one_thread()[0] else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(kernels.argmax_scores(query, query), wanted)
"""


def test_forked_child_works_on_one_thread() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


LOCKED = """
import os, sys
from qkv import kernels

# As if another thread were opening a block at this moment: it is not there in the child.
with sys.modules["qkv.ops.loader"]._lock:
    child = os.fork()
    if child == 0:
        with kernels.counted():
            pass
        os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_forked_child_counts_although_a_thread_of_its_parent_held_the_lock() -> None:
    done = subprocess.run([sys.executable, "-c", LOCKED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
