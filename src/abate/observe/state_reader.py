"""The state that metrics sinks report: gauges, ended calls and adds, in a bounded number of series."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

from abate import registry
from abate.events import SHELTER_STATES
from abate.observe.call_outcomes import CallCountsSince, CallOutcomes
from abate.observe.lasting_totals import LastingTotals, Pair, Reading
from abate.observe.metric_series import Gauges, Labels, LabelValues
from abate.observe.snapshot import Snapshot, snapshot
from abate.reentrant_locks import Section

State = Mapping[str, Mapping[Labels, float]]
"""Series by what they measure; each has a value per combination of labels."""


class StateReader:
    """Reads the state for one sink; `section` is the lock under which that sink counts events.

    >>> import abate
    >>> shelter = abate.Shelter(name="shop")
    >>> policy = abate.Policy(name="orders", on=OSError, shelter=shelter)
    >>> StateReader(Section()).read()["shelter_state"]["shop", "calm"]
    1
    """

    __slots__ = ("_adds", "_call_counts", "_section", "outcomes", "policies", "queues", "shelters", "stores")

    def __init__(self, section: Section) -> None:
        self.policies, self.queues, self.shelters, self.stores = (LabelValues() for _ in range(4))
        self.outcomes = CallOutcomes(self.policies)
        self._call_counts = CallCountsSince()
        self._adds: LastingTotals[Any] = LastingTotals(_added)
        self._section = section

    def read(self) -> State:
        """Return the current state."""
        # without the lock, on which calls would wait: stores take their time to report depths
        seen = snapshot()
        adds = self._adds.totals(self._services())
        counts = self._call_counts.read()
        # a re-entrant read may see an event half counted; nothing changes while it reads
        return self._section.call(self._state, seen, counts, adds, otherwise=self._state)

    def _services(self) -> list[tuple[Any, str]]:
        services = registry.services.alive()
        named: Callable[[], list[tuple[Any, str]]] = lambda: [(each, self.queues.of(each.name)) for each in services]  # noqa: E731
        return self._section.call(named, otherwise=named)

    def _state(self, seen: Snapshot, counts: Mapping[str, Pair], adds: Mapping[str, Pair]) -> State:
        return {
            **self._of_policies(seen),
            **self._of_shelters(seen),
            **self._of_queues(seen),
            **self._of_stores(seen),
            "calls": {**self.outcomes.read(counts)},
            "queue_adds": {(queue,): added for queue, (added, _) in adds.items()},
            "queue_coalesced": {(queue,): coalesced for queue, (_, coalesced) in adds.items()},
        }

    # objects that share a label are added up, or the worst is kept

    def _of_policies(self, seen: Snapshot) -> State:
        balance, remaining, active = Gauges(), Gauges(min), Gauges()
        for view in seen.policies:
            policy = self.policies.of(view.name)
            balance.put(view.balance, policy)
            remaining.put(view.share, policy)
            active.put(view.in_flight, policy)
        return {"budget_balance": dict(balance), "budget_remaining": dict(remaining), "active_calls": dict(active)}

    def _of_shelters(self, seen: Snapshot) -> State:
        state, waiters, limit = Gauges(max), Gauges(), Gauges(min)
        for view in seen.shelters:
            shelter = self.shelters.of(view.name)
            waiters.put(view.waiters, shelter)
            limit.put(view.limit, shelter)
            for each in SHELTER_STATES:
                state.put(int(view.state == each), shelter, each)
        return {"shelter_state": dict(state), "shelter_waiters": dict(waiters), "shelter_limit": dict(limit)}

    def _of_queues(self, seen: Snapshot) -> State:
        depth, age, workers, utilization = Gauges(), Gauges(max), Gauges(), Gauges(max)
        for view in seen.queues:
            queue = self.queues.of(view.name)
            for state in ("ready", "delayed", "in_hand", "dead"):
                depth.put(getattr(view, state), queue, state)
            age.put(view.age, queue)
            busy = min(view.in_hand, view.workers)
            workers.put(busy, queue, "busy")
            workers.put(view.workers - busy, queue, "idle")
            utilization.put(busy / view.workers, queue)
        return {
            "queue_depth": dict(depth),
            "queue_age": dict(age),
            "queue_workers": dict(workers),
            "worker_utilization": dict(utilization),
        }

    def _of_stores(self, seen: Snapshot) -> State:
        degraded = Gauges(max)
        for view in seen.stores:
            degraded.put(int(view.degraded), self.stores.of(view.name))
        return {"store_degraded": dict(degraded)}


def _added(service: Any) -> Reading:
    """Return a reader of a controller's adds, and of the adds that changed nothing."""
    weak = ref(service)

    def read() -> Pair | None:
        here = weak()
        adds, coalesced = getattr(here, "adds", None), getattr(here, "coalesced", None)
        return None if adds is None or coalesced is None else (adds, coalesced)

    return read
