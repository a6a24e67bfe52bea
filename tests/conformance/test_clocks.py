"""A clock that is set back: what was ready stays ready, and nothing takes longer than was asked for.

Whose clock it is differs. In SQLite and in memory, it is the machine's, and the test sets what it says of the date. In
Redis and PostgreSQL, it is the server's, which the test stands in for: it sends each instant along.
"""

import pytest

from abate.clock import MACHINE
from abate.stores import open_store
from abate.stores.sqlite import file_clock
from abate.testing import VirtualClock
from tests.conformance.conftest import STORES
from tests.stores.processes import keys

HOUR = 3600.0


class Machine:
    """The machine's own clock, which tests move, and a date that they set."""

    def __init__(self, monkeypatch):
        self.seconds = self.step = 0.0
        begun, date = file_clock.seconds_since_boot(), MACHINE.wall()
        monkeypatch.setattr(file_clock, "seconds_since_boot", lambda: begun + self.seconds)
        monkeypatch.setattr(file_clock.time, "time", lambda: date + self.seconds + self.step)
        self.given = None

    def advance(self, seconds):
        self.seconds += seconds

    def set_back(self, seconds):
        self.step -= seconds


class Server(VirtualClock):
    """The clock of a server."""

    @property
    def given(self):
        return self

    def set_back(self, seconds):
        self._now -= seconds


@pytest.fixture(params=STORES)
def kind(request):
    return request.param


@pytest.fixture
def clock(kind, monkeypatch):
    return Server(start=1e6) if kind in ("redis", "postgres") else Machine(monkeypatch)


@pytest.fixture
def queue(kind, clock, tmp_path):
    with open_store(STORES[kind](tmp_path), clock=clock.given) as store:
        yield store.queue("orders", lease=10.0)


def test_what_was_ready_stays_ready(queue, clock):
    """It is handed out, and so is what is added after it."""
    queue.add("a")
    clock.set_back(HOUR)
    assert queue.depth().ready == 1
    queue.add("b")
    assert keys(queue.receive(10)) == ["a", "b"]


def test_a_delay_does_not_grow(queue, clock):
    """To within a second, which is how often a store writes down how late it is."""
    queue.add("a", after=60.0)
    clock.advance(30.0)
    queue.add("b")
    clock.set_back(HOUR)
    queue.add("c", after=60.0)
    assert keys(queue.receive(10)) == ["b"]
    clock.advance(31.0)
    assert "a" in keys(queue.receive(10))
    clock.advance(30.0)
    assert "c" in keys(queue.receive(10))


def test_a_lease_does_not_grow_nor_come_to_life_again(queue, clock):
    """Its holder can extend it in time, and is refused when it is over. (Looks that find nothing let time pass too.)"""
    queue.add("a")
    (first,) = queue.receive()
    clock.set_back(HOUR)
    clock.advance(8.0)
    assert queue.extend([first]) == []
    assert queue.receive() == []
    clock.advance(11.0)
    (second,) = queue.receive()
    clock.set_back(HOUR)
    assert queue.extend([first]) == [first]
    assert second.token > first.token
    queue.done(second)


def test_a_clock_that_is_set_right_again_is_followed(queue, clock):
    """Nothing is early by it."""
    queue.add("a", after=60.0)
    clock.set_back(HOUR)
    queue.add("b")
    clock.advance(10.0)
    assert keys(queue.receive(10)) == ["b"]
    clock.set_back(-HOUR)
    queue.add("c")
    assert keys(queue.receive(10)) == ["c"]
    clock.advance(51.0)
    assert "a" in keys(queue.receive(10))


def test_every_step_back_is_borne(queue, clock):
    """However many there are."""
    for n in range(5):
        queue.add(f"key {n}")
        clock.set_back(HOUR)
        assert keys(queue.receive()) == [f"key {n}"]
        clock.advance(1.5)


def test_a_queue_that_is_not_used_until_the_clock_has_caught_up_follows_it(queue, clock, kind):
    """On a server a delay that was asked for before takes longer by the step then, and no other."""
    queue.add("a")
    assert keys(queue.receive()) == ["a"]
    clock.set_back(HOUR)
    queue.add("b", after=2 * HOUR)
    clock.advance(2 * HOUR + 1.0)
    late = kind in ("redis", "postgres")
    assert ("b" in keys(queue.receive(10))) is not late
    queue.add("c", after=HOUR)
    clock.advance(HOUR + 1.0)
    assert {"b", "c"} <= set(keys(queue.receive(10)))
