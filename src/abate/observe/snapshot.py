"""The current state of everything, read only on demand, so that calls pay nothing for it.

Policies, shelters and stores of one name are shown as one: counts and balances are added up. Of controllers and
consumers of one name, the one that was made first is shown: usually they share a queue.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from abate import registry
from abate.admit.shelter import Shelter
from abate.call.counters import NOTHING, CallCounts, call_totals
from abate.frozen import Frozen
from abate.observe.number_checks import check_depth, is_number, show_number
from abate.observe.queue_depths import DepthReading, read_depths
from abate.redact import one_line

if TYPE_CHECKING:
    from abate.call.policy import Policy

MAX_NAMES = 500
"""Policies, queues, shelters and stores that are shown, of each; further ones are left out."""
MAX_NAME = 120
"""Characters of a name."""


class PolicyView(Frozen):
    """All policies of one name: their calls so far (only while calls are counted), budget and shelter.

    `balance` is the number of retries that could be made now; `share` is its part of what the window allows. If the
    budget returns a wrong number, both are NaN, and `wrong` shows it.
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


class ShelterView(Frozen):
    """A shelter: its state, how many calls wait, and how many may be in flight (NaN if that number is wrong)."""

    name: str
    state: str
    waiters: int
    limit: float


class QueueView(Frozen):
    """A controller or consumer and its queue; a number that its source does not know, or gets wrong, is None.

    `failing` describes what is wrong with the source, including wrong numbers.
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


class StoreView(Frozen):
    """A store; `degraded` while it does not answer."""

    name: str
    degraded: bool


class Snapshot(Frozen):
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
    """Return the current state of everything."""
    policies, counted = [policy for policy in registry.policies.alive() if policy.name], call_totals.totals()
    shelters = {id(shelter): shelter for policy in policies for shelter in policy.shelters}
    services = [(name, group[0]) for name, group in by_name(registry.services.alive())]
    answers = read_depths(service for _, service in services)
    return Snapshot(
        policies=tuple(policy_view(name, group, counted) for name, group in by_name(policies)),
        shelters=tuple(shelter_view(name, group) for name, group in by_name(shelters.values())),
        queues=tuple(_queue(name, service, answer) for (name, service), answer in zip(services, answers, strict=True)),
        stores=tuple(
            StoreView(name, any(store.degraded for store in group)) for name, group in by_name(registry.stores.alive())
        ),
    )


def display_name(name: object) -> str:
    """Return a name as it is shown and used as a label.

    >>> display_name("https://me:secret@api.example/")
    'https://***@api.example/'
    """
    return one_line(str(name), MAX_NAME + 1)[:MAX_NAME]  # without the ellipsis of a cut text


def by_name(things: Iterable[Any]) -> list[tuple[str, list[Any]]]:
    """Group objects by name, for a bounded number of names."""
    groups: dict[str, list[Any]] = {}
    for thing in things:
        name = display_name(thing.name)
        if name in groups or len(groups) < MAX_NAMES:
            groups.setdefault(name, []).append(thing)
    return list(groups.items())


def policy_view(name: str, policies: Sequence[Policy], counted: Mapping[str, CallCounts]) -> PolicyView:
    """Return the view of all policies of one name; `counted` are the call counters by name."""
    # copies of a policy share its budget, which counts once
    budgets = list({id(policy.budget): policy.budget for policy in policies}.values())
    shelters = [display_name(policy.shelter.name) for policy in policies if policy.shelter is not None]
    calls = NOTHING
    for whole in {policy.name for policy in policies}:
        calls = calls.plus(counted.get(whole, NOTHING))
    balances, shares = [budget.balance() for budget in budgets], [budget.share() for budget in budgets]
    wrong = [
        *(f"balance is {show_number(each)}" for each in balances if not is_number(each, infinite=True)),
        *(f"share is {show_number(each)}" for each in shares if not is_number(each, least=0.0)),
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
    """Return the view of all shelters of one name, in the state of the worst of them."""
    worst = max(shelters, key=lambda shelter: ("calm", "recovering", "storm", "probing").index(shelter.state))
    limit = worst.limit if is_number(worst.limit, least=0.0, infinite=True) else math.nan
    return ShelterView(name, worst.state, sum(shelter.waiters for shelter in shelters), limit)


def _queue(name: str, service: Any, answer: DepthReading) -> QueueView:
    health, depth, seen = service.health(), answer.depth, check_depth(answer.depth)
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
