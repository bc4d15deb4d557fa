"""Caches with threads, forked processes, interrupts, exhausted memory, and without the native library."""

import json
import re
import threading

import pytest
import torch

import qkv
from qkv import errors
from tests.helpers.decode_cases import tokens
from tests.helpers.decode_reference import STORAGE, Plain, holds, in_a_process, name_of
from tests.helpers.faults_reference import same_bits

by_storage = pytest.mark.parametrize("storage", STORAGE, ids=name_of)


def sequence(n, seed=0, dtype=torch.float32, batch=2):
    return tokens(n, batch=batch, heads=(6, 3), widths=(7, 5), dtype=dtype, seed=seed)


def both(storage=torch.float32, n=0, **options):
    cache = qkv.KVCache(2, 3, 7, value_width=5, dtype=storage, **options)
    plain = Plain.like(cache)
    cache.append(*sequence(n)[1:])
    plain.append(*sequence(n)[1:])
    return cache, plain


def in_threads(count, run):
    """Runs run(0) … run(count − 1) at once; what one of them raises is raised here."""
    failed, ready = [], threading.Barrier(count)

    def guarded(number):
        try:
            ready.wait(20)
            run(number)
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not any(worker.is_alive() for worker in workers), "a thread hangs"
    if failed:
        raise failed[0]


@by_storage
def test_row_45_threads_on_forks_of_one_cache(storage):
    """Forks share pages: each thread's steps are those of a thread alone, to a bit."""
    cache, plain = both(storage, 66)
    alone = []
    for number in range(4):
        forked = cache.fork()
        alone.append([qkv.decode(*sequence(1, 100 * number + t), forked) for t in range(80)])
    found = [[] for _ in range(4)]
    forks = [cache.fork() for _ in range(4)]

    def run(number):
        for t in range(80):
            found[number].append(qkv.decode(*sequence(1, 100 * number + t), forks[number]))
            if t % 16 == 3:
                branch = forks[number].fork()
                branch.append(*sequence(3, t)[1:])
                del branch

    in_threads(4, run)
    for one, other in zip(found, alone, strict=True):
        for a, b in zip(one, other, strict=True):
            same_bits(a, b)
    holds(cache, plain)


@pytest.mark.slow
@by_storage
def test_row_45_threads_on_one_cache(storage):
    """Calls take turns: every token is stored whole and once, and every answer is right for where its token stands."""
    cache, _ = both(storage, 0)
    answers = {}

    def run(number):
        for t in range(60):
            seed = 1000 * number + t
            answers[seed] = qkv.decode(*sequence(1, seed), cache)

    in_threads(4, run)
    assert cache.lengths.tolist() == [240, 240]
    plain = Plain.like(cache)
    order = {}
    keys = cache.tensors()[0].double()
    for seed in answers:
        trial = Plain.like(cache)
        trial.append(*sequence(1, seed)[1:])
        key = trial.tensors()[0][0].to(torch.float32).to(cache.tensors()[0].dtype).double()
        where = (keys[0] == key).all(-1).all(0).nonzero().flatten().tolist()
        assert len(where) == 1, f"token {seed} is stored {len(where)} times"
        order[where[0]] = seed
    assert sorted(order) == list(range(240))
    for position in range(240):
        plain.decode(*sequence(1, order[position])).check(answers[order[position]])
    holds(cache, plain)


def test_row_45_every_verb_at_once():
    """Nothing crashes, nothing is torn: tokens are pairs, and every key still has its own value."""
    cache = qkv.KVCache(2, 1, 4, dtype=torch.float32)
    marks = torch.arange(1.0, 2001.0)

    def token(mark):
        return torch.full((2, 1, 1, 4), float(mark))

    def run(number):
        for t in range(150):
            mark = marks[number * 200 + t]
            qkv.decode(token(mark), token(mark), token(mark), cache)
            if number == 0 and t % 10 == 0:
                cache.fork().append(token(-1), token(-2))
            if number == 1 and t % 10 == 5:
                cache.reorder([1, 0])
            if number == 2 and t % 25 == 7:
                # Another thread may have made it shorter in between.
                try:
                    cache.crop(max(0, cache.length - 3))
                except errors.QkvError:
                    assert number == 2
            if number == 3:
                key, value = cache.tensors()
                assert torch.equal(key, value)

    in_threads(4, run)
    key, value = cache.tensors()
    assert torch.equal(key, value)
    assert bool((key == key[..., :1]).all())
    assert not (key < 0).any()
    assert len(set(cache.lengths.tolist())) == 1


