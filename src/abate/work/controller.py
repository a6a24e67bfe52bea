"""Implements the controller, which calls a function for each key until it succeeds."""

from __future__ import annotations

import random
from collections.abc import AsyncIterable, Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from abate import clock as clocks
from abate import registry
from abate.admit.budget import Budget
from abate.errors import number
from abate.logs import Log
from abate.redact import short_repr
from abate.schedule.backoff import RandomSource, Schedule
from abate.work import feeds
from abate.work.add_counts import AddCounts
from abate.work.backoff_guard import BackoffGuard
from abate.work.feed_declarations import polling, watching
from abate.work.key_queue import QueueFull
from abate.work.leader import LEASE, check_queue_name, election_queue, run_while_leader
from abate.work.loop import Loop
from abate.work.memory_source import MAX_PARKED, MemorySource, Parked
from abate.work.resync_keys import KnownKeys
from abate.work.service import Health, P, Service, T, open_if_url
from abate.work.source import Message, Source
from abate.work.thread_pool import DaemonThreadPool
from abate.work.verdict_rules import VerdictRules

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
    """Calls a function for each key until it succeeds; made by `abate.controller`."""

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
        own_budget: bool,
        timeout: float | None,
        grace: float,
        prefetch: int | None,
        rng: RandomSource | None,
    ) -> None:
        super().__init__(function, name, workers, grace, timeout, prefetch)
        if prefetch and store is None:
            raise ValueError(f"prefetch={prefetch} needs store=: keys in memory are at hand anyway")
        self._declared_store = store
        self._capacity = capacity
        self._rules = verdict_rules
        self._budget = budget
        self._own_budget = own_budget
        """Whether the budget was made for this controller, and not given to it."""
        self._rng: RandomSource = rng or random
        self._feeds: list[feeds.Feed] = []
        self._remembers = resync is not None and keys is None
        self._start_empty()
        if resync is not None:
            if not (keys is None or callable(keys)):
                raise TypeError(f"keys must be a function that lists them, not {short_repr(keys)}")
            produce = partial(feeds.resync_feed, keys or self._known_keys, number("resync", resync, least=MIN_RESYNC))
            # a resync does not unpark keys
            self._feeds.append(feeds.Feed("resync", self._while_leading(produce) if leader else produce, unparks=False))
        elif keys is not None or leader:
            raise ValueError("keys= and leader= are for a resync: give resync= the seconds of its period")
        self._leader = leader
        registry.services.add(self)

    def _start_empty(self) -> None:
        """Open the declared store, or begin with no keys in memory."""
        self.store = open_if_url(self._declared_store)
        self._opened = isinstance(self._declared_store, str)
        """Whether the store was opened here, from a URL."""
        self._memory = MemorySource(self.name, self._capacity, self._rng)
        self._add_counts = AddCounts()
        """Counts adds to every store queue that this controller has used."""
        self._queue: Any = self._memory
        if self.store is not None:
            self._queue = self._open_queue(self.store)
            self._queue.add_counts = self._add_counts
        self._backoff_guarded = BackoffGuard(self._budget)
        self._runners: list[feeds.FeedRunner] = []
        self._known = KnownKeys(self.name) if self._remembers else None

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

    def delayed(self) -> dict[Hashable, float]:
        """Return the keys that wait for their backoff or delay, and for how many more seconds. Only in memory.

        A store does not list them; `depth().delayed` counts them.

        >>> import abate
        >>> @abate.controller(backoff=[30.0])
        ... def reconcile(key): raise ConnectionError("no answer")
        >>> with abate.testing.VirtualClock() as clock:
        ...     reconcile.add("orders/42")
        ...     reconcile.run(drain=True), reconcile.delayed()
        (Counter({'retry': 1}), {'orders/42': 30.0})
        """
        if not self.in_memory:
            raise TypeError(f"{self.name} has a store, which does not list delayed keys: depth().delayed counts them")
        return {key: seconds for key, seconds, _ in self._memory.queue.plans()}

    def waiting(self) -> int:
        """Return how many keys are ready or delayed."""
        return int(self._queue.depth().waiting)

    def depth(self) -> Depth:
        """Count the keys that wait, are in flight, and are parked.

        >>> import abate
        >>> @abate.controller()
        ... def reconcile(key): ...
        >>> reconcile.add("orders/42")
        >>> reconcile.depth().ready
        1
        """
        depth: Depth = self._queue.depth()
        return depth

    @property
    def adds(self) -> int:
        """Return how many adds this process has made. In memory, but not in a store, a retried key counts again.

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
            self._declare(watching(feed, keys, self._feeds))
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
            self._declare(polling(look, seconds, keys, self._feeds))
            return look

        return decorate

    def _declare(self, feed: feeds.Feed) -> None:
        self._feeds.append(feed)
        if self._running is not None:
            log.warning("%s: %s was declared during a run, and starts with the next run", self.name, feed.name)

    # -- as a service

    def _stopped(self) -> None:
        left = self._memory.waiting() if self.in_memory else 0
        if left:
            log.warning("%s: ended with %d delayed keys, which stay in memory until the next run", self.name, left)

    def reset(self) -> None:
        """Forget keys, failures, parked keys and counts, as if the controller was new. Raise RuntimeError during a run.

        For tests that share a controller. Its functions, sources and settings stay, and so does what is in a store; a
        store that it has opened from a URL is opened again, so ``memory:`` is empty. After `run(store)` the controller
        has the store that it was made with. The retry budget is full again, unless it was given with ``budget=``: then
        others may use it.

        >>> import abate
        >>> @abate.controller()
        ... def reconcile(key): raise ConnectionError("no answer")
        >>> reconcile.add("orders/42")
        >>> reconcile.run(drain=True)
        Counter({'retry': 1})
        >>> reconcile.reset()
        >>> reconcile.waiting()
        0
        """
        super().reset()
        if self._opened:
            self.store.close()
        if self._own_budget:
            self._budget = self._budget.apart()
            self._rules = self._rules.with_budget(self._budget)
        self._start_empty()

    def _source(self, given: object) -> Source:
        if given is not None:
            self.store, self._opened = open_if_url(given), isinstance(given, str)
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
