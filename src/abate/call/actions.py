"""What the state machine of a call tells its driver to do next: send, wait, wait for a turn at the shelter, or stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from abate.frozen import ComparedByFields

if TYPE_CHECKING:
    from abate.admit.dispatcher import Dispatcher
    from abate.admit.shelter_queue import Waiter


class Send(ComparedByFields):
    """Make the next attempt now."""

    __slots__ = ()


class Wait(ComparedByFields):
    """Make the next attempt at the instant `until`."""

    __slots__ = __match_args__ = ("until",)

    def __init__(self, until: float) -> None:
        self.until = until


class WaitForTurn(ComparedByFields):
    """Wait until the `dispatcher` answers the `waiter`, then call `Call.take_turn`."""

    __slots__ = __match_args__ = ("dispatcher", "waiter")

    def __init__(self, dispatcher: Dispatcher, waiter: Waiter) -> None:
        self.dispatcher = dispatcher
        self.waiter = waiter


class Stop(ComparedByFields):
    """Make no further attempt."""

    __slots__ = __match_args__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


SEND = Send()
OUT_OF_BUDGET = Stop("budget")
"""The budget refused the retry; a gate refuses by a `Stop` of its own."""
