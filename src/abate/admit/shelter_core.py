"""The core of a shelter: the limiter, the wait queue, and the rules by which waiting calls get permits. No lock, no
I/O.

`abate.admit.limiter` decides how much may be sent, `abate.admit.shelter_queue` which call is next. The rules here:

* A permit is for a waiter that is awake. If a task does not claim its permit within `CLAIM_TIMEOUT` seconds, the permit
  goes to the next waiter, and all waiters of that event loop are passed over until one of them wakes. A thread always
  wakes.
* **Slow is not down.** A call is refused only if an attempt has failed since it came, or if it came in an outage, or
  while the calls of one were worked off. Otherwise it is sent when it can wait no longer, whatever the limit.
* One waiter of each event loop, and one of all threads, is the timekeeper of the others (`abate.admit.timekeepers`).

A signal handler may raise out of any call in here. Nothing is lost by that: a permit is counted until it is no longer
`out`, and giving it back twice has no effect. A waiter is put on the list of those to wake before it gets its answer,
and the next operation wakes what this one did not.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Any, NamedTuple

from abate.admit.limiter import Limiter, Permit
from abate.admit.shelter_queue import ShelterQueue, Waiter
from abate.admit.timekeepers import Timekeepers
from abate.events import ShelterState
from abate.schedule.backoff import RandomSource, Schedule

QUEUE_FULL = "full"
"""Refusal: too many calls wait."""
PAUSED = "paused"
"""Refusal: nothing is sent before the call's time is over."""
LATE = "late"
"""Refusal: the call's turn did not come in time."""
MISSED_TURN = "missed"
"""The answer to a waiter whose event loop was stalled when its turn came: it may queue again."""
CLAIM_TIMEOUT = 0.25
"""Seconds within which a waiter must claim its permit."""
STALLED_AFTER = 1.0
"""Seconds after its deadline at which a waiter counts as stalled, and between two searches for such waiters."""


_HEAP_TYPE = 1 << 9
"""The flag of classes that are not built into the interpreter."""


def without_traceback(error: Exception) -> Exception:
    """Return a copy of an error, for the refusals of other calls.

    The frames of its traceback, and those in the mark of an inner policy, often refer to the task that made the
    attempt. Kept here, they would keep the task after its event loop was dropped, with the permit that it holds.

    No code of the error's class runs, so nothing is caught here: it could be what a signal handler raises.

    >>> copy = without_traceback(ConnectionError("no answer"))
    >>> copy, copy.__traceback__
    (ConnectionError('no answer'), None)
    """
    kind = type(error)
    built_in: Any = kind
    while built_in.__flags__ & _HEAP_TYPE:  # no generator, which would swallow what a signal handler raises as it ends
        built_in = built_in.__base__
    if isinstance(error, ExceptionGroup):
        parts = [without_traceback(part) for part in error.exceptions]
        copy: Exception = built_in.__new__(kind, error.message, parts)
    else:
        copy = built_in.__new__(kind)
    if isinstance(error, OSError):
        for name in ("errno", "strerror", "filename", "filename2"):
            if getattr(error, name) is not None:  # None is not the same as unset
                BaseException.__setattr__(copy, name, getattr(error, name))
    BaseException.__setattr__(copy, "args", error.args)
    copy.__dict__.update(error.__dict__)
    copy.__dict__.pop("__abate__", None)
    return copy


class Failure(NamedTuple):
    """A failed attempt, as reported by its call; for the fields see `Limiter.on_failure`."""

    permit: Permit | None
    now: float
    backoff: Schedule
    hint_until: float | None
    error: Exception | None
    uncounted: bool
    policy_name: str
    retry: int
    answered: bool


