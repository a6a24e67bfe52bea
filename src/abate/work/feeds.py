"""What brings keys to a controller: watches, pollers, and the resync of all keys.

The rules:

* a key that can't be added, as the store fails, is tried again after a growing pause: the feed waits meanwhile, so that
  nothing is lost and nothing piles up. Only a stop breaks that off;
* what no key can be made of is skipped, counted and said in the log: it holds up nothing behind it;
* a feed that raises, or ends, is started again. The pause before that grows from one time to the next, and begins anew
  when a run got further than those before it, or lasted longer than the pause before it. An async generator *object*
  can't be started again: that is said, and shown by `health` as long as the controller runs;
* what is logged of a feed is at most one line of each kind a minute, with the number of those that were left out.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterable, Awaitable, Callable, Hashable, Iterable
from contextlib import AsyncExitStack
from inspect import isawaitable, iscoroutinefunction
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

from abate import clock as clocks
from abate import events
from abate.logs import ERROR, INFO, WARNING, Log
from abate.redact import described, shown
from abate.schedule.backoff import Backoff, Uniform
from abate.schedule.beat import LOOK, LOOKS, SET, SHARE, consistent_jitter, ticks

log = Log("abate.work")

RESTART = Backoff(1.0, 60.0, jitter="equal")
"""How long a feed that failed or ended is left alone, and a key that could not be added."""
STEADY = 60.0
"""Seconds after which a feed that was started again is taken to be well, whatever it has brought."""
SPARING = 60.0
"""Seconds between two lines of the log of one kind."""
TURN = 100
"""Keys that a feed adds before others have a turn."""
LONGEST = 200
"""Characters of an error that are shown by `health`."""

Push = Callable[[Any], Awaitable[None]]
"""Adds a key, and waits for room where there is none."""
Mapping = Callable[[Any], Any]
"""From an event to the keys that it concerns: one key, several, or None."""
Run = Callable[..., Awaitable[Any]]
"""Runs a plain function in a thread."""
Bring = Callable[["Intake"], Awaitable[None]]
"""Brings keys until it ends."""


class Feed(NamedTuple):
    """Something that brings keys, by its name in logs.

    `revives`: does a key that is parked come back to life by it? `lasting`: can it be started again?
    """

    name: str
    bring: Bring
    revives: bool = True
    lasting: bool = True


class Sparing:
    """Logs one line at most per `SPARING` seconds, and says how many it has left out."""

    __slots__ = ("_left_out", "_next")

    def __init__(self) -> None:
        self._next = -inf
        self._left_out = 0

    def say(self, level: int, text: str, *args: object) -> None:
        """Log a line, unless there was one lately."""
        now = clocks.current().now()
        if now < self._next:
            self._left_out += 1
            return
        if self._left_out:
            text, args = text + " (%d more like this since the last line)", (*args, self._left_out)
        self._next, self._left_out = now + SPARING, 0
        log.log(level, text, *args)


class Intake:
    """One feed in one run of a controller: starts it, starts it again, and adds what it brings."""

    def __init__(self, policy: str, feed: Feed, push: Push, run: Run, chance: Uniform) -> None:
        self._policy = policy
        self.feed = feed
        self._push = push
        self.run = run
        self._chance = chance
        self._failures_said, self._skips_said = Sparing(), Sparing()
        self._trouble: str | None = None
        self._adding = False
        """Does a key wait that could not be added?"""
        self._began: float | None = None
        """Since when the feed runs; None while it doesn't."""
        self._steps = 0
        self.skipped = 0
        """Events and keys that were left out, as no key could be made of them."""

    @property
    def trouble(self) -> str | None:
        """What is wrong with the feed; None if nothing is known to be."""
        if self._began is not None and clocks.current().now() - self._began >= STEADY and not self._adding:
            return None
        return self._trouble

    # -- for feeds

    def step(self) -> None:
        """Note that the feed has got further."""
        self._steps += 1
        self._trouble = None

    async def bring(self, event: Any, keys: Mapping | None = None) -> None:
        """Add the keys that an event concerns; skip it, or what is left of it, if they can't be told."""
        try:
            found = iter(concerned(event, keys))
        except Exception as error:
            self.skip(f"an event of which no key can be told: {described(error)}")
            return
        while True:
            try:
                key = next(found)
            except StopIteration:
                return
            except Exception as error:
                self.skip(f"an event of which no key can be told: {described(error)}")
                return
            await self.add(key)

    async def add(self, key: Any) -> None:
        """Add a key, however often it takes; skip what is no key."""
        try:
            hash(key)
        except Exception:
            self.skip(f"what is no key: a key must be hashable, not {shown(key)}")
            return
        failures = 0
        try:
            while True:
                try:
                    await self._push(key)
                    break
                except (TypeError, ValueError) as error:  # of this key: the others are fine
                    self.skip(f"what is no key: {error}")
                    return
                except Exception as error:
                    failures += 1
                    self._adding = True
                    await self._pause(f"{shown(key)} could not be added", error, failures)
        except asyncio.CancelledError:
            text = "%s: stopped before %s was added, which %s brought"
            log.warning(text, self._policy, shown(key), self.feed.name)
            raise
        finally:
            self._adding = False
        self.step()

    def skip(self, what: str) -> None:
        """Leave something out that no key can be made of."""
        self.skipped += 1
        self._skips_said.say(ERROR, "%s: %s brought %s (skipped)", self._policy, self.feed.name, what)

    # -- for the controller

    async def keep_up(self) -> None:
        """Run the feed, and start it again when it has failed or ended."""
        clock = clocks.current()
        failures, furthest, pause = 0, 0, 0.0
        while True:
            self._began, self._steps = clock.now(), 0
            error = await self._brought()
            if _cancelled():  # and the feed has made nothing of it
                return
            lasted, self._began = clock.now() - self._began, None
            if not self.feed.lasting:
                self._ended_for_good(error)
                return
            got_further = self._steps > furthest
            if got_further or lasted >= STEADY or (lasted >= pause and (self._steps or error is None)):
                failures, furthest = 0, self._steps
            failures += 1
            pause = await self._pause(None, error, failures)

    async def _brought(self) -> Exception | None:
        """Run the feed until it ends: the error by which it did."""
        try:
            await self.feed.bring(self)
        except asyncio.CancelledError:
            if _cancelled():
                raise
            return RuntimeError("it was cancelled, and not by the controller")
        except Exception as error:
            return error
        return None

    async def _pause(self, what: str | None, error: Exception | None, failures: int) -> float:
        """Say what has happened, and wait: for how long."""
        delay = RESTART.delay(failures, self._chance)
        name = self.feed.name
        if error is None:
            self._trouble = "it has ended, and is started again"
            level = INFO if failures == 1 else WARNING
            self._failures_said.say(level, "%s: %s has ended, started again in %.3g s", self._policy, name, delay)
        else:
            self._trouble = described(error)
            then = "started again" if what is None else f"{what}, next try"
            self._failures_said.say(WARNING, "%s: %s failed, %s in %.3g s: %r", self._policy, name, then, delay, error)
            events.emit(events.SourceFailed(self._policy, name, error, delay))
        await clocks.current().asleep(delay)
        return delay

    def _ended_for_good(self, error: Exception | None) -> None:
        """Say that a generator object has ended, which can't be started again."""
        name = self.feed.name
        if error is None:
            self._trouble = "it has ended, and can't be started again"
            text = "%s: %s has ended, and can't be started again: give its function instead"
            log.warning(text, self._policy, name)
            return
        self._trouble = f"it has failed, and can't be started again: {described(error)}"
        text = "%s: %s has failed, and can't be started again: give its function instead"
        log.error(text, self._policy, name, exc_info=error)
        events.emit(events.SourceFailed(self._policy, name, error, inf))


