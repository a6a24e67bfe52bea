"""What the exact and the coroutine engine share: a world's agenda, services and policies.

A policy enters a world as a copy with the same settings, on the world's clock and random numbers. Budget, gates and
shelter of the copy are new. Those of the original are neither read nor changed.
"""

from __future__ import annotations

from collections.abc import Iterable

from abate.admit.breaker import CircuitBreaker
from abate.admit.bucket import TokenBucket
from abate.admit.budget import Budget
from abate.admit.concurrency import ConcurrencyLimit
from abate.admit.gate import All, Gate
from abate.admit.shelter import Shelter
from abate.admit.throttle import AdaptiveThrottle
from abate.call.policy import Policy
from abate.clock import Clock
from abate.decide.outcome import FATAL, LAYER, Outcome
from abate.schedule.backoff import RandomSource
from abate.sim.agenda import Agenda, RandomStreams
from abate.sim.calls import CallDriver
from abate.sim.measures import Load, RunRecorder
from abate.sim.model import Clients, Row, Service
from abate.sim.server import Answer, RowServer, Server, answer, simulated
from abate.sim.world import World


def single_attempt_policy() -> Policy:
    """Return the default policy: one attempt.

    >>> single_attempt_policy().max_attempts
    1
    """
    return Policy(name="once", on=simulated, max_attempts=1, budget=Budget.empty())


def bind_policy(policy: Policy, clock: Clock, rng: RandomSource, failures: Iterable[type[Answer]]) -> Policy:
    """Return a copy of a policy for the world of `clock`, in which calls may fail with `failures`."""
    shelter = policy.shelter
    found = policy.replace(
        clock=clock,
        rng=rng,
        before_retry=None,  # no code of the program runs in a simulated world, and nothing is streamed
        resume=None,
        idle=None,
        content=None,
        budget=_budget(policy.budget, clock),
        gate=None if policy.gate is None else _gate(policy.gate, clock, rng),
        shelter=None
        if shelter is None
        else Shelter(shelter.capacity, shelter.patience, name=shelter.name, clock=clock, rng=rng),
    )
    kinds = tuple(failures)
    named = retries_any(policy, kinds)
    for kind in kinds:
        # a give-up of an inner layer is marked by a header, which clients read before the rules
        own = named and kind.ruling is not LAYER
        found.rules.rulings_by_type[kind] = policy.rules.judge(Outcome(kind())) or FATAL if own else kind.ruling
    return found


def retries_any(policy: Policy, failures: Iterable[type[Answer]]) -> bool:
    """Return whether the policy's rules retry any of these errors. If not, the HTTP rules are used.

    >>> from abate import Policy, http
    >>> retries_any(Policy(on=http.transient), [answer(503)]), retries_any(Policy(on=KeyError), [answer(503)])
    (True, False)
    """
    rulings = (policy.rules.judge(Outcome(kind())) for kind in failures)
    return any(ruling is not None and ruling.retry for ruling in rulings)


def unmatched_policy_note(policy: Policy, failures: Iterable[type[Answer]]) -> str | None:
    """Return the note for a policy with retries whose rules match none of the simulated errors.

    >>> from abate import Policy
    >>> unmatched_policy_note(Policy(on=KeyError, name="orders"), [answer(503)])
    "policy 'orders' matches none of the simulated errors: the HTTP rules are used"
    """
    if policy.attempt_limit == 1 or retries_any(policy, failures):
        return None
    return f"policy {policy.name or 'of the clients'!r} matches none of the simulated errors: the HTTP rules are used"


def possible_failures(world: World, service: Service | Row) -> set[type[Answer]]:
    """Return the errors that this service may answer in this world."""
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
        found |= set(rate_limit_answers(service))
    return found


def rate_limit_answers(service: Service) -> list[type[Answer]]:
    """Return the errors of a rate limit: one for each Retry-After in whole seconds."""
    limit = service.limit
    assert limit is not None
    if limit.retry_after is not None:
        return [answer(429, limit.retry_after)]
    if limit.kind == "bucket":
        return [answer(429, 1.0)]
    return [answer(429, float(seconds)) for seconds in range(1, int(limit.per) + 2)]


def _with_timeout(policy: Policy, timeout: float) -> Policy:
    """Return a bound policy with another timeout. It shares budget, gates and shelter."""
    found = policy.replace(timeout=timeout)
    found.rules.rulings_by_type.update(policy.rulings_by_type)
    return found


def _budget(budget: Budget, clock: Clock) -> Budget:
    ratio, reserve, window, funded_by = budget.settings()
    return Budget(ratio, reserve, window, funded_by, clock=clock, name=budget.name)  # type: ignore[arg-type]


def _gate(gate: Gate, clock: Clock, rng: RandomSource) -> Gate:
    """Return a new gate with the same settings; a custom gate is used as it is, and must use the current clock."""
    match gate:
        case All():
            return All(tuple(_gate(part, clock, rng) for part in gate.gates))
        case TokenBucket():
            return TokenBucket(gate.rate, gate.burst, clock=clock, name=gate.name)
        case ConcurrencyLimit():
            return ConcurrencyLimit(gate.limit, name=gate.name)
        case AdaptiveThrottle():
            return AdaptiveThrottle(gate.k, gate.window, clock=clock, rng=rng, name=gate.name)
        case CircuitBreaker():
            settings = gate.failure_ratio, gate.min_calls, gate.window, gate.pause
            return CircuitBreaker(*settings, clock=clock, rng=rng, name=gate.name)
        case Budget():
            return _budget(gate, clock)
    return gate


class Simulation:
    """A world that is ready to run: its services, and the policies of its clients.

    There is one policy per process, or one per process and timeout; those of a process share budget and shelter.
    """

    __slots__ = ("agenda", "entry", "notes", "policies", "recorder", "servers", "streams", "world")

    def __init__(self, world: World, seed: int, raster: bool) -> None:
        self.world = world
        self.agenda = Agenda()
        self.streams = RandomStreams(seed)
        self.recorder = RunRecorder(world, raster)
        self.notes: list[str] = []
        self.servers: dict[str, Server | RowServer] = {
            service.name: RowServer(service, self.agenda, self.streams, world.warmup)
            if isinstance(service, Row)
            else Server(service, world, self.agenda, self.streams)
            for service in world.services
        }
        for service in world.services:
            server = self.servers[service.name]
            if isinstance(server, Server):
                server.callers = [
                    CallDriver(
                        self._bind_policy(service.policy, name, f"policy/{service.name}/{name}"),
                        self.servers[name],
                        self.agenda,
                    )
                    for name in service.calls
                ]
        self.entry = self.servers[world.entry]
        bound = [
            self._bind_policy(world.policy, world.entry, f"policy/{process}")
            for process in range(world.clients.processes)
        ]
        timeouts = world.clients.timeouts if isinstance(world.clients, Clients) else ()
        self.policies = [_with_timeout(policy, each) for policy in bound for each in timeouts] or bound

    def _bind_policy(self, policy: Policy | None, called: str, stream: str) -> Policy:
        failures = sorted(possible_failures(self.world, self.world.service(called)), key=lambda kind: kind.__name__)
        given = policy or single_attempt_policy()
        note = unmatched_policy_note(given, failures)
        if note is not None and note not in self.notes:
            self.notes.append(note)
        return bind_policy(given, self.agenda, self.streams.stream(stream), failures)

    def loads(self) -> dict[str, Load]:
        """Return what each service has counted so far."""
        return {name: server.load() for name, server in self.servers.items()}
