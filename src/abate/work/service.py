"""Implements what controllers and consumers share: running, stopping, and health."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import update_wrapper
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, TypeVar, cast

from abate import clock as clocks
from abate import forks
from abate.admit.breaker import CircuitBreaker
from abate.errors import number, whole
from abate.frozen import Frozen
from abate.logs import Log
from abate.work.backoff_guard import BackoffGuard
from abate.work.bounded_event_loop import MIN_CLOSE_TIMEOUT, run_bounded
from abate.work.loop import Loop
from abate.work.source import Message, Source
from abate.work.thread_pool import DaemonThreadPool
from abate.work.verdict_rules import VerdictRules

if TYPE_CHECKING:
    from abate.stores import Depth, Store

log = Log("abate.work")

DEPTH_TIMEOUT = 1.0
"""Seconds to count what a drain has left."""

P = ParamSpec("P")
T = TypeVar("T")


class Health(Frozen):
    """The health of a controller or consumer.

    * `live`: it runs.
    * `ready`: it takes work: it is not stopping, its source answers, and at least one worker is not stuck.
    * `in_hand`: how many keys or messages are being handled, or wait for a worker.
    * `failing`: the last error of the source; None while it answers.
    * `tally`: how many messages ended since the start, by ending.
    * `feeds`: the sources, pollers and resync of a controller that fail or have ended, by name, with the reason.
    * `skipped`: how many events of these had no valid key, since the start.
    * `stuck`: how many handlers have exceeded their `timeout` and can't be stopped. Only a restart ends them.
    * `oldest`: for how many seconds the longest-running handler has run; None if none runs. Without a `timeout` it
      shows a stuck handler.
    * `breaker_open`: seconds until a consumer's circuit breaker half-opens; 0 while it is half-open and takes one
      message at a time; None while it is closed. An open breaker does not change `ready`, as only a dependency is down.

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
    breaker_open: float | None = None


