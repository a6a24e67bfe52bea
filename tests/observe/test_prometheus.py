"""The Prometheus sink: call outcomes, the cost of retries, and counters that lose nothing."""

import asyncio
import gc
import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate.observe.call_outcomes import OUTCOMES
from abate.testing import Script, VirtualClock
from tests.observe.watched_sink import Watched

numbers = itertools.count()

WAYS = ("decorated", "decorated, async", "call", "acall", "block", "async block", "bounded", "bounded, async")


def make_call(way, policy, script):
    """Make a call in one of the ways of `WAYS`."""

    async def ascript():
        return script()

    async def awaited():
        if way == "acall":
            return await policy.acall(ascript)
        if way in ("decorated, async", "bounded, async"):
            return await policy(ascript)()
        async for attempt in policy.attempts():
            with attempt:
                script()

    def block():
        for attempt in policy.attempts():
            with attempt:
                script()

    if way in ("decorated", "bounded"):
        policy(script.__call__)()
    elif way == "call":
        policy.call(script)
    elif way == "block":
        block()
    else:
        asyncio.run(awaited())


@pytest.mark.parametrize("way", WAYS)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=4))
def test_every_call_is_counted_once_by_its_outcome(way, calls):
    """Success, recovered, attempts or fatal, in every way of making a call; nothing else is counted."""
    name = f"policy-{next(numbers)}"
    policy = abate.Policy(
        name=name, on=OSError, budget=abate.Budget(reserve=1e6), timeout=60.0 if way.startswith("bounded") else None
    )
    expected = dict.fromkeys(OUTCOMES, 0)
    with Watched() as watched, VirtualClock():
        for failures, fatal in calls:
            outcomes = [*(OSError() for _ in range(failures)), ValueError() if fatal else "fine"]
            ending = "attempts" if failures == 3 else "fatal" if fatal else "recovered" if failures else "success"
            expected[ending] += 1
            try:
                make_call(way, policy, Script(*outcomes))
            except (OSError, ValueError):
                pass
        retries = watched.value("retries_total", policy=name, reason="blip")
        found = watched.ended(name)
    assert found == expected
    assert retries == sum(min(failures, 2) for failures, _ in calls)


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupted_call_is_counted_as_cancelled(watched, name, way):
    """Also in its first attempt, which makes no event."""
    policy = abate.Policy(name=name, on=OSError, timeout=60.0 if way.startswith("bounded") else None, backoff=[0.0])
    for script in (Script(KeyboardInterrupt()), Script(OSError(), KeyboardInterrupt())):
        with pytest.raises(KeyboardInterrupt):
            make_call(way, policy, script)
    make_call(way, policy, Script("fine"))
    assert watched.calls(name) == {"cancelled": 2, "success": 1}
    assert watched.value("inflight", policy=name) == 0


@pytest.mark.parametrize("raises", ["original", "exhausted"])
def test_a_bad_result_is_not_counted_as_success(watched, name, raises):
    """A call that gives up on a result is counted by its reason, whether it returns the result or raises."""
    policy = abate.Policy(name=name, on=abate.on_result(lambda result: result == 503), backoff=[0.0], raises=raises)
    for _ in range(3):
        try:
            policy.call(lambda: 503)
        except abate.RetryExhausted:
            pass
    policy.call(lambda: 200)
    assert watched.calls(name) == {"attempts": 3, "success": 1}


def test_a_refused_first_attempt_is_counted_under_budget(watched, name):
    """A refusing gate ends the call; it does not count as a refused retry."""
    policy = abate.Policy(name=name, on=OSError, gate=abate.TokenBucket(rate=0.001, burst=1))
    policy.call(Script("fine"))
    with pytest.raises(abate.Refused):
        policy.call(Script("never"))
    assert watched.calls(name) == {"success": 1, "budget": 1}
    assert watched.value("retry_budget_exhausted_total", policy=name) == 0


LEVELS = ("balance", "remaining_ratio", "exhausted_total")