@pytest.mark.slow
def test_row_46_a_forked_process_goes_on_with_the_cache():
    """Child and parent use the cache independently, with two threads in the parent; neither hangs."""
    said = in_a_process(
        """
        import os, signal, warnings
        import torch, qkv
        from tests.helpers.decode_cases import tokens
        from tests.helpers.decode_reference import Plain, holds

        torch.set_num_threads(2)
        def sequence(n, seed=0):
            return tokens(n, batch=2, heads=(8, 2), widths=(64, 32), dtype=torch.float32, seed=seed)
        cache = qkv.KVCache(2, 2, 64, value_width=32)
        plain = Plain.like(cache)
        cache.append(*sequence(3000)[1:])
        plain.append(*sequence(3000)[1:])
        for seed, n in ((1, 1), (2, 1)):
            plain.decode(*sequence(n, seed)).check(qkv.decode(*sequence(n, seed), cache))

        # What the child is to find is computed here: large torch operations hang in a forked child.
        def walk(one):
            found = [qkv.decode(*sequence(n, 10 + n), one) for n in (1, 9, 2)]
            one.reorder([1, 1])
            found.append(qkv.decode(*sequence(3, 50), one))
            one.crop(3003)
            found.append(qkv.decode(*sequence(1, 51), one))
            return found
        wanted = walk(cache.fork())
        model = plain.fork()
        model.decode(*sequence(1, 11)).check(wanted[0])
        new = qkv.decode(*sequence(5), qkv.KVCache(2, 2, 64, value_width=32))

        warnings.simplefilter("ignore")
        for turn in range(3):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                code = 1
                try:
                    same = [walk(cache.fork()), walk(cache), wanted]
                    code = 2
                    assert all(torch.equal(a, b) and torch.equal(b, c) for a, b, c in zip(*same, strict=True))
                    code = 3
                    assert "fork" in str(qkv.ops.reasons_for_one_thread())
                    str(qkv.explain(*sequence(1), cache=cache))
                    code = 4
                    assert torch.equal(qkv.decode(*sequence(5), qkv.KVCache(2, 2, 64, value_width=32)), new)
                    code = 0
                finally:
                    os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert code == 0, f"the child ended with {code}"  # -14: it hung until the alarm
            plain.decode(*sequence(2, 99)).check(qkv.decode(*sequence(2, 99), cache))
            cache.crop(3002)
            plain.crop(3002)
        holds(cache, plain)
        print("done")
        """
    )
    assert said.strip() == "done"


