"""The controller: keeps things in step, key by key."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterable, Callable, Hashable, Iterable
from contextlib import suppress
from functools import partial
from inspect import isasyncgen, iscoroutinefunction
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar, overload

from abate import clock as clocks
from abate import registry
from abate.admit.budget import Budget
from abate.decide.rules import Matcher, rules
from abate.errors import AttemptTimeout, number, whole
from abate.logs import Log
from abate.redact import shown
from abate.schedule.backoff import Backoff, Schedule, Uniform, schedule
from abate.work import feeds
from abate.work.adds import Adds
from abate.work.crew import Crew
from abate.work.judge import Judge
from abate.work.keys import QueueFull
from abate.work.leader import LEASE, led, of_work, place
from abate.work.local import MOST_PARKED, LocalKeys, Parked
from abate.work.loop import Loop
from abate.work.pauses import Pauses
from abate.work.service import Health, P, Service, T, opened
from abate.work.source import Message, Source

if TYPE_CHECKING:
    from abate.stores import Depth, Store

F = TypeVar("F", bound="Callable[..., Any] | AsyncIterable[Any]")
L = TypeVar("L", bound=Callable[[], Any])

log = Log("abate.work")

MOST_KNOWN = 1_000_000
"""Keys that a resync without `keys` remembers."""
SHORTEST = 0.001
"""Seconds; the shortest period of a resync."""
FULL = 1.0
"""Seconds after which a feed looks again whether a store that was full has room."""
CLOSING = 5.0
"""Seconds that feeds have to end when the controller stops; those that don't are left behind."""


