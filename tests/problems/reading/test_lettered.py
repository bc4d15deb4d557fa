"""Parts of a question by their letters, in the layouts of assignments."""

from __future__ import annotations

import pytest

from qkv.problems.reading.lettered import about, lettered


@pytest.mark.parametrize("label", ["({})", "{})", "**({})**", "- ({})", "> ({})", "{}.", "#### ({})"])
def test_layouts(label: str) -> None:
    text = "Given.\n" + "\n".join(f"{label.format(letter)} ask {letter}" for letter in "abc")
    before, parts = lettered(text)
    assert before == "Given."
    assert [(part.name, part.text) for part in parts] == [(letter, f"ask {letter}") for letter in "abc"]


def test_sub_parts_have_a_stem() -> None:
    _, parts = lettered("(a) Do this for:\n  (i) one\n  (ii) two\n(b) else\nSolution: nothing")
    assert [(part.name, part.whole) for part in parts] == [
        ("a(i)", "Do this for: one"), ("a(ii)", "Do this for: two"), ("b", " else")]  # fmt: skip
    _, bullets = lettered("(d) For each of these:\n- long ones\n- short ones")
    assert [part.name for part in bullets] == ["d(i)", "d(ii)"]


def test_no_letters() -> None:
    assert lettered("What is a mask?") == ("What is a mask?", [])
    assert lettered("") == ("", [])
    assert lettered("(a" * 20_000)[1] == []


def test_what_is_given_for_a_part() -> None:
    assert about("All.\nFor part (b): x is 1.\nFor part (c): y.", "b(i)") == "For part (b): x is 1."
