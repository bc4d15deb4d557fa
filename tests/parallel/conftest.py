"""Four processes for the tests of this folder, started when the first one asks."""

from collections.abc import Iterator

import pytest

from ranks import Crew


@pytest.fixture(scope="session")
def _crews() -> Iterator[list[Crew]]:
    crews: list[Crew] = []
    yield crews
    for crew in crews:
        crew.close()


@pytest.fixture
def crew(_crews: list[Crew]) -> Crew:
    """Ranks that are all alive; a test that harms them makes a `Crew` of its own."""
    if not _crews or not _crews[-1].alive:
        _crews.append(Crew())
    return _crews[-1]
