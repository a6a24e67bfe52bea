"""The outlook of a world's services: what becomes of each once it has fallen, worked out from the policies.

It is the rule of sim/theory.py, for worlds with several callers, layers, queues that end and deadlines. What only a run
can tell is not claimed: it is said to be possible, or not to be known.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from abate.call.policy import Policy
from abate.errors import choice
from abate.sim.binding import once
from abate.sim.clients import Clients, Controllers
from abate.sim.durations import Duration
from abate.sim.services import Service
from abate.sim.world import World
from abate.values import Value

MANY = 1000
"""Attempts that are followed one by one; those beyond make no difference any more."""

Fate = Literal["comes back", "stays down", "may stay down", "overloaded", "not known"]
FATES: tuple[Fate, ...] = ("comes back", "stays down", "may stay down", "overloaded", "not known")


class Outlook(Value):
    """What a service is in for.

    `capacity` and `offered` are requests per second; `vulnerable` those above which it stays down once it has fallen,
    or None where it comes back at any load below its capacity. `fate` is one of

    * ``comes back``: at any load below its capacity.
    * ``stays down``: above `vulnerable`.
    * ``may stay down``: above `vulnerable`, where it drops what has expired: some loads above it are come back from.
    * ``overloaded``: it is offered all that it can serve or more, whatever goes wrong.
    * ``not known``: its clients go by code of their own, which nobody has read.

    >>> print(Outlook("api", capacity=300.0, offered=280.0))
    api: comes back by itself at any load below its capacity (capacity 300, offered 280)
    >>> print(Outlook("api", capacity=300.0, offered=310.0, fate="overloaded"))
    api: is offered more than it can serve (capacity 300, offered 310)
    """

    service: str
    capacity: float
    offered: float
    vulnerable: float | None = None
    fate: Fate = "comes back"

    def checked(self) -> None:
        choice("fate", self.fate, FATES)
        if self.vulnerable is None and self.fate in ("stays down", "may stay down"):
            raise ValueError(f"vulnerable must be a number where the fate is {self.fate!r}, not None")

    @property
    def stays_down(self) -> bool:
        """Is it sure to stay down under what is offered?"""
        sure = self.fate in ("stays down", "overloaded")
        return sure and self.vulnerable is not None and self.offered >= self.vulnerable

    def __str__(self) -> str:
        return f"{self.service}: {self._sentence()} (capacity {self.capacity:.4g}, offered {self.offered:.4g})"

    def _sentence(self) -> str:
        if self.fate == "not known":
            return "what becomes of it once it falls is not known, as its clients go by code of their own"
        if self.fate == "overloaded":
            return f"is offered {'more than' if self.offered > self.capacity else 'all that'} it can serve"
        if self.vulnerable is None:
            return "comes back by itself at any load below its capacity"
        may = "may stay down" if self.fate == "may stay down" else "stays down"
        return f"above {self.vulnerable:.4g} requests/s this {may} once it falls"

    def as_json(self) -> dict[str, Any]:
        """For machines: a capacity without an end is None.

        >>> Outlook("api", capacity=math.inf, offered=5.0).as_json()["capacity"] is None
        True
        """
        capacity = self.capacity if math.isfinite(self.capacity) else None
        return {
            "service": self.service,
            "capacity": capacity,
            "offered": self.offered,
            "vulnerable": self.vulnerable,
            "fate": self.fate,
            "stays_down": self.stays_down,
        }


def outlook(world: World) -> list[Outlook]:
    """What each service of a world is in for, where delays are as long as they are on average.

    A shelter is taken to keep away what it holds; gates are not looked at. A service that drops what has expired is not
    much better off: what it serves instead has waited nearly as long, and is often late in the end. A rate limit below
    what the workers can serve is the capacity, and keeps the line from growing.

    >>> import abate, abate.sim as sim
    >>> policy = abate.Policy(on=sim.simulated, attempts=2, attempt_timeout=1.0, budget=abate.Budget.unlimited())
    >>> api = sim.Service("api", workers=30, service_time=0.1)
    >>> print(*outlook(sim.World(sim.Clients(count=280), [api], policy)))
    api: above 150 requests/s this stays down once it falls (capacity 300, offered 280)
    """
    return [_outlook(world, service) for service in world.services if isinstance(service, Service)]


def _outlook(world: World, service: Service) -> Outlook:
    seconds, offered = _seconds(world, service), _offered(world, service)
    served = service.workers / seconds if seconds else math.inf
    capacity = served if service.limit is None else min(served, service.limit.rate)
    clients = world.clients
    if isinstance(clients, Clients) and clients.code:
        return Outlook(service.name, capacity, offered, fate="not known")
    vulnerable = _vulnerable(world, service, served, offered)
    # those who wait for a result offer no more than what is served
    if offered >= capacity and not (isinstance(clients, Clients) and clients.kind == "serial"):
        return Outlook(service.name, capacity, offered, vulnerable, "overloaded")
    if vulnerable is None:
        return Outlook(service.name, capacity, offered)
    return Outlook(
        service.name, capacity, offered, vulnerable, "may stay down" if service.drop_expired else "stays down"
    )


def _vulnerable(world: World, service: Service, served: float, offered: float) -> float | None:
    """Requests per second above which it stays down, if there are any below those that its workers can serve."""
    low, high = 0.0, served / offered if offered else 1.0
    if math.isinf(served) or _sent(world, service, high * (1.0 - 1e-9)) < served:
        return None
    high = high if _sent(world, service, 0.0) < served else 0.0  # keys come back, whatever changes
    while low < (middle := (low + high) / 2.0) < high:
        low, high = (low, middle) if _sent(world, service, middle) >= served else (middle, high)
    return high * offered


def _seconds(world: World, service: Service) -> float:
    """How long a request holds a worker, with the calls that are made for it."""
    inner = [called for name in service.calls if isinstance(called := world.service(name), Service)]
    return Duration.of(service.service_time).mean + sum(_seconds(world, called) for called in inner)


def _callers(world: World, service: Service) -> list[tuple[Clients | Controllers | Service, Policy]]:
    found: list[Clients | Controllers | Service] = [world.clients] if service.name == world.entry else []
    for caller in world.services:
        if isinstance(caller, Service):
            found += [caller] * caller.calls.count(service.name)
    return [(caller, (caller if isinstance(caller, Service) else world).policy or once()) for caller in found]


def _offered(world: World, service: Service) -> float:
    callers = (caller for caller, _ in _callers(world, service))
    return sum(_offered(world, caller) if isinstance(caller, Service) else caller.offered for caller in callers)


def _sent(world: World, service: Service, factor: float, fails: bool = False) -> float:
    """Attempts per second while all are late, or fail at once (`fails`), with `factor` times as many callers."""
    total, each = 0.0, _seconds(world, service)
    queue = math.inf if service.queue_limit is None else service.queue_limit * each / service.workers
    for caller, policy in _callers(world, service):
        timeout = 0.0 if fails else min(policy.attempt_timeout or math.inf, policy.timeout or math.inf)
        # they wait as long as it takes, or longer than the line can be, or the newest go first, or few are sent
        patient = timeout == math.inf or timeout > queue + each or service.order == "lifo" or policy.shelter is not None
        crowd, pause, reserve = math.inf, 0.0, policy.budget.reserve
        if isinstance(caller, Service):
            # where it is told that this was retried already, nobody further out begins anew
            calls = _offered(world, caller) * factor if world.tells_layers else _sent(world, caller, factor, fails=True)
            crowd, pause = caller.workers, Duration.of(caller.service_time).mean
        else:
            calls, reserve = caller.offered * factor, reserve * caller.processes
            if isinstance(caller, Clients) and caller.kind == "serial":
                crowd, pause = caller.count * factor, 1.0 / caller.rate
        if patient and not fails:
            total += calls
        elif isinstance(caller, Controllers):
            # keys come back for ever, after their longest delay, or slowly; as far as there are workers for them
            delay = policy.overload_backoff.delay(MANY, MIDDLE, policy.overload_backoff.ceiling(MANY))
            keys, slowly = caller.count * caller.keys, timeout + caller.slow
            back = min(keys / (timeout + min(delay, caller.slow)), keys / slowly + reserve)
            total += min(back, caller.count * caller.workers / timeout)
        else:
            attempts, seconds = _course(policy, timeout)
            first = min(calls, crowd / (pause + timeout) if pause + timeout else math.inf)
            most = min(calls * attempts, crowd * attempts / (pause + seconds) if pause + seconds else math.inf)
            share = policy.budget.ratio if policy.budget.funded_by == "request" else 0.0
            total += first + min(max(0.0, most - first), reserve + share * first)
    return total if service.limit is None else min(total, service.limit.rate)


def _course(policy: Policy, timeout: float) -> tuple[int, float]:
    """How many attempts a call makes that fails each time, and how many seconds it takes."""
    made, seconds, delay = 1, timeout, None
    while made < min(policy.max_attempts, MANY) and policy.idempotent is not False:
        delay = policy.overload_backoff.delay(made, MIDDLE, delay)
        if policy.timeout is not None and seconds + delay >= policy.timeout:
            break
        made, seconds = made + 1, seconds + delay + timeout
    return made, seconds


class Middle:
    """Chance that is always average."""

    def random(self) -> float:
        return 0.5


MIDDLE = Middle()
