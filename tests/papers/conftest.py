"""Every record once, for all tests of this folder."""

import pytest

from moejax.papers.reproduce import PAPERS, reproduce


@pytest.fixture(scope="session")
def records():
    return reproduce(PAPERS)


@pytest.fixture(scope="session")
def by_key(records):
    return {record.key: record for record in records}
