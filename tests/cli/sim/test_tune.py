"""`abate sim tune`."""

import json
import tomllib

import pytest

from abate.cli.sim_tune import verdict
from abate.sim.study import estimate
from abate.sim.tune import Candidate, Trial, TrialRun, Tuning
from tests.cli.sim.breaking import broken_off
from tests.cli.sim.scenarios import OUTAGE, QUICK


def test_tune_prints_the_finalists_and_the_best(sim):
    """The best one is a row of the table, and stands below it as TOML that a policy can have."""
    code, out, err = sim("tune", "outage.toml", *QUICK, "--max-amplification", 3)
    assert (code, err) == (0, "")
    assert any(line.startswith("best  ") for line in out.splitlines())
    policy = tomllib.loads(out[out.index("max_attempts = ") :])
    assert policy["backoff"] == {"base": 0.2, "cap": 5.0, "jitter": "full"}
    assert 1 <= policy["max_attempts"] <= 3
    assert 0 <= policy["budget"]["reserve"] <= 20


def test_tune_for_machines(sim):
    """`--json` has the same, without infinities, and is the same each time."""
    code, out, _ = sim("tune", "outage.toml", *QUICK, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["best"]["fits"]
    assert found["best"]["amplification"]["mean"] <= found["limit"] == 1.5
    assert found["complete"] is True
    assert sim("tune", "outage.toml", *QUICK, "--json")[1] == out


def test_a_limit_that_nothing_keeps_is_a_failure(sim, folder):
    """A build that asks for the impossible does not pass."""
    words = [
        "--max-attempts",
        "3",
        "--reserve",
        "100",
        "--set",
        "services.api.error_rate=0.5",
        "--max-amplification",
        1,
    ]
    code, out, _ = sim("tune", "outage.toml", *words, "--seeds", 1, "--samples", 2)
    assert code == 1
    assert "no policy that was tried keeps the limit of 1" in out


def test_what_does_not_recover_is_not_recommended(sim):
    """It says so, prints no policy, and is a failure."""
    code, out, _ = sim("tune", "outage.toml", *QUICK, "--set", "triggers.0.for=14.0", "--set", "run.horizon=20")
    assert code == 1
    assert "no policy that was tried within the limit of 1.5 recovers" in out
    assert "max_attempts = " not in out


@pytest.mark.parametrize(
    ("seeds", "finished", "said"),
    [
        (5, True, "best: recovers 49 s sooner than the runner-up, with 5 fresh seeds: significant (95 %)"),
        (2, True, "best: recovers 49 s sooner than the runner-up, with 2 fresh seeds: not significant (needs 5 seeds)"),
        (9, False, "best: recovers 49 s sooner than the runner-up, with the seeds of the search: not significant"),
    ],
)
def test_few_seeds_are_not_significant(seeds, finished, said):
    """The sentence says why."""
    ahead, behind = (Trial(Candidate(), (TrialRun(time, 1.0, 1.0),) * seeds, 1.5) for time in (1.0, 50.0))
    assert verdict(Tuning((ahead,), ahead, behind, estimate([49.0] * seeds), 1.5, 100, finished)) == said


def test_a_variant_can_be_tuned(sim, folder):
    """The first one, or the one that is named."""
    (folder / "two.toml").write_text(
        OUTAGE + "[variants.a.policy]\ntimeout = 5.0\n[variants.b.policy]\ntimeout = 9.0\n"
    )
    assert sim("tune", "two.toml", *QUICK)[1].startswith("two, a: ")
    assert sim("tune", "two.toml", *QUICK, "--variant", "b")[1].startswith("two, b: ")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nowhere"], ["'nowhere'"]),
        (["outage.toml", "--max-attempts", "0:3"], ["max_attempts", "0"]),
        (["outage.toml", "--max-attempts", "1.5:3"], ["max_attempts", "1.5"]),
        (["outage.toml", "--base", "2:1"], ["base", "2", "1"]),
        (["outage.toml", "--jitter", "half"], ["jitter", "'half'", "full"]),
        (["outage.toml", "--max-amplification", "0.5"], ["--max-amplification", "0.5"]),
        (["outage.toml", "--samples", "0"], ["--samples", "0"]),
        (["outage.toml", "--seeds", "0"], ["--seeds", "0"]),
        (["outage.toml", "--variant", "b"], ["--variant", "outage.toml", "'b'"]),
        (["fragile.toml"], ["trigger"]),
        (["crowd.toml"], ["no client calls after"]),
    ],
    ids=lambda given: " ".join(given),
)
def test_wrong_bounds_are_one_line(sim, words, named):
    """It names what is wrong, and nothing has been run."""
    code, out, err = sim("tune", *words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    for word in named:
        assert word in err


def test_bounds_that_are_no_numbers_are_a_wrong_use(sim):
    """The usage is printed, and what was expected."""
    code, _, err = sim("tune", "outage.toml", "--base", "low:high")
    assert code == 2
    assert "LOW:HIGH" in err
    assert "'low:high'" in err


def test_a_search_that_is_broken_off_shows_what_was_found(folder):
    """The table so far is there, and the exit code is that of Ctrl-C."""
    code, out, shown = broken_off("tune", "outage.toml", "--seeds", 300, after=b" runs, ")
    assert code == 130
    assert b"recovery (s)" in out
    assert b"not complete: interrupted after " in shown
    assert b"Traceback" not in shown
