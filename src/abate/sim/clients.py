"""Those who call in a simulated world: clients, and controllers with their key queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from abate.errors import choice, number, whole
from abate.sim.fields import counted
from abate.values import Value

Kind = Literal["open", "serial"]
Arrivals = Literal["poisson", "periodic", "once"]
Offsets = Literal["none", "random", "consistent"]
Code: TypeAlias = str | Callable[[Callable[[], Awaitable[None]]], Awaitable[object]]
"""An async function that makes attempts by ``await send()``, or its name: ``app:fetch``."""


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
    * `code`: what a client does for one call, instead of going by the policy: an async function that takes `send`, or
      its name (``app:fetch``). Only the coroutine engine can run it.

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
    code: Code = ""

    def checked(self) -> None:
        counted("count", self.count)
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
        if isinstance(self.code, str):
            if self.code and not all(self.code.partition(":")):
                raise ValueError(
                    f"code must name a module and an async function in it, as 'app:fetch', not {self.code!r}"
                )
        elif not callable(self.code):
            raise TypeError(f"code must be an async function or its name, as 'app:fetch', not {self.code!r}")
        if self.code and self.processes > 1:
            raise ValueError(f"processes must be 1 where clients share the objects of their code, not {self.processes}")

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
        counted("count", self.count)
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
