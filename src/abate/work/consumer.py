"""Implements the consumer, which calls a function for each message of a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from abate import registry
from abate.admit.breaker import CircuitBreaker
from abate.decide.rules import Matcher, build_rules
from abate.errors import by_keyword, whole
from abate.redact import short_repr
from abate.schedule.backoff import Backoff, RandomSource, Schedule, schedule
from abate.work.add_counts import AddCounts
from abate.work.batches import Batches
from abate.work.leader import check_queue_name
from abate.work.loop import Loop
from abate.work.prefetch import limit_for
from abate.work.service import Health, P, Service, T, open_if_url
from abate.work.source import Message, Source
from abate.work.verdict_rules import VerdictRules

if TYPE_CHECKING:
    from abate.stores import Depth, Store


class Consumer(Service[P, T]):
    """Calls a function for each message; made by `consumer`."""

    def __init__(
        self,
        function: Callable[P, T],
        *,
        source: Source | Store | str | None,
        name: str | None,
        workers: int,
        batch: int | None,
        verdict_rules: VerdictRules,
        breaker: CircuitBreaker | None,
        own_breaker: bool,
        timeout: float | None,
        grace: float,
        prefetch: int | None,
    ) -> None:
        super().__init__(function, name, workers, grace, timeout, prefetch)
        self.source = None if source is None else self._open_source(source)
        if self.source is not None:
            limit_for(self.source, prefetch)  # raises if it can't
        self.verdict_rules = verdict_rules
        self.breaker = breaker
        self.batch = batch
        """The maximum number of messages of a batch; None if the function takes one message."""
        self._batches: Batches | None = None
        """The batches of the current run."""
        self._own_breaker = own_breaker
        """Whether the breaker was made for this consumer, and not given to it."""
        registry.services.add(self)

    def _source(self, given: object) -> Source:
        if given is not None:
            return self._open_source(given)
        if self.source is None:
            raise ValueError(f"{self.name} has no source: give one to consumer(source=) or to run(source)")
        return self.source

    def _open_source(self, given: object) -> Source:
        """Return a source; for a store, or its URL, the queue of this consumer's name."""
        source: Any = open_if_url(given)
        if hasattr(source, "queue") and not hasattr(source, "settle"):
            source = source.queue(self.name)
        for method in ("receive", "extend", "settle"):
            if not callable(getattr(source, method, None)):
                raise TypeError(
                    f"a source must have receive, extend and settle (see abate.work.Source), not {short_repr(given)}"
                )
        for name in ("name", "lease", "durable"):
            if not hasattr(source, name):
                raise TypeError(f"a source must have a {name} (see abate.work.Source), and {given!r} has none")
        if hasattr(source, "redrive"):  # a queue of a store
            check_queue_name(source.name)
        checked: Source = source
        return checked

    @property
    def adds(self) -> int | None:
        """Return how many messages this process has added to the queue, if the source counts them."""
        added = self._source_add_counts()
        return None if added is None else added.total.read()

    @property
    def coalesced(self) -> int | None:
        """Return how many of these were coalesced with a message that waited."""
        added = self._source_add_counts()
        return None if added is None else added.coalesced.read()

    def _source_add_counts(self) -> AddCounts | None:
        running = self._running
        added: AddCounts | None = getattr(self.source if running is None else running[1].source, "add_counts", None)
        return added

    def depth(self) -> Depth | None:
        """Count the messages of the source by state; None if the source can't count them, as in SQS."""
        running = self._running
        look = getattr(self.source if running is None else running[1].source, "depth", None)
        depth: Depth | None = None if look is None else look()
        return depth

    @property
    def backoff(self) -> Schedule:
        """Return the schedule of delays after failures of a message."""
        return self.verdict_rules.backoff

    def reset(self) -> None:
        """Forget what earlier runs have left, for the next test: the circuit breaker is closed. Not during a run.

        What is in the source stays, and so does the state of a breaker that was given with ``breaker=``, as others may
        use it.

        >>> import abate
        >>> @abate.consumer()
        ... def handle(message): ...
        >>> handle.reset()
        """
        super().reset()
        if self.breaker is not None and self._own_breaker:
            self.breaker = self.breaker.apart()

    def _verdict_rules(self) -> VerdictRules:
        return self.verdict_rules

    def _breaker(self) -> CircuitBreaker | None:
        return self.breaker

    def _handle(self, message: Message) -> object:
        return self._call_function(message)

    def _make_loop(self, source: Source, workers: int) -> Loop:
        if self.batch is None:
            return super()._make_loop(source, workers)

        def holds_lease(message: Message) -> bool:
            delivery = loop.in_flight.get(message)
            return delivery is not None and loop.message_handler.holds_lease(delivery, loop.state.clock)

        batches = self._batches = Batches(
            self.name,
            self._call_function,
            asynchronous=self._asynchronous,
            size=self.batch,
            workers=workers,
            timeout=self.timeout,
            holds_lease=holds_lease,
        )
        loop = Loop(
            self.name,
            source,
            batches.handle,
            self.verdict_rules,
            workers=workers * self.batch,
            asynchronous=True,
            breaker=self.breaker,
            prefetch=self.prefetch or 0,
            batches=batches,
        )
        return loop

    def _run_ended(self) -> None:
        if self._batches is not None:
            self._batches.shutdown()

    def health(self) -> Health:
        """Return the health of the current run."""
        health, batches = super().health(), self._batches
        if not health.live or batches is None or not batches.stuck:
            return health
        fields = {name: getattr(health, name) for name in Health.__match_args__}
        fields["stuck"] = batches.stuck
        fields["ready"] = health.ready and not batches.all_stuck
        return Health(**fields)


