"""How everything is at this moment: read when somebody looks, so that calls pay nothing for it.

What bears the same name is shown as one: counts and balances are added up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from abate import registry
from abate.admit.shelter import Shelter
from abate.call.tally import NOTHING, Counted, roll
from abate.observe.asking import Answer, depths
from abate.observe.stored_numbers import is_number, reading, shown
from abate.redact import line
from abate.values import Value

if TYPE_CHECKING:
    from abate.call.policy import Policy

MOST = 500
"""Policies, queues, shelters and stores that are shown, each; what comes after that is left out."""
LONGEST_NAME = 120
"""Characters of a name."""


class PolicyView(Value):
    """One policy, or all of one name: calls so far (only while somebody counts), its budget, its shelter.

    `balance` is how many retries could be made now; `share` how much that is of what the window allows. One that the
    budget tells wrongly is NaN, and `wrong` says what it told.
    """

    name: str
    begun: int
    good: int
    bad: int
    balance: float
    share: float
    shelter: str | None
    wrong: str | None = None

    @property
    def in_flight(self) -> int:
        """Calls that have begun and not ended."""
        return max(0, self.begun - self.good - self.bad)


class ShelterView(Value):
    """A shelter: calm, storm, probing or recovering; how many calls wait, and how many may be in flight.

    A limit that is told wrongly is NaN.
    """

    name: str
    state: str
    waiters: int
    limit: float


class QueueView(Value):
    """A controller or consumer and its queue; what its source can't tell, or tells wrongly, is None.

    `failing` is what goes wrong with the source; that it tells a wrong number is such a thing.
    """

    name: str
    live: bool
    workers: int
    in_hand: int
    ready: int | None
    delayed: int | None
    dead: int | None
    age: float | None
    adds: int | None
    coalesced: int | None
    failing: str | None


class StoreView(Value):
    """A store: does it answer?"""

    name: str
    degraded: bool


class Snapshot(Value):
    """Everything at once.

    >>> import abate
    >>> policy = abate.Policy(name="orders", on=OSError)
    >>> "orders" in [view.name for view in snapshot().policies]
    True
    """

    policies: tuple[PolicyView, ...]
    shelters: tuple[ShelterView, ...]
    queues: tuple[QueueView, ...]
    stores: tuple[StoreView, ...]


def snapshot() -> Snapshot:
    """How everything is now."""
    policies, counted = [policy for policy in registry.policies.alive() if policy.name], roll.totals()
    shelters = {id(shelter): shelter for policy in policies for shelter in policy.shelters}
    services = [(name, group[0]) for name, group in grouped(registry.services.alive())]
    answers = depths(service for _, service in services)
    return Snapshot(
        policies=tuple(policy_view(name, group, counted) for name, group in grouped(policies)),
        shelters=tuple(shelter_view(name, group) for name, group in grouped(shelters.values())),
        queues=tuple(_queue(*named, answer) for named, answer in zip(services, answers, strict=True)),
        stores=tuple(
            StoreView(name, any(store.degraded for store in group)) for name, group in grouped(registry.stores.alive())
        ),
    )


def named(name: object) -> str:
    """A name as it is shown and as a label of metrics has it.

    >>> named("https://me:secret@api.example/")
    'https://***@api.example/'
    """
    return line(str(name), LONGEST_NAME + 1)[:LONGEST_NAME]  # without a mark where it was cut


def grouped(things: Iterable[Any]) -> list[tuple[str, list[Any]]]:
    """Things by name, a bounded number of names."""
    groups: dict[str, list[Any]] = {}
    for thing in things:
        name = named(thing.name)
        if name in groups or len(groups) < MOST:
            groups.setdefault(name, []).append(thing)
    return list(groups.items())


def policy_view(name: str, policies: Sequence[Policy], counted: Mapping[str, Counted]) -> PolicyView:
    """All policies of one name; `counted` is what is on the roll."""
    # copies of one policy share its budget, which is counted once
    budgets = list({id(policy.budget): policy.budget for policy in policies}.values())
    shelters = [named(policy.shelter.name) for policy in policies if policy.shelter is not None]
    calls = NOTHING
    for whole in {policy.name for policy in policies}:
        calls = calls.plus(counted.get(whole, NOTHING))
    balances, shares = [budget.balance() for budget in budgets], [budget.share() for budget in budgets]
    wrong = [
        *(f"balance is {shown(each)}" for each in balances if not is_number(each, infinite=True)),
        *(f"share is {shown(each)}" for each in shares if not is_number(each, least=0.0)),
    ]
    return PolicyView(
        name=name,
        begun=calls.begun,
        good=calls.good,
        bad=calls.bad,
        balance=math.nan if wrong else math.fsum(balances),
        share=math.nan if wrong else min(shares),
        shelter=shelters[0] if shelters else None,
        wrong=", ".join(wrong[:4]) or None,
    )


def shelter_view(name: str, shelters: Sequence[Shelter]) -> ShelterView:
    """All shelters of one name: as bad as the worst of them."""
    worst = max(shelters, key=lambda shelter: ("calm", "recovering", "storm", "probing").index(shelter.state))
    limit = worst.limit if is_number(worst.limit, least=0.0, infinite=True) else math.nan
    return ShelterView(name, worst.state, sum(shelter.waiters for shelter in shelters), limit)


def _queue(name: str, service: Any, answer: Answer) -> QueueView:
    health, depth, seen = service.health(), answer.depth, reading(answer.depth)
    unknown = depth is None or (depth.age is not None and seen.age is None)
    return QueueView(
        name=name,
        live=health.live,
        workers=service.workers,
        in_hand=health.in_hand,
        ready=seen.ready,
        delayed=seen.delayed,
        dead=seen.dead,
        age=None if unknown else seen.age or 0.0,
        adds=getattr(service, "adds", None),
        coalesced=getattr(service, "coalesced", None),
        failing=health.failing or answer.failing or seen.wrong,
    )
