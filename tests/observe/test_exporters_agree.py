"""Prometheus and OpenTelemetry report the same figures of calls and state."""

import gc
from math import isfinite

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

import abate
from abate import observe
from abate.testing import Script

SAME = {
    "abate.calls": "abate_calls_total",
    "abate.active_calls": "abate_inflight",
    "abate.budget.balance": "abate_retry_budget_balance",
    "abate.budget.remaining": "abate_retry_budget_remaining_ratio",
    "abate.shelter.state": "abate_shelter_state",
    "abate.shelter.waiters": "abate_shelter_waiters",
    "abate.shelter.limit": "abate_shelter_limit",
    "abate.queue.depth": "abate_queue_depth",
    "abate.queue.adds": "abate_queue_adds_total",
    "abate.queue.coalesced": "abate_queue_coalesced_total",
    "abate.store.degraded": "abate_store_degraded",
}


class Both:
    """Both sinks, installed at the same time."""

    def __init__(self):
        self.registry = CollectorRegistry()
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.sinks = (observe.PrometheusSink(self.registry), observe.OpenTelemetrySink(self.provider))

    def __enter__(self):
        for sink in self.sinks:
            observe.install(sink)
        return self

    def __exit__(self, *_):
        for sink in self.sinks:
            observe.remove(sink)
        self.provider.shutdown()

    def prometheus(self):
        """Return what OpenTelemetry has too: finite values, and no counters that are zero."""
        return {
            name: {
                frozenset(sample.labels.values()): sample.value
                for family in self.registry.collect()
                for sample in family.samples
                if sample.name == exposed and isfinite(sample.value) and (name != "abate.calls" or sample.value)
            }
            for name, exposed in SAME.items()
        }

    def opentelemetry(self):
        (resource,) = self.reader.get_metrics_data().resource_metrics
        metrics = {metric.name: metric.data.data_points for metric in resource.scope_metrics[0].metrics}
        return {
            name: {
                frozenset(point.attributes.values()): float(point.value)
                for point in metrics.get(name, ())
                if name != "abate.calls" or point.value
            }
            for name in SAME
        }

    def agreed(self):
        """Return the figures, after a check that they are the same."""
        gc.collect()
        figures = self.opentelemetry()
        assert figures == self.prometheus()
        return figures


@pytest.fixture
def both():
    with abate.testing.VirtualClock(), Both() as both:
        yield both


def policy(name, **settings):
    return abate.Policy(name=name, on=OSError, backoff=[0.0], **settings)


def test_policies_of_one_name_that_are_dropped(both, name):
    """Their balances are added up while they exist, and their calls for ever."""
    one, two = (policy(name, budget=abate.Budget(ratio=0.0, reserve=1, window=10)) for _ in range(2))
    one.call(int)
    two.call(Script(OSError(), "fine"))
    assert both.agreed()["abate.budget.balance"][frozenset([name])] == 19.0
    del one, two
    figures = both.agreed()
    assert frozenset([name]) not in figures["abate.budget.balance"]
    assert figures["abate.calls"][frozenset([name, "success"])] == 1.0
    assert figures["abate.calls"][frozenset([name, "recovered"])] == 1.0


def test_a_keyed_policy_with_shelters(both, name):
    """Its keys have budgets and shelters of their own."""
    keyed = policy(name, shelter=abate.Shelter(name=f"{name} shelter"))
    for key in ("one", "two"):
        keyed.keyed(key).call(Script(OSError(), "fine"))
    figures = both.agreed()
    assert sum(count for labels, count in figures["abate.calls"].items() if "recovered" in labels) == 2.0
    assert any(f"{name} shelter" in str(labels) for labels in figures["abate.shelter.state"])


def test_controllers_of_one_name_that_are_dropped(both, name):
    """The adds of all of them stay counted."""
    one, two = (abate.controller(name=name)(lambda key: None) for _ in range(2))
    for controller, keys in ((one, "abb"), (two, "a")):
        for key in keys:
            controller.add(key)
    assert both.agreed()["abate.queue.adds"][frozenset([name])] == 4.0
    del controller, one
    assert both.agreed()["abate.queue.adds"][frozenset([name])] == 4.0
    del two
    figures = both.agreed()
    assert figures["abate.queue.adds"][frozenset([name])] == 4.0
    assert figures["abate.queue.coalesced"][frozenset([name])] == 1.0


def test_counts_are_whole_numbers(both, name):
    """OpenTelemetry tells whole numbers from others."""
    orders = policy(name, shelter=abate.Shelter(name=name))
    orders.call(int)
    (resource,) = both.reader.get_metrics_data().resource_metrics
    kinds = {
        metric.name: {type(point.value) for point in metric.data.data_points if name in point.attributes.values()}
        for metric in resource.scope_metrics[0].metrics
    }
    assert kinds["abate.calls"] == kinds["abate.active_calls"] == kinds["abate.shelter.state"] == {int}
    assert kinds["abate.budget.balance"] == {float}


def test_names_that_come_and_go(both, name):
    """After 500 names, further ones are called ``other``, in gauges too."""
    for batch in range(3):
        policies = [policy(f"{name}-{batch}-{number}") for number in range(300)]
        for each in policies:
            each.call(int)
        seen = both.agreed()
    assert frozenset(["other"]) in seen["abate.budget.balance"]
    assert frozenset(["other", "success"]) in seen["abate.calls"]


def test_a_forked_child(both, name, in_child):
    """Both go on from the counts of the parent."""
    orders = policy(name)
    orders.call(int)
    both.agreed()

    def child():
        orders.call(int)
        orders.call(Script(OSError(), "fine"))
        return both.agreed()["abate.calls"]

    calls = in_child(child)
    assert (calls[frozenset([name, "success"])], calls[frozenset([name, "recovered"])]) == (2.0, 1.0)
