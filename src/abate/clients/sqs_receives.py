"""Which receives of a message of SQS were no attempts.

SQS counts every receive, and none can be taken back: a message that goes back untouched (the fuse has blown, the
process stops, one before it in its group has failed) has been received once more, and so has one that was done for now
and is to come again. Neither may bring it nearer to the dead letters. So a process remembers them. It knows its own
alone: what another process gave back counts here, as it does for the queue's own ``maxReceiveCount``.
"""

from __future__ import annotations

from typing import Final

from abate.work.source import Back, Done, Message, Verdict

MOST: Final = 100_000
"""Messages that are remembered, or up to twice as many; the oldest are forgotten."""


class Receives:
    """What this process knows of the receives of messages.

    Any thread may use it; two never have the same message.

    >>> receives = Receives()
    >>> receives.settled(Message("a", token=7), Back(0.0, touched=False))
    >>> receives.attempts("a", 8), receives.attempts("b", 8)
    (7, 8)
    """

    __slots__ = ("_before", "_known", "_most")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        # two generations, so that forgetting the oldest takes no look at each
        self._known: dict[object, tuple[int, int]] = {}
        self._before: dict[object, tuple[int, int]] = {}

    def attempts(self, key: object, received: int) -> int:
        """How many of so many receives of a message were attempts, this one included."""
        return max(1, received - self._of(key)[0])

    def settled(self, message: Message, verdict: Verdict) -> None:
        """A message goes back, or is gone. It may be told again of one receive: once is enough."""
        uncounted, last = self._of(message.key)
        match verdict:
            case Back(touched=False) if message.token != last:
                self._note(message.key, uncounted + 1, message.token)
            case Done(again=float() | int()):
                self._note(message.key, message.token, message.token)
            case Back():
                pass
            case _:
                self._known.pop(message.key, None)
                self._before.pop(message.key, None)

    def _of(self, key: object) -> tuple[int, int]:
        """How many receives don't count, and which was the last of them."""
        return self._known.get(key) or self._before.get(key) or (0, 0)

    def _note(self, key: object, uncounted: int, last: int) -> None:
        if len(self._known) >= self._most:
            self._before, self._known = self._known, {}
        self._known[key] = uncounted, last
