"""`import qkv`: it loads quickly, and `__all__` lists exactly the public names."""

import subprocess
import sys

import pytest

import qkv


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_brings_neither_torch_nor_transformers() -> None:
    code = "import sys, qkv; print([m for m in ('torch', 'transformers', 'numpy', 'sympy') if m in sys.modules])"
    assert python(code) == "[]"


def test_masks_and_similarities_need_no_torch() -> None:
    code = (
        "import sys, qkv; m = qkv.Causal() & qkv.Padding(lengths=[3, 5]); qkv.Softmax(scale=2.0); qkv.Polynomial();"
        "assert m.population(2, 1, 5, 5) == 12 + 15, m.population(2, 1, 5, 5); print('torch' in sys.modules)"
    )
    assert python(code) == "False"


@pytest.mark.parametrize("name", qkv.__all__)
def test_every_name_loads(name: str) -> None:
    assert getattr(qkv, name) is not None
    assert name in dir(qkv)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="dir\\(qkv\\)"):
        qkv.atention  # noqa: B018


@pytest.mark.slow
def test_star_import() -> None:
    assert python("from qkv import *; print(attention.__name__, Causal.__name__)") == "attention Causal"


@pytest.mark.slow
def test_attention_is_the_function_whatever_was_touched_before() -> None:
    firsts = [
        "qkv.testing.contract.checks()",
        "qkv.backends.BACKENDS",
        "qkv.explain",
        "qkv.Choice",
        "import qkv.functional",
        "from qkv.functional import varlen",
        "qkv.testing",
    ]
    # A child for each, born where torch is loaded and qkv is not.
    code = f"""
import os, sys, torch
assert not any(name.split(".")[0] == "qkv" for name in sys.modules)
for first in {firsts}:
    if not (child := os.fork()):
        try:
            exec("import qkv; " + first + "; assert qkv.attention.__name__ == 'attention', qkv.attention", dict())
            print(first, flush=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""
    assert python(code).splitlines() == firsts
