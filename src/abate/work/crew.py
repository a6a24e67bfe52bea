"""Threads for what can't be awaited: handlers and sources that are plain functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from abate import clock as clocks

T = TypeVar("T")
Job = Callable[[], None]


class Crew:
    """Up to `most` threads, started as they are needed or wanted ready, that run functions for an event loop.

    They don't keep the process from ending: a handler that hangs must not hold up a shutdown, as one in a
    `ThreadPoolExecutor` would. On a virtual clock a function runs on the spot, so that time doesn't move while it does.

    >>> async def main():
    ...     return await Crew(2).run(sum, (1, 2))
    >>> asyncio.run(main())
    3
    """

    __slots__ = ("_busy", "_jobs", "_most", "_threads")

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = 0  # those that were started; counted in the event loop alone, as is the next
        self._busy = 0

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """What the function returns or raises, in this context. A thread that can't be started raises as well."""
        if clocks.entered() is not None:
            return function(*args)
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[tuple[T, None] | tuple[None, BaseException]] = loop.create_future()
        context = copy_context()

        def job() -> None:
            try:
                outcome: tuple[T, None] | tuple[None, BaseException] = context.run(function, *args), None
            except BaseException as error:  # handed over as a value: a future takes no StopIteration
                outcome = None, error
            try:
                loop.call_soon_threadsafe(self._ended, ended, outcome)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

        if self._threads < min(self._busy + 1, self._most):
            self._start()
        self._busy += 1
        self._jobs.put(job)
        result, error = await ended
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def prepare(self, wanted: int) -> int:
        """Have idle threads ready: how many of those wanted there are. Raises where there is none.

        A process may have as many threads as the system allows. Whoever takes work asks here first, so that nothing is
        taken that can't be worked on.
        """
        if clocks.entered() is not None:
            return wanted
        while (idle := self._threads - self._busy) < wanted and self._threads < self._most:
            try:
                self._start()
            except RuntimeError:
                if idle < 1:
                    raise
                return idle
        if idle < 1:
            raise RuntimeError(f"none of {self._threads} threads is free")
        return min(wanted, idle)

    def grow(self) -> None:
        """Allow one thread more, in place of one that hangs."""
        self._most += 1

    def shrink(self) -> None:
        """Take that back: the thread doesn't hang any more, and one of those that are idle ends."""
        self._most -= 1
        if self._threads > self._most:
            self._threads -= 1
            self._jobs.put(None)

    def dismiss(self) -> None:
        """Let the threads end when what they do is done."""
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0

    def _start(self) -> None:
        Thread(target=_serve, args=(self._jobs,), name=f"abate-{self._threads + 1}", daemon=True).start()
        self._threads += 1

    def _ended(self, future: asyncio.Future[T], outcome: T) -> None:
        self._busy -= 1
        if not future.done():  # it is, where whoever waited was cancelled
            future.set_result(outcome)


def _serve(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it holds on to what it worked on
