"""A simulated world: callers, services and triggers, as a frozen value that is checked when it is built.

clients ──policy──► service ──policy──► service …        services have workers, queues, and calls of their own
                       ▲
                    triggers                             error, stall, slow, capacity, spike
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from abate.call.policy import Policy
from abate.errors import choice, number, whole
from abate.frozen import Frozen
from abate.sim.model import Clients, Controllers, Row, Service
from abate.sim.validation import MAX_CALLS, as_values, check_bool, check_horizon, check_retry_after, check_status
from abate.sim.varying_rate import VaryingRate

if TYPE_CHECKING:
    from abate.sim.measures import Run

Trouble = Literal["error", "stall", "slow", "capacity", "spike"]
Engine = Literal["exact", "coroutine", "fleet"]

ENGINES = {
    "exact": "abate.sim.exact_engine",
    "coroutine": "abate.sim.coroutine_engine",
    "fleet": "abate.sim.fleet",
}
TROUBLES = ("error", "stall", "slow", "capacity", "spike")
FACTORS = {"slow": 2.0, "capacity": 0.5, "spike": 2.0}
"""The default factors."""


class Trigger(Frozen):
    """A failure that begins at the instant `at` and lasts `for_` seconds (``for`` in a scenario).

    * **error**: requests are answered with `status` at once, all or a `share` of them, with this `retry_after`.
    * **stall**: no request is served. **slow**: serving takes `factor` times as long.
    * **capacity**: only `factor` of the workers serve. **spike**: `factor` times as many calls arrive.
    * `service`: by default the one that clients call.

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

    def validate(self) -> None:
        choice("kind", self.kind, TROUBLES)
        number("at", self.at, least=0)
        number("for", self.for_, above=0)
        number("share", self.share, above=0, most=1)
        check_status(self.status)
        check_retry_after(self.retry_after)
        if self.kind != "error":
            self._check_errors_only()
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

    def _check_errors_only(self) -> None:
        for key in ("share", "status", "retry_after"):
            if getattr(self, key) != Trigger.field_defaults[key]:
                raise ValueError(f"{key} has no meaning for the kind {self.kind!r}: leave it out")

    @property
    def end(self) -> float:
        """The instant at which it ends."""
        return self.at + self.for_


class WorldError(ValueError):
    """A part of a world that does not fit the others: `table` is its path, `said` what is wrong.

    >>> print(WorldError("triggers.0", "at must be before the horizon of 60, not 99.0"))
    triggers.0: at must be before the horizon of 60, not 99.0
    """

    def __init__(self, table: str, said: str) -> None:
        super().__init__(table, said)  # pickle needs both
        self.table = table
        self.said = said

    def __str__(self) -> str:
        return f"{self.table}: {self.said}"


