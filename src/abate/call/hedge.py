"""Hedging: a second attempt for the few slow ones, for requests that may safely be sent twice.

    first attempt ──────────── after the learned p95, still no answer ─────────────► good: the answer
                                     │ paid from the policy's budget, admitted by its gate
                                     └──► second attempt ──────────────────────────► good: the answer

* The first good answer wins, and the other attempt is cancelled. If one attempt fails, the other one decides; if both
  fail, the first error is raised, and the policy handles it as usual.
* Hedges are paid from the retry budget, and there are none in a storm: a slow dependency must not get twice the load.
* Timeouts learn from first attempts only. One that was cut off counts as slower than its cut-off. Second attempts are
  not counted: only fast ones finish, which would make the timeout too short.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from functools import wraps
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, overload

from abate import clock as clocks
from abate.call.hedge_race import FIRST, SECOND, Race
from abate.call.policy import Policy
from abate.clock import Clock
from abate.decide.outcome import Outcome
from abate.errors import AttemptTimeout, number, suggests_settings
from abate.functions import is_coroutine_function, is_coroutine_object, is_generator_function
from abate.redact import short_repr
from abate.schedule.deadlines import carry_deadline, deadline
from abate.schedule.timeouts import Timeouts

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Owner = TypeVar("Owner")


class Hedge:
    """Makes calls with a policy and hedged attempts: a second attempt is started when the first is slow.

    For operations that are safe to repeat, as reads are. `timeouts` learns how long they take; the second attempt
    is started after the time within which a share `quantile` of them is answered, if the policy's budget pays for it.

    * asyncio, trio: the attempt that loses is cancelled, and waited for until it is gone. Cancelling the
      caller cancels both.
    * threads: a thread cannot be cancelled. Attempts run in threads of their own, with a deadline of
      ``timeouts.request()``, which clients inside keep; the one that loses goes on until it has ended, and what it
      returns or raises is dropped. Its threads are daemons, and don't hold up the end of the program.

    >>> import abate
    >>> orders = Policy(name="orders", on=ConnectionError)
    >>> hedged = Hedge(orders, Timeouts(name="orders"))
    >>> hedged.call(divmod, 7, 2)
    (3, 1)
    >>> @hedged
    ... async def load(order: int) -> str:
    ...     return f"order {order}"
    >>> import asyncio
    >>> asyncio.run(load(42))
    'order 42'
    """

    __slots__ = ("policy", "quantile", "timeouts")

    @suggests_settings
    def __init__(self, policy: Policy, timeouts: Timeouts, *, quantile: float = 0.95) -> None:
        if not isinstance(policy, Policy):
            raise TypeError(f"policy must be a Policy, not {short_repr(policy)}")
        if policy.idempotent is False:
            raise ValueError(
                f"can't hedge {policy!r}: a hedge may send a request twice, and idempotent=False forbids that"
            )
        if not isinstance(timeouts, Timeouts):
            raise TypeError(f"timeouts must be Timeouts, not {short_repr(timeouts)}")
        if number("quantile", quantile, above=0) >= 1.0:
            raise ValueError(f"quantile must be a number above 0 and below 1, not {short_repr(quantile)}")
        self.policy = policy
        self.timeouts = timeouts
        self.quantile = float(quantile)

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function with hedged attempts.

        >>> Hedge(Policy(on=ConnectionError), Timeouts()).call(max, 1, 2)
        2
        """
        _callable(function)

        def attempt(*args: Any, **kwargs: Any) -> Any:
            return self._in_threads(function, args, kwargs)

        result: T = self.policy.call(attempt, *args, **kwargs)
        return result

    async def acall(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a coroutine function with hedged attempts, under asyncio or trio.

        >>> import asyncio
        >>> async def load(order): return f"order {order}"
        >>> asyncio.run(Hedge(Policy(on=ConnectionError), Timeouts()).acall(load, 42))
        'order 42'
        """
        _callable(function)

        async def attempt(*args: Any, **kwargs: Any) -> Any:
            return await self._in_tasks(function, args, kwargs)

        result: T = await self.policy.acall(attempt, *args, **kwargs)
        return result

    @overload
    def __call__(self, function: classmethod[Owner, P, T]) -> classmethod[Owner, P, T]: ...
    @overload
    def __call__(self, function: staticmethod[P, T]) -> staticmethod[P, T]: ...
    @overload
    def __call__(self, function: F) -> F: ...
    def __call__(self, function: Any) -> Any:
        """Decorate a function or coroutine function, as a policy does.

        >>> @Hedge(Policy(on=ConnectionError), Timeouts())
        ... def load(order: int) -> str:
        ...     return f"order {order}"
        >>> load(42)
        'order 42'
        """
        if isinstance(function, (classmethod, staticmethod)):
            return type(function)(self(function.__func__))
        _refuse_generator(function)
        if is_coroutine_function(self.policy(function)):  # the policy refuses what cannot be decorated

            @wraps(function)
            async def attempt(*args: Any, **kwargs: Any) -> Any:
                return await self._in_tasks(function, args, kwargs)

            return self.policy(attempt)

        @wraps(function)
        def attempt_in_thread(*args: Any, **kwargs: Any) -> Any:
            return self._in_threads(function, args, kwargs)

        return self.policy(attempt_in_thread)

    def _race(self) -> tuple[Race, Clock, float]:
        clock = self.policy.clock or clocks.current()
        return Race(self.policy, self.timeouts, clock), clock, self.timeouts.quantile(self.quantile)

    def _in_threads(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make one attempt of the policy, in one or two threads; only this thread touches the race."""
        race, _, patience = self._race()
        ended: SimpleQueue[tuple[int, Outcome, BaseException | None]] = SimpleQueue()
        limit = self.timeouts.request()

        def attempt(which: int) -> None:
            if not race.begin(which):
                return
            outcome, broken = _outcome(limit, function, args, kwargs)
            ended.put((which, outcome, broken))
            if which == SECOND:
                race.second_ended(None if broken else outcome)

        def take(seconds: float | None = None) -> None:
            which, outcome, broken = ended.get(timeout=seconds)
            if broken is None:
                race.ended(which, outcome)
            else:
                race.broken(broken)

        _start(attempt, FIRST)
        try:
            try:
                take(patience)
            except Empty:
                if race.hedge():
                    try:
                        _start(attempt, SECOND)
                    except RuntimeError:  # no more threads can be started
                        race.unsent()
            while not race.over:
                take()
            return race.result()
        finally:
            race.close()

    async def _in_tasks(
        self, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Make one attempt of the policy, in one or two tasks, under asyncio or trio."""
        race, clock, patience = self._race()
        tasks = TrioTasks() if clocks.in_trio() else AsyncioTasks()

        async def attempt(which: int) -> None:
            try:
                try:
                    race.begin(which)
                    outcome = Outcome(None, await function(*args, **kwargs))
                except Exception as error:
                    outcome = Outcome(error)
                race.ended(which, outcome)
            except BaseException as error:
                race.broken(error)
                if isinstance(error, tasks.Cancelled):
                    raise
            finally:
                if race.over:
                    tasks.over.set()

        try:
            async with tasks:
                tasks.start(attempt, FIRST)
                try:
                    cut = clock.within(patience)
                    async with cut:
                        await tasks.over.wait()
                except AttemptTimeout:
                    try:
                        if race.hedge():
                            tasks.start(attempt, SECOND)
                    except BaseException as error:  # of a gate, say: not to be raised in a group
                        race.broken(error)
                        tasks.over.set()
                    await tasks.over.wait()
                tasks.cancel()
        finally:
            try:
                race.second_ended(race.second)
            finally:
                race.close()
        return race.result()

    def __repr__(self) -> str:
        return f"Hedge({self.policy!r}, {self.timeouts!r}, quantile={self.quantile:g})"


class AsyncioTasks:
    """The tasks of one race under asyncio; leaving the block waits for them, and a cancellation reaches them."""

    def __init__(self) -> None:
        import asyncio

        self.Cancelled: type[BaseException] = asyncio.CancelledError
        self.over: Any = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        await self._group.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._group.__aexit__(kind, error, trace)

    def start(self, attempt: Callable[[int], Any], which: int) -> None:
        self._tasks.append(self._group.create_task(attempt(which)))

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


class TrioTasks:
    """The same under trio: a nursery."""

    def __init__(self) -> None:
        trio: Any = sys.modules["trio"]
        self.Cancelled: type[BaseException] = trio.Cancelled
        self.over: Any = trio.Event()
        self._manager = trio.open_nursery()

    async def __aenter__(self) -> None:
        self._nursery = await self._manager.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        swallowed: bool | None = await self._manager.__aexit__(kind, error, trace)
        return swallowed

    def start(self, attempt: Callable[[int], Any], which: int) -> None:
        self._nursery.start_soon(attempt, which)

    def cancel(self) -> None:
        self._nursery.cancel_scope.cancel()


def _outcome(
    limit: float, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Outcome, BaseException | None]:
    """Make one attempt in this thread; return its outcome, and the exit that it was ended by."""
    outcome = Outcome()
    try:
        with deadline(limit):
            result = outcome.result = function(*args, **kwargs)
        if is_coroutine_object(result):
            result.close()
            raise TypeError(f"{function!r} returns a coroutine: use acall, or hedge the coroutine function")
    except Exception as error:
        outcome.error = error
    except BaseException as error:  # raised in the waiting thread
        return outcome, error
    return outcome, None


def _start(attempt: Callable[[int], None], which: int) -> None:
    work = carry_deadline(attempt)  # the losing attempt keeps the deadline of its call
    Thread(target=copy_context().run, args=(work, which), name="abate hedge", daemon=True).start()


def _callable(function: Any) -> None:
    if not callable(function):
        if hasattr(function, "close"):
            function.close()  # a coroutine that will not be awaited after all
        raise TypeError(
            f"a hedge takes the function, then its arguments, as in hedge.call(load, 42), not {short_repr(function)}"
        )
    _refuse_generator(function)


def _refuse_generator(function: Any) -> None:
    if is_generator_function(function):
        raise TypeError(
            f"{function!r} is a generator function, and streams cannot be hedged: decorate it with the policy itself"
        )
