"""Adds to a queue in a store: every sink reports the same numbers."""

import json
import threading

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import abate
from abate import observe
from abate.clock import MACHINE
from abate.observe.otel import OpenTelemetrySink
from abate.observe.page.recent_activity import RecentActivity
from abate.observe.page.state import PageState
from abate.stores import Depth


@pytest.fixture
def controller(tmp_path, name):
    """Return a controller with two keys in a store, one of them added twice."""
    with abate.open_store(f"sqlite:///{tmp_path}/work.db") as store:
        made = abate.controller(store=store, name=name)(lambda key: None)
        for key in ("a", "a", "b"):
            made.add(key)
        yield made


def test_prometheus_counts_adds_to_a_store(watched, controller):
    """The counts are the same before and after the keys are processed."""
    for _ in range(2):
        assert watched.value("queue_adds_total", queue=controller.name) == 3
        assert watched.value("queue_coalesced_total", queue=controller.name) == 1
        controller.run(drain=True)


def test_opentelemetry_counts_adds_to_a_store(controller):
    """Adds and coalesced adds are two metrics."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    sink = observe.install(OpenTelemetrySink(provider))
    try:
        (resource,) = reader.get_metrics_data().resource_metrics
    finally:
        observe.remove(sink)
        provider.shutdown()
    values = {
        metric.name: point.value
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if point.attributes.get("abate.queue") == controller.name
    }
    assert (values["abate.queue.adds"], values["abate.queue.coalesced"]) == (3, 1)


def test_the_snapshot_and_the_page_count_adds_to_a_store(controller):
    """Each has one row for the queue."""
    (view,) = (view for view in observe.snapshot().queues if view.name == controller.name)
    assert (view.adds, view.coalesced) == (3, 1)
    state = PageState(RecentActivity(), MACHINE)
    state.refresh()
    queues = json.loads(state.frame().removeprefix(b"data: "))["queues"]
    (row,) = (row for row in queues if row["name"] == controller.name)
    assert (row["adds"], row["coalesced"]) == (3, 1)


def test_the_page_reads_the_depth_of_a_store_in_a_thread(controller):
    """The thread that refreshes the page reads only queues in memory."""
    read_by, done = [], threading.Event()

    def depth():
        read_by.append(threading.get_ident())
        done.set()
        return Depth()

    controller.depth = depth
    PageState(RecentActivity(), MACHINE).refresh()
    assert done.wait(30.0)
    assert threading.get_ident() not in read_by
