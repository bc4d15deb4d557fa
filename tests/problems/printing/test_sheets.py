"""A sheet asks and leaves room; its key answers the same questions; nothing of the key is on the sheet."""

from qkv.problems.printing.sheets import TITLE, room_for, sheet_document
from qkv.render import BlankLines, latex, markdown, pdf
from tests.helpers import toy_problem


def test_a_sheet_has_a_name_line_points_sizes_and_room():
    problems = [toy_problem.make(3), toy_problem.make(4)]
    sheet = sheet_document(problems, copy=17)
    said = markdown(sheet)
    assert sheet.title == TITLE
    for words in ("Name", "/ 10", "Copy 017", "3 points", "A toy"):
        assert words in said
    assert r"\underset{3 \times 2}" in latex(sheet)
    rooms = [block for block in sheet.blocks if isinstance(block, BlankLines)]
    assert [room.lines for room in rooms] == [room_for(part) for problem in problems for part in problem.parts]
    assert pdf(sheet).startswith(b"%PDF")


def test_the_key_answers_and_the_sheet_does_not():
    problem = toy_problem.make(5)
    sheet, key = (markdown(sheet_document([problem], key=key, copy=2)) for key in (False, True))
    answer = problem.part("a").answer.items["q"].gold
    assert answer in key
    assert answer not in sheet
    assert problem.part("a").explanation in key
    assert problem.part("a").explanation not in sheet
    assert "Copy 002" in sheet
    assert "Copy 002" in key


def test_the_same_sheet_gives_the_same_bytes():
    assert pdf(sheet_document([toy_problem.make(1)])) == pdf(sheet_document([toy_problem.make(1)]))
