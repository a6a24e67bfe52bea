"""Handles suspects alone: messages that may have killed the process that handled them.

`VerdictRules.suspect` says which messages are suspects. While a suspect is handled, a crash affects no other message:
no more messages are received, the messages in flight end first, and other suspects go back untouched. The waits are
limited: after `ALONE_TIMEOUT` a suspect begins beside the messages that are left, and if the suspect takes that long,
other messages are received beside it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from abate.logs import Log
from abate.work.run_state import Delivery, RunState
from abate.work.source import Message

log = Log("abate.work")

SUSPECT_SPREAD = 10.0
"""Seconds, or a lease if that is shorter, over which suspects that were received together are spread."""
ALONE_TIMEOUT = 30.0
"""Seconds (or a lease or the timeout, if one is longer) that a suspect waits for other messages to end, and seconds
that other messages wait for a suspect."""


class Suspects:
    """The suspect of a run that waits or is handled alone, if there is one."""

    def __init__(
        self,
        state: RunState,
        timeout: float | None,
        must_run_alone: Callable[[Message], bool],
        begin: Callable[[Delivery], None],
    ) -> None:
        self._state = state
        self._timeout = timeout
        self.must_run_alone = must_run_alone
        self._begin = begin
        self.current: Delivery | None = None
        """The suspect that waits to be alone, or is handled alone."""
        self.one_at_a_time = False
        """Whether the last receive returned a suspect. The next one asks for one message, so that fewer go back."""

    def received(self, messages: Sequence[Message]) -> None:
        """Record whether there are suspects among the received messages."""
        self.one_at_a_time = any(map(self.must_run_alone, messages))

    def must_go_back(self, message: Message) -> bool:
        """Return whether a message goes back for a moment, so that no killer runs while a suspect waits to be alone.

        A message whose last receive went unanswered may be a killer that is no suspect yet: its neighbours become
        suspects before it if it was received ahead. Beside it they would lose their last receive without being handled.
        """
        if self.current is not None:
            return bool(message.unanswered) or self.must_run_alone(message)
        since = self._state.clock.now() - ALONE_TIMEOUT
        return self.must_run_alone(message) and any(
            other.is_running and other.message.unanswered and other.began > since for other in self._state.in_flight
        )

    def return_delay(self) -> float:
        """Return the seconds for which such a message goes back; 0 if the run must not end before it is handled."""
        if self._state.ending:
            return 0.0
        return random.random() * min(SUSPECT_SPREAD, self._state.source.lease or SUSPECT_SPREAD)

    def report(self, message: Message) -> None:
        """Log why a message is handled alone."""
        if message.unanswered is None:
            why = f"it was received {message.receives} times, and is not settled"
        else:
            why = f"receives in a row that ended without an answer: {message.unanswered}"
        log.warning("%s: %r is handled alone: %s", self._state.name, message.key, why)

    async def run_alone(self, delivery: Delivery) -> None:
        """Handle a suspect while nothing else is in flight and nothing is received.

        Wait until the other messages in flight have ended, then start the suspect, and wait until it has ended. Each of
        the two waits is bounded: after it the suspect starts, or other messages are received, beside the rest.
        """
        state = self._state
        until = state.clock.now() + max(ALONE_TIMEOUT, state.source.lease or 0.0, self._timeout or 0.0)
        while self.is_waiting(delivery) and state.clock.now() < until and not state.stopping.is_set():
            if all(other is delivery or other.stuck for other in state.in_flight):
                break
            await state.wait_for_change(until - state.clock.now())
        if self.is_waiting(delivery) and not state.takes_no_more:
            self._begin(delivery)
            until = state.clock.now() + ALONE_TIMEOUT
            while self._is_running(delivery) and state.clock.now() < until:
                await state.wait_for_change(until - state.clock.now())
        if not self.is_waiting(delivery):
            self.current = None

    def is_waiting(self, delivery: Delivery) -> bool:
        """Return whether a suspect is in flight, and has not begun."""
        return delivery.is_waiting and self._state.in_flight.get(delivery.message) is delivery

    def _is_running(self, delivery: Delivery) -> bool:
        in_flight = self._state.in_flight.get(delivery.message) is delivery
        return in_flight and delivery.is_running and not delivery.stuck
