"""Four processes for the tests of this folder, started by the first test that needs them."""

from collections.abc import Iterator

import pytest

from tests.helpers.ranks import RankPool


@pytest.fixture(scope="session")
def _pools() -> Iterator[list[RankPool]]:
    pools: list[RankPool] = []
    yield pools
    for pool in pools:
        pool.close()


@pytest.fixture
def pool(_pools: list[RankPool]) -> RankPool:
    """A pool of live ranks; a test that kills ranks makes its own."""
    if not _pools or not _pools[-1].alive:
        _pools.append(RankPool())
    return _pools[-1]
