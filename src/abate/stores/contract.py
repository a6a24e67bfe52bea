"""What every store promises for every state of a message.

A message is in one of three states:

    add ──► waiting ──► receive ──► leased ──► done ──► gone, or waiting again if it was added meanwhile
               ▲  ▲                  │  │ └──► bury ──► dead ──► redrive, or a new add ──► waiting
               │  └── the lease ran out ┘
               └─────── back ────────┘

One that waits is ready from its due instant on, and delayed before. A lease that has run out is waiting again from
that instant on, and no verdict of its former holder counts any more, even if nobody has taken it since: so a holder
can tell by the clock alone whether it still has a lease, and the store never says otherwise.

The stores do the rest in methods that begin with an underscore; they are told values that have been checked
(`abate.stores.input`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from abate import registry
from abate.admit.budget import FundedBy
from abate.errors import AbateError, number, whole
from abate.stores.fleet import Courier, FleetBucket, FleetBudget, FleetShelter
from abate.stores.fleet.offers import Answer, Offer
from abate.stores.input import (
    HIGHEST,
    LONGEST_BODY,
    LONGEST_KEY,
    LONGEST_SHOWN,
    MOST_BODY,
    bounded,
    envelope,
    of_ours,
    several,
    text,
)
from abate.stores.ledger import StoreBudget, Terms
from abate.values import Value
from abate.work.adds import Adds
from abate.work.source import Back, Bury, Done, LeaseLost, Message, Settlement, Verdict

S = TypeVar("S")

SHORTEST_LEASE = 0.001
"""Seconds; a shorter one might be over before it has begun."""


class StoreError(AbateError):
    """A store can't do its work: it is not there, broken, locked, full, or of another make.

    Nothing was changed, but for a server that stopped answering in the middle: what it was asked last may be done.

    >>> import abate.stores
    >>> abate.stores.open_store("sqlite:////")
    Traceback (most recent call last):
    abate.stores.contract.StoreError: / is a directory: expected a file, or a path at which to make one
    """


class StoreUnreachable(StoreError):
    """A store's server can't be reached, or doesn't answer: later it may be.

    >>> issubclass(StoreUnreachable, StoreError)
    True
    """


class Depth(Value):
    """How many messages a queue holds, by what they wait for, and for how long the oldest has been ready.

    >>> Depth(ready=2, delayed=1).waiting
    3
    """

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    age: float | None = None
    """Seconds; None where nothing is ready."""

    @property
    def waiting(self) -> int:
        """How many count against the capacity."""
        return self.ready + self.delayed


class DeadLetter(Value):
    """A message that could not be worked on, and why; `died` is when, in seconds since 1970.

    Bytes that are no UTF-8 are shown as ``\\xff``, and of a body a megabyte at most; the store keeps them as they are.

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


