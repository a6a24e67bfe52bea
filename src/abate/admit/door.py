"""One dependency on one clock: its weather and its room in one section, with a bell for each waiter.

Everything that is decided is decided in `abate.admit.weather` (how much may be sent) and `abate.admit.room` (who goes
next). What is decided here:

* There is no thread in the background. Of those who wait in one event loop, one looks after the time for all who wait,
  wherever they do; and so does one of the threads. A loop that stands still keeps nobody from going.
* A ticket is for a waiter that is awake. A task that does not pick it up within `PICK_UP` seconds has missed its turn,
  and so have all others of its loop: the next one goes, and those ask again when they wake. A thread always wakes.
* **Slow is not down.** A call is refused only where an attempt has failed since it came. Where nothing has, a call
  whose time to wait is over is sent, whatever the limit.
* What is said by code that runs in the middle of an operation of its own thread (a finalizer, a signal handler) is left
  for that operation. A call that is made there does not wait: it gets a ticket that takes no place.
* An exception that a signal handler raises takes nothing along: a ticket counts once, until it is not `out` any more,
  and to give back twice is the same as once. Who is to be woken is noted before it has its answer, and what is noted is
  done by the next operation if it was not done by this one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

from abate import events
from abate.admit.room import Room, Waiter
from abate.admit.weather import State, Ticket, Weather
from abate.clock import Clock
from abate.errors import Refused
from abate.locks import Section
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


class Door:
    """One dependency on one clock: what is known about it, and who waits for it."""

    __slots__ = (
        "__weakref__",
        "_asleep",
        "_barred",
        "_calmed",
        "_ceiling",
        "_handed",
        "_leaders",
        "_name",
        "_news",
        "_noted",
        "_patience",
        "_room",
        "_rung",
        "_section",
        "_swept",
        "_tidied",
        "_waking",
        "clock",
        "last_error",
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
        self._section = Section()
        self.weather = Weather(chance, clock.now(), patience)
        self._room = Room(capacity)
        self._leaders: dict[object, Waiter] = {}  # in each place, the one who looks after the time
        self._handed: deque[tuple[float, Waiter]] = deque()  # who was given a ticket, and when
        self._asleep: set[int] = set()  # the places, by their ids, where one was not picked up
        self._rung: deque[Waiter] = deque()  # who is to be woken, outside of the section
        self._waking = iter(self._rung.popleft, None)
        self._noted: State = self.weather.state
        self._news: deque[tuple[str, State, int, float]] = deque()  # changes of the state, to be told outside of it
        self._swept = self._tidied = -inf
        self._barred, self._ceiling = -inf, inf  # what others say: nothing before then, and no more in flight
        self.last_error: Exception | None = None

    @property
    def waiters(self) -> int:
        """How many calls wait."""
        return self._section.ask(self._count, otherwise=self._counted)

    def _count(self) -> int:
        self._tidy(self.clock.now())
        return self._room.size

    def _counted(self) -> int:
        return self._room.size

    # -- before an attempt

    def knock(self, now: float, began: float, left: float | None, first: bool, by: str = "") -> Ticket | Waiter | str:
        """Ask for an attempt of a call that has so many seconds left: a ticket, a waiter for one, or why neither."""
        got: list[Ticket | Waiter] = []
        try:
            answer = self._section.ask(self._knocked, now, began, left, first, by, got, otherwise=_uncounted)
            if answer.__class__ is Waiter or self._rung or self._news:
                self._tell(calmed=answer.__class__ is Waiter)
        except BaseException:
            for one in got:
                self._take_back(one)
            raise
        return answer

    def _knocked(
        self, now: float, began: float, left: float | None, first: bool, by: str, got: list[Ticket | Waiter]
    ) -> Ticket | Waiter | str:
        if self._handed:
            self._admit(now)
        if first:
            self.weather.offered(now)
        answer = self._answer(now, began, left)
        if answer.__class__ is not str:
            got.append(answer)  # type: ignore[arg-type]
        if isinstance(answer, Waiter):
            self._room.add(answer, now, first)
            self._admit(now)
        self._note(by)
        return answer

    def _take_back(self, given: Ticket | Waiter) -> None:
        """Take back what a call was given that an exception has ended before it knew."""
        if isinstance(given, Waiter):
            self.leave(given, self.clock.now())
        else:
            self.void(given, self.clock.now())

    def _answer(self, now: float, began: float, left: float | None) -> Ticket | Waiter | str:
        weather, room = self.weather, self._room
        if not room.size and now >= self._due():
            return self._send(now)
        if room.full:
            self._tidy(now)
        if room.full:
            fine = self._fine_since(now - self._patience, now)
            return self._send(now) if fine else FULL
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
        return self._section.ask(self._due_for, waiter, otherwise=self._soon)

    def _due_for(self, waiter: Waiter) -> float:
        place = self._awake(waiter)
        leader = self._leaders.get(place)
        if leader is None or leader.answer is not None:
            leader = self._leaders[place] = waiter
        if leader is not waiter:
            return waiter.latest
        waiter.alarm = min(waiter.latest, self._alarm())
        return waiter.alarm

    def _soon(self, waiter: Waiter) -> float:
        return self.clock.now() + PICK_UP

    def look(self, waiter: Waiter, now: float) -> None:
        """A waiter has woken by itself: somebody may go by now, or its own time is over."""
        try:
            self._section.run(self._looked, waiter, now)
        finally:
            self._wake(waiter)

    def _looked(self, waiter: Waiter, now: float) -> None:
        self._awake(waiter)
        self._admit(now)
        if waiter.answer is None and now >= waiter.latest:
            self._overdue(waiter, now)
            if waiter.answer is None:
                waiter.latest = waiter.deadline  # something has failed: it waits as long as it can

    def picked_up(self, waiter: Waiter) -> bool:
        """A waiter has found its answer: is it over, or does it have to wait on, as it has missed its turn?"""
        try:
            return self._section.ask(self._pick_up, waiter, otherwise=_not_yet)
        finally:
            self._wake(waiter)

    def _pick_up(self, waiter: Waiter) -> bool:
        now = self.clock.now()
        self._awake(waiter)
        if waiter.answer is MISSED:
            if now >= waiter.deadline:
                self._overdue(waiter, now)
            else:
                self._room.add_again(waiter, now)
                self._admit(now)
        # while it was looked for, its turn may have come and gone once more
        waiter.picked = waiter.answer is not None and waiter.answer is not MISSED
        if waiter.picked:
            self._followed(waiter)
            while self._handed and self._handed[0][1].picked:
                del self._handed[0]
        return waiter.picked

    def leave(self, waiter: Waiter, now: float) -> None:
        """A waiter does not want to wait any longer, whether or not it has a ticket by now."""
        try:
            self._section.run(self._left, waiter, now)
        finally:
            self._wake(waiter)

    def _left(self, waiter: Waiter, now: float) -> None:
        if waiter.answer is None:
            self._room.remove(waiter, LATE)
        elif isinstance(waiter.answer, Ticket) and waiter.answer.out:
            self.weather.void(waiter.answer, now)
            self._admit(now)
        self._followed(waiter)

    # -- after it

    def answered(self, ticket: Ticket | None, now: float, by: str) -> None:
        """The server has answered."""
        try:
            self._section.run(self._answered, ticket, now, by)
        finally:
            self._tell()

    def _answered(self, ticket: Ticket | None, now: float, by: str) -> None:
        if ticket is None or ticket.out:
            self.weather.good(ticket, now, self._room.size)
        if self.weather.calm:
            self.last_error = None
        self._admit(now)
        self._note(by)

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
        told = (ticket, now, plan, until, error, hearsay, by, retry, taken)
        try:
            return self._section.ask(self._failed, *told, otherwise=self._failed_within)
        finally:
            self._tell()

    def _failed(
        self,
        ticket: Ticket | None,
        now: float,
        plan: Schedule,
        until: float | None,
        error: Exception | None,
        hearsay: bool,
        by: str,
        retry: int,
        taken: bool,
    ) -> float:
        if ticket is None or ticket.out:
            self.weather.bad(ticket, now, plan, until, hearsay, retry, taken)
        if error is not None:
            self.last_error = error
        shut = self.weather.shut()
        if shut > self._swept:  # who came after that was asked at the door
            for waiter in self._room.hopeless(shut):
                self._rung.append(waiter)
                self._room.remove(waiter, SHUT)
            self._swept = shut
        self._admit(now)
        self._note(by)
        return max(0.0, shut - now)

    def _failed_within(self, *told: Any) -> float:
        """Take a failure down while this thread is in the middle of another operation."""
        self._section.run(self._failed, *told)
        return 0.0

    def void(self, ticket: Ticket | None, now: float, doubt: bool = False) -> None:
        """An attempt was broken off, and tells nothing; where there is `doubt`, those after it are counted."""
        try:
            if ticket is not None or doubt:
                self._section.run(self._voided, ticket, now, doubt)
        finally:
            if doubt:
                self._tell()
            elif self._rung:
                self._wake()

    def _voided(self, ticket: Ticket | None, now: float, doubt: bool) -> None:
        if ticket is not None and ticket.out:
            self.weather.void(ticket, now, sent=True)
        if doubt:
            self.weather.doubt(now)
        self._admit(now)

    def heed(self, down: bool, barred: float, ceiling: float, peers: int = 1) -> None:
        """Go by what others know: is it down, until when to send nothing, how much may be in flight here, and for how
        many processes this one probes.
        """
        try:
            self._section.run(self._heeded, down, barred, ceiling, peers)
        finally:
            self._tell()

    def _heeded(self, down: bool, barred: float, ceiling: float, peers: int) -> None:
        now = self.clock.now()
        self._barred, self._ceiling = barred, ceiling
        if down:
            self.weather.warned(now, peers)
        self._admit(now)
        self._note(self._name)

    def refusal(self, why: str) -> Refused:
        """The error for a first attempt that is not sent."""
        if why == FULL:
            return Refused(self._name, f"{self._room.capacity} calls wait already")
        if why == SHUT:
            return Refused(
                self._name, "the dependency is down, and no attempt can be made before the call's time is over"
            )
        return Refused(self._name, "the dependency is down, and the call's turn did not come in time")

    # -- within the section

    def _send(self, now: float) -> Ticket:
        """Send an attempt; whoever calls this keeps its ticket at once, without a call before."""
        in_flight = self.weather.in_flight
        try:
            return self.weather.send(now)
        except BaseException:
            self.weather.in_flight = in_flight  # there is no ticket that would free it
            raise

    def _note(self, by: str) -> None:
        """Note that the state has changed, to be told outside."""
        state = self.weather.state
        if state != self._noted:
            self._noted = state
            self._news.append((by, state, self._room.size, self.weather.limit))

    def _admit(self, now: float) -> None:
        """Let in who may go, and see that somebody looks after the time; those are to be woken."""
        weather, room = self.weather, self._room
        self._reclaim(now)
        self._tidy(now)
        if not room.size:
            self._asleep.clear()
            return
        weather.held_back(now)
        while room.size and now >= self._due():
            waiter = room.next(now, weather.chance() if weather.erring else None)
            assert waiter is not None
            self._rung.append(waiter)
            if now > waiter.deadline or (waiter.bell is not None and id(waiter.bell.place) in self._asleep):
                room.remove(waiter, MISSED)
            elif weather.answers_by(now) < waiter.end or self._fine_since(waiter.line[0], now):
                self._hand(waiter, now)
                if waiter.bell is None or waiter.bell.place is not None:
                    self._handed.append((now, waiter))
            else:
                room.remove(waiter, LATE)  # who could not wait for the answer would waste the server's time
        room.trim()
        self._led()

    def _hand(self, waiter: Waiter, now: float) -> None:
        """Let a waiter go."""
        room = self._room
        waiter.answer = self._send(now)
        if waiter.inside:
            # as `Room.remove` does, without a call that could be broken off before it begins
            waiter.inside = False
            room.size -= 1
            room.gone += 1

    def _reclaim(self, now: float) -> None:
        """Take tickets back that nobody has picked up; those who had them are to be woken, if they ever hear it."""
        while self._handed:
            handed, waiter = self._handed[0]
            ticket = waiter.answer
            if not waiter.picked and isinstance(ticket, Ticket) and ticket.out:
                if now < handed + PICK_UP:
                    break
                self._rung.append(waiter)
                self._forget(waiter)
                if waiter.bell is not None:
                    self._asleep.add(id(waiter.bell.place))
                self.weather.void(ticket, now)
                waiter.answer = MISSED
            del self._handed[0]

    def _tidy(self, now: float) -> None:
        """Now and then, take those for asleep who should have gone long since: they don't wait any more.

        Nothing here refers to them from then on, so that a loop which was dropped with its tasks can be collected.
        """
        if now >= self._tidied + TIDY:
            self._tidied = now
            asleep = self._room.hopeless(now - TIDY)
            for waiter in asleep:
                self._room.remove(waiter, MISSED)
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

    def _overdue(self, waiter: Waiter, now: float) -> None:
        """Let one go, or turn it away, whose time to wait is over; or for which it is high time, and may wait on."""
        # in calm, one failure is a blip
        since = inf if self.weather.state == "calm" else waiter.line[0]
        if now < waiter.end and self._fine_since(since, now):
            self._hand(waiter, now)
        elif now >= waiter.deadline:
            self._room.remove(waiter, LATE)

    def _awake(self, waiter: Waiter) -> object:
        """This waiter is awake, and so are those in its place."""
        place = None if waiter.bell is None else waiter.bell.place
        self._asleep.discard(id(place))
        return place

    def _followed(self, waiter: Waiter) -> None:
        """One who looked after the time is gone: another one in its place is to be woken, and takes over."""
        place = None if waiter.bell is None else waiter.bell.place
        if self._leaders.get(place) is not waiter:
            return
        heir = self._room.waiting_in(place)
        if heir is None:
            del self._leaders[place]
            return
        self._rung.append(heir)
        heir.alarm = -inf  # it looks as soon as it wakes
        self._leaders[place] = heir

    def _led(self) -> None:
        """See that somebody looks after the time in every place: who is to be woken for it."""
        due = self._alarm()
        for leader in self._leaders.values():
            if leader.answer is None and due < leader.alarm:
                self._rung.append(leader)
                leader.alarm = due

    def _alarm(self) -> float:
        """The instant at which there is something to do, if nothing else happens."""
        due = self._due()
        return min(due, self._handed[0][0] + PICK_UP) if self._handed else due

    def _due(self) -> float:
        """The instant from which there is room for one more attempt, if nothing else happens."""
        if self.weather.in_flight + 1 > self._ceiling:
            return inf  # until an answer, or other news
        return max(self.weather.due(), self._barred)

    # -- outside of it

    def _wake(self, awake: Waiter | None = None) -> None:
        """Wake who is to be woken; `awake` is awake. One whose loop is over gives back what it has got."""
        while self._rung:
            try:
                for waiter in self._waking:  # pragma: no branch  # it takes one out; no handler comes before the `try`
                    try:
                        # without a bell it has not begun to wait, and will see its answer first
                        heard = waiter is awake or waiter.bell is None or waiter.bell.ring()
                    except BaseException:
                        self._rung.append(waiter)
                        raise
                    if not heard:
                        self._section.run(self._left, waiter, self.clock.now())
                    break
            except IndexError:
                break  # another thread does it

    def _tell(self, calmed: bool = True) -> None:
        """Wake, and say what has changed, to those who listen and to the stand-ins that need not come here in calm."""
        try:
            self._wake()
        finally:
            if self._calmed is not None and (calmed or self._news):
                self._calmed(self.weather.calm)
            while self._news:
                try:
                    by, state, waiting, limit = self._news.popleft()
                except IndexError:
                    break  # another thread does it
                if events.sinks:
                    events.emit(events.ShelterChanged(by, self._name, state, waiting, limit))

    def guard(self) -> None:
        """From here on stand-ins have to ask, as there are virtual clocks."""
        if self._calmed is not None:
            self._calmed(False)

    def after_fork(self) -> None:
        """Who waited or was in flight in another thread is not in the child."""
        self._section.after_fork()
        self._rung.clear()
        self._news.clear()
        for waiter in self._room.hopeless(inf):
            waiter.inside = False
            waiter.answer = LATE  # so that it leaves the room of the parent, when its task is collected here
        self._room = Room(self._room.capacity)
        self._leaders.clear()
        self._handed.clear()
        self._asleep.clear()
        self._barred, self._ceiling = -inf, inf  # said to the parent
        self.weather.in_flight = 0
        self.weather.epoch += 1  # an attempt that goes on in the child is not counted there


def _uncounted(now: float, *_: object) -> Ticket:
    """Send a call that has interrupted an operation of its own thread: it would wait for what it has interrupted."""
    return Ticket(UNCOUNTED, now)


def _not_yet(_: Waiter) -> bool:
    """Look again soon."""
    return False
