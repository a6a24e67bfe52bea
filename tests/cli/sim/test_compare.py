"""`abate sim --compare`, and what a scenario asserts."""

import json

from hypothesis import given
from hypothesis import strategies as st

from abate.cli.sim_tables import difference
from abate.sim.scenario import load_scenario
from abate.sim.study import Result, Sample, estimate
from tests.cli.sim.scenarios import OUTAGE

# -- side by side


def test_scenarios_side_by_side_have_their_difference(sim):
    """`--compare` prints both, and the second less the first."""
    code, out, _ = sim("--compare", "outage.toml", "once.toml", "--measures", "amplification,success")
    rows = [line.split("  ") for line in out.splitlines()[3:]]
    assert code == 0
    assert [row[0] for row in rows[:3]] == ["scenario", "outage", "once"]
    assert out.splitlines()[6].startswith("  once − outage")  # noqa: RUF001


def test_a_scenario_does_not_differ_from_itself(sim):
    """The same seeds give the same runs, so nothing is left of them."""
    _, out, _ = sim("outage.toml", "--compare", "outage.toml", "--json")
    (found,) = json.loads(out)["differences"]
    assert {figure["mean"] for figure in found["measures"].values()} == {0.0}
    assert {figure["within"] for figure in found["measures"].values()} == {0.0}


def test_cases_are_compared_by_their_names(sim):
    """Of two scenarios with variants, those of the same name meet; one that meets none is shown all the same."""
    words = ["--seeds", 1, "--policy", "app.toml:orders"]
    _, out, _ = sim("--compare", "crowd.toml", "outage.toml", *words, "--json")
    found = json.loads(out)
    assert [apart["case"] for apart in found["differences"]] == ["orders"]
    _, out, _ = sim("--compare", "crowd.toml", "outage.toml", *words, "--measures", "attempts")
    assert {"none", "full", "orders"} <= {word for line in out.splitlines() for word in line.split()}


def test_what_only_one_of_them_has_is_left_blank_in_the_other(sim, folder):
    """Scenarios with different services can be compared all the same."""
    (folder / "stack.toml").write_text(OUTAGE.replace("service_time", 'calls = "db"\nservice_time') + "[services.db]\n")
    code, out, _ = sim("--compare", "outage.toml", "stack.toml", "--seeds", 1)
    rows = [line.split() for line in out.splitlines()[3:7]]
    assert code == 0
    assert rows[0][-1] == "requests.db"
    assert (rows[1][-1], rows[3][-1]) == ("-", "-")
    assert float(rows[2][-1]) > 0


CASE = load_scenario("herd").cases()[0]


def sampled(values: list[float]) -> Result:
    """A case in which a figure had these values, by seed."""
    return Result(
        CASE, tuple(Sample(seed, "exact", {"p50": value}, {}, {}, (), ()) for seed, value in enumerate(values))
    )


values = st.floats(0, 1000) | st.just(float("inf")) | st.just(float("nan"))


@given(st.lists(st.tuples(values, values), max_size=12))
def test_differences_are_taken_seed_by_seed(pairs):
    """The difference is that of the pairs in which both are finite, and says how many these are."""
    seen = difference(sampled([one for one, _ in pairs]), sampled([other for _, other in pairs]), "p50")
    finite = [other - one for one, other in pairs if abs(one) < 2000 and abs(other) < 2000]
    assert seen.seeds - seen.never == len(finite)
    assert seen.seeds == len(pairs)
    if finite:
        assert (seen.mean, seen.within) == (estimate(finite).mean, estimate(finite).within)
    else:
        assert str(seen) == "-"


# -- assertions


def test_what_is_asserted_and_does_not_hold_fails_the_build(sim):
    """Each is a line on stderr, and the exit code is 1."""
    words = ["--set", "assert.max_amplification=1.0", "--set", "assert.min_success=0.5"]
    code, out, err = sim("outage.toml", *words)
    assert code == 1
    assert err.splitlines() == [line for line in err.splitlines() if line.startswith("abate: assertion failed: max_")]
    assert len(err.splitlines()) == 1
    assert out.splitlines()[-1] == "1 of 2 assertions hold"


def test_one_assertion_that_does_not_hold_is_said(sim):
    """The last line of the output tells it in any case."""
    code, out, _ = sim("outage.toml", "--set", "assert.max_amplification=1.0")
    assert (code, out.splitlines()[-1]) == (1, "1 assertion does not hold")


def test_what_is_asserted_and_holds_is_said(sim):
    """The exit code is 0."""
    words = ["--set", "assert.max_amplification=3.0", "--set", "assert.min_success=0.5"]
    code, out, err = sim("outage.toml", *words)
    assert (code, err) == (0, "")
    assert "all 2 assertions hold" in out


def test_a_build_that_reads_json_fails_too(sim):
    """With `--json` stdout is JSON, and the exit code and stderr are as ever."""
    code, out, err = sim("outage.toml", "--set", "assert.max_amplification=1.0", "--json")
    assert code == 1
    assert json.loads(out)["broken"]
    assert "max_amplification" in err
