"""One dependency on one clock: its weather and its room behind one lock, with a bell for each waiter.

Everything that is decided is decided in `abate.admit.weather` (how much may be sent) and `abate.admit.room` (who goes
next). What is decided here:

* There is no thread in the background. Of those who wait in one event loop, one looks after the time for all who wait,
  wherever they do; and so does one of the threads. A loop that stands still keeps nobody from going.
* A ticket is for a waiter that is awake. A task that does not pick it up within `PICK_UP` seconds has missed its turn,
  and so have all others of its loop: the next one goes, and those ask again when they wake. A thread always wakes.
* **Slow is not down.** A call is refused only where an attempt has failed since it came. Where nothing has, a call
  whose time to wait is over is sent, whatever the limit.
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
MISSED = "missed"
"""The answer to a waiter that was asleep when its turn came: it may ask again."""
PICK_UP = 0.25
"""Seconds for which a ticket is kept for the waiter that it was given to."""
TIDY = 1.0
"""Seconds after its time at which a waiter is taken to be asleep, and between two looks for such."""
UNCOUNTED = -1
"""The epoch of a ticket that takes no place, and whose end frees none."""


class Alone:
    """One thread at a time behind a door; the answer to entering is whether this thread is there already.

    It may be, where the collector finalizes an abandoned call in there, or a signal handler makes one. What such a call
    has to say waits in `Door.unfinished` until the door is free.
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
        door, last = self._door, self._depth == 1
        finished = door.finish() if last and door.unfinished else None
        self._depth -= 1
        self._lock.release()
        if finished is not None:
            door.finished(*finished)
        if last and door.unfinished:  # it came after the last look
            with self:
                pass