async def watched(source: Any, keys: Mapping | None, intake: Intake) -> None:
    """Add a key, or those that an event concerns, for each thing that an async iterable brings."""
    made = callable(source)
    stream: Any = source() if made else source
    if not isinstance(stream, AsyncIterable):
        raise TypeError(f"a source must be an async generator function or an async iterable, not one of {stream!r}")
    async with AsyncExitStack() as stack:
        close = getattr(stream, "aclose", None)
        if made and close is not None:
            stack.push_async_callback(close)
        async for event in stream:
            await intake.bring(event, keys)


def concerned(event: Any, keys: Mapping | None) -> Iterable[Hashable]:
    """The keys that an event concerns.

    >>> list(concerned("orders/42", None)), list(concerned({"owner": "a"}, lambda event: event["owner"]))
    (['orders/42'], ['a'])
    >>> list(concerned("a", lambda event: [event, "b"])), list(concerned("a", lambda event: None))
    (['a', 'b'], [])
    """
    found = event if keys is None else keys(event)
    if found is None:
        return ()
    if (keys is not None and isinstance(found, (list, set, frozenset))) or hasattr(found, "__next__"):
        return found  # type: ignore[no-any-return]
    return (found,)


async def polled(look: Callable[[], Any], every: float, keys: Mapping | None, intake: Intake) -> None:
    """Ask for keys, or for events, at once and then every so many seconds."""
    async for _ in ticks(every):
        found = await listed(look, intake.run)
        intake.step()
        for event in found:
            await intake.bring(event, keys)


