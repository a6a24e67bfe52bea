"""The block form: the attempts of a piece of code that is not a function.

for attempt in policy.attempts():
    with attempt:
        ...

In an ``async for`` the body is cut off when the time of its attempt is over, as a coroutine function would be.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from abate import clock as clocks
from abate.admit.bells import awaiting, wait
from abate.call.machine import Call, Hold, Send, Stop, Wait
from abate.call.tally import watch
from abate.schedule.deadlines import deadline, shorter

if TYPE_CHECKING:
    from abate.call.policy import Policy


class Attempts:
    """The attempts of one call, for ``for`` and ``async for``: one after another until one succeeds.

    Only the loop holds this object. It goes when the loop is left, and a withdrawal for an attempt that will not
    be made goes back with it.
    """

    __slots__ = ("_block",)

    def __init__(self, policy: Policy) -> None:
        self._block = _Block(policy)

    def __iter__(self) -> Attempts:
        return self

    def __next__(self) -> Attempt:
        block = self._block
        if block.over:
            raise StopIteration
        try:
            block.check_used()
            if block.wait is not None and (delay := block.wait.until - block.clock.now()) > 0:
                block.clock.sleep(delay)
            action = block.machine.begin()
            if isinstance(action, Hold):
                wait(action.door, action.waiter)
                action = block.machine.turn()
            return block.begin(action, asynchronous=False)
        except BaseException as error:
            block.break_off(error)
            raise

    def __aiter__(self) -> Attempts:
        return self

    async def __anext__(self) -> Attempt:
        block = self._block
        if block.over:
            raise StopAsyncIteration
        try:
            block.check_used()
            if block.wait is not None:
                await block.clock.asleep(block.wait.until - block.clock.now())
            action = block.machine.begin()
            if isinstance(action, Hold):
                await awaiting(action.door, action.waiter)
                action = block.machine.turn()
            return block.begin(action, asynchronous=True)
        except BaseException as error:
            block.break_off(error)
            raise

    def __del__(self) -> None:
        block: _Block | None = getattr(self, "_block", None)
        if block is not None and not block.over:
            block.break_off(None)


class _Block:
    """One call in block form: what the loop and its attempts share."""

    __slots__ = ("bound", "clock", "entered", "last", "machine", "over", "tally", "wait")

    def __init__(self, policy: Policy) -> None:
        self.clock = policy.clock or clocks.current()
        left = shorter(policy.timeout)
        due = None if left is None else self.clock.now() + left
        self.machine = Call(policy, due, lent=left is not policy.timeout)
        self.last: Exception | None = None
        self.wait: Wait | None = None
        self.bound: deadline | None = None
        self.entered = True
        self.over = False
        self.tally = policy.tally if watch.on else None
        if self.tally is not None:
            self.tally.begun.add()

    def check_used(self) -> None:
        if not self.entered:
            raise RuntimeError("an attempt was not used: put the body of the loop into `with attempt:`")

    def begin(self, action: Send | Stop, asynchronous: bool) -> Attempt:
        if isinstance(action, Stop):
            assert self.last is not None
            failure = self.machine.give_up(action, self.last)
            assert failure is not None
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame: don't hold it back
        self.entered = False
        return Attempt(self, self.machine.attempts + 1, asynchronous)

    def enter(self) -> float | None:
        """The seconds that the attempt may take; None where nothing bounds it."""
        if self.entered or self.over:
            raise RuntimeError("an attempt is used once, within its loop")
        self.entered = True
        if not self.machine.policy.bounded:
            return None
        return self.machine.allowance(self.clock.now())

    def succeed(self) -> None:
        try:
            self.machine.succeeded()
        except BaseException as error:
            self.break_off(error)
            raise
        self._end(good=True)

    def fail(self, error: Exception) -> Exception | None:
        """The error that ends the loop; None if another attempt follows."""
        if error is self.last:
            self.machine.same_error = True
        try:
            action = self.machine.failed(error, self.clock.now())
        except BaseException as broken:
            self.break_off(broken)
            raise
        if isinstance(action, Wait):
            self.wait, self.last = action, error
            return None
        self._end()
        return self.machine.give_up(action, error)

    def break_off(self, error: BaseException | None) -> None:
        if self.bound is not None:
            self.bound.close()
        self._end()
        self.machine.broken_off(error)

    def _end(self, good: bool = False) -> None:
        if self.tally is not None and not self.over:
            (self.tally.good if good else self.tally.bad).add()
        self.over = True
        self.last = None  # its traceback holds the loop's frame, which holds this: don't hold it back


class Attempt:
    """One attempt of a block; `number` counts from 1."""

    __slots__ = ("_asynchronous", "_block", "_cut", "_deadline", "number")

    def __init__(self, block: _Block, number: int, asynchronous: bool) -> None:
        self._block = block
        self._asynchronous = asynchronous
        self._deadline: deadline | None = None
        self._cut: AbstractAsyncContextManager[object] | None = None
        self.number = number

    def __enter__(self) -> Attempt:
        allowance = self._block.enter()
        if allowance is not None:
            if self._asynchronous:
                cut = self._block.clock.within(allowance)
                _at_once(cut.__aenter__())
                self._cut = cut
            self._deadline = self._block.bound = deadline(allowance)
            self._deadline.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        raised = self._leave(kind, error, trace)
        if raised is None:
            self._block.succeed()
            return False
        final: BaseException | None = raised
        if isinstance(raised, Exception):
            final = self._block.fail(raised)
        else:
            self._block.break_off(raised)
        if final is None:
            return True
        if final is not error:
            try:
                raise final
            finally:
                del final, raised  # their tracebacks hold this frame: don't hold them back
        return False

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> BaseException | None:
        """What the body has ended with: an `AttemptTimeout` where it was cut off."""
        if self._deadline is not None:
            self._deadline.__exit__(kind, error, trace)
        if self._cut is not None:
            try:
                _at_once(self._cut.__aexit__(kind, error, trace))
            except BaseException as instead:
                return instead
        return error


def _at_once(step: Awaitable[object]) -> None:
    """Run to its end what is to be awaited, and waits for nothing."""
    next(step.__await__(), None)
