"""Who may ask, for what, and what every answer carries: a real server, and requests that a browser would not send."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import qkv

REFUSED = {400, 403, 421}
SECRETS = ("root:x:", "from __future__", "Traceback", str(Path(qkv.__file__).parent), str(Path.home()) + "/")
DOORS = ("/", "/walk", "/api/walk", "/api/openapi.json", "/static/lab.js")


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


@pytest.mark.parametrize("path", DOORS)
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


def test_nobody_is_told_that_another_origin_may_ask(lab):
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
@pytest.mark.parametrize("path", DOORS)
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
