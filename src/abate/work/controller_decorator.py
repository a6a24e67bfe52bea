"""Provides `abate.controller`, the decorator that makes a controller of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from abate.admit.budget import Budget
from abate.decide.rules import Matcher, build_rules
from abate.errors import by_keyword, number, whole
from abate.redact import short_repr
from abate.schedule.backoff import Backoff, RandomSource, Schedule, schedule
from abate.work.controller import Controller
from abate.work.service import P, T
from abate.work.verdict_rules import VerdictRules

if TYPE_CHECKING:
    from abate.stores import Store


@by_keyword("abate.controller", "@abate.controller() or @abate.controller(workers=4)")
def controller(
    *,
    workers: int = 4,
    capacity: int | None = 10_000,
    store: Store | str | None = None,
    resync: float | None = None,
    keys: Callable[[], Any] | None = None,
    leader: bool = False,
    on: Matcher | Iterable[Matcher] | None = None,
    backoff: Schedule | Callable[[int], float] | Iterable[float] | None = None,
    budget: Budget | None = None,
    slow: float = 60.0,
    max_requeues: int | None = None,
    timeout: float | None = None,
    grace: float = 30.0,
    prefetch: int | None = None,
    name: str | None = None,
    rng: RandomSource | None = None,
) -> Callable[[Callable[P, T]], Controller[P, T]]:
    """Return a decorator that makes a controller of a function, plain or ``async``, that reconciles one key.

    The function finds out what its key needs and does it. It returns None when that is done, or `Again` to be called
    once more later. If it raises, the key is retried; if it raises `PermanentFailure`, the key is parked.

    * `workers`: the number of keys handled at the same time. Two workers never handle the same key.
    * `capacity`: the maximum number of waiting keys. Beyond it, `add` raises `QueueFull`, and sources wait.
    * `store`: a store or its URL. Keys in a store outlive the process and are shared; without one they are in memory.
    * `resync`, `keys`: the period in seconds in which every key is handled once, each at its own offset. `keys` is a
      function that lists them. Without it, only keys that this process has added or handled since its start are
      resynced: enough in memory, but not if processes share a store.
    * `leader`: whether only one of the processes that share the store resyncs. Without it all do, at the same instants,
      and their adds coalesce.
    * `on`: the errors to retry, as for a policy; without it, all of them.
    * `backoff`: the delays of a key, from its first failure on; by default from 0.2 s to 60 s with full jitter.
    * `budget`, `slow`: a failed key comes back after its backoff if the retry budget allows it, otherwise after `slow`
      seconds, plus or minus half. An add, a source or a resync brings it back earlier only if the budget allows that.
    * `max_requeues`: a key that fails more often than this is parked; None for no limit.
    * `timeout`: seconds for one call. A coroutine is cancelled; a plain function gets a deadline that clients inside
      respect.
    * `grace`: seconds for keys in flight to finish after a SIGTERM.
    * `prefetch`: how many keys are received before a worker is free, as for `abate.consumer`. Without a store only 0
      can be given: none.

    >>> import abate
    >>> @abate.controller(workers=2)
    ... def reconcile(key: str) -> None:
    ...     print("in step:", key)
    >>> reconcile.add("orders/42")
    >>> reconcile.run(drain=True)
    in step: orders/42
    Counter({'done': 1})
    """
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(f"budget must be a Budget, not {short_repr(budget)}")
    pays = Budget() if budget is None else budget
    verdict_rules = VerdictRules(
        Backoff(0.2, 60.0) if backoff is None else schedule(backoff),
        None if on is None else build_rules(on),
        pays,
        number("slow", slow, above=0),
        None if max_requeues is None else whole("max_requeues", max_requeues, least=0) + 1,
        rng,
    )

    def decorate(function: Callable[P, T]) -> Controller[P, T]:
        return Controller(
            function,
            name=name,
            workers=workers,
            capacity=capacity,
            store=store,
            resync=resync,
            keys=keys,
            leader=leader,
            verdict_rules=verdict_rules,
            budget=pays,
            own_budget=budget is None,
            timeout=timeout,
            grace=grace,
            prefetch=prefetch,
            rng=rng,
        )

    return decorate