class Queue(ABC):
    """Messages that wait for a worker, in a store. It is a `Source`: controllers and consumers take it as it is.

    >>> import abate.stores
    >>> queue = abate.stores.open_store("memory:").queue("orders")
    >>> queue.add("orders/42", "{}", priority=1), queue.send("a message without a key of its own") != ""
    (True, True)
    >>> [message.key for message in queue.receive()], queue.depth().leased, queue.depth().ready
    (['orders/42'], 1, 1)
    """

    durable: bool

    def __init__(self, name: str, lease: float, capacity: int | None, max_body: int = LONGEST_BODY) -> None:
        self.name = text("a queue's name", name, LONGEST_KEY, empty=False)
        self._lease = number("lease", lease, least=SHORTEST_LEASE)
        self.lease: float | None = self._lease
        self.capacity = None if capacity is None else whole("capacity", capacity, least=1)
        self.max_body = whole("max_body", max_body, least=1)
        """Bytes of a body: a longer one is refused by `add`, and buried by `receive` if another program wrote it."""
        if max_body > MOST_BODY:
            raise ValueError(f"max_body must be a whole number of at most {MOST_BODY}, not {max_body!r}")
        self._shown = min(max_body, LONGEST_SHOWN)
        self.added = Adds()
        """What was added through this object."""

    # -- in

    def add(
        self,
        key: str,
        body: str = "",
        *,
        priority: int = 0,
        after: float = 0.0,
        attributes: Mapping[str, str] | None = None,
        revive: bool = True,
    ) -> bool:
        """Add a message, ready after so many seconds: is it new here?

        One that waits already takes the newer body, the higher priority and the earlier instant. One that is leased
        comes back after it is settled. A dead one lives again, unless `revive` is false: then it stays where it is.

        >>> import abate.stores
        >>> queue = abate.stores.open_store("memory:").queue("orders")
        >>> queue.add("orders/42", after=60.0), queue.add("orders/42", "now"), queue.receive()
        (True, False, [Message(key='orders/42', body='now', receives=1)])
        """
        text("a key", key, LONGEST_KEY, empty=False)
        text("a body", body, self.max_body)
        if whole("priority", priority, least=0) > HIGHEST:
            raise ValueError(f"priority must be a whole number of at most {HIGHEST}, not {priority!r}")
        new = self._add(key, body, priority, number("after", after, least=0), envelope(attributes), revive)
        self.added.note(new or not revive)  # what is not to be revived may be dead as well as waiting
        return new

    def send(
        self, body: str, *, priority: int = 0, after: float = 0.0, attributes: Mapping[str, str] | None = None
    ) -> str:
        """Add a message that is like no other: the key that was made for it."""
        key = os.urandom(16).hex()
        self.add(key, body, priority=priority, after=after, attributes=attributes)
        return key

    def cancel(self, key: str) -> bool:
        """Forget a message that waits for its time, or the delayed add of one that is leased: was there one?"""
        return self._cancel(text("a key", key, LONGEST_KEY, empty=False))

    # -- out

    def receive(self, most: int = 1, wait: float = 0.0) -> list[Message]:
        """Up to `most` messages, leased; where there are none, wait for up to `wait` seconds for the first."""
        return self._receive(whole("most", most, least=1), number("wait", wait, least=0))

    def extend(self, messages: Sequence[Message]) -> list[Message]:
        """Let the leases begin anew; the answer is those that were lost."""
        for message in messages:
            of_ours(message)
        return self._extend(messages) if messages else []

    def settle(self, settlements: Sequence[Settlement]) -> list[Message]:
        """Carry out the verdicts, all in one transaction; the answer is those whose lease was lost."""
        checked = [(of_ours(message), bounded(verdict)) for message, verdict in settlements]
        return self._settle(checked) if checked else []

    def done(self, message: Message, again: float | None = None) -> None:
        """The work is done; with `again`, the message comes back after so many seconds as if it were new."""
        self._one(message, Done(again))

    def back(self, message: Message, after: float = 0.0, *, touched: bool = True) -> None:
        """The work is not done: back into the queue after so many seconds."""
        self._one(message, Back(after, touched))

    def bury(self, message: Message, reason: str, *, kind: str = "permanent", trace: str = "") -> None:
        """The work can't be done: to the dead letters."""
        self._one(message, Bury(kind, reason, trace))

    def _one(self, message: Message, verdict: Verdict) -> None:
        if self.settle([(message, verdict)]):
            raise LeaseLost(message.key)

    # -- what there is

    @abstractmethod
    def depth(self) -> Depth:
        """How many messages there are."""

    def dead(self, limit: int = 100) -> list[DeadLetter]:
        """The dead letters, those that died last first.

        >>> import abate.stores
        >>> queue = abate.stores.open_store("memory:").queue("orders")
        >>> queue.add("orders/42"), queue.bury(queue.receive()[0], "it has no address")
        (True, None)
        >>> [(letter.key, letter.kind, letter.reason) for letter in queue.dead()], queue.redrive()
        ([('orders/42', 'permanent', 'it has no address')], 1)
        """
        return self._dead(whole("limit", limit, least=1))

    def redrive(self, keys: Sequence[str] | None = None) -> int:
        """Let dead letters be ready again, as if never received; all of them, or those of `keys`: how many.

        Those that died first are ready first; those that die meanwhile stay dead. They are let in whatever the capacity
        is. Many are redriven in batches, each a transaction of its own, so that others get their turn: when it fails,
        those that were redriven stay so, and the next call goes on with the rest.
        """
        return self._redrive(several(keys))

    def purge(self, keys: Sequence[str] | None = None) -> int:
        """Delete dead letters for good; all of them, or those of `keys`: how many. Many in batches, as by `redrive`."""
        return self._purge(several(keys))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, lease {self._lease:g} s>"

    # -- what a store does

    @abstractmethod
    def _add(
        self, key: str, body: str, priority: int, after: float, attributes: Mapping[str, str], revive: bool
    ) -> bool: ...

    @abstractmethod
    def _cancel(self, key: str) -> bool: ...

    @abstractmethod
    def _receive(self, most: int, wait: float) -> list[Message]: ...

    @abstractmethod
    def _extend(self, messages: Sequence[Message]) -> list[Message]: ...

    @abstractmethod
    def _settle(self, settlements: Sequence[Settlement]) -> list[Message]: ...

    @abstractmethod
    def _dead(self, limit: int) -> list[DeadLetter]: ...

    @abstractmethod
    def _redrive(self, keys: Sequence[str] | None) -> int: ...

    @abstractmethod
    def _purge(self, keys: Sequence[str] | None) -> int: ...


