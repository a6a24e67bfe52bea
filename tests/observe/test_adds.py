"""Adds of keys that lie in a store: the same numbers in every sink."""

import threading

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import abate
from abate import observe
from abate.clock import MACHINE
from abate.observe.otel import OpenTelemetrySink
from abate.observe.page.board import Board
from abate.observe.page.depths import Depths
from abate.observe.page.recent import Recent


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
    board = Board(Recent(), MACHINE)
    board.look()
    (row,) = (row for row in board._shown["queues"] if row["name"] == controller.name)
    assert (row["adds"], row["coalesced"]) == (3, 1)


def test_the_page_asks_a_store_in_a_thread_though_its_adds_are_known(controller):
    """Only the depth of what is in memory is looked at on the spot."""
    asked = []
    controller.depth = lambda: asked.append(threading.get_ident())
    depths = Depths()
    assert depths.of(controller).depth is None
    assert depths.due([controller], 0.0) == [controller]
    assert asked == []
