"""Who may ask, for what, and what every answer carries: a real server, and requests that a browser would not send."""

import asyncio
import http.client
import importlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

import qkv
from qkv.lab.fields import Matrix, Number, Words
from qkv.lab.guard import Limits
from tests.helpers.lab_process import ADDRESS, COMMAND, Lab, answered, descendants, limited, patience, running

REFUSED = {400, 403, 421}
SECRETS = ("root:x:", "from __future__", "Traceback", str(Path(qkv.__file__).parent), str(Path.home()) + "/")
PATHS = ("/", "/walk", "/api/walk", "/api/openapi.json", "/static/lab.js")


class Page(HTMLParser):
    """What a page would load or run."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


# Host and Origin


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1.evil.example:{port}",
        "localhost.evil.example:{port}",
        "evil.example@127.0.0.1:{port}",
        "127.0.0.1@evil.example:{port}",
        "127.0.0.1:{port}@evil.example",
        "127.0.0.1:{other}",
        "localhost:{other}",
        "127.0.0.1:{port}:80",
        "127.0.0.1:{port}x",
        "0.0.0.0:{port}",
        "2130706433:{port}",
        "127.0.0.1:",
        "",
    ],
)
def test_a_foreign_host_is_refused(lab, path, host):
    answer = lab.ask(path, headers={"Host": host.format(port=lab.port, other=lab.port % 60000 + 1)})
    assert answer.status in REFUSED
    assert "evil" not in answer.text


def test_a_request_without_a_host_is_refused(lab):
    for version in ("1.0", "1.1"):
        answer = lab.raw(f"GET / HTTP/{version}\r\nConnection: close\r\n\r\n".encode())
        assert answer is None or answer.status in REFUSED


def test_of_two_hosts_neither_counts(lab):
    for hosts in ((lab.host, "evil.example"), ("evil.example", lab.host)):
        lines = "".join(f"Host: {host}\r\n" for host in hosts)
        answer = lab.raw(f"GET / HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode())
        assert answer is None or answer.status in REFUSED


def test_both_names_of_this_machine_are_served(lab):
    for name in ("127.0.0.1", "localhost"):
        assert lab.ask("/", headers={"Host": f"{name}:{lab.port}"}).status in (200, 302, 303, 307)
        assert lab.ask("/walk", headers={"Host": f"{name}:{lab.port}"}).status == 200


FOREIGN = [
    "http://evil.example",
    "https://127.0.0.1:{port}",
    "http://127.0.0.1:{other}",
    "http://127.0.0.1",
    "http://127.0.0.1:{port}.evil.example",
    "http://evil.example:{port}",
    "null",
    "file://",
    "chrome-extension://abc",
]


@pytest.mark.parametrize("path", ["/api/walk", "/part/walk"])
@pytest.mark.parametrize("origin", FOREIGN)
def test_a_foreign_origin_may_not_post(lab, path, origin):
    given = origin.format(port=lab.port, other=lab.port % 60000 + 1)
    for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
        answer = lab.post(path, b"{}", kind, Origin=given)
        assert answer.status == 403
        assert answer.headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize("path", ["/api/walk", "/part/walk"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_may_not_post(lab, path, site):
    """Another port of this machine is the same site and another origin."""
    assert lab.post(path, b"{}", Sec_Fetch_Site=site).status == 403
    assert lab.post(path, b"{}", Sec_Fetch_Site=site, Origin=lab.address).status == 403


def test_its_own_page_and_a_program_may_post(lab):
    assert lab.post("/api/walk", b"{}").status == 200
    for name in ("127.0.0.1", "localhost"):
        own = f"{name}:{lab.port}"
        answer = lab.post("/api/walk", b"{}", Host=own, Origin=f"http://{own}", Sec_Fetch_Site="same-origin")
        assert answer.status == 200


def test_another_site_may_link_to_a_page_and_not_read_the_numbers(lab):
    navigation = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert lab.ask("/walk", headers=navigation).status == 200
    assert lab.ask("/api/walk", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}).status == 403
    assert lab.ask("/api/walk", headers={"Origin": "http://evil.example"}).status == 403
    framed = {**navigation, "Sec-Fetch-Dest": "iframe"}
    assert "frame-ancestors 'none'" in lab.ask("/walk", headers=framed).headers["Content-Security-Policy"]


def test_no_origin_is_told_that_it_may_ask(lab):
    asking = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answer = lab.ask("/api/walk", "OPTIONS", asking)
    assert answer.status in (403, 404, 405)
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_no_socket_is_opened_for_a_page_elsewhere(lab):
    wanted = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Origin": "http://evil.example",
    }
    assert lab.ask("/", headers=wanted).status != 101


# Paths

CLIMBING = [
    "/static/../server.py",
    "/static/../../errors.py",
    "/static/views/../../fields.py",
    "/static/%2e%2e/fields.py",
    "/static/%2e%2e/%2e%2e/errors.py",
    "/static/..%2ffields.py",
    "/static/..%2f..%2ferrors.py",
    "/static/%2e%2e%2ffields.py",
    "/static/%252e%252e/fields.py",
    "/static/..%5cfields.py",
    "/static/..\\fields.py",
    "/static/....//fields.py",
    "/static/%c0%ae%c0%ae/fields.py",
    "/static/%00/../fields.py",
    "/static/lab.js%00.txt",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/" + "../" * 12 + "etc/passwd",
    "/static/" + "%2e%2e/" * 12 + "etc/passwd",
    "/" + "../" * 12 + "etc/passwd",
    "//etc/passwd",
    "/walk/" + "../" * 12 + "etc/passwd",
    "/api/" + "..%2f" * 12 + "etc%2fpasswd",
    "/api/../fields.py",
    "/api/__init__",
    "/api/walk.py",
    "/part/" + "..%2f" * 12 + "etc%2fpasswd",
    "/views/walk.py",
    "/templates/base.html",
    "/static",
    "/static/",
    "/static/views",
    "/static/views/",
    "/static/fonts/",
    "/.git/config",
    "/" + "a" * 30000,
    "/static/" + "a" * 5000,
    "/static/" + "a/" * 3000,
]


@pytest.mark.parametrize("path", CLIMBING, ids=lambda path: path[:48])
def test_no_path_climbs_out(lab, path):
    for method in ("GET", "HEAD"):
        answer = lab.ask(path, method)
        assert answer.status in (400, 403, 404, 405, 414)
        assert not [secret for secret in SECRETS if secret in answer.text]


def test_an_unknown_path_is_a_page_with_words(lab):
    answer = lab.ask("/no-such-view")
    assert answer.status == 404
    assert answer.headers.get_content_type() == "text/html"
    assert len(re.sub("<[^>]*>", "", answer.text).split()) > 5
    assert any(attributes.get("href", "").startswith("/") for attributes in Page(answer.text).named("a"))
    program = lab.ask("/api/no-such-view")
    assert program.status == 404
    assert program.headers.get_content_type() in ("application/json", "application/problem+json")


@pytest.mark.parametrize("path", ["/%3Cscript%3Ealert(1)%3C/script%3E", "/<script>alert(1)</script>", '/"onload="x'])
def test_an_unknown_path_is_not_obeyed(lab, path):
    answer = lab.ask(path)
    assert answer.status in (400, 404)
    assert "<script>alert" not in answer.text
    assert '"onload="' not in answer.text


# Methods


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "BREW"])
@pytest.mark.parametrize("path", PATHS)
def test_other_methods_are_not_allowed(lab, path, method):
    answer = lab.raw(f"{method} {path} HTTP/1.1\r\nHost: {lab.host}\r\nConnection: close\r\n\r\n".encode())
    assert answer is None or answer.status in ({405} if method in ("PUT", "DELETE", "PATCH") else {400, 404, 405, 501})


def test_pages_are_not_posted_to(lab):
    for path in ("/walk", "/static/lab.js", "/api/openapi.json"):
        answer = lab.post(path, b"{}")
        assert answer.status == 405
        assert "GET" in answer.headers["Allow"]
    assert lab.ask("/part/walk").status == 405


def test_head_is_get_without_a_body(lab):
    for path in ("/walk", "/static/lab.js", "/static/fonts/qkv-math.woff2", "/api/walk"):
        whole, head = lab.ask(path), lab.ask(path, "HEAD")
        assert (whole.status, head.status) == (200, 200)
        assert head.body == b""
        assert head.headers["Content-Type"] == whole.headers["Content-Type"]


# What every answer carries


def every_kind_of_answer(lab):
    yield from (lab.ask(path) for path in ("/", "/walk", "/static/lab.js", "/static/lab.css", "/api/openapi.json"))
    yield lab.ask("/static/fonts/qkv-math.woff2")
    yield lab.ask("/walk", "HEAD")
    yield lab.ask("/api/walk")
    yield lab.ask("/api/walk?no-such-field=1")
    yield lab.ask("/walk?no-such-field=1")
    yield lab.ask("/no-such-view")
    yield lab.ask("/api/no-such-view")
    yield lab.ask("/static/no-such-file")
    yield lab.ask("/walk", "DELETE")
    yield lab.ask("/", headers={"Host": "evil.example"})
    yield lab.post("/api/walk", b"{}", Origin="http://evil.example")
    yield lab.post("/api/walk", b"{")
    yield lab.ask("/api/walk", "POST", {"Content-Length": str(10**12)})


def test_every_answer_is_guarded(lab):
    for answer in every_kind_of_answer(lab):
        headers = answer.headers
        policy = {}
        for rule in headers["Content-Security-Policy"].split(";"):
            name, *sources = rule.split()
            policy[name] = sources
        assert policy["default-src"] == ["'self'"]
        assert policy["frame-ancestors"] == ["'none'"]
        assert policy.get("base-uri") in (["'none'"], ["'self'"])
        assert policy.get("form-action") in (["'none'"], ["'self'"])
        for sources in policy.values():
            assert set(sources) <= {"'self'", "'none'"}, policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] in ("no-referrer", "same-origin")
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert headers["Set-Cookie"] is None
        assert headers["Access-Control-Allow-Origin"] is None
        assert not [secret for secret in SECRETS if secret in answer.text]


@pytest.mark.slow
def test_pages_hold_to_their_policy(lab):
    described = lab.ask("/api/openapi.json").text
    names = set(re.findall(r'"/api/([a-z]+)"', described))
    assert "walk" in names
    for path in ["/", *(f"/{name}" for name in sorted(names))]:
        page = Page(lab.ask(path).text)
        for tag, attributes in page.elements:
            if tag == "a":
                continue  # a link is followed by hand
            assert not [name for name in attributes if name.startswith("on") or name == "style"], (path, tag)
            for name in ("src", "href", "action", "formaction", "poster", "data", "srcset"):
                target = attributes.get(name) or ""
                assert not re.match(r"[a-z][a-z0-9+.-]*:|//", target, re.IGNORECASE), (path, tag, target)
        assert not page.named("style"), path
        assert not page.named("base"), path
        assert all(script.get("src") for script in page.named("script")), path


SCRIPT = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}${7*7}</textarea></title>"


@pytest.fixture(scope="module")
def small():
    """A lab that has little patience and little memory."""
    with running(
        *limited(body=20_000, body_seconds=1.0, header_seconds=1.0, seconds=2.0, workers=1, heavy_waiting=2)
    ) as started:
        yield started


@pytest.fixture(scope="module")
def views(lab):
    names = sorted(set(re.findall(r'"/api/([a-z]+)"', lab.ask("/api/openapi.json").text)))
    return {name: importlib.import_module(f"qkv.lab.views.{name}").VIEW for name in names}


def refused(answer, *statuses):
    """A refusal in words, as JSON, and nothing of the program's insides."""
    assert answer.status in (statuses or (400, 422)), answer.text[:300]
    assert answer.headers.get_content_type() == "application/json"
    assert re.search(r"[a-z]{3,} [a-z]{2,}", json.dumps(json.loads(answer.text)))
    assert "Traceback" not in answer.text
    assert len(answer.text) < 20_000
    return answer


