"""Typical uses of qkv in a sandbox that detects network access, programs, pickles and writes to other folders."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.helpers.sandboxed_program"
PYTHON = sysconfig.get_path("stdlib")
# Libraries that turn their text into code, and why; what Python does so itself is named tuples, data classes and
# the modules that it imports.
COMPILERS = {
    "anyio": "names that are imported when they are first used",
    "botocore": "its copy of six",
    "jinja2": "the templates of the lab, which are files of qkv",
    "mpmath": "methods of its numbers, when it is imported",
    "numpy": "a table of operators, when it is imported",
    "scipy": "wrappers of its solvers, when it is imported",
    "six": "raise and exec for two Pythons, when it is imported",
    "sympy": "whether it is being debugged, and versions of what it can use",
    "torch": "a template of torch's remote modules, when it is imported",
    "typing_inspection": "functions that look at annotations, when it is imported",
}


def environment(folder):
    """Nothing of the user's, and nothing that tells libraries to stay off the network: they have to by themselves."""
    own = {"HOME": folder, "TMPDIR": folder, "QKV_CACHE": folder / "cache", "XDG_DATA_HOME": folder}
    return {
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": ROOT,
        **own,
    }


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sandbox").resolve()
    command = [sys.executable, "-m", PROGRAM, folder]
    ended = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=110)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.slow
def test_nothing_is_fetched_started_unpickled_or_written_elsewhere(told):
    assert told["done"] == ["arithmetic", "commands", "lab", "checkpoint"]
    assert told["found"] == []


@pytest.mark.slow
def test_it_runs_where_there_is_no_network(told):
    """Where the system lets a process leave its network, as it does for root and mostly for others, it has to work."""
    allowed = subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode == 0
    assert told["alone"] >= allowed


@pytest.mark.slow
def test_only_known_libraries_turn_text_into_code(told):
    by_library = set()
    for place in told["writers"]:
        assert not place.startswith(f"{ROOT}/src/"), place
        if not place.startswith((PYTHON, "<frozen")) or "site-packages" in place:
            by_library.add(place.partition("site-packages/")[2].partition("/")[0].removesuffix(".py"))
    assert by_library <= set(COMPILERS), by_library - set(COMPILERS)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("import socket; socket.socket().connect(('192.0.2.1', 80))", "socket.connect"),
        ("import socket; socket.getaddrinfo('example.invalid', 80)", "socket.getaddrinfo"),
        ("import subprocess; subprocess.run(['true'])", "subprocess.Popen"),
        ("import os; os.system('true')", "os.system"),
        ("import pickle; pickle.loads(b'cos\\nsystem\\n.')", "pickle.find_class"),
        ("open('/tmp/qkv-was-here', 'w')", "writes"),
        ("import os; os.mkdir('/tmp/qkv-was-here')", "os.mkdir"),
    ],
)
def test_the_watch_sees_what_it_watches_for(line, says, tmp_path):
    """Each runs in a separate process; the hook sees the action before it happens, and prevents it."""
    start = f"import sys; sys.argv = ['', {str(tmp_path)!r}]; sys.path.insert(0, {str(ROOT)!r})"
    lines = [
        start,
        "from tests.helpers import sandboxed_program as p",
        "class Told(list):",
        "    def append(self, text): print(text, flush=True); p.os._exit(0)",
        "p.found = Told()",
        "sys.addaudithook(p.watch)",
        line,
    ]
    ended = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60)
    assert ended.stdout.startswith(says), ended.stderr


@pytest.mark.slow
def test_the_system_sees_no_call_for_network_or_programs(tmp_path):
    """strace, where it is installed: what C libraries do passes no hook of Python."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (apt-get install strace)")
    words = f"import sys, {PROGRAM} as p; sys.argv = ['', sys.argv[1]]; p.arithmetic()"
    command = ["strace", "-f", "-qq", "-e", "trace=connect,sendto,execve,bind", "-o", tmp_path / "calls"]
    variables = environment(tmp_path) | {"PYTHONPATH": ROOT}
    command += [sys.executable, "-c", words, tmp_path]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True)
    if "Operation not permitted" in ended.stderr:
        pytest.skip("tracing is not permitted on this system")
    assert ended.returncode == 0, ended.stderr[-2000:]
    calls = (tmp_path / "calls").read_text().splitlines()
    foreign = [call for call in calls if re.search(r"\b(connect|sendto|bind)\(", call) and "AF_UNIX" not in call]
    assert not foreign
    assert len([call for call in calls if "execve(" in call]) == 1
