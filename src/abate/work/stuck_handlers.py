"""Finds handlers that do not end at their timeout, and replaces their workers.

A handler that exceeds its `timeout` is stuck if it is a plain function, or a coroutine that ignores its cancellation.
Its lease is not extended any more, so that another process can receive the message, and another worker replaces it.
There are at most as many replacements as workers; with more stuck handlers the loop is not ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from abate.logs import Log
from abate.work.breaker_trials import BreakerTrials
from abate.work.run_state import Delivery, RunState
from abate.work.task_slots import TaskSlots
from abate.work.thread_pool import DaemonThreadPool

log = Log("abate.work")

STUCK_TOLERANCE = 1.0
"""Seconds, or a tenth of the timeout if that is longer, by which a handler may exceed its timeout."""


class StuckHandlers:
    """The stuck handlers of a run."""

    def __init__(
        self,
        state: RunState,
        timeout: float | None,
        max_workers: int,
        trials: BreakerTrials,
        workers: DaemonThreadPool | TaskSlots,
        return_group_behind: Callable[[Delivery, float], None],
    ) -> None:
        self._state = state
        self._timeout = timeout
        self._max_workers = max_workers
        self._trials = trials
        self._workers = workers
        self._return_group_behind = return_group_behind
        self.replacements = 0
        """Stuck handlers that another worker has replaced."""

    async def run(self) -> None:
        """Find stuck handlers, until cancelled."""
        if self._timeout is None:
            await asyncio.Event().wait()
        assert self._timeout is not None
        clock, limit = self._state.clock, self._timeout + max(STUCK_TOLERANCE, 0.1 * self._timeout)
        in_flight = self._state.in_flight
        while True:
            # a handler that begins during this sleep can't be stuck before the sleep ends
            began = min((delivery.began for delivery in in_flight if self._may_be_stuck(delivery)), default=clock.now())
            await clock.asleep(began + limit - clock.now())
            for delivery in in_flight:
                if self._may_be_stuck(delivery) and delivery.began + limit <= clock.now():
                    self._mark(delivery, self._timeout)

    @staticmethod
    def _may_be_stuck(delivery: Delivery) -> bool:
        return delivery.started and delivery.is_running and not delivery.stuck

    def count(self) -> int:
        """Return how many handlers are stuck."""
        return sum(delivery.stuck for delivery in self._state.in_flight)

    def ended(self, delivery: Delivery) -> None:
        """Dismiss the worker that replaced this handler's, if there is one: the handler has ended."""
        if delivery.replaced:
            delivery.replaced = False
            self.replacements -= 1
            self._workers.shrink()

    def _mark(self, delivery: Delivery, timeout: float) -> None:
        """Mark a handler as stuck: let its lease run out, and replace the worker if replacements are left."""
        state, name = self._state, self._state.name
        pause = self._trials.record(delivery, True)
        delivery.stuck = True
        state.tally["stuck"] += 1
        stuck = self.count()
        if stuck <= self._max_workers:
            delivery.replaced = True
            self.replacements += 1
            self._workers.grow()
        self._return_group_behind(delivery, 0.0)
        state.changed.set()
        log.error(
            "%s: the handler of %r has not ended %.3g s after its timeout of %g s, and can't be stopped: its lease is"
            " not extended any more",
            name,
            delivery.message.key,
            state.clock.now() - delivery.began - timeout,
            timeout,
        )
        if stuck == self._max_workers:
            log.error(
                "%s: %d handlers are stuck, as many as there are workers: it is not ready, and further stuck handlers"
                " are not replaced. Restart it.",
                name,
                stuck,
            )
        self._trials.report_open(pause)
