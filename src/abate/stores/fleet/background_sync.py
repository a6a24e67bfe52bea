"""The background sync: exchanges requests and grants of shared limits with the store, about once a second, in a thread.

Calls never wait for it. A reply is valid for `REPLY_VALID` seconds. A shared limit without a valid reply (the store is
slow, down, or was never reached) is applied locally, which is logged once, and once more when the store answers again.
After failures the sync runs less often, with jitter, so that a store that comes back is not hit by all processes at
once.

The cost of a round grows with the number of shared limits. It is split into batches, each a round trip and a
transaction of its own, so that the store is not blocked for a whole round. A new shared limit is synced at once, by
itself. After a round the sync pauses for at least as long as the round took.

A forked child is another member. Its sync starts with the first use of a shared limit (a deposit, a withdrawal, a call
that enters a shelter), so that children that execute another program, or do nothing, never join. Calls, also those of
signal handlers and finalizers, use `start` and `sync_soon`, which don't wait for a lock.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, RLock, Thread, current_thread
from typing import Any, Protocol, TypeVar
from weakref import ref

from abate import event_sinks, events, forks
from abate.clock import MACHINE
from abate.logs import Log
from abate.registry import Registry
from abate.schedule.backoff import Backoff, RandomSource
from abate.stores.encoding import batches
from abate.stores.fleet.sync_requests import MEMBER_TIMEOUT, BudgetRequest, SyncReply, SyncRequest

log = Log("abate.stores")
T = TypeVar("T")

SYNC_INTERVAL = 1.0
"""Seconds between two rounds, give or take a quarter."""
MIN_SYNC_INTERVAL = 0.55
"""Seconds between two rounds while a limit needs more."""
REPLY_VALID = 3.0
"""Seconds for which a reply is valid."""
FIRST_REPLY_TIMEOUT = 1.0
"""Seconds that a child waits for its first reply before it applies local limits."""
BATCH = 200
"""Requests in one round trip: few enough for PostgreSQL's lock table, and for an answer within milliseconds."""
FAILURE_BACKOFF = Backoff(1.0, 10.0, jitter="equal")
"""Delays after failures of the store."""


class Synced(Protocol):
    """A limit that a process shares. It handles forks itself: the parent keeps what was granted."""

    def request(self, now: float) -> SyncRequest:
        """Return the request of this limit."""
        ...

    def apply(self, reply: Any, until: float) -> None:
        """Apply a reply, which is valid until that instant."""

    def fall_back(self) -> None:
        """Apply local limits: the store has not answered."""

    def on_close(self) -> None:
        """Apply local limits from now on: the sync is closed."""


class SyncStore(Protocol):
    """What a store does for a fleet."""

    def sync_members(self, member: str, requests: Sequence[SyncRequest]) -> Sequence[SyncReply | Exception]:
        """Answer the requests of a member in one round trip; the reply is an error if a request fails by itself."""
        ...


