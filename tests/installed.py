"""Checks an installed wheel as its user would, in an environment without extras: `make wheel-test` runs it."""

import importlib.util
import pydoc
import subprocess
import sys
from pathlib import Path

import torch

import qkv

COMMAND = Path(sys.executable).with_name("qkv")


def check_native_library() -> None:
    assert qkv.ops.available(), qkv.ops.reasons()
    query = torch.randn(1, 4, 8, 16)
    key, value = torch.randn(1, 2, 8, 16), torch.randn(1, 2, 8, 16)
    out = qkv.attention(query, key, value, mask=qkv.Causal())
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(qkv.decode(query, key, value, qkv.KVCache(1, 2, 16)), expected)


def check_missing_extras() -> None:
    for package, extra, use in (
        ("transformers", "hf", lambda: qkv.hf.load),
        ("starlette", "lab", lambda: qkv.lab.make_app),
        ("hypothesis", "testing", lambda: qkv.testing.strategies.calls),
    ):
        assert importlib.util.find_spec(package) is None, f"{package} is installed: this is not the plain wheel"
        assert hasattr(qkv, extra)
        message = ""
        try:
            use()
        except ImportError as error:
            message = str(error)
        assert f"pip install 'qkv[{extra}]'" in message, f"{extra} without {package}: {message}"


def check_star_and_help() -> None:
    names: dict[str, object] = {}
    exec("from qkv import *", names)
    assert {"attention", "decode", "KVCache", "hf", "lab"} <= names.keys()
    for module in (qkv, qkv.hf, qkv.lab):
        assert "NAME" in pydoc.render_doc(module, renderer=pydoc.plaintext)


def check_commands() -> None:
    for arguments, code, text in (
        (("--help",), 0, "plan"),
        (("check", r"d\mu^2", "--gold", r"\mu^T\mu", "--let", "mu: vector[d]"), 1, "conditional"),
        (("plan", "--model", "llama-3-8b", "--context", "8192", "--hardware", "h100-sxm"), 0, "token"),
        (("generate", "nowhere", "--prompt", "x"), 1, "which does not exist, wanted a GGUF file"),
        (("lab", "--port", "0"), 1, "pip install 'qkv[lab]'"),
    ):
        done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=120)
        printed = " ".join((done.stdout + done.stderr).split())
        assert (done.returncode == 0) == (code == 0), (arguments, done.returncode, printed)
        assert text in printed, (arguments, printed)
        assert "Traceback" not in printed, (arguments, printed)


if __name__ == "__main__":
    for check in (check_native_library, check_missing_extras, check_star_and_help, check_commands):
        check()
        print(f"{check.__name__}: passed")
