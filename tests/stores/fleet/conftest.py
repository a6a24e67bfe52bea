"""Members of a fleet in one process: each has its own FleetSync, which syncs only when a test calls it."""

import pytest

from abate.stores import open_store
from abate.stores.fleet import FleetSync


class Flaky:
    """A store that raises `error` when it is set."""

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
def manual_sync(monkeypatch):
    """Start no sync threads: tests call sync_once()."""
    monkeypatch.setattr(FleetSync, "start", lambda self: None)


@pytest.fixture
def store(manual_sync):
    with open_store("memory:") as store:
        yield store


@pytest.fixture
def flaky(store):
    return Flaky(store)


@pytest.fixture
def fleet_sync(flaky):
    """Return a function that makes a new member of the fleet."""
    return lambda: FleetSync(flaky, "fleet")
