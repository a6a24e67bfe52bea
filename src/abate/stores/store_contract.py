"""The base class of stores, and the contract that every engine fulfils.

`Store` checks arguments, and opens budgets, buckets and shelters that a fleet shares (`abate.stores.fleet`). Engines
implement the abstract methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from types import TracebackType
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from abate import clock as clocks
from abate import registry
from abate.admit.budget import FundedBy
from abate.clock import Clock
from abate.errors import whole
from abate.stores.budget import BudgetTerms, StoreBudget
from abate.stores.encoding import DEFAULT_MAX_BODY, MAX_KEY_BYTES, checked_text
from abate.stores.errors import StoreError
from abate.stores.fleet import FleetBucket, FleetBudget, FleetShelter, FleetSync
from abate.stores.fleet.sync_requests import SyncReply, SyncRequest
from abate.stores.queue_contract import Depth, Queue

S = TypeVar("S")


class Store(ABC):
    """Queues, budgets, buckets and shelters by name, shared by all processes that open the same URL.

    Any thread may use a store, and so may a forked child. The queues of ``memory:`` belong to one process.

    >>> import abate.stores
    >>> with abate.stores.open_store("memory:") as store:
    ...     store.queue("orders").add("orders/42")
    ...     store.queues()
    True
    {'orders': Depth(ready=1, delayed=0, leased=0, dead=0, age=...)}
    """

    def __init__(self, name: str, clock: Clock | None) -> None:
        self.name = name
        """The name in logs and events, without a password."""
        self._clock = clock
        self._fleet_sync: FleetSync | None = None
        self._shared: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        registry.stores.add(self)

    @property
    def clock(self) -> Clock:
        """Return the clock of this store: its own, or the current one."""
        return self._clock or clocks.current()

    @abstractmethod
    def queue(
        self, name: str, *, lease: float = 30.0, capacity: int | None = None, max_body: int = DEFAULT_MAX_BODY
    ) -> Queue:
        """Open the queue of that name; a message is leased for `lease` seconds when it is received.

        `max_body` limits the bytes of a body, and should be the same wherever the queue is opened: `add` refuses a
        longer body, and `receive` buries a message that has one.

        >>> import abate.stores
        >>> abate.stores.open_store("memory:").queue("orders", max_body=3).send("four")
        Traceback (most recent call last):
        ValueError: a body must be a string of at most 3 bytes, not of 4
        """

    @abstractmethod
    def queues(self) -> dict[str, Depth]:
        """Return the depths of all queues that hold or have held messages, by name."""

    def budget(
        self,
        name: str,
        ratio: float = 0.2,
        reserve: float = 10.0,
        window: float = 10.0,
        funded_by: FundedBy = "success",
    ) -> FleetBudget:
        """Open the retry budget of that name, which all processes share without a round trip per call.

        >>> import abate
        >>> store = abate.open_store("memory:")
        >>> policy = abate.Policy(on=ConnectionError, budget=store.budget("orders", ratio=0.1))
        """
        terms = BudgetTerms(ratio, reserve, window)
        key = ("budget", self._checked_name("budget", name), terms, funded_by)
        return self._shared_instance(key, lambda: FleetBudget(self.fleet_sync, name, terms, funded_by))

    def ledger(self, name: str, ratio: float = 0.2, reserve: float = 10.0, window: float = 10.0) -> StoreBudget:
        """Open the same budget with a round trip per operation: for short-lived processes such as cron jobs."""
        return StoreBudget(self, self._checked_name("budget", name), BudgetTerms(ratio, reserve, window))

    def bucket(self, name: str, rate: float, burst: int = 1) -> FleetBucket:
        """Open the token bucket of that name; all processes together stay within its rate.

        >>> import abate
        >>> policy = abate.Policy(on=ConnectionError, gate=abate.open_store("memory:").bucket("mails", rate=50.0))
        """
        key = ("bucket", self._checked_name("bucket", name), rate, burst)
        return self._shared_instance(key, lambda: FleetBucket(self.fleet_sync, name, rate, burst))

    def shelter(self, name: str, capacity: int = 1000, patience: float = 10.0) -> FleetShelter:
        """Open the shelter of that dependency: in an outage one process probes for all, and recovery is gradual.

        >>> import abate
        >>> policy = abate.Policy(on=ConnectionError, shelter=abate.open_store("memory:").shelter("orders"))
        """
        key = ("shelter", self._checked_name("shelter", name), capacity, patience)
        return self._shared_instance(key, lambda: FleetShelter(self.fleet_sync, name, capacity, patience))

    def _shared_instance(self, key: Hashable, make: Callable[[], S]) -> S:
        """Return this process's object of that name and terms: a second one would hold a second share."""
        found = self._shared.get(key)
        return cast("S", self._shared.setdefault(key, make()) if found is None else found)

    def _checked_name(self, what: str, name: str) -> str:
        return checked_text(f"a {what}'s name", name, MAX_KEY_BYTES, empty=False)

    @property
    def fleet_sync(self) -> FleetSync:
        """Return the background sync of this process's shared limits; create it on first use."""
        if self._fleet_sync is None:
            self._fleet_sync = FleetSync(self, self.name)
        return self._fleet_sync

    @property
    def degraded(self) -> bool:
        """Return whether the store does not answer, so that this process applies local limits. For a gauge.

        >>> import abate
        >>> abate.open_store("memory:").degraded
        False
        """
        return self._fleet_sync is not None and self._fleet_sync.degraded

    def leave(self) -> None:
        """Return the shares of this process to the fleet."""
        if self._fleet_sync is not None:
            self._fleet_sync.close()

    @abstractmethod
    def sync_members(self, member: str, requests: Sequence[SyncRequest]) -> Sequence[SyncReply | StoreError]:
        """Answer the requests of one process (see `abate.stores.fleet`) in one round trip.

        If a single request fails, its reply is the error.
        """

    def exchange(self, name: str, terms: BudgetTerms, *, deposits: int = 0, want: int = 0, returned: int = 0) -> int:
        """Deposit, take back the newest withdrawals, and withdraw up to `want`, in one transaction.

        Return how many withdrawals were granted.

        >>> import abate.stores
        >>> store = abate.stores.open_store("memory:")
        >>> store.exchange("nightly", BudgetTerms(ratio=0.6, reserve=0), deposits=5, want=10)
        3
        """
        return self._exchange(
            self._checked_name("budget", name),
            terms,
            whole("deposits", deposits, least=0),
            whole("want", want, least=0),
            whole("returned", returned, least=0),
        )

    @abstractmethod
    def balance(self, name: str, terms: BudgetTerms) -> float:
        """Return how many withdrawals the budget of that name allows now."""

    @abstractmethod
    def _exchange(self, name: str, terms: BudgetTerms, deposits: int, want: int, returned: int) -> int: ...

    @abstractmethod
    def close(self) -> None:
        """Close connections and files. Calls that wait in the store raise `StoreError`."""

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