@pytest.mark.slow
def test_row_46_a_process_forked_while_another_thread_decodes():
    """Whatever lock that thread held, the child neither waits for it nor finds half a token."""
    said = in_a_process(
        """
        import os, signal, threading, time, warnings
        import torch, qkv
        from tests.helpers.decode_cases import tokens
        from tests.helpers.decode_reference import Plain

        torch.set_num_threads(1)
        def sequence(n, seed=0):
            return tokens(n, batch=1, heads=(2, 1), widths=(16, 16), dtype=torch.float32, seed=seed)
        busy, calm = (qkv.KVCache(1, 1, 16, window=500) for _ in range(2))
        plain = Plain.like(calm)
        plain.decode(*sequence(3)).check(qkv.decode(*sequence(3), calm))
        stop, fresh = threading.Event(), sequence(1)
        def work():
            while not stop.is_set():
                qkv.decode(*fresh, busy)
        worker = threading.Thread(target=work)
        worker.start()
        warnings.simplefilter("ignore")
        codes = []
        for turn in range(12):
            time.sleep(0.002)
            child = os.fork()
            if child == 0:
                signal.alarm(5)
                code = 1
                try:
                    plain.decode(*sequence(1, 7)).check(qkv.decode(*sequence(1, 7), calm))
                    code = 2
                    before = busy.length
                    qkv.decode(*fresh, busy)
                    assert busy.length == before + 1
                    code = 0
                finally:
                    os._exit(code)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stop.set()
        worker.join()
        assert set(codes) == {0}, codes  # -14: the child waited for the alarm
        print("done")
        """
    )
    assert said.strip() == "done"


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 70])
def test_row_47_ctrl_c_at_any_moment(window):
    """Interrupted up to 80 times: a step is in the cache whole or not at all, and the next one is right."""
    said = in_a_process(
        f"""
        import faulthandler, signal, time
        import torch, qkv
        from tests.helpers.decode_cases import tokens
        from tests.helpers.decode_reference import Plain, holds

        faulthandler.dump_traceback_later(60, exit=True)
        N = 1500
        q, k, v = tokens(N, batch=2, heads=(4, 2), widths=(8, 8), dtype=torch.float32, seed=0)
        def cut(a, b):
            return q[:, :, a:b], k[:, :, a:b], v[:, :, a:b]
        cache = qkv.KVCache(2, 2, 8, window={window})
        qkv.decode(*cut(0, 1), cache)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        t, hits, turn, end = 1, 0, 0, time.monotonic() + 1.5
        while t < N - 200 and hits < 80 and time.monotonic() < end:
            turn += 1
            size = (1, 1, 3, 17)[turn % 4]
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.00005 + 0.0000137 * (turn % 31))
                while t < N - 200:
                    if turn % 5 == 0:
                        cache.fork().append(*cut(t, t + 1)[1:])
                    qkv.decode(*cut(t, t + size), cache)
                    t += size
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                hits += 1
                lengths = cache.lengths.tolist()
                assert lengths[0] == lengths[1] == cache.length, lengths
                assert cache.length in (t, t + size), (cache.length, t, size)
                t = cache.length
        plain = Plain.like(cache)
        plain.append(*cut(0, t)[1:])
        holds(cache, plain)
        for n in (1, 70, 3):
            plain.decode(*cut(t, t + n)).check(qkv.decode(*cut(t, t + n), cache))
            t += n
        print(hits)
        """
    )
    assert int(said) >= 10


@pytest.mark.slow
def test_row_47_allocation_failure():
    """RLIMIT_AS: MemoryError with the bytes that were asked for; the cache is as it was, and nothing leaks."""
    said = in_a_process(
        """
        import gc, json, resource
        from pathlib import Path
        import torch, qkv
        from tests.helpers.decode_cases import tokens
        from tests.helpers.decode_reference import Plain, holds, untouched

        torch.set_num_threads(1)
        def sequence(n, seed=0, heads=8):
            return tokens(n, batch=1, heads=(heads, 1), widths=(64, 64), dtype=torch.float32, seed=seed)
        cache = qkv.KVCache(1, 1, 64)
        plain = Plain.like(cache)
        for seed, n in enumerate((1000, 1, 3)):
            plain.decode(*sequence(n, seed)).check(qkv.decode(*sequence(n, seed), cache))
        wide = sequence(1, heads=512)
        forked = cache.fork()
        qkv.decode(*wide, forked)
        del forked
        holds(cache, plain)
        def size():
            return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        MB = 2**20
        resource.setrlimit(resource.RLIMIT_AS, (size() + 260 * MB,) * 2)

        said = {}
        def fails(name, run, kinds=(MemoryError,)):
            try:
                run()
            except kinds as error:
                said[name] = type(error).__name__ + ": " + str(error)
            else:
                said[name] = "no error"
        # Stride 0: only the pages would need cache. 2^21 tokens are 1 GB.
        many = [tensor.expand(1, -1, 2**21, -1) for tensor in sequence(1)]
        with untouched(cache):
            fails("append", lambda: cache.append(*many[1:]))
            fails("decode", lambda: qkv.decode(*many, cache), (MemoryError, RuntimeError))
            fails("capacity", lambda: qkv.KVCache(1, 1, 64, capacity=2**21))
            fails("capacity of many rows", lambda: qkv.KVCache(2**12, 1, 64, capacity=2**12))
        # The pages fit, the result does not: 512 heads x 4096 tokens x 64 are 512 MB.
        result, before = [tensor.expand(1, -1, 4096, -1) for tensor in wide], cache.nbytes
        fails("result", lambda: qkv.decode(*result, cache), (MemoryError, RuntimeError))
        said["pages"] = cache.nbytes - before
        holds(cache, plain)
        first = size()
        for _ in range(30):
            fails("append", lambda: cache.append(*many[1:]))
            fails("capacity", lambda: qkv.KVCache(1, 1, 64, capacity=2**21))
            fails("result", lambda: qkv.decode(*result, cache), (MemoryError, RuntimeError))
        gc.collect()
        said["leak"] = size() - first
        for n in (1, 70):
            plain.decode(*sequence(n, 7)).check(qkv.decode(*sequence(n, 7), cache))
        holds(cache, plain)
        print(json.dumps(said))
        """
    )
    said = json.loads(said.splitlines()[-1])
    assert said.pop("leak") < 64 * 2**20
    assert said.pop("pages") == 0, "pages that hold no token of this cache"
    assert "no error" not in said.values(), said
    for name in ("append", "capacity", "capacity of many rows"):
        assert said[name].startswith("MemoryError"), said[name]
        assert re.search(r"\d{4,}|\d+(\.\d+)? ?[KMGT]i?B", said[name]), f"how many bytes? {said[name]}"


