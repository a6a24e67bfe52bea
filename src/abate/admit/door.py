"""One dependency on one clock: its weather and its room behind one lock, with a bell for each waiter.

Everything that is decided is decided in `abate.admit.weather` (how much may be sent) and `abate.admit.room` (who goes
next). There is no thread in the background: of those who wait, the first looks after the time for all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from threading import RLock

from abate import events
from abate.admit.room import Room, Waiter
from abate.admit.weather import State, Ticket, Weather
from abate.clock import Clock
from abate.errors import Refused
from abate.schedule.backoff import Schedule, Uniform

FULL, SHUT, LATE = "full", "shut", "late"
"""Why a call gets no ticket: too many wait, it will not open in time, its turn did not come in time."""


class Alone:
    """One thread at a time behind a door; the answer to entering is whether this thread is there already.

    It may be, when garbage is collected in there, and with it a call that was given up half-way. What such a call has
    to return waits until the door is free.
    """

    __slots__ = ("_depth", "_door", "_lock")

    def __init__(self, door: Door) -> None:
        self._door = door
        self._lock = RLock()
        self._depth = 0

    def __enter__(self) -> bool:
        self._lock.acquire()
        self._depth += 1
        return self._depth > 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        rung = self._door.finish() if self._depth == 1 and self._door.unfinished else None
        self._depth -= 1
        self._lock.release()
        if rung:
            self._door.ring(rung)


class Door:
    """One dependency on one clock: what is known about it, and who waits for it."""

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_alone",
        "_barred",
        "_calmed",
        "_ceiling",
        "_leader",
        "_name",
        "_patience",
        "_room",
        "_swept",
        "clock",
        "last_error",
        "unfinished",
        "weather",
    )

    def __init__(
        self,
        name: str,
        capacity: int,
        patience: float,
        chance: Uniform,
        clock: Clock,
        calmed: Callable[[bool], object] | None,
    ) -> None:
        self.clock = clock
        self._name = name
        self._patience = patience
        self._calmed = calmed
        self._alone = Alone(self)
        self.unfinished: deque[Ticket | Waiter] = deque()
        self.weather = Weather(chance, clock.now())
        self._room = Room(capacity)
        self._leader: Waiter | None = None
        self._alarm = inf
        self._swept = -inf
        self._barred, self._ceiling = -inf, inf  # what others say: nothing before then, and no more in flight
        self.last_error: Exception | None = None

    @property
    def waiters(self) -> int:
        """How many calls wait."""
        return self._room.size

    # -- before an attempt

    def knock(self, now: float, began: float, left: float | None, first: bool, by: str = "") -> Ticket | Waiter | str:
        """Ask for an attempt of a call that has so many seconds left: a ticket, a waiter for one, or why neither."""
        rung: list[Waiter] = []
        with self._alone:
            before = self.weather.state
            if first:
                self.weather.offered(now)
            answer = self._answer(now, began, left)
            if isinstance(answer, Waiter):
                self._room.add(answer, now, first)
                rung = self._admit(now)
        self.ring(rung)
        if self.weather.state != before or isinstance(answer, Waiter):
            self._tell(before, by)
        return answer

    def _answer(self, now: float, began: float, left: float | None) -> Ticket | Waiter | str:
        weather, room = self.weather, self._room
        if not room.size and now >= self._due():
            return weather.send(now)
        if room.full:
            return FULL
        weather.held_back(now)
        end = inf if left is None else now + left
        deadline = min(end, now + self._patience)
        return SHUT if weather.shut() >= deadline else Waiter(began, deadline, end)

    def due(self, waiter: Waiter) -> float:
        """The instant at which a waiter should look for itself."""
        with self._alone:
            if self._leader is not waiter:
                return waiter.deadline
            self._alarm = min(waiter.deadline, self._due())
            return self._alarm

    def look(self, waiter: Waiter, now: float) -> None:
        """A waiter has woken by itself: somebody may go by now, or its own time is over."""
        with self._alone:
            rung = self._admit(now)
            if waiter.answer is None and now >= waiter.deadline:
                if self.weather.state == "calm" and self.weather.shut() <= now < waiter.end:
                    # nothing has failed: that little is known yet is no reason to refuse anybody
                    waiter.answer = self.weather.send(now)
                    self._room.remove(waiter)
                else:
                    self._turn_away(waiter, LATE)
                rung += self._led()
        self.ring([other for other in rung if other is not waiter])

    def leave(self, waiter: Waiter, now: float) -> None:
        """A waiter does not want to wait any longer, whether or not it has a ticket by now."""
        with self._alone as nested:
            if nested:
                self.unfinished.append(waiter)
                return
            rung = self._left(waiter, now)
        self.ring([other for other in rung if other is not waiter])

    def _left(self, waiter: Waiter, now: float) -> list[Waiter]:
        if waiter.answer is None:
            self._turn_away(waiter, LATE)
            return self._led()
        if isinstance(waiter.answer, Ticket):
            self.weather.void(waiter.answer, now)
            return self._admit(now)
        return []

    # -- after it

    def answered(self, ticket: Ticket | None, now: float, by: str) -> None:
        """The server has answered."""
        with self._alone:
            before = self.weather.state
            self.weather.good(ticket, now, self._room.size)
            rung = self._admit(now)
            if self.weather.calm:
                self.last_error = None
        self.ring(rung)
        self._tell(before, by)

    def failed(
        self,
        ticket: Ticket | None,
        now: float,
        plan: Schedule,
        until: float | None,
        error: Exception | None,
        hearsay: bool,
        by: str,
        retry: int = 1,
    ) -> float:
        """An attempt has failed; the answer is for how many seconds no attempt is sent."""
        with self._alone:
            before = self.weather.state
            self.weather.bad(ticket, now, plan, until, hearsay, retry)
            if error is not None:
                self.last_error = error
            shut = self.weather.shut()
            rung: list[Waiter] = []
            if shut > self._swept:  # who came after that was asked at the door
                self._swept = shut
                rung += self._room.hopeless(shut)
            for waiter in rung:
                self._turn_away(waiter, SHUT)
            rung += self._admit(now)
        self.ring(rung)
        self._tell(before, by)
        return max(0.0, shut - now)

    def void(self, ticket: Ticket | None, now: float) -> None:
        """An attempt was broken off, and tells nothing."""
        if ticket is None:
            return
        with self._alone as nested:
            if nested:
                self.unfinished.append(ticket)
                return
            self.weather.void(ticket, now)
            rung = self._admit(now)
        self.ring(rung)

    def heed(self, down: bool, barred: float, ceiling: float, peers: int = 1) -> None:
        """Go by what others know: is it down, until when to send nothing, how much may be in flight here, and for how
        many processes this one probes.
        """
        with self._alone:
            now, before = self.clock.now(), self.weather.state
            self._barred, self._ceiling = barred, ceiling
            if down:
                self.weather.warned(now, peers)
            rung = self._admit(now)
        self.ring(rung)
        self._tell(before, self._name)

    def finish(self) -> list[Waiter]:
        """Do what could not be done at once, with the lock: who is to be woken."""
        rung: list[Waiter] = []
        while self.unfinished:
            left, now = self.unfinished.popleft(), self.clock.now()
            if isinstance(left, Waiter):
                rung += self._left(left, now)
            else:
                self.weather.void(left, now)
                rung += self._admit(now)
        return rung

    def refusal(self, why: str) -> Refused:
        """The error for a first attempt that is not sent."""
        if why == FULL:
            return Refused(self._name, f"{self._room.capacity} calls wait already")
        if why == SHUT:
            return Refused(
                self._name, "the dependency is down, and no attempt can be made before the call's time is over"
            )
        return Refused(self._name, "the dependency is down, and the call's turn did not come in time")

    # -- with the lock

    def _admit(self, now: float) -> list[Waiter]:
        """Let in who may go, and see that somebody looks after the time; those are to be woken."""
        weather, room = self.weather, self._room
        rung: list[Waiter] = []
        if not room.size:
            return rung
        weather.held_back(now)
        while room.size and now >= self._due():
            waiter = room.next(now)
            assert waiter is not None
            # who could not wait for the answer would waste the server's time
            waiter.answer = weather.send(now) if weather.answers_by(now) < waiter.end else LATE
            rung.append(waiter)
        return rung + self._led()

    def _led(self) -> list[Waiter]:
        """See that somebody looks after the time for all: who is to be woken for it."""
        if self._leader is None or self._leader.answer is not None:
            self._leader, self._alarm = self._room.leader(), inf
        if self._leader is None or self._due() >= self._alarm:
            return []
        self._alarm = self._due()
        return [self._leader]

    def _due(self) -> float:
        """The instant from which there is room for one more attempt, if nothing else happens."""
        if self.weather.in_flight + 1 > self._ceiling:
            return inf  # until an answer, or other news
        return max(self.weather.due(), self._barred)

    def _turn_away(self, waiter: Waiter, why: str) -> None:
        waiter.answer = why
        self._room.remove(waiter)

    # -- without it

    def ring(self, waiters: list[Waiter]) -> None:
        """Wake these; one whose loop is over gives back what it has got."""
        for waiter in waiters:
            # without a bell it has not begun to wait, and will see its answer first
            if waiter.bell is not None and not waiter.bell.ring():
                self.leave(waiter, self.clock.now())

    def _tell(self, before: State, by: str) -> None:
        """What has changed, to those who listen, and to the stand-ins that need not come here in calm."""
        weather = self.weather
        if self._calmed is not None:
            self._calmed(weather.calm)
        if weather.state != before and events.sinks:
            events.emit(events.ShelterChanged(by, self._name, weather.state, self._room.size, weather.limit))

    def guard(self) -> None:
        """From here on stand-ins have to ask, as there are virtual clocks."""
        if self._calmed is not None:
            self._calmed(False)

    def after_fork(self) -> None:
        """Who waited or was in flight in another thread is not in the child."""
        self._alone = Alone(self)
        self.unfinished.clear()
        self._room = Room(self._room.capacity)
        self._leader = None
        self._barred, self._ceiling = -inf, inf  # said to the parent
        self.weather.in_flight = 0
        self.weather.epoch += 1  # an attempt that goes on in the child is not counted there
