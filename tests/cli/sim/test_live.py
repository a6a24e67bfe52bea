"""`abate sim --live`: real sockets beside the simulated world."""

import json

import pytest

from abate.sim.live.runs import compared
from tests.cli.sim.breaking import broken_off

SHORT = ["--clients", 20, "--set", "run.horizon=2.5", "--set", "triggers=[]", "--seeds", 3, "--live"]


def test_a_live_run_stands_beside_the_simulated_ones(sim):
    """Each measure has both sides and their difference."""
    code, out, err = sim("outage.toml", *SHORT, "--measures", "calls,amplification")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].startswith("outage: once on real sockets")
    assert lines[2].split() == ["measure", "live", "simulated", "difference"]
    assert [line.split()[0] for line in lines[3:5]] == ["calls", "amplification"]


def test_a_live_run_for_machines(sim):
    """`--json` has every measure; nothing fails here, so both sides make one attempt per call."""
    code, out, _ = sim("outage.toml", *SHORT, "--json")
    (found,) = json.loads(out)
    assert code == 0
    assert found["complete"] is True
    assert found["figures"]["amplification"]["live"] == 1.0
    assert found["figures"]["amplification"]["simulated"]["mean"] == 1.0
    assert found["figures"]["recovery"]["live"] is None


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["people", "machines"])
def test_a_live_run_says_that_it_checks_no_assertions(sim, words):
    """They are made for many runs of the world as it is; the exit code is 0 whatever they say."""
    code, out, _ = sim("outage.toml", *SHORT, "--set", "assert.max_amplification=0.5", *words)
    assert code == 0
    assert "the assertion of this case is not checked: this is one run" in out


@pytest.mark.parametrize(
    ("name", "live", "simulated", "explained"),
    [
        ("denials", 1.0, [0.0, 0.0, 0.0], True),
        ("denials", 40.0, [0.0, 0.0, 0.0], False),
        ("wasted", 0.004, [0.0, 0.0, 0.0], True),
        ("wasted", 0.3, [0.0, 0.0, 0.0], False),
        ("requests.api", 110.0, [100.0], True),
        ("requests.api", 200.0, [100.0], False),
        ("p99", 0.02, [0.005, 0.005], True),
        ("p99", 0.2, [0.005, 0.005], False),
    ],
)
def test_runs_that_agree_do_not_make_every_difference_large(name, live, simulated, explained):
    """An interval of 0 says that the runs were alike, not that a live one must be."""
    assert compared(name, live, simulated).explained == explained


def test_a_live_run_can_be_broken_off(folder):
    """It says so, ends its services, and the exit code is Ctrl-C's."""
    code, out, shown = broken_off(folder / "outage.toml", "--live", after=b" of 20 seconds")
    assert code == 130
    assert b"note: broken off after " in out
    assert b"not complete: broken off in case 1 of 1" in shown
    assert b"Traceback" not in shown
