"""Sends the calls of one dependency on one clock as its shelter allows: the shelter's core behind one lock.

`abate.admit.shelter_core` decides; the dispatcher adds the lock, the wake-ups and the events.

* There is no background thread. One waiting task per event loop, and one waiting thread, run the timer for the other
  waiters (`abate.admit.timekeepers`). So an event loop that stalls holds up no other.
* Re-entrant calls (from a finalizer or a signal handler in the middle of an operation of the same thread) never wait:
  they get a permit that is not counted. The interrupted operation records their outcomes when it continues.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from abate import clock as clocks
from abate import event_sinks, events
from abate.admit.limiter import Permit
from abate.admit.shelter_core import CLAIM_TIMEOUT, PAUSED, QUEUE_FULL, Failure, ShelterCore, without_traceback
from abate.admit.shelter_queue import Waiter
from abate.clock import Clock
from abate.errors import Refused
from abate.events import ShelterState
from abate.logs import WARNING
from abate.reentrant_locks import Section
from abate.schedule.backoff import RandomSource, Schedule

UNCOUNTED = -1
"""The epoch of a permit that is not counted as in flight."""


class Dispatcher:
    """One dependency on one clock: its limiter, and the calls that wait for it."""

    __slots__ = ("__weakref__", "_on_calm_change", "_section", "_waking", "clock", "core", "limiter", "name")

    def __init__(
        self,
        name: str,
        capacity: int,
        patience: float,
        random_source: RandomSource,
        clock: Clock,
        on_calm_change: Callable[[bool], object] | None,
    ) -> None:
        self.clock = clock
        self.name = name
        self._on_calm_change = on_calm_change
        self._section = Section()
        self.core = ShelterCore(name, capacity, patience, random_source, clock.now())
        self.limiter = self.core.limiter
        self._waking = iter(self.core.to_wake.popleft, None)

    # -- what is known

    @property
    def calm(self) -> bool:
        """Return whether there is no limit, and no outcome is counted."""
        return self.limiter.calm

    @property
    def state(self) -> ShelterState:
        """Return the state of the limiter."""
        return self.limiter.state

    @property
    def limit(self) -> float:
        """Return how many attempts may be in flight."""
        return self.limiter.limit

    @property
    def hint_until(self) -> float:
        """Return the instant until which the server asked for no attempts."""
        return self.limiter.prober.hint_until

    @property
    def last_error(self) -> Exception | None:
        """Return the error of the last failed attempt, a copy without its traceback; None in calm."""
        return self.core.last_error

    def counts(self) -> tuple[int, int]:
        """Return how many answers and failures were counted so far."""
        return self.limiter.answers, self.limiter.failures

    def admits_freely(self, now: float) -> bool:
        """Return whether an attempt needs no permit: it is calm, and no latency has to be sampled."""
        return self.limiter.calm and now < self.limiter.latencies.next_sample

    def sample_next(self) -> None:
        """Require a permit for the next attempt, even in calm, to measure its latency."""
        self.limiter.latencies.next_sample = -inf

    def is_hung(self, permit: Permit, now: float) -> bool:
        """Return whether an attempt that was cut off now had been without an answer for too long."""
        return self.limiter.hangs.is_hung(now - permit.sent, now)

    @property
    def waiters(self) -> int:
        """Return how many calls wait."""
        return self._section.call(self._count_waiters, otherwise=self._queue_size)

    def _count_waiters(self) -> int:
        self.core.drop_stalled(self.clock.now())
        return self.core.queue.size

    def _queue_size(self) -> int:
        return self.core.queue.size

    # -- before an attempt

    def try_enter(
        self, now: float, began: float, left: float | None, first: bool, policy_name: str = ""
    ) -> Permit | Waiter | str:
        """Return a permit for an attempt, a queued waiter, or the refusal.

        `left` is the seconds until the call's deadline; `first` says that this is the call's first attempt.
        """
        got: list[Permit | Waiter] = []
        try:
            answer = self._section.call(
                self.core.try_enter, now, began, left, first, policy_name, got, otherwise=_uncounted
            )
            if answer.__class__ is Waiter or self.core.to_wake or self.core.state_changes:
                self._notify(calm_may_differ=answer.__class__ is Waiter)
        except BaseException:
            for one in got:
                self._take_back(one)
            raise
        return answer

    def _take_back(self, given: Permit | Waiter) -> None:
        """Take back a permit or waiter whose call was ended by an exception before it got it."""
        if isinstance(given, Waiter):
            self.leave(given, self.clock.now())
        else:
            self.abandoned(given, self.clock.now())

    def due(self, waiter: Waiter) -> float:
        """Return the instant at which a waiter should call `on_timer`."""
        return self._section.call(self.core.due_for, waiter, otherwise=self._soon)

    def _soon(self, waiter: Waiter) -> float:
        return self.clock.now() + CLAIM_TIMEOUT

    def on_timer(self, waiter: Waiter, now: float) -> None:
        """Act on the expired timer of a waiter: send what may be sent, and decide about it if its time is over."""
        try:
            self._section.run_or_defer(self.core.on_timer, waiter, now)
        finally:
            self._wake(waiter)

    def claim_answer(self, waiter: Waiter) -> bool:
        """Claim the answer of a waiter; return False if it has missed its turn and waits again."""
        try:
            return self._section.call(self._claim_answer, waiter, otherwise=_not_yet)
        finally:
            self._wake(waiter)

    def _claim_answer(self, waiter: Waiter) -> bool:
        return self.core.claim_answer(waiter, self.clock.now())

    def leave(self, waiter: Waiter, now: float) -> None:
        """Stop waiting; give back the permit if the waiter has one by now."""
        try:
            self._section.run_or_defer(self.core.on_leave, waiter, now)
        finally:
            self._wake(waiter)

    # -- after an attempt

    def answered(self, permit: Permit | None, now: float, policy_name: str) -> None:
        """Record that the server has answered."""
        try:
            self._section.run_or_defer(self.core.on_answer, permit, now, policy_name)
        finally:
            self._notify()

    def failed(
        self,
        permit: Permit | None,
        now: float,
        backoff: Schedule,
        hint_until: float | None,
        error: Exception | None,
        uncounted: bool,
        policy_name: str,
        retry: int = 1,
        answered: bool = False,
    ) -> float:
        """Record a failed attempt; return the seconds until the next one may be sent, 0 if that is now."""
        cause = None if error is None else without_traceback(error)
        failure = Failure(permit, now, backoff, hint_until, cause, uncounted, policy_name, retry, answered)
        try:
            return self._section.call(self.core.on_failure, failure, otherwise=self._defer_failure)
        finally:
            self._notify()

    def _defer_failure(self, failure: Failure) -> float:
        """Let the operation that this thread is in the middle of count a failure."""
        self._section.run_or_defer(self.core.on_failure, failure)
        return 0.0

    def abandoned(self, permit: Permit | None, now: float, suspicious: bool = False) -> None:
        """Record that an attempt was cut off and has no outcome; if that is `suspicious`, count later attempts."""
        try:
            if permit is not None or suspicious:
                self._section.run_or_defer(self.core.on_abandoned, permit, now, suspicious)
        finally:
            if suspicious:
                self._notify()
            elif self.core.to_wake:
                self._wake()

    def apply_remote(self, down: bool, paused_until: float, limit: float, peers: int = 1) -> None:
        """Apply what the fleet knows: is there an outage, no attempt before `paused_until`, at most `limit` in flight.

        `peers` is the number of processes that this one probes for.
        """
        try:
            self._section.run_or_defer(self._apply_remote, down, paused_until, limit, peers)
        finally:
            self._notify()

    def _apply_remote(self, down: bool, paused_until: float, limit: float, peers: int) -> None:
        self.core.apply_remote(down, paused_until, limit, peers, self.clock.now())

    def refusal(self, why: str) -> Refused:
        """Return the error for a first attempt that is not sent."""
        if why == QUEUE_FULL:
            return Refused(self.name, f"{self.core.queue.capacity} calls are waiting already")
        if why == PAUSED:
            return Refused(
                self.name, "the dependency is down, and no attempt can be made before the call's time is over"
            )
        return Refused(self.name, "the dependency is down, and the call's turn did not come in time")

    # -- outside of the lock

    def _wake(self, awake: Waiter | None = None) -> None:
        """Notify the waiters to wake, except `awake`, the caller. If an event loop has ended, take the permit back."""
        to_wake = self.core.to_wake
        while to_wake:
            try:
                for waiter in self._waking:  # pragma: no branch  # no signal handler runs between this and `try`
                    try:
                        # a waiter without a wakeup has not begun to wait, and will see its answer first
                        reached = waiter is awake or waiter.wakeup is None or waiter.wakeup.notify()
                    except BaseException:
                        to_wake.append(waiter)
                        raise
                    if not reached:
                        self._section.run_or_defer(self.core.on_leave, waiter, self.clock.now())
                    break
            except IndexError:
                break  # another thread took it

    def _notify(self, calm_may_differ: bool = True) -> None:
        """Wake waiters, tell the shelter whether it is calm, and emit changes of state."""
        state_changes = self.core.state_changes
        try:
            self._wake()
        finally:
            if self._on_calm_change is not None and (calm_may_differ or state_changes):
                self._on_calm_change(self.limiter.calm)
            while state_changes:
                try:
                    policy_name, state, waiting, limit = state_changes.popleft()
                except IndexError:
                    break  # another thread took it
                # what a shelter with a clock of its own does, as in a simulation, is not logged by default
                logged = self.clock is clocks.current() and event_sinks.log_enabled(WARNING)
                if logged or event_sinks.installed:
                    event_sinks.emit(events.ShelterChanged(policy_name, self.name, state, waiting, limit), logged)

    def disable_fast_path(self) -> None:
        """Let wrappers ask for each attempt from now on: there are virtual clocks."""
        if self._on_calm_change is not None:
            self._on_calm_change(False)

    def after_fork(self) -> None:
        """In the child: forget waiters and attempts in flight, whose threads don't exist there."""
        self._section.after_fork()
        self.core.after_fork()


def _uncounted(now: float, *_: object) -> Permit:
    """Return a permit for a re-entrant call: waiting would deadlock."""
    return Permit(UNCOUNTED, now)


def _not_yet(_: Waiter) -> bool:
    """Answer a re-entrant claim: check again soon."""
    return False
