"""The lab as a process: what it listens on, how it ends, and what it says when it cannot begin."""

import http.client
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from lab_process import ADDRESS, COMMAND, Lab, descendants, patience, running


def alive(processes):
    """Those that still run; one that ended and was not yet waited for does not."""
    return {each for each in processes if (state := status(each)) and state != "Z"}


def status(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def listening(processes):
    """Addresses, in hexadecimal, on which these processes wait for connections."""
    sockets = set()
    for process in processes:
        for handle in Path(f"/proc/{process}/fd").glob("*"):
            try:
                sockets |= set(re.findall(r"socket:\[(\d+)\]", str(handle.readlink())))
            except OSError:
                continue
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            waits = fields[3] == "0A" if table.startswith("tcp") else fields[3] == "07"
            if waits and fields[9] in sockets:
                found.append((table, *fields[1].split(":")))
    return found


def test_it_listens_on_loopback_alone():
    with running() as lab:
        lab.ask("/walk")
        everybody = {lab.process.pid, *descendants(lab.process.pid)}
        assert listening(everybody) == [("tcp", "0100007F", f"{lab.port:04X}")]
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as outward:
            try:
                outward.connect(("10.255.255.255", 9))  # sends nothing: tells which address would be used
                here = outward.getsockname()[0]
            except OSError:
                return
        if not here.startswith("127."):
            with pytest.raises(OSError):
                socket.create_connection((here, lab.port), timeout=2).close()


def test_the_address_that_it_prints_is_open_at_once():
    """Who waits for the line and then asks must not be refused."""
    command = [sys.executable, *COMMAND]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            found = ADDRESS.search(process.stdout.readline())
            assert found
            socket.create_connection(("127.0.0.1", int(found[1])), timeout=5).close()
        finally:
            process.terminate()
            process.wait(10)


@contextmanager
def busy(lab: Lab):
    """Readers who wait for work of every view, one who sends nothing and one who never finishes."""
    from qkv.lab import views

    names = sorted(path.stem for path in Path(views.__file__).parent.glob("[a-z]*.py"))

    def ask(name):
        with suppress(AssertionError, OSError, http.client.HTTPException):
            lab.ask(f"/api/{name}", seconds=30.0)

    asking = [threading.Thread(target=ask, args=(name,)) for name in names if "_" not in name]
    for one in asking:
        one.start()
    with closing(lab.connect()), closing(lab.connect()) as unfinished:
        unfinished.sendall(f"POST /api/walk HTTP/1.1\r\nHost: {lab.host}\r\nContent-Length: 100\r\n\r\n{{".encode())
        time.sleep(0.3)
        yield
    for one in asking:
        one.join()


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("state", ["just begun", "idle", "busy"])
def test_it_ends_when_it_is_told_to(asked, state):
    with running() as lab, busy(lab) if state == "busy" else nullcontext():
        if state == "idle":
            assert lab.ask("/api/walk", seconds=60.0).status == 200
        children = descendants(lab.process.pid)
        lab.process.send_signal(asked)
        started = time.monotonic()
        assert lab.process.wait(60) == 0
        assert time.monotonic() - started < patience(3.0)
        time.sleep(0.2)
        assert not alive(children)
        assert "Traceback" not in "".join(lab.told)


def lab_with(*options):
    command = [sys.executable, *COMMAND[:3], "--no-browser", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_port_in_use_is_said_in_a_line():
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        ended = lab_with("--port", str(port))
    assert ended.returncode == 1
    lines = [line for line in (ended.stderr + ended.stdout).splitlines() if line.strip()]
    assert len(lines) == 1
    assert str(port) in lines[0]
    assert "Traceback" not in lines[0]


@pytest.mark.parametrize("port", ["99999", "-1", "abc", "65536"])
def test_a_port_that_is_none_is_refused(port):
    ended = lab_with("--port", port)
    assert ended.returncode == 2
    assert "port" in ended.stderr
    assert "Traceback" not in ended.stderr
