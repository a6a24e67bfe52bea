"""The courier: carries what a process shares to its store and back, about once a second, in a thread of its own.

Nobody waits for it. What it brought is good for `GOOD` seconds; whoever shares something and has not heard for longer
(the store is slow, gone, or was never there) goes by its own limits, and that is said once, and once again when it
is over. After a failure the courier goes less often, with jitter, so that a store that comes back is not met by
everybody at once.

A fork's child is another member. Its courier starts with the first use of something that is shared (a deposit, a
withdrawal, a call that comes to a shelter's door), so that children which execute another program, or do nothing, never
join. `start` and `hurry` are called by calls, and so by signal handlers and finalizers: neither waits for a lock.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, RLock, Thread
from typing import Any, Protocol
from weakref import ref

from abate import events, forks
from abate.clock import MACHINE
from abate.logs import Log
from abate.registry import Registry
from abate.schedule.backoff import Backoff, Uniform
from abate.stores.fleet.offers import Accounts, Answer, Offer

log = Log("abate.stores")

EVERY = 1.0
"""Seconds between two journeys, give or take a quarter."""
LEAST = 0.55
"""Seconds between two journeys where somebody is in need: no more than two a second."""
GOOD = 3.0
"""Seconds for which an answer is good."""
SOON = 1.0
"""Seconds within which a child should have its first answer; after that it is on its own."""
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

    def trade(self, member: str, offers: Sequence[Offer]) -> Sequence[Answer]:
        """Answer the offers of a member, in one round trip."""
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

    def after_fork(self) -> None:
        """In the child: another member, whose thread begins with the first use of something that is shared."""
        self._begin()

    def join(self, party: Party) -> None:
        """Carry for this one too, as long as it lives; the first journey is made at once."""
        self._parties.add(party)
        self.travel()
        self.start()

    def start(self) -> bool:
        """Have a thread that goes again and again; False if none can be started now."""
        if self._thread is not None or self.over:
            return True
        # an iterator takes the lock, so that no signal handler can raise between that and the `try`
        for taken in iter(partial(self._starting.acquire, False), None):
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
                self._starting.release()
            break
        self._grounded = False
        return True

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
        with self._journey:
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
                self._store.trade(self.member, last)
            except Exception as error:
                log.debug("%s did not hear the last word of %s: %r", self.name, self.member, error)

    def wait(self) -> bool:
        """Wait for the next journey: is there one?"""
        delay = EVERY * (0.75 + 0.5 * self._chance.random())
        if self._failures:
            delay = max(delay, TROUBLE.delay(self._failures, self._chance))
        began = MACHINE.now()
        while not self.over:
            due = began + (LEAST if self._hurry and not self._failures else delay)
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
        """One journey: offers to the store, answers back; never two at once."""
        with self._journey:
            if self._under_way:  # a signal handler or a finalizer has come here from within it
                return
            self._under_way = True
            try:
                self._travel()
            finally:
                self._under_way = False

    def _travel(self) -> None:
        parties, began = self._parties.alive(), MACHINE.now()
        offers = [party.offer(began) for party in parties]
        self.journeys += 1
        try:
            answers = self._store.trade(self.member, offers)
        except Exception as error:
            self._failures += 1
            for party in parties:
                party.unheard()
            if not self.over:
                self._say(error)
            return
        if not self._under_way:
            return  # it was closed from within
        self._failures = 0
        self._say(None)
        for party, answer in zip(parties, answers, strict=True):
            party.take(answer, began + GOOD)

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


def _go(courier: ref[Courier]) -> None:
    """The thread; it does not keep its courier alive.

    A child makes its first journey at once, without the usual pause.
    """
    while True:
        here = courier()
        if here is None:
            return
        try:
            if here.over or (here.journeys and not here.wait()):
                return
            here.travel()
        except Exception:
            log.exception("%s: a journey has failed, and the next one follows", here.name)
        del here
