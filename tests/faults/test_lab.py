"""Row 50 of the table of faults, against a running lab: foreign origins, paths, sizes, markup and slow clients.

tests/lab/test_guard*.py test each of these in detail.
"""

import json
import re
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.helpers.lab_process import answered, limited, patience, running

MARKUP = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def lab():
    with running(*limited(header_seconds=1.0, body_seconds=1.0, seconds=5.0)) as started:
        yield started


def refused(answer, *statuses):
    assert answer.status in statuses, (answer.status, answer.text[:200])
    assert "Traceback" not in answer.text


@pytest.mark.slow
@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "169.254.169.254"])
def test_row_50_a_foreign_host_header(lab, host):
    for path in ("/", "/walk", "/api/openapi.json"):
        refused(lab.ask(path, headers={"Host": host}), 400, 403, 421)


@pytest.mark.slow
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost.evil.example"])
def test_row_50_a_post_from_another_origin(lab, origin):
    refused(lab.post("/api/walk", b"{}", Origin=origin), 403)
    assert lab.post("/api/walk", b"{}", Origin=lab.address).status != 403


@pytest.mark.parametrize(
    "path", ["/static/../../../../../etc/passwd", "/static/%2e%2e/%2e%2e/server.py", "/../etc/passwd"]
)
def test_row_50_paths_that_climb(lab, path):
    refused(lab.ask(path), 400, 403, 404)


def test_row_50_sizes_of_a_thousand_million(lab):
    for view, body in (("scale", {"d": 10**9, "keys": 10**9}), ("cache", {"past": 10**9})):
        before = time.monotonic()
        answer = lab.post(f"/api/{view}", json.dumps(body).encode())
        refused(answer, 400, 413, 422)
        assert re.search(r"\d", answer.text), "the cap is not stated"
        assert time.monotonic() - before < patience(10)
    headers = {"Content-Type": "application/json", "Content-Length": str(10**9)}
    refused(lab.ask("/api/walk", "POST", headers), 413)


def test_row_50_markup_in_a_token(lab):
    page = lab.ask("/walk?x=" + quote(MARKUP))
    assert page.status < 500
    assert MARKUP not in page.text
    assert "&lt;script&gt;" in page.text


@pytest.mark.slow
def test_row_50_a_slow_client(lab):
    """It is disconnected, and other clients do not wait for it."""
    with closing(lab.connect(patience(20))) as line:
        line.sendall(f"POST /api/walk HTTP/1.1\r\nHost: {lab.host}\r\nContent-Length: 100\r\n\r\n{{".encode())
        before = time.monotonic()
        assert lab.ask("/walk").status == 200
        answer = answered(line)
        assert answer is None or answer.status == 408
        assert time.monotonic() - before < patience(15)


@pytest.mark.slow
def test_row_50_it_binds_to_loopback_alone(lab):
    listening = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        lines = Path(table).read_text().splitlines()[1:] if Path(table).exists() else []
        listening += [line.split()[1] for line in lines if line.split()[1].endswith(f":{lab.port:04X}")]
    assert listening
    assert {place.split(":")[0] for place in listening} == {"0100007F"}
