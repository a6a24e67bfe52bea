"""What a controller and a consumer have in common: they run, they stop, and they tell how they are."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import update_wrapper
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, TypeVar, cast

from abate import clock as clocks
from abate import forks
from abate.errors import AttemptTimeout, number, whole
from abate.logs import Log
from abate.values import Value
from abate.work.fuse import Fuse
from abate.work.judge import Judge
from abate.work.loop import MOMENT, Loop, cancelled
from abate.work.pauses import Pauses
from abate.work.source import Message, Source

if TYPE_CHECKING:
    from abate.stores import Depth, Store

log = Log("abate.work")

P = ParamSpec("P")
T = TypeVar("T")


class Health(Value):
    """How a controller or consumer is.

    * `live`: it runs. One that answers this at all has an event loop that turns.
    * `ready`: it takes work: it isn't stopping, its source answers, and fewer handlers hang than there are workers.
    * `in_hand`: keys or messages that workers have.
    * `failing`: what the source's last error said; None while it answers.
    * `tally`: how many have ended in which way since the start.
    * `feeds`: of a controller's sources, pollers and resync those that fail or have ended, by name, and why.
    * `skipped`: what these have brought and no key could be made of, since the start.
    * `stuck`: how many handlers have outlasted their `timeout` and can't be stopped. Only a restart ends these.
    * `oldest`: for how many seconds the handler that began first has been at work; None where none is. Without a
      `timeout` it is what shows a handler that hangs.
    * `blown`: for how many more seconds a consumer takes no message, as its fuse has blown; 0 while it takes one at a
      time on trial; None while the fuse is whole. It is as ready as before: what is down is a dependency.

    >>> Health(live=True, ready=True).in_hand
    0
    """

    live: bool
    ready: bool
    in_hand: int = 0
    failing: str | None = None
    tally: dict[str, int] = {}  # noqa: RUF012  (a default, never written)
    feeds: dict[str, str] = {}  # noqa: RUF012  (the same)
    skipped: int = 0
    stuck: int = 0
    oldest: float | None = None
    blown: float | None = None


class Service(Generic[P, T]):
    """Runs a handler over a source of work. It can be called like the function that it was made from."""

    def __init__(
        self, function: Callable[P, T], name: str | None, workers: int, grace: float, timeout: float | None
    ) -> None:
        if not callable(function):
            raise TypeError(f"a handler must be a function of one argument, not {function!r}")
        if isgeneratorfunction(function) or isasyncgenfunction(function):
            raise TypeError(f"a handler must not be a generator, as nothing would run: {function!r} has a yield")
        self.function = function
        self.name = str(name or getattr(function, "__name__", type(function).__name__))
        self.workers = whole("workers", workers, least=1)
        self.grace = number("grace", grace, least=0)
        self.timeout = None if timeout is None else number("timeout", timeout, above=0)
        self._running: tuple[asyncio.AbstractEventLoop, Loop] | None = None
        self._last: Loop | None = None
        self._one = cast("Callable[[Any], object]", function)
        update_wrapper(cast("Callable[..., Any]", self), function)
        forks.keep(self)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.function(*args, **kwargs)

    # -- what differs

    def _source(self, given: object) -> Source:
        """Where the work comes from."""
        raise NotImplementedError

    def _judge(self) -> Judge:
        raise NotImplementedError

    def _fuse(self) -> Fuse | None:
        return None

    def _pauses(self) -> Pauses | None:
        return None

    def _handle(self, message: Message) -> object:
        """Call the function with what it is to see of a message."""
        raise NotImplementedError

    async def _alongside(self, loop: Loop) -> None:
        """What goes on beside the loop until it stops."""
        await loop.stopping.wait()

    # -- running

    def run(
        self,
        source: Source | Store | str | None = None,
        *,
        workers: int | None = None,
        grace: float | None = None,
        drain: bool = False,
    ) -> Counter[str]:
        """Work until `stop`, SIGTERM or SIGINT; with `drain`, until nothing is left to do. The answer is the tally.

        The first signal lets what is in hand finish within the grace, the second one doesn't. Five seconds after the
        grace it returns, whatever still hangs: a handler or feed that ignores its cancellation, a store.
        """

        async def main() -> Counter[str]:
            running = asyncio.ensure_future(self.arun(source, workers=workers, grace=grace, drain=drain))
            with Signals(self.stop, running.cancel):
                return await running

        try:
            return run_to_end(main(), self.left)
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    async def arun(
        self,
        source: Source | Store | str | None = None,
        *,
        workers: int | None = None,
        grace: float | None = None,
        drain: bool = False,
    ) -> Counter[str]:
        """The same in a task of your own event loop, which has its own signals."""
        if self._running is not None:
            raise RuntimeError(f"{self.name} runs already")
        loop = self._last = Loop(
            self.name,
            self._source(source),
            self._handle,
            self._judge(),
            workers=self.workers if workers is None else whole("workers", workers, least=1),
            asynchronous=iscoroutinefunction(self.function) or iscoroutinefunction(type(self.function).__call__),
            fuse=self._fuse(),
            pauses=self._pauses(),
            timeout=self.timeout,
        )
        self._running = asyncio.get_running_loop(), loop
        beside = None if drain else asyncio.ensure_future(self._alongside(loop))
        if beside is not None:
            beside.add_done_callback(lambda _: loop.stop())  # where it breaks, nothing brings work any more
        try:
            await loop.run(self.grace if grace is None else number("grace", grace, least=0), drain)
        finally:
            self._running = None
            if beside is not None:
                beside.cancel()
                await asyncio.wait({beside})
        if beside is not None and not beside.cancelled():
            beside.result()
        return loop.tally

    def left(self) -> float:
        """Seconds that are left of a run for what was begun beside it."""
        return MOMENT if self._last is None else self._last.left()

    def stop(self) -> None:
        """Take no more work, and end when what is in hand is done. Any thread may call it, and so may a signal handler.

        It is for the run that goes on: without one it does nothing, and a later run is not stopped by it. A second
        call changes nothing.
        """
        running = self._running
        if running is not None:
            with suppress(RuntimeError):  # its event loop was closed just now
                running[0].call_soon_threadsafe(running[1].stop)

    def after_fork(self) -> None:
        """In a child nothing runs: the event loop's thread is the parent's."""
        self._running = None

    def health(self) -> Health:
        """How it is."""
        running = self._running
        if running is None:
            return Health(live=False, ready=False)
        loop = running[1]
        return Health(
            True,
            loop.ready,
            len(loop.in_hand),
            loop.failing,
            dict(loop.tally),
            stuck=loop.stuck,
            oldest=loop.oldest(),
            blown=loop.blown(),
        )

    def depth(self) -> Depth | None:
        """What waits, is in hand and was buried; None where the source can't tell. Asking a store takes time."""
        return None


