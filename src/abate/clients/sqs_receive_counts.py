"""Remember which receives of an SQS message were no attempts.

SQS counts every receive, and a receive can't be taken back: a message returned untouched (the breaker is open, the
process stops, an earlier message of its group failed) has one more, and so has a message that was done and is to come
again. Neither may bring it nearer to the dead letters, so a process remembers these receives. It knows only its own:
receives by other processes count here, as they do for the queue's own ``maxReceiveCount``.
"""

from __future__ import annotations

from typing import Final

from abate.work.source import Back, Done, Message, Verdict

MAX_MESSAGES: Final = 100_000
"""Messages that are remembered, or up to twice as many; the oldest are forgotten."""


class ReceiveCounts:
    """The receives of messages that this process does not count as attempts.

    Any thread may use it; two threads never have the same message.

    >>> receives = ReceiveCounts()
    >>> receives.settled(Message("a", token=7), Back(0.0, touched=False))
    >>> receives.attempts("a", 8), receives.attempts("b", 8)
    (7, 8)
    """

    __slots__ = ("_before", "_known", "_max_messages")

    def __init__(self, max_messages: int = MAX_MESSAGES) -> None:
        self._max_messages = max_messages
        # two generations, so that the oldest are forgotten without a scan
        self._known: dict[object, tuple[int, int]] = {}
        self._before: dict[object, tuple[int, int]] = {}

    def attempts(self, key: object, received: int) -> int:
        """Return how many of a message's receives were attempts, including this one."""
        return max(1, received - self._of(key)[0])

    def settled(self, message: Message, verdict: Verdict) -> None:
        """Note that a message was returned or is gone. Calling it again for the same receive changes nothing."""
        not_attempts, last = self._of(message.key)
        match verdict:
            case Back(touched=False) if message.token != last:
                self._note(message.key, not_attempts + 1, message.token)
            case Done(again=float() | int()):
                self._note(message.key, message.token, message.token)
            case Back():
                pass
            case _:
                self._known.pop(message.key, None)
                self._before.pop(message.key, None)

    def _of(self, key: object) -> tuple[int, int]:
        """Return how many receives don't count, and which was the last of them."""
        return self._known.get(key) or self._before.get(key) or (0, 0)

    def _note(self, key: object, not_attempts: int, last: int) -> None:
        if len(self._known) >= self._max_messages:
            self._before, self._known = self._known, {}
        self._known[key] = not_attempts, last