class Service(Generic[P, T]):
    """Runs a handler over a source. It can be called like the function that it was made from."""

    def __init__(
        self,
        function: Callable[P, T],
        name: str | None,
        workers: int,
        grace: float,
        timeout: float | None,
        prefetch: int | None,
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
        self.prefetch = None if prefetch is None else whole("prefetch", prefetch, least=0)
        self._running: tuple[asyncio.AbstractEventLoop, Loop] | None = None
        self._last: Loop | None = None
        self._call_function = cast("Callable[[Any], object]", function)
        update_wrapper(cast("Callable[..., Any]", self), function)
        forks.register(self)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.function(*args, **kwargs)

    # -- for subclasses

    def _source(self, given: object) -> Source:
        """Return the source of the run."""
        raise NotImplementedError

    def _verdict_rules(self) -> VerdictRules:
        raise NotImplementedError

    def _breaker(self) -> CircuitBreaker | None:
        return None

    def _backoff_guard(self) -> BackoffGuard | None:
        return None

    def _handle(self, message: Message) -> object:
        """Call the function with a message, or its key."""
        raise NotImplementedError

    @property
    def _asynchronous(self) -> bool:
        return iscoroutinefunction(self.function) or iscoroutinefunction(type(self.function).__call__)

    def _make_loop(self, source: Source, workers: int) -> Loop:
        """Return the loop of a run."""
        return Loop(
            self.name,
            source,
            self._handle,
            self._verdict_rules(),
            workers=workers,
            asynchronous=self._asynchronous,
            breaker=self._breaker(),
            backoff_guard=self._backoff_guard(),
            timeout=self.timeout,
            prefetch=self.prefetch,
        )

    async def _run_beside(self, loop: Loop) -> None:
        """Run beside the loop until it stops."""
        await loop.stopping.wait()

    def _stopped(self) -> None:
        """Do what remains at the end of a run without `drain`."""

    def _run_ended(self) -> None:
        """Release what a run has used."""

    # -- running

    def run(
        self,
        source: Source | Store | str | None = None,
        *,
        workers: int | None = None,
        grace: float | None = None,
        drain: bool = False,
    ) -> Counter[str]:
        """Run until `stop`, SIGTERM or SIGINT; with `drain`, until nothing is left to do. Return the tally.

        After the first signal the messages in flight can finish within the grace; the second signal ends that. Five
        seconds after the grace it returns, even if a handler, a feed or a store still hangs.
        """

        async def main() -> Counter[str]:
            running = asyncio.ensure_future(self.arun(source, workers=workers, grace=grace, drain=drain))
            with Signals(self.stop, running.cancel):
                return await running

        try:
            return run_bounded(main(), self.seconds_left)
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
        """Do the same as `run` in your own event loop, without signal handlers."""
        if self._running is not None:
            raise RuntimeError(f"{self.name} runs already")
        loop = self._last = self._make_loop(
            self._source(source), self.workers if workers is None else whole("workers", workers, least=1)
        )
        self._running = asyncio.get_running_loop(), loop
        beside = None if drain else asyncio.ensure_future(self._run_beside(loop))
        if beside is not None:
            beside.add_done_callback(lambda _: loop.stop())  # if it fails, no more work comes
        try:
            await loop.run(self.grace if grace is None else number("grace", grace, least=0), drain)
            if drain:
                await self._log_left(loop.source.durable)
        finally:
            self._running = None
            self._run_ended()
            if beside is not None:
                beside.cancel()
                try:
                    await asyncio.wait({beside})
                finally:
                    self._stopped()
        if beside is not None and not beside.cancelled():
            beside.result()
        return loop.tally

    async def _log_left(self, durable: bool) -> None:
        """Log what a drain leaves in its queue; warn of what is lost with this process."""
        from abate.stores import Depth

        threads = DaemonThreadPool(1)
        try:
            cut = clocks.current().within(min(DEPTH_TIMEOUT, self.seconds_left()))
            async with cut:
                depth = await threads.run(self.depth)
        except Exception as error:
            log.info("%s: drained; could not count what it leaves: %r", self.name, error)
            return
        finally:
            threads.shutdown()
        if not isinstance(depth, Depth):
            return  # the source can't count, or counts in a way of its own
        counts = {"ready": depth.ready, "delayed": depth.delayed, "in flight": depth.leased, "buried": depth.dead}
        left = [f"{count} {state}" for state, count in counts.items() if count]
        if not left:
            return
        if durable or not depth.delayed:
            log.info("%s: drained, and leaves in its queue: %s", self.name, ", ".join(left))
        else:
            log.warning("%s: drained, and leaves in memory, until the next run: %s", self.name, ", ".join(left))

    def seconds_left(self) -> float:
        """Return the seconds that tasks beside the loop have to end."""
        return MIN_CLOSE_TIMEOUT if self._last is None else self._last.seconds_left()

    def stop(self) -> None:
        """Take no more work, and end when the messages in flight are done. Any thread or signal handler may call it.

        Without a run it does nothing, and it does not affect a later run. A second call changes nothing.
        """
        running = self._running
        if running is not None:
            with suppress(RuntimeError):  # its event loop was closed just now
                running[0].call_soon_threadsafe(running[1].stop)

    def reset(self) -> None:
        """Forget what earlier runs have left in this process, for the next test. Raise RuntimeError during a run."""
        if self._running is not None:
            raise RuntimeError(f"{self.name} is running: stop it before reset()")
        self._last = None

    def after_fork(self) -> None:
        """Forget the run: its event loop does not run in the child."""
        self._running = None

    def health(self) -> Health:
        """Return the health of the current run; not live if there is none."""
        running = self._running
        if running is None:
            return Health(live=False, ready=False)
        loop = running[1]
        return Health(
            True,
            loop.ready,
            len(loop.in_flight),
            loop.failing,
            dict(loop.tally),
            stuck=loop.stuck,
            oldest=loop.oldest(),
            breaker_open=loop.breaker_open(),
        )

    def depth(self) -> Depth | None:
        """Count the messages by state; None if the source can't. This may call a store."""
        return None


def open_if_url(store: object) -> Any:
    """Return a store; open it if a URL is given."""
    if not isinstance(store, str):
        return store
    from abate.stores import open_store

    return open_store(store)


class Signals:
    """Calls `stop` at the first SIGTERM or SIGINT, and `break_off` at the second. Only works in the main thread."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT)
    taken: ClassVar[int] = 0
    """How many signals this process has received."""

    def __init__(self, stop: Callable[[], object], break_off: Callable[[], object]) -> None:
        self._next = [break_off, stop]
        self._in_main_thread = sys.platform != "win32" and threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}
        self.last: int | None = None
        """The number of the last signal."""

    def __enter__(self) -> Signals:
        if self._in_main_thread:
            forks.register(self)
            for number in self.SIGNALS:
                self._before[number] = signal.getsignal(number) or signal.SIG_DFL  # None for a handler of C code
                asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        return self

    def __exit__(self, *exit: object) -> None:
        for taken, handler in self._before.items():
            asyncio.get_running_loop().remove_signal_handler(taken)
            signal.signal(taken, handler)

    def after_fork(self) -> None:
        """In the child: let signals act as before the run, or they would reach the parent's event loop."""
        if self._before:
            signal.set_wakeup_fd(-1)
        for taken, handler in self._before.items():
            signal.signal(taken, _without_runner(handler))
        self._before = {}

    def _on_signal(self, number: int) -> None:
        self.last = number
        Signals.taken += 1
        if self._next:
            self._next.pop()()


def _without_runner(handler: Any) -> Any:
    """Return the handler that `asyncio.Runner` has replaced by one that cancels its main task, or else this one."""
    owner = getattr(getattr(handler, "func", None), "__self__", None)
    return signal.default_int_handler if isinstance(owner, asyncio.Runner) else handler
