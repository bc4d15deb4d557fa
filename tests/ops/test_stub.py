"""src/qkv/ops/_native.pyi is what `make stub` writes from the extension."""

import subprocess
import sys
from pathlib import Path

from qkv import ops

STUB = Path(ops.__file__).with_name("_native.pyi")


def test_the_stub_is_current(tmp_path: Path) -> None:
    out = tmp_path / "_native.pyi"
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "qkv.ops._native", "-o", out], check=True, timeout=60
    )
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", "--config", "line-length=120", out], check=True)
    assert out.read_text() == STUB.read_text(), "run make stub"
