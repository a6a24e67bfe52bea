"""The limiter and the wait queue of one dependency on one clock, behind one lock: sends calls as the limit allows.

`abate.admit.limiter` decides how much may be sent, `abate.admit.shelter_queue` which call is next. Decided here:

* There is no background thread. In each event loop one waiting task keeps the time for all waiting calls, and so does
  one of the waiting threads (`abate.admit.timekeepers`). So an event loop that stalls holds up no other.
* A permit is for a waiter that is awake. If a task does not claim its permit within `CLAIM_TIMEOUT` seconds, the permit
  goes to the next waiter, and all waiters of that event loop are passed over until one of them wakes. A thread always
  wakes.
* **Slow is not down.** A call is refused only if an attempt has failed since it came. Otherwise it is sent when it can
  wait no longer, whatever the limit.
* Re-entrant calls (from a finalizer or a signal handler in the middle of an operation of the same thread) never wait:
  they get a permit that is not counted. What they report is done by the interrupted operation.
* An exception raised by a signal handler loses nothing. A permit is counted until it is no longer `out`, and giving it
  back twice has no effect. A waiter is put on the list of those to wake before it gets its answer, and the next
  operation wakes what this one did not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

from abate import clock as clocks
from abate import events
from abate.admit.limiter import Limiter, Permit, State
from abate.admit.shelter_queue import ShelterQueue, Waiter
from abate.admit.timekeepers import Timekeepers
from abate.clock import Clock
from abate.errors import Refused
from abate.logs import WARNING
from abate.reentrant_locks import Section
from abate.schedule.backoff import RandomSource, Schedule

QUEUE_FULL, CLOSED, LATE = "full", "closed", "late"
"""Why a call gets no permit: too many calls wait; no attempt will be sent in time; its turn did not come in time."""
MISSED_TURN = "missed"
"""The answer to a waiter whose event loop was stalled when its turn came: it may queue again."""
CLAIM_TIMEOUT = 0.25
"""Seconds within which a waiter must claim its permit."""
STALLED_AFTER = 1.0
"""Seconds after its deadline at which a waiter counts as stalled, and between two searches for such waiters."""
UNCOUNTED = -1
"""The epoch of a permit that is not counted as in flight."""


class Dispatcher:
    """One dependency on one clock: its limiter, and the calls that wait for it."""

    __slots__ = (
        "__weakref__",
        "_granted",
        "_last_stall_check",
        "_name",
        "_on_calm_change",
        "_patience",
        "_refused_until",
        "_remote_closed_until",
        "_remote_limit",
        "_reported_state",
        "_section",
        "_shelter_queue",
        "_state_changes",
        "_timekeepers",
        "_to_wake",
        "_waking",
        "clock",
        "last_error",
        "limiter",
    )

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
        self._name = name
        self._patience = patience
        self._on_calm_change = on_calm_change
        self._section = Section()
        self.limiter = Limiter(random_source, clock.now(), patience)
        self._shelter_queue = ShelterQueue(capacity)
        self._granted: deque[tuple[float, Waiter]] = deque()  # permits that are not claimed yet
        self._to_wake: deque[Waiter] = deque()  # to be notified outside of the lock
        self._timekeepers = Timekeepers(self._to_wake)
        self._waking = iter(self._to_wake.popleft, None)
        self._reported_state: State = self.limiter.state
        self._state_changes: deque[tuple[str, State, int, float]] = deque()  # to be emitted outside of the lock
        self._refused_until = self._last_stall_check = -inf
        self._remote_closed_until, self._remote_limit = -inf, inf  # what the fleet says
        self.last_error: Exception | None = None

    # -- what others may know

    @property
    def calm(self) -> bool:
        """Return whether there is no limit, and no outcome is counted."""
        return self.limiter.calm

    @property
    def state(self) -> State:
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

    def counts(self) -> tuple[int, int]:
        """Return how many answers and failures were counted so far."""
        return self.limiter.answers, self.limiter.failures

    def admits_freely(self, now: float) -> bool:
        """Return whether an attempt needs no permit: it is calm, and no latency has to be sampled."""
        return self.limiter.calm and now < self.limiter.latencies.next_sample

    def sample_next(self) -> None:
        """Have the next attempt ask for a permit, in calm too."""
        self.limiter.latencies.next_sample = -inf

    def is_hung(self, permit: Permit, now: float) -> bool:
        """Return whether an attempt that was cut off now had been without an answer for too long."""
        return self.limiter.is_hung(now - permit.sent, now)

    @property
    def waiters(self) -> int:
        """Return how many calls wait."""
        return self._section.call(self._count_waiters, otherwise=self._queue_size)

    def _count_waiters(self) -> int:
        self._drop_stalled(self.clock.now())
        return self._shelter_queue.size

    def _queue_size(self) -> int:
        return self._shelter_queue.size

    # -- before an attempt

    def try_enter(
        self, now: float, began: float, left: float | None, first: bool, by: str = ""
    ) -> Permit | Waiter | str:
        """Return a permit for an attempt, a waiter for one, or why there is neither; the call has `left` seconds."""
        got: list[Permit | Waiter] = []
        try:
            answer = self._section.call(self._try_enter, now, began, left, first, by, got, otherwise=_uncounted)
            if answer.__class__ is Waiter or self._to_wake or self._state_changes:
                self._notify(calm_may_differ=answer.__class__ is Waiter)
        except BaseException:
            for one in got:
                self._take_back(one)
            raise
        return answer

    def _try_enter(
        self, now: float, began: float, left: float | None, first: bool, by: str, got: list[Permit | Waiter]
    ) -> Permit | Waiter | str:
        if self._granted:
            self._admit(now)
        if first:
            self.limiter.on_call(now)
        answer = self._answer(now, began, left)
        if answer.__class__ is not str:
            got.append(answer)  # type: ignore[arg-type]
        if isinstance(answer, Waiter):
            self._shelter_queue.add(answer, now, first)
            self._admit(now)
        self._record_state(by)
        return answer

    def _take_back(self, given: Permit | Waiter) -> None:
        """Take back a permit or waiter whose call was ended by an exception before it got it."""
        if isinstance(given, Waiter):
            self.leave(given, self.clock.now())
        else:
            self.abandoned(given, self.clock.now())

    def _answer(self, now: float, began: float, left: float | None) -> Permit | Waiter | str:
        limiter, shelter_queue = self.limiter, self._shelter_queue
        if not shelter_queue.size and now >= self._due():
            return self._send(now)
        if shelter_queue.full:
            self._drop_stalled(now)
        if shelter_queue.full:
            return self._send(now) if self._no_failure_since(now - self._patience, now) else QUEUE_FULL
        limiter.on_held_back(now)
        end = inf if left is None else now + left
        deadline = min(end, now + self._patience)
        if limiter.closed_until() >= deadline:
            return CLOSED
        # without failures it waits only as long as there is time for an answer
        send_anyway_at = (
            deadline if left is None else now + max(left / 2, left - limiter.latencies.expected_answer_in(left))
        )
        return Waiter(began, deadline, end, min(deadline, send_anyway_at))

    def due(self, waiter: Waiter) -> float:
        """Return the instant at which a waiter should call `on_timer`."""
        return self._section.call(self._due_for, waiter, otherwise=self._soon)

    def _due_for(self, waiter: Waiter) -> float:
        if self._timekeepers.elect(waiter):
            waiter.next_check = min(waiter.send_anyway_at, self._next_check())
            return waiter.next_check
        return waiter.send_anyway_at

    def _soon(self, waiter: Waiter) -> float:
        return self.clock.now() + CLAIM_TIMEOUT

    def on_timer(self, waiter: Waiter, now: float) -> None:
        """The timer of a waiter has expired: send what may be sent, and decide about the waiter if its time is over."""
        try:
            self._section.run_or_defer(self._on_timer, waiter, now)
        finally:
            self._wake(waiter)

    def _on_timer(self, waiter: Waiter, now: float) -> None:
        self._timekeepers.mark_awake(waiter)
        self._admit(now)
        if waiter.answer is None and now >= waiter.send_anyway_at:
            self._expire(waiter, now)
            if waiter.answer is None:
                waiter.send_anyway_at = waiter.deadline  # something has failed: wait until the deadline

    def claim_answer(self, waiter: Waiter) -> bool:
        """Claim the answer of a waiter; return False if it has missed its turn and waits again."""
        try:
            return self._section.call(self._claim_answer, waiter, otherwise=_not_yet)
        finally:
            self._wake(waiter)

    def _claim_answer(self, waiter: Waiter) -> bool:
        now = self.clock.now()
        self._timekeepers.mark_awake(waiter)
        if waiter.answer is MISSED_TURN:
            if now >= waiter.deadline:
                self._expire(waiter, now)
            else:
                self._shelter_queue.add_again(waiter, now)
                self._admit(now)
        # its turn may have come and gone again meanwhile
        waiter.claimed = waiter.answer is not None and waiter.answer is not MISSED_TURN
        if waiter.claimed:
            self._timekeepers.replace(waiter, self._shelter_queue)
            while self._granted and self._granted[0][1].claimed:
                del self._granted[0]
        return waiter.claimed

    def leave(self, waiter: Waiter, now: float) -> None:
        """A waiter stops waiting; give back its permit if it has one by now."""
        try:
            self._section.run_or_defer(self._left, waiter, now)
        finally:
            self._wake(waiter)

    def _left(self, waiter: Waiter, now: float) -> None:
        if waiter.answer is None:
            self._shelter_queue.remove(waiter, LATE)
        elif isinstance(waiter.answer, Permit) and waiter.answer.out:
            self.limiter.on_abandoned(waiter.answer, now)
            self._admit(now)
        self._timekeepers.replace(waiter, self._shelter_queue)

    # -- after it

    def answered(self, permit: Permit | None, now: float, by: str) -> None:
        """The server has answered."""
        try:
            self._section.run_or_defer(self._answered, permit, now, by)
        finally:
            self._notify()

    def _answered(self, permit: Permit | None, now: float, by: str) -> None:
        if permit is None or permit.out:
            self.limiter.on_answer(permit, now, self._shelter_queue.size)
        if self.limiter.calm:
            self.last_error = None
        self._admit(now)
        self._record_state(by)

    def failed(
        self,
        permit: Permit | None,
        now: float,
        plan: Schedule,
        hint_until: float | None,
        error: Exception | None,
        uncounted: bool,
        by: str,
        retry: int = 1,
        answered: bool = False,
    ) -> float:
        """An attempt has failed: return the seconds for which no attempt is sent."""
        failure = (permit, now, plan, hint_until, error, uncounted, by, retry, answered)
        try:
            return self._section.call(self._failed, *failure, otherwise=self._defer_failure)
        finally:
            self._notify()

    def _failed(
        self,
        permit: Permit | None,
        now: float,
        plan: Schedule,
        hint_until: float | None,
        error: Exception | None,
        uncounted: bool,
        by: str,
        retry: int,
        answered: bool,
    ) -> float:
        if permit is None or permit.out:
            self.limiter.on_failure(permit, now, plan, hint_until, uncounted, retry, answered)
        if error is not None:
            self.last_error = error
        closed_until = self.limiter.closed_until()
        if closed_until > self._refused_until:  # later calls were refused when they came
            for waiter in self._shelter_queue.expiring_by(closed_until):
                self._to_wake.append(waiter)
                self._shelter_queue.remove(waiter, CLOSED)
            self._refused_until = closed_until
        self._admit(now)
        self._record_state(by)
        return max(0.0, closed_until - now)

    def _defer_failure(self, *failure: Any) -> float:
        """Let the operation that this thread is in the middle of count a failure."""
        self._section.run_or_defer(self._failed, *failure)
        return 0.0

    def abandoned(self, permit: Permit | None, now: float, suspicious: bool = False) -> None:
        """An attempt was cut off and has no outcome; if that is `suspicious`, later attempts are counted."""
        try:
            if permit is not None or suspicious:
                self._section.run_or_defer(self._on_abandoned, permit, now, suspicious)
        finally:
            if suspicious:
                self._notify()
            elif self._to_wake:
                self._wake()

    def _on_abandoned(self, permit: Permit | None, now: float, suspicious: bool) -> None:
        if permit is not None and permit.out:
            self.limiter.on_abandoned(permit, now, sent=True)
        if suspicious:
            self.limiter.start_counting(now)
        self._admit(now)

    def apply_remote(self, down: bool, closed_until: float, limit: float, peers: int = 1) -> None:
        """Apply what the fleet knows: is there an outage, no attempt before `closed_until`, at most `limit` in flight.

        `peers` is the number of processes that this one probes for.
        """
        try:
            self._section.run_or_defer(self._apply_remote, down, closed_until, limit, peers)
        finally:
            self._notify()

    def _apply_remote(self, down: bool, closed_until: float, limit: float, peers: int) -> None:
        now = self.clock.now()
        self._remote_closed_until, self._remote_limit = closed_until, limit
        if down:
            self.limiter.apply_remote_outage(now, peers)
        self._admit(now)
        self._record_state(self._name)

    def refusal(self, why: str) -> Refused:
        """Return the error for a first attempt that is not sent."""
        if why == QUEUE_FULL:
            return Refused(self._name, f"{self._shelter_queue.capacity} calls are waiting already")
        if why == CLOSED:
            return Refused(
                self._name, "the dependency is down, and no attempt can be made before the call's time is over"
            )
        return Refused(self._name, "the dependency is down, and the call's turn did not come in time")

    # -- under the lock

    def _send(self, now: float) -> Permit:
        """Return a permit. The caller stores it before it calls anything else."""
        in_flight = self.limiter.in_flight
        try:
            return self.limiter.send(now)
        except BaseException:
            self.limiter.in_flight = in_flight  # no permit will give it back
            raise

    def _record_state(self, by: str) -> None:
        """Record a change of state, to be emitted outside of the lock."""
        state = self.limiter.state
        if state != self._reported_state:
            self._reported_state = state
            self._state_changes.append((by, state, self._shelter_queue.size, self.limiter.limit))

    def _admit(self, now: float) -> None:
        """Give permits to waiters as the limit allows, and make sure that a timekeeper wakes in time."""
        limiter, shelter_queue = self.limiter, self._shelter_queue
        self._reclaim(now)
        self._drop_stalled(now)
        if not shelter_queue.size:
            self._timekeepers.stalled.clear()
            return
        limiter.on_held_back(now)
        while shelter_queue.size and now >= self._due():
            waiter = shelter_queue.next(now, limiter.random() if limiter.probes_get_errors else None)
            assert waiter is not None
            self._to_wake.append(waiter)
            if now > waiter.deadline or self._timekeepers.is_stalled(waiter):
                shelter_queue.remove(waiter, MISSED_TURN)
            elif now + limiter.latencies.expected_answer_in(0.0) < waiter.end or self._no_failure_since(
                waiter.order[0], now
            ):
                self._grant(waiter, now)
                if waiter.wakeup is None or waiter.wakeup.loop is not None:
                    self._granted.append((now, waiter))
            else:
                shelter_queue.remove(waiter, LATE)  # the answer would come after the call's deadline
        shelter_queue.trim()
        self._timekeepers.rearm(self._next_check())

    def _grant(self, waiter: Waiter, now: float) -> None:
        """Give a waiter its permit."""
        shelter_queue = self._shelter_queue
        waiter.answer = self._send(now)
        if waiter.queued:
            # what `ShelterQueue.remove` does, without a call, at which an exception could come in
            waiter.queued = False
            shelter_queue.size -= 1
            shelter_queue.stale += 1

    def _reclaim(self, now: float) -> None:
        """Take back permits that were not claimed in time, and wake their waiters, which queue again."""
        while self._granted:
            handed, waiter = self._granted[0]
            permit = waiter.answer
            if not waiter.claimed and isinstance(permit, Permit) and permit.out:
                if now < handed + CLAIM_TIMEOUT:
                    break
                self._to_wake.append(waiter)
                self._timekeepers.drop(waiter)
                self._timekeepers.mark_stalled(waiter)
                self.limiter.on_abandoned(permit, now)
                waiter.answer = MISSED_TURN
            del self._granted[0]

    def _drop_stalled(self, now: float) -> None:
        """Once per `STALLED_AFTER`, remove waiters that should have left long ago.

        Nothing here refers to them afterwards, so that an event loop which was dropped with its tasks is collected.
        """
        if now >= self._last_stall_check + STALLED_AFTER:
            self._last_stall_check = now
            stalled = self._shelter_queue.expiring_by(now - STALLED_AFTER)
            for waiter in stalled:
                self._shelter_queue.remove(waiter, MISSED_TURN)
                self._timekeepers.drop(waiter)
            if stalled:
                self._shelter_queue.sweep()

    def _no_failure_since(self, since: float, now: float) -> bool:
        """Return whether nothing has failed since then, here or in the fleet, and the dependency is not closed."""
        held_by_fleet = now < self._remote_closed_until or self.limiter.in_flight + 1 > self._remote_limit
        return not held_by_fleet and self.limiter.last_failure < since and self.limiter.closed_until() <= now

    def _expire(self, waiter: Waiter, now: float) -> None:
        """Send a waiter whose time is over; if something has failed, refuse it at its deadline."""
        # in calm a single failure does not count
        since = inf if self.limiter.state == "calm" else waiter.order[0]
        if now < waiter.end and self._no_failure_since(since, now):
            self._grant(waiter, now)
        elif now >= waiter.deadline:
            self._shelter_queue.remove(waiter, LATE)

    def _next_check(self) -> float:
        """Return the instant at which a timekeeper has something to do, if nothing else happens."""
        due = self._due()
        return min(due, self._granted[0][0] + CLAIM_TIMEOUT) if self._granted else due

    def _due(self) -> float:
        """Return the instant from which one more attempt may be sent, if nothing else happens."""
        if self.limiter.in_flight + 1 > self._remote_limit:
            return inf  # until an answer, or until the fleet says otherwise
        return max(self.limiter.due(), self._remote_closed_until)

    # -- outside of the lock

    def _wake(self, awake: Waiter | None = None) -> None:
        """Notify waiters, but for `awake`, which runs. One whose event loop has ended gives back what it got."""
        while self._to_wake:
            try:
                for waiter in self._waking:  # pragma: no branch  # no signal handler runs between this and `try`
                    try:
                        # without a wakeup it has not begun to wait, and will see its answer first
                        reached = waiter is awake or waiter.wakeup is None or waiter.wakeup.notify()
                    except BaseException:
                        self._to_wake.append(waiter)
                        raise
                    if not reached:
                        self._section.run_or_defer(self._left, waiter, self.clock.now())
                    break
            except IndexError:
                break  # another thread took it

    def _notify(self, calm_may_differ: bool = True) -> None:
        """Wake waiters, tell the shelter whether it is calm, and emit changes of state."""
        try:
            self._wake()
        finally:
            if self._on_calm_change is not None and (calm_may_differ or self._state_changes):
                self._on_calm_change(self.limiter.calm)
            while self._state_changes:
                try:
                    by, state, waiting, limit = self._state_changes.popleft()
                except IndexError:
                    break  # another thread took it
                # what a shelter with a clock of its own does, as in a simulation, is not logged by default
                logged = self.clock is clocks.current() and events.log_enabled(WARNING)
                if logged or events.sinks:
                    events.emit(events.ShelterChanged(by, self._name, state, waiting, limit), logged)

    def disable_fast_path(self) -> None:
        """Let wrappers ask for each attempt from now on: there are virtual clocks."""
        if self._on_calm_change is not None:
            self._on_calm_change(False)

    def after_fork(self) -> None:
        """In the child: forget waiters and attempts in flight, whose threads don't exist there."""
        self._section.after_fork()
        self._to_wake.clear()
        self._state_changes.clear()
        for waiter in self._shelter_queue.expiring_by(inf):
            waiter.queued = False
            waiter.answer = LATE  # so that it leaves nothing here when its task is collected
        self._shelter_queue = ShelterQueue(self._shelter_queue.capacity)
        self._timekeepers.reset()
        self._granted.clear()
        self._remote_closed_until, self._remote_limit = -inf, inf  # the fleet told the parent
        self.limiter.in_flight = 0
        self.limiter.epoch += 1  # attempts that go on in the child are not counted there


def _uncounted(now: float, *_: object) -> Permit:
    """Return a permit for a re-entrant call: waiting would deadlock."""
    return Permit(UNCOUNTED, now)


def _not_yet(_: Waiter) -> bool:
    """Answer a re-entrant claim: check again soon."""
    return False
