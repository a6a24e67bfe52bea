"""An event loop of asyncio in simulated time: its timers and its ready queue are those of the agenda.

* A timer at a time, at its own instant; then everything that is ready. So tasks and the services of the world live by
  one order of events, and a wait takes no time.
* There are tasks and timers, nothing else: what would need a socket, a thread, a signal or a process ends the run with
  an error that names it, instead of waiting for something that no simulated instant brings.
* An error that nobody has caught is kept (`notes`), as asyncio would have logged it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context
from threading import get_ident
from typing import Any, NoReturn, TypeVar, TypeVarTuple
from weakref import WeakSet

from abate.errors import AbateError
from abate.logs import Log
from abate.sim.agenda import Agenda

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MOST_UNHEARD = 5
"""Errors that nobody has caught of which the text is kept; the others are counted."""
PATIENCE = 3
"""How often a task is cancelled at the end before it is taken to be one that will not go."""
STEPS = 1000
"""Steps that each task may take to end, once it is cancelled."""

log = Log("abate.sim")


class VirtualLoop(asyncio.AbstractEventLoop):
    """asyncio in the world of an agenda.

    >>> agenda = Agenda()
    >>> loop = VirtualLoop(agenda)
    >>> async def nap():
    ...     await asyncio.sleep(5.0)
    ...     print("awake at", loop.time())
    >>> with loop.running():
    ...     task = loop.create_task(nap())
    ...     agenda.run(until=60.0)
    awake at 5.0
    >>> loop.shut()
    0
    """

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._thread = get_ident()
        self._generators: WeakSet[AsyncGenerator[Any, Any]] = WeakSet()
        self._closed = False
        self._unheard: list[str] = []
        self._more = 0

    # -- what is called when

    def time(self) -> float:
        """Seconds since the world began."""
        return self._agenda.time

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Have it called at this instant, after what is ready already."""
        self._check_open()
        handle = asyncio.Handle(callback, args, self, context)
        self._agenda.ready.append((_run, handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Have it called after so many seconds."""
        return self.call_at(self._agenda.time + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Have it called at an instant."""
        self._check_open()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._agenda.at(when, _run, handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As `call_soon`: nobody calls from another thread, where time stands still until this one waits."""
        if get_ident() != self._thread:
            raise AbateError("call_soon_threadsafe from another thread does not work in a simulated world: it has one")
        return self.call_soon(callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the agenda until its instant, and does nothing then."""

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, T], **settings: Any) -> asyncio.Task[T]:  # type: ignore[override]
        """A task of this loop."""
        self._check_open()
        return asyncio.Task(coro, loop=self, **settings)

    # -- its state

    def get_debug(self) -> bool:
        """It has no debug mode."""
        return False

    def is_running(self) -> bool:
        """Is it the loop that runs here?"""
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        """Is it over?"""
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Event loop is closed")

    @contextmanager
    def running(self) -> Generator[None]:
        """Be the loop that runs in this thread, also where another one does already (in a notebook)."""
        outer, hooks = asyncio._get_running_loop(), sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(self._generators.add, self._finalise)
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(outer)

    def _finalise(self, generator: AsyncGenerator[Any, Any]) -> None:
        """An async generator was left half-way, and nobody holds it any more."""
        self._generators.discard(generator)
        if not self._closed:
            self.create_task(_closing(generator))

    # -- what goes wrong

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep an error that nobody has caught."""
        error = context.get("exception")
        text = context.get("message") or "an error that nobody has caught"
        if error is not None:
            text += f": {error!r}"
        if self._closed:
            log.error("%s", text, exc_info=error)
        elif len(self._unheard) < MOST_UNHEARD:
            self._unheard.append(text)
        else:
            self._more += 1

    def notes(self) -> list[str]:
        """The errors that nobody has caught."""
        return [*self._unheard, f"{self._more:,} more errors that nobody has caught"] if self._more else self._unheard

    def fail(self, error: Exception) -> None:
        """End the run with this error, whatever the code that is running makes of it."""
        self._agenda.soon(_raise, error)

    # -- the end

    def shut(self) -> int:
        """End all tasks, and be closed. The answer is how many would not end."""
        with self.running():
            self._end_tasks()
            for generator in list(self._generators):
                self.create_task(_closing(generator))
            self._drain(STEPS * len(self._generators))
            left = self._end_tasks()
            self._closed = True
            for task in left:
                _close(task)
        return len(left)

    def _end_tasks(self) -> set[asyncio.Task[Any]]:
        """Cancel all tasks; those that are left would not end."""
        for _ in range(PATIENCE):
            tasks = asyncio.all_tasks(self)
            for task in tasks:
                task.cancel()
            self._drain(STEPS * len(tasks))
            for task in tasks:
                self.hear(task)
        return asyncio.all_tasks(self)

    def _drain(self, steps: int) -> None:
        """Let tasks do what they can do at once; for what they would have to wait for, it is too late."""
        ready = self._agenda.ready
        while ready and steps:
            act, what = ready.popleft()
            if act is _run:  # the services stand still by now
                _run(what)
                steps -= 1

    def hear(self, task: asyncio.Task[Any]) -> None:
        """Keep the error of a task that has failed, as nobody will ask for it any more."""
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            self.call_exception_handler({"message": "a task has failed", "exception": error})


def _run(handle: asyncio.Handle) -> None:
    if not handle._cancelled:
        handle._run()


def _raise(error: Exception) -> NoReturn:
    raise error


async def _closing(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


def _close(task: Any) -> None:
    """Do away with a task that will not end."""
    task._log_destroy_pending = False  # that it did not end is said
    try:
        task.get_coro().close()
    except RuntimeError:
        pass  # it waits even now: there is nothing left that would end it


def _refusing(operation: str) -> Callable[..., NoReturn]:
    def refuse(self: VirtualLoop, *args: object, **kwargs: object) -> NoReturn:
        error = AbateError(f"{operation} does not work in a simulated world: it has tasks and timers, and nothing else")
        self.fail(error)
        raise error

    refuse.__name__ = operation
    return refuse


for _name in vars(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in vars(VirtualLoop):
        setattr(VirtualLoop, _name, _refusing(_name))
