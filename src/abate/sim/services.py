"""What is called in a simulated world: services with workers and queues, rows that many write."""

from __future__ import annotations

from math import floor
from typing import Literal

from abate.call.policy import Policy
from abate.errors import choice, number, whole
from abate.sim.durations import Duration
from abate.sim.fields import duration, hint, named, names, status, truth
from abate.values import Value

Order = Literal["fifo", "lifo"]


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
        hint(self.retry_after)
        if not self.most:
            raise ValueError(f"per must let at least one request pass at a rate of {self.rate:g}, not {self.per!r}")

    @property
    def most(self) -> int:
        """Requests that pass at once, or within one window."""
        return floor(self.rate * self.per + 1e-9)


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
        named("a service's name", self.name)
        whole("workers", self.workers, least=1)
        self.__dict__["service_time"] = duration("service_time", self.service_time)
        self.__dict__["network"] = duration("network", self.network)
        if self.queue_limit is not None:
            whole("queue_limit", self.queue_limit, least=0)
        choice("order", self.order, ("fifo", "lifo"))
        truth("drop_expired", self.drop_expired)
        number("error_rate", self.error_rate, least=0, most=1)
        status(self.status)
        self.__dict__["calls"] = names("calls", self.calls)
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
        named("a row's name", self.name)
        self.__dict__["network"] = duration("network", self.network)
        if Duration.of(self.network).nothing:
            raise ValueError("network must take some time, or nobody ever loses the race; it is 0")
