"""Count how calls end, by policy: each call once, with or without an event.

A call that succeeds at once makes no event; the policy counts it while a sink that counts is installed. The policy's
count of good calls includes calls that recovered, and calls that gave up and returned the last bad result. Both made an
event, and are subtracted. If the policy counted a failure but no event came, the call was cancelled in its first
attempt.

The policies' counts are read before those of the events, so that no other outcome is shown as a success: a number may
lag for a moment, and never decreases.
"""

from __future__ import annotations

from collections.abc import Mapping

from abate import events, registry
from abate.call.counters import NOTHING, call_totals
from abate.events import GIVE_UP_REASONS
from abate.observe.lasting_totals import Pair
from abate.observe.metric_series import Counters, Labels, LabelValues, known_or_other

OUTCOMES = ("success", "recovered", *GIVE_UP_REASONS)


class CallOutcomes:
    """Calls by policy and outcome; `names` has the label values for policies. Writers and readers hold a lock.

    >>> import abate
    >>> outcomes = CallOutcomes(LabelValues())
    >>> outcomes.gave_up(abate.events.GaveUp("orders", "attempts", 3, 1.5, OSError()))
    >>> outcomes.read({"orders": (5, 1)})
    {('orders', 'attempts'): 1, ('orders', 'success'): 5, ('orders', 'cancelled'): 0}
    """

    __slots__ = ("_events", "_names", "_raised", "_returned", "_returning", "_shown")

    def __init__(self, names: LabelValues) -> None:
        self._names = names
        self._events = Counters()
        self._raised = Counters()
        self._returned = Counters()
        self._returning: dict[str, bool] = {}
        self._shown: dict[Labels, int] = {}

    def recovered(self, event: events.Recovered) -> None:
        """Count a call that succeeded after a retry."""
        self._events.add(self._names.of(event.name), "recovered")

    def refused(self, event: events.BudgetRefused) -> None:
        """Count a call whose first attempt was not admitted."""
        policy = self._names.of(event.name)
        self._events.add(policy, "budget")
        self._raised.add(policy)

    def gave_up(self, event: events.GaveUp) -> None:
        """Count a call that ended without success."""
        policy, reason = self._names.of(event.name), known_or_other(GIVE_UP_REASONS, event.reason)
        self._events.add(policy, reason)
        if event.error is None and (reason == "fatal" or self._returns(event.name, policy)):
            self._returned.add(policy)
        elif reason != "cancelled":
            self._raised.add(policy)

    def _returns(self, name: str, policy: str) -> bool:
        """Return whether a policy of this name returns the result that it gave up on, and does not raise."""
        if policy not in self._returning:
            self._returning[policy] = any(
                known.name == name and known.raises == "original" for known in registry.policies.alive()
            )
        return self._returning[policy]

    def read(self, counts: Mapping[str, Pair]) -> Mapping[Labels, int]:
        """Return the calls of each policy by outcome; `counts` are the policies' own counts, read before."""
        ended = dict(self._events)
        for policy, (good, bad) in self._labelled(counts).items():
            ended[policy, "success"] = good - self._events.of(policy, "recovered") - self._returned.of(policy)
            ended[policy, "cancelled"] = max(bad - self._raised.of(policy), self._events.of(policy, "cancelled"))
        for labels, count in ended.items():
            self._shown[labels] = max(self._shown.get(labels, 0), count)
        return self._shown

    def _labelled(self, counts: Mapping[str, Pair]) -> Mapping[str, Pair]:
        labelled: dict[str, Pair] = {}
        for name, (good, bad) in counts.items():
            label = self._names.of(name)
            others_good, others_bad = labelled.get(label, (0, 0))
            labelled[label] = good + others_good, bad + others_bad
        return labelled


class CallCountsSince:
    """The calls that policies have counted since this object was made."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before = call_totals.totals()

    def read(self) -> dict[str, Pair]:
        """Return the good and the bad calls by policy name, without names that have none."""
        since = {name: counted.minus(self._before.get(name, NOTHING)) for name, counted in call_totals.totals().items()}
        return {name: (counted.good, counted.bad) for name, counted in since.items() if counted.good or counted.bad}