class World(Frozen):
    """Clients or controllers, services, a policy, triggers, and the length of a run.

    * `policy`: of the clients; by default one attempt. Each run has new budgets and shelters.
    * `horizon`: seconds that are simulated; `warmup`: seconds at the beginning that are not measured.
    * `tells_layers`: whether services report that they have retried already, and requests carry their deadline. If
      not, retries multiply from layer to layer.

    >>> import abate
    >>> world = World(
    ...     clients=Clients(count=1000, rate=0.1),
    ...     services=[Service("api", workers=10, service_time=0.05, queue_limit=50)],
    ...     policy=abate.Policy(on=abate.sim.simulated, max_attempts=3),
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

    def validate(self) -> None:
        if not isinstance(self.clients, (Clients, Controllers)):
            raise TypeError(f"clients must be Clients or Controllers, not {self.clients!r}")
        self.__dict__["services"] = as_values("services", self.services, (Service, Row))
        self.__dict__["triggers"] = as_values("triggers", self.triggers, (Trigger,))
        if self.policy is not None and not isinstance(self.policy, Policy):
            raise TypeError(f"policy must be a Policy, not {self.policy!r}")
        check_horizon("horizon", self.horizon)
        number("warmup", self.warmup, least=0)
        check_bool("tells_layers", self.tells_layers)
        if self.warmup >= self.horizon:
            raise ValueError(f"warmup must be less than the horizon of {self.horizon:g}, not {self.warmup!r}")
        if not self.services:
            raise ValueError("services must hold at least one service, not none")
        self._check_beginning()
        self._check_names()
        self._check_cycles()
        self._check_triggers()
        self._check_size()

    def _check_beginning(self) -> None:
        key = "start" if isinstance(self.clients, Clients) else "relist"
        at = getattr(self.clients, key)
        if at is not None and at >= self.horizon:
            table = "clients" if key == "start" else "controllers"
            raise WorldError(table, f"{key} must be before the horizon of {self.horizon:g}, not {at!r}")

    def _check_names(self) -> None:
        names = [service.name for service in self.services]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise WorldError("services", f"must have different names; two are called {name!r}")
        table = "clients" if isinstance(self.clients, Clients) else "controllers"
        called = [(table, self.clients.calls)] if self.clients.calls else []
        called += [(f"services.{service.name}", name) for service in self.services for name in service.calls]
        for table, name in called:
            if name not in names:
                raise WorldError(table, f"calls {name!r}, which is not a service; there are {', '.join(names)}")

    def _check_cycles(self) -> None:
        calls = {service.name: service.calls for service in self.services}

        def visit(name: str, path: tuple[str, ...]) -> None:
            if name in path:
                cycle = (*path[path.index(name) :], name)
                raise WorldError(f"services.{name}", f"calls form a cycle: {' -> '.join(cycle)}")
            for inner in calls[name]:
                visit(inner, (*path, name))

        for name in calls:
            visit(name, ())

    def _check_triggers(self) -> None:
        names = [service.name for service in self.services]
        for place, trigger in enumerate(self.triggers):
            table = f"triggers.{place}"
            if trigger.at >= self.horizon:
                raise WorldError(table, f"at must be before the horizon of {self.horizon:g}, not {trigger.at!r}")
            if trigger.service and trigger.service not in names:
                raise WorldError(table, f"service {trigger.service!r} is not a service; there are {', '.join(names)}")
            if trigger.kind != "spike" and isinstance(self.service(trigger.service or self.entry), Row):
                raise WorldError(table, f"kind {trigger.kind!r} has no meaning for a row, only 'spike' has")

    def _check_size(self) -> None:
        """Refuse more calls than an engine can simulate in hours."""
        callers, over = self.clients, f"over {self.horizon:g} s"
        calm, spiked = (_calls(callers, self.horizon, spikes) for spikes in ((), self.spikes))
        at_most = f"at most {MAX_CALLS:,} are simulated"
        if calm > MAX_CALLS:
            if isinstance(callers, Clients):
                raise WorldError(
                    "clients",
                    f"count {callers.count} with a rate of {callers.rate:g} {over} is {calm:.3g} calls; {at_most}",
                )
            rounds = "" if callers.resync is None else f", a resync of {callers.resync:g}"
            of = f"count {callers.count} with {callers.keys} keys, a rate of {callers.rate:g}{rounds}"
            raise WorldError("controllers", f"{of} {over} is {calm:.3g} reconciles; {at_most}")
        if spiked > MAX_CALLS:
            place, spike = max(
                ((place, trigger) for place, trigger in enumerate(self.triggers) if trigger.kind == "spike"),
                key=lambda found: found[1].factor or 1.0,
            )
            said = f"factor {spike.factor:g} for {spike.for_:g} s makes it {spiked:.3g} calls; {at_most}"
            raise WorldError(f"triggers.{place}", said)

    @property
    def entry(self) -> str:
        """The service that clients call."""
        return self.clients.calls or self.services[0].name

    def service(self, name: str) -> Service | Row:
        """Return the service of this name."""
        return next(service for service in self.services if service.name == name)

    def triggers_of(self, service: str) -> list[Trigger]:
        """Return the triggers of a service; one without a service belongs to the entry.

        >>> world = World(Clients(9), [Service("api")], triggers=[Trigger("stall", 1.0, 2.0)])
        >>> [trigger.kind for trigger in world.triggers_of("api")]
        ['stall']
        """
        return [trigger for trigger in self.triggers if (trigger.service or self.entry) == service]

    @property
    def spikes(self) -> list[tuple[float, float, float]]:
        """The spikes: start, end, factor."""
        return [
            (trigger.at, trigger.end, trigger.factor or 1.0) for trigger in self.triggers if trigger.kind == "spike"
        ]

    @property
    def trouble(self) -> tuple[float, float] | None:
        """From the beginning of the first trigger to the end of the last; None without triggers."""
        if not self.triggers:
            return None
        return min(trigger.at for trigger in self.triggers), max(trigger.end for trigger in self.triggers)

    def run(self, seed: int = 0, engine: Engine = "exact", raster: bool = False) -> Run:
        """Run the world once. The same seed gives the same run.

        `raster` keeps the instant and the client of the first 200,000 attempts, for the raster picture.

        >>> world = World(Clients(count=10, arrivals="once"), [Service("api", service_time=0.1)])
        >>> world.run(seed=7).successes
        10
        """
        whole("seed", seed, least=0)
        self.check_engine(engine)
        # imported when it is needed: the fleet engine needs NumPy
        simulate: Callable[[World, int, bool], Run] = import_module(ENGINES[engine]).run
        found = simulate(self, seed, raster)
        if found.calls:
            return found
        warm = f" after the warm-up of {self.warmup:g} s" if self.warmup else ""
        return found.noted(
            f"no call was made{warm} before the horizon of {self.horizon:g} s: there is nothing to measure"
        )

    def check_engine(self, engine: str) -> None:
        """Refuse an unknown engine, and one that can't run the code of these clients.

        >>> World(Clients(count=10, code="app:fetch"), [Service("api")]).check_engine("fleet")
        Traceback (most recent call last):
        ValueError: clients.code can be run by the engine 'coroutine' only, not by 'fleet'
        """
        choice("engine", engine, tuple(ENGINES))
        if engine != "coroutine" and isinstance(self.clients, Clients) and self.clients.code:
            raise ValueError(f"clients.code can be run by the engine 'coroutine' only, not by {engine!r}")


def _calls(callers: Clients | Controllers, horizon: float, spikes: Sequence[tuple[float, float, float]]) -> float:
    """Return the calls before the horizon; for serial clients, which wait for answers, a lower bound."""
    busy = VaryingRate(1.0, spikes).done(callers.start if isinstance(callers, Clients) else 0.0, horizon)
    if isinstance(callers, Clients):
        once = callers.arrivals == "once" or callers.kind == "serial"
        return float(callers.count) if once else callers.count * callers.rate * busy
    rounds = (0 if callers.resync is None else horizon / callers.resync) + (callers.relist is not None)
    return callers.count * (callers.rate * busy + callers.keys * rounds)
