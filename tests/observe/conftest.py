"""Sinks that are installed while a test runs."""

import itertools

import pytest

import abate
from abate.observe.page.recent_activity import RecentActivity
from tests.observe.watched_sink import Watched

numbers = itertools.count()


@pytest.fixture
def watched():
    """Return a Prometheus sink that is installed for one test."""
    with Watched() as watched:
        yield watched


@pytest.fixture
def name():
    """Return a name that no other test uses."""
    return f"name-of-test-{next(numbers)}"


@pytest.fixture
def recent():
    """Return the live page's activity sink, installed, on a virtual clock."""
    with abate.testing.VirtualClock(start=1000.0) as clock:
        sink = abate.observe.install(RecentActivity(clock))
        sink.clock = clock
        yield sink
        abate.observe.remove(sink)
