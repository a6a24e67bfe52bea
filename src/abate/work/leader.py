"""One of many does it: the leader is whoever holds the lease of one key in the store, and nothing else.

A leader that dies, hangs or loses the store stops leading when its lease runs out, by its own clock and by the store's;
the next one that asks leads. The key is in a queue of its own, beside the one whose workers elect the leader: no work
is ever put there (`of_work`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from abate import clock as clocks
from abate.errors import AttemptTimeout
from abate.logs import Log
from abate.work.source import Back, Message

log = Log("abate.work")

KEY = "leader"
SUFFIX = ".leader"
LEASE = 15.0
"""Seconds until another one leads when the leader is gone."""
BEATS = 3
"""Times that the lease is extended, and asked for, while it lasts."""

Run = Callable[..., Awaitable[Any]]


def place(queue: str) -> str:
    """The name of the queue in which the workers of another elect their leader.

    >>> place("orders")
    'orders.leader'
    """
    return queue + SUFFIX


def of_work(name: str) -> str:
    """The name of a queue, which is to hold work.

    >>> of_work("orders.leader")
    Traceback (most recent call last):
    ValueError: a queue of work must not be called 'orders.leader': the workers of 'orders' elect their leader there
    """
    if name.endswith(SUFFIX):
        raise ValueError(
            f"a queue of work must not be called {name!r}: "
            f"the workers of {name.removesuffix(SUFFIX)!r} elect their leader there"
        )
    return name


async def led(name: str, queue: Any, run: Run, work: Callable[[], Awaitable[None]]) -> None:
    """Do the work while this process leads, until it is done or this is cancelled."""
    clock = clocks.current()
    while True:
        await run(queue.add, KEY)  # each time: a store that was flushed has forgotten it
        asked = clock.now()
        messages = await run(queue.receive, 1, 0.0)
        if messages and await _leading(name, queue, run, work, messages[0], asked + queue.lease):
            return
        await clock.asleep(queue.lease / BEATS * (0.75 + 0.5 * random.random()))


async def _leading(
    name: str, queue: Any, run: Run, work: Callable[[], Awaitable[None]], lease: Message, until: float
) -> bool:
    """Lead until that instant, and longer as the lease is extended: is the work done?

    In the store a lease begins when it was asked for, or later; counted from then it ends here before it does there.
    """
    log.info("%s: this process leads", name)
    clock = clocks.current()
    working = asyncio.ensure_future(work())
    try:
        while not working.done():
            try:
                cut = clock.within(max(0.0, min(queue.lease / BEATS, until - clock.now())))
                async with cut:
                    await asyncio.wait({working})
            except AttemptTimeout:
                pass
            asked = clock.now()
            try:
                cut = clock.within(max(0.0, until - asked))
                async with cut:
                    if await run(queue.extend, [lease]):
                        return False
                until = asked + queue.lease
            except AttemptTimeout:
                return False
            except Exception as error:
                log.warning("%s: the leader can't extend its lease: %r", name, error)
                if clock.now() >= until:
                    return False
        await working
        return True
    finally:
        working.cancel()
        await asyncio.wait({working})
        try:
            await run(queue.settle, [(lease, Back(0.0, touched=False))])
        except Exception as error:
            log.debug("%s: the lease of the leader is left to run out: %r", name, error)
