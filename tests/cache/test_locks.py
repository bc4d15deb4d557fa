"""A process that is forked while another thread is in a cache: the child does not wait for that thread."""

import pytest

from decode_reference import in_a_process


@pytest.mark.parametrize("cache", ["qkv.LinearState(qkv.Polynomial(2), 1, 1, 16)", "qkv.KVCache(1, 1, 16, window=500)"])
def test_a_forked_child_does_not_wait_for_a_thread_that_it_has_not(cache: str) -> None:
    said = in_a_process(
        f"""
        import os, signal, threading, warnings
        import torch, qkv

        torch.set_num_threads(1)
        cache, token = {cache}, torch.randn(1, 1, 1, 16)
        lock = (cache._pool if isinstance(cache, qkv.KVCache) else cache._shared).lock
        held, done = threading.Event(), threading.Event()

        def hold():
            with lock:
                held.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            other = cache.fork()
            qkv.decode(token, token, token, other)
            qkv.decode(token, token, token, cache)
            os._exit(10 * other.length + cache.length)
        done.set()
        thread.join()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert said.strip() == "11"  # -14: it waited until the alarm
