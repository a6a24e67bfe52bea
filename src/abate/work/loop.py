"""Runs the loop of a consumer or controller: receives messages, runs handlers, and settles the messages.

    receive ──► in flight ──► worker ──► verdict ──► settle ──► the worker is free
                   │ every third of a lease
                   └► extend

* No more messages are in flight than there are workers, apart from the few that `prefetch` receives ahead.
* Messages of one group are handled in order. If one goes back, the messages of its group that are in flight behind it
  go back too.
* A lease is extended while the handler runs. A message whose lease was lost is not settled; its handler is cancelled if
  it is a coroutine.
* A handler that ends without a result (by an exit, or by cancelling itself) has crashed: its message failed once.
* Stopping: no more messages are received, except from a source that does not outlive the process, which is drained.
  When the grace is over, coroutines are cancelled and their messages go back untouched; leases of plain functions run
  out. `FINAL_SETTLE_TIMEOUT` seconds later the run ends in any case.
* State changes come first, logs and events after them.

`source_client` receives from the source and sends verdicts, `suspects` runs messages alone that may kill the process,
`stuck_handlers` replaces workers whose handler does not end, and `breaker_trials` asks the circuit breaker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from math import inf

from abate import clock as clocks
from abate import event_sinks, events
from abate.admit.breaker import CircuitBreaker
from abate.clock import MachineClock
from abate.errors import AttemptTimeout
from abate.logs import Log
from abate.work.backoff_guard import BackoffGuard
from abate.work.batches import Batches
from abate.work.bounded_event_loop import MIN_CLOSE_TIMEOUT, cancel_tasks
from abate.work.breaker_trials import BreakerTrials
from abate.work.message_handler import Handler, MessageHandler
from abate.work.prefetch import AHEAD_SECONDS, MAX_WAIT, Prefetch, limit_for
from abate.work.run_state import Delivery, RunState
from abate.work.source import Back, Bury, Done, Message, Source, Verdict
from abate.work.source_client import MIN_POLL, LeaseExtender, Settler, SourceClient
from abate.work.stuck_handlers import StuckHandlers
from abate.work.suspects import Suspects
from abate.work.task_slots import TaskSlots
from abate.work.thread_pool import DaemonThreadPool, NotStarted
from abate.work.verdict_rules import VerdictRules

log = Log("abate.work")

RECEIVE_WAIT = 1.0
"""Seconds that one receive waits for a message, unless the source has a `patience` of its own."""
FINAL_SETTLE_TIMEOUT = 5.0
"""Seconds to settle messages after the grace."""


class Loop:
    """One run of a controller or consumer over one source."""

    def __init__(
        self,
        name: str,
        source: Source,
        handle: Handler,
        verdict_rules: VerdictRules,
        *,
        workers: int,
        asynchronous: bool,
        breaker: CircuitBreaker | None = None,
        backoff_guard: BackoffGuard | None = None,
        timeout: float | None = None,
        prefetch: int | None = None,
        batches: Batches | None = None,
    ) -> None:
        self.name = name
        self.source = source
        self.workers = workers
        self.backoff_guard = backoff_guard
        self.timeout = timeout
        self.state = state = RunState(name, source)
        self.in_flight, self.tally, self.stopping = state.in_flight, state.tally, state.stopping
        self.client = SourceClient(state)
        # separate from the source's threads: no handler may delay an extend
        pool = batches or (TaskSlots(workers) if asynchronous else DaemonThreadPool(workers))
        self.worker_pool, self._batches = pool, batches
        redrives, lease = getattr(source, "redrives", False), source.lease
        self.message_handler = MessageHandler(name, handle, verdict_rules, timeout, pool, self.tally, redrives, lease)
        self.trials = BreakerTrials(state, breaker)
        self.stuck_handlers = StuckHandlers(state, timeout, workers, self.trials, pool, self._return_group_behind)
        self.settler = Settler(state, self.client, self._on_lease_lost, self._release, self._drop)
        self.extender = LeaseExtender(state, self.client, self.settler, self._on_lease_lost)
        self.suspects = Suspects(state, timeout, self.message_handler.must_run_alone, self._begin)
        ahead_seconds = getattr(source, "ahead_seconds", AHEAD_SECONDS)
        self._prefetch = Prefetch(workers, limit_for(source, prefetch), lease, ahead_seconds)
        self._nothing_ahead = False  # the last receive found nothing: the next one waits for a free worker
        self._last_progress = -inf  # when a handler ended, or messages were received
        self.ends_at = inf
        """The instant at which the run ends in any case."""

    # -- for the service, in the event loop

    async def run(self, grace: float, drain: bool = False) -> None:
        """Handle messages until `stop`, or with `drain` until nothing is left; then finish within the grace."""
        self.state.clock = clocks.current()
        self.state.draining = drain
        receiving = asyncio.create_task(self._receive_loop())
        others = (self.settler.run(), self.extender.run(), self.stuck_handlers.run(), self.stopping.wait())
        tasks = {receiving, *map(asyncio.ensure_future, others)}
        try:
            ended, _ = await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
            for task in ended:
                task.result()  # raise its error, if it has failed
            await self._finish(receiving, grace)
        except asyncio.CancelledError:
            self.stop()
            await self._finish(receiving, 0.0)
            raise
        finally:
            await cancel_tasks(tasks, self.seconds_left(), self.state.clock)
            self.client.shutdown()
            self.worker_pool.take_back()
            if isinstance(self.worker_pool, DaemonThreadPool):
                self.worker_pool.shutdown()

    def stop(self) -> None:
        """Stop receiving messages."""
        self.stopping.set()
        self.state.changed.set()
        if self.state.takes_no_more:
            self.worker_pool.take_back()

    def seconds_left(self) -> float:
        """Return the seconds that cancelled tasks have to end."""
        return max(MIN_CLOSE_TIMEOUT, min(FINAL_SETTLE_TIMEOUT, self.ends_at - self.state.clock.now()))

    # -- health, from any thread

    @property
    def failing(self) -> str | None:
        """Return the last error of the source; None while it answers."""
        return self.client.failing

    @property
    def stuck(self) -> int:
        """Return how many handlers are stuck."""
        return self.stuck_handlers.count()

    @property
    def ready(self) -> bool:
        """Return whether it receives messages: not stopping, the source answers, and not all workers are stuck."""
        return self.failing is None and not self.stopping.is_set() and self.stuck < self.workers

    def oldest(self) -> float | None:
        """Return for how many seconds the longest-running handler has run; None if none runs."""
        began = min((each.began for each in self.in_flight if each.is_running and each.started), default=None)
        return None if began is None else max(0.0, self.state.clock.now() - began)

    def breaker_open(self) -> float | None:
        """Return the seconds until the breaker half-opens; 0 while half-open; None if closed, or without one."""
        return self.trials.seconds_until_half_open()

    # -- the tasks

    async def _receive_loop(self) -> None:
        """Receive messages as workers become free."""
        state, suspects = self.state, self.suspects
        patience = getattr(self.source, "patience", RECEIVE_WAIT)
        failing_since: float | None = None
        while not state.takes_no_more:
            if suspects.current is not None:
                await suspects.run_alone(suspects.current)
                continue
            self._return_waiting_long()
            free, ahead = self._room()
            if free < 1 and ahead < 1:
                waits = self._batches is not None or len(self.in_flight) > self.workers
                await state.wait_for_change(MAX_WAIT if waits else self.trials.pause())
                continue
            ending, asked = state.ending, state.clock.now()
            try:
                if free >= 1 and isinstance(self.worker_pool, DaemonThreadPool):
                    free = self.worker_pool.ensure_idle(free)
                messages = await self.client.receive(free, 0.0 if ending or free < 1 else patience, ahead)
            except Exception as error:
                failing_since = state.clock.now() if failing_since is None else failing_since
                await self.client.back_off("receive from", error, failing_since)
                continue
            failing_since = self.client.failing = None
            self._accept(messages)
            if messages:
                suspects.received(messages)
            elif free >= 1 and ending:
                if not self._busy():
                    return
                await state.wait_for_change(None)  # a message in flight may come back
            elif free >= 1 and state.clock.now() < asked + MIN_POLL:
                await state.wait_for_change(MIN_POLL)  # the source did not wait
        if suspects.current is not None and suspects.is_waiting(suspects.current):
            self._return_untouched(suspects.current, 0.0)

    def _free_workers(self) -> int:
        """Return how many workers are free; at most one after a suspect."""
        free = self.workers - len(self.in_flight) + self.stuck_handlers.replacements
        if self._batches is not None:
            free = min(free, self._batches.room(self.in_flight))
        return min(free, 1) if self.suspects.one_at_a_time else free

    def _room(self) -> tuple[int, int]:
        """Return how many messages to receive now for free workers, and how many ahead; none on a virtual clock."""
        free = int(min(self._free_workers(), allowed := self.trials.allowed()))
        if not isinstance(self.state.clock, MachineClock) or allowed != inf or self.suspects.one_at_a_time:
            return free, 0
        size = self._prefetch.size()
        most = self.workers + size
        room = most - len(self.in_flight) + self.stuck_handlers.replacements
        if self._batches is not None and free < 1:  # only free workers have room for a batch
            most, room = size, min(room, size - self._batches.count_unbatched(self.in_flight))
        if free >= 1:
            return free, max(0, min(size, room - free))
        # not one by one as they are settled: each receive is a round trip
        return 0, 0 if self._nothing_ahead or 2 * room < most else min(size, room)

    def _return_waiting_long(self) -> None:
        """Return the messages that wait for a worker if no handler has ended for long: another process may be idle."""
        if self.worker_pool.waiting and self.state.clock.now() >= self._last_progress + MAX_WAIT:
            self._prefetch.record(MAX_WAIT)
            self._nothing_ahead = True  # or they would be received again at once
            self.worker_pool.take_back()

    def _busy(self) -> bool:
        """Return whether anything is in flight, apart from stuck handlers."""
        return any(not delivery.stuck for delivery in self.in_flight)

    async def _finish(self, receiving: asyncio.Task[None], grace: float) -> None:
        """Wait for the messages in flight, and cancel handlers that have not ended within the grace."""
        clock = self.state.clock
        self.ends_at = clock.now() + grace + FINAL_SETTLE_TIMEOUT
        try:
            cut = clock.within(grace)
            async with cut:
                await asyncio.wait({receiving})  # a thread may still receive messages, which have to go back
                await self._wait_until_idle()
        except AttemptTimeout:
            receiving.cancel()
            self.worker_pool.take_back()
            self._cancel_unfinished()
            with suppress(AttemptTimeout):
                cut = clock.within(FINAL_SETTLE_TIMEOUT)
                async with cut:
                    await self._wait_until_idle()
        left = [str(delivery.message.key) for delivery in self.in_flight]
        if left:
            for delivery in self.in_flight:
                delivery.lease_lost = True
            self.in_flight.clear()
            log.error("%s: %s not done within the grace of %g s: left to their leases", self.name, left[:10], grace)

    async def _wait_until_idle(self) -> None:
        while self._busy():
            await self.state.wait_for_change(None)

    def _cancel_unfinished(self) -> None:
        """Cancel coroutines after the grace, and return messages whose handler has not begun."""
        for delivery in self.in_flight:
            if delivery.is_waiting:
                self._return_untouched(delivery, 0.0)
            elif delivery.is_running and self.message_handler.asynchronous and delivery.task is not None:
                delivery.cancelled_by_grace = True
                delivery.task.cancel()
            elif delivery.started and delivery.is_running:  # a thread can't be stopped; its result is ignored
                delivery.lease_lost = delivery.stuck = True
                self.state.changed.set()

    # -- one message

    def _accept(self, messages: Sequence[Message]) -> None:
        """Start messages that were received, suspects first, or let them wait behind others of their groups.

        All are in flight before the first starts, as one that goes back returns the messages behind it as well.
        """
        self._nothing_ahead, self._last_progress = not messages, self.state.clock.now()
        deliveries = [self.in_flight.add(message, self._last_progress) for message in messages]
        for delivery in sorted(filter(None, deliveries), key=lambda one: not self.suspects.must_run_alone(one.message)):
            if delivery.is_waiting:
                self._start_or_return(delivery)

    def _start_or_return(self, delivery: Delivery) -> None:
        """Start the handler of a message, or return the message if it can't start now. The first rule that applies:

        * It is the suspect that waits to be alone: leave it to `Suspects.run_alone`.
        * The run takes no more messages: return it at once.
        * The circuit breaker is open: return it until the breaker half-opens.
        * It or another message may kill the process while a suspect waits: return it for a moment.
        * It came before its backoff is over, and the retry budget refuses it: return it for the rest of its backoff.
        * It is a suspect: let it wait to be alone. Otherwise start its handler.
        """
        suspects, message = self.suspects, delivery.message
        if delivery is suspects.current:
            return  # it waits to be alone
        if self.state.takes_no_more:
            self._return_untouched(delivery, 0.0)
        elif breaker_open := self.breaker_open():  # it opened while this message was received
            self._return_untouched(delivery, breaker_open)
        elif suspects.must_go_back(message):
            self._return_untouched(delivery, suspects.return_delay())
        elif (backoff := self._remaining_backoff(message)) > 0:  # last, as it charges the budget for a start
            self._return_untouched(delivery, backoff, "held")
        elif suspects.must_run_alone(message):
            suspects.current = delivery
            self._return_group_behind(delivery, 0.0)
            self.state.changed.set()
            suspects.report(message)
        else:
            self._begin(delivery)

    def _remaining_backoff(self, message: Message) -> float:
        return 0.0 if self.backoff_guard is None else self.backoff_guard.remaining(message, self.state.clock.now())

    def _begin(self, delivery: Delivery) -> None:
        delivery.began = self.state.clock.now()
        delivery.trips = self.trials.trips
        delivery.task = asyncio.create_task(self._run_handler(delivery))

    async def _run_handler(self, delivery: Delivery) -> None:
        try:
            result = await self.message_handler.handle(delivery, self.state.clock)
        except NotStarted:
            if delivery.lease_lost:
                self._drop(delivery)
            elif self.in_flight.get(delivery.message) is delivery:
                self._return_untouched(delivery, self.breaker_open() or 0.0)
            return
        self._last_progress = self.state.clock.now()
        self.stuck_handlers.ended(delivery)
        if self.in_flight.get(delivery.message) is not delivery:
            return  # the run has ended already
        if result is None and delivery.cancelled_by_grace:
            self._return_untouched(delivery, 0.0)
        elif result is None:
            self._drop(delivery)
        else:
            verdict = result.decision.verdict
            if self.backoff_guard is not None:
                self.backoff_guard.record(delivery.message, verdict, self.state.clock.now())
            self._queue_verdict(delivery, verdict)
            self._prefetch.record(result.seconds)
            pause = self.trials.record(delivery, result.decision.failed)
            if pause:
                self.worker_pool.take_back()
            self.message_handler.report(delivery.message, result)
            self.trials.report_open(pause)

    def _return_untouched(self, delivery: Delivery, after: float, ending: str = "returned") -> None:
        """Return a message as if it had not been received."""
        self.tally[ending] += 1
        self._queue_verdict(delivery, Back(after, touched=False))

    def _queue_verdict(self, delivery: Delivery, verdict: Verdict) -> None:
        delivery.verdict = verdict
        self.settler.add(delivery.message, verdict)
        match verdict:
            case Done(float() | int() as again):
                self._return_group_behind(delivery, again)
            case Back(after):
                self._return_group_behind(delivery, after)
            case Bury():
                if not getattr(self.source, "buries", True):  # it will be received again
                    self._return_group_behind(delivery, 0.0)
        self.state.changed.set()

    def _return_group_behind(self, delivery: Delivery, after: float) -> None:
        """Return the messages of a group that wait behind one that comes back, to keep their order."""
        for behind in self.in_flight.waiting_behind(delivery)[:1]:  # returning the first returns the next
            self._return_untouched(behind, after)

    def _on_lease_lost(self, message: Message) -> None:
        delivery = self.in_flight.get(message)
        if delivery is None or delivery.lease_lost:
            return
        delivery.lease_lost = True
        self.tally["lost"] += 1
        if delivery.task is None or delivery.verdict is not None:
            self._drop(delivery)
        elif self.message_handler.asynchronous:
            delivery.task.cancel()
        log.warning("%s: the lease of %r ran out", self.name, message.key)
        event_sinks.emit(events.LeaseLost(self.name, message.key))

    def _drop(self, delivery: Delivery) -> None:
        """Give up a message, which will be received again: the messages of its group behind it go back too."""
        self._return_group_behind(delivery, 0.0)
        self._release(delivery.message)

    def _release(self, message: Message) -> None:
        """Free the worker of a message, and start the next message of its group."""
        following = self.in_flight.remove(message)
        self.state.changed.set()
        if following is not None:
            self._start_or_return(following)
