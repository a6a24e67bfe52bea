"""An asyncio event loop in simulated time: its timers and its ready queue are those of the agenda.

* One timer at a time, at its own instant; then everything that is ready. So tasks and services share one order of
  events, and waiting takes no time.
* It has tasks and timers only: an operation that needs a socket, a thread, a signal or a process ends the run with an
  error that names it, as it would wait forever.
* Uncaught errors, which asyncio would log, are kept (`notes`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context
from threading import get_ident
from typing import Any, NoReturn, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary, WeakSet

from abate.errors import AbateError
from abate.logs import Log
from abate.sim.agenda import Agenda

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MAX_UNCAUGHT = 5
"""Uncaught errors whose text is kept; further ones are counted."""
PATIENCE = 3
"""How often a task is cancelled at the end of a run."""
STEPS = 1000
"""Steps that each task may take to end after it was cancelled."""

log = Log("abate.sim")


class VirtualLoop(asyncio.AbstractEventLoop):
    """An asyncio event loop on an agenda.

    >>> agenda = Agenda()
    >>> loop = VirtualLoop(agenda)
    >>> async def nap():
    ...     await asyncio.sleep(5.0)
    ...     print("awake at", loop.time())
    >>> with loop.running():
    ...     task = loop.create_task(nap())
    ...     agenda.run(until=60.0)
    awake at 5.0
    >>> loop.cancel_all()
    0
    """

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._thread = get_ident()
        self._generators: WeakSet[AsyncGenerator[Any, Any]] = WeakSet()
        self._tasks: WeakKeyDictionary[asyncio.Task[Any], None] = WeakKeyDictionary()  # in the order of their creation
        self._closed = False
        self._uncaught: list[str] = []
        self._more = 0

    # -- callbacks

    def time(self) -> float:
        """Seconds since the world began."""
        return self._agenda.time

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call it at this instant, after what is ready already."""
        self._check_open()
        handle = asyncio.Handle(callback, args, self, context)
        self._agenda.ready.append((_run, handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call it after `delay` seconds."""
        return self.call_at(self._agenda.time + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call it at an instant."""
        self._check_open()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._agenda.at(when, _run, handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As `call_soon`, and from this thread only."""
        if get_ident() != self._thread:
            raise AbateError(
                "call_soon_threadsafe from another thread does not work in a simulated world, which has one thread"
            )
        return self.call_soon(callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it in the agenda: it does nothing when its instant comes."""

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, T], **settings: Any) -> asyncio.Task[T]:  # type: ignore[override]
        """Return a task of this loop."""
        self._check_open()
        task = asyncio.Task(coro, loop=self, **settings)
        self._tasks[task] = None
        return task

    # -- state

    def get_debug(self) -> bool:
        """Return False: it has no debug mode."""
        return False

    def is_running(self) -> bool:
        """Return whether it is the running loop of this thread."""
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        """Return whether it is closed."""
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Event loop is closed")

    @contextmanager
    def running(self) -> Generator[None]:
        """Be the running loop of this thread, even inside another running loop (in a notebook)."""
        outer: Any = asyncio._get_running_loop()
        hooks = sys.get_asyncgen_hooks()
        # a thread has one current task at most, not one per loop, since Python 3.14
        task = None if outer is None else asyncio.current_task(outer)
        if outer is not None and task is not None:
            asyncio.tasks._leave_task(outer, task)
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(self._generators.add, self._finalise)
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(outer)
            if outer is not None and task is not None:
                asyncio.tasks._enter_task(outer, task)

    def _finalise(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an async generator that was garbage-collected before its end."""
        self._generators.discard(generator)
        if not self._closed:
            self.create_task(_closing(generator))

    # -- errors

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep an uncaught error."""
        error = context.get("exception")
        text = context.get("message") or "uncaught error"
        if error is not None:
            text += f": {error!r}"
        if self._closed:
            log.error("%s", text, exc_info=error)
        elif len(self._uncaught) < MAX_UNCAUGHT:
            self._uncaught.append(text)
        else:
            self._more += 1

    def notes(self) -> list[str]:
        """Return the uncaught errors."""
        return [*self._uncaught, f"{self._more:,} more uncaught errors"] if self._more else self._uncaught

    def fail_run(self, error: Exception) -> None:
        """End the run with this error, even if the running code catches it."""
        self._agenda.soon(_raise, error)

    # -- the end

    def cancel_all(self) -> int:
        """Cancel all tasks, close the loop, and return how many tasks did not end."""
        with self.running():
            self._end_tasks()
            for generator in list(self._generators):
                self.create_task(_closing(generator))
            self._drain(STEPS * len(self._generators))
            left = self._end_tasks()
            self._record_unretrieved_errors()
            self._closed = True
            for task in left:
                _close(task)
        return len(left)

    def _end_tasks(self) -> set[asyncio.Task[Any]]:
        """Cancel all tasks, and return those that did not end."""
        for _ in range(PATIENCE):
            tasks = asyncio.all_tasks(self)
            for task in tasks:
                task.cancel()
            self._drain(STEPS * len(tasks))
            for task in tasks:
                self.record_task_error(task)
        return asyncio.all_tasks(self)

    def _drain(self, steps: int) -> None:
        """Run what is ready, without advancing the clock."""
        ready = self._agenda.ready
        while ready and steps:
            act, what = ready.popleft()
            if act is _run:  # services have stopped
                _run(what)
                steps -= 1

    def record_task_error(self, task: asyncio.Task[Any]) -> None:
        """Keep the error of a failed task whose result is not awaited."""
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            self.call_exception_handler({"message": "a task has failed", "exception": error})

    def _record_unretrieved_errors(self) -> None:
        """Keep the errors that asyncio would report when it collects the tasks, at whatever time that is."""
        for task in list(self._tasks):
            if task._log_traceback:
                self.call_exception_handler(
                    {"message": "Task exception was never retrieved", "exception": task.exception()}
                )


def _run(handle: asyncio.Handle) -> None:
    if not handle._cancelled:
        handle._run()


def _raise(error: Exception) -> NoReturn:
    raise error


async def _closing(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


def _close(task: Any) -> None:
    """Close a task that did not end."""
    task._log_destroy_pending = False  # a note reports it
    try:
        task.get_coro().close()
    except RuntimeError:
        pass  # it ignores GeneratorExit


def _refusing(operation: str) -> Callable[..., NoReturn]:
    def refuse(self: VirtualLoop, *args: object, **kwargs: object) -> NoReturn:
        error = AbateError(f"{operation} does not work in a simulated world, which has tasks and timers only")
        self.fail_run(error)
        raise error

    refuse.__name__ = operation
    return refuse


for _name in vars(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in vars(VirtualLoop):
        setattr(VirtualLoop, _name, _refusing(_name))
