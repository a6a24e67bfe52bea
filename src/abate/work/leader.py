"""Implements leader election: the leader is the process that holds the lease of one key in the store.

A leader that dies, hangs or can't reach the store stops leading when its lease runs out, by its own clock and by the
store's. Then the next process that asks becomes the leader. The key is in a separate queue beside the queue whose
workers elect the leader; that queue is reserved (`check_queue_name`).
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

LEADER_KEY = "leader"
SUFFIX = ".leader"
LEASE = 15.0
"""Seconds that the leader's lease lasts, after which another process can become the leader."""
EXTENDS_PER_LEASE = 3
"""How often per lease the leader extends it, and other processes ask for it."""

Run = Callable[..., Awaitable[Any]]


def election_queue(queue: str) -> str:
    """Return the name of the queue in which the workers of a queue elect their leader.

    >>> election_queue("orders")
    'orders.leader'
    """
    return queue + SUFFIX


def check_queue_name(name: str) -> str:
    """Return the name of a queue, or raise if it is reserved for elections.

    >>> check_queue_name("orders.leader")
    Traceback (most recent call last):
    ValueError: a queue of work must not be called 'orders.leader': the workers of 'orders' elect their leader there
    """
    if name.endswith(SUFFIX):
        raise ValueError(
            f"a queue of work must not be called {name!r}: "
            f"the workers of {name.removesuffix(SUFFIX)!r} elect their leader there"
        )
    return name


async def run_while_leader(name: str, queue: Any, run: Run, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` while this process is the leader, until the work ends or this is cancelled."""
    clock = clocks.current()
    while True:
        await run(queue.add, LEADER_KEY)  # each time, as the store may have been flushed
        asked = clock.now()
        messages = await run(queue.receive, 1, 0.0)
        if messages and await _lead(name, queue, run, work, messages[0], asked + queue.lease):
            return
        await clock.asleep(queue.lease / EXTENDS_PER_LEASE * (0.75 + 0.5 * random.random()))


async def _lead(
    name: str, queue: Any, run: Run, work: Callable[[], Awaitable[None]], lease: Message, until: float
) -> bool:
    """Lead until that instant, and longer as the lease is extended. Return whether the work is done.

    The lease is counted from before the request. The store counts it from a later instant, so it ends here first.
    """
    log.info("%s: this process leads", name)
    clock = clocks.current()
    working = asyncio.ensure_future(work())
    try:
        while not working.done():
            try:  # wait until the next extend is due, the lease is over, or the work has ended
                cut = clock.within(max(0.0, min(queue.lease / EXTENDS_PER_LEASE, until - clock.now())))
                async with cut:
                    await asyncio.wait({working})
            except AttemptTimeout:
                pass
            asked = clock.now()
            try:  # extend, for at most as long as the lease lasts
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
            log.debug("%s: could not release the leader's lease, which will run out: %r", name, error)
