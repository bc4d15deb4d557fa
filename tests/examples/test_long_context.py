"""examples/long_context.py on one rank, under torchrun, and between network namespaces."""

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.ranks import free_port

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "long_context.py"
SMALL = ["--tokens", "389", "--heads", "3", "--width", "5", "--json"]
TIMEOUT = 120
# 10.213.7.0/24 exists only between the namespaces that are made here.
ADDRESSES = ["10.213.7.1", "10.213.7.2"]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    return kept | {"OMP_NUM_THREADS": "1"} | more


def check(printed: str, ranks: int) -> None:
    found = json.loads(printed)
    assert [(each["similarity"], each["split"]) for each in found] == [("softmax", "ring"), ("elu1", "scan")]
    for each in found:
        assert each["ranks"] == ranks
        assert each["tokens_per_rank"] == -(-389 // ranks)
        assert each["rows_compared"] == 3 * ranks
        assert each["largest_difference"] < 1e-5
        assert (each["bytes_sent_per_rank"] > 0) == (ranks > 1)


def test_under_torchrun() -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--master-port", str(free_port())]
    done = subprocess.run(
        [*launch, str(EXAMPLE), *SMALL],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check(done.stdout, 4)


def run_here(monkeypatch, *arguments: str) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    usual = signal.getsignal(signal.SIGINT)
    try:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    finally:
        signal.signal(signal.SIGINT, usual)


def test_alone(monkeypatch, capsys) -> None:
    """Without torchrun it runs as one rank, and prints how to start more."""
    run_here(monkeypatch, *SMALL[:-1], "--similarity", "polynomial")
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0] == "389 tokens, causal, 3 heads of width 5, float32; each of 1 rank:"
    assert lines[3].split()[:3] == ["polynomial", "scan", "389"]
    assert float(lines[3].split()[-1]) < 1e-4
    assert lines[-1].startswith("one rank only: torchrun --nproc-per-node 4 examples/long_context.py")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--help", "torchrun --nproc-per-node 4 examples/long_context.py"),
        ("--tokens=0", "wanted a whole number from 1"),
    ],
)
def test_help_and_errors_of_options(monkeypatch, capsys, argument: str, message: str) -> None:
    with pytest.raises(SystemExit):
        run_here(monkeypatch, argument)
    printed = capsys.readouterr()
    assert message in printed.out + printed.err


@pytest.mark.parametrize("sizes", [["--tokens", str(10**15)], ["--heads", str(10**18), "--width", str(10**18)]])
def test_sizes_beyond_any_memory(monkeypatch, sizes: list[str]) -> None:
    with pytest.raises(SystemExit, match="GB for the shards on this machine, which has") as ended:
        run_here(monkeypatch, *sizes)
    assert "\n" not in str(ended.value.code)


def test_an_allocation_that_fails() -> None:
    """Fewer bytes than the machine has, more than the process may take."""
    tokens = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (4 * 4 * 64 * 4)
    limit = tokens * 4 * 64 * 4  # enough for one tensor only
    if limit < 3 << 30:
        pytest.skip("not enough memory for torch itself")
    run = f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_AS, ({limit},) * 2); del sys.argv[0]; "
    run += "runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", run, str(EXAMPLE), "--tokens", str(tokens)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "long_context: rank 0 is out of memory; use fewer tokens or heads, or more ranks\n"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="what a process has loaded is read from /proc")
@pytest.mark.parametrize("seconds", [0.0, 3.0])  # while torch loads, and while it computes
def test_an_interruption_is_silent(seconds: float) -> None:
    run = [sys.executable, str(EXAMPLE), "--tokens", str(2**18)]
    with subprocess.Popen(run, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            until = time.monotonic() + TIMEOUT
            while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text() and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(seconds)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=TIMEOUT)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (-signal.SIGINT, "", "")


@pytest.fixture
def namespaces() -> Iterator[list[tuple[str, str]]]:
    """Two network namespaces with a link between them: (name, interface) of each."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip")
    places = [(f"qkv-{os.getpid()}-{end}", f"qkv{os.getpid() % 10**7}{end}") for end in "ab"]
    (one, cable), (other, far) = places
    commands = [["netns", "add", name] for name, _ in places]
    commands.append(["link", "add", cable, "netns", one, "type", "veth", "peer", "name", far, "netns", other])
    for (name, interface), address in zip(places, ADDRESSES, strict=True):
        inside = ["-n", name]
        commands += [
            [*inside, "address", "add", f"{address}/24", "dev", interface],
            [*inside, "link", "set", interface, "up"],
            [*inside, "link", "set", "lo", "up"],
        ]
    try:
        for command in commands:
            done = subprocess.run(["ip", *command], capture_output=True, text=True, timeout=20, check=False)
            if done.returncode:
                pytest.skip(f"no network namespaces here: ip {' '.join(command)}: {done.stderr.strip()}")
        yield places
    finally:
        for name, _ in places:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)


def test_between_network_namespaces(namespaces: list[tuple[str, str]]) -> None:
    """Only a network link is shared: no loopback, no files."""
    port = str(free_port())
    processes = []
    try:
        for rank, (name, interface) in enumerate(namespaces):
            own = {"RANK": str(rank), "LOCAL_RANK": "0", "GLOO_SOCKET_IFNAME": interface}
            whole = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": port}
            processes.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", name, sys.executable, str(EXAMPLE), *SMALL],
                    env=environment(**own, **whole),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        printed = [process.communicate(timeout=TIMEOUT) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], printed
    check(printed[0][0], 2)
    assert printed[1][0] == ""
