"""What the source of the library must not contain; and the tests that SECURITY.md names exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import qkv

PACKAGE = Path(qkv.__file__).parent
ROOT = Path(__file__).parents[1]

# Modules that read pickles, run programs, open connections or load foreign code.
BARRED = {
    "pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "dbm", "subprocess", "pty",
    "commands", "socket", "socketserver", "ssl", "ftplib", "smtplib", "telnetlib", "poplib", "imaplib", "nntplib",
    "xmlrpc", "http.client", "http.server", "http.cookiejar", "urllib.request", "urllib.error", "urllib3", "requests",
    "httpx", "aiohttp", "huggingface_hub", "yaml", "ctypes", "cffi", "runpy", "code", "codeop", "imp", "zipimport",
    "multiprocessing", "webbrowser", "asyncio.subprocess", "torch.hub", "torch.utils.cpp_extension", "torch.package",
}  # fmt: skip
# Functions that must not be called, however their module was imported.
BARRED_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.startfile", "os.fork", "os.forkpty",
    "torch.load", "torch.save", "torch.hub.load", "numpy.load", "np.load", "joblib.load", "yaml.load",
    "asyncio.create_subprocess_shell", "asyncio.create_subprocess_exec", "asyncio.open_connection",
    "socket.create_connection", "webbrowser.open", "sympy.sympify", "sympy.parse_expr", "sympy.lambdify",
    "dist.all_gather_object", "dist.broadcast_object_list", "dist.gather_object", "dist.scatter_object_list",
    "types.CodeType", "types.FunctionType", "sys.settrace",
}  # fmt: skip
# Exceptions: (file, name) and the reason.
ALLOWED = {
    ("web/running.py", "socket"): "servers listen, on loopback by default; they open no connection",
    ("cli/mcp.py", "socket"): "qkv mcp --http listens on loopback; it opens no connection",
    ("lab/running.py", "webbrowser"): "qkv lab opens its address in the user's browser",
    ("lab/scheduler.py", "asyncio.subprocess"): "the type of the process below",
    ("lab/scheduler.py", "asyncio.create_subprocess_exec"): "heavy work runs in this Python, with fixed arguments",
    ("profiling/ranks.py", "multiprocessing"): "qkv calibrate --ranks: its worker processes, over anonymous pipes",
    (
        "runtime/templates.py",
        "subprocess",
    ): "a chat template is rendered by this Python, with limits",
    ("cache/pages.py", "ctypes"): "memmove from one of its pages to another",
}
BARRED_IN_SCRIPTS = (
    r"\beval\s*\(", r"\bFunction\s*\(", "outerHTML", "insertAdjacentHTML", r"document\.write", r"\bimport\s*\(",
    "importScripts", "WebSocket", "EventSource", "XMLHttpRequest", "sendBeacon", "postMessage", "srcdoc", r"https?://",
    r"set(Timeout|Interval)\(\s*[\"'`]", "createContextualFragment",
)  # fmt: skip
FILES = sorted(PACKAGE.rglob("*.py"))


def where(path):
    return path.relative_to(PACKAGE).as_posix()


def imported(tree):
    """Every module, and every name of a module, that a file imports by an absolute import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def called(tree):
    """The called names as written; an imported bare name is returned with its module."""
    homes = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            homes |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            homes |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = ast.unparse(node.func)
            if name == "sympy.sympify" and "strict=True" in ast.unparse(node):
                continue  # then it accepts expressions, not text
            first, dot, rest = name.partition(".")
            yield f"{homes.get(first, first)}{dot}{rest}"


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def faults(path):
    tree = parsed(path)
    found = {
        barred
        for name in imported(tree)
        for barred in BARRED
        if name == barred or name.startswith(f"{barred}.")
    }  # fmt: skip
    found |= {name for name in called(tree) if name in BARRED_CALLS or name.startswith(("os.exec", "os.spawn"))}
    # A function may be passed (to map, partial or a thread) instead of called.
    passed = (argument for node in ast.walk(tree) if isinstance(node, ast.Call) for argument in node.args)
    found |= {each.id for each in passed if isinstance(each, ast.Name) and each.id in ("eval", "exec", "__import__")}
    return found


@pytest.mark.slow
def test_no_pickle_eval_shell_or_network():
    """One test for all files, so that each is read once. An unused exception fails, too."""
    assert len(FILES) > 250
    found = {(where(path), fault) for path in FILES for fault in faults(path)}
    assert not found - set(ALLOWED)
    assert set(ALLOWED) <= found
    assert all(ALLOWED.values())


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads as read",
        "import urllib.request",
        "from urllib import request",
        "import http.client as c",
        "eval('1')",
        "compile('1', '', 'eval')",
        "list(map(eval, ['1']))",
        "import os as o\no.system('x')",
        "from os import system\nsystem('x')",
        "import torch\ntorch.load('x')",
        "from torch import load\nload('x')",
        "import numpy as np\nnp.load('x')",
        "import os\nos.execv('x', [])",
        "def f():\n    from subprocess import run",
    ],
)
def test_the_search_finds_what_it_looks_for(text, tmp_path):
    (tmp_path / "file.py").write_text(text)
    assert faults(tmp_path / "file.py")


def test_the_search_accepts_similar_names(tmp_path):
    text = (
        "import re, torch\nre.compile('x')\nmodel.eval()\ntorch.compile(f)\nfrom urllib.parse import quote\nx.load(1)"
    )
    (tmp_path / "file.py").write_text(text)
    assert not faults(tmp_path / "file.py")


