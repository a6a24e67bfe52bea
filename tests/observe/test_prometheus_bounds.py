"""The Prometheus sink: what it refuses, and its bounds under any input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY, generate_latest

import abate
from abate import events
from abate.observe.metric_series import LabelValues
from abate.observe.prometheus import METRICS, PrometheusSink
from abate.observe.snapshot import MAX_NAMES
from abate.testing import Script
from tests.observe.watched_sink import Watched


def test_series_do_not_grow_with_keys_and_error_texts(watched, name):
    """100,000 keys, each with an error of a megabyte, make the same few series as one."""
    error = OSError("a long story " * 80_000)

    def flood(keys):
        for key in range(keys):
            watched.sink(events.Worked(name, f"key-{key}", "retry", 0.1, 1, error))
            watched.sink(events.Buried(name, f"key-{key}", "permanent", "a long story "))

    flood(1)
    series = watched.series(name)
    flood(100_000)
    assert watched.series(name) == series
    assert b"key-" not in generate_latest(watched.registry)
    assert b"long story" not in generate_latest(watched.registry)
    assert watched.value("work_seconds_count", queue=name, ending="retry") == 100_001


@pytest.mark.parametrize(
    "event",
    [
        lambda name: events.Retry(name, 1, 0.1, "blip", None, None),
        lambda name: events.Retry("p", 1, 0.1, name, None, None),
        lambda name: events.GaveUp(name, "attempts", 1, 0.1, OSError()),
        lambda name: events.GaveUp("p", name, 1, 0.1, OSError()),
        lambda name: events.Recovered(name, 2, 0.1),
        lambda name: events.BudgetRefused(name, "budget", 1),
        lambda name: events.BudgetRefused(name, "budget", 0),
        lambda name: events.Waited(name, 0.1),
        lambda name: events.Worked(name, "key", "done", 0.1, 1, None),
        lambda name: events.Worked("q", "key", name, 0.1, 1, None),
        lambda name: events.Buried(name, "key", "permanent", "no"),
        lambda name: events.Buried("q", "key", name, "no"),
    ],
)
def test_names_beyond_the_limit_are_labelled_other(watched, event):
    """The number of label values is bounded; events with later names are still counted."""
    for number in range(3 * MAX_NAMES):
        watched.sink(event(f"one-of-many-{number}"))
    names = {
        value
        for family in watched.registry.collect()
        for sample in family.samples
        for value in sample.labels.values()
        if value.startswith("one-of-many-") or value == "other"
    }
    assert "other" in names
    assert len(names) <= MAX_NAMES + 1


def test_names_counted_before_installation_take_no_labels(name):
    """Policies that were called before the sink was installed have no label in it."""
    with Watched():
        for number in range(MAX_NAMES):
            abate.Policy(name=f"{name}-{number}", on=OSError).call(Script("fine"))
    with Watched() as watched:
        abate.Policy(name=name, on=OSError).call(Script("fine"))
        assert watched.calls(name) == {"success": 1}
        assert watched.calls(f"{name}-0") == {}


def test_layers_beyond_the_limit_are_labelled_other(watched):
    """Pairs of policies have a limit of their own, because the square of the limit on names is too many."""
    for number in range(20_000):
        watched.sink(events.LayeredRetry(f"outer-{number}", f"inner-{number}"))
    assert watched.value("layered_retries_total", policy="other", inner="other") > 19_000


@given(st.lists(st.text(max_size=200), max_size=50), st.integers(1, 5))
def test_a_name_is_itself_or_other(names, most):
    """The first names keep their labels for good, later ones are `other`, and every label can be encoded."""
    labels = LabelValues(most)
    shown = [labels.of(name) for name in names]
    assert len(set(shown) - {"other"}) <= most
    assert [labels.of(name) for name in names if labels.of(name) != "other"] == [
        label for label in shown if label != "other"
    ]
    assert all(len(label) <= 1200 and label.encode() for label in shown)


def test_odd_names_can_be_scraped(watched):
    """Empty names, lone surrogates, quotes, newlines and very long names are escaped or cut."""
    policies = [abate.Policy(name=name, on=OSError) for name in ("", "\ud800", 'a"b\nc\\', "x" * 100_000)]
    for policy in policies:
        policy.call(Script("fine"))
    text = generate_latest(watched.registry).decode()
    for label in ("unnamed", r"\\ud800", r"a\"b\\nc\\", "x" * 120):
        assert f'abate_calls_total{{outcome="success",policy="{label}"}} 1.0\n' in text
    assert "x" * 121 not in text


# -- the sink itself


def test_one_sink_serves_a_registry(watched):
    """A second sink would count the same things again under the same names."""
    with pytest.raises(ValueError, match=r"served by one PrometheusSink.*unregister"):
        PrometheusSink(watched.registry)
    watched.registry.unregister(watched.sink)
    PrometheusSink(watched.registry)


def test_a_registry_of_another_type_is_refused():
    """The error names the value."""
    with pytest.raises(TypeError, match="registry must be a CollectorRegistry of prometheus_client, not 'metrics'"):
        PrometheusSink("metrics")


def test_without_a_registry_the_default_one_is_used():
    """The sink registers with `prometheus_client.REGISTRY`."""
    sink = PrometheusSink()
    try:
        assert any(family.name == "abate_calls" for family in REGISTRY.collect())
    finally:
        REGISTRY.unregister(sink)


def test_a_removed_sink_counts_nothing(name):
    """It ignores events and successes, and keeps its earlier counts."""
    policy = abate.Policy(name=name, on=OSError, backoff=[0.0])
    with Watched() as watched:
        policy.call(Script("fine"))
    policy.call(Script("fine"))
    policy.call(Script(OSError(), "fine"))
    assert watched.calls(name) == {"success": 1}


def test_every_metric_is_described(watched):
    """`collect` returns the metrics and labels that `describe` announces."""
    assert [family.name for family in watched.sink.describe()] == list(METRICS)
    assert [family.name for family in watched.sink.collect()] == list(METRICS)
    for family in watched.sink.collect():
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(METRICS[family.name][2]), sample
