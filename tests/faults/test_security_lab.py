"""Bodies that are small on the wire and large in memory."""

import gzip
import json
import resource
import zlib
from pathlib import Path

import pytest

from tests.helpers.lab_process import running


@pytest.fixture(scope="module")
def lab():
    with running() as started:
        yield started


def cache(lab):
    """Bytes that the server holds."""
    pages = Path(f"/proc/{lab.process.pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["gzip", "deflate"])
def test_a_packed_body_is_not_unpacked(lab, packing):
    """100 MB of zeros in 440 kB: refused as what it is on the wire, and nothing of it is unpacked."""
    large = b'{"x": "' + bytes(100_000_000) + b'"}'
    body = gzip.compress(large, 1) if "gzip" in packing else zlib.compress(large, 1)
    paths = "/api/walk", "/part/walk"
    for path in paths:  # what the first request loads is no matter of its body
        lab.post(path, b"{}")
    before = cache(lab)
    for path in paths:
        answer = lab.post(path, body, Content_Encoding=packing)
        assert answer.status == 400
        assert "JSON" in answer.text
    assert cache(lab) < before + 50_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "[" * 400_000,
        '{"x":' * 150_000,
        json.dumps({"x": "1;" * 400_000}),
        '{"x": ' + "9" * 400_000 + "}",
        '{"x": 1e999999}',
        "{" + ",".join(f'"f{n}": 1' for n in range(60_000)) + "}",
        '{"x": "\\ud800"}',
    ],
    ids=["lists", "objects", "rows", "digits", "power", "fields", "half a character"],
)
def test_deep_and_long_json_is_refused_in_words(lab, body):
    answer = lab.post("/api/walk", body.encode())
    assert answer.status in (400, 422)
    assert "Traceback" not in answer.text
    assert len(answer.text) < 10_000
    assert lab.post("/api/walk", b"{}").status == 200
