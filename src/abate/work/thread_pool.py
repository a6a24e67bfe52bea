"""Runs plain functions (handlers and methods of sources) in daemon threads."""

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


class DaemonThreadPool:
    """Up to `max_threads` threads that run functions for an event loop.

    The threads are daemons, so that a stuck handler can't block a shutdown, as it would in a `ThreadPoolExecutor`. On a
    virtual clock a function runs in the calling thread, so that time does not move meanwhile.

    >>> async def main():
    ...     return await DaemonThreadPool(2).run(sum, (1, 2))
    >>> asyncio.run(main())
    3
    """

    __slots__ = ("_busy", "_jobs", "_max_threads", "_threads")

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = 0  # started; this and `_busy` change only in the event loop
        self._busy = 0

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function in a thread, in this context. Raise if no thread can be started."""
        if clocks.entered_clock() is not None:
            return function(*args)
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[tuple[T, None] | tuple[None, BaseException]] = loop.create_future()
        context = copy_context()

        def job() -> None:
            try:
                outcome: tuple[T, None] | tuple[None, BaseException] = context.run(function, *args), None
            except BaseException as error:  # passed as a value: a future can't hold a StopIteration
                outcome = None, error
            try:
                loop.call_soon_threadsafe(self._ended, ended, outcome)
            except RuntimeError:
                pass  # the event loop is closed

        if self._threads < min(self._busy + 1, self._max_threads):
            self._start()
        self._busy += 1
        self._jobs.put(job)
        result, error = await ended
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def ensure_idle(self, wanted: int) -> int:
        """Start threads until `wanted` are idle. Return how many are idle; raise if none is.

        The system may refuse more threads. The loop calls this before it receives, so that it receives no message that
        it can't handle.
        """
        if clocks.entered_clock() is not None:
            return wanted
        while (idle := self._threads - self._busy) < wanted and self._threads < self._max_threads:
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
        """Allow one more thread, in place of a stuck one."""
        self._max_threads += 1

    def shrink(self) -> None:
        """Undo `grow` when a stuck thread has ended: one idle thread ends."""
        self._max_threads -= 1
        if self._threads > self._max_threads:
            self._threads -= 1
            self._jobs.put(None)

    def shutdown(self) -> None:
        """Let each thread end when its function has ended."""
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0

    def _start(self) -> None:
        Thread(target=_serve, args=(self._jobs,), name=f"abate-{self._threads + 1}", daemon=True).start()
        self._threads += 1

    def _ended(self, future: asyncio.Future[T], outcome: T) -> None:
        self._busy -= 1
        if not future.done():  # the waiting task may have been cancelled
            future.set_result(outcome)


def _serve(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it keeps its arguments alive
