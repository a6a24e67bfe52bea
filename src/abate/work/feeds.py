"""Runs the feeds of a controller, which add keys: watches, pollers, and the resync of all keys.

The rules:

* An add that fails because the store fails is repeated with a growing delay, until it succeeds or the controller stops.
  The feed waits meanwhile, so that no key is lost and no keys pile up.
* An event without a valid key is skipped, counted and logged.
* A feed that raises or ends is started again, with a growing delay. The delay starts over when a run got further than
  the runs before it, or lasted longer than the delay before it. An async generator *object* can't be started again:
  that is logged, and shown by `health` while the controller runs.
* A feed logs at most one line of each kind a minute, with the number of lines left out.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterable, Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import AsyncExitStack
from inspect import isawaitable, iscoroutinefunction
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

from abate import clock as clocks
from abate import event_sinks, events
from abate.errors import AttemptTimeout
from abate.logs import ERROR, INFO, WARNING, Log
from abate.redact import described, short_repr
from abate.schedule.backoff import Backoff, RandomSource
from abate.schedule.periodic import (
    CLOCK_CHECK_SECONDS,
    CLOCK_CHECKS,
    CLOCK_SET_SECONDS,
    CLOCK_SET_SHARE,
    consistent_jitter,
    ticks,
)

log = Log("abate.work")

RESTART_BACKOFF = Backoff(1.0, 60.0, jitter="equal")
"""Delays before a feed is started again, and before an add is repeated."""
HEALTHY_AFTER = 60.0
"""Seconds after which a feed that was started again counts as healthy, even without a key."""
LOG_INTERVAL = 60.0
"""Seconds between two log lines of one kind."""
YIELD_EVERY = 100
"""Keys that a feed adds before other tasks run."""
FEED_CLOSE_TIMEOUT = 5.0
"""Seconds that feeds have to end when the controller stops; those that don't are left running."""

Push = Callable[[Any], Awaitable[None]]
"""Adds a key; waits while the queue is full."""
KeysOf = Callable[[Any], Any]
"""Maps an event to its keys: one key, several, or None."""
Run = Callable[..., Awaitable[Any]]
"""Runs a plain function in a thread."""
FeedFunction = Callable[["FeedRunner"], Awaitable[None]]
"""Adds keys until it ends."""


class Feed(NamedTuple):
    """A feed of keys, with its name in logs.

    `unparks`: whether it unparks the keys that it adds. `restartable`: whether it can be started again.
    """

    name: str
    produce: FeedFunction
    unparks: bool = True
    restartable: bool = True


class LimitedLog:
    """Logs at most one line per `LOG_INTERVAL` seconds, with the number of lines left out."""

    __slots__ = ("_left_out", "_next")

    def __init__(self) -> None:
        self._next = -inf
        self._left_out = 0

    def say(self, level: int, text: str, *args: object) -> None:
        """Log a line, or count it as left out."""
        now = clocks.current().now()
        if now < self._next:
            self._left_out += 1
            return
        if self._left_out:
            text, args = text + " (%d more like this since the last line)", (*args, self._left_out)
        self._next, self._left_out = now + LOG_INTERVAL, 0
        log.log(level, text, *args)


