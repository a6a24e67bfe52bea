"""Hedges are charged to the budget and the gate of their policy, which get back what is not used."""

import pytest

import abate
from abate import Policy
from abate.call.hedge import Hedge
from abate.call.hedge_race import SECOND, Race
from abate.schedule.timeouts import Timeouts
from abate.testing import Script, VirtualClock, after, off


def make(policy):
    timeouts = Timeouts(0.01)
    for _ in range(100):
        timeouts.observe(1.0)
    return Hedge(policy, timeouts)


def test_without_budget_there_is_no_hedge(run, counting_budget):
    """The first attempt is waited for."""
    budget = counting_budget(ratio=0.0, reserve=0.0)
    script = Script(after(60.0, "slow"))

    async def main():
        assert await make(Policy(on=OSError, budget=budget)).acall(script.acall) == "slow"

    run(main)
    assert (budget.requested, budget.granted, budget.refunded) == (1, 0, 0)


def test_a_hedge_that_the_gate_refuses_is_refunded(run, counting_budget, scripted_gate):
    """The gate admits every attempt, the second one too."""
    budget, gate = counting_budget(), scripted_gate(True, False)
    script = Script(after(60.0, "slow"))

    async def main():
        assert await make(Policy(on=OSError, budget=budget, gate=gate)).acall(script.acall) == "slow"

    run(main)
    assert (budget.granted, budget.refunded) == (1, 1)
    assert (gate.entered, gate.left) == ([False], [True])


@pytest.mark.parametrize(
    ("second", "accepted"),
    [
        ("fine", True),
        (OSError(), False),
        (LookupError(), True),
        (after(600.0, "never"), None),
    ],
)
def test_a_hedge_leaves_the_gate_with_what_became_of_it(run, scripted_gate, second, accepted):
    """The server took it if it answered or its error is fatal; an attempt that was cut off tells nothing."""
    gate = scripted_gate()
    script = Script(after(60.0, "slow"), second)

    async def main():
        await make(Policy(on=OSError, gate=gate)).acall(script.acall)

    run(main)
    assert gate.entered == [False, True]
    assert gate.left == [accepted, True]


def test_no_hedge_after_the_deadline_or_when_switched_off(run, counting_budget):
    """Nothing is asked for."""
    budget = counting_budget()
    hedge = make(Policy(on=OSError, budget=budget, max_attempts=1))

    async def main():
        with abate.deadline(0.5):
            assert await hedge.acall(Script(after(60.0, "slow")).acall) == "slow"
        with off():
            assert await hedge.acall(Script(after(60.0, "slow")).acall) == "slow"

    run(main)
    assert budget.requested == 0


def test_an_error_of_the_gate_reaches_the_caller_as_it_is(run, counting_budget):
    """Not in a group; the first attempt is cancelled, and the budget gets its withdrawal back."""

    class Broken(abate.Gate):
        """Has a bug that shows when a second attempt asks."""

        name = "broken"

        def enter(self, retry):
            if retry:
                raise ValueError("a bug")

    budget, script = counting_budget(), Script(after(60.0, "slow"))

    async def main():
        with pytest.raises(ValueError, match="a bug"):
            await make(Policy(on=OSError, budget=budget, gate=Broken())).acall(script.acall)

    clock = run(main)
    assert clock.now() < 60.0
    assert (budget.granted, budget.refunded) == (1, 1)


@pytest.mark.parametrize("gated", [True, False])
def test_a_hedge_that_never_began_is_refunded_once(counting_budget, gated):
    """Its caller was interrupted between admission and start; it does not begin any more."""
    budget, permits = counting_budget(), abate.ConcurrencyLimit(1)
    race = Race(Policy(on=OSError, budget=budget, gate=permits if gated else None), Timeouts(), VirtualClock())
    assert race.hedge()
    assert permits.held == gated
    race.close()
    race.close()
    assert (budget.granted, budget.refunded, permits.held) == (1, 1, 0)
    assert not race.begin(SECOND)
    race.second_ended(None)
    assert permits.held == 0