class ShelterCore:
    """One dependency on one clock: its limiter, and the calls that wait for it."""

    __slots__ = (
        "_last_stall_check",
        "_name",
        "_patience",
        "_refused_until",
        "_reported_state",
        "granted",
        "last_error",
        "limiter",
        "queue",
        "remote_limit",
        "remote_paused_until",
        "state_changes",
        "timekeepers",
        "to_wake",
    )

    def __init__(self, name: str, capacity: int, patience: float, random_source: RandomSource, now: float) -> None:
        self._name = name
        self._patience = patience
        self.limiter = Limiter(random_source, now, patience)
        self.queue = ShelterQueue(capacity)
        self.granted: deque[tuple[float, Waiter]] = deque()
        """Permits that are not claimed yet, with the instants at which they were granted."""
        self.to_wake: deque[Waiter] = deque()
        """Waiters to notify outside of the lock."""
        self.state_changes: deque[tuple[str, ShelterState, int, float]] = deque()
        """Changes of state, to be emitted as events outside of the lock."""
        self.timekeepers = Timekeepers(self.to_wake)
        self._reported_state: ShelterState = self.limiter.state
        self._refused_until = self._last_stall_check = -inf
        self.remote_paused_until, self.remote_limit = -inf, inf
        """What the fleet says: no attempt before this instant, at most this many in flight."""
        self.last_error: Exception | None = None
        """The error of the last failed attempt, without its traceback: the cause of refusals."""

    # -- before an attempt

    def try_enter(
        self, now: float, began: float, left: float | None, first: bool, policy_name: str, got: list[Permit | Waiter]
    ) -> Permit | Waiter | str:
        """Return a permit, a queued waiter or the refusal; also put a permit or waiter into `got`."""
        if self.granted:
            self.admit(now)
        if first:
            self.limiter.on_call(now)
        answer = self._answer(now, began, left, first)
        if answer.__class__ is not str:
            got.append(answer)  # type: ignore[arg-type]
        if isinstance(answer, Waiter):
            self.queue.add(answer)
            self.admit(now)
        self._record_state(policy_name)
        return answer

    def _answer(self, now: float, began: float, left: float | None, first: bool) -> Permit | Waiter | str:
        limiter, queue = self.limiter, self.queue
        if not queue.size and now >= self.due():
            return self.send(now)
        if queue.full:
            self.drop_stalled(now)
        if queue.full:
            return self.send(now) if self._no_failure_since(now - self._patience, now) else QUEUE_FULL
        limiter.on_held_back(now)
        end = inf if left is None else now + left
        deadline = min(end, now + self._patience)
        if limiter.paused_until() >= deadline:
            return PAUSED
        # without failures it waits only as long as there is time for an answer
        send_anyway_at = (
            deadline if left is None else now + max(left / 2, left - limiter.latencies.expected_answer_in(left))
        )
        # a call that comes in an outage, or while the calls of an outage are worked off, is one of them
        of_outage = limiter.state == "probing" or limiter.catching_up(now)
        since = limiter.prober.outage_start if of_outage else began if first else now
        return Waiter(began, deadline, end, min(deadline, send_anyway_at), since)

    def due_for(self, waiter: Waiter) -> float:
        """Return the instant at which the timer of a waiter should expire."""
        if self.timekeepers.elect(waiter):
            waiter.next_check = min(waiter.send_anyway_at, self._next_check())
            return waiter.next_check
        return waiter.send_anyway_at

    def on_timer(self, waiter: Waiter, now: float) -> None:
        """Send what may be sent, and decide about this waiter if its time is over."""
        self.timekeepers.mark_awake(waiter)
        self.admit(now)
        if waiter.answer is None and now >= waiter.send_anyway_at:
            self._expire(waiter, now)
            if waiter.answer is None:
                waiter.send_anyway_at = waiter.deadline  # something has failed: wait until the deadline

    def claim_answer(self, waiter: Waiter, now: float) -> bool:
        """Claim the answer of a waiter; return False if it has missed its turn and waits again."""
        self.timekeepers.mark_awake(waiter)
        if waiter.answer is MISSED_TURN:
            if now >= waiter.deadline:
                self._expire(waiter, now)
            else:
                self.queue.add(waiter)
                self.admit(now)
        # its turn may have come and gone again meanwhile
        waiter.claimed = waiter.answer is not None and waiter.answer is not MISSED_TURN
        if waiter.claimed:
            self.timekeepers.replace(waiter, self.queue)
            while self.granted and self.granted[0][1].claimed:
                del self.granted[0]
        return waiter.claimed

    def on_leave(self, waiter: Waiter, now: float) -> None:
        """Remove a waiter whose call stops waiting, and take back its permit if it has one."""
        if waiter.answer is None:
            self.queue.remove(waiter, LATE)
        elif isinstance(waiter.answer, Permit) and waiter.answer.out:
            self.limiter.on_abandoned(waiter.answer, now)
            self.admit(now)
        self.timekeepers.replace(waiter, self.queue)

    # -- after an attempt

    def on_answer(self, permit: Permit | None, now: float, policy_name: str) -> None:
        """Count an answer of the server."""
        if permit is None or permit.out:
            self.limiter.on_answer(permit, now, self.queue.size)
        if self.limiter.calm:
            self.last_error = None
        self.admit(now)
        self._record_state(policy_name)

    def on_failure(self, failure: Failure) -> float:
        """Count a failed attempt; return the seconds until the next one may be sent, 0 if that is now."""
        permit, now = failure.permit, failure.now
        if permit is None or permit.out:
            self.limiter.on_failure(
                permit,
                now,
                failure.backoff,
                failure.hint_until,
                failure.uncounted,
                failure.retry,
                failure.answered,
            )
        if failure.error is not None:
            self.last_error = failure.error
        paused_until = self.limiter.paused_until()
        if paused_until > self._refused_until:  # later calls were refused when they came
            for waiter in self.queue.expiring_by(paused_until):
                self.to_wake.append(waiter)
                self.queue.remove(waiter, PAUSED)
            self._refused_until = paused_until
        self.admit(now)
        self._record_state(failure.policy_name)
        return max(0.0, paused_until - now)

    def on_abandoned(self, permit: Permit | None, now: float, suspicious: bool) -> None:
        """End an attempt that was cut off; if that is `suspicious`, count later ones."""
        if permit is not None and permit.out:
            self.limiter.on_abandoned(permit, now, sent=True)
        if suspicious:
            self.limiter.start_counting(now)
        self.admit(now)

    def apply_remote(self, down: bool, paused_until: float, limit: float, peers: int, now: float) -> None:
        """Apply what the fleet knows; see `Dispatcher.apply_remote`."""
        self.remote_paused_until, self.remote_limit = paused_until, limit
        if down:
            self.limiter.apply_remote_outage(now, peers)
        self.admit(now)
        self._record_state(self._name)

    # -- rules

    def send(self, now: float) -> Permit:
        """Return a permit. The caller stores it before it calls anything else."""
        in_flight = self.limiter.in_flight
        try:
            return self.limiter.send(now)
        except BaseException:
            self.limiter.in_flight = in_flight  # no permit will give it back
            raise

    def _record_state(self, policy_name: str) -> None:
        """Record a change of state, to be emitted outside of the lock."""
        state = self.limiter.state
        if state != self._reported_state:
            self._reported_state = state
            self.state_changes.append((policy_name, state, self.queue.size, self.limiter.limit))

    def admit(self, now: float) -> None:
        """Give permits to waiters as the limit allows, and make sure that a timekeeper wakes in time."""
        limiter, queue = self.limiter, self.queue
        self._reclaim(now)
        self.drop_stalled(now)
        if not queue.size:
            self.timekeepers.stalled.clear()
            return
        limiter.on_held_back(now)
        chance = limiter.probe_chance()
        while queue.size and now >= self.due():
            needed = limiter.latencies.expected_answer_in(0.0)
            if chance is None:
                waiter = queue.next(now, limiter.latencies.usual(), limiter.interval(), limiter.catching_up(now))
            else:
                waiter = queue.probe(now, chance)
                needed = limiter.latencies.usual()  # `ANSWER_TIME_FACTOR` could rule out every call
                chance = None  # if it is passed over, the others follow in their order: to search again is slow
            assert waiter is not None
            self.to_wake.append(waiter)
            if now > waiter.deadline or self.timekeepers.is_stalled(waiter):
                queue.remove(waiter, MISSED_TURN)
            elif now + needed < waiter.end or self._no_failure_since(waiter.since, now):
                self._grant(waiter, now)
                if waiter.wakeup is None or waiter.wakeup.loop is not None:
                    self.granted.append((now, waiter))
            else:
                queue.remove(waiter, LATE)  # the answer would come after the call's deadline
        queue.trim()
        self.timekeepers.rearm(self._next_check())

    def _grant(self, waiter: Waiter, now: float) -> None:
        """Give a waiter its permit."""
        queue = self.queue
        waiter.answer = self.send(now)
        if waiter.queued:
            # what `ShelterQueue.remove` does, without a call out of which an exception could come
            waiter.queued = False
            queue.size -= 1
            queue.stale += 1

    def _reclaim(self, now: float) -> None:
        """Take back permits that were not claimed in time, and wake their waiters, which queue again."""
        while self.granted:
            granted_at, waiter = self.granted[0]
            permit = waiter.answer
            if not waiter.claimed and isinstance(permit, Permit) and permit.out:
                if now < granted_at + CLAIM_TIMEOUT:
                    break
                self.to_wake.append(waiter)
                self.timekeepers.drop(waiter)
                self.timekeepers.mark_stalled(waiter)
                self.limiter.on_abandoned(permit, now)
                waiter.answer = MISSED_TURN
            del self.granted[0]

    def drop_stalled(self, now: float) -> None:
        """Once per `STALLED_AFTER`, remove waiters that should have left long ago.

        Nothing here refers to them afterwards, so that an event loop which was dropped with its tasks is collected.
        """
        if now >= self._last_stall_check + STALLED_AFTER:
            self._last_stall_check = now
            stalled = self.queue.expiring_by(now - STALLED_AFTER)
            for waiter in stalled:
                self.queue.remove(waiter, MISSED_TURN)
                self.timekeepers.drop(waiter)
            if stalled:
                self.queue.sweep()

    def _no_failure_since(self, since: float, now: float) -> bool:
        """Return whether nothing has failed since then, here or in the fleet, and nothing is paused."""
        held_by_fleet = now < self.remote_paused_until or self.limiter.in_flight + 1 > self.remote_limit
        return not held_by_fleet and self.limiter.last_failure < since and self.limiter.paused_until() <= now

    def _expire(self, waiter: Waiter, now: float) -> None:
        """Send a waiter whose time is over; if something has failed, refuse it at its deadline."""
        # in calm a single failure does not count
        since = inf if self.limiter.state == "calm" else waiter.since
        if now < waiter.end and self._no_failure_since(since, now):
            self._grant(waiter, now)
        elif now >= waiter.deadline:
            self.queue.remove(waiter, LATE)

    def _next_check(self) -> float:
        """Return the instant at which a timekeeper has something to do, if nothing else happens."""
        due = self.due()
        return min(due, self.granted[0][0] + CLAIM_TIMEOUT) if self.granted else due

    def due(self) -> float:
        """Return the instant from which one more attempt may be sent, if nothing else happens."""
        if self.limiter.in_flight + 1 > self.remote_limit:
            return inf  # until an answer, or until the fleet says otherwise
        return max(self.limiter.due(), self.remote_paused_until)

    def after_fork(self) -> None:
        """In the child: forget waiters and attempts in flight, whose threads don't exist there."""
        self.to_wake.clear()
        self.state_changes.clear()
        for waiter in self.queue.expiring_by(inf):
            waiter.queued = False
            waiter.answer = LATE  # so that it leaves nothing here when its task is collected
        self.queue = ShelterQueue(self.queue.capacity)
        self.timekeepers.reset()
        self.granted.clear()
        self.remote_paused_until, self.remote_limit = -inf, inf  # the fleet told the parent
        self.limiter.in_flight = 0
        self.limiter.epoch += 1  # attempts that go on in the child are not counted there
