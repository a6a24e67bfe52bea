"""Adds of keys that lie in a store: the same numbers in every sink."""

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
    """Two keys in a store, one of them added twice."""
    with abate.open_store(f"sqlite:///{tmp_path}/work.db") as store:
        made = abate.controller(store=store, name=name)(lambda key: None)
        for key in ("a", "a", "b"):
            made.add(key)
        yield made


def test_prometheus_has_the_adds_of_a_queue_in_a_store(watched, controller):
    """Before and after they are worked off."""
    for _ in range(2):
        assert watched.value("queue_adds_total", queue=controller.name) == 3
        assert watched.value("queue_coalesced_total", queue=controller.name) == 1
        controller.run(drain=True)


def test_opentelemetry_has_the_adds_of_a_queue_in_a_store(controller):
    """As its own counters."""
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


def test_the_snapshot_and_the_page_have_them(controller):
    """One row each."""
    (view,) = (view for view in observe.snapshot().queues if view.name == controller.name)
    assert (view.adds, view.coalesced) == (3, 1)
    board = PageState(RecentActivity(), MACHINE)
    board.refresh()
    queues = json.loads(board.frame().removeprefix(b"data: "))["queues"]
    (row,) = (row for row in queues if row["name"] == controller.name)
    assert (row["adds"], row["coalesced"]) == (3, 1)


def test_the_page_reads_a_store_in_a_thread_though_its_adds_are_known(controller):
    """Only a queue in memory is read by the thread that refreshes the page."""
    read_by, done = [], threading.Event()

    def depth():
        read_by.append(threading.get_ident())
        done.set()
        return Depth()

    controller.depth = depth
    PageState(RecentActivity(), MACHINE).refresh()
    assert done.wait(30.0)
    assert threading.get_ident() not in read_by
