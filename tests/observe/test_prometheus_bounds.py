"""The Prometheus sink: what it refuses, and what it never does, whatever it is told."""

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


def test_nothing_grows_with_keys_and_texts(watched, name):
    """100,000 keys, each with an error of a megabyte, are the same few series as one."""
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
def test_names_beyond_a_bound_are_other(watched, event):
    """Label values are bounded, whatever they are called; nothing that came later is lost."""
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


def test_names_that_others_counted_take_no_room(name):
    """What was called before this sink was there has no label in it."""
    with Watched():
        for number in range(MAX_NAMES):
            abate.Policy(name=f"{name}-{number}", on=OSError).call(Script("fine"))
    with Watched() as watched:
        abate.Policy(name=name, on=OSError).call(Script("fine"))
        assert watched.calls(name) == {"success": 1}
        assert watched.calls(f"{name}-0") == {}


def test_layers_beyond_a_bound_are_other(watched):
    """Pairs of policies are bounded as well: the square of a bound would be none."""
    for number in range(20_000):
        watched.sink(events.LayeredRetry(f"outer-{number}", f"inner-{number}"))
    assert watched.value("layered_retries_total", policy="other", inner="other") > 19_000


@given(st.lists(st.text(max_size=200), max_size=50), st.integers(1, 5))
def test_a_name_is_itself_or_other(names, most):
    """The first few keep their label for ever; what is not known by then is `other`. All can be exposed."""
    labels = LabelValues(most)
    shown = [labels.of(name) for name in names]
    assert len(set(shown) - {"other"}) <= most
    assert [labels.of(name) for name in names if labels.of(name) != "other"] == [
        label for label in shown if label != "other"
    ]
    assert all(len(label) <= 1200 and label.encode() for label in shown)


def test_odd_names_can_be_scraped(watched):
    """None at all, half a surrogate pair, quotes and newlines, a book."""
    policies = [abate.Policy(name=name, on=OSError) for name in ("", "\ud800", 'a"b\nc\\', "x" * 100_000)]
    for policy in policies:
        policy.call(Script("fine"))
    text = generate_latest(watched.registry).decode()
    for label in ("unnamed", r"\\ud800", r"a\"b\\nc\\", "x" * 120):
        assert f'abate_calls_total{{outcome="success",policy="{label}"}} 1.0\n' in text
    assert "x" * 121 not in text


# -- the sink itself


def test_one_sink_serves_a_registry(watched):
    """A second one would count the same things again under the same names."""
    with pytest.raises(ValueError, match=r"served by one PrometheusSink.*unregister"):
        PrometheusSink(watched.registry)
    watched.registry.unregister(watched.sink)
    PrometheusSink(watched.registry)


def test_a_registry_is_a_registry():
    """What is none is named."""
    with pytest.raises(TypeError, match="registry must be a CollectorRegistry of prometheus_client, not 'metrics'"):
        PrometheusSink("metrics")


def test_without_a_registry_it_is_the_default_one():
    """As everything of prometheus_client is."""
    sink = PrometheusSink()
    try:
        assert any(family.name == "abate_calls" for family in REGISTRY.collect())
    finally:
        REGISTRY.unregister(sink)


def test_once_removed_it_counts_nothing(name):
    """Neither events nor successes; what it had counted stays."""
    policy = abate.Policy(name=name, on=OSError, backoff=[0.0])
    with Watched() as watched:
        policy.call(Script("fine"))
    policy.call(Script("fine"))
    policy.call(Script(OSError(), "fine"))
    assert watched.calls(name) == {"success": 1}


def test_every_metric_is_described(watched):
    """What is collected is what was announced, under the labels that were."""
    assert [family.name for family in watched.sink.describe()] == list(METRICS)
    assert [family.name for family in watched.sink.collect()] == list(METRICS)
    for family in watched.sink.collect():
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(METRICS[family.name][2]), sample
