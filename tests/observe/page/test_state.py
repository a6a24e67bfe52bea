"""The state that the live page shows: the worst first, and stores that answer slowly."""

import asyncio
import gc
import json
import math
import threading
import time

import pytest

import abate
from abate.observe.page import severity
from abate.observe.page.recent_activity import RecentActivity
from abate.observe.page.state import DEPTH_INTERVAL, PageState
from abate.observe.queue_depths import DepthReader

GUARD = 30.0
"""Seconds after which a test fails because something hangs."""
ERROR = ConnectionError("down")


def shown(state):
    """Return the frame as a dictionary."""
    return json.loads(state.frame().removeprefix(b"data: "))


def row(frame, kind, name):
    """Return one row of a frame."""
    return next(each for each in frame[kind] if each["name"] == name)


POLICY = {"shelter": None, "share": 1.0, "calls": 1000.0, "retried": {}, "given_up": {}, "refused": {}}
QUEUE = {"live": True, "ready": 0, "age": None, "failing": None, "endings": {}}


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        ({}, 0),
        ({"shelter": "calm"}, 0),
        ({"shelter": "recovering"}, 1),
        ({"shelter": "probing"}, 2),
        ({"shelter": "storm"}, 2),
        ({"share": 0.2}, 1),
        ({"share": 0.0, "refused": {"budget": 1}}, 2),
        ({"retried": {"blip": 100}}, 0),
        ({"retried": {"blip": 60, "overload": 60}}, 1),
        ({"given_up": {"fatal": 900, "cancelled": 50, "layer": 50}}, 0),
        ({"given_up": {"attempts": 1}}, 1),
        ({"given_up": {"attempts": 40, "deadline": 10}}, 2),
    ],
)
def test_severity_of_a_policy(facts, level):
    """Failures of the dependency count, errors of the caller don't."""
    answer, why = severity.policy_severity(**{**POLICY, **facts})
    assert (answer, bool(why)) == (level, level > 0)


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        ({}, 0),
        ({"ready": 5, "age": 2.0, "endings": {"done": 100}}, 0),
        ({"ready": 5, "age": 11.0}, 1),
        ({"ready": 5, "age": 61.0}, 2),
        ({"live": False}, 0),
        ({"live": False, "ready": 3, "age": 500.0}, 1),
        ({"failing": "down"}, 2),
        ({"endings": {"done": 10, "retry": 2}}, 1),
        ({"endings": {"done": 2, "retry": 5, "slow": 5}}, 2),
        ({"endings": {"done": 100, "buried": 1}}, 2),
    ],
)
def test_severity_of_a_queue(facts, level):
    """Old, failing and buried work counts, and so does work without a worker."""
    answer, why = severity.queue_severity(**{**QUEUE, **facts})
    assert (answer, bool(why)) == (level, level > 0)


def test_a_storm_is_shown_first(recent):
    """A failing policy has its rates, reasons, delays, shelter and last error, before healthy ones."""
    state = PageState(recent, recent.clock)
    fine = abate.Policy(name="a-fine-one", on=OSError)
    stormy = abate.Policy(
        name="the-stormy-one",
        on=OSError,
        max_attempts=2,
        backoff=[1.0],
        shelter=abate.Shelter(name="shop", patience=5.0),
    )
    state.refresh()
    fine.call(lambda: "fine")
    for _ in range(4):
        with pytest.raises((OSError, abate.Refused)):
            stormy.call(abate.testing.Script(*[ERROR] * 20))
    recent.clock.advance(1.0)
    state.refresh()
    frame = shown(state)
    names = [each["name"] for each in frame["policies"]]
    assert names.index("the-stormy-one") < names.index("a-fine-one")
    storm = row(frame, "policies", "the-stormy-one")
    assert storm["level"] == 2
    assert storm["calls"] > 0
    assert sum(storm["reasons"].values()) > 0
    assert sum(storm["given_up"].values()) == 4
    assert storm["delay"][1] >= storm["delay"][0] > 0
    assert storm["shelter"]["name"] == "shop"
    assert storm["shelter"]["state"] != "calm"
    assert storm["error"][1] == "ConnectionError: down"
    assert row(frame, "policies", "a-fine-one")["level"] == 0


def test_a_queue_is_shown_with_its_keys(recent):
    """The row has depth, age, endings, the hottest and failing keys, and dead letters."""

    @abate.controller(name="shown-queue", workers=2, backoff=[1000.0])
    def reconcile(key):
        if key == "bad":
            raise ERROR
        if key == "dead":
            raise abate.PermanentFailure("no address")

    state = PageState(recent, recent.clock)
    state.refresh()
    for key in ("good", "bad", "dead"):
        reconcile.add(key)
    state.refresh()
    assert row(shown(state), "queues", "shown-queue")["ready"] == 3
    asyncio.run(_worked_off(reconcile, recent.clock))
    reconcile.add("next")
    recent.clock.advance(5.0)
    state.refresh()
    queue = row(shown(state), "queues", "shown-queue")
    assert (queue["level"], queue["ready"], queue["delayed"], queue["dead"], queue["age"]) == (2, 1, 1, 1, 5)
    assert queue["endings"] == {"done": 1, "retry": 1, "buried": 1}
    assert queue["failing_keys"] == [["bad", 1, "ConnectionError: down"]]
    assert queue["dead_letters"] == [[1000.0, "dead", "permanent", "no address"]]
    assert (queue["adds"], queue["coalesced"]) == (5, 0)  # the retry added one key again


