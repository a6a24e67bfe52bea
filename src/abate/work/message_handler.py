"""Handles one message: calls the handler, and turns its result into a decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from inspect import isawaitable
from math import inf
from typing import NamedTuple, cast

from abate import event_sinks, events
from abate.clock import Clock, ever_used
from abate.logs import WARNING, Log
from abate.schedule.deadlines import carry_deadline, deadline
from abate.work.run_state import Delivery
from abate.work.source import Bury, Message, Verdict
from abate.work.task_slots import TaskSlots
from abate.work.thread_pool import DaemonThreadPool, NotStarted
from abate.work.verdict_rules import BatchFailed, Decision, VerdictRules

log = Log("abate.work")

Handler = Callable[[Message], object]


class HandlerResult(NamedTuple):
    """The decision about a message, how many seconds its handler took, and the error it raised."""

    decision: Decision
    seconds: float
    error: BaseException | None


def report(name: str, message: Message, decision: Decision, seconds: float, error: BaseException | None) -> None:
    """Emit an event for a message that was handled; the log has those that fail, and those that had failed."""
    unusual = message.receives > 1 or decision.ending in ("retry", "slow")
    logged = unusual and event_sinks.log_enabled(WARNING)
    if logged or event_sinks.installed:
        event_sinks.emit(events.Worked(name, message.key, decision.ending, seconds, message.receives, error), logged)


def report_dead_letter(name: str, message: Message, verdict: Verdict) -> None:
    """Report a message that was buried. Call this only after the source has buried it, as the source may fail."""
    if isinstance(verdict, Bury):
        log.error("%s: %r is buried (%s): %s", name, message.key, verdict.kind, verdict.reason)
        event_sinks.emit(events.Buried(name, message.key, verdict.kind, verdict.reason))


def warn_ignored_value(name: str, value: object) -> None:
    """Warn about a return value that has no meaning."""
    log.warning(
        "%s: the handler returned a value of type %s, which is ignored: the message counts as done. A handler returns"
        " None or abate.Again(after), and raises an error if it has failed. Further values are not reported.",
        name,
        type(value).__name__,
    )


class MessageHandler:
    """Handles messages, without state between two of them.

    Every message gets a decision: a handler that ends without a result has crashed, and if the rules themselves fail,
    the message is buried.
    """

    def __init__(
        self,
        name: str,
        handle: Handler,
        verdict_rules: VerdictRules,
        timeout: float | None,
        workers: DaemonThreadPool | TaskSlots,
        tally: Counter[str],
        redrives: bool = False,
        lease: float | None = None,
    ) -> None:
        self.name = name
        self._handle = handle
        self._rules = verdict_rules
        self.asynchronous = isinstance(workers, TaskSlots)
        """Whether the handler is a coroutine function, which can be cancelled."""
        self._timeout = timeout
        self._workers = workers
        self._tally = tally
        self._lease = inf if lease is None else lease
        self._redrives = redrives
        """Whether the source itself buries messages that were received too often."""

    def must_run_alone(self, message: Message) -> bool:
        """Return whether a message must be handled alone, as it may kill the process."""
        if self._source_buries(message):
            return self._rules.received_too_often(message.receives)
        return self._rules.suspect(message.receives, message.unanswered)

    def _source_buries(self, message: Message) -> bool:
        """Return whether to leave burying to the source: it also counts receives that were returned untouched."""
        return self._redrives and message.unanswered is None

    async def handle(self, delivery: Delivery, clock: Clock) -> HandlerResult | None:
        """Handle a message. Return None if its lease was lost, or the grace ended, before it was done.

        Raise `NotStarted` if the message was taken back before a thread had begun it.
        """
        message = delivery.message
        error: BaseException | None = None
        decision = None
        if not self._source_buries(message):
            decision = self._rules.over_receive_limit(message.receives, message.unanswered)
        if decision is None:
            try:
                value = await self._run_with_timeout(delivery, clock)
                decision = self._rules.returned(value)
                if self._rules.first_ignored_value(value):
                    warn_ignored_value(self.name, value)
            except NotStarted:
                raise
            except BaseException as raised:
                error = raised.error if isinstance(raised, BatchFailed) else raised
                if not isinstance(error, Exception):
                    if delivery.lease_lost or delivery.cancelled_by_grace:
                        return None
                    self._report_crash(error, message)
                decision = self._rules.decide_raised(raised, message.receives)
        seconds = min(clock.now(), delivery.ended) - delivery.began
        return None if delivery.lease_lost else HandlerResult(decision, seconds, error)

    def report(self, message: Message, result: HandlerResult) -> None:
        """Count and report a message that was handled."""
        decision, seconds, error = result
        self._tally[decision.ending] += 1
        report(self.name, message, decision, seconds, error)

    async def _run_with_timeout(self, delivery: Delivery, clock: Clock) -> object:
        """Call the handler within its timeout."""
        if isinstance(self._workers, DaemonThreadPool):
            return await self._run_in_thread(self._workers, delivery, clock)
        await self._workers.enter()
        try:
            self._check_lease(delivery, clock)
            delivery.start(clock.now())
            return await self._run_in_task(delivery.message, clock)
        finally:
            self._workers.leave()

    def holds_lease(self, delivery: Delivery, clock: Clock) -> bool:
        """Return whether the lease has not run out while the message waited for a worker, as in a frozen process."""
        return not delivery.lease_lost and clock.now() < delivery.leased + self._lease

    def _check_lease(self, delivery: Delivery, clock: Clock) -> None:
        if not self.holds_lease(delivery, clock):
            raise NotStarted

    async def _run_in_task(self, message: Message, clock: Clock) -> object:
        handle = cast("Callable[[Message], Awaitable[object]]", self._handle)
        if self._timeout is None:
            return await handle(message)
        with closing(deadline(self._timeout)) as bound, bound:
            cut = clock.within(self._timeout)
            async with cut:
                return await handle(message)

    async def _run_in_thread(self, threads: DaemonThreadPool, delivery: Delivery, clock: Clock) -> object:
        # a thread can't be cancelled: it keeps its deadline, even if its result is ignored
        call = carry_deadline(self._call) if ever_used.deadline else self._call
        answer = await threads.run(call, delivery, clock)
        if answer is None or not isawaitable(answer):
            return answer
        delivery.ended = inf
        if self._timeout is None:
            return await answer
        with closing(deadline(max(0.0, delivery.began + self._timeout - clock.now()))) as bound, bound:
            return await answer

    def _call(self, delivery: Delivery, clock: Clock) -> object:
        """Call a plain function, in a thread."""
        self._check_lease(delivery, clock)
        delivery.start(clock.now())
        try:
            if self._timeout is None:
                return self._handle(delivery.message)
            with closing(deadline(self._timeout)) as bound, bound:
                return self._handle(delivery.message)
        finally:
            delivery.ended = clock.now()

    def _report_crash(self, crash: BaseException, message: Message) -> None:
        self._tally["crashed"] += 1
        log.error("%s: a worker crashed on %r and is replaced", self.name, message.key, exc_info=crash)
        event_sinks.emit(events.WorkerCrashed(self.name, message.key, crash))
