"""The OpenTelemetry sink, with the real SDK."""

import gc
import os

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import abate
from abate import event_sinks, events
from abate.observe.otel import MAX_ERROR_TYPES, OpenTelemetrySink
from abate.testing import Script, VirtualClock
from tests.reentry import guarded, interrupted_at

PATIENCE = 30.0
DOWN = OSError("down")


class Metrics:
    """A sink that is installed, and a reader that collects from it."""

    def __init__(self):
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self.reader], shutdown_on_exit=False)
        self.sink = abate.observe.install(OpenTelemetrySink(self.provider))

    def collect(self):
        data = self.reader.get_metrics_data()
        metrics = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
        return {metric.name: metric for metric in metrics}

    def values(self, name, **attributes):
        """Return the values of a metric, by those of its attributes that are not given here."""
        wanted = {f"abate.{key}": value for key, value in attributes.items()}
        metric = self.collect().get(name)
        points = [] if metric is None else metric.data.data_points
        return {
            tuple(value for key, value in sorted(point.attributes.items()) if key not in wanted): point.value
            if hasattr(point, "value")
            else (point.count, point.sum)
            for point in points
            if wanted.items() <= point.attributes.items()
        }


@pytest.fixture
def metrics():
    """Return the metrics of one test."""
    metrics = Metrics()
    yield metrics
    abate.observe.remove(metrics.sink)
    metrics.provider.shutdown()


def policy(name="orders", **settings):
    settings = {"on": OSError, "backoff": [1.0], "max_attempts": 3} | settings
    return abate.Policy(name=name, **settings)


def test_calls_are_counted_by_outcome(metrics):
    """Immediate successes, recoveries and give-ups are each counted once."""
    orders = policy("calls")
    with VirtualClock():
        for _ in range(5):
            orders.call(int)
        orders.call(Script(DOWN, "fine"))
        with pytest.raises(OSError):
            orders.call(Script(DOWN, DOWN, DOWN))
        with pytest.raises(KeyError):
            orders.call(Script(KeyError()))
    values = metrics.values("abate.calls", policy="calls")
    assert {outcome: count for (outcome,), count in values.items() if count} == {
        "success": 5,
        "recovered": 1,
        "attempts": 1,
        "fatal": 1,
    }


def test_retries_and_delays(metrics):
    """Retries are counted by the kind of failure and the error type; delays are a histogram of seconds."""
    with VirtualClock():
        policy("retries", on=(OSError, TimeoutError)).call(Script(DOWN, TimeoutError(), "fine"))
    assert metrics.values("abate.retries", policy="retries") == {
        ("blip", "OSError"): 1,
        ("overload", "TimeoutError"): 1,
    }
    assert metrics.values("abate.retry.delay", policy="retries") == {("blip",): (1, 1.0), ("overload",): (1, 1.0)}


def test_refusals(metrics):
    """They are counted by gate or budget; a refused first attempt ends its call."""
    orders = policy("refused", budget=abate.Budget.empty())
    with pytest.raises(OSError):
        orders.call(Script(DOWN))
    guarded = policy("guarded", gate=abate.ConcurrencyLimit(1, name="limit"))
    with guarded.gate, pytest.raises(abate.Refused):
        guarded.call(int)
    assert metrics.values("abate.refusals") == {("empty budget", "refused"): 1, ("limit", "guarded"): 1}
    assert metrics.values("abate.calls", policy="guarded", outcome="budget") == {(): 1}


