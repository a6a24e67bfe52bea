"""The vulnerable range of a service: the loads at which it stays down once it has failed, from the closed form.

It is stated where the closed form holds (`abate.sim.queueing_theory.RetryFeedback`): open clients that call one
service, which calls no other, has no rate limit, serves in order and does not drop expired requests.
"""

from __future__ import annotations

import math
from typing import Any

from abate.call.policy import Policy
from abate.frozen import Frozen
from abate.sim.model import Clients, Duration, Service
from abate.sim.queueing_theory import RetryFeedback
from abate.sim.simulation import single_attempt_policy
from abate.sim.world import World


class VulnerableRange(Frozen):
    """Loads at which a service stays down once it has failed: those from `above` on, or none if `above` is None.

    `capacity` and `offered` are requests per second.

    >>> print(VulnerableRange("api", capacity=300.0, offered=280.0))
    api: comes back by itself at any load below its capacity (capacity 300, offered 280)
    >>> print(VulnerableRange("api", capacity=300.0, offered=310.0))
    api: is offered more than it can serve (capacity 300, offered 310)
    """

    service: str
    capacity: float
    offered: float
    above: float | None = None

    @property
    def stays_down(self) -> bool:
        """Whether the service stays down under the offered load, once it has failed."""
        return self.above is not None and self.offered >= self.above

    @property
    def sentence(self) -> str:
        """The statement without its figures."""
        if self.offered >= self.capacity:
            return (
                f"{self.service}: is offered {'more than' if self.offered > self.capacity else 'all that'} it can serve"
            )
        if self.above is None:
            return f"{self.service}: comes back by itself at any load below its capacity"
        return f"{self.service}: above {self.above:.4g} requests/s this stays down once it falls"

    def __str__(self) -> str:
        return f"{self.sentence} (capacity {self.capacity:.4g}, offered {self.offered:.4g})"

    def as_json(self) -> dict[str, Any]:
        """Return its fields, and whether the service stays down."""
        return {**vars(self), "stays_down": self.stays_down}


def vulnerable_range(world: World) -> VulnerableRange | None:
    """Return the vulnerable range of the service that clients call; None where the closed form does not hold.

    >>> import abate, abate.sim as sim
    >>> policy = abate.Policy(on=sim.simulated, max_attempts=2, attempt_timeout=1.0, budget=abate.Budget.unlimited())
    >>> api = sim.Service("api", workers=30, service_time=0.1)
    >>> print(vulnerable_range(sim.World(sim.Clients(count=280), [api], policy)))
    api: above 150 requests/s this stays down once it falls (capacity 300, offered 280)
    """
    clients, service, policy = world.clients, world.service(world.entry), world.policy or single_attempt_policy()
    if not isinstance(clients, Clients) or clients.kind != "open" or clients.code or not clients.offered:
        return None
    if not isinstance(service, Service) or service.calls or service.limit is not None or service.drop_expired:
        return None
    seconds = Duration.of(service.service_time).mean
    retries = policy.attempt_limit > 1 and policy.idempotent is not False
    if not seconds or service.order != "fifo" or (retries and (policy.timeout or clients.timeouts)):
        return None
    capacity = service.workers / seconds
    above = None
    if retries and policy.shelter is None and _expires(service, seconds, policy):
        assert policy.attempt_timeout is not None
        assert policy.max_attempts is not None
        budget = policy.budget
        above = RetryFeedback(
            workers=service.workers,
            service_time=seconds,
            timeout=policy.attempt_timeout,
            max_attempts=min(policy.max_attempts, policy.max_attempts_by_kind.get("overload", policy.max_attempts)),
            ratio=budget.ratio,
            reserve=budget.reserve * clients.processes,
            funded_by=budget.funded_by,
        ).vulnerable
    return VulnerableRange(service.name, capacity, clients.offered, above if above and above < capacity else None)


def _expires(service: Service, seconds: float, policy: Policy) -> bool:
    """Whether attempts time out in a full queue."""
    longest = math.inf if service.queue_limit is None else service.queue_limit * seconds / service.workers
    return policy.attempt_timeout is not None and policy.attempt_timeout <= longest + seconds
