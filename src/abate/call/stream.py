"""Generators with retries: a stream is retried until its first item is handed out, and may be resumed after that.

* A stream is a call, which succeeds when its first item is handed out, or when it ends without one. `timeout` and
  `attempt_timeout` bound the time until then; the budget gets its deposit then, and shelter and gates are told of
  the success. Gates that count what is in flight (`Gate.held_by_streams`) are left when the stream ends.
* After that an error passes as it is. With `resume`, it is the failed first attempt of another call, with a timeout of
  its own: the function is called again, with the keyword arguments that ``resume(last item)`` returns. At most one
  deposit is made per stream.
* Items before the first one that is `content` are held back until it comes. Rules for results are asked about items
  that are not handed out yet; if the attempts run out, the last stream is handed out as it is.
* `idle` bounds the wait for each item: async generators are cut off; in threads it is a deadline that clients inside
  keep.
* A consumer that stops early has had a success. ``send`` and ``throw`` reach the generator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from abate import clock as clocks
from abate.call import async_driver, sync_driver
from abate.call.before_retry import by_name
from abate.call.counters import acount_call, count_call, wrapper_versions
from abate.call.layers import retry_serials
from abate.call.machine import NO_RESULT, Call
from abate.call.stream_gates import HeldGates
from abate.errors import AttemptTimeout, IdleTimeout
from abate.redact import short_repr
from abate.schedule.deadlines import deadline

if TYPE_CHECKING:
    from abate.call.policy import Policy


class StreamCall(Call):
    """A call whose success does not end its attempt: the stream goes on."""

    __slots__ = ("_stream",)

    def __init__(self, stream: Stream, *settings: Any) -> None:
        self._stream = stream
        super().__init__(*settings)

    def _check_stream(self) -> None:
        pass

    def succeeded(self) -> None:
        """End the call: keep the gates that the stream holds on to."""
        held = tuple(gate for gate in self._in_flight if gate.held_by_streams)
        if held:
            others = tuple(gate for gate in self._in_flight if not gate.held_by_streams)
            handle = self._stream.held_gates = HeldGates(self._stream, HeldGates.leave)
            HeldGates.all_held.add(handle)
            # no call in between: each gate is left exactly once, even if a signal handler raises
            handle.gates, self._in_flight = held, others
        super().succeeded()

    def _deposit(self) -> None:
        if not self._stream.funded:
            self._stream.funded = True
            super()._deposit()


class Stream:
    """One stream: its generator, what it has handed out, and what it holds."""

    __slots__ = (
        "__weakref__",
        "args",
        "clock",
        "function",
        "funded",
        "held",
        "held_gates",
        "kwargs",
        "last",
        "over",
        "policy",
        "since",
    )

    generator: Any

    def __init__(
        self, policy: Policy, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.held_gates: HeldGates | None = None
        self.policy = policy
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.clock = policy.clock or clocks.current()
        self.held: deque[Any] = deque()
        """Items that are not handed out yet."""
        self.over = self.funded = False
        self.since = 0
        """The serial of the last call that had retried when the attempt began."""
        self.last: Any = None
        """The last item that was handed out."""

    def make(self, *settings: Any) -> StreamCall:
        """Make the machine of a call."""
        return StreamCall(self, *settings)

    def take(self) -> Any:
        """Return the next item to hand out."""
        self.last = self.held.popleft()
        return self.last

    def begin(self) -> None:
        """An attempt begins."""
        self.held.clear()
        self.over = False
        self.since = retry_serials.last

    def is_decided(self, item: Any) -> bool:
        """Return whether an attempt ends with this item: it is content, or what a rule says about it decides."""
        self.held.append(item)
        policy = self.policy
        if policy.content is None or policy.content(item):
            return True
        return policy.reads_results and not policy.rules.is_good(item)

    def result(self) -> Any:
        """Return what rules for results are asked about: the last item that came."""
        return self.held[-1] if self.held and self.policy.reads_results else NO_RESULT

    def check_sent(self, sent: Any) -> bool:
        """Return whether there is an item at hand, so that the generator need not be asked."""
        if self.held and sent is not None:
            raise TypeError(f"{self.function!r} cannot be sent a value while items that came before it are handed out")
        return bool(self.held) or self.over

    def resume(self) -> None:
        """Prepare to continue after the last item: leave the gates, and take the arguments of `resume`."""
        self.leave_gates()
        assert self.policy.resume is not None
        changes = self.policy.resume(self.last)
        if not isinstance(changes, Mapping):
            raise TypeError(f"resume must return a mapping of keyword arguments, not {short_repr(changes)}")
        self.args, self.kwargs = by_name(self.function, self.args, {**self.kwargs, **changes})

    def leave_gates(self) -> None:
        """Leave the gates that the stream still holds."""
        if self.held_gates is not None:
            self.held_gates.leave()
            self.held_gates = None


class SyncStream(Stream):
    """A stream in a thread. Called by the driver, it makes an attempt: up to the item that decides."""

    __slots__ = ("generator", "value")

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.generator: Generator[Any, Any, Any] | None = None
        self.value: Any = None
        """What the generator returned."""

    def open(self, failure: Exception | None = None) -> None:
        """Make attempts until one has an item to hand out; `failure` has ended the attempt before."""
        options: dict[str, Any] = {"let_go": self._let_go, "make": self.make, "drive_coroutine": _refuse_coroutines}
        call = (self.policy, failure, self.since, self, self.args, self.kwargs)
        try:
            if wrapper_versions.on:
                count_call(self.policy.counter, sync_driver.drive, *call, **options)
            else:
                sync_driver.drive(*call, **options)
        finally:
            del call, failure  # its traceback refers to this frame

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._let_go(None)
        self.begin()
        self.args, self.kwargs = args, kwargs
        generator = self.generator = self.function(*args, **kwargs)
        try:
            while not self.is_decided(self._ask(generator.send, None)):
                pass
        except StopIteration as stop:
            self.over, self.value = True, stop.value
        return self.result()

    def _let_go(self, left: float | None) -> None:
        generator, self.generator = self.generator, None
        if generator is not None:
            generator.close()

    def advance(self, sent: Any) -> None:
        """Get the next item, unless there is one at hand or the stream is over."""
        if not self.check_sent(sent):
            assert self.generator is not None
            self._step(self.generator.send, sent)

    def throw(self, thrown: BaseException) -> None:
        """Raise an error of the consumer in the generator, and get the next item."""
        self.held.clear()
        if self.generator is None or self.over:
            raise thrown
        try:
            self._step(self.generator.throw, thrown)
        finally:
            del thrown

    def _step(self, step: Callable[[Any], Any], given: Any) -> None:
        try:
            self.held.append(self._ask(step, given))
        except StopIteration as stop:
            self.over, self.value = True, stop.value
        except Exception as error:
            if self.policy.resume is None or error is given:
                raise
            self.resume()
            self.open(error)

    def _ask(self, step: Callable[[Any], Any], given: Any) -> Any:
        if self.policy.idle is None:
            return step(given)
        bound = deadline(self.policy.idle)
        try:
            with bound:
                return step(given)
        except BaseException:
            bound.close()
            raise

    def close(self) -> None:
        """Close the generator, and leave the gates."""
        try:
            self._let_go(None)
        finally:
            self.leave_gates()


class AsyncStream(Stream):
    """The same in a task, under asyncio or trio."""

    __slots__ = ("generator",)

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.generator: AsyncGenerator[Any, Any] | None = None

    async def open(self, failure: Exception | None = None) -> None:
        """Make attempts until one has an item to hand out; `failure` has ended the attempt before."""

        async def drive() -> None:
            nonlocal failure
            call = (self.policy, failure, self.since, self, self.args, self.kwargs)
            try:
                await async_driver.drive(*call, let_go=self._let_go, make=self.make)
            finally:
                failure = None
                del call

        await (acount_call(self.policy.counter, drive) if wrapper_versions.on else drive())

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        await self._let_go(None)
        self.begin()
        self.args, self.kwargs = args, kwargs
        generator = self.generator = self.function(*args, **kwargs)
        try:
            while not self.is_decided(await self._ask(generator.asend, None)):
                pass
        except StopAsyncIteration:
            self.over = True
        return self.result()

    async def _let_go(self, left: float | None) -> None:
        generator, self.generator = self.generator, None
        if generator is not None:
            await generator.aclose()

    async def advance(self, sent: Any) -> None:
        """Get the next item, unless there is one at hand or the stream is over."""
        if not self.check_sent(sent):
            assert self.generator is not None
            await self._step(self.generator.asend, sent)

    async def throw(self, thrown: BaseException) -> None:
        """Raise an error of the consumer in the generator, and get the next item."""
        self.held.clear()
        if self.generator is None or self.over:
            raise thrown
        try:
            await self._step(self.generator.athrow, thrown)
        finally:
            del thrown

    async def _step(self, step: Callable[[Any], Any], given: Any) -> None:
        try:
            self.held.append(await self._ask(step, given))
        except StopAsyncIteration:
            self.over = True
        except Exception as error:
            if self.policy.resume is None or error is given:
                raise
            self.resume()
            await self.open(error)

    async def _ask(self, step: Callable[[Any], Any], given: Any) -> Any:
        idle = self.policy.idle
        if idle is None:
            return await step(given)
        bound = deadline(idle)
        cut = self.clock.within(idle)
        expired = False
        try:
            with bound:
                async with cut as scope:
                    try:
                        return await step(given)
                    finally:
                        expired = scope.expired()
        except AttemptTimeout:
            if not expired:
                raise  # the generator's own
            raise IdleTimeout(idle) from None
        finally:
            bound.close()

    async def aclose(self) -> None:
        """Close the generator, and leave the gates."""
        try:
            await self._let_go(None)
        finally:
            self.leave_gates()


def wrap_generator(policy: Policy, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a generator function that hands out the items of `function`, with retries."""

    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        stream = SyncStream(policy, function, args, kwargs)
        try:
            stream.open()
            while stream.held:
                try:
                    sent = yield stream.take()
                except GeneratorExit:
                    raise
                except BaseException as thrown:
                    stream.throw(thrown)
                else:
                    stream.advance(sent)
            return stream.value
        finally:
            stream.close()

    return wrapper


def wrap_async_generator(policy: Policy, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an async generator function that hands out the items of `function`, with retries."""

    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        stream = AsyncStream(policy, function, args, kwargs)
        try:
            await stream.open()
            while stream.held:
                try:
                    sent = yield stream.take()
                except GeneratorExit:
                    raise
                except BaseException as thrown:
                    await stream.throw(thrown)
                else:
                    await stream.advance(sent)
        finally:
            await stream.aclose()

    return wrapper


def _refuse_coroutines(policy: Policy, function: object, result: Any, *arguments: object) -> NoReturn:
    raise TypeError(f"rules for results cannot be asked about items that are coroutines, such as {result!r}")