def test_every_event_has_its_metric(metrics):
    """Work, dead letters, leases, crashes, breakers, sources, buckets and layers are counted."""
    for event in (
        events.LayeredRetry("outer", "inner"),
        events.Waited("bucket", 0.5),
        events.Worked("mail", "42", "retry", 0.25, 3, DOWN),
        events.Worked("mail", "42", "done", 0.5, 3, None),
        events.Buried("mail", "42", "permanent", "no"),
        events.Buried("mail", "42", "by hand", "no"),
        events.LeaseLost("mail", "42"),
        events.WorkerCrashed("mail", "42", DOWN),
        events.BreakerOpened("mail", 30.0),
        events.SourceFailed("mail", "queue", DOWN, 1.0),
        events.StoreDegraded("redis", True, DOWN),
        events.ShelterChanged("orders", "shop", "storm", 1, 1.0),
        events.FirstFailure("orders", "blip", DOWN),
        events.Event("orders"),
    ):
        event_sinks.emit(event)
    assert metrics.sink in event_sinks.installed
    assert metrics.values("abate.layered_retries") == {("inner", "outer"): 1}
    assert metrics.values("abate.rate_limiter.wait") == {("bucket",): (1, 0.5)}
    assert metrics.values("abate.work.duration", queue="mail") == {("retry", "OSError"): (1, 0.25), ("done",): (1, 0.5)}
    assert metrics.values("abate.dead_letters", queue="mail") == {("permanent",): 1, ("other",): 1}
    for name in ("abate.leases_lost", "abate.worker_crashes"):
        assert metrics.values(name, queue="mail") == {(): 1}
    assert metrics.values("abate.breaker.opened") == {("mail",): 1}
    assert metrics.values("abate.source.failures", queue="mail") == {("OSError",): 1}


def test_gauges_are_read_at_collection(metrics):
    """Balance, remaining share and calls in flight are read anew by each collection."""
    orders = policy("gauges", budget=abate.Budget(ratio=0.0, reserve=1, window=10), backoff=[0.0])
    assert metrics.values("abate.budget.balance", policy="gauges") == {(): 10.0}
    assert metrics.values("abate.budget.remaining", policy="gauges") == {(): 1.0}
    orders.call(Script(DOWN, "fine"))
    assert metrics.values("abate.budget.balance", policy="gauges") == {(): 9.0}
    assert metrics.values("abate.budget.remaining", policy="gauges") == {(): 0.9}
    seen = orders.call(lambda: metrics.values("abate.active_calls", policy="gauges"))
    assert seen == {(): 1}
    assert metrics.values("abate.active_calls", policy="gauges") == {(): 0}


def test_shelters(metrics):
    """The current state is 1; waiters and limit are those of the shelter."""
    shelter = abate.Shelter(name="otel shop")
    sheltered = policy("sheltered", shelter=shelter)
    assert metrics.values("abate.shelter.state", shelter="otel shop") == {
        ("calm",): 1,
        ("storm",): 0,
        ("probing",): 0,
        ("recovering",): 0,
    }
    assert metrics.values("abate.shelter.waiters", shelter="otel shop") == {(): 0}
    assert metrics.values("abate.shelter.limit", shelter="otel shop") == {(): sheltered.shelter.limit}


def test_infinite_values_are_left_out(metrics):
    """An unlimited budget has no balance to export."""
    boundless = policy("boundless", budget=abate.Budget(reserve=float("inf")))
    assert metrics.values("abate.budget.balance", policy=boundless.name) == {}
    assert metrics.values("abate.budget.remaining", policy=boundless.name) == {(): 1.0}


def test_queues_and_stores(metrics):
    """The metrics have a controller's depth by state, its workers and adds, and whether a store answers."""

    @abate.controller(workers=2, name="otel queue")
    def reconcile(key):
        raise abate.PermanentFailure("no")

    for key in ("a", "b", "b"):
        reconcile.add(key)
    store = abate.open_store("memory:")
    depths = metrics.values("abate.queue.depth", queue="otel queue")
    assert (depths["ready",], depths["delayed",], depths["in_hand",], depths["dead",]) == (2, 0, 0, 0)
    assert metrics.values("abate.queue.adds", queue="otel queue") == {(): 3}
    assert metrics.values("abate.queue.coalesced", queue="otel queue") == {(): 1}
    assert metrics.values("abate.queue.workers", queue="otel queue") == {("busy",): 0, ("idle",): 2}
    assert metrics.values("abate.queue.age", queue="otel queue")[()] >= 0.0
    reconcile.run(drain=True)
    assert metrics.values("abate.queue.depth", queue="otel queue")["dead",] == 2
    assert metrics.values("abate.dead_letters", queue="otel queue") == {("permanent",): 2}
    assert metrics.values("abate.store.degraded", store=store.name) == {(): 0}


