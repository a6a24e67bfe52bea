"""What docs/defaults.md says of the defaults is what the scenarios behind it show."""

from pathlib import Path

import pytest

from abate.admit import Budget
from abate.call import Policy
from abate.schedule import Backoff
from abate.sim import load_scenario, run_study, simulated

DOCS = Path(__file__).parents[2] / "docs"
FILES = sorted((DOCS / "defaults").glob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_is_asserted_of_a_default_holds(file):
    """The choice that became the default keeps what its scenario promises."""
    scenario = load_scenario(file)
    if "sweep" in scenario.document:  # the ends of the sweep are enough
        for path, values in scenario.document["sweep"].items():
            scenario.document["sweep"][path] = [values[0], values[-1]]
    study = run_study(scenario, seeds=1, jobs=1)
    assert any(result.case.asserted for result in study.results)
    assert study.broken() == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_choice_has_its_place_in_the_page(file):
    """Each scenario is linked from the page, with its picture."""
    page = (DOCS / "defaults.md").read_text()
    assert f"defaults/{file.name}" in page
    assert f"images/defaults-{file.stem}.png" in page


def test_the_page_is_about_the_defaults_that_there_are():
    """The values that the page justifies are those that a policy has."""
    policy = Policy(on=simulated)
    assert policy.max_attempts == 3
    assert policy.backoff == Backoff(base=0.2, cap=30.0, jitter="full")
    assert policy.overload_backoff == Backoff(base=1.0, cap=30.0, jitter="full")
    assert policy.budget.settings() == Budget(ratio=0.2, reserve=10.0, window=10.0, funded_by="success").settings()
