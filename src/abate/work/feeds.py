"""What brings keys to a controller: watches, pollers, and the resync of all keys.

A feed that raises is started again after a backoff, which begins anew when it has brought something; one that ends has
ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterable, Awaitable, Callable, Hashable, Iterable
from inspect import isawaitable
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

from abate import clock as clocks
from abate import events
from abate.logs import Log
from abate.schedule.backoff import Backoff, Uniform
from abate.schedule.beat import consistent_jitter, ticks

log = Log("abate.work")

RESTART = Backoff(1.0, 60.0, jitter="equal")
"""How long a feed that failed is left alone."""
TURN = 100
"""Keys that a feed adds before others have a turn."""

Push = Callable[[Any], Awaitable[None]]
"""Adds a key, and waits for room where there is none."""
Mapping = Callable[[Any], Any]
"""From an event to the keys that it concerns: one key, several, or None."""
Run = Callable[..., Awaitable[Any]]
"""Runs a plain function in a thread."""
Bring = Callable[[Push, Run], Awaitable[None]]
"""Brings keys until it ends."""


class Feed(NamedTuple):
    """Something that brings keys, by its name in logs.

    `revives`: does a key that is parked come back to life by it? `lasting`: can it be started again when it has failed?
    """

    name: str
    bring: Bring
    revives: bool = True
    lasting: bool = True


async def watched(source: Any, keys: Mapping | None, push: Push, run: Run) -> None:
    """Add a key, or those that an event concerns, for each thing that an async iterable brings."""
    stream = source() if callable(source) else source
    if not isinstance(stream, AsyncIterable):
        raise TypeError(f"a source must be an async generator function or an async iterable, not one of {stream!r}")
    async for event in stream:
        for key in concerned(event, keys):
            await push(key)


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


async def polled(look: Callable[[], Any], every: float, keys: Mapping | None, push: Push, run: Run) -> None:
    """Ask for keys, or for events, at once and then every so many seconds."""
    async for _ in ticks(every):
        for event in await listed(look, run):
            for key in concerned(event, keys):
                await push(key)


async def resynced(look: Callable[[], Any], period: float, push: Push, run: Run) -> None:
    """Add every key once per period, each at its own consistent offset on the wall clock.

    The offset belongs to the key: replicas agree on it, and a restart doesn't move it.
    """
    clock = clocks.current()
    while True:
        began = math.floor(clock.wall() / period) * period
        passed = clock.wall() - began
        keys = [(consistent_jitter(key, period), key) for key in await listed(look, run)]
        # of a period that had begun already, those whose turn is over have it with the next
        due = sorted([one for one in keys if one[0] >= passed], key=itemgetter(0))
        for number, (offset, key) in enumerate(due):
            wait = began + offset - clock.wall()
            if wait > 0 or number % TURN == 0:
                await clock.asleep(wait)
            await push(key)
        await clock.asleep(began + period - clock.wall())


async def listed(look: Callable[[], Any], run: Run) -> list[Any]:
    """What a function lists: a plain one in a thread, a coroutine function, or an async generator function."""
    found = look() if asyncio.iscoroutinefunction(look) else await run(look)
    if isawaitable(found):
        found = await found
    if isinstance(found, AsyncIterable):
        return [item async for item in found]
    return list(found)


async def kept_up(policy: str, feed: Feed, push: Push, run: Run, chance: Uniform) -> None:
    """Run a feed, and start it again when it fails."""
    failures, name = 0, feed.name

    async def pushed(key: Any) -> None:
        nonlocal failures
        try:
            await push(key)
        except (TypeError, ValueError) as error:  # of this key: the others are fine
            log.error("%s: %s brought what is no key: %s", policy, name, error)
        failures = 0

    while True:
        try:
            await feed.bring(pushed, run)
            return
        except Exception as error:
            if not feed.lasting:
                log.exception("%s: %s has failed, and can't be started again: give its function instead", policy, name)
                events.emit(events.SourceFailed(policy, name, error, inf))
                return
            failures += 1
            delay = RESTART.delay(failures, chance)
            log.warning("%s: %s failed, started again in %.3g s: %r", policy, name, delay, error)
            events.emit(events.SourceFailed(policy, name, error, delay))
        await clocks.current().asleep(delay)
