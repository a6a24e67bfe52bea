"""The courier: carries what a process shares to its store and back, about once a second, in a thread of its own.

Nobody waits for it. What it brought is good for `GOOD` seconds; whoever shares something and has not heard for longer
(the store is slow, gone, or was never there) goes by its own limits, and that is said once, and once again when it
is over. After a failure the courier goes less often, with jitter, so that a store that comes back is not met by
everybody at once.

A journey costs the same for each name. It is made in batches, each a round trip and a transaction of its own, so that
neither the store nor whoever joins meanwhile waits for all of it. What joins is carried alone, not with everything that
is there already. After a journey the courier rests for as long as it took, at least.

A fork's child is another member. Its courier starts with the first use of something that is shared (a deposit, a
withdrawal, a call that comes to a shelter's door), so that children which execute another program, or do nothing, never
join. `start` and `hurry` are called by calls, and so by signal handlers and finalizers: neither waits for a lock.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, RLock, Thread, current_thread
from typing import Any, Protocol, TypeVar
from weakref import ref

from abate import events, forks
from abate.clock import MACHINE
from abate.logs import Log
from abate.registry import Registry
from abate.schedule.backoff import Backoff, Uniform
from abate.stores.fleet.offers import GONE, Accounts, Answer, Offer

log = Log("abate.stores")
T = TypeVar("T")

EVERY = 1.0
"""Seconds between two journeys, give or take a quarter."""
LEAST = 0.55
"""Seconds between two journeys where somebody is in need: no more than two a second."""
GOOD = 3.0
"""Seconds for which an answer is good."""
SOON = 1.0
"""Seconds within which a child should have its first answer; after that it is on its own."""
BATCH = 200
"""Offers in one round trip: what PostgreSQL has locks for, and any store answers within milliseconds."""
TROUBLE = Backoff(1.0, 10.0, jitter="equal")
"""How long a store that failed is left alone."""


class Party(Protocol):
    """Something that a process shares with others. It sees to forks itself: what it was given is the parent's."""

    def offer(self, now: float) -> Offer:
        """What it brings."""
        ...

    def take(self, answer: Any, until: float) -> None:
        """What it is given, and until when that is good."""

    def unheard(self) -> None:
        """The store has not answered."""

    def closed(self) -> None:
        """There will be no more news."""


class Trading(Protocol):
    """What a store does for couriers."""

    def trade(self, member: str, offers: Sequence[Offer]) -> Sequence[Answer | Exception]:
        """Answer the offers of a member, in one round trip; by an error those that alone can't be answered."""
        ...


