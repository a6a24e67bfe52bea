"""The vulnerable range of a service: the loads at which it stays down once it has failed, from a closed form.

Once the queue is longer than the callers' timeout, every attempt fails, and the service recovers only if even then
fewer requests arrive than it can serve (`least_vulnerable_load`). The range is stated where that holds: open clients
that call one service, which calls no other, has no rate limit, serves in order and does not drop expired requests.
"""

from __future__ import annotations

import math
from typing import Any

from abate.admit.budget import FundedBy
from abate.call.policy import Policy
from abate.frozen import Frozen
from abate.sim.model import Clients, Duration, Service
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
        assert policy.max_attempts is not None
        budget = policy.budget
        above = least_vulnerable_load(
            capacity,
            min(policy.max_attempts, policy.max_attempts_by_kind.get("overload", policy.max_attempts)),
            budget.ratio,
            budget.reserve * clients.processes,
            budget.funded_by,
        )
    return VulnerableRange(service.name, capacity, clients.offered, above if above and above < capacity else None)


def _expires(service: Service, seconds: float, policy: Policy) -> bool:
    """Whether attempts time out in a full queue."""
    longest = math.inf if service.queue_limit is None else service.queue_limit * seconds / service.workers
    return policy.attempt_timeout is not None and policy.attempt_timeout <= longest + seconds


def least_vulnerable_load(
    capacity: float, max_attempts: int, ratio: float, reserve: float, funded_by: FundedBy
) -> float:
    """Return the calls per second above which a service stays down once it has failed; its capacity if there are none.

    While every attempt fails, the attempts per call are bounded by `max_attempts` and by the budget: its reserve, and
    its ratio of the calls if it is funded by requests.

    >>> least_vulnerable_load(300.0, max_attempts=2, ratio=0.0, reserve=math.inf, funded_by="success")
    150.0
    >>> least_vulnerable_load(300.0, max_attempts=4, ratio=0.2, reserve=0.0, funded_by="request")
    250.0
    """
    by_attempts = capacity / max_attempts
    share = ratio if funded_by == "request" else 0.0
    by_budget = (capacity - reserve) / (1.0 + share)
    return max(by_attempts, by_budget)  # the total must reach the capacity by both bounds