# Too much


def test_a_body_over_the_cap_is_refused_before_it_is_read(small):
    for length in (20_001, 10**6, 10**12, 10**30):
        answer = small.ask("/api/walk", "POST", {"Content-Type": "application/json", "Content-Length": str(length)})
        assert answer.status in ({413} if length < 10**13 else {400, 413})


def test_a_body_over_the_cap_without_a_length_is_refused(small):
    head = f"POST /api/walk HTTP/1.1\r\nHost: {small.host}\r\nContent-Type: application/json\r\n"
    chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
    answer = small.raw(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode(), chunk * 6)
    assert answer is not None
    assert answer.status == 413


@pytest.mark.slow
def test_a_body_below_the_cap_is_read(small):
    body = b"{}" + b" " * 19_000
    assert small.post("/api/walk", body).status == 200
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (b"{", b"}")) + b"0\r\n\r\n"
    head = f"POST /api/walk HTTP/1.1\r\nHost: {small.host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    answer = small.raw(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode(), pieces)
    assert answer is not None
    assert answer.status == 200


def test_the_default_cap_holds_as_well(lab):
    answer = lab.ask("/part/walk", "POST", {"Content-Length": str(Limits().body + 1)})
    assert answer.status == 413


@pytest.mark.parametrize(
    "lines", ["Content-Length: -1", "Content-Length: abc", "Content-Length: 2\r\nContent-Length: 3"]
)
def test_lengths_that_are_none_are_refused(lab, lines):
    answer = lab.raw(
        f"POST /api/walk HTTP/1.1\r\nHost: {lab.host}\r\n{lines}\r\nConnection: close\r\n\r\n{{}}".encode()
    )
    assert answer is None or 400 <= answer.status < 500


