"""The table of metrics in the documentation agrees with a scrape."""

import re
from pathlib import Path

import pytest

import abate
from abate.events import DEAD_LETTER_REASONS, ENDINGS, FAILURE_KINDS, SHELTER_STATES
from abate.observe.call_outcomes import OUTCOMES
from abate.observe.prometheus import METRICS

PAGE = Path(__file__).parents[2] / "docs" / "observe.md"
ROW = re.compile(r"^\| (`abate_.*?) \| (.*) \|$", re.MULTILINE)
METRIC = re.compile(r"`(abate_\w+)(?:\{([\w,]+)\})?`")


def rows():
    """Return the labels and the text of each metric in the table."""
    return {
        name: (set(labels.split(",")), text)
        for metrics, text in ROW.findall(PAGE.read_text())
        for name, labels in METRIC.findall(metrics)
    }


def test_the_table_has_every_metric_with_its_labels(watched):
    """The sink describes the same metrics and labels; counters have the name under which they are exposed."""
    described = {
        family.name + ("_total" if family.type == "counter" else ""): set(METRICS[family.name][2])
        for family in watched.sink.describe()
    }
    assert {name: labels for name, (labels, _) in rows().items()} == described


def test_the_table_says_which_are_histograms(watched):
    """The word stands alone or before the description of the next metric in the row."""
    said = {name for name, (_, text) in rows().items() if "(histogram)" in text and name.endswith("_seconds")}
    assert said == {family.name for family in watched.sink.describe() if family.type == "histogram"}


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        ("abate_retries_total", FAILURE_KINDS),
        ("abate_shelter_state", SHELTER_STATES),
        ("abate_work_seconds", ENDINGS),
        ("abate_dead_letters_total", DEAD_LETTER_REASONS),
    ],
)
def test_the_table_has_every_value_of_a_closed_set(metric, values):
    """States, reasons and endings are listed."""
    assert set(values) <= set(re.findall(r"\w+", rows()[metric][1]))


def test_the_table_has_the_outcomes():
    """The row lists success, recovered, and the number of reasons."""
    assert OUTCOMES[:2] == ("success", "recovered")
    assert len(OUTCOMES[2:]) == 10
    assert "success, recovered, or one of the ten reasons" in rows()["abate_calls_total"][1]


def test_the_table_has_every_state_of_a_queue(watched, name):
    """A scrape has the same states."""
    controller = abate.controller(name=name)(lambda key: None)
    controller.add("orders/42")
    states = {dict(labels)["state"] for metric, *labels in watched.series(name) if metric == "abate_queue_depth"}
    assert states == {"ready", "delayed", "in_hand", "dead"}
    assert states <= set(re.findall(r"\w+", rows()["abate_queue_depth"][1]))
