"""What is sent: too much, too slowly, broken, far too large, or meant to be run. No answer is a crash."""

import importlib
import json
import re
import threading
import time
from contextlib import ExitStack, closing
from html.parser import HTMLParser
from urllib.parse import quote, urlencode

import pytest

from lab_process import answered, limited, patience, running
from qkv.lab.fields import Matrix, Number, Words
from qkv.lab.guard import Limits

SCRIPT = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}${7*7}</textarea></title>"


@pytest.fixture(scope="module")
def small():
    """A lab that has little patience and little room."""
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


def test_more_work_than_there_is_room_for_is_refused_and_the_rest_goes_on(small, views):
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