class FleetSync:
    """Syncs all limits that one process shares through one store, in a background thread."""

    def __init__(self, store: SyncStore, name: str, rng: RandomSource | None = None) -> None:
        self._store = store
        self.name = name
        self._chance: RandomSource = rng or random
        self._synced: Registry[Any] = Registry()
        self.degraded = False
        """Whether the store has failed, so that all limits are local."""
        self.is_closed = False
        """Whether it was closed."""
        self._reset()
        forks.register(self)

    def _reset(self) -> None:
        """Become a new member, which the store does not know."""
        self.member = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"
        self.rounds = 0
        self._failures = 0
        self._soon = False
        self._thread: Thread | None = None
        self._starting = Lock()  # taken without waiting
        self._no_thread_logged = False
        self._wake_queue: SimpleQueue[None] = SimpleQueue()  # its `put` is reentrant
        self._round_lock = RLock()
        self._in_round = False
        self._took = 0.0  # seconds that the last round took
        self._slow = False  # whether a warning was logged that rounds take too long
        self._unshareable: set[tuple[type, str]] = set()  # limits that can't be shared, and were logged

    def after_fork(self) -> None:
        """Become another member in the child; its thread starts with the first use of a shared limit."""
        self._reset()

    def join(self, limit: Synced) -> None:
        """Sync this limit as long as it exists; the first time at once, and by itself."""
        self._synced.add(limit)
        if self._failures:  # don't wait for a store that is down
            limit.fall_back()
        else:
            self.rounds += 1
            self._sync_batch([limit])
        self.start()

    def start(self) -> bool:
        """Start the thread, if it does not run. Return False if no thread can be started now."""
        if self._thread is not None or self.is_closed:
            return True
        starting = self._starting  # a child that is forked in the middle has another one
        # an iterator takes the lock: see `abate.reentrant_locks`
        for taken in iter(partial(starting.acquire, False), None):
            if not taken:
                return True  # another thread is starting it
            try:
                if self._thread is None:
                    thread = Thread(target=_sync_thread, args=(ref(self),), name="abate-fleet-sync", daemon=True)
                    thread.start()
                    self._thread = thread
            except RuntimeError as error:  # too many threads, or the interpreter is about to end
                if not self._no_thread_logged:
                    log.warning(
                        "%s: no thread can be started to share limits, this process applies local limits (%s)",
                        self.name,
                        error,
                    )
                self._no_thread_logged = True
                return False
            finally:
                starting.release()
            break
        self._no_thread_logged = False
        return True

    def is_current_thread(self, thread: Thread) -> bool:
        """Return whether this thread is to sync. There may be two if a signal handler interrupted `start`."""
        if self._thread is None:
            self._thread = thread
        return self._thread is thread

    def sync_soon(self) -> None:
        """Sync as soon as possible."""
        if not self._soon:
            self._soon = True
            self._wake_queue.put(None)
        self.start()

    def close(self) -> None:
        """Sync once more to return what is held, and then stop."""
        if self.is_closed:
            return
        self.is_closed = True
        self._wake_queue.put(None)
        self._locked(self._final_round)

    def _final_round(self) -> None:
        limits = self._synced.alive()
        requests = [] if self._in_round else [limit.request(MACHINE.now()) for limit in limits]
        last = [request._replace(want=0) if isinstance(request, BudgetRequest) else request for request in requests]
        for limit in limits:
            limit.on_close()  # first: what is returned must not be used any more
        if self._in_round:  # a signal handler closes it during a round, which ends here
            self._in_round = False
            return
        if not self.rounds and self._thread is None:
            return  # a child that has used no shared limit
        try:
            for batch in batches(last, BATCH):
                self._store.sync_members(self.member, batch)
        except Exception as error:
            log.debug("%s: the last sync of %s failed: %r", self.name, self.member, error)

    def _locked(self, act: Callable[[], T]) -> T:
        """Call `act` while no other thread syncs."""
        lock = self._round_lock
        for _ in iter(lock.acquire, None):  # not a `with` statement: see `abate.reentrant_locks`
            try:
                return act()
            finally:
                lock.release()
        raise AssertionError("an iterator without end has ended")

    def wait(self) -> bool:
        """Wait until the next sync is due. Return False if the thread is to end."""
        delay = max(SYNC_INTERVAL * (0.75 + 0.5 * self._chance.random()), self._took)
        if self._failures:
            delay = max(delay, FAILURE_BACKOFF.delay(self._failures, self._chance))
        began = MACHINE.now()
        while not self.is_closed:
            due = began + (max(MIN_SYNC_INTERVAL, self._took) if self._soon and not self._failures else delay)
            left = due - MACHINE.now()
            if left <= 0:
                break
            with suppress(Empty):
                self._wake_queue.get(timeout=left)
        self._soon = False
        if not self.is_closed and self._synced.alive():
            return True
        self._thread = None
        if self._synced.alive():
            self.start()  # a limit joined just now, and found this thread still running
        return False

    def sync_once(self) -> None:
        """Sync all limits, a batch at a time."""
        began, limits = MACHINE.now(), self._synced.alive()
        self.rounds += 1
        failures = self._failures
        for place, batch in enumerate(batches(limits, BATCH), start=1):
            if not self._sync_batch(batch):
                if self._failures > failures:
                    for limit in limits[place * BATCH :]:
                        limit.fall_back()
                return
        self._failures = 0
        self._set_degraded(None)
        self._took = MACHINE.now() - began
        if self._took > MEMBER_TIMEOUT / 2 and not self._slow:
            self._slow = True
            log.warning(
                "%s: syncing %d names takes %.1f s, but a process silent for %g s is not counted: share fewer names",
                *(self.name, len(limits), self._took, MEMBER_TIMEOUT),
            )

    def _sync_batch(self, limits: Sequence[Any]) -> bool:
        """Sync some limits in one round trip, never two at once. Return whether to go on with the next batch."""
        return self._locked(partial(self._sync_batch_locked, limits))

    def _sync_batch_locked(self, limits: Sequence[Any]) -> bool:
        if self._in_round or self.is_closed:  # called by a signal handler or finalizer within a round
            return False
        try:
            self._in_round = True
            return self._round_trip(limits)
        finally:
            self._in_round = False

    def _round_trip(self, limits: Sequence[Any]) -> bool:
        began = MACHINE.now()
        requests = [limit.request(began) for limit in limits]
        try:
            replies = self._store.sync_members(self.member, requests)
        except Exception as error:
            self._failures += 1
            for limit in limits:
                limit.fall_back()
            if not self.is_closed:
                self._set_degraded(error)
            return False
        if not self._in_round:
            return False  # a signal handler has closed it
        until = began + max(
            REPLY_VALID, 2.0 * (self._took + max(SYNC_INTERVAL, self._took))
        )  # until the round after the next
        for limit, request, reply in zip(limits, requests, replies, strict=True):
            if isinstance(reply, Exception):
                limit.fall_back()
                self._log_unshareable(request, reply)
            else:
                limit.apply(reply, until)
                self._unshareable.discard((type(request), request.name))
        return True

    def _log_unshareable(self, request: SyncRequest, error: Exception) -> None:
        """Log once that one name is not shared, though others are."""
        what = type(request), request.name
        if what not in self._unshareable:
            self._unshareable.add(what)
            words = "%s can't share %r: each process applies its own local limits to it (%s)"
            log.warning(words, self.name, request.name, error)

    def _set_degraded(self, error: Exception | None) -> None:
        degraded = error is not None
        if degraded == self.degraded:
            return
        self.degraded = degraded
        if degraded:
            log.warning("%s does not answer: each process applies local limits now (%s)", self.name, error)
        else:
            log.warning("%s answers again: limits are shared", self.name)
        event_sinks.emit(events.StoreDegraded(self.name, degraded, error))


def _sync_thread(fleet_sync: ref[FleetSync]) -> None:
    """Sync again and again. The thread does not keep the sync alive.

    A child syncs at once the first time, without the usual delay.
    """
    while True:
        here = fleet_sync()
        if here is None or not here.is_current_thread(current_thread()):
            return
        try:
            if here.is_closed or (here.rounds and not here.wait()):
                return
            here.sync_once()
        except Exception:
            log.exception("%s: a sync failed; the next one follows as scheduled", here.name)
        del here
