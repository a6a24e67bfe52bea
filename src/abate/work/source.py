"""Where work comes from: the contract between the loop that works and the queue that hands out.

A source hands a message out under a lease. Whoever has it extends the lease while the work lasts, and settles it
with a verdict: done, back after a delay, or buried with a reason. A lease that runs out makes the message somebody
else's; a verdict that comes later than that is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from abate.errors import AbateError, number
from abate.values import Value

NOTHING: Mapping[str, str] = MappingProxyType({})


class LeaseLost(AbateError):
    """The lease of a message ran out before it was settled: it is somebody else's, or will be.

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
    """A piece of work in hand. No two are equal, even if they say the same.

    * `key`: its identity in the queue; while it is in hand, nobody else has it.
    * `body`: what was sent, as text; empty where the key says it all.
    * `receives`: how often it has been handed out since it was last done, this time included.
    * `token`: grows with every lease. What is written elsewhere on its behalf can carry it, so that a writer whose
      lease ran out is told by its lower number.
    * `attributes`: what the sender wrote on the envelope.
    * `group`: messages of one group are worked on in order, one at a time; None for no order.
    * `handle`: what the source knows this lease by.
    * `unanswered`: how many of its last receives ended without an answer, this one not included: the lease ran out, as
      it does when a process dies. One that was answered with done or back begins anew from 0. None where the source
      counts receives, and can't tell how they ended.

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
        attributes: Mapping[str, str] = NOTHING,
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
        """The body, read as JSON; `ValueError` where it is none, or nested too deeply to be read.

        >>> Message("a", '{"order": 42}').json()
        {'order': 42}
        """
        import json

        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("the body is nested too deeply to be read as JSON") from None


class Done(Value):
    """The work is done; with `again`, the key comes back after so many seconds as if it had just been added."""

    again: float | None = None


class Back(Value):
    """The work is not done: back into the queue after so many seconds.

    A message that was not touched (`touched` is false) has not been received, as far as the source can take that
    back.
    """

    after: float
    touched: bool = True

    def checked(self) -> None:
        number("after", self.after, least=0)


class Bury(Value):
    """The work can't be done: to the dead letters.

    `kind` is one of few words (``permanent``, ``fatal``, ``receives``, ``unreadable``), `reason` what the error said,
    `trace` where it happened.
    """

    kind: str
    reason: str
    trace: str = ""


Verdict: TypeAlias = Done | Back | Bury
Settlement: TypeAlias = tuple[Message, Verdict]


class Source(Protocol):
    """Hands out messages under a lease. Each method may be a plain one (it is called in a thread) or ``async``.

    Three of them, so that whoever has batches (a transaction, a pipeline, a batch of SQS) can use them. One that had
    best be asked seldom may have a `patience` as well: seconds for which a receive is asked to wait, instead of one.
    """

    name: str
    lease: float | None
    """Seconds for which a message is the worker's; None where it is until it is settled."""
    durable: bool
    """Does what waits outlive this process? Then a shutdown leaves it there; otherwise it is worked off."""

    def receive(self, most: int, wait: float) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Up to `most` messages; where there are none, wait for up to `wait` seconds for the first."""
        ...

    def extend(self, messages: Sequence[Message]) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Let the leases begin anew; the answer is those that were lost."""
        ...

    def settle(self, settlements: Sequence[Settlement]) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Carry out the verdicts; the answer is those whose lease was lost, so that nothing was done for them."""
        ...
