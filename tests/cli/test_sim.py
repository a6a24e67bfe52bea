"""`abate sim`: what it prints, what it refuses beforehand, what it ends with."""

import json
import os
import pty
import signal
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate.cli import main, sim_report
from abate.cli.sim_output import Progress, outlook_lines
from abate.cli.sim_tables import difference
from abate.cli.sim_tune import plot
from abate.sim.confidence import confidence
from abate.sim.live.runs import compared
from abate.sim.scenario import load_scenario, shipped_names
from abate.sim.study import Result, Sample, estimate, run_study
from abate.sim.tune import Candidate, Seen, Trial, Tuning
from tests.cli.commands import GUARD, abate_command, started, until

OUTAGE = """
about = "An outage of two seconds. And what becomes of it."

[run]
horizon = 20.0
seeds = 3

[clients]
count = 50

[policy]
attempts = 3

[services.api]
workers = 10
service_time = 0.05

[[triggers]]
kind = "error"
at = 5.0
for = 2.0
"""
HERD = """
[run]
horizon = 10.0
seeds = 3

[clients]
count = 50
arrivals = "once"

[policy]
attempts = 3

[services.api]
workers = 10
service_time = 0.05

[[triggers]]
kind = "error"
at = 0.0
for = 0.01

[variants.none.policy.backoff]
jitter = "none"

[variants.full.policy.backoff]
jitter = "full"
"""
FRAGILE = """
[run]
horizon = 5.0
seeds = 1

[clients]
count = 280

[policy]
attempts = 2
attempt_timeout = 1.0
budget = { ratio = 1.0, reserve = 1000, funded_by = "request" }

[services.db]
workers = 30
service_time = 0.1
"""

NARROW = ["--attempts", "1:3", "--base", "0.2", "--cap", "5", "--jitter", "full", "--ratio", "0.2", "--reserve", "0:20"]
QUICK = [*NARROW, "--seeds", 2, "--samples", 4]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A directory with scenarios of our own, as the current one."""
    (tmp_path / "outage.toml").write_text(OUTAGE)
    (tmp_path / "once.toml").write_text(OUTAGE.replace("attempts = 3", "attempts = 1"))
    (tmp_path / "crowd.toml").write_text(HERD)
    (tmp_path / "fragile.toml").write_text(FRAGILE)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "app.toml").write_text('[orders]\non = "abate.http.transient"\nattempts = 5\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sim(capsys):
    """Run `abate sim` with these words: exit code, stdout, stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        try:
            code = main(["sim", *map(str, words)])
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


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
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["count", "10", "20"]


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
    assert out.splitlines()[3].split() == ["recovery", "(s)", "never"]


def test_the_vulnerable_range_of_each_service_stands_below_the_table(sim):
    """A service that stays down once it has fallen is named, with the load above which it does."""
    _, out, _ = sim("fragile.toml")
    assert "db: above 150 requests/s this stays down once it falls (capacity 300, offered 280)" in out


def test_a_range_that_differs_names_the_variants():
    """Variants that are in for the same thing share a line; loads that differ are a range in it."""
    scenario = load_scenario("fragile.toml").changed("run.horizon=0.1")
    document = {
        **scenario.document,
        "variants": {"one": {"policy": {"attempts": 1}}, "two": {}},
        "sweep": {"clients.count": [140, 280]},
    }
    study = run_study(type(scenario)("s", "s", document), seeds=1)
    assert outlook_lines(study.results) == [
        "one: db: comes back by itself at any load below its capacity (capacity 300, offered 140 to 280)",
        "two: db: above 150 requests/s this stays down once it falls (capacity 300, offered 140 to 280)",
    ]


def test_names_of_the_users_do_not_reach_the_terminal_as_they_are(sim, folder):
    """Control characters in a name are escaped."""
    (folder / "odd.toml").write_text(OUTAGE + '\n[variants."\\u001b[2J".policy]\nattempts = 2\n')
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
    _, out, _ = sim("outage.toml", "--set", "policy.attempts=2", "--set", "policy.attempts=1", "--json")
    assert json.loads(out)["cases"][0]["measures"]["amplification"]["mean"] == 1.0