def test_the_budget_is_read_at_each_scrape(watched, name):
    """The scrape has its balance, its remaining share, and the retries that it refused."""
    budget = abate.Budget(ratio=0.0, reserve=1.0, window=4.0)
    policy = abate.Policy(name=name, on=OSError, max_attempts=3, backoff=[0.0], budget=budget)
    seen = []
    with VirtualClock() as clock:
        for _ in range(3):
            with pytest.raises(OSError):
                policy.call(Script(*[OSError()] * 3))
            seen.append([watched.value(f"retry_budget_{what}", policy=name) for what in LEVELS])
        clock.advance(10.0)
        seen.append([watched.value(f"retry_budget_{what}", policy=name) for what in LEVELS])
    assert seen == [[2.0, 0.5, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [4.0, 1.0, 1.0]]
    assert watched.calls(name) == {"attempts": 2, "budget": 1}


def test_delays_and_kinds_of_retries(watched, name):
    """Delays are a histogram, and retries are counted by the kind of failure."""
    policy = abate.Policy(name=name, on=OSError, backoff=[0.3, 2.0])
    with VirtualClock():
        policy.call(Script(ConnectionError(), TimeoutError(), "fine"))
    assert watched.value("retries_total", policy=name, reason="blip") == 1
    assert watched.value("retries_total", policy=name, reason="overload") == 1
    assert watched.value("retry_delay_seconds_count", policy=name) == 2
    assert watched.value("retry_delay_seconds_sum", policy=name) == pytest.approx(2.3)
    assert watched.value("retry_delay_seconds_bucket", policy=name, le="0.25") == 0
    assert watched.value("retry_delay_seconds_bucket", policy=name, le="0.5") == 1
    assert watched.value("retry_delay_seconds_bucket", policy=name, le="2.5") == 2


@pytest.mark.parametrize("way", WAYS)
def test_calls_in_flight(watched, name, way):
    """A call is in flight until it ends, waits included."""
    policy = abate.Policy(name=name, on=OSError, timeout=60.0 if way.startswith("bounded") else None, backoff=[0.0])
    seen = []
    make_call(way, policy, lambda: seen.append(watched.value("inflight", policy=name)))
    assert (seen, watched.value("inflight", policy=name)) == ([1], 0)


def test_layers_of_retries(watched, name):
    """The outer policy and the inner one are labels."""
    inner = abate.Policy(name=f"{name}-inner", on=OSError, max_attempts=2, backoff=[0.0])
    outer = abate.Policy(name=name, on=OSError)
    with pytest.warns(abate.LayeredRetryWarning), pytest.raises(OSError):
        outer.call(inner.call, Script(OSError(), OSError()))
    assert watched.value("layered_retries_total", policy=name, inner=f"{name}-inner") == 1
    assert watched.calls(name) == {"layer": 1}


# -- counters that never decrease


def test_counts_of_a_policy_outlive_it(watched, name):
    """Policies of one name add up; a collected policy takes nothing away, even if it was never scraped."""
    first, second = (abate.Policy(name=name, on=OSError) for _ in range(2))
    first.call(Script("fine"))
    second.call(Script("fine"))
    assert watched.calls(name) == {"success": 2}
    first.call(Script("fine"))
    del first
    gc.collect()
    assert watched.calls(name) == {"success": 3}
    third = abate.Policy(name=name, on=OSError)
    third.call(Script("fine"))
    assert watched.calls(name) == {"success": 4}
    del second, third
    gc.collect()
    assert watched.calls(name) == {"success": 4}


def test_counts_of_a_controller_outlive_it(watched, name):
    """Both adds and coalesced adds are kept."""

    def controller():
        made = abate.controller(name=name)(lambda key: None)
        for key in ("a", "b", "a"):
            made.add(key)
        return made

    first, second = controller(), controller()
    assert watched.value("queue_adds_total", queue=name) == 6
    del first
    gc.collect()
    assert watched.value("queue_adds_total", queue=name) == 6
    assert watched.value("queue_coalesced_total", queue=name) == 2
    second.add("c")
    assert watched.value("queue_adds_total", queue=name) == 7


def test_a_new_sink_starts_at_zero(name):
    """Counts from before its installation are not included."""
    policy = abate.Policy(name=name, on=OSError, backoff=[0.0])
    with Watched() as first:
        policy.call(Script(OSError(), "fine"))
        policy.call(Script("fine"))
        with Watched() as second:
            policy.call(Script("fine"))
            assert first.calls(name) == {"success": 2, "recovered": 1}
            assert second.calls(name) == {"success": 1}


def test_threads_that_call_while_others_scrape(watched, name):
    """No count is lost or doubled, and no scrape shows less than the one before."""
    policy = abate.Policy(name=name, on=OSError, backoff=[0.0], budget=abate.Budget(reserve=1e6))
    call = policy(lambda script: script())
    over = threading.Event()
    shown = []

    def work():
        for number in range(500):
            call(Script(OSError(), "fine") if number % 5 == 0 else Script("fine"))

    def scrape():
        while not over.is_set():
            shown.append([watched.value("calls_total", policy=name, outcome=o) for o in ("success", "recovered")])

    workers = [threading.Thread(target=work) for _ in range(4)]
    scraper = threading.Thread(target=scrape)
    for thread in (*workers, scraper):
        thread.start()
    for thread in workers:
        thread.join(30)
    over.set()
    scraper.join(30)
    assert watched.calls(name) == {"success": 1600, "recovered": 400}
    assert all(a <= b for before, after in itertools.pairwise(shown) for a, b in zip(before, after, strict=True))


def test_policies_that_live_for_one_request_are_counted(watched, name):
    """Each call is counted once, though no scrape happened while its policy existed."""
    for number in range(20):

        @abate.retry(name=name, on=OSError, backoff=[0.0])
        def ask(script):
            return script()

        ask(Script(*([OSError()] if number % 5 == 0 else []), "fine"))
        del ask
    assert watched.calls(name) == {"success": 16, "recovered": 4}