@by_keyword("abate.consumer", "@abate.consumer() or @abate.consumer(workers=4)")
def consumer(
    *,
    source: Source | Store | str | None = None,
    workers: int = 4,
    batch: int | None = None,
    on: Matcher | Iterable[Matcher] | None = None,
    backoff: Schedule | Callable[[int], float] | Iterable[float] | None = None,
    max_receives: int | None = 10,
    breaker: CircuitBreaker | Literal[False] | None = None,
    timeout: float | None = None,
    grace: float = 30.0,
    prefetch: int | None = None,
    name: str | None = None,
    rng: RandomSource | None = None,
) -> Callable[[Callable[P, T]], Consumer[P, T]]:
    """Return a decorator that makes a consumer of a function, plain or ``async``, that handles one `Message`.

    The function returns None when the message is done, or `Again` to get it once more later; any other value is
    ignored, with one warning. It raises `SilentSuccess` if there was nothing to do, `PermanentFailure` to bury the
    message with the reason, and `Recoverable` or any other error to retry it. Delivery is at least once: a message may
    come twice, for example after its lease ran out.

    * `source`: a `Source`, or a store or its URL (then the queue of this consumer's name); or pass it to `run`.
    * `workers`: how many messages, or batches, are handled at once.
    * `batch`: the function gets a list of up to this many messages, and returns a dict of errors by message for those
      that have failed. If it raises, all of them are retried, one by one.
    * `on`: which errors are retried, as for a policy; without it, every error is.
    * `backoff`: the delay before a retry; by default from 1 s to 900 s with full jitter.
    * `max_receives`: a message that fails after this many receives is buried; None for no limit. A message that may
      have killed its process is handled alone before that, with one more receive if necessary.
    * `breaker`: the `CircuitBreaker` that stops receiving for a while when most messages fail; False for none. A batch
      that raises counts as one message.
    * `timeout`: seconds for one message, or batch. A coroutine is cancelled; a plain function gets a deadline that
      clients inside respect. A handler that still runs after that is stuck: its lease is not extended, and it is
      replaced. The messages of a stuck batch come back, and its worker is not replaced.
    * `grace`: seconds for messages in flight to finish after a SIGTERM.
    * `prefetch`: how many messages of a store's queue are received before a worker is free. By default as many as keep
      the workers busy for 20 ms, so none for a slow handler; 0 for none.

    >>> import abate
    >>> orders = abate.open_store("memory:").queue("orders")
    >>> @abate.consumer(source=orders, workers=1)
    ... def handle(message):
    ...     if not message.json()["address"]:
    ...         raise abate.PermanentFailure("no address")
    >>> _ = orders.send('{"address": "Main St"}'), orders.send('{"address": null}')
    >>> sorted(handle.run(drain=True).items())
    [('buried', 1), ('done', 1)]
    >>> [letter.reason for letter in orders.dead()]
    ['no address']
    """
    size = None if batch is None else whole("batch", batch, least=1)
    if size is not None and max_receives == 1:
        raise ValueError("batch= needs a max_receives of at least 2: the messages of a failed batch are handled alone")
    if breaker is not None and breaker is not False and not isinstance(breaker, CircuitBreaker):
        raise TypeError(f"breaker must be a CircuitBreaker, or False for none, not {short_repr(breaker)}")
    verdict_rules = VerdictRules(
        Backoff(1.0, 900.0) if backoff is None else schedule(backoff),
        None if on is None else build_rules(on),
        max_receives=None if max_receives is None else whole("max_receives", max_receives, least=1),
        rng=rng,
    )

    def decorate(function: Callable[P, T]) -> Consumer[P, T]:
        return Consumer(
            function,
            source=source,
            name=name,
            workers=workers,
            batch=size,
            verdict_rules=verdict_rules,
            breaker=None if breaker is False else CircuitBreaker(rng=rng) if breaker is None else breaker,
            own_breaker=breaker is None,
            timeout=timeout,
            grace=grace,
            prefetch=prefetch,
        )

    return decorate
