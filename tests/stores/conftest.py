"""The store that the tests of a file are about: of the kind that the file names as its `KIND`."""

import pytest

from abate.stores import open_store
from tests.conformance import redis_server
from tests.conformance.conftest import STORES


@pytest.fixture
def url(request, tmp_path):
    """Of a new, empty one."""
    return STORES[request.module.KIND](tmp_path)


@pytest.fixture
def store(url):
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def admin():
    """The tests' own connection to Redis."""
    return redis_server.connection()