class Door:
    """One dependency on one clock: what is known about it, and who waits for it."""

    __slots__ = (
        "__weakref__",
        "_alone",
        "_asleep",
        "_barred",
        "_calmed",
        "_ceiling",
        "_handed",
        "_leaders",
        "_name",
        "_patience",
        "_room",
        "_swept",
        "_tidied",
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
        self.unfinished: deque[Callable[[], list[Waiter]]] = deque()
        """What was said by code that runs within this very door: it is done when the door is free."""
        self.weather = Weather(chance, clock.now(), patience)
        self._room = Room(capacity)
        self._leaders: dict[object, Waiter] = {}  # in each place, the one who looks after the time
        self._handed: deque[tuple[float, Waiter]] = deque()  # who was given a ticket, and when
        self._asleep: set[int] = set()  # the places, by their ids, where one was not picked up
        self._swept = self._tidied = -inf
        self._barred, self._ceiling = -inf, inf  # what others say: nothing before then, and no more in flight
        self.last_error: Exception | None = None

    @property
    def waiters(self) -> int:
        """How many calls wait."""
        with self._alone as nested:
            if not nested:
                self._tidy(self.clock.now())
            return self._room.size

    # -- before an attempt

    def knock(self, now: float, began: float, left: float | None, first: bool, by: str = "") -> Ticket | Waiter | str:
        """Ask for an attempt of a call that has so many seconds left: a ticket, a waiter for one, or why neither."""
        rung: list[Waiter] = []
        with self._alone as nested:
            if nested:
                # who waited here would wait for the very code that it has interrupted
                return Ticket(UNCOUNTED, now)
            before = self.weather.state
            if self._handed:
                rung = self._admit(now)
            if first:
                self.weather.offered(now)
            answer = self._answer(now, began, left)
            if isinstance(answer, Waiter):
                self._room.add(answer, now, first)
                rung += self._admit(now)
        self.ring(rung)
        if self.weather.state != before or isinstance(answer, Waiter):
            self._tell(before, by)
        return answer

    def _answer(self, now: float, began: float, left: float | None) -> Ticket | Waiter | str:
        weather, room = self.weather, self._room
        if not room.size and now >= self._due():
            return weather.send(now)
        if room.full:
            self._tidy(now)
        if room.full:
            fine = self._fine_since(now - self._patience, now)
            return weather.send(now) if fine else FULL
        weather.held_back(now)
        end = inf if left is None else now + left
        deadline = min(end, now + self._patience)
        if weather.shut() >= deadline:
            return SHUT
        # where nothing fails it is held back for as long as there is time for an answer still
        latest = deadline if left is None else now + max(left / 2, left - weather.answers_in(left))
        return Waiter(began, deadline, end, min(deadline, latest))

    def due(self, waiter: Waiter) -> float:
        """The instant at which a waiter should look for itself."""
        with self._alone:
            place = self._awake(waiter)
            leader = self._leaders.get(place)
            if leader is None or leader.answer is not None:
                leader = self._leaders[place] = waiter
            if leader is not waiter:
                return waiter.latest
            waiter.alarm = min(waiter.latest, self._alarm())
            return waiter.alarm

    def look(self, waiter: Waiter, now: float) -> None:
        """A waiter has woken by itself: somebody may go by now, or its own time is over."""
        with self._alone:
            self._awake(waiter)
            rung = self._admit(now)
            if waiter.answer is None and now >= waiter.latest:
                waiter.answer = self._overdue(waiter, now)
                if waiter.answer is None:
                    waiter.latest = waiter.deadline  # something has failed: it waits as long as it can
                else:
                    self._room.remove(waiter)
        self.ring([other for other in rung if other is not waiter])

    def picked_up(self, waiter: Waiter) -> bool:
        """A waiter has found its answer: is it over, or does it have to wait on, as it has missed its turn?"""
        with self._alone:
            now, rung = self.clock.now(), []
            self._awake(waiter)
            if waiter.answer is MISSED:
                if now >= waiter.deadline:
                    waiter.answer = self._overdue(waiter, now)
                else:
                    waiter.answer = None
                    self._room.add_again(waiter, now)
                    rung = self._admit(now)
            # while it was looked for, its turn may have come and gone once more
            waiter.picked = waiter.answer is not None and waiter.answer is not MISSED
            if waiter.picked:
                rung += self._followed(waiter)
                while self._handed and self._handed[0][1].picked:
                    self._handed.popleft()
        self.ring([other for other in rung if other is not waiter])
        return waiter.picked

    def leave(self, waiter: Waiter, now: float) -> None:
        """A waiter does not want to wait any longer, whether or not it has a ticket by now."""
        with self._alone as nested:
            if nested:
                self.unfinished.append(lambda: self._left(waiter, now))
                return
            rung = self._left(waiter, now)
        self.ring([other for other in rung if other is not waiter])

    def _left(self, waiter: Waiter, now: float) -> list[Waiter]:
        rung: list[Waiter] = []
        if waiter.answer is None:
            self._turn_away(waiter, LATE)
        elif isinstance(waiter.answer, Ticket) and waiter.answer.out:
            self.weather.void(waiter.answer, now)
            rung = self._admit(now)
        return rung + self._followed(waiter)

    # -- after it

    def answered(self, ticket: Ticket | None, now: float, by: str) -> None:
        """The server has answered."""
        with self._alone as nested:
            if nested:
                self.unfinished.append(lambda: self._answered(ticket, now))
                return
            before = self.weather.state
            rung = self._answered(ticket, now)
        self.ring(rung)
        self._tell(before, by)

    def _answered(self, ticket: Ticket | None, now: float) -> list[Waiter]:
        self.weather.good(ticket, now, self._room.size)
        if self.weather.calm:
            self.last_error = None
        return self._admit(now)

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
        taken: bool = False,
    ) -> float:
        """An attempt has failed; the answer is for how many seconds no attempt is sent."""
        with self._alone as nested:
            if nested:
                self.unfinished.append(lambda: self._failed(ticket, now, plan, until, error, hearsay, retry, taken))
                return 0.0
            before = self.weather.state
            rung = self._failed(ticket, now, plan, until, error, hearsay, retry, taken)
            shut = self.weather.shut()
        self.ring(rung)
        self._tell(before, by)
        return max(0.0, shut - now)

    def _failed(
        self,
        ticket: Ticket | None,
        now: float,
        plan: Schedule,
        until: float | None,
        error: Exception | None,
        hearsay: bool,
        retry: int,
        taken: bool,
    ) -> list[Waiter]:
        self.weather.bad(ticket, now, plan, until, hearsay, retry, taken)
        if error is not None:
            self.last_error = error
        shut = self.weather.shut()
        rung: list[Waiter] = []
        if shut > self._swept:  # who came after that was asked at the door
            self._swept = shut
            rung += self._room.hopeless(shut)
        for waiter in rung:
            self._turn_away(waiter, SHUT)
        return rung + self._admit(now)

    def void(self, ticket: Ticket | None, now: float, doubt: bool = False) -> None:
        """An attempt was broken off, and tells nothing; where there is `doubt`, those after it are counted."""
        if ticket is None and not doubt:
            return
        with self._alone as nested:
            if nested:
                self.unfinished.append(lambda: self._voided(ticket, now, doubt))
                return
            before = self.weather.state
            rung = self._voided(ticket, now, doubt)
        self.ring(rung)
        if doubt:
            self._tell(before, self._name)

    def _voided(self, ticket: Ticket | None, now: float, doubt: bool = False) -> list[Waiter]:
        if ticket is not None:
            self.weather.void(ticket, now, sent=True)
        if doubt:
            self.weather.doubt(now)
        return self._admit(now)

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

    def finish(self) -> tuple[list[Waiter], State]:
        """Do what could not be done at once, with the lock: who is to be woken, and how it was before."""
        rung: list[Waiter] = []
        before = self.weather.state
        while self.unfinished:
            rung += self.unfinished.popleft()()
        return rung, before

    def finished(self, rung: list[Waiter], before: State) -> None:
        """The rest of it, without the lock."""
        self.ring(rung)
        self._tell(before, self._name)

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
        rung = self._reclaim(now)
        self._tidy(now)
        if not room.size:
            self._asleep.clear()
            return rung
        weather.held_back(now)
        while room.size and now >= self._due():
            waiter = room.next(now)
            assert waiter is not None
            rung.append(waiter)
            if now > waiter.deadline or (waiter.bell is not None and id(waiter.bell.place) in self._asleep):
                waiter.answer = MISSED
            elif weather.answers_by(now) < waiter.end or self._fine_since(waiter.line[0], now):
                waiter.answer = weather.send(now)
                if waiter.bell is None or waiter.bell.place is not None:
                    self._handed.append((now, waiter))
            else:
                waiter.answer = LATE  # who could not wait for the answer would waste the server's time
        return rung + self._led()

    def _reclaim(self, now: float) -> list[Waiter]:
        """Take tickets back that nobody has picked up; those who had them are to be woken, if they ever hear it."""
        missed: list[Waiter] = []
        while self._handed:
            handed, waiter = self._handed[0]
            ticket = waiter.answer
            if not waiter.picked and isinstance(ticket, Ticket) and ticket.out:
                if now < handed + PICK_UP:
                    break
                self.weather.void(ticket, now)
                waiter.answer = MISSED
                missed.append(waiter)
                self._forget(waiter)
                if waiter.bell is not None:
                    self._asleep.add(id(waiter.bell.place))
            self._handed.popleft()
        return missed

    def _tidy(self, now: float) -> None:
        """Now and then, take those for asleep who should have gone long since: they don't wait any more.

        Nothing here refers to them from then on, so that a loop which was dropped with its tasks can be collected.
        """
        if now >= self._tidied + TIDY:
            self._tidied = now
            asleep = self._room.hopeless(now - TIDY)
            for waiter in asleep:
                self._turn_away(waiter, MISSED)
                self._forget(waiter)
            if asleep:
                self._room.sweep()

    def _forget(self, waiter: Waiter) -> None:
        """One that is asleep does not look after the time; whoever wakes first in its place does."""
        place = None if waiter.bell is None else waiter.bell.place
        if self._leaders.get(place) is waiter:
            del self._leaders[place]

    def _fine_since(self, since: float, now: float) -> bool:
        """Has nothing failed since then, as far as this process knows or is told, and is nothing to be waited for?"""
        told = now < self._barred or self.weather.in_flight + 1 > self._ceiling
        return not told and self.weather.failed < since and self.weather.shut() <= now

    def _overdue(self, waiter: Waiter, now: float) -> Ticket | str | None:
        """What becomes of one whose time to wait is over, or for which it is high time: None to wait on."""
        # in calm, one failure is a blip
        since = inf if self.weather.state == "calm" else waiter.line[0]
        if now < waiter.end and self._fine_since(since, now):
            return self.weather.send(now)
        return LATE if now >= waiter.deadline else None

    def _awake(self, waiter: Waiter) -> object:
        """This waiter is awake, and so are those in its place."""
        place = None if waiter.bell is None else waiter.bell.place
        self._asleep.discard(id(place))
        return place

    def _followed(self, waiter: Waiter) -> list[Waiter]:
        """One who looked after the time is gone: another one in its place is to be woken, and takes over."""
        place = None if waiter.bell is None else waiter.bell.place
        if self._leaders.get(place) is not waiter:
            return []
        heir = self._room.waiting_in(place)
        if heir is None:
            del self._leaders[place]
            return []
        self._leaders[place] = heir
        heir.alarm = -inf  # it looks as soon as it wakes
        return [heir]

    def _led(self) -> list[Waiter]:
        """See that somebody looks after the time in every place: who is to be woken for it."""
        due, rung = self._alarm(), []
        for leader in self._leaders.values():
            if leader.answer is None and due < leader.alarm:
                leader.alarm = due
                rung.append(leader)
        return rung

    def _alarm(self) -> float:
        """The instant at which there is something to do, if nothing else happens."""
        due = self._due()
        return min(due, self._handed[0][0] + PICK_UP) if self._handed else due

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
        """Wake these; one whose loop is over gives back what it has got, and others are woken for it."""
        left = deque(waiters)
        while left:
            waiter = left.popleft()
            # without a bell it has not begun to wait, and will see its answer first
            if waiter.bell is not None and not waiter.bell.ring():
                with self._alone:
                    left += self._left(waiter, self.clock.now())

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
        for waiter in self._room.hopeless(inf):
            waiter.answer = LATE  # so that it leaves the room of the parent, when its task is collected here
        self._room = Room(self._room.capacity)
        self._leaders.clear()
        self._handed.clear()
        self._asleep.clear()
        self._barred, self._ceiling = -inf, inf  # said to the parent
        self.weather.in_flight = 0
        self.weather.epoch += 1  # an attempt that goes on in the child is not counted there
