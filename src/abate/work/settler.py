"""Settles messages: sends the verdicts of a run to the source, and keeps those that it could not accept yet."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from abate.logs import Log
from abate.work.in_flight import Delivery
from abate.work.message_handler import report_dead_letter
from abate.work.run_state import RunState
from abate.work.source import Message, Settlement, Verdict
from abate.work.source_client import SourceClient

log = Log("abate.work")

SETTLE_TRIES = 8
"""Attempts to send a single verdict, over at least one lease, before its message is left to its lease."""


class Settler:
    """The verdicts of one run that wait to be sent.

    The loop passes the callbacks: `on_lost` for a message whose lease was lost, `release` for a message that is
    settled, `drop` for a message whose verdict can't be sent.
    """

    def __init__(
        self,
        state: RunState,
        client: SourceClient,
        on_lost: Callable[[Message], None],
        release: Callable[[Message], None],
        drop: Callable[[Delivery], None],
    ) -> None:
        self._state = state
        self._client = client
        self._on_lost = on_lost
        self._release = release
        self._drop = drop
        self._outbox: list[Settlement] = []
        self.sending: frozenset[Message] = frozenset()
        """Messages that are being settled. An extend that finds their lease lost may have run after the settle."""

    def add(self, message: Message, verdict: Verdict) -> None:
        """Queue a verdict."""
        self._outbox.append((message, verdict))

    async def run(self) -> None:
        """Send verdicts, all that are queued in one call."""
        failing_since: float | None = None
        while True:
            if not self._outbox:
                await self._state.wait_for_change(None)
                continue
            # one by one after a failure, so that a verdict that the source can't accept does not block the others
            batch = self._outbox[:] if failing_since is None else self._outbox[:1]
            self.sending = frozenset(message for message, _ in batch)
            try:
                lost = await self._client.call(self._state.source.settle, batch)
            except Exception as error:
                self.sending = frozenset()
                failing_since = self._state.clock.now() if failing_since is None else failing_since
                self._outbox = [*self._outbox[len(batch) :], *batch]
                await self._client.back_off("settle messages in", error, failing_since)
                if len(batch) == 1:
                    self._count_failure(batch[0])
                continue
            self.sending = frozenset()
            failing_since = self._client.failing = None
            del self._outbox[: len(batch)]
            for message in lost:
                self._on_lost(message)
            for message, verdict in batch:
                self._release(message)
                if message not in lost:
                    report_dead_letter(self._state.name, message, verdict)

    def _count_failure(self, settlement: Settlement) -> None:
        """Count a failure to send one verdict. After `SETTLE_TRIES`, drop the message, which frees its worker."""
        message, verdict = settlement
        delivery = self._state.in_flight.get(message)
        if delivery is None:
            return
        now, lease = self._state.clock.now(), self._state.source.lease
        delivery.settle_tries += 1
        delivery.first_settle_try = min(delivery.first_settle_try, now)
        enough = delivery.settle_tries >= SETTLE_TRIES and now - delivery.first_settle_try >= (lease or inf)
        if enough:
            self._state.tally["unsettled"] += 1
            self._outbox.remove(settlement)
            self._drop(delivery)
            log.error(
                "%s: %r could not be settled (%r): it is left to its lease", self._state.name, message.key, verdict
            )