@pytest.mark.slow
def test_row_48_without_the_native_library():
    """Everything works through torch, and explain says why it is not native."""
    said = in_a_process(
        """
        import torch, qkv
        from tests.helpers.decode_cases import tokens
        from tests.helpers.decode_reference import Plain, STORAGE, holds
        for storage in STORAGE:
            for window in (None, 30):
                cache = qkv.KVCache(2, 3, 7, value_width=5, dtype=storage, window=window)
                plain = Plain.like(cache)
                def step(n, seed, cache, plain):
                    fresh = tokens(n, batch=2, heads=(6, 3), widths=(7, 5), dtype=torch.float32, seed=seed)
                    plain.decode(*fresh).check(qkv.decode(*fresh, cache))
                for seed, n in enumerate((5, 1, 64, 3)):
                    step(n, seed, cache, plain)
                forked, model = cache.fork(), plain.fork()
                for one in (forked, model):
                    one.crop(72)
                    one.reorder([1, 0])
                step(2, 9, forked, model)
                holds(cache, plain)
                holds(forked, model)
        fresh = tokens(1, batch=2, heads=(6, 3), widths=(7, 5), dtype=torch.float32, seed=1)
        print(qkv.explain(*fresh, cache=cache))
        """,
        QKV_NATIVE="0",
    )
    assert "QKV_NATIVE=0" in said


@pytest.mark.slow
def test_processes_that_map_one_prefix_share_its_memory_and_write_to_none_of_it(tmp_path):
    """Three at once: each appends to two forks; the pages of the file stay clean, and the file stays as it is."""
    path, cache = tmp_path / "shared.prefix", qkv.KVCache(2, 3, 7, value_width=5)
    cache.append(*sequence(3000)[1:])
    cache.freeze().save(path, model="shared")
    before, worked = path.read_bytes(), []
    script = f"""
        from pathlib import Path
        import torch, qkv
        from tests.helpers.decode_cases import tokens

        prefix = qkv.KVCache.map({str(path)!r}, model="shared")
        sums = []
        for seed in (1, 2):
            fork = prefix.fork()
            for n in (1, 67, 3):
                step = tokens(n, batch=2, heads=(6, 3), widths=(7, 5), dtype=torch.float32, seed=seed)
                sums.append(float(qkv.decode(*step, fork).double().sum()))
        smaps = Path("/proc/self/smaps").read_text()
        own = smaps[: smaps.index("shared.prefix")].splitlines()[-1].split()[1]
        dirty = smaps[smaps.index("shared.prefix") :].split("Private_Dirty:")[1].split()[0]
        print(own, dirty, sums)
        """

    def run(number):
        worked.append(in_a_process(script))

    in_threads(3, run)
    wanted = []
    for seed in (1, 2):
        fork = cache.fork()
        wanted += [float(qkv.decode(*sequence(n, seed), fork).double().sum()) for n in (1, 67, 3)]
    assert len(set(worked)) == 1
    assert worked[0].startswith("r--s 0 ") or worked[0].startswith("r--p 0 "), worked[0]
    assert json.loads(worked[0].split(" ", 2)[2]) == wanted
    assert path.read_bytes() == before
