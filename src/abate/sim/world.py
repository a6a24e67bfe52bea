"""A simulated world: who calls, what is called, and what goes wrong. Everything is a frozen value, checked at once.

clients ──policy──► service ──policy──► service …        services have workers, queues, and calls of their own
                       ▲
                    triggers                             error, stall, slow, capacity, spike
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from abate.call.policy import Policy
from abate.errors import choice, number, whole
from abate.sim.durations import Duration
from abate.values import Value

if TYPE_CHECKING:
    from abate.sim.measures import Run

Kind = Literal["open", "serial"]
Arrivals = Literal["poisson", "periodic", "once"]
Offsets = Literal["none", "random", "consistent"]
Order = Literal["fifo", "lifo"]
Trouble = Literal["error", "stall", "slow", "capacity", "spike"]
Engine = Literal["exact", "coroutine", "fleet"]

ENGINES = ("exact", "coroutine", "fleet")
TROUBLES = ("error", "stall", "slow", "capacity", "spike")
FACTORS = {"slow": 2.0, "capacity": 0.5, "spike": 2.0}
"""By how much, where a trigger does not say."""
MOST_CLIENTS = 100_000_000


class Clients(Value):
    """Those who call.

    * `count` clients make `rate` calls per second each. **open** ones call whatever becomes of their earlier calls;
      **serial** ones wait for a result, and then for ``1 / rate`` seconds on average. Backoff relieves a server only of
      the latter.
    * `arrivals`: ``poisson``, ``periodic`` (every ``1 / rate`` seconds), or ``once`` (one call each).
    * `offset`, of ``periodic`` and ``once``: ``none`` (all at the same instant), ``random`` (anew each time, within a
      period) or ``consistent`` (each client's own, as `abate.consistent_jitter` gives it).
    * `start`: the instant of the first call. `spread`: seconds over which the calls of ``once`` are spread by `offset`.
    * `processes`: into how many processes the clients are divided. Each has a budget and a shelter of its own.
    * `calls`: the service they call; the first one, unless given.

    >>> Clients(count=100, rate=10.0).offered
    1000.0
    """

    count: int
    rate: float = 1.0
    kind: Kind = "open"
    arrivals: Arrivals = "poisson"
    offset: Offsets = "none"
    start: float = 0.0
    spread: float = 0.0
    processes: int = 1
    calls: str = ""

    def checked(self) -> None:
        _counted("count", self.count)
        number("rate", self.rate, above=0)
        choice("kind", self.kind, ("open", "serial"))
        choice("arrivals", self.arrivals, ("poisson", "periodic", "once"))
        choice("offset", self.offset, ("none", "random", "consistent"))
        number("start", self.start, least=0)
        number("spread", self.spread, least=0)
        whole("processes", self.processes, least=1)
        if self.processes > self.count:
            raise ValueError(f"processes must be at most the {self.count} clients, not {self.processes}")
        if self.offset != "none" and self.arrivals == "poisson":
            raise ValueError(f"offset must be 'none' where arrivals are 'poisson', not {self.offset!r}")
        if self.spread and (self.arrivals != "once" or self.offset == "none"):
            raise ValueError("spread needs arrivals = 'once' and an offset of 'random' or 'consistent'")

    @property
    def offered(self) -> float:
        """Calls per second of all of them together."""
        return 0.0 if self.arrivals == "once" else self.count * self.rate


class Controllers(Value):
    """Control loops, each with a key queue in front of the service: what changes is reconciled, one key at a time.

    * `count` controllers watch `keys` keys each, of which `rate` per second and controller change (by chance).
    * At `relist` all keys of all controllers are added at once, as when a watch breaks; None: never.
    * `resync`: seconds between two rounds over all keys, at each controller's own offset; None: no rounds.
    * `workers` reconcile at once in each controller. What fails comes back by the policy's backoff and budget, at the
      latest after `slow` seconds.

    >>> Controllers(count=500, relist=10.0).workers
    1
    """

    count: int
    keys: int = 1
    rate: float = 0.0
    relist: float | None = None
    resync: float | None = None
    workers: int = 1
    slow: float = 60.0
    processes: int = 1
    calls: str = ""

    def checked(self) -> None:
        _counted("count", self.count)
        whole("keys", self.keys, least=1)
        number("rate", self.rate, least=0)
        if self.relist is not None:
            number("relist", self.relist, least=0)
        if self.resync is not None:
            number("resync", self.resync, above=0)
        whole("workers", self.workers, least=1)
        number("slow", self.slow, above=0)
        whole("processes", self.processes, least=1)
        if self.processes > self.count:
            raise ValueError(f"processes must be at most the {self.count} controllers, not {self.processes}")
        if not self.rate and self.relist is None and self.resync is None:
            raise ValueError("controllers need something to do: a rate, a relist or a resync")

    @property
    def offered(self) -> float:
        """Reconciles per second of all of them together, as long as nothing fails."""
        rounds = 0.0 if self.resync is None else self.keys / self.resync
        return self.count * (self.rate + rounds)


class Limit(Value):
    """A rate limit: `rate` requests per second, answered with 429 beyond it.

    ``bucket`` is a token bucket that holds `per` seconds' worth; ``window`` counts in fixed windows of `per` seconds,
    and tells those it refuses to come back when the next one begins. `retry_after` is what it tells them instead.

    >>> Limit(100.0, per=10.0, kind="window").retry_after is None
    True
    """

    rate: float
    per: float = 1.0
    kind: Literal["bucket", "window"] = "bucket"
    retry_after: float | None = None

    def checked(self) -> None:
        number("rate", self.rate, above=0)
        number("per", self.per, above=0)
        choice("kind", self.kind, ("bucket", "window"))
        if self.retry_after is not None:
            number("retry_after", self.retry_after, least=0)
        if self.rate * self.per < 1:
            raise ValueError(f"per must let at least one request pass at a rate of {self.rate:g}, not {self.per!r}")


class Service(Value):
    """What is called.

    * `workers` serve one request each, which takes `service_time` (seconds, or a `Duration`).
    * `queue_limit` requests wait at most, in the `order` ``fifo`` or ``lifo``; one more is answered 503.
    * `drop_expired`: requests that nobody waits for any more are dropped when their turn comes, instead of being served
      for nothing.
    * `error_rate`: the share of requests that are answered with `status` at once, by chance.
    * `network`: seconds that a request travels, and its answer.
    * `calls`: services that are called for each request, one after the other, while the worker waits, by `policy`.
    * `cold_start`: seconds after each trigger for which only `cold_capacity` of the workers serve.
    * `limit`: a rate limit in front of it all.

    >>> Service("api", workers=30, service_time=0.1).capacity
    300.0
    """

    name: str
    workers: int = 1
    service_time: Duration | float = 0.0
    queue_limit: int | None = None
    order: Order = "fifo"
    drop_expired: bool = False
    error_rate: float = 0.0
    status: int = 503
    network: Duration | float = 0.0
    calls: tuple[str, ...] = ()
    policy: Policy | None = None
    cold_start: float = 0.0
    cold_capacity: float = 0.5
    limit: Limit | None = None

    def checked(self) -> None:
        _named("a service's name", self.name)
        whole("workers", self.workers, least=1)
        self.__dict__["service_time"] = _duration("service_time", self.service_time)
        self.__dict__["network"] = _duration("network", self.network)
        if self.queue_limit is not None:
            whole("queue_limit", self.queue_limit, least=0)
        choice("order", self.order, ("fifo", "lifo"))
        _truth("drop_expired", self.drop_expired)
        number("error_rate", self.error_rate, least=0, most=1)
        _status(self.status)
        self.__dict__["calls"] = _names("calls", self.calls)
        if self.policy is not None and not isinstance(self.policy, Policy):
            raise TypeError(f"policy must be a Policy, not {self.policy!r}")
        number("cold_start", self.cold_start, least=0)
        number("cold_capacity", self.cold_capacity, above=0, most=1)
        if self.limit is not None and not isinstance(self.limit, Limit):
            raise TypeError(f"limit must be a Limit, not {self.limit!r}")

    @property
    def capacity(self) -> float:
        """Requests per second that the workers can serve."""
        each = Duration.of(self.service_time).mean
        return self.workers / each if each else float("inf")


class Row(Value):
    """A row with optimistic concurrency: a call reads it, and then writes it, unless somebody else has meanwhile.

    `network` is what each of the four legs takes. A write that has lost the race fails with a conflict.

    >>> Row("row", network=Duration(0.01, "normal", spread=0.002)).calls
    ()
    """

    name: str
    network: Duration | float = 0.01
    calls = ()
    policy = None

    def checked(self) -> None:
        _named("a row's name", self.name)
        self.__dict__["network"] = _duration("network", self.network)
        if Duration.of(self.network).nothing:
            raise ValueError("network must take some time, or nobody ever loses the race; it is 0")


class Trigger(Value):
    """Something goes wrong at the instant `at`, `for_` seconds long (``for`` in a scenario).

    * **error**: requests are answered with `status` at once, all or a `share` of them, with a hint of `retry_after`.
    * **stall**: nobody is served. **slow**: serving takes `factor` times as long.
    * **capacity**: only `factor` of the workers serve. **spike**: `factor` times as many calls arrive.
    * `service`: where; the service that clients call, unless given.

    >>> Trigger("error", at=20.0, for_=10.0).end
    30.0
    """

    kind: Trouble
    at: float
    for_: float
    service: str = ""
    share: float = 1.0
    factor: float | None = None
    status: int = 503
    retry_after: float | None = None

    def checked(self) -> None:
        choice("kind", self.kind, TROUBLES)
        number("at", self.at, least=0)
        number("for", self.for_, above=0)
        number("share", self.share, above=0, most=1)
        _status(self.status)
        if self.retry_after is not None:
            number("retry_after", self.retry_after, least=0)
        if self.kind not in FACTORS:
            if self.factor is not None:
                raise ValueError(f"factor has no meaning for the kind {self.kind!r}: leave it out")
            return
        factor = FACTORS[self.kind] if self.factor is None else self.factor
        if self.kind == "capacity":
            number("factor", factor, least=0, most=1)
        else:
            number("factor", factor, above=0)
        self.__dict__["factor"] = float(factor)

    @property
    def end(self) -> float:
        """The instant at which it is over."""
        return self.at + self.for_


class World(Value):
    """Clients or controllers, services, a policy, triggers, and how long to look.

    * `policy`: of the clients; one attempt each, unless given. Its budget and shelter are made anew for each run.
    * `horizon`: seconds that are simulated; `warmup`: seconds at the beginning that count for nothing.
    * `tells_layers`: do services say that they have retried already, and requests how much time is left? Where they do
      not, retries multiply from layer to layer.

    >>> import abate
    >>> world = World(
    ...     clients=Clients(count=1000, rate=0.1),
    ...     services=[Service("api", workers=10, service_time=0.05, queue_limit=50)],
    ...     policy=abate.Policy(on=abate.sim.simulated, attempts=3),
    ...     triggers=[Trigger("error", at=10.0, for_=5.0)],
    ...     horizon=30.0,
    ... )
    >>> run = world.run(seed=1)
    >>> run.measures()["amplification"] < 1.5
    True
    """

    clients: Clients | Controllers
    services: tuple[Service | Row, ...]
    policy: Policy | None = None
    triggers: tuple[Trigger, ...] = ()
    horizon: float = 60.0
    warmup: float = 0.0
    tells_layers: bool = True

    def checked(self) -> None:
        if not isinstance(self.clients, (Clients, Controllers)):
            raise TypeError(f"clients must be Clients or Controllers, not {self.clients!r}")
        self.__dict__["services"] = _several("services", self.services, (Service, Row))
        self.__dict__["triggers"] = _several("triggers", self.triggers, (Trigger,))
        if self.policy is not None and not isinstance(self.policy, Policy):
            raise TypeError(f"policy must be a Policy, not {self.policy!r}")
        number("horizon", self.horizon, above=0)
        number("warmup", self.warmup, least=0)
        _truth("tells_layers", self.tells_layers)
        if self.warmup >= self.horizon:
            raise ValueError(f"warmup must be less than the horizon of {self.horizon:g}, not {self.warmup!r}")
        if not self.services:
            raise ValueError("services must hold at least one service, not none")
        self._check_names()
        self._check_cycles()
        self._check_triggers()

    def _check_names(self) -> None:
        names = [service.name for service in self.services]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise ValueError(f"services must have different names; two are called {name!r}")
        called = [("clients", self.clients.calls)] if self.clients.calls else []
        called += [(service.name, name) for service in self.services for name in service.calls]
        for by, name in called:
            if name not in names:
                raise ValueError(f"{by} calls {name!r}, which is no service; there are {', '.join(names)}")

    def _check_cycles(self) -> None:
        calls = {service.name: service.calls for service in self.services}

        def visit(name: str, path: tuple[str, ...]) -> None:
            if name in path:
                raise ValueError(
                    f"services call each other in a circle: {' -> '.join((*path[path.index(name) :], name))}"
                )
            for inner in calls[name]:
                visit(inner, (*path, name))

        for name in calls:
            visit(name, ())

    def _check_triggers(self) -> None:
        for trigger in self.triggers:
            if trigger.at >= self.horizon:
                raise ValueError(
                    f"trigger {trigger.kind!r} begins at {trigger.at:g} s, after the horizon of {self.horizon:g} s"
                )
            if trigger.service and trigger.service not in {service.name for service in self.services}:
                raise ValueError(f"trigger {trigger.kind!r} names {trigger.service!r}, which is no service")
            if trigger.kind != "spike" and isinstance(self.service(trigger.service or self.entry), Row):
                raise ValueError(f"trigger {trigger.kind!r} has no meaning for a row, only 'spike' has")

    @property
    def entry(self) -> str:
        """The service that clients call."""
        return self.clients.calls or self.services[0].name

    def service(self, name: str) -> Service | Row:
        """The service of that name."""
        return next(service for service in self.services if service.name == name)

    @property
    def spikes(self) -> list[tuple[float, float, float]]:
        """When more calls arrive, and how many times as many."""
        return [
            (trigger.at, trigger.end, trigger.factor or 1.0) for trigger in self.triggers if trigger.kind == "spike"
        ]

    @property
    def trouble(self) -> tuple[float, float] | None:
        """From the beginning of the first trigger to the end of the last; None where nothing goes wrong."""
        if not self.triggers:
            return None
        return min(trigger.at for trigger in self.triggers), max(trigger.end for trigger in self.triggers)

    def run(self, seed: int = 0, engine: Engine = "exact", raster: bool = False) -> Run:
        """Let the world run once. The same seed gives the same run.

        `raster` keeps the instant and the client of each attempt (the first 200,000), for the picture of a herd.

        >>> world = World(Clients(count=10, arrivals="once"), [Service("api", service_time=0.1)])
        >>> world.run(seed=7).successes
        10
        """
        from abate.sim.engines import engine_of

        whole("seed", seed, least=0)
        return engine_of(engine)(self, seed, raster)


def _counted(name: str, value: object) -> None:
    if whole(name, value, least=1) > MOST_CLIENTS:
        raise ValueError(f"{name} must be at most {MOST_CLIENTS:,}, not {value!r}")


def _named(what: str, name: object) -> None:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ValueError(f"{what} must be a word, not {name!r}")


def _names(key: str, names: object) -> tuple[str, ...]:
    several = (names,) if isinstance(names, str) else names
    if not isinstance(several, Iterable):
        raise TypeError(f"{key} must be names of services, not {names!r}")
    found = tuple(several)
    for name in found:
        _named(f"a name in {key}", name)
    return found


def _several(key: str, values: object, kinds: tuple[type, ...]) -> tuple[object, ...]:
    several = (values,) if isinstance(values, kinds) else values
    expected = f"{key} must be a list of {' or '.join(kind.__name__ for kind in kinds)}"
    if not isinstance(several, Iterable):
        raise TypeError(f"{expected}, not {values!r}")
    found = tuple(several)
    for value in found:
        if not isinstance(value, kinds):
            raise TypeError(f"{expected}; {value!r} is none")
    return found


def _duration(name: str, value: object) -> Duration:
    try:
        return Duration.of(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error


def _truth(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")


def _status(value: object) -> None:
    if whole("status", value, least=400) > 599:
        raise ValueError(f"status must be from 400 to 599, not {value!r}")
