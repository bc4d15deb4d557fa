"""Rows 45 to 48 of the table of faults, for `attention`: threads, a fork, Ctrl-C, out of memory, no native library."""

import json
import threading

import pytest
import torch

from qkv import errors
from qkv.ops import loader
from tests.helpers.decode_reference import in_a_process
from tests.helpers.faults_reference import WAYS, assert_speaks, by_way, same_bits


@by_way
def test_row_45_threads_on_one_problem(way):
    """Two threads read the same tensors: both get the bits of a thread alone, forward and backward."""
    tensors = way.problem(torch.float32, len_q=37, len_k=70)
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]

    def run():
        out, _ = way.attend(*tensors, lse=False)
        made, _ = way.attend(*leaves, lse=False)
        return out, *torch.autograd.grad(made.sum(), leaves, materialize_grads=True)

    alone, found, ready = run(), [[], []], threading.Barrier(2)

    def work(number):
        ready.wait(20)
        found[number] += [run() for _ in range(5)]

    workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [len(each) for each in found] == [5, 5]
    for got in found[0] + found[1]:
        for one, other in zip(got, alone, strict=True):
            same_bits(one, other)


@pytest.mark.slow
def test_row_46_attention_in_a_forked_child_of_a_process_with_threads():
    """torch's operators would wait without end for OpenMP's threads, which the child lacks: it stays on one thread."""
    said = in_a_process(
        """
        import os, signal, warnings
        import torch, qkv
        from tests.helpers.faults_reference import WAYS, numbers

        warnings.simplefilter("ignore")
        torch.set_num_threads(2)
        q, k, v = (numbers((2, 6, 100, 64), torch.float32, seed) for seed in range(3))
        leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
        def run(way):
            out = qkv.attention(*leaves, similarity=way.similarity(), backend=way.backend, mask=qkv.Causal())
            return out, *torch.autograd.grad(out.sum(), leaves, materialize_grads=True)
        wanted = [run(way) for way in WAYS]
        child = os.fork()
        if child == 0:
            signal.alarm(40)
            code = 1
            try:
                for way, want in zip(WAYS, wanted, strict=True):
                    for one, other in zip(run(way), want, strict=True):
                        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
                code = 0 if torch.get_num_threads() == 1 else 2
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == 0, f"the child ended with {code}"  # -14: it hung until the alarm
        assert torch.get_num_threads() == 2
        print("done")
        """
    )
    assert said.strip() == "done"


@pytest.mark.slow
def test_row_47_ctrl_c_in_the_middle_of_attention():
    """KeyboardInterrupt arrives once the kernel is back, and the next call is right."""
    said = in_a_process(
        """
        import signal
        import torch
        from tests.helpers.faults_reference import WAYS, close, numbers

        signal.signal(signal.SIGALRM, signal.default_int_handler)
        large = [numbers((1, 2, 400, 64), torch.float32, seed) for seed in range(3)]
        hits = 0
        for way in WAYS:
            small = way.problem(torch.float32)
            want = way.reference(*small).out
            for turn in range(3):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.0007 * turn)
                    while True:
                        way.attend(*large, lse=False)
                except KeyboardInterrupt:
                    hits += 1
                close(way.attend(*small, lse=False)[0], want, torch.float32)
        print(hits)
        """
    )
    assert int(said) == 3 * len(WAYS)


@pytest.mark.slow
def test_row_47_allocation_failure_in_attention():
    """RLIMIT_AS: MemoryError that names the bytes, whatever the backend; then the same call with less is right."""
    said = in_a_process(
        """
        import gc, json, resource
        import torch, qkv
        from tests.helpers.faults_reference import WAYS, close

        # One number in memory, and a result of 270 MB.
        wide = [torch.ones(1, 1, 1, 1).expand(1, 1024, n, 64) for n in (1024, 1, 1)]
        small = {way: way.problem(torch.float32) for way in WAYS}
        for way in WAYS:
            way.attend(*small[way], lse=False)
        def size():
            return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size() + 10**8,) * 2)
        said = {}
        for way in WAYS:
            for _ in range(2):
                try:
                    way.attend(*wide, lse=False)
                    said[str(way)] = "no error"
                except (MemoryError, RuntimeError) as error:
                    said[str(way)] = f"{type(error).__name__}: {error}"
            close(way.attend(*small[way], lse=False)[0], way.reference(*small[way]).out, torch.float32)
        before = size()
        for _ in range(5):
            for way in WAYS[:2]:
                try:
                    way.attend(*wide, lse=False)
                except (MemoryError, RuntimeError):
                    pass
        gc.collect()
        print(json.dumps([said, size() - before]))
        """
    )
    told, leak = json.loads(said.splitlines()[-1])
    assert leak < 64 * 2**20
    assert set(told) == {str(way) for way in WAYS}
    for way, words in told.items():
        assert words.startswith("MemoryError: attention: could not allocate "), (way, words)


WITHOUT = """
    import torch, qkv
    from tests.helpers.faults_reference import WAYS, close
    for way in WAYS:
        tensors = way.problem(torch.float32)
        close(way.attend(*tensors, lse=False)[0], way.reference(*tensors).out, torch.float32)
    tensors = WAYS[0].problem(torch.float32, len_q=1)
    print(" ".join(str(qkv.explain(*tensors)).split()))
    try:
        qkv.attention(*tensors, backend="native")
        print("ran")
    except qkv.errors.BackendRefused as error:
        print(" ".join(str(error).split()))
"""


@pytest.mark.slow
def test_row_48_attention_without_the_native_library():
    """auto runs torch's backends and explain says why; a native backend that is named is refused with the reason."""
    explained, by_name = in_a_process(WITHOUT, QKV_NATIVE="0").splitlines()[-2:]
    assert "QKV_NATIVE=0" in explained
    assert "QKV_NATIVE=0" in by_name
    assert "native" in by_name


@pytest.mark.slow
def test_row_48_a_native_library_that_does_not_load():
    """As in a wheel for another machine: the import fails, and the reason is told as the loader gave it."""
    broken = """
    import sys
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "qkv.ops._native":
                raise ImportError("wrong ELF class: ELFCLASS32")
    sys.meta_path.insert(0, Broken())
    """
    explained, by_name = in_a_process(broken + WITHOUT).splitlines()[-2:]
    assert "ELFCLASS32" in explained
    assert "ELFCLASS32" in by_name


@pytest.mark.parametrize("isa", ["sve9", "AVX2", " "])
def test_row_48_an_instruction_set_that_there_is_not(isa):
    native = loader.load().native
    assert native is not None
    with pytest.raises(errors.OptionError) as caught:
        loader.choose_isa(native, isa)
    assert_speaks(caught.value, errors.OptionError, "QKV_ISA", "portable")


@pytest.mark.slow
def test_row_48_two_openmp_runtimes():
    """A second runtime in the process changes nothing: qkv brings none, and takes torch's."""
    said = in_a_process(
        r"""
        import ctypes, re, shutil, tempfile
        import torch
        def runtimes():
            return set(re.findall(r"/\S*lib(?:gomp|omp|iomp5)\S*", open("/proc/self/maps").read()))
        torch.set_num_threads(2)
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copy(next(iter(runtimes())), folder + "/libgomp-second.so")
            ctypes.CDLL(copy, mode=ctypes.RTLD_GLOBAL)
            from tests.helpers.faults_reference import WAYS, close
            for way in WAYS:
                tensors = way.problem(torch.float32, batch=1, len_q=9, len_k=130)
                close(way.attend(*tensors, lse=False)[0], way.reference(*tensors).out, torch.float32)
            print(len(runtimes()))
        """
    )
    assert int(said) == 2
