"""The parts of a simulated world, as frozen values: clients, controllers, services, rows, rate limits, durations."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from random import Random
from typing import Literal, TypeAlias

from abate.call.policy import Policy
from abate.errors import choice, number, whole
from abate.frozen import Frozen
from abate.sim.validation import (
    as_names,
    as_seconds,
    check_bool,
    check_client_count,
    check_name,
    check_retry_after,
    check_status,
)

Kind = Literal["open", "serial"]
Arrivals = Literal["poisson", "periodic", "once"]
Offsets = Literal["none", "random", "consistent"]
Order = Literal["fifo", "lifo"]
Shape = Literal["constant", "exponential", "uniform", "normal", "lognormal"]
SHAPES = ("constant", "exponential", "uniform", "normal", "lognormal")
SPREAD = ("uniform", "normal", "lognormal")
"""The shapes that have a `spread`."""
Code: TypeAlias = str | Callable[[Callable[[], Awaitable[None]]], Awaitable[object]]
"""An async function that makes attempts by ``await send()``, or its name: ``app:fetch``."""


class Clients(Frozen):
    """The callers.

    * `count` clients make `rate` calls per second each. **open** clients call regardless of their earlier calls;
      **serial** clients wait for a result, and then for ``1 / rate`` seconds on average. Backoff relieves a server of
      serial clients only.
    * `arrivals`: ``poisson``, ``periodic`` (every ``1 / rate`` seconds), or ``once`` (one call each).
    * `offset`, of ``periodic`` and ``once``: ``none`` (all at the same instant), ``random`` (within each period) or
      ``consistent`` (the client's own, by `abate.consistent_jitter`).
    * `start`: the instant of the first call. `spread`: seconds over which `offset` spreads the calls of ``once``.
    * `processes`: the number of processes that share the clients. Each has its own budget and shelter.
    * `timeouts`: seconds for a whole call, instead of the policy's `timeout`; the clients take them in turn.
    * `calls`: the service that they call; by default the first.
    * `code`: an async function that makes one call, given `send`, or its name (``app:fetch``). It replaces the policy.
      Only the coroutine engine can run it.

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
    timeouts: tuple[float, ...] = ()
    calls: str = ""
    code: Code = ""

    def validate(self) -> None:
        check_client_count("count", self.count)
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
        self.__dict__["timeouts"] = as_seconds("timeouts", self.timeouts)
        self._check_code()

    def _check_code(self) -> None:
        if isinstance(self.code, str):
            if self.code and not all(self.code.partition(":")):
                raise ValueError(
                    f"code must name a module and an async function in it, as 'app:fetch', not {self.code!r}"
                )
        elif not callable(self.code):
            raise TypeError(f"code must be an async function or its name, as 'app:fetch', not {self.code!r}")
        if self.code and self.timeouts:
            raise ValueError("timeouts must be left out where clients have their own code, which has its own")
        if self.code and self.processes > 1:
            raise ValueError(f"processes must be 1 where clients share the objects of their code, not {self.processes}")

    @property
    def offered(self) -> float:
        """Calls per second of all clients together."""
        return 0.0 if self.arrivals == "once" else self.count * self.rate


class Controllers(Frozen):
    """Control loops, each with a key queue in front of the service: changed keys are reconciled.

    * `count` controllers watch `keys` keys each; `rate` keys per second and controller change (Poisson).
    * At `relist` all keys of all controllers are added at once, as when a watch breaks; None: never.
    * `resync`: seconds between two rounds over all keys, at each controller's own offset; None: no rounds.
    * `workers` reconciles at once in each controller. A key that fails is added again after the policy's backoff, or
      after `slow` seconds if the budget does not admit it.

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

    def validate(self) -> None:
        check_client_count("count", self.count)
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
            raise ValueError("controllers need a rate, a relist or a resync: without one nothing is reconciled")

    @property
    def offered(self) -> float:
        """Reconciles per second of all controllers together, without failures."""
        rounds = 0.0 if self.resync is None else self.keys / self.resync
        return self.count * (self.rate + rounds)


class Duration(Frozen):
    """Seconds, drawn anew each time.

    * ``constant``: the mean; ``exponential``: exponentially distributed;
    * ``uniform``: within `spread` of the mean; ``normal``: with this standard deviation, the absolute value of it;
    * ``lognormal``: with this standard deviation, skewed as latencies are.

    >>> Duration(0.1).mean, Duration(0.1, "exponential").shape
    (0.1, 'exponential')
    >>> Duration(0.01, "normal", spread=0.002).sampler(Random(1))() > 0
    True
    """

    mean: float
    shape: Shape = "constant"
    spread: float = 0.0

    def validate(self) -> None:
        number("mean", self.mean, least=0)
        choice("shape", self.shape, SHAPES)
        number("spread", self.spread, least=0)
        if self.spread and self.shape not in SPREAD:
            raise ValueError(f"spread must be 0 for the shape {self.shape!r}, not {self.spread!r}")
        if self.shape == "uniform" and self.spread > self.mean:
            raise ValueError(f"spread must be at most the mean of {self.mean!r}, not {self.spread!r}")
        if self.shape == "lognormal" and not self.mean:
            raise ValueError("mean must be above 0 for the shape 'lognormal', not 0")

    @classmethod
    def of(cls, value: Duration | float) -> Duration:
        """Return a duration; a number becomes a constant one.

        >>> Duration.of(0.5)
        Duration(mean=0.5, shape='constant', spread=0.0)
        """
        return value if isinstance(value, Duration) else cls(value)

    @property
    def is_zero(self) -> bool:
        """Whether it is always 0."""
        return not self.mean and not self.spread

    def sampler(self, rng: Random) -> Callable[[], float]:
        """Return a function that draws the next duration.

        >>> Duration(0.25).sampler(Random(1))()
        0.25
        """
        mean, spread = float(self.mean), float(self.spread)
        if self.is_zero or self.shape == "constant":
            return lambda: mean
        if self.shape == "exponential":
            uniform, log = rng.random, math.log
            return lambda: -mean * log(1.0 - uniform())
        if self.shape == "uniform":
            return lambda: rng.uniform(mean - spread, mean + spread)
        if self.shape == "normal":
            return lambda: abs(rng.gauss(mean, spread))
        variance = math.log1p((spread / mean) ** 2)
        centre, width = math.log(mean) - variance / 2, math.sqrt(variance)
        return lambda: math.exp(rng.gauss(centre, width))


class Limit(Frozen):
    """A rate limit: `rate` requests per second; requests beyond it are answered with 429.

    ``bucket`` is a token bucket that holds the tokens of `per` seconds; ``window`` counts in fixed windows of `per`
    seconds, and its Retry-After is the beginning of the next one. `retry_after` is sent instead, if given.

    >>> Limit(100.0, per=10.0, kind="window").retry_after is None
    True
    """

    rate: float
    per: float = 1.0
    kind: Literal["bucket", "window"] = "bucket"
    retry_after: float | None = None

    def validate(self) -> None:
        number("rate", self.rate, above=0)
        number("per", self.per, above=0)
        choice("kind", self.kind, ("bucket", "window"))
        check_retry_after(self.retry_after)
        if not self.burst:
            raise ValueError(f"per must admit at least one request at a rate of {self.rate:g}, not {self.per!r}")

    @property
    def burst(self) -> int:
        """Requests that are admitted at once, or within one window."""
        return math.floor(self.rate * self.per + 1e-9)


class Service(Frozen):
    """A service with workers and a queue.

    * `workers` serve one request each, in `service_time` (seconds, or a `Duration`).
    * `queue_limit`: requests that wait at most, in the `order` ``fifo`` or ``lifo``; further ones are answered 503.
    * `drop_expired`: drop requests that have timed out when their turn comes, instead of serving them.
    * `error_rate`: the share of requests that are answered with `status` at once, at random.
    * `network`: seconds that a request takes to arrive, and its answer to return.
    * `calls`: services that are called for each request, one after the other, while the worker waits, by `policy`.
    * `cold_start`: seconds after each trigger in which only `cold_capacity` of the workers serve.
    * `limit`: a rate limit in front of the workers.

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

    def validate(self) -> None:
        check_name("a service's name", self.name)
        whole("workers", self.workers, least=1)
        self.__dict__["service_time"] = _as_duration("service_time", self.service_time)
        self.__dict__["network"] = _as_duration("network", self.network)
        if self.queue_limit is not None:
            whole("queue_limit", self.queue_limit, least=0)
        choice("order", self.order, ("fifo", "lifo"))
        check_bool("drop_expired", self.drop_expired)
        number("error_rate", self.error_rate, least=0, most=1)
        check_status(self.status)
        self.__dict__["calls"] = as_names("calls", self.calls)
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


class Row(Frozen):
    """A row with optimistic concurrency: a call reads it, and then writes it unless another write came in between.

    `network` is the duration of each of the four messages. A write that has lost the race fails with a conflict.

    >>> Row("row", network=Duration(0.01, "normal", spread=0.002)).calls
    ()
    """

    name: str
    network: Duration | float = 0.01
    calls = ()
    policy = None

    def validate(self) -> None:
        check_name("a row's name", self.name)
        self.__dict__["network"] = _as_duration("network", self.network)
        if Duration.of(self.network).is_zero:
            raise ValueError("network must be above 0: without it no write ever loses the race")


def _as_duration(name: str, value: object) -> Duration:
    try:
        return Duration.of(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error