class FeedRunner:
    """Runs one feed during one run of a controller, restarts it, and adds its keys."""

    def __init__(self, policy: str, feed: Feed, push: Push, run: Run, chance: RandomSource) -> None:
        self._policy = policy
        self.feed = feed
        self._push = push
        self.run = run
        self._rng = chance
        self._failures_said, self._skips_said = LimitedLog(), LimitedLog()
        self._problem: str | None = None
        self._adding = False
        """Whether an add is being repeated."""
        self._began: float | None = None
        """The instant at which the feed was started; None while it does not run."""
        self._steps = 0
        self.skipped = 0
        """Events that were skipped because they had no valid key."""

    @property
    def problem(self) -> str | None:
        """Return what is wrong with the feed; None if it is healthy."""
        if self._began is not None and clocks.current().now() - self._began >= HEALTHY_AFTER and not self._adding:
            return None
        return self._problem

    # -- for feeds

    def note_progress(self) -> None:
        """Note that the feed has made progress."""
        self._steps += 1
        self._problem = None

    async def add_event(self, event: Any, keys: KeysOf | None = None) -> None:
        """Add the keys of an event; skip it, or the rest of it, if `keys` raises."""
        try:
            found = iter(keys_of(event, keys))
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
        """Add a key, and repeat that until it succeeds; skip an invalid key."""
        try:
            hash(key)
        except Exception:
            self.skip(f"what is no key: a key must be hashable, not {short_repr(key)}")
            return
        failures = 0
        try:
            while True:
                try:
                    await self._push(key)
                    break
                except (TypeError, ValueError) as error:  # only this key is invalid
                    self.skip(f"what is no key: {error}")
                    return
                except Exception as error:
                    failures += 1
                    self._adding = True
                    await self._report_and_wait(f"{short_repr(key)} could not be added", error, failures)
        except asyncio.CancelledError:
            text = "%s: stopped before %s was added, which %s brought"
            log.warning(text, self._policy, short_repr(key), self.feed.name)
            raise
        finally:
            self._adding = False
        self.note_progress()

    def skip(self, what: str) -> None:
        """Count and log something that is not a valid key."""
        self.skipped += 1
        self._skips_said.say(ERROR, "%s: %s brought %s (skipped)", self._policy, self.feed.name, what)

    # -- for the controller

    async def run_forever(self) -> None:
        """Run the feed, and start it again when it has failed or ended."""
        clock = clocks.current()
        failures, furthest, pause = 0, 0, 0.0
        while True:
            self._began, self._steps = clock.now(), 0
            error = await self._run_once()
            if _cancelled():  # the feed has swallowed the cancellation
                return
            lasted, self._began = clock.now() - self._began, None
            if not self.feed.restartable:
                self._ended_for_good(error)
                return
            got_further = self._steps > furthest
            if got_further or lasted >= HEALTHY_AFTER or (lasted >= pause and (self._steps or error is None)):
                failures, furthest = 0, self._steps
            failures += 1
            pause = await self._report_and_wait(None, error, failures)

    async def _run_once(self) -> Exception | None:
        """Run the feed until it ends. Return its error, if it raised one."""
        try:
            await self.feed.produce(self)
        except asyncio.CancelledError:
            if _cancelled():
                raise
            return RuntimeError("it was cancelled, and not by the controller")
        except Exception as error:
            return error
        return None

    async def _report_and_wait(self, what: str | None, error: Exception | None, failures: int) -> float:
        """Report what has happened, and wait. Return the delay."""
        delay = RESTART_BACKOFF.delay(failures, self._rng)
        name = self.feed.name
        if error is None:
            self._problem = "it has ended, and is started again"
            level = INFO if failures == 1 else WARNING
            self._failures_said.say(level, "%s: %s has ended, started again in %.3g s", self._policy, name, delay)
        else:
            self._problem = described(error)
            then = "started again" if what is None else f"{what}, next try"
            self._failures_said.say(WARNING, "%s: %s failed, %s in %.3g s: %r", self._policy, name, then, delay, error)
            event_sinks.emit(events.SourceFailed(self._policy, name, error, delay))
        await clocks.current().asleep(delay)
        return delay

    def _ended_for_good(self, error: Exception | None) -> None:
        """Report that a generator object has ended, which can't be started again."""
        name = self.feed.name
        if error is None:
            self._problem = "it has ended, and can't be started again"
            text = "%s: %s has ended, and can't be started again: give its function instead"
            log.warning(text, self._policy, name)
            return
        self._problem = f"it has failed, and can't be started again: {described(error)}"
        text = "%s: %s has failed, and can't be started again: give its function instead"
        log.error(text, self._policy, name, exc_info=error)
        event_sinks.emit(events.SourceFailed(self._policy, name, error, inf))


async def run_all(name: str, runners: Sequence[FeedRunner], stopping: asyncio.Event) -> None:
    """Run feeds until the controller stops. Raise if a runner itself fails."""
    stopped = asyncio.ensure_future(stopping.wait())
    tasks = {stopped, *(asyncio.ensure_future(runner.run_forever()) for runner in runners)}
    try:
        while not stopped.done():
            ended, _ = await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
            for task in ended:
                task.result()  # a feed that can't be started again has ended, or a runner has failed
            tasks -= ended
    finally:
        for task in tasks:
            task.cancel()
        await _close(name, tasks)


async def _close(name: str, tasks: set[asyncio.Task[Any]]) -> None:
    """Wait for cancelled feeds to end, for at most `FEED_CLOSE_TIMEOUT` seconds."""
    clock = clocks.current()
    ends = clock.now() + FEED_CLOSE_TIMEOUT
    while left := [task for task in tasks if not task.done()]:
        try:
            cut = clock.within(max(0.0, ends - clock.now()))
            async with cut:
                await asyncio.wait(left)
        except asyncio.CancelledError:
            pass  # cancelled: continue until the feeds have closed their resources
        except AttemptTimeout:
            log.error(
                "%s: %d sources did not end within %g s, and are left running", name, len(left), FEED_CLOSE_TIMEOUT
            )
            return


