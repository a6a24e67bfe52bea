"""What the fleet engine can run: everything with an array form. A world that holds anything else is the exact one's."""

from __future__ import annotations

from abate.call.policy import Policy
from abate.schedule.backoff import Backoff, ListSchedule
from abate.sim.clients import Controllers
from abate.sim.durations import Duration
from abate.sim.fleet.server import flows
from abate.sim.fleet.wheel import WIDTH
from abate.sim.services import Row, Service
from abate.sim.world import World


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
    return [name for name, true in reasons.items() if true]


def _policy(policy: Policy) -> list[str]:
    reasons = {
        "a shelter": policy.shelter is not None,
        "a gate": policy.gate is not None,
        "a schedule of one's own": type(policy.backoff) not in (Backoff, ListSchedule),
    }
    return [name for name, true in reasons.items() if true]