class Controller(Service[P, T]):
    """Brings keys to a function until they are in step; made by `controller`."""

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
        judge: Judge,
        budget: Budget,
        timeout: float | None,
        grace: float,
        rng: Uniform | None,
    ) -> None:
        super().__init__(function, name, workers, grace, timeout)
        self.store = opened(store)
        self._capacity = capacity
        self._local = LocalKeys(self.name, capacity, rng)
        self._added = Adds()
        """Through all queues in stores that it has had."""
        self._queue: Any = self._local
        if self.store is not None:
            self._queue = self._stored(self.store)
            self._queue.added = self._added
        self._verdicts = judge
        self._held = Pauses(budget)
        self._chance: Uniform = rng or random
        self._feeds: list[feeds.Feed] = []
        self._intakes: list[feeds.Intake] = []
        self._known: dict[Hashable, None] | None = None
        self._forgotten = False
        if resync is not None:
            if keys is None:
                self._known = {}
            elif not callable(keys):
                raise TypeError(f"keys must be a function that lists them, not {shown(keys)}")
            bring = partial(feeds.resynced, keys or self._remembered, number("resync", resync, least=SHORTEST))
            # a resync does not unpark keys
            self._feeds.append(feeds.Feed("resync", self._led(bring) if leader else bring, revives=False))
        elif keys is not None or leader:
            raise ValueError("keys are listed, and leaders chosen, for a resync: give resync= the seconds of a period")
        self._leader = leader
        registry.services.add(self)

    # -- keys

    def add(self, key: Any, priority: int = 0, *, after: float = 0.0) -> None:
        """A key wants attention, now or after so many seconds. A key that is parked comes back to life.

        One whose last look failed, and that waits for its backoff, is looked at sooner if the retry budget pays for
        that, as for any retry; otherwise it keeps its time, and is looked at then.

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
        """A key is gone: it is neither planned any more, nor parked, nor brought back by a resync of this process.

        One that is ready or in hand is still looked at: its function finds that nothing is left to do.
        """
        if self._known is not None:
            self._known.pop(key, None)
        self._held.forget(key)
        self._queue.cancel(key)
        if not self.in_memory:
            self._queue.purge([key])

    def parked(self) -> list[Parked]:
        """The keys that are not worked on until somebody adds them again, each with its reason.

        Up to 10,000 of them, the latest; `depth` counts all. In memory no more are kept, and the reasons of older ones
        are forgotten.

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
            return list(self._local.parked.values())
        return [
            Parked(letter.key, letter.kind, letter.reason, letter.trace) for letter in self._queue.dead(MOST_PARKED)
        ]

    def waiting(self) -> int:
        """How many keys are ready, or to come later."""
        if self.in_memory:
            return self._local.waiting()
        depth = self._queue.depth()
        return int(depth.ready + depth.delayed)

    def depth(self) -> Depth:
        """What waits, is in hand and is parked.

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
        queue = self._local.queue
        ready = len(queue)
        return Depth(ready, queue.delayed, queue.in_hand, len(self._local.parked), queue.age() if ready else None)

    @property
    def adds(self) -> int:
        """Adds of keys by this process so far. A key that comes back counts in memory, but not where a store brings it.

        >>> import abate
        >>> @abate.controller(store="memory:")
        ... def reconcile(key): ...
        >>> reconcile.add("orders/42"); reconcile.add("orders/42")
        >>> reconcile.adds, reconcile.coalesced
        (2, 1)
        """
        return self._local.queue.adds + self._added.all.read()

    @property
    def coalesced(self) -> int:
        """Those among them that changed nothing, as their key was waiting already."""
        return self._local.queue.coalesced + self._added.coalesced.read()

    @property
    def in_memory(self) -> bool:
        """Are the keys in this process alone?"""
        return self._queue is self._local

    @property
    def backoff(self) -> Schedule:
        """How long a key that fails stays away."""
        return self._verdicts.backoff

    # -- what brings them

    @overload
    def source(self, feed: F, *, keys: feeds.Mapping | None = None) -> F: ...
    @overload
    def source(self, feed: None = None, *, keys: feeds.Mapping | None = None) -> Callable[[F], F]: ...
    def source(self, feed: Any = None, *, keys: feeds.Mapping | None = None) -> Any:
        """Add a key for each thing that an async iterable, or an async generator function, brings.

        With `keys`, what it brings are events, and `keys(event)` says which keys they concern: one, a list of them (a
        change of a part concerns its owner), or None. An event for which it raises is skipped, logged and counted
        (`health().skipped`). A source that raises or ends is started again after a backoff; so give the function, as a
        generator that has ended can't be.

        >>> import abate
        >>> @abate.controller()
        ... def reconcile(key): ...
        >>> @reconcile.source(keys=lambda event: [event["name"], event["owner"]])
        ... async def watch():
        ...     yield {"name": "pod-7", "owner": "web"}
        """

        def decorate(feed: Any) -> Any:
            if iscoroutinefunction(feed) or not (callable(feed) or isinstance(feed, AsyncIterable)):
                raise TypeError(f"a source must be an async generator function or an async iterable, not {shown(feed)}")
            bring = partial(feeds.watched, feed, _mapping(keys))
            self._declare(feeds.Feed(self._distinct(feed), bring, lasting=not isasyncgen(feed)))
            return feed

        return decorate if feed is None else decorate(feed)

    def poll(self, every: float, *, keys: feeds.Mapping | None = None) -> Callable[[L], L]:
        """Ask a function for keys (or for events, with `keys`) at the start, and then every so many seconds.

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
                raise TypeError(f"a poller must be a function that returns keys, not {shown(look)}")
            self._declare(feeds.Feed(self._distinct(look), partial(feeds.polled, look, seconds, _mapping(keys))))
            return look

        return decorate

    def _declare(self, feed: feeds.Feed) -> None:
        self._feeds.append(feed)
        if self._running is not None:
            log.warning("%s: %s was declared while it runs: it begins with the next run", self.name, feed.name)

    def _distinct(self, feed: object) -> str:
        """The name of a feed, which no other of this controller has."""
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
        """The same in a task of your own event loop, which has its own signals."""
        try:
            return await super().arun(source, workers=workers, grace=grace, drain=drain)
        finally:
            left = self._local.waiting() if self.in_memory and not drain else 0
            if left:
                text = "%s: ended with %d keys that wait for later: they are in memory alone, until the next run"
                log.warning(text, self.name, left)

    def _source(self, given: object) -> Source:
        if given is not None:
            self.store = opened(given)
            queue = self._stored(self.store)
            self._local.move(queue.add)  # what was added before it was known where to
            queue.added = self._added  # from here on: what was moved has been counted
            self._queue = queue
        if self._leader and self.in_memory:
            raise ValueError(f"{self.name} has no store by which a leader could be chosen: leader=True needs one")
        if self._known is not None and not self.in_memory:
            log.warning(
                "%s: a resync without keys= is of those keys that this process has added or looked at since its start: "
                "where processes share a store, give keys= to have all of them resynced",
                self.name,
            )
        source: Source = self._queue
        return source

    def _stored(self, store: Any) -> Any:
        if not hasattr(store, "queue"):
            raise TypeError(f"store must be a store or the URL of one, not {shown(store)}")
        queue = store.queue(self.name, capacity=self._capacity)
        of_work(queue.name)
        return queue

    def _judge(self) -> Judge:
        return self._verdicts

    def _pauses(self) -> Pauses:
        return self._held

    def _handle(self, message: Message) -> object:
        self._remember(message.key)  # before: the function may discard it
        return self._one(message.key)

    def health(self) -> Health:
        """How it is."""
        health = super().health()
        if not health.live:
            return health
        fields = {name: getattr(health, name) for name in Health.__match_args__}
        troubles = {intake.feed.name: intake.trouble for intake in self._intakes}
        fields["feeds"] = {name: trouble for name, trouble in troubles.items() if trouble is not None}
        fields["skipped"] = sum(intake.skipped for intake in self._intakes)
        return Health(**fields)

    async def _alongside(self, loop: Loop) -> None:
        # threads of their own, as a poller that hangs must not keep a lease from being extended; one for the leader's
        crew = Crew(len(self._feeds) + 1)
        self._intakes = [
            feeds.Intake(self.name, feed, partial(self._push, crew, feed.revives), crew.run, self._chance)
            for feed in self._feeds
        ]
        stopping = asyncio.ensure_future(loop.stopping.wait())
        tasks = {stopping, *(asyncio.ensure_future(intake.keep_up()) for intake in self._intakes)}
        try:
            while not stopping.done():
                ended, _ = await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
                for task in ended:
                    task.result()  # one that can't be started again; where it has broken, so has the controller
                tasks -= ended
        finally:
            for task in tasks:
                task.cancel()
            await self._close(tasks)
            crew.dismiss()

    async def _close(self, tasks: set[asyncio.Task[Any]]) -> None:
        """Wait for feeds that were cancelled; one that goes on must not hold up the end."""
        clock = clocks.current()
        ends = clock.now() + CLOSING
        while left := [task for task in tasks if not task.done()]:
            try:
                cut = clock.within(max(0.0, ends - clock.now()))
                async with cut:
                    await asyncio.wait(left)
            except asyncio.CancelledError:
                pass  # the loop has ended: so does this, when the feeds have closed what they hold
            except AttemptTimeout:
                text = "%s: %d sources did not end within %g s, and are left behind"
                log.error(text, self.name, len(left), CLOSING)
                return

    def _led(self, bring: feeds.Bring) -> feeds.Bring:
        """What one of the processes that share the queue does for all."""

        async def while_leading(intake: feeds.Intake) -> None:
            queue = self.store.queue(place(self._queue.name), lease=LEASE)
            await led(self.name, queue, intake.run, lambda: bring(intake))

        return while_leading

    async def _push(self, crew: Crew, revive: bool, key: Any) -> None:
        """Add a key that a feed brings, and wait for room where there is none."""
        self._remember(key)
        if self.in_memory:
            if revive or key not in self._local.parked:
                await self._local.put(key)
            return
        add = partial(self._queue.add, key, revive=revive)
        while True:
            try:
                await crew.run(add)
                return
            except QueueFull:
                await clocks.current().asleep(FULL)

    def _remember(self, key: Hashable) -> None:
        known = self._known
        if known is None or key in known:
            return
        known[key] = None
        if len(known) > MOST_KNOWN:
            if not self._forgotten:
                self._forgotten = True
                text = "%s: a resync without keys= remembers %d keys, and forgets the first ones for more: give keys="
                log.warning(text, self.name, MOST_KNOWN)
            with suppress(RuntimeError):  # another thread adds at this moment, and will forget one
                known.pop(next(iter(known)), None)

    def _remembered(self) -> list[Hashable]:
        """The keys for a resync: all that this process has added or looked at."""
        return list(self._known or ())


