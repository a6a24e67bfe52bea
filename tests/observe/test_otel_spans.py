"""Spans with the OpenTelemetry sink and the real SDK: events, attributes, parents, failing exporters."""

import asyncio
import threading

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import abate
from abate import event_sinks, events
from abate.observe.otel import MAX_SPAN_EVENTS, OpenTelemetrySink
from abate.testing import Script, VirtualClock

PATIENCE = 30.0
DOWN = OSError("down")


@pytest.fixture
def sink():
    """Return a sink that is installed for one test."""
    sink = abate.observe.install(OpenTelemetrySink(MeterProvider(shutdown_on_exit=False)))
    yield sink
    abate.observe.remove(sink)


class Spans:
    """A tracer, and its ended spans."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("tests")

    def ended(self, name):
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def spans():
    """Return the spans of one test."""
    return Spans()


def policy(name="orders", **settings):
    settings = {"on": OSError, "backoff": [1.0], "max_attempts": 3} | settings
    return abate.Policy(name=name, **settings)


def test_a_retry_is_an_event_on_the_current_span(sink, spans):
    """It has attempt, delay, reason and error type; the span's attributes have the end of the call."""
    with VirtualClock(), spans.tracer.start_as_current_span("caller"):
        policy(on=(OSError, TimeoutError)).call(Script(DOWN, TimeoutError(), "fine"))
    (span,) = spans.ended("caller")
    assert [(event.name, dict(event.attributes)) for event in span.events] == [
        (
            "abate.retry",
            {
                "abate.policy": "orders",
                "abate.attempt": 1,
                "abate.delay": 1.0,
                "abate.reason": "blip",
                "error.type": "OSError",
            },
        ),
        (
            "abate.retry",
            {
                "abate.policy": "orders",
                "abate.attempt": 2,
                "abate.delay": 1.0,
                "abate.reason": "overload",
                "error.type": "TimeoutError",
            },
        ),
    ]
    assert dict(span.attributes) == {
        "abate.policy": "orders",
        "abate.attempts": 3,
        "abate.waited": 2.0,
        "abate.reason": "recovered",
    }


def test_a_call_that_gives_up_sets_attributes_of_its_span(sink, spans):
    """They are the attempts and the reason."""
    with VirtualClock(), spans.tracer.start_as_current_span("caller"), pytest.raises(OSError):
        policy(max_attempts=2).call(Script(DOWN, DOWN))
    (span,) = spans.ended("caller")
    assert (span.attributes["abate.attempts"], span.attributes["abate.reason"]) == (2, "attempts")


def test_a_retry_event_has_the_hint(sink, spans):
    """It is the delay that the server asked for."""
    with spans.tracer.start_as_current_span("caller"):
        sink(events.Retry("orders", 1, 3.5, "overload", 3.0, None))
    (span,) = spans.ended("caller")
    assert span.events[0].attributes["abate.hint"] == 3.0


def test_a_call_that_succeeds_at_once_does_not_touch_its_span(sink, spans):
    """It adds neither events nor attributes."""
    with spans.tracer.start_as_current_span("caller"):
        policy().call(int)
    (span,) = spans.ended("caller")
    assert (span.events, dict(span.attributes)) == ((), {})


def test_span_events_are_bounded(sink, spans):
    """A call of a thousand attempts does not displace the caller's own events."""
    boundless = policy(max_attempts=1_000, budget=abate.Budget(1.0, 1_000.0))
    with VirtualClock(), spans.tracer.start_as_current_span("caller") as span:
        span.add_event("mine")
        boundless.call(Script(*[DOWN] * 999, "fine"))
    (span,) = spans.ended("caller")
    assert [event.name for event in span.events] == ["mine"] + ["abate.retry"] * (MAX_SPAN_EVENTS - 1)
    assert span.attributes["abate.attempts"] == 1_000


def test_the_resend_count_of_an_http_span(sink, spans):
    """A client span around all attempts of a request gets the conventions' attribute; other spans don't."""
    with VirtualClock():
        with spans.tracer.start_as_current_span(
            "GET", kind=trace.SpanKind.CLIENT, attributes={"http.request.method": "GET"}
        ):
            policy().call(Script(DOWN, DOWN, "fine"))
        with spans.tracer.start_as_current_span("SELECT", kind=trace.SpanKind.CLIENT):
            policy().call(Script(DOWN, "fine"))
        with spans.tracer.start_as_current_span("handler", attributes={"http.request.method": "GET"}):
            policy().call(Script(DOWN, "fine"))
    assert spans.ended("GET")[0].attributes["http.request.resend_count"] == 2
    for name in ("SELECT", "handler"):
        assert "http.request.resend_count" not in spans.ended(name)[0].attributes


def test_no_current_span_is_no_error(sink, spans):
    """Without a tracer, or if the span is not sampled, calls work."""
    with VirtualClock():
        policy("untraced").call(Script(DOWN, "fine"))
        unsampled = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))
        with trace.use_span(unsampled):
            policy("untraced").call(Script(DOWN, "fine"))
    assert sink in event_sinks.installed
    assert spans.exporter.get_finished_spans() == ()


# -- parents


def fails_twice(tracer):
    """Return a function whose attempts are spans, and whose third attempt succeeds."""
    numbers = iter(range(1, 4))

    def attempt():
        with tracer.start_as_current_span("attempt"):
            if next(numbers) < 3:
                raise DOWN

    return attempt


def attempts_under(spans, name):
    """Return the spans of attempts whose parent is the one span of that name."""
    (parent,) = spans.ended(name)
    return [span for span in spans.ended("attempt") if span.parent.span_id == parent.context.span_id]