def test_every_metric_has_a_unit_and_a_description(metrics):
    """Names are in lower case with dots and without units; units are in UCUM."""
    for event in (
        events.Retry("orders", 1, 0.5, "blip", None, DOWN),
        events.Worked("mail", "42", "retry", 0.25, 3, DOWN),
    ):
        event_sinks.emit(event)
    collected = metrics.collect()
    assert {"abate.retries", "abate.retry.delay", "abate.work.duration"} <= collected.keys()
    for name, metric in collected.items():
        assert name.startswith("abate.")
        assert name == name.lower()
        assert metric.unit in ("1", "s") or metric.unit.startswith("{")
        assert metric.description.endswith(".")
        assert not name.endswith(("_total", "seconds"))


def test_attributes_are_bounded(metrics):
    """A thousand policies, error types and reasons make a bounded number of series; names are cut."""
    for number in range(1_000):
        error = type(f"Error{number}", (Exception,), {})()
        metrics.sink(events.Retry("one", 1, 0.5, f"reason {number}", None, error))
        metrics.sink(events.LayeredRetry(f"p{number}" + "x" * 1_000_000, "inner"))
    retries = metrics.values("abate.retries", policy="one")
    assert len(retries) == MAX_ERROR_TYPES + 1
    assert retries["other", "_OTHER"] == 1_000 - MAX_ERROR_TYPES
    layered = metrics.values("abate.layered_retries")
    assert len(layered) <= 501
    assert max(len(part) for labels in layered for part in labels) <= 120


def test_a_collected_sink_reports_nothing():
    """Instruments stay with their provider, but don't keep the sink alive."""
    metrics = Metrics()
    assert metrics.values("abate.budget.balance") is not None
    abate.observe.remove(metrics.sink)
    orders = policy("left behind")
    assert (orders.name,) in metrics.values("abate.budget.balance")
    del metrics.sink
    gc.collect()
    assert metrics.values("abate.budget.balance") == {}
    assert metrics.values("abate.calls") == {}


def test_without_an_sdk_the_sink_does_nothing():
    """The API alone has no-op meters and spans, and calls work."""
    sink = abate.observe.install(OpenTelemetrySink())
    try:
        with VirtualClock():
            assert policy().call(Script(DOWN, "fine")) == "fine"
        assert sink in event_sinks.installed
    finally:
        abate.observe.remove(sink)


def test_a_provider_of_another_type_is_refused():
    """The constructor raises an error that names the value."""
    with pytest.raises(TypeError, match="meter_provider must be a MeterProvider of opentelemetry, not 42"):
        OpenTelemetrySink(42)


def test_an_abandoned_call_is_not_counted_while_the_sdk_collects():
    """The collector may close it while the SDK holds its locks: it is counted with the next collection."""
    reader = InMemoryMetricReader()
    sink = OpenTelemetrySink(MeterProvider([reader], shutdown_on_exit=False))
    sink(events.LayeredRetry("orders", "inner"))
    abandoned = []

    def call():
        try:
            yield
        finally:
            sink(events.LayeredRetry("orders", "inner"))

    def abandon():
        one = call()
        next(one)
        one.close()
        abandoned.append(one)

    sdk, max_steps = os.path.join("opentelemetry", "sdk"), 3000
    for step in range(1, max_steps, 29):
        if not guarded(lambda at=step: interrupted_at(at, reader.get_metrics_data, abandon, where=sdk)):
            break
    assert len(abandoned) > 20
    reader.get_metrics_data()
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    (layered,) = [metric for metric in metrics if metric.name == "abate.layered_retries"]
    assert layered.data.data_points[0].value == 1 + len(abandoned)
