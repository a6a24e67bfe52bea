"""Which features of a world the fleet engine does not support; worlds with them are run by the exact engine."""

from __future__ import annotations

from abate.call.policy import Policy
from abate.schedule.backoff import Backoff, ListSchedule
from abate.sim.fleet.server import is_fluid
from abate.sim.fleet.timer_wheel import PER_SECOND, WIDTH
from abate.sim.model import Controllers, Duration, Row, Service
from abate.sim.world import World

MANY, MANY_VARYING = 100, 200
"""Minimum number of workers if serving takes a bucket or less; the second if service times vary. With these, waits are
within 2 % of the closed forms up to a load of 80 %. A service that serves this many requests per bucket is exempt, as
waits are shorter than a bucket."""
SLOW = 5
"""Minimum mean service time in buckets, if fewer workers have varying service times. With it, waits and blocking are
within 2 % of the closed forms; at 3 buckets blocking was off by 6 %, at 1 waits by 13 %."""


def unsupported_features(world: World) -> list[str]:
    """Return the features of a world that have no vectorized form.

    >>> from abate.sim import Clients
    >>> unsupported_features(World(Clients(count=8, processes=2), [Service("api", order="lifo")]))
    ['clients in several processes', 'a lifo queue']
    """
    found = []
    if isinstance(world.clients, Controllers):
        found.append("controllers")
    else:
        found += ["clients in several processes"] if world.clients.processes > 1 else []
        found += ["clients with timeouts of their own"] if world.clients.timeouts else []
    service = world.service(world.entry)
    found += ["a row"] if isinstance(service, Row) else _service(service)
    if world.policy is not None:
        found += _policy(world.policy)
    return found


def _service(service: Service) -> list[str]:
    network = Duration.of(service.network)
    # filled and emptied several times within a bucket
    short = service.queue_limit is not None and service.queue_limit < service.capacity * WIDTH < float("inf")
    reasons = {
        "services that call services": bool(service.calls),
        "a rate limit": service.limit is not None,
        "a lifo queue": service.order == "lifo",
        "a network whose time varies": not network.is_zero and network.shape != "constant",
        "a queue shorter than what is served in 10 ms": is_fluid(service) and short,
    }
    return [name for name, true in reasons.items() if true] + _few_and_fast(service)


def _few_and_fast(service: Service) -> list[str]:
    """Return the complaint about too few workers that are faster than a bucket, if any."""
    duration = Duration.of(service.service_time)
    varies = duration.shape != "constant"
    many, steps = (MANY_VARYING, SLOW) if varies else (MANY, 1)
    short = duration.mean * PER_SECOND < steps if varies else is_fluid(service)
    served = service.capacity * WIDTH if is_fluid(service) else 0.0
    if duration.is_zero or not short or service.workers >= many or served >= MANY:
        return []
    enough = f"{steps * 1000 // PER_SECOND} ms" if varies else f"more than {steps * 1000 // PER_SECOND} ms"
    workers = f"{service.workers} worker{'' if service.workers == 1 else 's'}"
    took = f"{duration.mean * 1000:.3g} ms"
    return [f"{workers} at {took} a request (waits within 2 % need {many} workers, or {enough})"]


def _policy(policy: Policy) -> list[str]:
    reasons = {
        "a shelter": policy.shelter is not None,
        "a gate": policy.gate is not None,
        "attempts bounded by time only": policy.max_attempts is None,
        "bounds on attempts by kind": bool(policy.max_attempts_by_kind),
        "a custom schedule": type(policy.backoff) not in (Backoff, ListSchedule),
    }
    return [name for name, true in reasons.items() if true]