@pytest.mark.parametrize("who", ["clients", "controllers"])
def test_clients_are_controllers_where_the_scenario_has_these(sim, folder, who):
    """`--clients` changes how many call, whoever they are."""
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
    assert "--clients must be at least the 4 processes of four.toml, not 3" in err
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
    """The current directory is on the path, as for the app; what the policy does not know of is noted."""
    (folder / "shop.py").write_text("class Busy(Exception): ...\n")
    (folder / "shop.toml").write_text('[orders]\non = "shop:Busy"\n')
    done = abate_command("sim", "outage.toml", "--seeds", 1, "--policy", "shop.toml:orders")
    assert done.returncode == 0, done.stderr
    assert b"note: policy 'orders' names none of the failures" in done.stdout


def test_what_the_fleet_engine_cannot_do_is_said(sim, folder):
    """A fallback is a note below the table."""
    (folder / "rowed.toml").write_text(
        '[run]\nhorizon = 5.0\n[clients]\ncount = 5\narrivals = "once"\n[policy]\nattempts = 9\n'
        '[services.row]\nkind = "row"\n'
    )
    code, out, _ = sim("rowed.toml", "--engine", "fleet", "--seeds", 1)
    assert code == 0
    assert "exact engine" in out.splitlines()[0]
    assert "\nnote: " in out


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
    assert err.splitlines() == [
        line for line in err.splitlines() if line.startswith("abate: asserted and not so: max_")
    ]
    assert len(err.splitlines()) == 1
    assert out.splitlines()[-1] == "1 of 2 assertions hold"


def test_one_assertion_that_does_not_hold_is_said(sim):
    """The last line of the output tells it in any case."""
    code, out, _ = sim("outage.toml", "--set", "assert.max_amplification=1.0")
    assert (code, out.splitlines()[-1]) == (1, "what is asserted does not hold")


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


