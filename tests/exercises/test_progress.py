"""Progress is added up, written whole, and never lost: what cannot be read is set aside, what cannot be kept said."""

import json
import os
from collections import Counter

import pytest

from qkv.exercises.progress import FORMAT, Progress, Record, forget, load, path, save


def session(ended="shown", name="toy", **mistakes):
    progress = Progress()
    progress.record(name, "a").note(ended, Counter(mistakes))
    return progress


def test_sessions_add_up(tmp_path):
    place = tmp_path / "deep" / "practice.json"
    assert load(place) == (Progress(), "")
    assert save(session("shown", m=2), place) == ""
    assert save(session("at once", m=1), place) == ""
    assert save(session("skipped", "other"), place) == ""
    found, said = load(place)
    assert said == ""
    assert found.records["toy/a"] == Record(Counter({"shown": 1, "at once": 1}), Counter(m=3), "at once")
    assert [each.name for each in place.parent.iterdir()] == ["practice.json"]
    assert json.loads(place.read_text())["format"] == FORMAT


def test_what_went_wrong_wants_practice_most():
    needs = [session(ended).need("toy", "a") for ended in ("at once", "after tries", "skipped")]
    assert needs == sorted(needs)
    assert needs[0] < Progress().need("toy", "a") < needs[1]


@pytest.mark.parametrize(
    "content",
    ["", "no json", "[1, 2]", '{"format": "another"}', f'{{"format": "{FORMAT}", "parts": 3}}', "[" * 100_000,
     f'{{"format": "{FORMAT}", "parts": {{"a": {{"ended": {{"x": -1}}, "mistakes": {{}}, "last": ""}}}}}}',
     f'{{"format": "{FORMAT}", "parts": {{"a": {{"ended": {{"x": true}}, "mistakes": {{}}, "last": ""}}}}}}'],
)  # fmt: skip
def test_another_file_is_set_aside_and_kept(tmp_path, content):
    place = tmp_path / "practice.json"
    for number in (1, 2):
        place.write_text(content)
        found, said = load(place)
        assert found == Progress()
        assert f"practice.json.set-aside-{number}" in said
        assert (tmp_path / f"practice.json.set-aside-{number}").read_text() == content
    assert save(session(), place) == ""
    assert load(place)[0].records


def test_bytes_that_are_no_text_are_set_aside(tmp_path):
    place = tmp_path / "practice.json"
    place.write_bytes(b"\xff\xfe\x00")
    assert "set-aside-1" in load(place)[1]


def test_a_place_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert "cannot be kept" in save(session(), tmp_path / "file" / "practice.json")
    place = tmp_path / "practice.json"
    save(session(), place)
    before = place.read_text()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    assert "Read-only file system" in save(session(), place)
    assert place.read_text() == before
    assert len(list(tmp_path.iterdir())) == 2


def test_forgetting_touches_nothing_else(tmp_path):
    place = tmp_path / "practice.json"
    (tmp_path / "other").write_text("mine")
    assert "no progress" in forget(place)
    save(session(), place)
    assert "forgotten" in forget(place)
    assert not place.exists()
    place.write_text("foreign")
    assert "set-aside" in forget(place)
    assert (tmp_path / "other").read_text() == "mine"
    assert (tmp_path / "practice.json.set-aside-1").read_text() == "foreign"


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert path() == tmp_path / "qkv" / "practice.json"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert path() == tmp_path / ".local" / "share" / "qkv" / "practice.json"