def test_headers_and_addresses_have_an_end(lab):
    for many in (200_000, 4_000_000):
        for request in (
            f"GET / HTTP/1.1\r\nHost: {lab.host}\r\nX: {'a' * many}\r\n\r\n",
            f"GET /walk?d={'1' * many} HTTP/1.1\r\nHost: {lab.host}\r\n\r\n",
            f"GET / HTTP/1.1\r\nHost: {lab.host}\r\n" + "A: b\r\n" * (many // 6) + "\r\n",
        ):
            answer = lab.raw(request.encode())
            assert answer is None or 400 <= answer.status < 500
    assert lab.ask("/walk").status == 200


def test_noise_is_no_request(lab):
    for noise in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 50, b"\x00" * 500, b"GET\r\n\r\n", b"\r\n" * 50):
        answer = lab.raw(noise + b"\r\n\r\n", seconds=25.0)
        assert answer is None or 400 <= answer.status < 500
    assert lab.ask("/walk").status == 200


# Too slowly


def drip(lab, head, byte, every, seconds):
    """Seconds until the server ends the talk, and what it said; the bytes come one at a time."""
    started = time.monotonic()
    with closing(lab.connect(every)) as line:
        line.sendall(head)
        while time.monotonic() - started < seconds:
            try:
                line.sendall(byte)
                if answer := answered_so_far(line, every):
                    return time.monotonic() - started, answer
            except (ConnectionError, BrokenPipeError):
                return time.monotonic() - started, None
    return seconds, None


