"""Waiting for tokens under asyncio, trio and in threads: in order, within the bound, cancelled waits take nothing."""

import asyncio
import threading

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import TokenBucket, events
from abate.testing import VirtualClock


class Waiters:
    """Tasks that arrive at an instant, ask for tokens, and may be cancelled while they wait."""

    def __init__(self, bucket, clock):
        self.bucket, self.clock = bucket, clock
        self.grants = []
        self.wait = None

    async def in_asyncio(self, plan):
        async def cancel(task, after):
            await self.clock.asleep(after)
            task.cancel()

        async with asyncio.TaskGroup() as group:
            for who, (arrival, n, patience) in enumerate(plan):
                task = group.create_task(self._one(who, arrival, n))
                if patience is not None:
                    group.create_task(cancel(task, arrival + patience))
        await self._next()

    async def in_trio(self, plan):
        async def scoped(scope, *rest):
            with scope:
                await self._one(*rest)

        async def cancel(scope, after):
            await self.clock.asleep(after)
            scope.cancel()

        async with trio.open_nursery() as nursery:
            for who, (arrival, n, patience) in enumerate(plan):
                scope = trio.CancelScope()
                nursery.start_soon(scoped, scope, who, arrival, n)
                if patience is not None:
                    nursery.start_soon(cancel, scope, arrival + patience)
        await self._next()

    async def _one(self, who, arrival, n):
        await self.clock.asleep(arrival)
        await self.bucket.aacquire(n)
        self.grants.append((self.clock.now(), n, who))

    async def _next(self):
        """Return how long a task would wait that arrives after all others: this measures the level."""
        before = self.clock.now()
        await self.bucket.aacquire()
        self.wait = self.clock.now() - before


def play(loop, plan, rate=1.0, burst=1):
    """Run such tasks in virtual time; return the grants in order, and how long the next arrival has to wait."""
    with VirtualClock() as clock:
        waiters = Waiters(TokenBucket(rate, burst), clock)
        if loop == "asyncio":
            asyncio.run(waiters.in_asyncio(plan))
        else:
            trio.run(waiters.in_trio, plan)
        return waiters.grants, waiters.wait


LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
PLANS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 3.7, 5.0]),
        st.integers(1, 3),
        st.one_of(st.none(), st.sampled_from([0.0, 0.1, 0.3, 0.9, 1.6, 2.5, 7.0])),
    ),
    min_size=1,
    max_size=14,
)


@LOOPS
@settings(deadline=None, max_examples=120)
@given(plan=PLANS, rate=st.sampled_from([0.5, 1.0, 3.0]), burst=st.integers(3, 4))
def test_grants_stay_within_burst_and_rate_despite_cancellations(loop, plan, rate, burst):
    """In every interval, also when waiters before, between and behind others are cancelled."""
    grants, _ = play(loop, plan, rate, burst)
    for first, (start, _, _) in enumerate(grants):
        total = 0
        for end, n, _ in grants[first:]:
            total += n
            assert total <= burst + rate * (end - start) + 1e-6


@LOOPS
@settings(deadline=None, max_examples=60)
@given(plan=PLANS, burst=st.integers(3, 4))
def test_tasks_are_served_in_order_of_arrival(loop, plan, burst):
    """A task that arrived earlier is served no later, though some in between are cancelled."""
    grants, _ = play(loop, plan, burst=burst)
    arrivals = [plan[who][0] for _, _, who in grants]
    assert arrivals == sorted(arrivals)


@LOOPS
def test_without_cancellations_all_are_served(loop):
    """Twenty at once, at two per second with a burst of three: three now, then one every half second, in order."""
    grants, _ = play(loop, [(0.0, 1, None)] * 20, rate=2.0, burst=3)
    assert [at for at, _, _ in grants] == [0.0] * 3 + [n / 2 for n in range(1, 18)]
    # trio starts the tasks of one instant in any order, asyncio in the order they were made
    assert sorted(who for *_, who in grants) == list(range(20))
    assert loop == "trio" or [who for *_, who in grants] == list(range(20))


@LOOPS
def test_cancelling_all_waiters_takes_no_token(loop):
    """Ten waiters are cancelled in any order: the next one waits as if they had never come."""
    plan = [(0.0, 1, None), *((0.01 * n, 1, 0.25 - 0.01 * n) for n in range(1, 11))]
    grants, wait = play(loop, plan)
    assert len(grants) == 1
    assert wait == pytest.approx(0.75)


@LOOPS
def test_a_cancelled_waiter_returns_its_tokens(loop):
    """A cancelled waiter for the whole burst leaves the bucket filled as if it had not asked."""
    grants, wait = play(loop, [(0.0, 2, None), (0.1, 3, 0.4)], burst=3)
    assert [n for _, n, _ in grants] == [2]
    assert wait == 0.0


@LOOPS
def test_a_waiter_behind_a_cancelled_one_keeps_its_instant(loop):
    """A newcomer does not get the tokens of the cancelled waiter, as two would be served at one instant."""
    grants, wait = play(loop, [(0.0, 1, None), (0.1, 1, 0.4), (0.25, 1, None), (0.75, 1, None)])
    assert grants == [(0.0, 1, 0), (2.0, 1, 2), (3.0, 1, 3)]
    assert wait == pytest.approx(1.0)


@LOOPS
def test_tokens_held_for_a_waiter_return_when_it_is_cancelled_too(loop):
    """When both waiters are cancelled, all tokens are back."""
    grants, wait = play(loop, [(0.0, 1, None), (0.1, 1, 0.2), (0.25, 1, 0.25)])
    assert len(grants) == 1
    assert wait == pytest.approx(0.5)


