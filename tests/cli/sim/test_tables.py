"""`abate sim`: what it lists, shows and prints, and what can be changed."""

import json
import tomllib

import pytest

from abate.sim.scenario import load_scenario, shipped_names
from abate.sim.study import run_study
from abate.sim.study_tables import vulnerable_lines
from tests.cli.commands import abate_command
from tests.cli.sim.scenarios import OUTAGE

# -- list and show


def test_the_scenarios_that_ship_are_listed_with_a_sentence_each(sim):
    """`abate sim list` has one line per scenario, and what it is."""
    code, out, _ = sim("list")
    lines = out.splitlines()[1:]
    assert code == 0
    assert [line.split()[0] for line in lines] == shipped_names()
    assert all(line.endswith((".", "!", "?")) and line.count(". ") == 0 for line in lines)


@pytest.mark.parametrize("name", shipped_names())
def test_a_scenario_that_is_shown_is_the_one_that_ships(sim, name):
    """`abate sim show` prints TOML that can be run as a file of one's own."""
    code, out, _ = sim("show", name)
    assert code == 0
    assert tomllib.loads(out) == load_scenario(name).document


def test_only_scenarios_that_ship_are_shown(sim):
    """Anything else is refused with the names that are known."""
    code, _, err = sim("show", "nowhere")
    assert code == 2
    assert "'nowhere'" in err
    assert "herd" in err


# -- the table


def test_one_case_has_its_measures_in_rows(sim):
    """A scenario without variants is read from top to bottom, units included."""
    code, out, _ = sim("outage.toml")
    assert code == 0
    rows = {line.split("  ")[0]: line for line in out.splitlines()}
    assert {"amplification", "recovery (s)", "p99 (s)"} <= rows.keys()
    assert "±" in rows["amplification"]
    assert out.startswith("outage: 1 case, 3 seeds, exact engine")


def test_each_variant_is_a_row_with_figures_and_their_intervals(sim):
    """The figures are those of the study, mean ± interval."""
    code, out, _ = sim("crowd.toml", "--clients", 40, "--seeds", 4, "--measures", "peak_after,p99")
    study = run_study(load_scenario("crowd.toml").changed("clients.count=40"), seeds=4)
    lines = out.splitlines()[2:]
    assert code == 0
    assert lines[0].split() == ["variant", "peak_after", "(/100", "ms)", "p99", "(s)"]
    for line, result in zip(lines[1:], study.results, strict=False):
        measures = result.measures
        assert line.split() == [
            result.case.variant,
            *str(measures["peak_after"]).split(),
            *str(measures["p99"]).split(),
        ]


def test_a_sweep_is_a_column_of_its_own(sim, folder):
    """Each value that was swept stands in its row."""
    (folder / "swept.toml").write_text(OUTAGE + '\n[sweep]\n"clients.count" = [10, 20]\n')
    _, out, _ = sim("swept.toml", "--seeds", 2, "--measures", "amplification")
    rows = [line.split()[:2] for line in out.splitlines()[2:7]]
    assert rows == [["variant", "count"], ["-", "10"], ["-", "20"], ["oracle", "10"], ["oracle", "20"]]


def test_measures_that_say_nothing_are_left_out(sim, folder):
    """Without a trigger there is no recovery, without a denial no column of denials."""
    calm = OUTAGE.partition("[[triggers]]")[0]
    (folder / "calm.toml").write_text(calm)
    _, out, _ = sim("calm.toml")
    assert "recovery" not in out
    assert "denials" not in out
    assert "amplification" in out


def test_what_never_happens_is_called_never(sim):
    """A recovery that did not come is a word, not a number."""
    _, out, _ = sim("outage.toml", "--set", "services.api.error_rate=1.0", "--measures", "recovery")
    assert out.splitlines()[3].split() == ["recovery", "(s)", "never", "never"]


def test_the_vulnerable_range_of_each_service_stands_below_the_table(sim):
    """A service that stays down once it has fallen is named, with the load above which it does."""
    _, out, _ = sim("fragile.toml")
    assert "db: above 150 requests/s this stays down once it falls (capacity 300, offered 280)" in out


def test_a_range_that_differs_names_the_variants():
    """Variants that are in for the same thing share a line; loads that differ are a range in it."""
    scenario = load_scenario("fragile.toml").changed("run.horizon=0.1")
    document = {
        **scenario.document,
        "variants": {"one": {"policy": {"max_attempts": 1}}, "two": {}},
        "sweep": {"clients.count": [140, 280]},
    }
    study = run_study(type(scenario)("s", "s", document), seeds=1)
    assert vulnerable_lines(study.results) == [
        "one: db: comes back by itself at any load below its capacity (capacity 300, offered 140 to 280)",
        "two: db: above 150 requests/s this stays down once it falls (capacity 300, offered 140 to 280)",
    ]