def test_attempts_are_children_of_the_caller(sink, spans):
    """In one thread: called, decorated and as a block."""
    with VirtualClock():
        with spans.tracer.start_as_current_span("called"):
            policy().call(fails_twice(spans.tracer))
        with spans.tracer.start_as_current_span("decorated"):
            policy()(fails_twice(spans.tracer))()
        with spans.tracer.start_as_current_span("block"):
            body = fails_twice(spans.tracer)
            for attempt in policy().attempts():
                with attempt:
                    body()
    for name in ("called", "decorated", "block"):
        assert len(attempts_under(spans, name)) == 3


def test_attempts_of_tasks_are_children_of_their_callers(sink, spans):
    """Concurrent tasks have separate attempts and events."""

    async def caller(name, orders):
        body = fails_twice(spans.tracer)

        async def attempt():
            await asyncio.sleep(0)
            body()

        with spans.tracer.start_as_current_span(name):
            await orders.acall(attempt)

    async def main():
        await asyncio.gather(*(caller(f"caller {number}", policy(f"orders {number}")) for number in range(5)))

    with VirtualClock():
        asyncio.run(main())
    for number in range(5):
        assert len(attempts_under(spans, f"caller {number}")) == 3
        (span,) = spans.ended(f"caller {number}")
        assert [event.attributes["abate.policy"] for event in span.events] == [f"orders {number}"] * 2


def test_attempts_with_a_timeout_are_children_too(sink, spans):
    """Each attempt has its own timeout."""

    async def attempt():
        with spans.tracer.start_as_current_span("attempt"):
            await abate.clock.current().asleep(60.0)

    async def main():
        with spans.tracer.start_as_current_span("caller"), pytest.raises(TimeoutError):
            await policy(on=TimeoutError, attempt_timeout=1.0).acall(attempt)

    with VirtualClock():
        asyncio.run(main())
    assert len(attempts_under(spans, "caller")) == 3


def test_attempts_of_hedged_calls_are_children_too(sink, spans):
    """Attempts in threads of their own have the caller's context."""
    hedged = abate.Hedge(policy(backoff=[0.0]), abate.Timeouts(name="hedged"))
    threads = []
    body = fails_twice(spans.tracer)

    def attempt():
        threads.append(threading.current_thread())
        body()

    with spans.tracer.start_as_current_span("caller"):
        hedged.call(attempt)
    assert threading.current_thread() not in threads
    assert len(attempts_under(spans, "caller")) == 3


@pytest.mark.parametrize("asynchronous", [False, True], ids=["thread", "task"])
def test_work_runs_in_the_context_of_its_runner(sink, spans, asynchronous):
    """In worker threads and tasks, a handler's span is the parent of the attempts inside it."""
    orders = policy("inside", backoff=[0.0])

    def plain(key):
        with spans.tracer.start_as_current_span(f"work {key}"):
            orders.call(fails_twice(spans.tracer))

    async def coroutine(key):
        body = fails_twice(spans.tracer)

        async def attempt():
            body()

        with spans.tracer.start_as_current_span(f"work {key}"):
            await orders.acall(attempt)

    reconcile = abate.controller(workers=2)(coroutine if asynchronous else plain)
    for key in range(4):
        reconcile.add(key)
    with spans.tracer.start_as_current_span("run"):
        assert reconcile.run(drain=True) == {"done": 4}
    (run,) = spans.ended("run")
    for key in range(4):
        (work,) = spans.ended(f"work {key}")
        assert work.parent.span_id == run.context.span_id
        assert len(attempts_under(spans, f"work {key}")) == 3
        assert len(work.events) == 2


# -- exporters


class FailingMetrics(MetricExporter):
    """An exporter that blocks until it is released, or raises."""

    def __init__(self, misbehave):
        super().__init__()
        self.misbehave = misbehave
        self.exporting = threading.Event()

    def export(self, metrics_data, timeout_millis=10_000, **kwargs):
        self.exporting.set()
        self.misbehave()

    def force_flush(self, timeout_millis=10_000):
        return True

    def shutdown(self, timeout_millis=30_000, **kwargs):
        pass


class FailingSpans(SpanExporter):
    """The same for spans."""

    def __init__(self, misbehave):
        self.misbehave = misbehave
        self.exporting = threading.Event()

    def export(self, spans):
        self.exporting.set()
        self.misbehave()


@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "raises"])
def test_a_failing_exporter_neither_delays_nor_breaks_a_call(blocks):
    """While exporters block or raise, calls work and the sink stays installed."""
    over = threading.Event()

    def misbehave():
        if blocks:
            over.wait(PATIENCE)
        else:
            raise RuntimeError("no collector")

    exporter, span_exporter = FailingMetrics(misbehave), FailingSpans(misbehave)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=10)
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(span_exporter, schedule_delay_millis=10))
    tracer = tracers.get_tracer("tests")
    sink = abate.observe.install(OpenTelemetrySink(provider))
    try:
        with tracer.start_as_current_span("before"):
            pass
        assert exporter.exporting.wait(PATIENCE)
        assert span_exporter.exporting.wait(PATIENCE)
        with VirtualClock():
            for _ in range(100):
                with tracer.start_as_current_span("caller"):
                    assert policy(budget=abate.Budget(1.0, 1_000.0)).call(Script(DOWN, "fine")) == "fine"
        assert sink in event_sinks.installed
    finally:
        abate.observe.remove(sink)
        over.set()
        provider.shutdown()
        tracers.shutdown()