def answered_so_far(line, seconds):
    line.settimeout(seconds)
    try:
        if not line.recv(1, 2):  # a look, which takes nothing away
            raise ConnectionError
    except TimeoutError:
        return None
    line.settimeout(5.0)
    return answered(line)


def unfinished(lab):
    lines = ["POST /api/walk HTTP/1.1", f"Host: {lab.host}", "Content-Type: application/json", "Content-Length: 500"]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.slow
def test_a_body_that_trickles_is_given_up(small):
    took, answer = drip(small, unfinished(small), b" ", 0.1, 60.0)
    assert took < patience(4.0)
    assert answer is not None
    assert answer.status == 408


def test_slow_clients_do_not_stand_in_the_way(lab):
    with ExitStack() as open_lines:
        for _ in range(60):
            line = open_lines.enter_context(closing(lab.connect()))
            line.sendall(unfinished(lab) + b"{")
        started = time.monotonic()
        assert lab.ask("/walk").status == 200
        assert time.monotonic() - started < min(patience(2.0), Limits().body_seconds)


@pytest.mark.slow
def test_headers_that_trickle_are_given_up(small):
    assert Limits().header_seconds <= 15
    request = f"GET / HTTP/1.1\r\nHost: {small.host}\r\nX: ".encode()
    for head in (request, b"G", request[:-2]):
        took, answer = drip(small, head, b"a", 0.1, 60.0)
        assert took < patience(4.0)
        assert answer is None or answer.status == 408
    with closing(small.connect(30.0)) as silent:
        assert answered(silent) is None


def test_idle_connections_do_not_stand_in_the_way(lab):
    with ExitStack() as open_lines:
        for _ in range(200):
            open_lines.enter_context(closing(lab.connect()))
        started = time.monotonic()
        assert lab.ask("/walk").status == 200
        assert time.monotonic() - started < patience(2.0)


