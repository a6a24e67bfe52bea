"""Counters of call outcomes: they may lag for a moment, and never decrease."""

import pytest

from abate import events
from abate.observe.call_outcomes import CallOutcomes
from abate.observe.metric_series import LabelValues

ERROR = OSError("down")


@pytest.mark.parametrize(
    ("record", "before", "after", "outcome"),
    [
        (lambda o: o.recovered(events.Recovered("orders", 2, 0.1)), (5, 0), (6, 0), "success"),
        (lambda o: o.gave_up(events.GaveUp("orders", "fatal", 1, 0.0, None)), (5, 0), (6, 0), "success"),
        (lambda o: o.gave_up(events.GaveUp("orders", "attempts", 3, 0.1, ERROR)), (0, 5), (0, 6), "cancelled"),
        (lambda o: o.refused(events.BudgetRefused("orders", "bucket", 0)), (0, 5), (0, 6), "cancelled"),
    ],
    ids=["recovered", "returned", "raised", "refused"],
)
def test_an_event_before_its_count_never_decreases_a_counter(record, before, after, outcome):
    """Between a call's event and the policy's count of it, a scrape repeats the previous value."""
    outcomes = CallOutcomes(LabelValues())
    shown = [outcomes.read({"orders": before})["orders", outcome]]
    record(outcomes)
    shown.append(outcomes.read({"orders": before})["orders", outcome])
    shown.append(outcomes.read({"orders": after})["orders", outcome])
    assert shown == [5, 5, 5]
