"""The courier: carries what a process shares to its store and back, about once a second, in a thread of its own.

Nobody waits for it. What it brought is good for `GOOD` seconds; whoever shares something and has not heard for longer
(the store is slow, gone, or was never there) goes by its own limits, and that is said once, and once again when it
is over. After a failure the courier goes less often, with jitter, so that a store that comes back is not met by
everybody at once.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Sequence
from threading import Condition, Lock, Thread
from typing import Any, Protocol
from weakref import WeakSet, ref

from abate import events, forks
from abate.clock import MACHINE
from abate.logs import Log
from abate.schedule.backoff import Backoff, Uniform
from abate.stores.fleet.offers import Accounts, Answer, Offer

log = Log("abate.stores")

EVERY = 1.0
"""Seconds between two journeys, give or take a quarter."""
LEAST = 0.55
"""Seconds between two journeys where somebody is in need: no more than two a second."""
GOOD = 3.0
"""Seconds for which an answer is good."""
TROUBLE = Backoff(1.0, 10.0, jitter="equal")
"""How long a store that failed is left alone."""


class Party(Protocol):
    """Something that a process shares with others."""

    def offer(self, now: float) -> Offer:
        """What it brings."""
        ...

    def take(self, answer: Any, until: float) -> None:
        """What it is given, and until when that is good."""

    def unheard(self) -> None:
        """The store has not answered."""

    def closed(self) -> None:
        """There will be no more news."""

    def after_fork(self) -> None:
        """In a child: what it was given is the parent's."""


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
        self._parties: WeakSet[Any] = WeakSet()
        self._failures = 0
        self.degraded = False
        """Has the store failed, so that everybody here is on its own?"""
        self._reset()
        forks.keep(self)

    def _reset(self) -> None:
        self._lock = Lock()
        self._journey = Lock()
        self._news = Condition(self._lock)
        self._thread: Thread | None = None
        self._hurry = False
        self._closed = False
        self.journeys = 0
        self.member = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"

    def after_fork(self) -> None:
        """In the child: another member, with a thread of its own when there is something to carry."""
        self._reset()
        for party in tuple(self._parties):
            party.after_fork()

    def join(self, party: Party) -> None:
        """Carry for this one too, as long as it lives; the first journey is made at once."""
        with self._lock:
            self._parties.add(party)
        self.travel()
        self.start()

    def start(self) -> None:
        """Have a thread that goes again and again."""
        if self._thread is not None or self._closed:
            return
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = Thread(target=_go, args=(ref(self),), name="abate-courier", daemon=True)
                self._thread.start()

    def hurry(self) -> None:
        """Somebody is in need: go as soon as may be."""
        if not self._hurry:
            with self._lock:
                self._hurry = True
                self._news.notify()
        self.start()

    def close(self) -> None:
        """Go once more, to hand in what is held, and then no more."""
        with self._lock:
            going, self._closed = not self._closed and self._thread is not None, True
            self._news.notify()
        if not going:
            return
        with self._journey:
            parties = self._all()
            offers = [party.offer(MACHINE.now()) for party in parties]
            last = [offer._replace(want=0) if isinstance(offer, Accounts) else offer for offer in offers]
            for party in parties:
                party.closed()  # before it is handed in: nobody must use it any more
            try:
                self._store.trade(self.member, last)
            except Exception as error:
                log.debug("%s did not hear the last word of %s: %r", self.name, self.member, error)

    def _all(self) -> tuple[Any, ...]:
        with self._lock:
            return tuple(self._parties)

    def wait(self) -> bool:
        """Wait for the next journey: is there one?"""
        delay = EVERY * (0.75 + 0.5 * self._chance.random())
        if self._failures:
            delay = max(delay, TROUBLE.delay(self._failures, self._chance))
        began = MACHINE.now()
        with self._lock:
            while not self._closed:
                due = began + (LEAST if self._hurry and not self._failures else delay)
                left = due - MACHINE.now()
                if left <= 0:
                    break
                self._news.wait(left)
            self._hurry = False
            if self._closed or not self._parties:
                self._thread = None
                return False
            return True

    def travel(self) -> None:
        """One journey: offers to the store, answers back; never two at once."""
        with self._journey:
            self._travel()

    def _travel(self) -> None:
        parties, began = self._all(), MACHINE.now()
        offers = [party.offer(began) for party in parties]
        self.journeys += 1
        try:
            answers = self._store.trade(self.member, offers)
        except Exception as error:
            self._failures += 1
            for party in parties:
                party.unheard()
            if not self._closed:
                self._say(error)
            return
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
    """The thread; it does not keep its courier alive. In a child it goes at once: others count on what it holds."""
    while True:
        here = courier()
        if here is None:
            return
        try:
            if here.journeys and not here.wait():
                return
            here.travel()
        except Exception:
            log.exception("%s: a journey has failed, and the next one follows", here.name)
        del here