class Interrupted(VirtualClock):
    """A clock whose sleeps are interrupted partway."""

    def __init__(self, share):
        super().__init__()
        self.share = share

    def sleep(self, seconds):
        self.advance(self.share * seconds)
        raise KeyboardInterrupt


@pytest.mark.parametrize("share", [0.0, 0.25, 0.75])
def test_an_interrupted_sleep_returns_its_tokens(share):
    """Ctrl-C in a waiting thread propagates, and the level is as if that thread had never waited."""
    clock = Interrupted(share)
    bucket = TokenBucket(rate=1.0, clock=clock)
    bucket.acquire()
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            bucket.acquire()
    left = 1 - clock.now()
    assert left == pytest.approx((1 - share) ** 3)
    clock.advance(left - 0.001)
    assert not bucket.try_acquire()
    clock.advance(0.001)
    assert bucket.try_acquire()
    assert not bucket.try_acquire()


class Frozen:
    """A clock that stands still; sleeping only records how long."""

    def __init__(self):
        self.waits = []

    def now(self):
        return 100.0

    def sleep(self, seconds):
        self.waits.append(seconds)


def test_each_thread_gets_its_own_instant(together):
    """Eight threads ask at one instant: the burst is granted at once, then one token every quarter of a second."""
    clock = Frozen()
    bucket = TokenBucket(rate=4.0, burst=10, clock=clock)

    def work(place):
        for _ in range(25):
            bucket.acquire()

    together(work)
    assert sorted(clock.waits) == [n / 4 for n in range(1, 191)]


class Stepped(VirtualClock):
    """A clock for threads: a sleeper waits until the test has advanced time far enough."""

    def __init__(self):
        super().__init__()
        self.moved = threading.Condition()
        self.sleeping = threading.Semaphore(0)

    def sleep(self, seconds):
        due = self.now() + seconds
        with self.moved:
            self.sleeping.release()
            self.moved.wait_for(lambda: self.now() >= due)

    def advance(self, seconds):
        with self.moved:
            super().advance(seconds)
            self.moved.notify_all()


def test_threads_are_served_in_order_of_arrival():
    """Each thread wakes when its own token is available, and not before."""
    clock = Stepped()
    bucket = TokenBucket(rate=1.0, clock=clock)
    bucket.acquire()
    served = []
    threads = []

    def wait(place):
        bucket.acquire()
        served.append(place)

    for place in range(5):
        threads.append(threading.Thread(target=wait, args=(place,)))
        threads[-1].start()
        clock.sleeping.acquire()  # it waits
    for place, thread in enumerate(threads):
        clock.advance(0.5)
        assert served == list(range(place))
        clock.advance(0.5)
        thread.join()
        assert served == list(range(place + 1))


@pytest.mark.parametrize("burst", [1, 3])
def test_a_refund_is_not_given_to_a_newcomer_while_others_wait(burst):
    """Two would be served at one instant, above the bound; the token returns, once, when the last waiter has left."""
    clock = VirtualClock()
    bucket = TokenBucket(rate=1.0, burst=burst, clock=clock)
    level = bucket._states.main
    for _ in range(burst):
        assert bucket.enter(retry=False) is None
    waiter = bucket._reserve(level, 1, None)
    bucket.refund()
    newcomer = bucket._reserve(level, 1, None)
    assert (waiter.due, newcomer.due) == (1.0, 2.0)
    bucket._abandon(level, waiter)
    assert not bucket.try_acquire()
    bucket._abandon(level, newcomer)
    assert bucket.try_acquire()
    assert not bucket.try_acquire()


def test_a_waiter_cancelled_after_its_instant_returns_nothing():
    """Later grants already rest on its token being spent."""
    clock = VirtualClock()
    bucket = TokenBucket(rate=1.0, clock=clock)
    level = bucket._states.main
    bucket.acquire()
    slow = bucket._reserve(level, 1, None)
    clock.advance(2.0)
    assert bucket.try_acquire()
    bucket._abandon(level, slow)
    assert not bucket.try_acquire()


def test_only_waiters_hold_reservations():
    """Due reservations are removed, and a request that need not wait makes none."""
    clock = VirtualClock()
    bucket = TokenBucket(rate=1.0, clock=clock)
    bucket.acquire()
    assert len(bucket._states.main.reservations) == 0
    for _ in range(100):
        bucket.acquire()
    assert len(bucket._states.main.reservations) == 1


@LOOPS
def test_a_wait_in_a_task_that_would_be_too_long_is_refused_at_once(loop):
    """A wait beyond the timeout or the deadline raises without a pause and takes no token."""

    async def impatient():
        bucket = TokenBucket(rate=1.0)
        await bucket.aacquire(timeout=0.0)
        with pytest.raises(TimeoutError, match=r"the wait is 1 s"):
            await bucket.aacquire(timeout=0.5)
        with abate.deadline(0.5), pytest.raises(TimeoutError, match=r"within 0.5 s"):
            await bucket.aacquire()
        assert clock.waits == []
        await bucket.aacquire(timeout=1.0)
        assert clock.waits == [1.0]

    with VirtualClock() as clock:
        if loop == "asyncio":
            asyncio.run(impatient())
        else:
            trio.run(impatient)


def test_a_wait_emits_an_event(abate_events):
    """The event has the bucket's name and the length of the wait."""
    with VirtualClock():
        bucket = TokenBucket(rate=2.0, name="mails")
        bucket.acquire()
        bucket.acquire()
    assert [event for event in abate_events if isinstance(event, events.Waited)] == [events.Waited("mails", 0.5)]
