"""What a shelter keeps in random storms, beside naive retries and the oracle; `benchmarks/regret.py` runs more."""

import pytest

from tests.sim.random_worlds import Storm

COUNT = 120
AS_GOOD = 0.78
"""Of the storms: in these, no more calls are lost than with naive retries. The aim is 0.95."""
MUCH_WORSE = 0.06
"""The share of calls that may never be lost beyond those of naive retries. The aim is 0.05."""
BETTER = 0.5
"""The shelter's regret, as a share of that of naive retries."""
NOTICED_LATE = 0.08
"""Of the outages: in these, more is sent than allowed, because some answers come after the first failures. The aim is
none."""


@pytest.fixture(scope="module")
def storms():
    return [Storm(number) for number in range(COUNT)]


def test_the_oracle_loses_the_fewest(storms):
    """Neither naive retries nor a shelter ever lose less."""
    assert [
        str(storm) for storm in storms if storm.lost("oracle") > min(storm.lost("naive"), storm.lost("shelter"))
    ] == []


def test_all_calls_are_over_at_the_end(storms):
    """Nothing is left to count as neither lost nor answered, and the same calls arrive for all."""
    for storm in storms:
        calls = {run.calls for run in storm.runs.values()}
        assert calls == {storm.runs["naive"].calls}
        assert all(run.unfinished == 0 for run in storm.runs.values())


def test_storms_are_of_all_kinds():
    """One process and dozens, and every kind of outage."""
    storms = [Storm(number) for number in range(COUNT)]
    assert {kind for storm in storms for kind, _, _ in storm.outages} == {
        "error",
        "hang",
        "reset",
        "slow",
        "capacity",
        "some errors",
    }
    assert min(storm.processes for storm in storms) == 1
    assert max(storm.processes for storm in storms) > 40


def test_a_shelter_sends_little_into_an_outage(storms):
    """A twentieth of its calls; and of each process, what it takes to notice, and a probe per pause."""
    loads = [(sent, allowed) for storm in storms for _, sent, allowed in storm.loads()]
    assert sum(sent > allowed for sent, allowed in loads) <= NOTICED_LATE * len(loads)
    assert all(sent <= 2.0 * allowed for sent, allowed in loads)


def test_a_shelter_loses_no_more_than_naive_retries(storms):
    """In most storms, and much more in none."""
    above = [storm.lost("shelter") - storm.lost("naive") for storm in storms]
    assert sum(more <= 0.0 for more in above) >= AS_GOOD * COUNT
    assert max(above) <= MUCH_WORSE


def test_a_shelter_comes_closer_to_the_oracle_than_naive_retries(storms):
    """By what is lost in all storms together."""
    naive, shelter, oracle = (sum(storm.lost(name) for storm in storms) for name in ("naive", "shelter", "oracle"))
    assert shelter - oracle <= BETTER * (naive - oracle)
