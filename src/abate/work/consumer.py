"""The consumer: works off messages, and keeps those that can't be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from abate import registry
from abate.decide.rules import Matcher, rules
from abate.errors import whole
from abate.redact import shown
from abate.schedule.backoff import Backoff, Schedule, Uniform, schedule
from abate.work.adds import Adds
from abate.work.fuse import Fuse
from abate.work.judge import Judge
from abate.work.leader import of_work
from abate.work.service import P, Service, T, opened
from abate.work.source import Message, Source

if TYPE_CHECKING:
    from abate.stores import Depth, Store


class Consumer(Service[P, T]):
    """Brings messages to a function; made by `consumer`."""

    def __init__(
        self,
        function: Callable[P, T],
        *,
        source: Source | Store | str | None,
        name: str | None,
        workers: int,
        judge: Judge,
        fuse: Fuse | None,
        timeout: float | None,
        grace: float,
    ) -> None:
        super().__init__(function, name, workers, grace, timeout)
        self.source = None if source is None else self._read(source)
        self.judge = judge
        self.fuse = fuse
        registry.services.add(self)

    def _source(self, given: object) -> Source:
        if given is not None:
            return self._read(given)
        if self.source is None:
            raise ValueError(f"{self.name} has no source: give one to consumer(source=) or to run(source)")
        return self.source

    def _read(self, given: object) -> Source:
        """A source as it is; of a store, or of the URL of one, the queue of this consumer's name."""
        source: Any = opened(given)
        if hasattr(source, "queue") and not hasattr(source, "settle"):
            source = source.queue(self.name)
        for method in ("receive", "extend", "settle"):
            if not callable(getattr(source, method, None)):
                raise TypeError(
                    f"a source must have receive, extend and settle (see abate.work.Source), not {shown(given)}"
                )
        for name in ("name", "lease", "durable"):
            if not hasattr(source, name):
                raise TypeError(f"a source must say its {name} (see abate.work.Source), and {given!r} doesn't")
        if hasattr(source, "redrive"):  # it is a store's
            of_work(source.name)
        checked: Source = source
        return checked

    @property
    def adds(self) -> int | None:
        """Adds of messages through this process's queue, if it counts them."""
        added = self._added()
        return None if added is None else added.all.read()

    @property
    def coalesced(self) -> int | None:
        """How many of these were of a message that waited already."""
        added = self._added()
        return None if added is None else added.coalesced.read()

    def _added(self) -> Adds | None:
        running = self._running
        added: Adds | None = getattr(self.source if running is None else running[1].source, "added", None)
        return added

    def depth(self) -> Depth | None:
        """What waits, is in hand and was buried; None where the source can't tell, as SQS can't for nothing."""
        running = self._running
        look = getattr(self.source if running is None else running[1].source, "depth", None)
        depth: Depth | None = None if look is None else look()
        return depth

    @property
    def backoff(self) -> Schedule:
        """How long a message that fails stays away."""
        return self.judge.backoff

    def _judge(self) -> Judge:
        return self.judge

    def _fuse(self) -> Fuse | None:
        return self.fuse

    def _handle(self, message: Message) -> object:
        return self._one(message)


def consumer(
    *,
    source: Source | Store | str | None = None,
    workers: int = 4,
    on: Matcher | Iterable[Matcher] | None = None,
    backoff: Schedule | Callable[[int], float] | Iterable[float] | None = None,
    max_receives: int | None = 10,
    fuse: Fuse | Literal[False] | None = None,
    timeout: float | None = None,
    grace: float = 30.0,
    name: str | None = None,
    rng: Uniform | None = None,
) -> Callable[[Callable[P, T]], Consumer[P, T]]:
    """Make a consumer of a function, plain or ``async``, that handles one `Message`.

    It returns nothing when the message is done (or `Again`, to see it once more later; any other value is ignored, and
    the log says so once), and raises `SilentSuccess`
    where there was nothing to do, `PermanentFailure` to bury the message with the reason, `Recoverable` or any other
    error to have it come back. At least once: a message may come twice, after a lease ran out.

    * `source`: a `Source`, a store or the URL of one (then the queue of this consumer's name); or given to `run`.
    * `workers`: so many messages are in hand at once.
    * `on`: what is worth another try, as for a policy; without it, every error is.
    * `backoff`: how long a message stays away; by default from 1 s to 900 s with full jitter.
    * `max_receives`: a message that was handed out so often is buried; None for no bound. One that may have killed its
      process is worked on alone before that, if need be with one receive more.
    * `fuse`: when most messages fail, none are taken for a while (see `Fuse`); False for none.
    * `timeout`: seconds for one message. A coroutine is cut off; a plain function has a deadline that clients inside
      keep. A handler that goes on all the same is taken to hang: its lease is not extended, and it is replaced.
    * `grace`: seconds to finish what is in hand after a SIGTERM.

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
    if fuse is not None and fuse is not False and not isinstance(fuse, Fuse):
        raise TypeError(f"fuse must be a Fuse, or False for none, not {shown(fuse)}")
    judge = Judge(
        Backoff(1.0, 900.0) if backoff is None else schedule(backoff),
        None if on is None else rules(on),
        most=None if max_receives is None else whole("max_receives", max_receives, least=1),
        rng=rng,
    )

    def decorate(function: Callable[P, T]) -> Consumer[P, T]:
        return Consumer(
            function,
            source=source,
            name=name,
            workers=workers,
            judge=judge,
            fuse=None if fuse is False else fuse or Fuse(rng=rng),
            timeout=timeout,
            grace=grace,
        )

    return decorate
