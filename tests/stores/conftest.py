"""Fixtures for tests of one kind of store: a test file names the kind in its constant `KIND`."""

import pytest

from abate.stores import open_store
from tests.conformance import redis_server
from tests.conformance.conftest import STORES


@pytest.fixture
def url(request, tmp_path):
    """The URL of a new, empty store."""
    return STORES[request.module.KIND](tmp_path)


@pytest.fixture
def store(url):
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def admin():
    """A connection to Redis that is independent of the store."""
    return redis_server.connection()
