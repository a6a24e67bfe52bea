"""Defines the contract between a source of messages and the loop that handles them.

A source delivers a message under a lease. The loop extends the lease while the handler runs, and settles the message
with a verdict: done, back after a delay, or buried with a reason. When a lease runs out, the message can be received by
others, and a later verdict is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from abate.errors import AbateError, number
from abate.frozen import Frozen

NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})


class LeaseLost(AbateError):
    """The lease of a message ran out before it was settled, so another worker may have received it.

    >>> raise LeaseLost("orders/42")
    Traceback (most recent call last):
    abate.work.source.LeaseLost: the lease of 'orders/42' ran out: it is not yours any more
    """

    def __init__(self, key: Hashable) -> None:
        super().__init__(f"the lease of {key!r} ran out: it is not yours any more")
        self.key = key

    def __reduce__(self) -> tuple[type[LeaseLost], tuple[Hashable], dict[str, Any]]:
        return type(self), (self.key,), self.__dict__


class Message:
    """A message under a lease. Two messages are never equal, even with the same content.

    * `key`: its identity in the queue; while it is leased, no other worker can receive it.
    * `body`: what was sent, as text; may be empty.
    * `receives`: how often it was received since it was last done, this time included.
    * `token`: grows with every lease. Use it as a fencing token: a writer whose lease ran out has a lower one.
    * `attributes`: strings by name, from the sender.
    * `group`: messages of one group are handled in order, one at a time; None for no order.
    * `handle`: identifies this lease to the source.
    * `unanswered`: how many of its last receives, without this one, ended without an answer because the lease ran out,
      as it does when a process dies. Done and back reset it to 0. None if the source does not know.

    >>> Message("orders/42", "{}")
    Message(key='orders/42', body='{}', receives=1)
    """

    __slots__ = ("attributes", "body", "group", "handle", "key", "receives", "token", "unanswered")

    def __init__(
        self,
        key: Hashable,
        body: str = "",
        receives: int = 1,
        token: int = 0,
        attributes: Mapping[str, str] = NO_ATTRIBUTES,
        group: str | None = None,
        handle: object = None,
        unanswered: int | None = 0,
    ) -> None:
        self.key = key
        self.body = body
        self.receives = receives
        self.token = token
        self.attributes = attributes
        self.group = group
        self.handle = handle
        self.unanswered = unanswered

    def __repr__(self) -> str:
        return f"Message(key={self.key!r}, body={self.body!r}, receives={self.receives})"

    def json(self) -> Any:
        """Parse the body as JSON; raise `ValueError` if it is not JSON, or is nested too deeply.

        >>> Message("a", '{"order": 42}').json()
        {'order': 42}
        """
        import json

        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("the body is nested too deeply to be read as JSON") from None


class Done(Frozen):
    """The message is done. With `again`, its key comes back after this many seconds as if it had just been added."""

    again: float | None = None


class Back(Frozen):
    """Return the message to the queue, ready after `after` seconds.

    With `touched=False` the receive does not count, if the source can take that back.
    """

    after: float
    touched: bool = True

    def validate(self) -> None:
        number("after", self.after, least=0)


class Bury(Frozen):
    """Move the message to the dead letters.

    `kind` is ``permanent``, ``fatal``, ``receives`` or ``unreadable``; `reason` is the text of the error, `trace` its
    traceback.
    """

    kind: str
    reason: str
    trace: str = ""


Verdict: TypeAlias = Done | Back | Bury
Settlement: TypeAlias = tuple[Message, Verdict]


class Source(Protocol):
    """Delivers messages under a lease. Each method may be a plain function (called in a thread) or ``async``.

    All three take several messages, so that a source can use batches. A source that should be called rarely may have a
    `patience` as well: the seconds that a receive waits, instead of one. If its receive is a plain function that waits
    for long, it should have a function `interrupt`, which a stop calls in another thread: it makes a receive that waits
    return, and may be called again. A source whose type has `receives_ahead` set takes a third argument `ahead`, as
    queues of stores do (`abate.stores.queue_contract.Queue.receive`); it may have `ahead_seconds` as well: the seconds
    for which what is received ahead keeps the workers busy, instead of `abate.work.prefetch.AHEAD_SECONDS`.
    """

    name: str
    lease: float | None
    """Seconds that a lease lasts; None if it lasts until the message is settled."""
    durable: bool
    """Whether waiting messages outlive the process. If so, a shutdown leaves them in the source; if not, it drains."""

    def receive(self, max_messages: int, wait: float) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Return up to `max_messages` messages; if there are none, wait for the first up to `wait` seconds."""
        ...

    def extend(self, messages: Sequence[Message]) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Restart the leases. Return the messages whose lease was lost."""
        ...

    def settle(self, settlements: Sequence[Settlement]) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Carry out the verdicts. Return the messages whose lease was lost, for which nothing was done."""
        ...