# -- what is refused


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nowhere"], ["'nowhere'", "herd"]),
        (["nowhere.toml"], ["'nowhere.toml'"]),
        (["."], ["'.'"]),
        (["bytes.toml"], ["bytes.toml", "not TOML"]),
        (["outage.toml", "--policy", "bytes.toml:orders"], ["bytes.toml", "not TOML"]),
        (["--compare", "outage.toml", "nowhere"], ["'nowhere'"]),
        (["outage.toml", "--engine", "steam"], ["--engine", "'steam'", "exact"]),
        (["outage.toml", "--seeds", "0"], ["--seeds", "0"]),
        (["outage.toml", "--clients", "0"], ["--clients", "0"]),
        (["outage.toml", "--jobs", "-1"], ["--jobs", "-1"]),
        (
            ["outage.toml", "--set", "policy.attempt=6"],
            ["outage.toml: --set policy.attempt=6: [policy] has an unknown key 'attempt'"],
        ),
        (
            ["outage.toml", "--set", "run.seeds=2", "--set", "policy.attempts=0"],
            ["outage.toml: --set policy.attempts=0: [policy]: attempts", "0"],
        ),
        (["outage.toml", "--clients", "200000000"], ["outage.toml: --clients 200000000: [clients]: count must be"]),
        (["outage.toml", "--set", "polcy.attempts=6"], ["outage.toml", "'polcy'"]),
        (["outage.toml", "--set", "services.api.workers=0"], ["outage.toml", "[services.api]", "workers", "0"]),
        (["outage.toml", "--set", "services.db.workers=1"], ["outage.toml", "services.db.workers", "api", "'db'"]),
        (["outage.toml", "--set", "policy.attempts"], ["--set", "'policy.attempts'"]),
        (["outage.toml", "--set", "run.horizon=3"], ["outage.toml", "[[triggers]]", "at must", "5", "3"]),
        (["outage.toml", "--measures", "speed"], ["--measures", "outage.toml", "'speed'", "amplification"]),
        (["outage.toml", "--policy", "app.toml"], ["'app.toml'", "app.toml:orders"]),
        (["outage.toml", "--policy", "app.toml:cats"], ["app.toml", "'cats'", "orders"]),
        (["outage.toml", "--policy", "gone.toml:orders"], ["gone.toml"]),
        (["outage.toml", "--report", "no/such/out.html"], ["--report", "no/such"]),
        (["outage.toml", "--picture", "no/such/out.png"], ["--picture", "no/such"]),
        (["outage.toml", "--picture", "out.gif"], ["--picture", "'out.gif'", ".png", ".svg"]),
        (["outage.toml", "--report", "."], ["--report", "folder"]),
    ],
    ids=lambda given: " ".join(given),
)
def test_wrong_input_is_one_line(sim, words, named):
    """It names what is wrong, and nothing has been run."""
    code, out, err = sim(*words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    for word in named:
        assert word in err


@pytest.mark.parametrize("words", [["own.toml"], ["tune", "own.toml"]], ids=" ".join)
def test_an_engine_that_cannot_run_code_is_refused_with_the_file(sim, folder, words):
    """Whoever asks for it."""
    (folder / "own.toml").write_text(OUTAGE.replace("count = 50", 'count = 50\ncode = "asyncio:sleep"'))
    code, out, err = sim(*words, "--engine", "fleet")
    assert (code, out) == (2, "")
    assert err == "abate: own.toml: [clients]: code can be run by the engine 'coroutine' alone, not by 'fleet'\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--seeds", "3"],
        ["--compare", "outage.toml"],
        ["--compare", "outage.toml", "once.toml", "--report", "out.html"],
        ["--compare", "outage.toml", "once.toml", "--live"],
        ["outage.toml", "--live", "--report", "out.html"],
        ["outage.toml", "--seeds", "many"],
        ["outage.toml", "--nonsense"],
    ],
    ids=" ".join,
)
def test_a_wrong_use_is_refused(sim, words):
    """The usage is printed, and what is wrong with it."""
    code, out, err = sim(*words)
    assert (code, out) == (2, "")
    assert "usage: abate sim" in err


def test_without_words_the_help_is_printed(sim):
    """`abate sim` alone says what there is."""
    code, out, _ = sim()
    assert code == 0
    assert all(word in out for word in ("list", "show", "tune", "--compare"))


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("numpy", ["--engine", "fleet"]),
        ("numpy", ["--set", "run.engine=fleet"]),
        ("matplotlib", ["--report", "out.html"]),
        ("matplotlib", ["--picture", "out.png"]),
    ],
    ids=" ".join,
)
def test_a_library_that_is_not_installed_is_named(sim, monkeypatch, missing, words):
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, missing, None)
    code, out, err = sim("outage.toml", *words)
    assert (code, out) == (2, "")
    assert "pip install 'abate[sim]'" in err
    assert len(err.splitlines()) == 1


# -- files


def test_a_report_and_a_picture_are_written(sim, folder):
    """Both are said on stderr, so that stdout stays the table's."""
    code, _, err = sim("crowd.toml", "--seeds", 2, "--report", "out.html", "--picture", "out.svg")
    assert code == 0
    assert (folder / "out.html").read_text().startswith("<!DOCTYPE html>")
    assert "<svg" in (folder / "out.svg").read_text()
    assert err.splitlines() == ["abate: wrote out.html", "abate: wrote out.svg"]


def test_a_report_has_maps_unless_they_take_long(sim, folder, monkeypatch):
    """They are drawn without being asked for, if that takes no time to speak of; else it is said how to have them."""
    words = ["outage.toml", "--clients", 5, "--set", "services.api.workers=1", "--seeds", 1, "--report", "out.html"]
    assert sim(*words)[::2] == (0, "abate: wrote out.html\n")
    pictures = (folder / "out.html").read_text().count("<svg")
    monkeypatch.setattr(sim_report, "PATIENCE", 0.0)
    code, _, err = sim(*words)
    assert code == 0
    assert "no recovery map: it would take some" in err
    assert "--map" in err
    assert (folder / "out.html").read_text().count("<svg") == pictures - 2


