"""Regret: each case is compared with the oracle of its world, seed by seed; without one, a note tells why."""

import json
from math import isnan, nan
from pathlib import Path

import pytest

from abate.sim import Scenario, load_scenario, oracle, run_study
from abate.sim.study_tables import default_measures, note_lines

DOCS = Path(__file__).parents[2] / "docs"
STORM = {
    "run": {"horizon": 25.0},
    "clients": {"count": 20},
    "policy": {"max_attempts": 4, "timeout": 6.0},
    "services": {"api": {"workers": 2, "service_time": 0.05}},
    "triggers": [{"kind": "error", "at": 5.0, "for": 4.0}],
    "variants": {"budget": {}, "shelter": {"policy": {"shelter": "api"}}},
}


def scenario(**changes):
    return Scenario("storm", "storm.toml", {**STORM, **changes})


def test_regret_is_the_share_of_calls_lost_beyond_the_oracle():
    """With the same seed, and so the same calls."""
    study = run_study(scenario(), seeds=2, jobs=1)
    for result in study.results:
        for sample in result.samples:
            ideal = oracle.run(result.case.world, sample.seed).measures()
            assert sample.measures["regret"] == ideal["success"] - sample.measures["success"]
            assert sample.measures["regret_recovery"] == sample.measures["recovery"] - ideal["recovery"]
    budget, shelter = (result.measures["regret"].mean for result in study.results)
    assert budget > 0.1
    assert budget > shelter >= 0.0
    assert "regret" in default_measures(study.results)


def test_variants_of_one_world_have_one_oracle():
    """What the policies decide does not matter to it, nor in how many processes they run."""
    study = run_study(scenario(), seeds=2, jobs=1)
    (ideal,) = study.oracles
    assert (ideal.case.name, len(ideal.samples)) == ("oracle", 2)
    processes = {**STORM["variants"], "budget": {"clients": {"processes": 4}}}
    assert len(run_study(scenario(variants=processes), seeds=1, jobs=1).oracles) == 1


def test_variants_with_different_time_have_oracles_of_their_own():
    """Their names tell whose they are."""
    variants = {**STORM["variants"], "hasty": {"policy": {"timeout": 1.0}}, "same": {}}
    study = run_study(scenario(variants=variants), seeds=1, jobs=1)
    names = [result.case.name for result in study.oracles]
    assert names == ["oracle of budget, shelter, same", "oracle of hasty"]
    patient, hasty = (result.measures["success"].mean for result in study.oracles)
    assert patient == 1.0 > hasty


def test_each_value_of_a_sweep_has_its_oracle():
    """One per world, and each is named by its value."""
    study = run_study(scenario(sweep={"clients.count": [10, 60]}), seeds=1, jobs=1)
    assert [result.case.name for result in study.oracles] == ["oracle count=10", "oracle count=60"]
    few, many = (result.measures["success"].mean for result in study.oracles)
    assert few == 1.0 > many


@pytest.mark.parametrize(
    ("changes", "engine", "why"),
    [
        ({"clients": {"count": 20, "kind": "serial"}}, None, "serial clients"),
        ({"services": {"api": {"workers": 200, "service_time": 0.05}}}, "fleet", "the fleet engine"),
    ],
)
def test_where_there_is_no_oracle_a_note_tells_why(changes, engine, why):
    """And no figure is given: an assertion does not hold."""
    given = scenario(**{**changes, "variants": {"budget": {}}, "assert": {"max_regret": 0.5}})
    study = run_study(given, seeds=1, engine=engine, jobs=1)
    assert study.oracles == ()
    assert any(line.startswith("no regret: ") and why in line for line in note_lines(study.results))
    assert isnan(study.results[0].measures["regret"].mean)
    assert "regret" not in default_measures(study.results)
    assert study.broken() == ["budget: max_regret = 0.5, and regret is -"]


def test_a_build_fails_by_regret(tmp_path, capsys):
    """`max_regret` is an assertion like others."""
    from abate.cli import main

    text = (DOCS / "shelter.toml").read_text()
    (tmp_path / "storm.toml").write_text(text + "\n[assert]\nmax_regret = 0.1\n")
    assert main(["sim", str(tmp_path / "storm.toml"), "--seeds", "1", "--jobs", "1"]) == 1
    captured = capsys.readouterr()
    assert "max_regret = 0.1, and regret is" in captured.err
    assert "shelter: max_regret" not in captured.err
    assert any(line.startswith("oracle ") for line in captured.out.splitlines())


def test_json_has_the_regrets_and_the_oracles():
    """The measures of an oracle are those of a case."""
    found = json.loads(json.dumps(run_study(scenario(), seeds=1, jobs=1).as_json()))
    assert found["cases"][0]["measures"]["regret"]["mean"] > 0.0
    assert [each["variant"] for each in found["oracles"]] == ["oracle"]
    assert found["oracles"][0]["measures"]["success"]["mean"] == 1.0


def test_a_study_without_oracles_has_no_regret():
    """Surveys run without: what they measure is something else."""
    study = run_study(scenario(), seeds=1, jobs=1, regret=False)
    assert study.oracles == ()
    assert "regret" not in study.results[0].measures
    assert study.results[0].measures.get("regret", nan) is nan


def test_the_oracle_is_drawn_beside_the_variants():
    """The picture of docs/shelter.md has four panels, and its scenario is what the page says."""
    pytest.importorskip("matplotlib")
    from abate.sim.report.choose_pictures import choose_pictures

    study = run_study(load_scenario(DOCS / "shelter.toml"), seeds=1, jobs=1)
    load, *others = choose_pictures(study)
    assert [panel.title for panel in load.panels] == ["naive", "budget", "shelter", "oracle"]
    assert others == []
    page = (DOCS / "shelter.md").read_text()
    assert "abate sim docs/shelter.toml" in page
    assert "images/shelter.png" in page