class Courier:
    """Carries the offers of everything that one process shares through one store."""

    def __init__(self, store: Trading, name: str, rng: Uniform | None = None) -> None:
        self._store = store
        self.name = name
        self._chance: Uniform = rng or random
        self._parties: Registry[Any] = Registry()
        self.degraded = False
        """Has the store failed, so that everybody here is on its own?"""
        self.over = False
        """Was it closed?"""
        self._begin()
        forks.keep(self)

    def _begin(self) -> None:
        """A new member, of which the store has not heard."""
        self.member = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"
        self.journeys = 0
        self._failures = 0
        self._hurry = False
        self._thread: Thread | None = None
        self._starting = Lock()  # never waited for
        self._grounded = False
        self._news: SimpleQueue[None] = SimpleQueue()  # its `put` may be called anywhere, also within itself
        self._journey = RLock()
        self._under_way = False
        self._took = 0.0  # seconds, the last journey
        self._slow = False  # was it said that journeys take too long?
        self._apart: set[tuple[type, str]] = set()  # what can't be shared, of which it was said

    def after_fork(self) -> None:
        """In the child: another member, whose thread begins with the first use of something that is shared."""
        self._begin()

    def join(self, party: Party) -> None:
        """Carry for this one too, as long as it lives; its first journey is made at once, and for it alone."""
        self._parties.add(party)
        if self._failures:  # each one that joins would wait for a store that is not there
            party.unheard()
        else:
            self.journeys += 1
            self._visit([party])
        self.start()

    def start(self) -> bool:
        """Have a thread that goes again and again; False if none can be started now."""
        if self._thread is not None or self.over:
            return True
        starting = self._starting  # a child that is forked in the middle has another one
        # an iterator takes the lock, so that no signal handler can raise between that and the `try`
        for taken in iter(partial(starting.acquire, False), None):
            if not taken:
                return True  # somebody is about to
            try:
                if self._thread is None:
                    thread = Thread(target=_go, args=(ref(self),), name="abate-courier", daemon=True)
                    thread.start()
                    self._thread = thread
            except RuntimeError as error:  # too many threads, or the interpreter is about to end
                if not self._grounded:
                    log.warning(
                        "%s: there is no thread to share limits, each process goes by its own (%s)", self.name, error
                    )
                self._grounded = True
                return False
            finally:
                starting.release()
            break
        self._grounded = False
        return True

    def has(self, thread: Thread) -> bool:
        """Is this the thread that goes? One more is started where a signal handler has broken off who started one."""
        if self._thread is None:
            self._thread = thread
        return self._thread is thread

    def hurry(self) -> None:
        """Somebody is in need: go as soon as may be."""
        if not self._hurry:
            self._hurry = True
            self._news.put(None)
        self.start()

    def close(self) -> None:
        """Go once more, to hand in what is held, and then no more."""
        if self.over:
            return
        self.over = True
        self._news.put(None)
        self._alone(self._hand_in)

    def _hand_in(self) -> None:
        parties = self._parties.alive()
        offers = [] if self._under_way else [party.offer(MACHINE.now()) for party in parties]
        last = [offer._replace(want=0) if isinstance(offer, Accounts) else offer for offer in offers]
        for party in parties:
            party.closed()  # before it is handed in: nobody must use it any more
        if self._under_way:  # a signal handler closes it in the middle of a journey, which ends here
            self._under_way = False
            return
        if not self.journeys:
            return  # a child that has used nothing
        try:
            for batch in _batches(last):
                self._store.trade(self.member, batch)
        except Exception as error:
            log.debug("%s did not hear the last word of %s: %r", self.name, self.member, error)

    def _alone(self, act: Callable[[], T]) -> T:
        """What `act` answers, called while no other thread is on a journey."""
        journey = self._journey
        for _ in iter(journey.acquire, None):  # a `with` statement may be interrupted before it has begun
            try:
                return act()
            finally:
                journey.release()
        raise AssertionError("an iterator without end has ended")

    def wait(self) -> bool:
        """Wait for the next journey: is there one?"""
        delay = max(EVERY * (0.75 + 0.5 * self._chance.random()), self._took)
        if self._failures:
            delay = max(delay, TROUBLE.delay(self._failures, self._chance))
        began = MACHINE.now()
        while not self.over:
            due = began + (max(LEAST, self._took) if self._hurry and not self._failures else delay)
            left = due - MACHINE.now()
            if left <= 0:
                break
            with suppress(Empty):
                self._news.get(timeout=left)
        self._hurry = False
        if not self.over and self._parties.alive():
            return True
        self._thread = None
        if self._parties.alive():
            self.start()  # it joined just now, and found this thread still there
        return False

    def travel(self) -> None:
        """One journey: offers to the store, answers back, a batch at a time."""
        began, parties = MACHINE.now(), self._parties.alive()
        self.journeys += 1
        failures = self._failures
        for place, batch in enumerate(_batches(parties), start=1):
            if not self._visit(batch):
                if self._failures > failures:
                    for party in parties[place * BATCH :]:
                        party.unheard()
                return
        self._failures = 0
        self._say(None)
        self._took = MACHINE.now() - began
        if self._took > GONE / 2 and not self._slow:
            self._slow = True
            log.warning(
                "%s: %d names take %.1f s to share, and a process that stays away for %g s is not counted: share fewer",
                *(self.name, len(parties), self._took, GONE),
            )

    def _visit(self, parties: Sequence[Any]) -> bool:
        """One round trip for some of those who share; never two at once. Is the next one to follow?"""
        return self._alone(partial(self._visited, parties))

    def _visited(self, parties: Sequence[Any]) -> bool:
        if self._under_way or self.over:  # a signal handler or a finalizer has come here from within it
            return False
        try:
            self._under_way = True
            return self._exchange(parties)
        finally:
            self._under_way = False

    def _exchange(self, parties: Sequence[Any]) -> bool:
        began = MACHINE.now()
        offers = [party.offer(began) for party in parties]
        try:
            answers = self._store.trade(self.member, offers)
        except Exception as error:
            self._failures += 1
            for party in parties:
                party.unheard()
            if not self.over:
                self._say(error)
            return False
        if not self._under_way:
            return False  # it was closed from within
        until = began + max(GOOD, 2.0 * (self._took + max(EVERY, self._took)))  # until the journey after the next
        for party, offer, answer in zip(parties, offers, answers, strict=True):
            if isinstance(answer, Exception):
                party.unheard()
                self._set_apart(offer, answer)
            else:
                party.take(answer, until)
                self._apart.discard((type(offer), offer.name))
        return True

    def _set_apart(self, offer: Offer, error: Exception) -> None:
        """Say once that one name is not shared, though the others are."""
        what = type(offer), offer.name
        if what not in self._apart:
            self._apart.add(what)
            words = "%s can't share %r: each process goes by its own limits there (%s)"
            log.warning(words, self.name, offer.name, error)

    def _say(self, error: Exception | None) -> None:
        degraded = error is not None
        if degraded == self.degraded:
            return
        self.degraded = degraded
        if degraded:
            log.warning("%s does not answer: each process goes by its own limits now (%s)", self.name, error)
        else:
            log.warning("%s answers again: limits are shared", self.name)
        events.emit(events.StoreDegraded(self.name, degraded, error))


def _batches(several: Sequence[T]) -> Iterator[Sequence[T]]:
    return (several[start : start + BATCH] for start in range(0, len(several), BATCH))


def _go(courier: ref[Courier]) -> None:
    """The thread; it does not keep its courier alive.

    A child makes its first journey at once, without the usual pause.
    """
    while True:
        here = courier()
        if here is None or not here.has(current_thread()):
            return
        try:
            if here.over or (here.journeys and not here.wait()):
                return
            here.travel()
        except Exception:
            log.exception("%s: a journey has failed, and the next one follows", here.name)
        del here
