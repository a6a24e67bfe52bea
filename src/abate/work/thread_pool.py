"""Runs plain functions (handlers and methods of sources) in daemon threads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from abate import clock as clocks

T = TypeVar("T")


class NotStarted(Exception):
    """The function was taken back before a thread had begun it."""


class Job:
    """A function with its arguments and context, and the future of its outcome: a result or an error."""

    __slots__ = ("_args", "_context", "_function", "ended", "outcome")

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], context: Context, ended: asyncio.Future[None]
    ) -> None:
        self._function = function
        self._args = args
        self._context = context
        self.ended = ended
        self.outcome: tuple[Any, BaseException | None] = None, NotStarted()

    def run(self) -> None:
        try:
            self.outcome = self._context.run(self._function, *self._args), None
        except BaseException as error:  # passed as a value: a future can't hold a StopIteration
            self.outcome = None, error


class DaemonThreadPool:
    """Up to `max_threads` threads that run functions for an event loop; more functions wait for a thread.

    The threads are daemons, so that a stuck handler can't block a shutdown, as it would in a `ThreadPoolExecutor`. The
    event loop is woken once for all functions that have ended since. On a virtual clock a function runs in the calling
    thread, so that time does not move meanwhile.

    >>> async def main():
    ...     return await DaemonThreadPool(2).run(sum, (1, 2))
    >>> asyncio.run(main())
    3
    """

    __slots__ = ("_busy", "_ended", "_jobs", "_max_threads", "_threads", "_waking")

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = 0  # started; this and `_busy` change only in the event loop
        self._busy = 0
        self._ended: deque[Job] = deque()
        self._waking = False  # whether the event loop was told of them

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function in a thread, in this context. Raise if no thread can be started, or it was taken back."""
        if clocks.entered_clock() is not None:
            return function(*args)
        loop = asyncio.get_running_loop()
        job = Job(function, args, copy_context(), loop.create_future())
        if self._threads < min(self._busy + 1, self._max_threads):
            self._start(loop)
        self._busy += 1
        self._jobs.put(job)
        await job.ended
        result, error = job.outcome
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    @property
    def waiting(self) -> int:
        """Return how many functions wait for a thread."""
        return max(0, self._busy - self._threads)

    def take_back(self) -> None:
        """Take back the functions that no thread has begun: their callers get `NotStarted`."""
        sentinels = 0
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job is None:
                sentinels += 1
            else:
                self._end(job)
        for _ in range(sentinels):
            self._jobs.put(None)

    def ensure_idle(self, wanted: int) -> int:
        """Start threads until `wanted` are idle. Return how many are idle; raise if none is.

        The system may refuse more threads. The loop calls this before it receives, so that it receives no message that
        it can't handle.
        """
        if clocks.entered_clock() is not None:
            return wanted
        while (idle := self._threads - self._busy) < wanted and self._threads < self._max_threads:
            try:
                self._start(asyncio.get_running_loop())
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

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        Thread(target=self._serve, args=(loop,), name=f"abate-{self._threads + 1}", daemon=True).start()
        self._threads += 1

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run functions in a thread."""
        while (job := self._jobs.get()) is not None:
            job.run()
            self._ended.append(job)
            del job  # it keeps its arguments alive
            if not self._waking:
                self._waking = True
                try:
                    loop.call_soon_threadsafe(self._collect)
                except RuntimeError:
                    pass  # the event loop is closed

    def _collect(self) -> None:
        """Pass on the outcomes of all functions that have ended."""
        self._waking = False  # first: a function that ends from here on wakes the event loop again
        while self._ended:
            self._end(self._ended.popleft())

    def _end(self, job: Job) -> None:
        self._busy -= 1
        if not job.ended.done():  # the waiting task may have been cancelled
            job.ended.set_result(None)