class Store(ABC):
    """Queues and budgets by name, shared by all who open the same URL.

    Any thread may use it; so may a fork's child, but for the queues of ``memory:``, which belong to one process.

    >>> import abate.stores
    >>> with abate.stores.open_store("memory:") as store:
    ...     store.queue("orders").add("orders/42")
    ...     store.queues()
    True
    {'orders': Depth(ready=1, delayed=0, leased=0, dead=0, age=...)}
    """

    def __init__(self, name: str) -> None:
        self.name = name
        """What it is called in logs and events: without a password."""
        self._courier: Courier | None = None
        self._shared: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        registry.stores.add(self)

    @abstractmethod
    def queue(
        self, name: str, *, lease: float = 30.0, capacity: int | None = None, max_body: int = LONGEST_BODY
    ) -> Queue:
        """The queue of that name; `lease` is for how many seconds its messages are handed out.

        `max_body` is how many bytes a body may have, and should be the same wherever the queue is opened: a longer one
        is refused by `add`, and one that is in the store all the same is buried when it is received.

        >>> import abate.stores
        >>> abate.stores.open_store("memory:").queue("orders", max_body=3).send("four")
        Traceback (most recent call last):
        ValueError: a body must be a string of at most 3 bytes, not of 4
        """

    @abstractmethod
    def queues(self) -> dict[str, Depth]:
        """The queues that hold messages or have held some, by name."""

    def budget(
        self,
        name: str,
        ratio: float = 0.2,
        reserve: float = 10.0,
        window: float = 10.0,
        funded_by: FundedBy = "success",
    ) -> FleetBudget:
        """The retry budget of that name: of all processes together, without a round trip per call.

        >>> import abate
        >>> store = abate.open_store("memory:")
        >>> policy = abate.Policy(on=ConnectionError, budget=store.budget("orders", ratio=0.1))
        """
        terms = Terms(ratio, reserve, window)
        key = ("budget", self._named("budget", name), terms, funded_by)
        return self._one_of(key, lambda: FleetBudget(self.courier, name, terms, funded_by))

    def ledger(self, name: str, ratio: float = 0.2, reserve: float = 10.0, window: float = 10.0) -> StoreBudget:
        """The same budget, asked each time: for a process that doesn't live long enough to hold anything."""
        return StoreBudget(self, self._named("budget", name), Terms(ratio, reserve, window))

    def bucket(self, name: str, rate: float, burst: int = 1) -> FleetBucket:
        """The token bucket of that name: its rate is that of all processes together.

        >>> import abate
        >>> policy = abate.Policy(on=ConnectionError, gate=abate.open_store("memory:").bucket("mails", rate=50.0))
        """
        key = ("bucket", self._named("bucket", name), rate, burst)
        return self._one_of(key, lambda: FleetBucket(self.courier, name, rate, burst))

    def shelter(self, name: str, capacity: int = 1000, patience: float = 10.0) -> FleetShelter:
        """The shelter of that dependency: one process probes for all, and the doors open one after the other.

        >>> import abate
        >>> policy = abate.Policy(on=ConnectionError, shelter=abate.open_store("memory:").shelter("orders"))
        """
        key = ("shelter", self._named("shelter", name), capacity, patience)
        return self._one_of(key, lambda: FleetShelter(self.courier, name, capacity, patience))

    def _one_of(self, key: Hashable, make: Callable[[], S]) -> S:
        """The one of that name and those terms that this process has: two would share the reserve twice."""
        found = self._shared.get(key)
        return cast("S", self._shared.setdefault(key, make()) if found is None else found)

    def _named(self, what: str, name: str) -> str:
        return text(f"a {what}'s name", name, LONGEST_KEY, empty=False)

    @property
    def courier(self) -> Courier:
        """Carries what this process shares; made when there is something to carry."""
        if self._courier is None:
            self._courier = Courier(self, self.name)
        return self._courier

    @property
    def degraded(self) -> bool:
        """Does the store not answer, so that this process goes by limits of its own? For a gauge.

        >>> import abate
        >>> abate.open_store("memory:").degraded
        False
        """
        return self._courier is not None and self._courier.degraded

    def leave(self) -> None:
        """Hand in what this process holds of what is shared."""
        if self._courier is not None:
            self._courier.close()

    @abstractmethod
    def trade(self, member: str, offers: Sequence[Offer]) -> Sequence[Answer | StoreError]:
        """Answer what a member brings (see `abate.stores.fleet`), in one round trip.

        An offer that alone can't be answered is answered by an error.
        """

    def exchange(self, name: str, terms: Terms, *, deposits: int = 0, want: int = 0, returned: int = 0) -> int:
        """Pay into a budget, take back its newest withdrawals, and then withdraw up to `want`: how many were granted.

        All of it is one transaction.

        >>> import abate.stores
        >>> store = abate.stores.open_store("memory:")
        >>> store.exchange("nightly", Terms(ratio=0.6, reserve=0), deposits=5, want=10)
        3
        """
        return self._exchange(
            self._named("budget", name),
            terms,
            whole("deposits", deposits, least=0),
            whole("want", want, least=0),
            whole("returned", returned, least=0),
        )

    @abstractmethod
    def balance(self, name: str, terms: Terms) -> float:
        """How many withdrawals the budget of that name pays for."""

    @abstractmethod
    def _exchange(self, name: str, terms: Terms, deposits: int, want: int, returned: int) -> int: ...

    @abstractmethod
    def close(self) -> None:
        """Let go of what the store holds open; whoever waits in it gets `StoreError`."""

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
