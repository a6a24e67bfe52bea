"""The arithmetic of the token bucket and its errors; test_bucket_waiting tests waiters."""

import math
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import abate
from abate import TokenBucket, forks
from abate.testing import VirtualClock
from tests.reentry import held_elsewhere


class AgainstExactNumbers(RuleBasedStateMachine):
    """Takes, refunds, waits and time in any order: the bucket grants what a bucket of exact fractions grants.

    Floats represent all times and rates exactly, so the two must agree on every grant.
    """

    @initialize(rate=st.sampled_from([0.25, 1.0, 3.0, 8.0]), burst=st.integers(1, 5))
    def begin(self, rate, burst):
        self.rate, self.burst, self.clock = Fraction(rate), burst, VirtualClock()
        self.bucket = TokenBucket(rate, burst, clock=self.clock)
        self.tokens = Fraction(burst)
        self.grants = []

    def pass_(self, seconds):
        self.tokens = min(Fraction(self.burst), self.tokens + self.rate * Fraction(seconds))

    def granted(self, n):
        self.tokens -= n
        self.grants.append((Fraction(self.clock.now()), n))

    @rule(n=st.integers(1, 5))
    def try_acquire(self, n):
        if n > self.burst:
            with pytest.raises(ValueError):
                self.bucket.try_acquire(n)
            return
        assert self.bucket.try_acquire(n) is (self.tokens >= n)
        if self.tokens >= n:
            self.granted(n)

    @rule(retry=st.booleans())
    def enter(self, retry):
        assert self.bucket.enter(retry) is (None if self.tokens >= 1 else self.bucket)
        if self.tokens >= 1:
            self.granted(1)

    @rule(data=st.data())
    def acquire(self, data):
        n = data.draw(st.integers(1, self.burst))
        before = self.clock.now()
        self.bucket.acquire(n)
        waited = self.clock.now() - before
        assert abs(waited - max(Fraction(0), (n - self.tokens) / self.rate)) < 1e-9
        # floats may not represent the wait exactly: continue from where the next sum is exact
        self.clock.advance(math.ceil(self.clock.now() * 64) / 64 - self.clock.now())
        self.tokens -= n
        self.grants.append((Fraction(before + waited), n))
        self.pass_(self.clock.now() - before)

    @rule(n=st.integers(1, 3), share=st.sampled_from([0.0, 0.5, 0.999]))
    def be_too_impatient(self, n, share):
        """A wait longer than the timeout is refused at once, and takes nothing."""
        wait = float((n - self.tokens) / self.rate)
        if n <= self.burst and wait > 0:
            waits = len(self.clock.waits)
            with pytest.raises(TimeoutError, match="bucket has no token within"):
                self.bucket.acquire(n, timeout=share * wait)
            assert len(self.clock.waits) == waits

    @rule()
    def refund(self):
        """Refund tokens that were granted last and not used."""
        if self.grants and self.grants[-1] == (Fraction(self.clock.now()), 1):
            self.grants.pop()
            self.bucket.refund()
            self.tokens = min(Fraction(self.burst), self.tokens + 1)

    @rule(ticks=st.one_of(st.integers(0, 64), st.integers(0, 6400)))
    def advance(self, ticks):
        self.clock.advance(ticks / 64)
        self.pass_(Fraction(ticks, 64))

    def teardown(self):
        if hasattr(self, "grants"):
            never_above(self.grants, self.rate, self.burst)


def never_above(grants, rate, burst, grain=Fraction(1, 10**6)):
    """No interval is granted more than the burst plus what the rate adds meanwhile."""
    for first, (start, _) in enumerate(grants):
        total = 0
        for end, n in grants[first:]:
            total += n
            assert total <= burst + rate * (end - start) + grain


TestAgainstExactNumbers = AgainstExactNumbers.TestCase
TestAgainstExactNumbers.settings = settings(deadline=None, max_examples=50, stateful_step_count=40)


def test_rounding_errors_of_floats_lose_no_token():
    """Ten times a tenth of a second at ten per second is one token each."""
    clock = VirtualClock()
    bucket = TokenBucket(rate=10.0, clock=clock)
    assert bucket.try_acquire()
    for _ in range(100):
        clock.advance(0.1)
        assert bucket.try_acquire()
        assert not bucket.try_acquire()
    for _ in range(100):
        clock.advance(0.1)
        bucket.acquire()
    assert clock.waits == []


def test_a_clock_that_goes_back_neither_adds_nor_removes_tokens():
    """The level stays, and no second counts twice."""
    now = [10.0]
    bucket = TokenBucket(rate=1.0, burst=3, clock=lambda: now[0])
    now[0] = 5.0
    assert bucket.try_acquire(3)
    now[0] = 10.0
    assert not bucket.try_acquire()
    now[0] = 11.0
    assert bucket.try_acquire()
    assert not bucket.try_acquire()


