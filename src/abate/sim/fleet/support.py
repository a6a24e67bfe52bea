"""What the fleet engine can run: everything with an array form. A world that holds anything else is the exact one's."""

from __future__ import annotations

from abate.call.policy import Policy
from abate.schedule.backoff import Backoff, ListSchedule
from abate.sim.clients import Controllers
from abate.sim.durations import Duration
from abate.sim.fleet.server import flows
from abate.sim.fleet.wheel import PER_SECOND, WIDTH
from abate.sim.services import Row, Service
from abate.sim.world import World

MANY, MANY_VARYING = 100, 200
"""Workers from which on all of them are as good as one who is as fast, where serving takes a bucket or less: up to a
load of 80 % waits are within 2 % of the closed forms. For the second number, service times vary. Who serves so many in
a bucket may as well be one: his waits are shorter than it."""
SLOW = 5
"""Buckets that fewer workers must take on average where service times vary. From here on waits and blocking are within
2 % of the closed forms; at 3 buckets blocking was 6 % off, at 1 waits were 13 %."""


def without_array_form(world: World) -> list[str]:
    """What in this world has no array form.

    >>> from abate.sim import Clients
    >>> without_array_form(World(Clients(count=8, processes=2), [Service("api", order="lifo")]))
    ['clients in several processes', 'a lifo queue']
    """
    found = []
    if isinstance(world.clients, Controllers):
        found.append("controllers")
    elif world.clients.processes > 1:
        found.append("clients in several processes")
    service = world.service(world.entry)
    found += ["a row"] if isinstance(service, Row) else _service(service)
    if world.policy is not None:
        found += _policy(world.policy)
    return found


def _service(service: Service) -> list[str]:
    network = Duration.of(service.network)
    # a queue that is filled and emptied several times within a bucket
    short = service.queue_limit is not None and service.queue_limit < service.capacity * WIDTH < float("inf")
    reasons = {
        "services that call services": bool(service.calls),
        "a rate limit": service.limit is not None,
        "a lifo queue": service.order == "lifo",
        "a network whose time varies": not network.nothing and network.shape != "constant",
        "a queue shorter than what is served in 10 ms": flows(service) and short,
    }
    return [name for name, true in reasons.items() if true] + _few_and_fast(service)


def _few_and_fast(service: Service) -> list[str]:
    """Workers who come free within a bucket again and again, and are too few for that to even out."""
    duration = Duration.of(service.service_time)
    varies = duration.shape != "constant"
    many, steps = (MANY_VARYING, SLOW) if varies else (MANY, 1)
    short = duration.mean * PER_SECOND < steps if varies else flows(service)
    served = service.capacity * WIDTH if flows(service) else 0.0
    if duration.nothing or not short or service.workers >= many or served >= MANY:
        return []
    enough = f"{steps * 1000 // PER_SECOND} ms" if varies else f"more than {steps * 1000 // PER_SECOND} ms"
    who = f"{service.workers} worker{'' if service.workers == 1 else 's'}"
    took = f"{duration.mean * 1000:.3g} ms"
    return [f"{who} at {took} a request (for waits within 2 % it takes {many} of them, or {enough})"]


def _policy(policy: Policy) -> list[str]:
    reasons = {
        "a shelter": policy.shelter is not None,
        "a gate": policy.gate is not None,
        "a schedule of one's own": type(policy.backoff) not in (Backoff, ListSchedule),
    }
    return [name for name, true in reasons.items() if true]
