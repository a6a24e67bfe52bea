"""The block form: the attempts of a piece of code that is not a function.

for attempt in policy.attempts():
    with attempt:
        ...
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from abate import clock as clocks
from abate.call.machine import Call, Stop, Wait
from abate.decide.outcome import Outcome
from abate.schedule.deadlines import deadline, shorter

if TYPE_CHECKING:
    from abate.call.policy import Policy


class Attempts:
    """The attempts of one call, for ``for`` and ``async for``: one after another until one succeeds."""

    __slots__ = ("_clock", "_entered", "_last", "_machine", "_over", "_wait")

    def __init__(self, policy: Policy) -> None:
        self._clock = policy.clock or clocks.current()
        left = shorter(policy.timeout)
        self._machine = Call(policy, None if left is None else self._clock.now() + left)
        self._last: Outcome | Exception = Outcome()
        self._wait: Wait | None = None
        self._entered = True
        self._over = False

    def __iter__(self) -> Attempts:
        return self

    def __next__(self) -> Attempt:
        if self._over:
            raise StopIteration
        try:
            if self._wait is not None and (wait := self._wait.until - self._clock.now()) > 0:
                self._clock.sleep(wait)
            return self._begin()
        except BaseException as error:
            self._break_off(error)
            raise

    def __aiter__(self) -> Attempts:
        return self

    async def __anext__(self) -> Attempt:
        if self._over:
            raise StopAsyncIteration
        try:
            if self._wait is not None:
                await self._clock.asleep(self._wait.until - self._clock.now())
            return self._begin()
        except BaseException as error:
            self._break_off(error)
            raise

    def _begin(self) -> Attempt:
        if not self._entered:
            raise RuntimeError("an attempt was not used: put the body of the loop into `with attempt:`")
        action = self._machine.begin()
        if isinstance(action, Stop):
            self._over = True
            failure = self._machine.give_up(action, self._last)
            assert failure is not None
            raise failure
        self._entered = False
        return Attempt(self, self._machine.attempts + 1)

    def _enter(self) -> deadline | None:
        self._entered = True
        if not self._machine.policy.bounded:
            return None
        return deadline(self._machine.allowance(self._clock.now()))

    def _succeed(self) -> None:
        self._over = True
        self._machine.succeeded()

    def _fail(self, error: Exception) -> Exception | None:
        """The error that ends the loop; None if another attempt follows."""
        self._last = error
        action = self._machine.failed(error, self._clock.now())
        if isinstance(action, Wait):
            self._wait = action
            return None
        self._over = True
        return self._machine.give_up(action, self._last)

    def _break_off(self, error: BaseException) -> None:
        self._over = True
        self._machine.broken_off(error)

    def __del__(self) -> None:
        # a loop that was left between two attempts has a withdrawal to return
        if not getattr(self, "_over", True):
            self._machine.broken_off()


class Attempt:
    """One attempt of a block; `number` counts from 1."""

    __slots__ = ("_attempts", "_deadline", "number")

    def __init__(self, attempts: Attempts, number: int) -> None:
        self._attempts = attempts
        self._deadline: deadline | None = None
        self.number = number

    def __enter__(self) -> Attempt:
        self._deadline = self._attempts._enter()
        if self._deadline is not None:
            self._deadline.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._deadline is not None:
            self._deadline.__exit__(kind, error, trace)
        if error is None:
            self._attempts._succeed()
            return False
        if not isinstance(error, Exception):
            self._attempts._break_off(error)
            return False
        final = self._attempts._fail(error)
        if final is None:
            return True
        if final is not error:
            raise final
        return False