async def watch_feed(source: Any, keys: KeysOf | None, runner: FeedRunner) -> None:
    """Add the keys of each item of an async iterable."""
    made = callable(source)
    stream: Any = source() if made else source
    if not isinstance(stream, AsyncIterable):
        raise TypeError(f"a source must be an async generator function or an async iterable, not one of {stream!r}")
    async with AsyncExitStack() as stack:
        close = getattr(stream, "aclose", None)
        if made and close is not None:
            stack.push_async_callback(close)
        async for event in stream:
            await runner.add_event(event, keys)


def keys_of(event: Any, keys: KeysOf | None) -> Iterable[Hashable]:
    """Return the keys of an event.

    >>> list(keys_of("orders/42", None)), list(keys_of({"owner": "a"}, lambda event: event["owner"]))
    (['orders/42'], ['a'])
    >>> list(keys_of("a", lambda event: [event, "b"])), list(keys_of("a", lambda event: None))
    (['a', 'b'], [])
    """
    found = event if keys is None else keys(event)
    if found is None:
        return ()
    if (keys is not None and isinstance(found, (list, set, frozenset))) or hasattr(found, "__next__"):
        return found  # type: ignore[no-any-return]
    return (found,)


async def poll_feed(look: Callable[[], Any], every: float, keys: KeysOf | None, runner: FeedRunner) -> None:
    """Call a function that returns keys or events, at once and then every `every` seconds."""
    async for _ in ticks(every):
        found = await list_keys(look, runner.run)
        runner.note_progress()
        for event in found:
            await runner.add_event(event, keys)


async def resync_feed(look: Callable[[], Any], period: float, runner: FeedRunner) -> None:
    """Add every key once per period, each at its own consistent offset on the wall clock.

    The offset depends on the key alone: replicas agree on it, and a restart doesn't change it. When the wall clock is
    set, the current period starts over; keys that were skipped are added in the next period, not all at once.
    """
    clock = clocks.current()
    while True:
        wall = WallClockWait(period)
        began = math.floor(wall.start / period) * period
        keys = []
        for key in await list_keys(look, runner.run):
            try:
                keys.append((consistent_jitter(key, period), key))
            except Exception as error:  # the `str` of the key fails
                runner.skip(f"what is no key: {described(error)}")
        runner.note_progress()
        # keys whose offset in the current period is over are added in the next period
        due = sorted([one for one in keys if one[0] >= wall.start - began], key=itemgetter(0))
        for number, (offset, key) in enumerate(due):
            if number % YIELD_EVERY == 0:
                await clock.asleep(0.0)
            if not await wall.wait_until(began + offset):
                break
            await runner.add(key)
        else:
            await wall.wait_until(began + period)


class WallClockWait:
    """Waits by the wall clock in short steps, as it may be set meanwhile."""

    def __init__(self, period: float) -> None:
        self._clock = clocks.current()
        self._nap = max(CLOCK_CHECK_SECONDS, period / CLOCK_CHECKS)
        self._slack = min(CLOCK_SET_SECONDS, CLOCK_SET_SHARE * period)
        self.start = self._clock.wall()
        self._ahead = self.start - self._clock.now()

    async def wait_until(self, instant: float) -> bool:
        """Wait until that instant. Return False if the clock was set meanwhile."""
        while True:
            wall = self._clock.wall()
            before, self._ahead = self._ahead, wall - self._clock.now()
            if abs(self._ahead - before) > self._slack:
                return False
            if wall >= instant:
                return True
            await self._clock.asleep(min(instant - wall, self._nap))


async def list_keys(look: Callable[[], Any], run: Run) -> list[Any]:
    """Return the keys that a function lists: a plain one (in a thread), a coroutine or async generator function."""
    found = look() if iscoroutinefunction(look) else await run(look)
    if isawaitable(found):
        found = await found
    if isinstance(found, AsyncIterable):
        return [item async for item in found]
    if isinstance(found, (str, bytes)) or not isinstance(found, Iterable):
        raise TypeError(f"a function that lists keys must return an iterable of keys, such as a list, not {found!r}")
    return list(found)


def _cancelled() -> bool:
    """Return whether this task was cancelled from outside."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
