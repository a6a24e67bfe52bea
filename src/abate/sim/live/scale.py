"""A world made small enough to be run for real: fewer clients, and less of everything in proportion.

* Clients, workers, queues, rate limits, and what budgets, gates and shelters hold shrink by the same factor, so that
  the ratios between them stay; what can't be divided is rounded.
* The horizon is cut.
* A trigger lasts at least a tenth of a second: real clients that call "at the same instant" take some milliseconds.

What is simulated beside a live run is the very same small world.
"""

from __future__ import annotations

from math import isinf
from typing import Any, TypeVar

from abate.admit.bucket import TokenBucket
from abate.admit.budget import Budget
from abate.admit.gate import All, Gate
from abate.admit.permits import Permits
from abate.admit.shelter import Shelter
from abate.call.policy import Policy
from abate.errors import number
from abate.sim.clients import Clients, Controllers
from abate.sim.services import Limit, Row, Service
from abate.sim.world import Trigger, World
from abate.values import Value

MOST = 300.0
"""Calls per second, or at once, that a live run has at most unless told otherwise."""
LONGEST = 60.0
"""Seconds that it takes at most unless told otherwise."""
SHORTEST_TRIGGER = 0.1

V = TypeVar("V", bound=Value)


class Small(Value):
    """A world for a live run, by what factor it is smaller than the one that was meant, and what else was changed."""

    world: World
    factor: float
    notes: tuple[str, ...]


def small(world: World, most: float = MOST, longest: float = LONGEST) -> Small:
    """The world for a live run of at most `most` calls per second, `longest` seconds long.

    >>> import abate.sim as sim
    >>> found = small(sim.World(sim.Clients(count=3000), [sim.Service("api", workers=50)], horizon=600.0))
    >>> found.world.clients.count, found.world.services[0].workers, found.world.horizon, found.notes
    (300, 5, 60.0, ('scaled to 0.1 of its size', 'cut to 60 s of 600 s'))
    """
    number("most", most, least=1)
    number("longest", longest, above=0)
    notes: list[str] = []
    factor = min(1.0, most / demand(world))
    triggers = tuple(_long_enough(trigger, notes) for trigger in world.triggers)
    horizon = min(world.horizon, longest)
    if factor < 1.0:
        notes.append(f"scaled to {factor:.2g} of its size")
    if horizon < world.horizon:
        notes.append(f"cut to {horizon:g} s of {world.horizon:g} s")
    clients = _fewer(world.clients, factor)
    share = (clients.count / clients.processes) / (world.clients.count / world.clients.processes)
    try:
        found = _changed(
            world,
            clients=clients,
            policy=world.policy and _poorer(world.policy, share),
            services=tuple(_smaller(service, factor) for service in world.services),
            triggers=triggers,
            horizon=horizon,
        )
    except ValueError as error:
        raise ValueError(f"a live run takes {longest:g} s at most, unless it is told otherwise: {error}") from error
    return Small(found, factor, tuple(notes))


def demand(world: World) -> float:
    """Calls per second at the worst; those that come at the same instant count as if in one second.

    >>> import abate.sim as sim
    >>> demand(sim.World(sim.Clients(count=1000, arrivals="once"), [sim.Service("api")]))
    1000.0
    """
    who = world.clients
    spike = max((factor for _, _, factor in world.spikes), default=1.0)
    if isinstance(who, Controllers):
        return max(who.offered * max(1.0, spike), who.count * who.keys if who.relist is not None else 1.0)
    if who.arrivals == "once":
        return who.count / max(1.0, who.spread)
    together = who.count if who.arrivals == "periodic" and who.offset == "none" else 0.0
    return max(who.offered * max(1.0, spike), together)


def _fewer(who: Clients | Controllers, factor: float) -> Clients | Controllers:
    count = _whole(who.count, factor, least=1)
    processes = who.processes if who.processes == 1 else min(count, _whole(who.processes, factor, least=1))
    return _changed(who, count=count, processes=processes)


def _smaller(service: Service | Row, factor: float) -> Service | Row:
    if isinstance(service, Row) or factor == 1.0:
        return service
    return _changed(
        service,
        workers=_whole(service.workers, factor, least=1),
        queue_limit=None if service.queue_limit is None else _whole(service.queue_limit, factor, least=0),
        policy=service.policy and _poorer(service.policy, factor),
        limit=service.limit and _stricter(service.limit, factor),
    )


def _stricter(limit: Limit, factor: float) -> Limit:
    # a limit that lets no request pass is none
    return _changed(limit, rate=max(limit.rate * factor, 1.0 / limit.per))


def _poorer(policy: Policy, factor: float) -> Policy:
    """The policy of fewer clients: what they share is less."""
    if factor == 1.0:
        return policy
    shelter = policy.shelter
    return policy.replace(
        budget=_less(policy.budget, factor),
        gate=None if policy.gate is None else _narrower(policy.gate, factor),
        shelter=None
        if shelter is None
        else Shelter(_whole(shelter.capacity, factor, least=1), shelter.patience, name=shelter.name),
    )


def _less(budget: Budget, factor: float) -> Budget:
    reserve = budget.reserve if isinf(budget.reserve) else budget.reserve * factor
    return Budget(budget.ratio, reserve, budget.window, budget.funded_by, name=budget.name)


def _narrower(gate: Gate, factor: float) -> Gate:
    match gate:
        case All():
            return All(tuple(_narrower(part, factor) for part in gate.gates))
        case TokenBucket():
            return TokenBucket(gate.rate * factor, _whole(gate.burst, factor, least=1), name=gate.name)
        case Permits():
            return Permits(_whole(gate.limit, factor, least=1), name=gate.name)
        case Budget():
            return _less(gate, factor)
    return gate  # a throttle goes by shares; of a gate of the user's own nothing is known


def _long_enough(trigger: Trigger, notes: list[str]) -> Trigger:
    if trigger.for_ >= SHORTEST_TRIGGER:
        return trigger
    notes.append(f"trigger {trigger.kind!r} lasts {SHORTEST_TRIGGER:g} s instead of {trigger.for_:g} s")
    return _changed(trigger, for_=SHORTEST_TRIGGER)


def _whole(value: int, factor: float, least: int) -> int:
    return max(least, round(value * factor))


def _changed(value: V, **changes: Any) -> V:
    fields = {name: getattr(value, name) for name in value.__match_args__}
    return type(value)(**{**fields, **changes})
