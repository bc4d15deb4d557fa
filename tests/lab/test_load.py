"""Fifty readers at once: no error, and everybody gets the answer to his own question."""

import asyncio

import pytest

# benchmarks/ is not part of the package: it is found next to it.
from benchmarks.clients import light, load, questions, resident
from tests.helpers.lab_process import running

MEBI = 1 << 20


@pytest.fixture(scope="module")
def found():
    with running() as lab:

        async def both():
            known = await questions(lab.port, light(), 3)
            before = resident(lab.process.pid)
            return await load(lab.port, 50, 1.5, known), resident(lab.process.pid) - before

        yield asyncio.run(both())


@pytest.mark.slow
def test_fifty_readers_at_once_see_no_error(found):
    answers, _ = found
    assert not answers.wrong
    assert len(answers.seconds) >= 50
    assert answers.questions > 3 * len(light())


@pytest.mark.slow
def test_they_leave_no_memory_behind(found):
    _, grown = found
    assert grown < 150 * MEBI
