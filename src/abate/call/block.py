"""The block form: attempts of code that is not a function.

for attempt in policy.attempts():
    with attempt:
        ...

A body whose result is to be judged by the policy's rules assigns it: ``attempt.result = ...``.

In an ``async for`` the body is cut off when the time of its attempt is over, like a coroutine function.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

from abate import clock as clocks
from abate.call.actions import Send, Stop, Wait, WaitForTurn
from abate.call.before_retry import RetryContext, arun, refuse_async, run
from abate.call.counters import wrapper_versions
from abate.call.machine import NO_RESULT, Call
from abate.decide.outcome import Outcome
from abate.schedule.deadlines import cut_to_deadline, deadline

if TYPE_CHECKING:
    from abate.call.policy import Policy


class Attempts:
    """The attempts of one call, for ``for`` and ``async for``: one after another until one succeeds.

    Only the loop refers to this object. When the loop is left the object is collected, and a withdrawal for an attempt
    that will not be made is refunded.
    """

    __slots__ = ("__weakref__", "_block", "last")

    last: Outcome | Exception | None
    """The outcome of the last attempt; the traceback of its error holds the frame of the loop, which holds this."""

    def __init__(self, policy: Policy) -> None:
        self.last = None
        self._block = _Block(self, policy)

    def __iter__(self) -> Attempts:
        return self

    def __next__(self) -> Attempt:
        block = self._block
        if block.over:
            raise StopIteration
        try:
            block.check_used()
            action: Any = self._before_attempt()
            if action is None:
                action = block.machine.begin()
                if isinstance(action, WaitForTurn):
                    from abate.admit.waiting import wait_in_thread  # imported with the first policy with a shelter

                    wait_in_thread(action.dispatcher, action.waiter)
                    action = block.machine.take_turn()
            attempt = block.begin(action, self.last, asynchronous=False)
        except BaseException as error:
            block.break_off(error)
            raise
        if attempt is None:
            raise StopIteration
        return attempt

    def _before_attempt(self) -> Stop | None:
        """Call `before_retry`, and wait; return a stop if that took too long."""
        block, hook = self._block, self._block.machine.policy.before_retry
        if block.wait is None:
            refuse_async(hook)
            return None
        if hook is not None:
            run(hook, block.retry_context(self.last), block.machine.seconds_left())
            action = block.machine.still_in_time(block.wait)
            if isinstance(action, Stop):
                return action
        delay = block.wait.until - block.clock.now()
        if delay > 0:
            block.clock.sleep(delay)
        return None

    def __aiter__(self) -> Attempts:
        return self

    async def __anext__(self) -> Attempt:
        block = self._block
        if block.over:
            raise StopAsyncIteration
        try:
            block.check_used()
            action: Any = await self._abefore_attempt()
            if action is None:
                action = block.machine.begin()
                if isinstance(action, WaitForTurn):
                    from abate.admit.waiting import wait_in_task

                    await wait_in_task(action.dispatcher, action.waiter)
                    action = block.machine.take_turn()
            attempt = block.begin(action, self.last, asynchronous=True)
        except BaseException as error:
            block.break_off(error)
            raise
        if attempt is None:
            raise StopAsyncIteration
        return attempt

    async def _abefore_attempt(self) -> Stop | None:
        """Do the same as `_before_attempt` in a task."""
        block, hook = self._block, self._block.machine.policy.before_retry
        if block.wait is None:
            return None
        if hook is not None:
            await arun(hook, block.retry_context(self.last), block.machine.seconds_left(), block.clock)
            action = block.machine.still_in_time(block.wait)
            if isinstance(action, Stop):
                return action
        await block.clock.asleep(max(0.0, block.wait.until - block.clock.now()))
        return None


class _Block:
    """One call in block form: what the loop and its attempts share.

    A weak reference to the loop ends the call when the loop is left early. A ``__del__`` would also run for each loop
    that ended normally, and what a signal handler raises in a finalizer (a soft time limit, Ctrl-C) is lost. Nothing
    reachable from `open_loops` may hold the loop, so errors are kept in the loop itself.
    """

    __slots__ = ("bound", "clock", "counter", "entered", "loop", "machine", "over", "wait")

    open_loops: ClassVar[set[ref[Attempts]]] = set()
    """Keeps the weak references alive: the collector does not call those that it collects itself."""

    def __init__(self, loop: Attempts, policy: Policy) -> None:
        self.clock = policy.clock or clocks.current()
        left = cut_to_deadline(policy.timeout)
        due = None if left is None else self.clock.now() + left
        self.machine = Call(policy, due, outer_deadline=left is not policy.timeout)
        self.wait: Wait | None = None
        self.bound: deadline | None = None
        self.entered = True
        self.over = False
        self.counter = policy.counter if wrapper_versions.on else None
        if self.counter is not None:
            self.counter.begun.add()
        self.loop: ref[Attempts] | None = ref(loop, self._abandoned)
        self.open_loops.add(self.loop)

    def _abandoned(self, loop: ref[Attempts]) -> None:
        """End the call: the loop was left early."""
        self.break_off(None)

    def check_used(self) -> None:
        if not self.entered:
            raise RuntimeError("an attempt was not used: put the body of the loop into `with attempt:`")

    def retry_context(self, last: Outcome | Exception | None) -> RetryContext:
        """Return what `before_retry` gets."""
        assert last is not None
        assert self.wait is not None
        return RetryContext(last, self.machine.attempts, max(0.0, self.wait.until - self.clock.now()))

    def begin(self, action: Send | Stop, last: Outcome | Exception | None, asynchronous: bool) -> Attempt | None:
        """Return the next attempt; None if the loop ends with the last result as it is."""
        if isinstance(action, Stop):
            assert last is not None
            failure = self.machine.give_up(action, last)
            try:
                if failure is not None:
                    raise failure
            finally:
                del failure, last  # its traceback refers to this frame
            self._end()
            return None
        self.entered = False
        return Attempt(self, self.machine.attempts + 1, asynchronous)

    def start_attempt(self) -> float | None:
        """Return the seconds that the attempt may take; None without a limit."""
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

    def is_good(self, result: object) -> bool:
        """Return whether no rule asks for a retry of a result."""
        try:
            return not self.machine.policy.reads_results or self.machine.is_good(result)
        except BaseException as error:
            self.break_off(error)
            raise

    def fail(self, error: Outcome | Exception) -> Exception | None:
        """Return the error that ends the loop; None if another attempt follows, or if the last result stays."""
        loop = None if self.loop is None else self.loop()
        if loop is None:
            return error if isinstance(error, Exception) else None  # the loop was dropped: there is no other attempt
        if error is loop.last:
            self.machine.same_error = True
        try:
            action = self.machine.failed(error, self.clock.now())
        except BaseException as broken:
            self.break_off(broken)
            raise
        if isinstance(action, Wait):
            self.wait, loop.last = action, error
            return None
        self._end()
        return self.machine.give_up(action, error)

    def break_off(self, error: BaseException | None) -> None:
        if self.bound is not None:
            self.bound.close()
        self._end()
        self.machine.broken_off(error)

    def _end(self, good: bool = False) -> None:
        if self.counter is not None and not self.over:
            (self.counter.good if good else self.counter.bad).add()
        self.over = True
        watched, self.loop = self.loop, None
        if watched is not None:
            self.open_loops.discard(watched)
            loop = watched()
            if loop is not None:
                loop.last = None  # its traceback refers to the loop's frame


class Attempt:
    """One attempt of a block; `number` counts from 1.

    Assign to `result` what the policy's rules for results are to judge. When the attempts run out, the loop ends,
    and the last result stays.

    >>> import abate
    >>> script = abate.testing.Script(None, "there")
    >>> for attempt in abate.Policy(on=abate.on_result(lambda answer: answer is None), backoff=[0.0]).attempts():
    ...     with attempt:
    ...         answer = attempt.result = script()
    >>> answer, attempt.number
    ('there', 2)
    """

    __slots__ = ("_asynchronous", "_block", "_cut", "_deadline", "number", "result")

    result: Any

    def __init__(self, block: _Block, number: int, asynchronous: bool) -> None:
        self._block = block
        self._asynchronous = asynchronous
        self._deadline: deadline | None = None
        self._cut: AbstractAsyncContextManager[object] | None = None
        self.number = number

    def __enter__(self) -> Attempt:
        allowance = self._block.start_attempt()
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
            result = getattr(self, "result", NO_RESULT)
            if self._block.is_good(result):
                self._block.succeed()
                return False
            exhausted = self._block.fail(Outcome(None, result))
            if exhausted is not None:
                raise exhausted
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
                del final, raised  # their tracebacks refer to this frame
        return False

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> BaseException | None:
        """Return what the body has raised; an `AttemptTimeout` if it was cut off."""
        if self._deadline is not None:
            self._deadline.__exit__(kind, error, trace)
        if self._cut is not None:
            try:
                _at_once(self._cut.__aexit__(kind, error, trace))
            except BaseException as instead:
                return instead
        return error


def _at_once(step: Awaitable[object]) -> None:
    """Run an awaitable that never suspends."""
    next(step.__await__(), None)