@pytest.mark.parametrize("n", [0, -1, 4, 10**9, math.nan])
def test_a_request_for_less_than_one_or_more_than_the_burst_is_refused(n):
    """Every method raises at once, and takes nothing."""
    bucket = TokenBucket(rate=1.0, burst=3, clock=VirtualClock())
    for ask in (bucket.try_acquire, bucket.acquire, lambda n: bucket.aacquire(n).send(None)):
        with pytest.raises(ValueError, match="n must be from 1 to the burst of 3"):
            ask(n)
    assert bucket.try_acquire(3)


@pytest.mark.parametrize("timeout", [-1.0, math.nan, "1", True])
def test_a_timeout_is_a_number_of_at_least_zero(timeout):
    """Any other timeout raises an error that names it, and takes nothing."""
    bucket = TokenBucket(rate=1.0, clock=VirtualClock())
    with pytest.raises((ValueError, TypeError), match="timeout must be a number at least 0"):
        bucket.acquire(timeout=timeout)
    assert bucket.try_acquire()


def test_a_deadline_bounds_a_wait():
    """If the token comes after the deadline, the call raises at once and takes nothing; otherwise it waits."""
    with VirtualClock() as clock:
        bucket = TokenBucket(rate=1.0)
        bucket.acquire()
        with (
            abate.deadline(0.9),
            pytest.raises(TimeoutError, match=r"bucket has no token within 0.9 s: the wait is 1 s"),
        ):
            bucket.acquire()
        assert clock.waits == []
        with abate.deadline(0.9), pytest.raises(TimeoutError):
            bucket.acquire(timeout=5.0)
        with abate.deadline(5.0), pytest.raises(TimeoutError):
            bucket.acquire(timeout=0.9)
        with abate.deadline(1.0):
            bucket.acquire()
        assert clock.waits == [1.0]


def test_a_refund_never_overfills():
    """Refunding more than was taken leaves a full bucket."""
    bucket = TokenBucket(rate=1.0, burst=2, clock=VirtualClock())
    assert bucket.try_acquire()
    for _ in range(5):
        bucket.refund()
    assert bucket.try_acquire(2)
    assert not bucket.try_acquire()


def test_a_virtual_clock_has_its_own_level():
    """Tokens taken in virtual time are still there in real time; a bucket with `clock=` always uses that clock."""
    bucket = TokenBucket(rate=0.001)
    with VirtualClock():
        assert bucket.try_acquire()
        assert not bucket.try_acquire()
    assert bucket.try_acquire()
    mine = VirtualClock()
    bucket = TokenBucket(rate=1.0, clock=mine)
    with VirtualClock() as other:
        bucket.acquire()
        bucket.acquire()
        assert other.waits == []
    assert mine.waits == [1.0]


@pytest.mark.parametrize("rate", [0, -1.0, math.nan, math.inf])
def test_a_rate_is_a_number_above_zero(rate):
    """Any other rate raises an error that names it."""
    with pytest.raises(ValueError, match="rate must be a number above 0"):
        TokenBucket(rate)


@pytest.mark.parametrize(("burst", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_burst_is_a_whole_number_of_at_least_one(burst, error):
    """Any other burst raises an error that names it."""
    with pytest.raises(error, match="burst must be a whole number of at least 1"):
        TokenBucket(1.0, burst)


def test_repr_and_refusal_reason():
    """The repr shows the settings; the refusal gives a reason."""
    bucket = TokenBucket(2.5, burst=3, name="mine")
    assert repr(bucket) == "TokenBucket(rate=2.5, burst=3)"
    assert bucket.refusal() == "more than 2.5 per second"
    assert bucket.name == "mine"


def test_eight_threads_never_get_more_than_the_burst(together):
    """While the clock stands still, eight threads get exactly the burst."""
    bucket = TokenBucket(rate=1.0, burst=100, clock=lambda: 5.0)
    assert sum(together(lambda place: sum(bucket.try_acquire() for _ in range(50)))) == 100


def test_a_fork_while_the_lock_is_held_leaves_the_child_usable(in_child):
    """The child's lock is free, and the level is unchanged."""
    bucket = TokenBucket(rate=1.0, burst=2, clock=VirtualClock())
    assert bucket.try_acquire()
    with held_elsewhere(bucket._states.main.section):
        assert in_child(lambda: (bucket.try_acquire(), bucket.try_acquire())) == (True, False)
    assert bucket.try_acquire()


def test_the_fork_hook_resets_waiters_and_debt():
    """The child gets a new lock, no waiters and no debt: the waiting threads do not exist there."""
    bucket = TokenBucket(rate=1.0, clock=VirtualClock())
    level = bucket._states.main
    reservations = [bucket._reserve(level, 1, None) for _ in range(3)]
    with held_elsewhere(level.section):
        forks._in_child()
        bucket._abandon(level, reservations[-1])
        assert level.tokens == 0.0
        bucket.refund()
        assert level.tokens == 1.0