async def _worked_off(service, clock):
    """Run a service until three of its keys have ended."""
    running = asyncio.ensure_future(service.arun())
    while sum(service.health().tally.values()) < 3:
        await asyncio.sleep(0)
    service.stop()
    await running


def test_a_long_name_is_cut_the_same_way_everywhere(recent):
    """Activity is found under the cut name, and policies of one name share a row."""
    state = PageState(recent, recent.clock)
    policies = [abate.Policy(name="long" * 100, on=OSError, backoff=[0.0]) for _ in range(2)]
    state.refresh()
    for policy in policies:
        policy.call(abate.testing.Script(ERROR, "fine"))
    recent.clock.advance(1.0)
    state.refresh()
    (shown_once,) = (each for each in shown(state)["policies"] if each["name"].startswith("longlong"))
    assert (shown_once["name"], shown_once["calls"], shown_once["retries"]) == ("long" * 30, 2, 2)


def test_a_collected_policy_is_not_shown(recent):
    """It is gone from the frame and the history."""
    state = PageState(recent, recent.clock)
    policy = abate.Policy(name="soon-gone", on=OSError)
    state.refresh()
    assert row(shown(state), "policies", "soon-gone")
    del policy
    gc.collect()
    state.refresh()
    assert b"soon-gone" not in state.frame() + state.history()


def test_a_frame_is_encoded_once(recent):
    """All visitors get the same bytes."""
    state = PageState(recent, recent.clock)
    state.refresh()
    assert state.frame() is state.frame()
    assert state.history() is state.history()


def test_data_from_a_peer_can_not_end_an_event(recent):
    """Line ends and odd characters are escaped in the JSON."""
    policy = abate.Policy(name="odd\n\ndata: {}\u2028\ud800<script>", on=OSError)
    state = PageState(recent, recent.clock)
    state.refresh()
    assert state.frame().count(b"\n") == 2
    assert row(shown(state), "policies", r"odd\n\ndata: {}\u2028\ud800<script>")
    del policy


# -- stores that answer slowly


class SlowSource:
    """A source whose depth blocks until `answers` is set."""

    name, lease, durable = "slow", None, True

    def __init__(self):
        self.reads = 0
        self.answers = threading.Event()
        self.threads = set()

    def depth(self):
        self.reads += 1
        self.threads.add(threading.get_ident())
        assert self.answers.wait(GUARD)
        return abate.stores.Depth(ready=7)

    def receive(self, most, wait): ...

    def extend(self, messages): ...

    def settle(self, settlements): ...


def test_a_store_that_does_not_answer_does_not_delay_the_page(recent):
    """A thread reads it, one read at a time; everything else is shown meanwhile."""
    source = SlowSource()
    consumer = abate.consumer(source=source, name="slow-queue")(print)
    state = PageState(recent, recent.clock)
    for _ in range(3):
        state.refresh()
        recent.clock.advance(10 * DEPTH_INTERVAL)
        assert row(shown(state), "queues", "slow-queue")["ready"] is None
    source.answers.set()
    while row(shown(state), "queues", "slow-queue")["ready"] is None:
        state.refresh()
    assert row(shown(state), "queues", consumer.name)["ready"] == 7
    assert threading.get_ident() not in source.threads


def test_a_store_is_read_once_per_interval():
    """Within the interval the last reading is shown; an open one is neither awaited nor repeated."""
    source = SlowSource()
    consumer = abate.consumer(source=source, name="slow-queue")(print)
    depths = DepthReader(every=5.0)
    (first,) = depths.read([consumer], 0.0, now=0.0)
    (again,) = depths.read([consumer], GUARD, now=50.0)
    assert (again, first.depth, first.failing) == (first, None, None)
    source.answers.set()
    assert first.wait(time.monotonic() + GUARD)
    assert depths.read([consumer], GUARD, now=4.9) == [first]
    (second,) = depths.read([consumer], GUARD, now=50.0)
    assert second is not first
    assert source.reads == 2


def test_a_failing_store_is_reported():
    """The last depth is kept, and the error is shown beside it."""
    consumer = abate.consumer(source=SlowSource(), name="failing-queue")(print)
    consumer.source.answers.set()
    depths = DepthReader(every=5.0)
    depths.read([consumer], GUARD, now=0.0)

    def fail():
        raise RuntimeError("gone")

    consumer.source.depth = fail
    (reading,) = depths.read([consumer], GUARD, now=5.0)
    assert (reading.depth.ready, reading.failing) == (7, "RuntimeError: gone")


def test_a_budget_without_a_limit_is_shown():
    """Its infinite balance is not written as `Infinity`, which JSON does not have."""
    policy = abate.Policy(name="boundless-policy", on=OSError, budget=abate.Budget.unlimited())
    state = PageState(RecentActivity(), abate.clock.current())
    state.refresh()
    frame = state.frame().decode()
    assert '"boundless-policy"' in frame
    assert "Infinity" not in frame
    assert policy.budget.balance() == math.inf
