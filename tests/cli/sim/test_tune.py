"""`abate sim tune`."""

import json
import tomllib

import pytest

from abate.cli.sim_tune import plot
from abate.sim.confidence import confidence
from abate.sim.tune import Candidate, Seen, Trial, Tuning
from tests.cli.sim.breaking import broken_off
from tests.cli.sim.scenarios import OUTAGE, QUICK


def test_tune_prints_the_front_the_best_and_how_sure_it_is(sim):
    """The best one is a row of the table, and stands below it as TOML that a policy can have."""
    code, out, err = sim("tune", "outage.toml", *QUICK, "--max-amplification", 3)
    assert (code, err) == (0, "")
    assert any(line.startswith("best  ") for line in out.splitlines())
    policy = tomllib.loads(out[out.index("attempts = ") :])
    assert policy["backoff"] == {"base": 0.2, "cap": 5.0, "jitter": "full"}
    assert 1 <= policy["attempts"] <= 3
    assert 0 <= policy["budget"]["reserve"] <= 20


def tuned(*found, limit=1.5):
    """A tuning whose front are these candidates, each with its recovery and amplification; the first is the best."""
    front = tuple(Trial(candidate, (Seen(time, cost, 1.0),) * 2, limit) for candidate, time, cost in found)
    return Tuning(front, front[0], None, 1.0, (0.0, 0.0, 0.0), limit, 2, 100, True)


def axes(drawn):
    """What stands at the ends of a plot: of recovery from below, of amplification from the left."""
    lines = drawn.splitlines()
    return [lines[11].split(" │")[0].strip(), lines[0].split(" │")[0].strip()], lines[13].split()


@pytest.mark.parametrize(
    ("found", "times", "costs"),
    [
        ([(0.0, 1.0)], ["0 s", "1 s"], ["1", "1.5"]),
        ([(0.0, 1.0), (0.0, 1.2)], ["0 s", "1 s"], ["1", "1.2"]),
        ([(4.0, 1.2)], ["0 s", "4 s"], ["1", "1.5"]),
        ([(4.0, 1.0001), (2.0, 1.0002)], ["2 s", "4 s"], ["1", "1.5"]),
        ([(4.0, 1.7), (2.0, 1.9)], ["2 s", "4 s"], ["1.7", "1.9"]),
    ],
)
def test_every_front_is_plotted(found, times, costs):
    """One point is a plot, and the two ends of an axis differ."""
    drawn = plot(tuned(*((Candidate(attempts=place + 2), *each) for place, each in enumerate(found))))
    assert axes(drawn) == (times, costs)
    assert sum(drawn.partition("└")[0].count(sign) for sign in "●○×") == len(found)


def test_a_limit_of_one_has_an_axis_too():
    """Where all make one attempt, and may make no more."""
    assert axes(plot(tuned((Candidate(attempts=1), 0.0, 1.0), limit=1.0)))[1] == ["1", "1.1"]


def test_attempts_that_are_never_paid_for_are_shown_as_they_are(sim):
    """The table and the TOML agree, and a note says that nothing is retried."""
    words = ["--attempts", 3, "--ratio", 0, "--reserve", 0, "--seeds", 1, "--samples", 2]
    code, out, _ = sim("tune", "outage.toml", *words)
    assert code == 0
    (row,) = [line.split() for line in out.splitlines() if line.startswith("best  ")]
    assert row[:7] == ["best", "3", "-", "-", "-", "0", "0"]
    assert "note: where ratio and reserve are 0 no retry is admitted" in out
    assert "\nattempts = 3\n" in out
    assert "no retry is admitted" not in sim("tune", "outage.toml", *QUICK, "--attempts", 1)[1]


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
    words = ["--attempts", "3", "--reserve", "100", "--set", "services.api.error_rate=0.5", "--max-amplification", 1]
    code, out, _ = sim("tune", "outage.toml", *words, "--seeds", 1, "--samples", 2)
    assert code == 1
    assert "nothing that was tried keeps the limit of 1" in out


def test_what_does_not_recover_is_not_recommended(sim):
    """It says so, prints no policy, and is a failure."""
    code, out, _ = sim("tune", "outage.toml", *QUICK, "--set", "triggers.0.for=14.0", "--set", "run.horizon=20")
    assert code == 1
    assert "nothing that was tried within the limit of 1.5 recovers" in out
    assert "attempts = " not in out


@pytest.mark.parametrize(
    ("seeds", "finished", "told"),
    [(5, True, "sure: "), (2, True, "not sure, as it takes 5 seeds at least: "), (9, False, "not sure, as it was ")],
)
def test_few_seeds_are_not_sure(seeds, finished, told):
    """They may agree by chance, and that is said where they do."""
    ahead, behind = (Trial(Candidate(), (Seen(time, 1.0, 1.0),) * seeds, 1.5) for time in (1.0, 50.0))
    tuning = Tuning((ahead,), ahead, behind, 1.0, (49.0, 48.0, 50.0), 1.5, seeds, 100, finished)
    assert confidence(tuning).startswith(told)


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
        (["outage.toml", "--attempts", "0:3"], ["attempts", "0"]),
        (["outage.toml", "--attempts", "1.5:3"], ["attempts", "1.5"]),
        (["outage.toml", "--base", "2:1"], ["base", "2", "1"]),
        (["outage.toml", "--jitter", "half"], ["jitter", "'half'", "full"]),
        (["outage.toml", "--max-amplification", "0.5"], ["--max-amplification", "0.5"]),
        (["outage.toml", "--samples", "0"], ["--samples", "0"]),
        (["outage.toml", "--seeds", "0"], ["--seeds", "0"]),
        (["outage.toml", "--variant", "b"], ["--variant", "outage.toml", "'b'"]),
        (["fragile.toml"], ["trigger"]),
        (["crowd.toml"], ["nobody calls again"]),
        (["outage.toml", "--report", "no/such/out.html"], ["--report", "no/such"]),
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
    """The front so far is there, and the exit code is Ctrl-C's."""
    code, out, shown = broken_off("tune", "outage.toml", "--seeds", 300, after=b" runs, ")
    assert code == 130
    assert b"recovery (s)" in out
    assert b"not complete: broken off after " in shown
    assert b"Traceback" not in shown
