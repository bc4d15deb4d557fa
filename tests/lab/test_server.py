"""Pages, parts, the API and saved files, for every view, without a browser."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import httpx
import pytest

from qkv.errors import OptionError
from qkv.lab import make_app
from qkv.lab.numbers import at
from qkv.lab.views import NAMES, view

LIGHT = [name for name in NAMES if not view(name).is_heavy({f.name: f.read(f.default_text) for f in view(name).fields})]


class Client:
    """Asks an app that was started as a server starts it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.app = make_app()
        self.started, self.ended = asyncio.Event(), asyncio.Event()
        self.life = self.loop.create_task(self._live())
        self.loop.run_until_complete(self.started.wait())

    async def _live(self) -> None:
        messages: asyncio.Queue = asyncio.Queue()
        messages.put_nowait({"type": "lifespan.startup"})

        async def receive() -> dict:
            if not messages.empty():
                return messages.get_nowait()
            await self.ended.wait()
            return {"type": "lifespan.shutdown"}

        async def send(message) -> None:
            self.started.set()

        await self.app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)

    def ask(self, method: str, path: str, **more) -> httpx.Response:
        async def once() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.request(method, path, timeout=60, **more)

        return self.loop.run_until_complete(once())

    def close(self) -> None:
        self.ended.set()
        self.loop.run_until_complete(self.life)
        self.loop.close()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    made = Client()
    # The first numbers load torch; from then on pages bring theirs.
    for _ in range(600):
        if "data-pending" not in made.ask("GET", f"/{NAMES[0]}").text:
            break
        made.loop.run_until_complete(asyncio.sleep(0.05))
    yield made
    made.close()


class Loads(HTMLParser):
    """What a page would load, run or send to."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.forbidden: list[str] = []

    def handle_starttag(self, tag: str, attrs) -> None:
        for name, value in attrs:
            if name in ("src", "href", "action", "xlink:href", "data", "srcset", "poster"):
                self.addresses.append(value or "")
            if name == "style" or name.startswith("on"):
                self.forbidden.append(f"{tag} {name}={value}")
        if tag == "script" and not dict(attrs).get("src"):
            self.forbidden.append("an inline script")


def loads(html: str) -> Loads:
    found = Loads()
    found.feed(html)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_page_loads_only_from_here_and_runs_nothing_inline(client: Client, name: str) -> None:
    answer = client.ask("GET", f"/{name}")
    assert answer.status_code == 200
    found = loads(answer.text)
    assert not found.forbidden
    assert all(address.startswith(("/", "#")) and not address.startswith("//") for address in found.addresses)
    for address in {each for each in found.addresses if each.startswith(("/static", "/figures.css"))}:
        assert client.ask("GET", address).status_code == 200, address
    others = [client.ask("GET", each) for each in found.addresses if each.startswith(("/static", "/figures.css"))]
    assert sum(each.num_bytes_downloaded for each in (answer, *others)) < 150_000


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT)
def test_page_part_and_api_tell_the_same(client: Client, name: str) -> None:
    api = client.ask("GET", f"/api/{name}").json()
    assert sorted(api["result"]) == sorted(view(name).schema)
    assert client.ask("POST", f"/api/{name}", json=api["state"]).json()["result"].keys() == api["result"].keys()
    lines = client.ask("POST", f"/part/{name}", json=api["state"]).text.splitlines()
    part = json.loads(lines[-1])
    assert part["python"] == api["python"]
    assert part["query"] == ""
    page = client.ask("GET", f"/{name}").text
    for text in (part["html"], page):
        numbers = re.findall(r'<data class="n" value="([^"]*)" data-path="([^"]*)">', text)
        assert numbers
        for value, path in numbers:
            wanted = at(api["result"], path)
            if isinstance(wanted, float) and not path.startswith("measured"):
                assert float(value) == wanted, path


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT)
def test_a_saved_view_needs_nothing_and_runs_its_own_scripts_alone(client: Client, name: str) -> None:
    answer = client.ask("GET", f"/save/{name}")
    assert answer.status_code == 200
    assert f"qkv-{name}.html" in answer.headers["content-disposition"]
    found = loads(answer.text)
    assert set(found.forbidden) <= {"an inline script"}
    assert all(address.startswith("#") for address in found.addresses)
    policy = html.unescape(re.findall(r'Content-Security-Policy" content="([^"]*)"', answer.text)[0])
    scripts = re.findall(r'<script(?: type="module")?>(.*?)</script>', answer.text, re.DOTALL)
    assert len(scripts) == 2
    for text in scripts:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
        assert "import {" not in text
    assert "unsafe" not in policy
    assert all(" disabled" in each for each in re.findall(r"<button[^>]* data-set=[^>]*>", answer.text))
    outside = set(re.findall(r"https?://[^\s\"'<)]+", answer.text)) - {"http://www.w3.org/2000/svg"}
    assert not {each for each in outside if "w3.org" not in each}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_was_typed_is_kept_and_escaped(client: Client, name: str) -> None:
    for field in view(name).fields:
        text = '"><script>alert(1)</script>'
        page = client.ask("GET", f"/{name}", params={field.name: text}).text
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)" in page or "&#34;&gt;&lt;script&gt;" in page, field.name


@pytest.mark.parametrize("name", NAMES)
def test_a_field_that_cannot_be_read_is_told_at_it(client: Client, name: str) -> None:
    fields = [field for field in view(name).fields if field.kind in ("number", "matrix", "choice")]
    for field in fields:
        answer = client.ask("GET", f"/api/{name}", params={field.name: "zebra"})
        assert answer.status_code == 422
        problems = answer.json()["problems"]
        assert field.name in problems
        page = client.ask("GET", f"/{name}", params={field.name: "zebra"}).text
        assert "zebra" in page
        assert 'aria-invalid="true"' in page


def test_home_shows_the_picture_and_every_view(client: Client) -> None:
    found = client.ask("GET", "/?wait=yes").text
    assert 'data-path="weights.0"' in found
    assert all(f'href="/{name}"' in found for name in NAMES[1:])


def test_figures_are_dark_by_system_and_by_choice(client: Client) -> None:
    style = client.ask("GET", "/figures.css").text
    assert ":root[data-theme=dark] .qkv-paper{" in style
    assert ":root:not([data-theme=light]) .qkv-paper{" in style


def test_only_the_origin_that_was_named_may_frame_it() -> None:
    def headers(embed: str | None) -> httpx.Headers:
        async def ask() -> httpx.Headers:
            transport = httpx.ASGITransport(make_app(embed=embed))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return (await client.get("/api")).headers

        return asyncio.run(ask())

    framed, plain = headers("https://course.example:8443"), headers(None)
    assert "frame-ancestors https://course.example:8443;" in f"{framed['content-security-policy']};"
    assert "x-frame-options" not in framed
    assert plain["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in plain["content-security-policy"]
    for wrong in ("*", "https://*.example", "https://a.example/x", "a.example", "https://a.example; script-src *"):
        with pytest.raises(OptionError, match="embed"):
            make_app(embed=wrong)
