"""Hands messages to a handler that takes several at once, and gives each message its own result.

* A batch is what has been received at the same time: nothing waits for a batch to fill. While all workers are busy,
  nothing is received, as another process may be idle: what comes meanwhile waits in the source for the next batch.
* A message that comes back makes a batch of its own. So whatever a batch of several raises, its messages come back, and
  the next time the error of each is its own: one that always fails goes to the dead letters without its neighbours.
* The loop sees a coroutine for each message, which waits for the message's result; so leases, verdicts, groups and
  suspects are as for a handler of one message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from inspect import isawaitable
from typing import Any, cast

from abate import clock as clocks
from abate.errors import AttemptTimeout
from abate.logs import Log
from abate.redact import short_repr
from abate.schedule.deadlines import carry_deadline, deadline
from abate.work.handler_results import Again
from abate.work.run_state import Delivery
from abate.work.source import Message
from abate.work.stuck_handlers import STUCK_TOLERANCE
from abate.work.task_slots import TaskSlots
from abate.work.thread_pool import DaemonThreadPool, NotStarted
from abate.work.verdict_rules import BatchFailed

log = Log("abate.work")


class Member:
    """A message, and the future of its result: what a handler of this message alone would return or raise."""

    __slots__ = ("message", "result")

    def __init__(self, message: Message) -> None:
        self.message = message
        # the error is a value: a future can't hold a StopIteration, and warns of an error that is not awaited
        self.result: asyncio.Future[tuple[object, BaseException | None]]
        self.result = asyncio.get_running_loop().create_future()


class Batches(TaskSlots):
    """The batches of one run: up to `workers` run at once, each of up to `size` messages.

    `holds_lease` returns whether the lease of a message has not run out while the message waited.
    """

    __slots__ = (
        "_asynchronous",
        "_function",
        "_holds_lease",
        "_name",
        "_running",
        "_size",
        "_starting",
        "_threads",
        "_timeout",
        "_unbatched",
        "_workers",
        "stuck",
    )

    def __init__(
        self,
        name: str,
        function: Callable[[list[Message]], object],
        *,
        asynchronous: bool,
        size: int,
        workers: int,
        timeout: float | None,
        holds_lease: Callable[[Message], bool],
    ) -> None:
        super().__init__(workers * size)
        self._name = name
        self._function = function
        self._asynchronous = asynchronous
        self._size = size
        self._workers = workers
        self._timeout = timeout
        self._holds_lease = holds_lease
        self._threads = DaemonThreadPool(workers)
        self._unbatched: deque[Member] = deque()
        self._running: dict[asyncio.Task[None], list[Member]] = {}
        self._starting = False
        self.stuck = 0
        """Batches of a plain function that have exceeded their timeout and still run."""

    @property
    def all_stuck(self) -> bool:
        """Return whether no worker is left."""
        return self.stuck >= self._workers

    def count_unbatched(self, in_flight: Iterable[Delivery]) -> int:
        """Return how many messages in flight wait for a worker, or for the event loop to begin their handler."""
        return self.waiting + sum(delivery.is_running and not delivery.started for delivery in in_flight)

    def room(self, in_flight: Iterable[Delivery]) -> int:
        """Return how many messages to receive for the workers that are free when all in flight are in batches."""
        batches = -(-self.count_unbatched(in_flight) // self._size)
        return max(0, self._workers - len(self._running) - self.stuck - batches) * self._size

    @property
    def waiting(self) -> int:
        """Return how many messages wait for a worker."""
        return super().waiting + len(self._unbatched)

    def take_back(self) -> None:
        """Let no waiting message begin: their calls raise `NotStarted`."""
        super().take_back()
        self._return_members(list(self._unbatched))

    def _return_members(self, members: list[Member]) -> None:
        for member in members:
            self._unbatched.remove(member)
            member.result.set_result((None, NotStarted()))

    async def handle(self, message: Message) -> object:
        """Wait for the result of a message, and return or raise it. Raise `NotStarted` if it was taken back."""
        member = Member(message)
        self._unbatched.append(member)
        if not self._starting:  # after the other messages of this receive
            self._starting = True
            asyncio.get_running_loop().call_soon(self._start)
        while True:
            try:
                value, error = await asyncio.shield(member.result)
                break
            except asyncio.CancelledError:
                if member in self._unbatched:
                    self._unbatched.remove(member)
                    raise
                if self._asynchronous:
                    self._leave(member)
                    raise
                # a thread can't be cancelled: its result counts if it comes in time
        if error is not None:
            raise error
        return value

    def _leave(self, member: Member) -> None:
        """Cancel the coroutine of a batch if none of its messages waits for it any more."""
        member.result.cancel()
        for task, members in self._running.items():
            if member in members and all(one.result.done() for one in members):
                task.cancel()

    def _start(self) -> None:
        """Start batches while workers are free."""
        self._starting = False
        self._return_members([member for member in self._unbatched if not self._holds_lease(member.message)])
        while self._unbatched and len(self._running) + self.stuck < self._workers:
            members = self._next_batch()
            task = asyncio.get_running_loop().create_task(self._run(members))
            self._running[task] = members
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._start()

    def _next_batch(self) -> list[Member]:
        if self._unbatched[0].message.receives > 1:
            return [self._unbatched.popleft()]
        members = [member for member in self._unbatched if member.message.receives == 1][: self._size]
        for member in members:
            self._unbatched.remove(member)
        return members

    async def _run(self, members: list[Member]) -> None:
        """Call the handler with a batch, and set the results of its messages."""
        messages = [member.message for member in members]
        results: Mapping[Message, object]
        try:
            results = _results(messages, await self._call_in_time(messages))
        except BaseException as error:  # passed on, whatever it is: the loop decides about it
            first = error if len(members) == 1 else BatchFailed(error, counted=True)
            results = {**dict.fromkeys(messages, BatchFailed(error, counted=False)), messages[0]: first}
        for member in members:
            if not member.result.done():
                result = results.get(member.message)
                member.result.set_result((None, result) if isinstance(result, BaseException) else (result, None))

    async def _call_in_time(self, messages: list[Message]) -> object:
        if self._timeout is None:
            return await self._call(messages)
        clock = clocks.current()
        with closing(deadline(self._timeout)) as bound, bound:
            if self._asynchronous:
                cut = clock.within(self._timeout)
                async with cut:
                    return await self._call(messages)
            calling = asyncio.ensure_future(self._call(messages))
            cut = clock.within(self._timeout + max(STUCK_TOLERANCE, 0.1 * self._timeout))
            try:
                async with cut:
                    return await asyncio.shield(calling)
            except AttemptTimeout:
                self._keep_stuck(calling, messages)
                raise

    def _keep_stuck(self, calling: asyncio.Future[object], messages: Sequence[Message]) -> None:
        """Count a thread that does not end as a worker at work, until it ends."""
        self.stuck += 1

        def ended(_: object) -> None:
            self.stuck -= 1
            if not calling.cancelled():
                calling.exception()  # it comes too late
            self._start()

        calling.add_done_callback(ended)
        log.error(
            "%s: the handler of a batch of %d from %r has not ended after its timeout of %g s, and can't be stopped:"
            " its messages come back, and its worker is not replaced",
            self._name,
            len(messages),
            messages[0].key,
            self._timeout,
        )

    async def _call(self, messages: list[Message]) -> object:
        if self._asynchronous:
            return await cast("Any", self._function(messages))
        answer = await self._threads.run(carry_deadline(self._function), messages)
        return await answer if isawaitable(answer) else answer

    def shutdown(self) -> None:
        """Let the threads end."""
        self._threads.shutdown()


def _results(messages: Sequence[Message], value: object) -> Mapping[Message, object]:
    """Return the result of each message, from what the handler of their batch has returned; those missing are done."""
    if value is None or isinstance(value, Again):
        return dict.fromkeys(messages, value)
    expected = "a handler of batches must return None, abate.Again(after), or a dict of these and errors by message"
    if not isinstance(value, Mapping):
        raise TypeError(f"{expected}, not {short_repr(value)}")
    known = set(messages)
    for message, result in value.items():
        if not isinstance(message, Message) or message not in known:
            raise TypeError(f"{expected}; {short_repr(message)} is not a message of this batch")
        if not (result is None or isinstance(result, (Again, Exception))):
            raise TypeError(f"{expected}, not {short_repr(result)} for {message.key!r}")
    return value