def _mapping(keys: feeds.Mapping | None) -> feeds.Mapping | None:
    if keys is not None and (not callable(keys) or iscoroutinefunction(keys)):
        raise TypeError(f"keys must be a plain function from an event to its keys, not {shown(keys)}")
    return keys


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
    rng: Uniform | None = None,
) -> Callable[[Callable[P, T]], Controller[P, T]]:
    """Make a controller of a function, plain or ``async``, that brings one key into step.

    The function looks for itself what is to be done about its key, and returns nothing when that is done, or `Again`
    to look once more later. A key that raises comes back; one that raises `PermanentFailure` is parked.

    * `workers`: so many keys are worked on at once; never one key by two.
    * `capacity`: so many keys wait at most; then `add` raises `QueueFull`, and sources wait.
    * `store`: a store, or its URL, in which the keys outlive the process and are shared; without one, in memory.
    * `resync`, `keys`: every key is looked at once in so many seconds, at an offset of its own; `keys` lists them.
      Without it they are those that this process has added or looked at since its start: enough in memory, but not
      where processes share a store.
    * `leader`: of the processes that share the store only one resyncs. Without it all do, at the same instants, and
      what they add is the same.
    * `on`: what is worth another try, as for a policy; without it, every error is.
    * `backoff`: of a key, from its first failure on; by default from 0.2 s to 60 s with full jitter.
    * `budget`, `slow`: a key comes back by its backoff if the retry budget admits it, or else after `slow` seconds,
      give or take half. Nor does an add, a source or a resync bring it back sooner than the budget pays for.
    * `max_requeues`: a key that fails more often than this is parked; None for no bound.
    * `timeout`: seconds for one look. A coroutine is cut off; a plain function has a deadline that clients inside keep.
    * `grace`: seconds to finish what is in hand after a SIGTERM.

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
        raise TypeError(f"budget must be a Budget, not {shown(budget)}")
    pays = Budget() if budget is None else budget
    judge = Judge(
        Backoff(0.2, 60.0) if backoff is None else schedule(backoff),
        None if on is None else rules(on),
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
            judge=judge,
            budget=pays,
            timeout=timeout,
            grace=grace,
            rng=rng,
        )

    return decorate
