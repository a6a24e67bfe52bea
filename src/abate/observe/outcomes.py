"""How calls have ended, by policy: each call once, whether it made an event or not.

A call that goes well at once makes no event; those are counted by the policy itself while somebody watches. What it has
counted as good includes calls that recovered, and calls that gave up and returned the last bad result: both made an
event, and are taken off. What it has counted as bad without an event was broken off in its first attempt.

The policies' counts are read before those of events, so that no call is taken for a success that is something else: a
number may be behind for a moment, and never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping

from abate import events, registry
from abate.call.tally import NOTHING, roll
from abate.observe.carried import Pair
from abate.observe.series import Counts, Names, one_of

REASONS = ("fatal", "unsafe", "attempts", "deadline", "hint", "budget", "shelter", "layer", "cancelled")
OUTCOMES = ("success", "recovered", *REASONS)


class Outcomes:
    """Calls by policy and outcome; `names` are the label's values for policies. Who writes or reads holds a lock.

    >>> import abate
    >>> outcomes = Outcomes(Names())
    >>> outcomes.gave_up(abate.events.GaveUp("orders", "attempts", 3, 1.5, OSError()))
    >>> outcomes.read({"orders": (5, 1)})
    {('orders', 'attempts'): 1, ('orders', 'success'): 5, ('orders', 'cancelled'): 0}
    """

    __slots__ = ("_events", "_names", "_raised", "_returned", "_returning", "_shown")

    def __init__(self, names: Names) -> None:
        self._names = names
        self._events = Counts()
        self._raised = Counts()
        self._returned = Counts()
        self._returning: dict[str, bool] = {}
        self._shown: dict[tuple[str, str], int] = {}

    def recovered(self, event: events.Recovered) -> None:
        """A call succeeded after a retry."""
        self._events.add(self._names.of(event.policy), "recovered")

    def refused(self, event: events.BudgetRefused) -> None:
        """A first attempt was not admitted."""
        policy = self._names.of(event.policy)
        self._events.add(policy, "budget")
        self._raised.add(policy)

    def gave_up(self, event: events.GaveUp) -> None:
        """A call ended without success."""
        policy, reason = self._names.of(event.policy), one_of(REASONS, event.reason)
        self._events.add(policy, reason)
        if event.error is None and (reason == "fatal" or self._returns(event.policy, policy)):
            self._returned.add(policy)
        elif reason != "cancelled":
            self._raised.add(policy)

    def _returns(self, name: str, policy: str) -> bool:
        """Does a policy of this name return the result that it gave up on, rather than raise `RetryExhausted`?"""
        if policy not in self._returning:
            self._returning[policy] = any(
                known.name == name and known.raises == "original" for known in registry.policies.alive()
            )
        return self._returning[policy]

    def read(self, tallies: Mapping[str, Pair]) -> Mapping[tuple[str, str], int]:
        """How many calls of each policy have ended in which way; `tallies` is what policies had counted before."""
        ended = {(policy, outcome): count for (policy, outcome), count in self._events}
        for policy, (good, bad) in self._labelled(tallies).items():
            ended[policy, "success"] = good - self._events.of(policy, "recovered") - self._returned.of(policy)
            ended[policy, "cancelled"] = max(bad - self._raised.of(policy), self._events.of(policy, "cancelled"))
        for labels, count in ended.items():
            self._shown[labels] = max(self._shown.get(labels, 0), count)
        return self._shown

    def _labelled(self, tallies: Mapping[str, Pair]) -> Mapping[str, Pair]:
        labelled: dict[str, Pair] = {}
        for name, (good, bad) in tallies.items():
            label = self._names.of(name)
            others_good, others_bad = labelled.get(label, (0, 0))
            labelled[label] = good + others_good, bad + others_bad
        return labelled


class Since:
    """What policies have counted since this was made."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before = roll.totals()

    def read(self) -> dict[str, Pair]:
        """Calls that were good and calls that were not, by the name of the policy, where there were any."""
        since = {name: counted.minus(self._before.get(name, NOTHING)) for name, counted in roll.totals().items()}
        return {name: (counted.good, counted.bad) for name, counted in since.items() if counted.good or counted.bad}