def run_to_end(main: Coroutine[Any, Any, T], left: Callable[[], float]) -> T:
    """Run a coroutine in an event loop of its own, as `asyncio.run` does; but for its end there are `left()` seconds.

    `asyncio.run` waits for ever for a task that ignores its cancellation, and for a thread of `asyncio.to_thread`.
    """
    runner = asyncio.Runner()
    loop = runner.get_loop()
    threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
    loop.set_default_executor(threads)
    try:
        return runner.run(main)
    finally:
        try:
            runner.run(_wind_up(threads, left()))
        finally:
            asyncio.set_event_loop(None)
            loop.close()  # rather than the runner, which would wait


async def _wind_up(threads: ThreadPoolExecutor, seconds: float) -> None:
    """End what is left in this event loop, as far as it can be ended."""
    clock, loop = clocks.MACHINE, asyncio.get_running_loop()
    ends = clock.now() + seconds
    await cancelled([task for task in asyncio.all_tasks() if task is not asyncio.current_task()], seconds, clock)
    ended = asyncio.Event()

    def shut_down() -> None:
        threads.shutdown()
        try:
            loop.call_soon_threadsafe(ended.set)
        except RuntimeError:
            pass  # too late

    try:
        cut = clock.within(max(MOMENT, ends - clock.now()))
        async with cut:
            await loop.shutdown_asyncgens()
            threading.Thread(target=shut_down, daemon=True).start()
            await ended.wait()
    except AttemptTimeout:
        log.error("a thread or an asynchronous generator does not end, and is left behind")


def opened(store: object) -> Any:
    """A store: as it is, or opened by its URL."""
    if not isinstance(store, str):
        return store
    from abate.stores import open_store

    return open_store(store)


class Signals:
    """Stops at the first SIGTERM or SIGINT, and breaks off at the second, where signals come to this thread at all."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT)
    taken: ClassVar[int] = 0
    """How many signals have been taken in this process; who called the program that runs a service can't tell else."""

    def __init__(self, stop: Callable[[], object], break_off: Callable[[], object]) -> None:
        self._next = [break_off, stop]
        self._heard = sys.platform != "win32" and threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}
        self.last: int | None = None
        """The number of the signal that came last."""

    def __enter__(self) -> Signals:
        if self._heard:
            for number in self.SIGNALS:
                self._before[number] = signal.getsignal(number)
                asyncio.get_running_loop().add_signal_handler(number, self._came, number)
        return self

    def __exit__(self, *exit: object) -> None:
        if self._heard:
            for number in self.SIGNALS:
                asyncio.get_running_loop().remove_signal_handler(number)
                signal.signal(number, self._before[number])

    def _came(self, number: int) -> None:
        self.last = number
        Signals.taken += 1
        if self._next:
            self._next.pop()()
