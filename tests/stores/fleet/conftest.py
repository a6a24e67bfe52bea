"""Members of a fleet in one process: each with a courier of its own that goes when a test says so."""

import pytest

from abate.stores import open_store
from abate.stores.fleet import FleetSync


class Flaky:
    """A store that can be made to fail."""

    def __init__(self, store):
        self.store = store
        self.error = None
        self.rounds = 0

    def sync_members(self, member, requests):
        self.rounds += 1
        if self.error is not None:
            raise self.error
        return self.store.sync_members(member, requests)


@pytest.fixture
def still(monkeypatch):
    """Couriers go by hand."""
    monkeypatch.setattr(FleetSync, "start", lambda self: None)


@pytest.fixture
def store(still):
    with open_store("memory:") as store:
        yield store


@pytest.fixture
def flaky(store):
    return Flaky(store)


@pytest.fixture
def fleet_sync(flaky):
    """A new member of the fleet."""
    return lambda: FleetSync(flaky, "fleet")