def test_how_long_maps_take_depends_on_their_loads():
    """Not on the scenario's own: one that is hardly called is mapped up to its capacity, or its rate limit."""
    scenario = load_scenario("outage.toml")
    studies = [run_study(scenario.changed(f"clients.count={count}"), seeds=1) for count in (10, 50)]
    often, seldom = map(sim_report.surveyed, studies)
    assert often == pytest.approx(5 * seldom)
    limited = run_study(scenario.changed("services.api.limit={ rate = 20.0 }"), seeds=1)
    assert sim_report.surveyed(limited) == pytest.approx(seldom / 10)


def test_a_map_that_cannot_be_drawn_is_said(sim):
    """Where all call once, there is nothing to recover."""
    _, _, err = sim("crowd.toml", "--seeds", 1, "--report", "out.html", "--map")
    assert "no recovery map: it needs clients that call again and again" in err


def test_the_report_of_a_tuning_has_the_policy_before_and_after(sim, folder):
    """The page shows the scenario as it is beside the best that was found."""
    code, _, err = sim("tune", "outage.toml", *QUICK, "--report", "out.html")
    assert (code, err) == (0, "abate: wrote out.html\n")
    page = (folder / "out.html").read_text()
    assert "as it is" in page
    assert "tuned" in page


# -- breaking off


def broken_off(*words: object, after: bytes) -> tuple[int, bytes, bytes]:
    """Run it on a terminal, and press Ctrl-C once that has shown this: exit code, stdout, what was on the terminal."""
    main_end, terminal = pty.openpty()
    try:
        with started("sim", *words, stderr=terminal, env={**os.environ, "COLUMNS": "100"}) as process:
            os.close(terminal)
            shown = b""
            while after not in shown:
                shown += os.read(main_end, 4096)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=GUARD)
            try:
                while piece := os.read(main_end, 4096):
                    shown += piece
            except OSError:  # nobody is left at the other end
                pass
            return process.returncode, out, shown
    finally:
        os.close(main_end)


def test_what_is_broken_off_shows_what_was_computed(folder):
    """The table is there, a line says that it is not complete, and the exit code is Ctrl-C's."""
    code, out, shown = broken_off("outage.toml", "--seeds", 100_000, "--jobs", 1, after=b" of 100,000 runs")
    assert code == 130
    assert b"amplification" in out
    assert b"of 100000 runs" in shown
    assert b"not complete: broken off after " in shown
    assert b"Traceback" not in shown


@pytest.mark.parametrize("after", [b" of 3,000 runs", b"0 of 3,000 runs"])
def test_breaking_off_ends_the_processes_that_help(folder, after):
    """While they start, or are at work: nobody waits for the runs that they are in; JSON stays JSON."""
    words = [folder / "outage.toml", "--seeds", 3000, "--jobs", 2, "--json"]
    code, out, shown = broken_off(*words, after=after)
    assert code == 130
    assert json.loads(out)["complete"] is False
    assert b"Traceback" not in shown
    until(lambda: not list(running_with(str(folder))))


def running_with(word: str) -> Iterator[int]:
    """The processes that have this in their command line."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in file.read_bytes():
                yield int(file.parent.name)
        except OSError:  # it has ended meanwhile
            pass


def test_the_progress_says_how_much_is_left(monkeypatch):
    """A bar, how many of how many, and how long that will take."""
    from abate.testing import VirtualClock

    with VirtualClock() as clock:
        progress = Progress("herd")
        clock.advance(10.0)
        assert progress.line(10, 30) == f"herd {'█' * 8}{'░' * 16} 10 of 30 runs, 20 s left"


def test_elsewhere_than_on_a_terminal_there_is_no_progress():
    """A log of a build has the table, and nothing else."""
    done = abate_command("sim", "crowd.toml", "--seeds", 1)
    assert done.returncode == 0
    assert done.stderr == b""


# -- tune


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


# -- live

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
