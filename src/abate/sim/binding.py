"""Puts a policy that was made for production into a simulated world: the same settings, on that world's clock.

Budget, gates and shelter are made anew, as on their first day, and draw their chance from the world. What the policy
itself was given is neither read nor changed.
"""

from __future__ import annotations

from collections.abc import Iterable

from abate.admit.bucket import TokenBucket
from abate.admit.budget import Budget
from abate.admit.gate import All, Gate
from abate.admit.permits import Permits
from abate.admit.shelter import Shelter
from abate.admit.throttle import Throttle
from abate.call.policy import Policy
from abate.clock import Clock
from abate.decide.outcome import FATAL, LAYER, Outcome
from abate.schedule.backoff import Uniform
from abate.sim.answers import Answer, answer, simulated
from abate.sim.services import Row, Service
from abate.sim.world import World


def once() -> Policy:
    """The policy of those who have none: one attempt.

    >>> once().max_attempts
    1
    """
    return Policy(name="once", on=simulated, attempts=1, budget=Budget.empty())


def bound(policy: Policy, clock: Clock, rng: Uniform, failures: Iterable[type[Answer]]) -> Policy:
    """A policy like this one, in the world of `clock`, in which calls may fail with `failures`."""
    shelter = policy.shelter
    found = policy.replace(
        clock=clock,
        rng=rng,
        budget=_budget(policy.budget, clock),
        gate=None if policy.gate is None else _gate(policy.gate, clock, rng),
        shelter=None
        if shelter is None
        else Shelter(shelter.capacity, shelter.patience, name=shelter.name, clock=clock, rng=rng),
    )
    kinds = tuple(failures)
    named = names_any(policy, kinds)
    for kind in kinds:
        # what somebody further in has given up on is told by a header, which clients read before they ask the rules
        own = named and kind.ruling is not LAYER
        found.rules.known[kind] = policy.rules.judge(Outcome(kind())) or FATAL if own else kind.ruling
    return found


def names_any(policy: Policy, failures: Iterable[type[Answer]]) -> bool:
    """Does the policy itself say which of these it retries? Where it does not, it is taken to retry what HTTP would.

    >>> from abate import Policy, http
    >>> names_any(Policy(on=http.transient), [answer(503)]), names_any(Policy(on=KeyError), [answer(503)])
    (True, False)
    """
    rulings = (policy.rules.judge(Outcome(kind())) for kind in failures)
    return any(ruling is not None and ruling.retry for ruling in rulings)


def unnamed(policy: Policy, failures: Iterable[type[Answer]]) -> str | None:
    """What a reader should know of a policy that would retry, but names none of the failures that are simulated.

    >>> from abate import Policy
    >>> unnamed(Policy(on=KeyError, name="orders"), [answer(503)])
    "policy 'orders' names none of the failures that are simulated: all count"
    """
    if policy.max_attempts == 1 or names_any(policy, failures):
        return None
    return f"policy {policy.name or 'of the clients'!r} names none of the failures that are simulated: all count"


def failures_of(world: World, service: Service | Row) -> set[type[Answer]]:
    """Everything that this service may answer in this world."""
    if isinstance(service, Row):
        return {answer(409)}
    found = {answer(503)}
    if service.error_rate:
        found.add(answer(service.status))
    for trigger in world.triggers_of(service.name):
        if trigger.kind == "error":
            found.add(answer(trigger.status, trigger.retry_after))
    if service.calls:
        found |= {answer(502), answer(502, exhausted=True)}
    if service.limit is not None:
        found |= set(limited(service))
    return found


def limited(service: Service) -> list[type[Answer]]:
    """What a rate limit may answer: a hint in whole seconds, as the header has it."""
    limit = service.limit
    assert limit is not None
    if limit.retry_after is not None:
        return [answer(429, limit.retry_after)]
    if limit.kind == "bucket":
        return [answer(429, 1.0)]
    return [answer(429, float(seconds)) for seconds in range(1, int(limit.per) + 2)]


def _budget(budget: Budget, clock: Clock) -> Budget:
    ratio, reserve, window, funded_by = budget.settings()
    return Budget(ratio, reserve, window, funded_by, clock=clock, name=budget.name)  # type: ignore[arg-type]


def _gate(gate: Gate, clock: Clock, rng: Uniform) -> Gate:
    """The gate anew; one of a kind that is not ours is taken as it is, and has to follow the context's clock."""
    match gate:
        case All():
            return All(tuple(_gate(part, clock, rng) for part in gate.gates))
        case TokenBucket():
            return TokenBucket(gate.rate, gate.burst, clock=clock, name=gate.name)
        case Permits():
            return Permits(gate.limit, name=gate.name)
        case Throttle():
            return Throttle(gate.k, gate.window, clock=clock, rng=rng, name=gate.name)
        case Budget():
            return _budget(gate, clock)
    return gate
