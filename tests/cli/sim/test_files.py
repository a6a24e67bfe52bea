"""`abate sim`: the files that it writes, and Ctrl-C, which ends with what has been computed so far."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from abate.cli import sim_output_files
from abate.cli.terminal import Progress
from abate.sim.scenario import load_scenario
from abate.sim.study import run_study
from tests.cli.commands import abate_command, until

# -- files
from tests.cli.sim.breaking import broken_off


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
    pictures = (folder / "out.html").read_text().count("<img")
    monkeypatch.setattr(sim_output_files, "PATIENCE", 0.0)
    code, _, err = sim(*words)
    assert code == 0
    assert "no recovery map: it would take about" in err
    assert "--map" in err
    assert (folder / "out.html").read_text().count("<img") == pictures - 2


def test_how_long_maps_take_depends_on_their_loads():
    """Not on the scenario's own: one that is hardly called is mapped up to its capacity, or its rate limit."""
    scenario = load_scenario("outage.toml")
    studies = [run_study(scenario.changed(f"clients.count={count}"), seeds=1) for count in (10, 50)]
    often, seldom = map(sim_output_files.survey_cost_ratio, studies)
    assert often == pytest.approx(5 * seldom)
    limited = run_study(scenario.changed("services.api.limit={ rate = 20.0 }"), seeds=1)
    assert sim_output_files.survey_cost_ratio(limited) == pytest.approx(seldom / 10)


def test_a_map_that_cannot_be_drawn_is_said(sim):
    """Where all call once, there is nothing to recover."""
    _, _, err = sim("crowd.toml", "--seeds", 1, "--report", "out.html", "--map")
    assert "no recovery map: it needs clients that call again and again" in err


# -- breaking off


def test_what_is_broken_off_shows_what_was_computed(folder):
    """The table is there, a line says that it is not complete, and the exit code is Ctrl-C's."""
    code, out, shown = broken_off("outage.toml", "--seeds", 100_000, "--jobs", 1, after=b" of 100,000 runs")
    assert code == 130
    assert b"amplification" in out
    assert b"of 100000 runs" in shown
    assert b"not complete: interrupted after " in shown
    assert b"Traceback" not in shown


@pytest.mark.parametrize("after", [rb" of 100,000 runs", rb" [1-9][0-9,]* of 100,000 runs"], ids=["start", "work"])
def test_breaking_off_ends_the_processes_that_help(folder, after):
    """While they start or run: their unfinished runs are not waited for; JSON stays JSON."""
    words = [folder / "outage.toml", "--seeds", 100_000, "--jobs", 2, "--json"]
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
