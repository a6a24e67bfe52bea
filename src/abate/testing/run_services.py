"""Runs controllers and consumers in virtual time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from abate import clock as clocks
from abate.errors import number

if TYPE_CHECKING:
    from abate.stores import Store
    from abate.testing.virtual_clock import VirtualClock
    from abate.work.service import Service
    from abate.work.source import Source


def run_for(service: Service[..., Any], seconds: float, source: Source | Store | str | None = None) -> Counter[str]:
    """Run a controller or consumer for `seconds` of virtual time; return the tally, as `run` does.

    It runs as in production: with its sources, pollers and resync, and keys that failed come back after their backoff.
    A coroutine handler must not wait for a real server: virtual time passes meanwhile, so the run would end before it.
    In an async test, await `arun_for`.

    >>> import abate
    >>> charge = abate.testing.Script(ConnectionError("no answer"), ConnectionError("no answer"), None)
    >>> reconcile = abate.controller(workers=1)(lambda key: charge(key))
    >>> with abate.testing.VirtualClock():
    ...     reconcile.add("orders/42")
    ...     tally = run_for(reconcile, 600.0)
    >>> tally["retry"], tally["done"], reconcile.waiting()
    (2, 1, 0)
    """
    if clocks.in_loop():
        raise RuntimeError("run_for can't run in an event loop: await abate.testing.arun_for(service, seconds)")
    _virtual_clock()
    from abate.work.bounded_event_loop import run_bounded

    return run_bounded(arun_for(service, seconds, source), service.seconds_left)


async def arun_for(
    service: Service[..., Any], seconds: float, source: Source | Store | str | None = None
) -> Counter[str]:
    """Do the same as `run_for` in the event loop of an async test.

    >>> import abate, asyncio
    >>> @abate.controller(resync=3600.0, keys=lambda: ["orders/42"])
    ... async def reconcile(key): ...
    >>> with abate.testing.VirtualClock():
    ...     asyncio.run(arun_for(reconcile, 10 * 3600.0))
    Counter({'done': 10})
    """
    number("seconds", seconds, least=0)
    clock = _virtual_clock()
    import asyncio

    running = asyncio.ensure_future(service.arun(source))
    time_over = asyncio.ensure_future(clock.asleep(seconds))
    try:
        await asyncio.wait({running, time_over}, return_when="FIRST_COMPLETED")
        service.stop()
        return await running
    finally:
        time_over.cancel()
        if not running.done():  # this was cancelled: the service ends before the test does
            running.cancel()
            await asyncio.wait({running})


def _virtual_clock() -> VirtualClock:
    from abate.testing.virtual_clock import VirtualClock

    clock = clocks.entered_clock()
    if not isinstance(clock, VirtualClock):
        raise RuntimeError(
            "run_for needs virtual time: `with abate.testing.VirtualClock():`, or the fixture abate_clock"
        )
    return clock
