import subprocess
import sys

import pytest

from qkv import render


def test_every_name_is_there():
    assert all(getattr(render, name) is not None for name in render.__all__)
    assert dir(render) == sorted(render.__all__)
    with pytest.raises(AttributeError, match="no attribute 'docx'"):
        render.docx  # noqa: B018


def test_nothing_is_loaded_before_it_is_wanted():
    program = (
        "import sys; from qkv.render import html, Document; html(Document('t', ()))\n"
        "print(sorted({'torch', 'numpy', 'sympy', 'rich', 'typst'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "[]"