# Broken

BROKEN = {
    "open": b"{",
    "nothing": b"",
    "a list": b"[]",
    "a number": b"1",
    "a text": b'"x"',
    "null": b"null",
    "no value": b'{"d": }',
    "behind it": b"{} {}",
    "single quotes": b"{'d': 1}",
    "no UTF-8": b'{"d": "\xff\xfe"}',
    "UTF-16": '{"d": 1}'.encode("utf-16"),
    "a mark": b"\xef\xbb\xbf[]",
    "deep": b"[" * 10_000 + b"]" * 10_000,
    "deep in a field": b'{"x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "deep objects": b'{"x":' * 10_000 + b"1" + b"}" * 10_000,
    "deep and open": b"[" * 15_000,
    "unknown": b'{"no-such-field": 1}',
    "hostile name": b'{"<script>alert(1)</script>": 1}',
    "long number": b'{"x": ' + b"9" * 9_000 + b"}",
    "NaN": b'{"x": NaN}',
    "Infinity": b'{"x": -Infinity}',
    "1e999": b'{"x": 1e999}',
    "half a pair": b'{"x": "\\ud800"}',
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=list(BROKEN))
def test_broken_json_is_refused_with_words(lab, body):
    started = time.monotonic()
    refused(lab.post("/api/walk", body))
    assert time.monotonic() - started < patience(1.0)


def test_what_is_no_form_is_no_crash(lab):
    for body in (b"\xff\xfe", b"%", b"=&=&==", b"&" * 2_000, b"a=1&" * 2_000, b"%ff=%ff", b"{}"):
        for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", "x"):
            assert lab.post("/part/walk", body, kind).status < 500


# Far too large, in every field of every view

ENDLESS = [
    "1e999",
    "-1e999",
    "NaN",
    "inf",
    "9" * 5_000,
    "1" + "0" * 30,
    "1e99999999",
    "0x10",
    "1_000",
    "１２",
    "1;2",
    "\x00",
]
LARGE = ["1000000000", "1e9", "-1000000000", "", " ", "1/0"]


@pytest.mark.slow
def test_numbers_have_their_range(lab, views):
    for name, view in views.items():
        for field in (each for each in view.fields if isinstance(each, Number)):
            for text in ENDLESS + [each for each in LARGE if not in_range(field, each)]:
                answer = refused(lab.post(f"/api/{name}", json.dumps({field.name: text}).encode()), 422)
                assert field.name in answer.text, (name, field.name, text)
            for literal in ("NaN", "1e999", "1" + "0" * 400, "true", "null", "[]", "{}", '["1"]'):
                refused(lab.post(f"/api/{name}", f'{{"{field.name}": {literal}}}'.encode()))


def in_range(field, text):
    try:
        return field.low <= float(text) <= field.high
    except ValueError:
        return False


def test_grids_and_texts_have_their_size(lab, views):
    for name, view in views.items():
        for field in view.fields:
            wrong = []
            if isinstance(field, Matrix):
                wide, high = field.most_columns + 1, field.most_rows + 1
                wrong += [[[1] * wide], [[1]] * high, [[1, 2], [1]], [[]], [], [[[1]]], [[True]], [[None]], [["x"]]]
                wrong += [[[1] * 100] * 100, ";".join(["1,1"] * high), "1," * wide, ";", "1e999", [["1/0"]]]
            elif isinstance(field, Words):
                wrong += [1, None, [], {}, ["x"]]
                if field.longest < Limits().body // 2:
                    wrong.append("x" * (field.longest + 1))
            for value in wrong:
                answer = lab.post(f"/api/{name}", json.dumps({field.name: value}).encode())
                refused(answer, 400, 413, 422)


# Meant to be run


class Hostile(HTMLParser):
    """Whether what was typed has become part of the page's own markup."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if (tag == "script" and not attributes.get("src")) or attributes.get("src") == "x":
            self.found.append(tag)
        self.found += [name for name in attributes if name.startswith("on")]


def markup(answer):
    """The texts of an answer that a page would show as markup: the whole of one, or what stands in lines of JSON."""
    if answer.headers.get_content_type() == "text/html":
        return [answer.text]
    assert answer.headers.get_content_type() == "application/x-ndjson"
    last = json.loads(answer.text.splitlines()[-1])
    return [value for name, value in last.items() if isinstance(value, str) and value.lstrip().startswith("<")]


@pytest.mark.slow
def test_markup_in_every_field_is_shown_and_never_obeyed(lab, views):
    shown = 0
    for name, view in views.items():
        for field in view.fields:
            query = urlencode({field.name: SCRIPT})
            typed = json.dumps({field.name: SCRIPT}).encode()
            part = lab.ask(f"/part/{name}", "POST", {"Content-Type": "application/json"}, typed, seconds=60.0)
            for answer in (lab.ask(f"/{name}?{query}"), part):
                assert answer.status in (200, 422), (name, field.name)
                for text in markup(answer):
                    assert not Hostile(text).found, (name, field.name)
                    assert "<script>alert(1)" not in text
                    assert "49$" not in text, "a template was run"
                    shown += "alert(1)" in text
    assert shown > 50


def test_what_was_typed_is_kept(lab, views):
    for name, view in views.items():
        for field in (each for each in view.fields if isinstance(each, Number)):
            page = lab.ask(f"/{name}?{field.name}=1e999x")
            assert page.status in (200, 422)
            assert "1e999x" in page.text, (name, field.name)


@pytest.mark.slow
def test_a_field_given_twice_and_a_strange_field_are_no_crash(lab, views):
    for name, view in views.items():
        first = view.fields[0].name
        for query in (
            f"{first}=1&{first}=2",
            "no-such-field=1",
            f"{first}",
            "=",
            "%ff=1",
            f"{first}[]=1",
            "&&&",
            "a=" * 50,
        ):
            for path in (f"/{name}?{query}", *([] if view.heavy else [f"/api/{name}?{query}"])):
                assert lab.ask(path).status < 500, path


# Files


@pytest.mark.slow
def test_no_text_names_a_file(lab, views, tmp_path):
    """A path in a field is a text like any other: what lies there is not read."""
    secret = "canary-5f3a9c"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": secret, "hidden_size": 77, secret: secret}))
    (tmp_path / "secret.txt").write_text(f"{secret}\n")
    paths = [
        str(tmp_path),
        str(tmp_path / "config.json"),
        f"file://{tmp_path}/secret.txt",
        "/etc/passwd",
        "../../LICENSE",
    ]
    for name, view in views.items():
        for field in view.fields:
            if isinstance(field, Number | Matrix):
                continue
            for path in paths[: 2 if view.heavy else None]:
                answer = lab.ask(f"/api/{name}?{field.name}={quote(path, safe='')}", seconds=60.0)
                assert answer.status in (200, 422), (name, field.name, path)
                assert not re.search(rf"{secret}|root:x:|TERMS AND CONDITIONS", answer.text), (name, field.name, path)


# Work at once, and for how long


@pytest.mark.slow
def test_work_beyond_capacity_is_refused_and_the_rest_goes_on(small, views):
    """Two wait for the process that does heavy work; all others are told to come again."""
    heavy = [name for name, view in views.items() if view.heavy is True]
    found = []

    def ask(name):
        found.append(small.ask(f"/api/{name}", seconds=60.0))

    asking = [threading.Thread(target=ask, args=(heavy[n % len(heavy)],)) for n in range(12)]
    for one in asking:
        one.start()
    started = time.monotonic()
    assert small.ask("/static/lab.js").status == 200
    assert time.monotonic() - started < patience(2.0)
    for one in asking:
        one.join()
    assert len(found) == 12
    assert {answer.status for answer in found} <= {200, 422, 503}, [answer.text[:200] for answer in found]
    told_to_wait = [answer for answer in found if answer.status == 503]
    assert len(told_to_wait) >= 6
    for answer in told_to_wait:
        refused(answer, 503)
        assert int(answer.headers["Retry-After"]) > 0
    assert small.ask("/api/walk").status == 200


def alive(processes):
    """Those that still run; one that ended and was not yet waited for does not."""
    return {each for each in processes if (state := status(each)) and state != "Z"}


def status(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def listening(processes):
    """Addresses, in hexadecimal, on which these processes wait for connections."""
    sockets = set()
    for process in processes:
        for handle in Path(f"/proc/{process}/fd").glob("*"):
            try:
                sockets |= set(re.findall(r"socket:\[(\d+)\]", str(handle.readlink())))
            except OSError:
                continue
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            waits = fields[3] == "0A" if table.startswith("tcp") else fields[3] == "07"
            if waits and fields[9] in sockets:
                found.append((table, *fields[1].split(":")))
    return found


@pytest.mark.slow
def test_it_listens_on_loopback_alone():
    with running() as lab:
        lab.ask("/walk")
        everybody = {lab.process.pid, *descendants(lab.process.pid)}
        assert listening(everybody) == [("tcp", "0100007F", f"{lab.port:04X}")]
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as outward:
            try:
                outward.connect(("10.255.255.255", 9))  # sends nothing: tells which address would be used
                here = outward.getsockname()[0]
            except OSError:
                return
        if not here.startswith("127."):
            with pytest.raises(OSError):
                socket.create_connection((here, lab.port), timeout=2).close()


@pytest.mark.slow
def test_the_address_that_it_prints_is_open_at_once():
    """Who waits for the line and then asks must not be refused."""
    command = [sys.executable, *COMMAND]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            found = ADDRESS.search(process.stdout.readline())
            assert found
            socket.create_connection(("127.0.0.1", int(found[1])), timeout=5).close()
        finally:
            process.terminate()
            process.wait(10)


def test_a_request_that_arrives_while_the_lab_ends_is_refused_at_once():
    """Its body may never come: waiting for it would keep the server until it is cancelled."""
    from qkv.lab.guard import Limits, guarded

    async def app(scope, receive, send):
        raise AssertionError("the request reached the app")

    async def never():
        raise AssertionError("the body was waited for")

    async def asked():
        sent = []

        async def send(message):
            sent.append(message)

        guard = guarded(app, Limits())
        guard.end()
        scope = {"type": "http", "method": "POST", "path": "/api/walk", "server": ("127.0.0.1", 80)}
        await guard(scope | {"headers": [(b"host", b"127.0.0.1"), (b"content-length", b"7")]}, never, send)
        return sent[0]["status"]

    assert asyncio.run(asked()) == 503


@contextmanager
def busy(lab: Lab):
    """Readers who wait for work of every view, one who sends nothing and one who never finishes."""
    from qkv.lab import views

    names = sorted(path.stem for path in Path(views.__file__).parent.glob("[a-z]*.py"))

    def ask(name):
        with suppress(AssertionError, OSError, http.client.HTTPException):
            lab.ask(f"/api/{name}", seconds=30.0)

    asking = [threading.Thread(target=ask, args=(name,)) for name in names if "_" not in name]
    for one in asking:
        one.start()
    with closing(lab.connect()), closing(lab.connect()) as unfinished:
        unfinished.sendall(f"POST /api/walk HTTP/1.1\r\nHost: {lab.host}\r\nContent-Length: 100\r\n\r\n{{".encode())
        time.sleep(0.3)
        yield
    for one in asking:
        one.join()


@pytest.mark.slow
@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("state", ["just begun", "idle", "busy"])
def test_it_ends_when_it_is_told_to(asked, state):
    with running() as lab, busy(lab) if state == "busy" else nullcontext():
        if state == "idle":
            assert lab.ask("/api/walk", seconds=60.0).status == 200
        children = descendants(lab.process.pid)
        lab.process.send_signal(asked)
        started = time.monotonic()
        assert lab.process.wait(60) == 0
        assert time.monotonic() - started < patience(3.0)
        time.sleep(0.2)
        assert not alive(children)
        assert "Traceback" not in "".join(lab.told)


def lab_with(*options):
    command = [sys.executable, *COMMAND[:3], "--no-browser", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_a_port_in_use_is_said_in_a_line():
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        ended = lab_with("--port", str(port))
    assert ended.returncode == 2
    lines = [line for line in (ended.stderr + ended.stdout).splitlines() if line.strip()]
    assert len(lines) == 1
    assert str(port) in lines[0]
    assert "Traceback" not in lines[0]


@pytest.mark.slow
@pytest.mark.parametrize("port", ["99999", "-1", "abc", "65536"])
def test_a_port_that_is_none_is_refused(port):
    ended = lab_with("--port", port)
    assert ended.returncode == 2
    assert "port" in ended.stderr
    assert "Traceback" not in ended.stderr