@pytest.mark.slow
def test_unsafe_options_are_never_passed():
    """No pickles in arrays, no code from a checkpoint, no shell, no templates without escaping."""
    given = {}
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
                given.setdefault(node.arg, set()).add(node.value.value)
    assert given.get("allow_pickle", {False}) == {False}
    assert given["autoescape"] == {True}
    assert "shell" not in given
    assert not {True} & given.get("trust_remote_code", set())
    assert '"trust_remote_code": False' in (PACKAGE / "hf/checkpoint.py").read_text(encoding="utf-8")
    assert '"local_files_only": True' in (PACKAGE / "hf/checkpoint.py").read_text(encoding="utf-8")


def test_the_native_part_opens_nothing():
    calls = r"\b(system|popen|exec[lv]p?e?|vfork|posix_spawn|socket|connect|dlopen|fopen|getenv)\s*\("
    streams = r"#include\s*<(fstream|filesystem|sys/socket\.h|spawn\.h)>"
    looked = [*(ROOT / "native/src").rglob("*.*"), *(ROOT / "native").glob("*.*")]
    assert len(looked) > 30
    for path in looked:
        text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
        assert not re.search(calls, text), path.name
        assert not re.search(streams, text), path.name


def test_lab_scripts_evaluate_no_text_and_contact_no_other_server():
    scripts = sorted([*(PACKAGE / "lab/static").rglob("*.js"), *(PACKAGE / "widgets").glob("*.js")])
    assert len(scripts) > 10
    written = []
    for path in scripts:
        text = re.sub(r"(?m)^\s*//.*$", "", path.read_text(encoding="utf-8"))
        for word in BARRED_IN_SCRIPTS:
            assert not re.search(word, text), f"{path.name}: {word}"
        assert all(address.startswith("`/") for address in re.findall(r"fetch\(\s*([^,)]*)", text)), path.name
        assert all(home.startswith((".", "..")) for home in re.findall(r'from "([^"]*)"', text)), path.name
        written += [(path.name, given.strip()) for given in re.findall(r"innerHTML\s*=([^;]*);", text)]
    # The region of a view, which the server's templates wrote and escaped.
    assert [each for each in written if each[1] not in ('""', "''")] == [("lab.js", "said.html")]


def test_pages_and_styles_load_nothing_from_elsewhere():
    static, templates = PACKAGE / "lab/static", PACKAGE / "lab/templates"
    looked = [
        path
        for home in (static, templates, PACKAGE / "widgets")
        for path in home.rglob("*")
        if path.suffix in (".css", ".html")
    ]
    assert len(looked) > 15
    for path in looked:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://|@import|src=\"//|javascript:", text), path.name
        assert not re.search(r"\|\s*safe\b|autoescape\s+false", text), path.name


# The tests that SECURITY.md names


def rows():
    """(threat, defence, tests) of every row in the tables of threats."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if re.match(r"\| (?!---|threat )", line)]
    return [(threat.strip(), stops.strip(), re.findall(r"`([^`]+::[^`]+)`", tests)) for threat, stops, tests in cells]


@pytest.mark.slow
def test_every_threat_has_a_test_that_is_there():
    found = rows()
    assert len(found) >= 30
    for threat, stops, tests in found:
        assert stops, threat
        assert tests, f"no test is named for: {threat}"
        for name in tests:
            file, function = name.split("::")
            tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
            assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, name


def test_every_test_of_security_is_named():
    """SECURITY.md lists every threat that has a test."""
    named = {name for _, _, tests in rows() for name in tests}
    for path in (ROOT / "tests/faults").glob("test_security_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                assert f"faults/{path.name}::{node.name}" in named


# What is installed


def locked():
    """The version of every package in the lists of hashes, by normalised name."""
    found = {}
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        if path.name != "tools.txt":
            for block in re.split(r"(?m)^(?=[A-Za-z])", path.read_text(encoding="utf-8"))[1:]:
                name, version = block.split()[0].split("==")
                assert re.fullmatch(r"(?: \\\s+--hash=sha256:[0-9a-f]{64})+\s*", block[len(f"{name}=={version}") :]), (
                    name
                )
                found[re.sub(r"[-_.]+", "-", name).lower()] = version
    return found


def test_every_pinned_version_has_its_hashes():
    pins = re.findall(r"(?m)^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"))
    pinned = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins}
    assert pinned.pop("torch")
    found = locked()
    behind = sorted(name for name in pinned.keys() | found.keys() if pinned.get(name) != found.get(name))
    assert not behind, f"make lock writes the hashes of {', '.join(behind)}"


def test_the_set_up_takes_nothing_without_a_hash_but_torch():
    """The Makefile installs lists with hashes, torch, and the checkout itself."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = [
        line.strip() for line in text.splitlines() if not line.startswith("#") and re.search(r"pip|PIP|LOCKED", line)
    ]
    loose = [line for line in lines if "LOCKED" not in line and "--require-hashes" not in line]
    # These are temporary: one builds the font, the other tests the wheel as a user installs it.
    elsewhere = ("build/font", "build/wheel-env")
    assert sorted(line for line in loose if " install" in line and not any(place in line for place in elsewhere)) == [
        "$(PIP) install --no-compile -c constraints.txt torch",
        "$(PIP) install --no-deps --no-build-isolation -e .",
    ]
    assert "pypi" not in "".join(path.read_text() for path in (ROOT / "requirements").iterdir() if path.is_file())
