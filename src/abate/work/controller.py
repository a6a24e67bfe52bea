"""Implements the controller, which calls a function for each key until it succeeds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterable, Callable, Hashable, Iterable
from functools import partial
from inspect import isasyncgen, iscoroutinefunction
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar, overload

from abate import clock as clocks
from abate import registry
from abate.admit.budget import Budget
from abate.decide.rules import Matcher, build_rules
from abate.errors import by_keyword, number, whole
from abate.logs import Log
from abate.redact import short_repr
from abate.schedule.backoff import Backoff, RandomSource, Schedule, schedule
from abate.work import feeds
from abate.work.add_counts import AddCounts
from abate.work.backoff_guard import BackoffGuard
from abate.work.key_queue import QueueFull
from abate.work.leader import LEASE, check_queue_name, election_queue, run_while_leader
from abate.work.loop import Loop
from abate.work.memory_source import MAX_PARKED, MemorySource, Parked
from abate.work.resync_keys import KnownKeys
from abate.work.service import Health, P, Service, T, open_if_url
from abate.work.source import Message, Source
from abate.work.thread_pool import DaemonThreadPool
from abate.work.verdicts import VerdictRules

if TYPE_CHECKING:
    from abate.stores import Depth, Store

F = TypeVar("F", bound="Callable[..., Any] | AsyncIterable[Any]")
L = TypeVar("L", bound=Callable[[], Any])

log = Log("abate.work")

MIN_RESYNC = 0.001
"""Seconds; the shortest period of a resync."""
FULL_RETRY = 1.0
"""Seconds after which a feed tries again to add to a store that is full."""


class Controller(Service[P, T]):
    """Calls a function for each key until it succeeds; made by `controller`."""

    def __init__(
        self,
        function: Callable[P, T],
        *,
        name: str | None,
        workers: int,
        capacity: int | None,
        store: Store | str | None,
        resync: float | None,
        keys: Callable[[], Any] | None,
        leader: bool,
        verdict_rules: VerdictRules,
        budget: Budget,
        timeout: float | None,
        grace: float,
        rng: RandomSource | None,
    ) -> None:
        super().__init__(function, name, workers, grace, timeout)
        self.store = open_if_url(store)
        self._capacity = capacity
        self._memory = MemorySource(self.name, capacity, rng)
        self._add_counts = AddCounts()
        """Counts adds to every store queue that this controller has used."""
        self._queue: Any = self._memory
        if self.store is not None:
            self._queue = self._open_queue(self.store)
            self._queue.add_counts = self._add_counts
        self._rules = verdict_rules
        self._backoff_guarded = BackoffGuard(budget)
        self._rng: RandomSource = rng or random
        self._feeds: list[feeds.Feed] = []
        self._runners: list[feeds.FeedRunner] = []
        self._known: KnownKeys | None = None
        if resync is not None:
            if keys is None:
                self._known = KnownKeys(self.name)
            elif not callable(keys):
                raise TypeError(f"keys must be a function that lists them, not {short_repr(keys)}")
            produce = partial(feeds.resync_feed, keys or self._known_keys, number("resync", resync, least=MIN_RESYNC))
            # a resync does not unpark keys
            self._feeds.append(feeds.Feed("resync", self._while_leading(produce) if leader else produce, unparks=False))
        elif keys is not None or leader:
            raise ValueError("keys= and leader= are for a resync: give resync= the seconds of its period")
        self._leader = leader
        registry.services.add(self)

    # -- keys

    def add(self, key: Any, priority: int = 0, *, after: float = 0.0) -> None:
        """Add a key, to be handled after `after` seconds. A parked key is unparked.

        A key that failed and waits for its backoff is handled sooner if the retry budget allows it, as for any retry;
        otherwise it is handled when its backoff is over.

        >>> import abate
        >>> @abate.controller(workers=1)
        ... def reconcile(key): print("looked at", key)
        >>> reconcile.add("orders/42"); reconcile.add("orders/42")
        >>> reconcile.run(drain=True)
        looked at orders/42
        Counter({'done': 1})
        """
        self._queue.add(key, priority=priority, after=number("after", after, least=0))
        self._remember(key)

    def discard(self, key: Any) -> None:
        """Forget a key: cancel its delayed add, unpark it, and leave it out of the resyncs of this process.

        A key that is ready or in flight is still handled; its function then finds nothing to do.
        """
        if self._known is not None:
            self._known.discard(key)
        self._backoff_guarded.forget(key)
        self._queue.cancel(key)
        if not self.in_memory:
            self._queue.purge([key])

    def parked(self) -> list[Parked]:
        """Return the latest 10,000 parked keys, with reasons. A parked key is not handled until it is added again.

        `depth` counts all parked keys of a store. Without a store, only the latest 10,000 are kept.

        >>> import abate
        >>> @abate.controller(workers=1)
        ... def reconcile(key): raise abate.PermanentFailure("no such order")
        >>> reconcile.add("orders/42")
        >>> reconcile.run(drain=True)
        Counter({'buried': 1})
        >>> [(parked.key, parked.reason) for parked in reconcile.parked()]
        [('orders/42', 'no such order')]
        """
        if self.in_memory:
            return list(self._memory.parked.values())
        return [Parked(letter.key, letter.kind, letter.reason, letter.trace) for letter in self._queue.dead(MAX_PARKED)]

    def waiting(self) -> int:
        """Return how many keys are ready or delayed."""
        if self.in_memory:
            return self._memory.waiting()
        depth = self._queue.depth()
        return int(depth.ready + depth.delayed)

    def depth(self) -> Depth:
        """Count the keys that wait, are in flight, and are parked.

        >>> import abate
        >>> @abate.controller()
        ... def reconcile(key): ...
        >>> reconcile.add("orders/42")
        >>> reconcile.depth().ready
        1
        """
        from abate.stores import Depth

        if not self.in_memory:
            depth: Depth = self._queue.depth()
            return depth
        queue = self._memory.queue
        ready = len(queue)
        return Depth(ready, queue.delayed, queue.in_hand, len(self._memory.parked), queue.age() if ready else None)

    @property
    def adds(self) -> int:
        """Return how many adds this process has made. A key that comes back counts in memory, but not in a store.

        >>> import abate
        >>> @abate.controller(store="memory:")
        ... def reconcile(key): ...
        >>> reconcile.add("orders/42"); reconcile.add("orders/42")
        >>> reconcile.adds, reconcile.coalesced
        (2, 1)
        """
        return self._memory.queue.adds + self._add_counts.total.read()

    @property
    def coalesced(self) -> int:
        """Return how many of these adds changed nothing, as the key was waiting already."""
        return self._memory.queue.coalesced + self._add_counts.coalesced.read()

    @property
    def in_memory(self) -> bool:
        """Return whether the keys are kept in the memory of this process instead of a store."""
        return self._queue is self._memory

    @property
    def backoff(self) -> Schedule:
        """Return the schedule of delays after failures of a key."""
        return self._rules.backoff

    # -- feeds

    @overload
    def source(self, feed: F, *, keys: feeds.KeysOf | None = None) -> F: ...
    @overload
    def source(self, feed: None = None, *, keys: feeds.KeysOf | None = None) -> Callable[[F], F]: ...
    def source(self, feed: Any = None, *, keys: feeds.KeysOf | None = None) -> Any:
        """Add each item of an async iterable, or of an async generator function, as a key.

        With `keys`, the items are events, and `keys(event)` returns the key of an event, a list of keys (a changed part
        may concern its owner), or None. If it raises, the event is skipped, logged and counted (`health().skipped`). A
        source that raises or ends is started again after a backoff. Pass a generator function rather than a generator,
        which can't be started again.

        >>> import abate
        >>> @abate.controller()
        ... def reconcile(key): ...
        >>> @reconcile.source(keys=lambda event: [event["name"], event["owner"]])
        ... async def watch():
        ...     yield {"name": "pod-7", "owner": "web"}
        """

        def decorate(feed: Any) -> Any:
            if iscoroutinefunction(feed) or not (callable(feed) or isinstance(feed, AsyncIterable)):
                raise TypeError(
                    f"a source must be an async generator function or an async iterable, not {short_repr(feed)}"
                )
            produce = partial(feeds.watch_feed, feed, _mapping(keys))
            self._declare(feeds.Feed(self._unique_name(feed), produce, restartable=not isasyncgen(feed)))
            return feed

        return decorate if feed is None else decorate(feed)

    def poll(self, every: float, *, keys: feeds.KeysOf | None = None) -> Callable[[L], L]:
        """Call a function that returns keys (or events, with `keys`) at the start, and then every `every` seconds.

        >>> import abate
        >>> @abate.controller()
        ... def reconcile(key): ...
        >>> @reconcile.poll(every=30.0)
        ... def unfinished():
        ...     return ["orders/42"]
        """
        seconds = number("every", every, above=0)

        def decorate(look: L) -> L:
            if not callable(look):
                raise TypeError(f"a poller must be a function that returns keys, not {short_repr(look)}")
            self._declare(feeds.Feed(self._unique_name(look), partial(feeds.poll_feed, look, seconds, _mapping(keys))))
            return look

        return decorate

    def _declare(self, feed: feeds.Feed) -> None:
        self._feeds.append(feed)
        if self._running is not None:
            log.warning("%s: %s was declared during a run, and starts with the next run", self.name, feed.name)

    def _unique_name(self, feed: object) -> str:
        """Return a name for a feed that no other feed of this controller has."""
        name = getattr(feed, "__name__", type(feed).__name__)
        taken = {other.name for other in self._feeds}
        return name if name not in taken else next(f"{name}-{n}" for n in count(2) if f"{name}-{n}" not in taken)

    # -- as a service

    async def arun(
        self,
        source: Source | Store | str | None = None,
        *,
        workers: int | None = None,
        grace: float | None = None,
        drain: bool = False,
    ) -> Counter[str]:
        """Do the same as `run` in your own event loop, without signal handlers."""
        try:
            return await super().arun(source, workers=workers, grace=grace, drain=drain)
        finally:
            left = self._memory.waiting() if self.in_memory and not drain else 0
            if left:
                text = "%s: ended with %d delayed keys, which stay in memory until the next run"
                log.warning(text, self.name, left)

    def _source(self, given: object) -> Source:
        if given is not None:
            self.store = open_if_url(given)
            queue = self._open_queue(self.store)
            self._memory.move_to(queue.add)  # keys that were added before the store was known
            queue.add_counts = self._add_counts  # from here on: moved keys have been counted
            self._queue = queue
        if self._leader and self.in_memory:
            raise ValueError(f"{self.name} has no store: leader=True needs one to elect the leader")
        if self._known is not None and not self.in_memory:
            log.warning(
                "%s: a resync without keys= covers only keys that this process has added or handled since its start: "
                "when processes share a store, give keys= to resync all of them",
                self.name,
            )
        source: Source = self._queue
        return source

    def _open_queue(self, store: Any) -> Any:
        if not hasattr(store, "queue"):
            raise TypeError(f"store must be a store or the URL of one, not {short_repr(store)}")
        queue = store.queue(self.name, capacity=self._capacity)
        check_queue_name(queue.name)
        return queue

    def _verdict_rules(self) -> VerdictRules:
        return self._rules

    def _backoff_guard(self) -> BackoffGuard:
        return self._backoff_guarded

    def _handle(self, message: Message) -> object:
        self._remember(message.key)  # first, as the function may discard it
        return self._call_function(message.key)

    def health(self) -> Health:
        """Return the health of the controller and its feeds."""
        health = super().health()
        if not health.live:
            return health
        fields = {name: getattr(health, name) for name in Health.__match_args__}
        troubles = {runner.feed.name: runner.problem for runner in self._runners}
        fields["feeds"] = {name: problem for name, problem in troubles.items() if problem is not None}
        fields["skipped"] = sum(runner.skipped for runner in self._runners)
        return Health(**fields)

    async def _run_beside(self, loop: Loop) -> None:
        # A separate pool, as a poller that hangs must not delay an extend; one more thread for the leader's lease.
        threads = DaemonThreadPool(len(self._feeds) + 1)
        self._runners = [
            feeds.FeedRunner(self.name, feed, partial(self._push, threads, feed.unparks), threads.run, self._rng)
            for feed in self._feeds
        ]
        try:
            await feeds.run_all(self.name, self._runners, loop.stopping)
        finally:
            threads.shutdown()

    def _while_leading(self, produce: feeds.FeedFunction) -> feeds.FeedFunction:
        """Return a feed that runs in only one of the processes that share the queue: the leader."""

        async def while_leading(runner: feeds.FeedRunner) -> None:
            queue = self.store.queue(election_queue(self._queue.name), lease=LEASE)
            await run_while_leader(self.name, queue, runner.run, lambda: produce(runner))

        return while_leading

    async def _push(self, threads: DaemonThreadPool, revive: bool, key: Any) -> None:
        """Add a key from a feed; while the queue is full, wait."""
        self._remember(key)
        if self.in_memory:
            if revive or key not in self._memory.parked:
                await self._memory.put(key)
            return
        add = partial(self._queue.add, key, revive=revive)
        while True:
            try:
                await threads.run(add)
                return
            except QueueFull:
                await clocks.current().asleep(FULL_RETRY)

    def _remember(self, key: Hashable) -> None:
        if self._known is not None:
            self._known.add(key)

    def _known_keys(self) -> list[Hashable]:
        return [] if self._known is None else self._known.list()


def _mapping(keys: feeds.KeysOf | None) -> feeds.KeysOf | None:
    if keys is not None and (not callable(keys) or iscoroutinefunction(keys)):
        raise TypeError(f"keys must be a plain function from an event to its keys, not {short_repr(keys)}")
    return keys


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
            timeout=timeout,
            grace=grace,
            rng=rng,
        )

    return decorate
