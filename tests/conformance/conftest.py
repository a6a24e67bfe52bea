"""The stores that keep the contract: one line each."""

import pytest

from abate.stores import open_store
from abate.testing import VirtualClock
from tests.conformance import postgres_server, redis_server

STORES = {
    "memory": lambda folder: "memory:",
    "sqlite": lambda folder: f"sqlite:///{folder}/work.db",
    "redis": lambda folder: redis_server.empty_store(),
    "postgres": lambda folder: postgres_server.empty_store(),
}
"""By name: the URL of a new, empty store of that kind; `folder` is a new, empty one."""
SHARED = [kind for kind in STORES if kind != "memory"]
"""Those that several processes can have in common."""


@pytest.fixture(params=STORES)
def url(request, tmp_path):
    return STORES[request.param](tmp_path)


@pytest.fixture
def clock():
    return VirtualClock(start=1000.0)


@pytest.fixture
def store(url, clock):
    with open_store(url, clock=clock) as opened:
        yield opened


@pytest.fixture
def queue(store):
    return store.queue("orders", lease=10.0)