def test_names_of_the_users_do_not_reach_the_terminal_as_they_are(sim, folder):
    """Control characters in a name are escaped."""
    (folder / "odd.toml").write_text(OUTAGE + '\n[variants."\\u001b[2J".policy]\nmax_attempts = 2\n')
    _, out, _ = sim("odd.toml", "--seeds", 1)
    assert "\x1b" not in out
    assert "\\x1b[2J" in out


# -- what is changed


def test_json_is_the_study_and_nothing_else(sim):
    """`--json` prints what `Study.as_json` gives."""
    code, out, _ = sim("outage.toml", "--seeds", 2, "--json")
    assert code == 0
    assert json.loads(out) == run_study(load_scenario("outage.toml"), seeds=2).as_json()


def test_a_key_can_be_set_from_outside(sim):
    """`--set` counts as if the file said so, and the last one wins."""
    _, out, _ = sim("outage.toml", "--set", "policy.max_attempts=2", "--set", "policy.max_attempts=1", "--json")
    assert json.loads(out)["cases"][0]["measures"]["amplification"]["mean"] == 1.0


@pytest.mark.parametrize("who", ["clients", "controllers"])
def test_clients_are_controllers_where_the_scenario_has_these(sim, folder, who):
    """`--clients` changes the number of clients of every kind."""
    (folder / "who.toml").write_text(OUTAGE.replace("[clients]", f"[{who}]\nrate = 1.0"))
    _, out, _ = sim("who.toml", "--clients", 5, "--seeds", 1, "--json")
    assert 40 < json.loads(out)["cases"][0]["measures"]["calls"]["mean"] < 200


def test_clients_that_are_processes_of_their_own_stay_so(sim, folder):
    """A budget for each client is still one for each when there are more or fewer of them."""
    (folder / "alone.toml").write_text(OUTAGE.replace("count = 50", "count = 50\nprocesses = 50"))
    _, out, _ = sim("alone.toml", "--clients", 20, "--seeds", 2, "--json")
    study = run_study(load_scenario("outage.toml").changed("clients.count=20").changed("clients.processes=20"), seeds=2)
    assert json.loads(out)["cases"] == study.as_json()["cases"]


def test_fewer_clients_than_processes_are_the_flags_fault(sim, folder):
    """The file is all right; the error names the flag. Who changes the processes as well may."""
    (folder / "four.toml").write_text(OUTAGE.replace("count = 50", "count = 50\nprocesses = 4"))
    code, out, err = sim("four.toml", "--clients", 3, "--seeds", 1)
    assert (code, out) == (2, "")
    assert "four.toml: --clients 3: [clients]: processes must be at most the 3 clients, not 4" in err
    assert sim("four.toml", "--clients", 3, "--seeds", 1, "--set", "clients.processes=2")[0] == 0


def test_a_service_without_an_end_is_in_for_nothing(sim):
    """Of a service that takes no time nothing is said below the table."""
    _, out, _ = sim("outage.toml", "--seeds", 1, "--set", "services.api.service_time=0.0")
    assert "capacity" not in out


def test_the_engine_can_be_chosen(sim):
    """`--engine` wins over what the scenario says."""
    _, out, _ = sim("outage.toml", "--seeds", 1, "--engine", "coroutine", "--json")
    assert json.loads(out)["cases"][0]["engine"] == "coroutine"


def test_a_policy_of_the_users_own_is_one_more_variant(sim):
    """`--policy` puts a policy of the app's file into the world of the scenario."""
    code, out, _ = sim("crowd.toml", "--seeds", 1, "--policy", "app.toml:orders", "--json")
    assert code == 0
    assert [case["variant"] for case in json.loads(out)["cases"]][-1] == "orders"


def test_a_policy_may_name_errors_of_the_apps_own_modules(folder):
    """Those of a module that `--code` names, also in the current directory; what the policy does not know is noted."""
    (folder / "shop.py").write_text("class Busy(Exception): ...\n")
    (folder / "shop.toml").write_text('[orders]\non = "shop:Busy"\n')
    done = abate_command("sim", "outage.toml", "--seeds", 1, "--policy", "shop.toml:orders", "--code", "shop")
    assert done.returncode == 0, done.stderr
    assert b"note: policy 'orders' matches none of the simulated errors" in done.stdout


def test_what_the_fleet_engine_cannot_do_is_said(sim, folder):
    """A fallback is a note below the table."""
    (folder / "rowed.toml").write_text(
        '[run]\nhorizon = 5.0\n[clients]\ncount = 5\narrivals = "once"\n[policy]\nmax_attempts = 9\n'
        '[services.row]\nkind = "row"\n'
    )
    code, out, _ = sim("rowed.toml", "--engine", "fleet", "--seeds", 1)
    assert code == 0
    assert "exact engine" in out.splitlines()[0]
    assert "\nnote: " in out
