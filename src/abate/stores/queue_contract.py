"""The base class of queues, and the contract that every engine fulfils.

A message is in one of three states:

    add ──► waiting ──► receive ──► leased ──► done ──► gone, or waiting again if it was added meanwhile
               ▲  ▲                  │  │ └──► bury ──► dead ──► redrive, or a new add ──► waiting
               │  └── the lease ran out ┘
               └─────── back ────────┘

A waiting message is delayed until its due instant, and ready from then on. When a lease runs out, its message waits
again from that instant on and the store refuses verdicts of the former holder, even if no other worker has received
the message since. So a holder knows from the clock alone whether it still has the lease.

`Queue` checks arguments (`abate.stores.encoding`) and holds the loops that all engines share: waiting for a message,
and going through dead letters. Engines implement the methods that begin with an underscore.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from abate.clock import MachineClock
from abate.errors import number, whole
from abate.frozen import Frozen
from abate.stores.encoding import (
    DEFAULT_MAX_BODY,
    MAX_BODY_BYTES,
    MAX_KEY_BYTES,
    MAX_SHOWN_BYTES,
    batches,
    checked_keys,
    checked_message,
    checked_text,
    checked_verdict,
)
from abate.stores.producer import Producer
from abate.work.add_counts import AddCounts
from abate.work.source import Back, Bury, Done, LeaseLost, Message, Settlement, Verdict

if TYPE_CHECKING:
    from abate.stores.store_contract import Store

MIN_LEASE = 0.001
"""Seconds; a shorter lease could end before the message is delivered."""
MIN_PAUSE = 1e-6
"""Seconds; a shorter sleep may not move a virtual clock that counts from 1970."""


class Depth(Frozen):
    """The number of messages in a queue by state, and how long the oldest has been ready.

    >>> Depth(ready=2, delayed=1).waiting
    3
    """

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    age: float | None = None
    """Seconds; None if no message is ready."""

    @property
    def waiting(self) -> int:
        """Return the number of messages that count against the capacity."""
        return self.ready + self.delayed


class DeadLetter(Frozen):
    """A buried message and the reason; `died` is the time of burial, in seconds since 1970.

    Bytes that are not UTF-8 are shown as ``\\xff``, and a body is shown up to a megabyte. The store keeps all of it.

    >>> DeadLetter("orders/42", "", {}, "permanent", "it has no address", "", 1, 0.0).reason
    'it has no address'
    """

    key: str
    body: str
    attributes: Mapping[str, str]
    kind: str
    reason: str
    trace: str
    receives: int
    died: float


class ReceiveWaiter(Protocol):
    """One call of `receive` that waits for a message."""

    @property
    def interrupted(self) -> bool:
        """Return whether `Queue.interrupt` was called since it began to wait."""
        ...

    def look(self, left: float) -> None:
        """Note that the queue is about to be read, with `left` seconds to wait; `wait` returns at any later wake-up."""

    def wait(self, seconds: float) -> None:
        """Block until the queue may have a message, at most for `seconds`; 0 or less if one is due already."""


class Queue(Producer):
    """A queue of messages in a store. It is a `Source`, so consumers and controllers can use it directly.

    >>> import abate.stores
    >>> queue = abate.stores.open_store("memory:").queue("orders")
    >>> queue.add("orders/42", "{}", priority=1), queue.send("a message without a key of its own") != ""
    (True, True)
    >>> [message.key for message in queue.receive()], queue.depth().leased, queue.depth().ready
    (['orders/42'], 1, 1)
    """

    receives_ahead = True
    patience = 20.0
    """Seconds that a consumer waits for a message in one call of `receive`; a stop interrupts it."""

    _batch_size: int
    """Maximum number of dead letters for one call of `_redrive_or_purge_batch`."""

    def __init__(
        self, store: Store, name: str, lease: float, capacity: int | None, max_body: int = DEFAULT_MAX_BODY
    ) -> None:
        self._opened_from = store
        self.name = checked_text("a queue's name", name, MAX_KEY_BYTES, empty=False)
        self._lease = number("lease", lease, least=MIN_LEASE)
        self.lease: float | None = self._lease
        self.capacity = None if capacity is None else whole("capacity", capacity, least=1)
        self.max_body = whole("max_body", max_body, least=1, most=MAX_BODY_BYTES)
        """Bytes; `add` refuses a longer body, and `receive` buries a longer one written by another program."""
        self._max_shown = min(max_body, MAX_SHOWN_BYTES)
        self.add_counts = AddCounts()
        """Messages added through this object."""

    # -- adding: see also `abate.stores.producer`

    def cancel(self, key: str) -> bool:
        """Delete a delayed message, or the delayed add of a leased one. Return whether there was one."""
        return self._cancel(checked_text("a key", key, MAX_KEY_BYTES, empty=False))

    # -- working

    def receive(self, max_messages: int = 1, wait: float = 0.0, ahead: int = 0) -> list[Message]:
        """Lease and return up to `max_messages` messages; if none is ready, wait for the first up to `wait` seconds.

        With `ahead`, lease more, for workers that are busy now. The receive of such a message does not count until it
        is settled, so that it is not blamed if the process dies before it begins. Only messages that were never
        received are leased in this way, and none behind another one; if the lease runs out, the next receive counts.
        With no `max_messages`, this does not wait.
        """
        ahead = whole("ahead", ahead, least=0)
        most = whole("max_messages", max_messages, least=0 if ahead else 1)
        return self._receive(most, ahead, number("wait", wait, least=0) if most else 0.0)

    def _receive(self, max_messages: int, ahead: int, wait: float) -> list[Message]:
        if not wait:
            return self._take(max_messages, ahead, None)[0]
        clock = self._opened_from.clock
        end = clock.now() + wait
        with self._waiting() as waiter:
            while True:
                waiter.look(end - clock.now())
                messages, due = self._take(max_messages, ahead, waiter)
                left = end - clock.now()
                if messages or left <= 0 or waiter.interrupted:
                    return messages
                pause = left if due is None else min(left, due)
                if isinstance(clock, MachineClock):
                    waiter.wait(pause)
                else:
                    clock.sleep(max(MIN_PAUSE, pause))

    @abstractmethod
    def interrupt(self) -> None:
        """Make the receives of this process that wait now return. Any thread may call it."""

    def extend(self, messages: Sequence[Message]) -> list[Message]:
        """Restart the leases of these messages. Return the messages whose lease was lost."""
        for message in messages:
            checked_message(message)
        return self._extend(messages) if messages else []

    def settle(self, settlements: Sequence[Settlement]) -> list[Message]:
        """Carry out the verdicts in one transaction. Return the messages whose lease was lost."""
        checked = [(checked_message(message), checked_verdict(verdict)) for message, verdict in settlements]
        return self._settle(checked) if checked else []

    def done(self, message: Message, again: float | None = None) -> None:
        """Delete a handled message; with `again`, add it anew instead, ready after `again` seconds."""
        self._settle_one(message, Done(again))

    def back(self, message: Message, after: float = 0.0, *, touched: bool = True) -> None:
        """Return a message to the queue, ready after `after` seconds."""
        self._settle_one(message, Back(after, touched))

    def bury(self, message: Message, reason: str, *, kind: str = "permanent", trace: str = "") -> None:
        """Move a message that can't be handled to the dead letters."""
        self._settle_one(message, Bury(kind, reason, trace))

    def _settle_one(self, message: Message, verdict: Verdict) -> None:
        if self.settle([(message, verdict)]):
            raise LeaseLost(message.key)

    # -- looking, and dead letters

    @abstractmethod
    def depth(self) -> Depth:
        """Count the messages by state."""

    def dead(self, max_messages: int = 100) -> list[DeadLetter]:
        """Return up to `max_messages` dead letters, the latest first.

        >>> import abate.stores
        >>> queue = abate.stores.open_store("memory:").queue("orders")
        >>> queue.add("orders/42"), queue.bury(queue.receive()[0], "it has no address")
        (True, None)
        >>> [(letter.key, letter.kind, letter.reason) for letter in queue.dead()], queue.redrive()
        ([('orders/42', 'permanent', 'it has no address')], 1)
        """
        wanted = whole("max_messages", max_messages, least=1)
        letters: dict[object, DeadLetter] = {}  # by identity: two pages may hold the same dead letter
        position: object = None
        while len(letters) < wanted:
            page, position = self._dead_page(position, wanted - len(letters))
            letters |= page
            if position is None:
                break
        return list(letters.values())

    def redrive(self, keys: Sequence[str] | None = None) -> int:
        """Make dead letters ready again as if never received, all or those of `keys`. Return how many.

        The earliest dead letters become ready first. Messages that die during the call stay dead. The capacity does
        not apply. Each batch is one transaction, so that other clients can run in between; if a batch fails, the
        earlier ones stay redriven, and another call continues with the rest.
        """
        return self._redrive_or_purge(False, checked_keys(keys))

    def purge(self, keys: Sequence[str] | None = None) -> int:
        """Delete dead letters, all or those of `keys`, in batches like `redrive`. Return how many."""
        return self._redrive_or_purge(True, checked_keys(keys))

    def _redrive_or_purge(self, purge: bool, keys: Sequence[str] | None) -> int:
        total = 0
        if keys is not None:
            for number, batch in enumerate(batches(keys, self._batch_size)):
                if number:
                    self._yield_to_others()
                total += self._redrive_or_purge_batch(purge, batch, None)[0]
            return total
        position = self._oldest_dead_letters()
        while position is not None:
            changed, position = self._redrive_or_purge_batch(purge, None, position)
            total += changed
            if position is not None:
                self._yield_to_others()
        return total

    def _yield_to_others(self) -> None:
        """Pause between two batches if other clients could not run otherwise."""
        return

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, lease {self._lease:g} s>"

    # -- what an engine implements

    @abstractmethod
    def _cancel(self, key: str) -> bool: ...

    @abstractmethod
    def _take(self, max_messages: int, ahead: int, waiter: Any) -> tuple[list[Message], float | None]:
        """Lease and return ready messages; if there are none, also the seconds until one is due (None: unknown)."""

    @abstractmethod
    def _waiting(self) -> AbstractContextManager[ReceiveWaiter]:
        """Take part in the wake-ups of this queue."""

    @abstractmethod
    def _extend(self, messages: Sequence[Message]) -> list[Message]: ...

    @abstractmethod
    def _settle(self, settlements: Sequence[Settlement]) -> list[Message]: ...

    @abstractmethod
    def _dead_page(self, position: Any, max_letters: int) -> tuple[Mapping[Any, DeadLetter], object]:
        """Return dead letters by identity, latest first, from `position` on (None: the latest); and the next one."""

    @abstractmethod
    def _oldest_dead_letters(self) -> object:
        """Return the position at which `_redrive_or_purge_batch` begins to take all; None without dead letters."""

    @abstractmethod
    def _redrive_or_purge_batch(self, purge: bool, keys: Sequence[str] | None, position: Any) -> tuple[int, object]:
        """Redrive or purge one batch, of `keys` or from `position` on. Return how many, and the next position."""