async def resynced(look: Callable[[], Any], period: float, intake: Intake) -> None:
    """Add every key once per period, each at its own consistent offset on the wall clock.

    The offset belongs to the key: replicas agree on it, and a restart doesn't move it. When the wall clock is set, the
    period that it shows begins: those whose turn it has left out have it with the next, and not all at once.
    """
    clock = clocks.current()
    while True:
        wall = Wall(period)
        began = math.floor(wall.start / period) * period
        keys = []
        for key in await listed(look, intake.run):
            try:
                keys.append((consistent_jitter(key, period), key))
            except Exception as error:  # its own `str` fails
                intake.skip(f"what is no key: {described(error)}")
        intake.step()
        # of a period that had begun already, those whose turn is over have it with the next
        due = sorted([one for one in keys if one[0] >= wall.start - began], key=itemgetter(0))
        for number, (offset, key) in enumerate(due):
            if number % TURN == 0:
                await clock.asleep(0.0)
            if not await wall.comes_to(began + offset):
                break
            await intake.add(key)
        else:
            await wall.comes_to(began + period)


class Wall:
    """The wall clock, by which is waited in short steps, as it may be set meanwhile."""

    def __init__(self, period: float) -> None:
        self._clock = clocks.current()
        self._nap = max(LOOK, period / LOOKS)
        self._slack = min(SET, SHARE * period)
        self.start = self._clock.wall()
        self._ahead = self.start - self._clock.now()

    async def comes_to(self, instant: float) -> bool:
        """Wait until that instant: has it come in the clock's own course, so that the clock was not set?"""
        while True:
            wall = self._clock.wall()
            before, self._ahead = self._ahead, wall - self._clock.now()
            if abs(self._ahead - before) > self._slack:
                return False
            if wall >= instant:
                return True
            await self._clock.asleep(min(instant - wall, self._nap))


async def listed(look: Callable[[], Any], run: Run) -> list[Any]:
    """What a function lists: a plain one in a thread, a coroutine function, or an async generator function."""
    found = look() if iscoroutinefunction(look) else await run(look)
    if isawaitable(found):
        found = await found
    if isinstance(found, AsyncIterable):
        return [item async for item in found]
    if isinstance(found, (str, bytes)) or not isinstance(found, Iterable):
        raise TypeError(f"what lists keys must return several of them, such as a list, not {found!r}")
    return list(found)


def _cancelled() -> bool:
    """Was this task cancelled from outside?"""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
