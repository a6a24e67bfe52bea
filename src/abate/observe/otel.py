"""Metrics and span events for OpenTelemetry, with its API alone. Needs ``abate[otel]``.

* Names follow the semantic conventions where one exists: ``error.type``, and ``http.request.resend_count`` on the span
  of an HTTP client. They have none for retries, so the rest is ``abate.*`` in their style, with units.
* Events are counted as they come; state is read when a reader collects (see `StateReader`). Exporting is the job of the
  SDK, in its own threads, so that an exporter that hangs or fails holds up no call.
* The current span gets an event per retry, and attributes when the call ends; of several calls within one span the last
  one sets them. No span is created: a call is part of what its caller does.
* Attributes are bounded like labels: a limited number of names, closed sets of reasons and endings, no keys or texts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import isfinite
from typing import Any
from weakref import ref

from abate import events, forks
from abate.events import DEAD_LETTER_REASONS, ENDINGS, FAILURE_KINDS, Event
from abate.observe.event_text import error_type
from abate.observe.metric_series import BUCKET_BOUNDS, LabelValues, known_or_other
from abate.observe.state_reader import State, StateReader
from abate.optional_dependencies import requires_extra
from abate.reentrant_locks import Section

with requires_extra(by="abate.observe.OpenTelemetrySink", extra="otel"):
    from opentelemetry import trace
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter

POLICY, QUEUE, SHELTER, STORE, STATE = "abate.policy", "abate.queue", "abate.shelter", "abate.store", "abate.state"
BREAKER = "abate.breaker"
REASON, ERROR_TYPE = "abate.reason", "error.type"
RESEND_COUNT, HTTP_METHOD = "http.request.resend_count", "http.request.method"

MAX_ERROR_TYPES = 100
"""Error types that are told apart; the conventions call all others ``_OTHER``."""
MAX_SPAN_EVENTS = 32
"""A span with this many events gets no more from abate: the SDK would drop its first events, maybe of other code."""


class OpenTelemetrySink:
    """Counts events with meters of `meter_provider` (by default the global one), and notes retries on spans.

    One sink serves a provider, because instruments can't be removed.

    >>> import abate
    >>> from abate import observe
    >>> sink = observe.install(OpenTelemetrySink())
    >>> abate.Policy(name="orders", on=OSError, backoff=[0.0]).call(abate.testing.Script(OSError(), "fine"))
    'fine'
    >>> observe.remove(sink)
    """

    counts = True
    """Ask for successful calls to be counted while this is installed."""
    inline = True
    """Runs in the thread of the call, as it does not block."""

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        if meter_provider is not None and not isinstance(meter_provider, MeterProvider):
            raise TypeError(f"meter_provider must be a MeterProvider of opentelemetry, not {meter_provider!r}")
        self._section = Section()
        forks.register(self)
        state = StateReader(self._section)
        self._outcomes = state.outcomes
        self._names = {
            POLICY: state.policies,
            QUEUE: state.queues,
            BREAKER: LabelValues(),
            "abate.gate": LabelValues(),
            "abate.bucket": LabelValues(),
        }
        self._errors = LabelValues(MAX_ERROR_TYPES)
        self.shared_state = SharedState(state.read)
        meter = get_meter("abate", meter_provider=meter_provider)
        self._handlers: dict[type[Event], Callable[[Any], None]] = self._counters(meter)
        self._spans: dict[type[Event], Callable[[Any, trace.Span], None]] = {
            events.Retry: self._note_retry_on_span,
            events.Recovered: self._note_end_on_span,
            events.GaveUp: self._note_end_on_span,
        }
        _create_instruments(meter, ref(self))

    def after_fork(self) -> None:
        """Replace the lock in the child: its owner thread does not exist there."""
        self._section.after_fork()

    def __call__(self, event: Event) -> None:
        note = self._handlers.get(type(event))
        if isinstance(sys.exception(), GeneratorExit):
            # the SDK's locks are not safe to re-enter, and garbage collection may abandon a call while one is held:
            # the next event or collection counts it; the current span is not that of the call
            if note is not None:
                self._section.deferred.append((note, (event,)))
            return
        if note is not None:
            self._section.run_or_defer(note, event)
        tell = self._spans.get(type(event))
        if tell is not None:
            span = trace.get_current_span()
            if span.is_recording():
                tell(event, span)

    # -- events

    def _counters(self, meter: Meter) -> dict[type[Event], Callable[[Any], None]]:
        """Return the handler for each event type, with its instruments."""

        def counter(name: str, unit: str, description: str) -> Callable[..., None]:
            return meter.create_counter(name, unit, description).add

        def seconds(name: str, description: str) -> Callable[..., None]:
            return meter.create_histogram(
                name, "s", description, explicit_bucket_boundaries_advisory=list(BUCKET_BOUNDS)
            ).record

        retries = counter("abate.retries", "{retry}", "Retries, by the nature of the failure.")
        delays = seconds("abate.retry.delay", "Delays before retries.")
        refusals = counter("abate.refusals", "{attempt}", "Attempts that budget or gate did not admit.")
        layered = counter("abate.layered_retries", "{call}", "Calls not retried, as a policy inside had given up.")
        waits = seconds("abate.rate_limiter.wait", "Waits for tokens of a bucket.")
        work = seconds("abate.work.duration", "How long handlers took, by ending.")
        buried = counter("abate.dead_letters", "{message}", "Keys and messages that were buried.")
        lost = counter("abate.leases_lost", "{lease}", "Leases that ran out while their message was being processed.")
        crashes = counter("abate.worker_crashes", "{crash}", "Workers that ended by something that is no answer.")
        opened = counter("abate.breaker.opened", "{time}", "Times that a circuit breaker opened.")
        failures = counter("abate.source.failures", "{failure}", "Failures of a queue's source.")

        def retry(event: events.Retry) -> None:
            labels = self._named(POLICY, event.name) | {REASON: known_or_other(FAILURE_KINDS, event.reason)}
            delays(event.delay, labels)
            retries(1, labels | self._error(event.error))

        def refused(event: events.BudgetRefused) -> None:
            refusals(1, self._named(POLICY, event.name) | self._named("abate.gate", event.gate))
            if not event.attempt:
                self._outcomes.refused(event)

        def ended(event: events.Recovered | events.GaveUp) -> None:
            if isinstance(event, events.Recovered):
                self._outcomes.recovered(event)
            else:
                self._outcomes.gave_up(event)

        def layer(event: events.LayeredRetry) -> None:
            layered(1, self._named(POLICY, event.name) | {"abate.inner": self._named(POLICY, event.inner)[POLICY]})

        def worked(event: events.Worked) -> None:
            ending = {"abate.ending": known_or_other(ENDINGS, event.ending)}
            work(event.seconds, self._named(QUEUE, event.name) | ending | self._error(event.error))

        def bury(event: events.Buried) -> None:
            buried(1, self._named(QUEUE, event.name) | {REASON: known_or_other(DEAD_LETTER_REASONS, event.kind)})

        def failed(event: events.SourceFailed) -> None:
            failures(1, self._named(QUEUE, event.name) | self._error(event.error))

        return {
            events.Retry: retry,
            events.BudgetRefused: refused,
            events.Recovered: ended,
            events.GaveUp: ended,
            events.LayeredRetry: layer,
            events.Waited: lambda event: waits(event.seconds, self._named("abate.bucket", event.name)),
            events.Worked: worked,
            events.Buried: bury,
            events.LeaseLost: lambda event: lost(1, self._named(QUEUE, event.name)),
            events.WorkerCrashed: lambda event: crashes(1, self._named(QUEUE, event.name)),
            events.BreakerOpened: lambda event: opened(1, self._named(BREAKER, event.name)),
            events.SourceFailed: failed,
        }

    def _named(self, kind: str, name: str) -> dict[str, str]:
        return {kind: self._names[kind].of(name)}

    def _error(self, error: BaseException | None) -> dict[str, str]:
        if error is None:
            return {}
        kind = error_type(error)
        known = self._errors.of(kind)
        return {ERROR_TYPE: known if known == kind else "_OTHER"}

    # -- on the current span

    def _note_retry_on_span(self, event: events.Retry, span: trace.Span) -> None:
        if len(getattr(span, "events", ())) >= MAX_SPAN_EVENTS:
            return
        numbers: dict[str, str | float] = {"abate.attempt": event.attempt, "abate.delay": event.delay}
        if event.hint is not None:
            numbers["abate.hint"] = event.hint
        named = self._named(POLICY, event.name) | self._error(event.error)
        span.add_event("abate.retry", {**named, REASON: known_or_other(FAILURE_KINDS, event.reason), **numbers})

    def _note_end_on_span(self, event: events.Recovered | events.GaveUp, span: trace.Span) -> None:
        span.set_attributes(self._named(POLICY, event.name))
        span.set_attributes({"abate.attempts": event.attempts, "abate.waited": event.waited})
        span.set_attribute(REASON, event.reason if isinstance(event, events.GaveUp) else "recovered")
        if event.attempts > 1 and _sends_http(span):
            span.set_attribute(RESEND_COUNT, event.attempts - 1)


def _sends_http(span: trace.Span) -> bool:
    """Return whether the span is an HTTP request of a client; only the SDK's spans say so, the API does not."""
    return getattr(span, "kind", None) is trace.SpanKind.CLIENT and HTTP_METHOD in getattr(span, "attributes", ())


class SharedState:
    """One state for all instruments of a collection; it is read again when an instrument asks again.

    >>> states = iter([{"queue_age": {}}, {"queue_age": {("mail",): 2.0}}])
    >>> shared = SharedState(lambda: next(states))
    >>> shared.of("queue_depth"), shared.of("queue_age"), shared.of("queue_age")
    ({'queue_age': {}}, {'queue_age': {}}, {'queue_age': {('mail',): 2.0}})
    """

    __slots__ = ("__weakref__", "_asked", "_last", "_read", "_section")

    def __init__(self, read: Callable[[], State]) -> None:
        self._read = read
        self._section = forks.register(Section())
        self._asked: set[str] = set()
        self._last: State | None = None

    def of(self, instrument: str) -> State:
        """Return the state for this instrument."""
        return self._section.call(self._of, instrument, otherwise=self._read_separately)

    def _of(self, instrument: str) -> State:
        if self._last is None or instrument in self._asked:
            self._last = self._read()
            self._asked.clear()
        self._asked.add(instrument)
        return self._last

    def _read_separately(self, instrument: str) -> State:
        """Return a state of its own for a collection within another collection of the same thread."""
        return self._read()


def _create_instruments(meter: Meter, sink: ref[OpenTelemetrySink]) -> None:
    """Make the instruments that are read at a collection; they do not keep the sink alive."""

    def observed(create: Callable[..., Any], name: str, unit: str, description: str, key: str, *kinds: str) -> None:
        def callback(_: CallbackOptions) -> list[Observation]:
            here = sink()
            if here is None:
                return []
            return [
                Observation(value, dict(zip(kinds, labels, strict=True)))
                for labels, value in here.shared_state.of(key)[key].items()
                if isfinite(value)  # limits and balances may be infinite
            ]

        create(name, [callback], unit, description)

    gauge, total = meter.create_observable_gauge, meter.create_observable_counter
    level = meter.create_observable_up_down_counter
    for create, name, unit, description, *series in (
        (total, "abate.calls", "{call}", "Calls that have ended, by outcome.", "calls", POLICY, "abate.outcome"),
        (level, "abate.active_calls", "{call}", "Calls that have begun and not ended.", "active_calls", POLICY),
        (gauge, "abate.budget.balance", "{retry}", "Retries that could be made now.", "budget_balance", POLICY),
        (
            gauge,
            "abate.budget.remaining",
            "1",
            "Share of what the budget's window allows that is left.",
            "budget_remaining",
            POLICY,
        ),
        (
            level,
            "abate.shelter.state",
            "1",
            "1 for the state that the shelter is in.",
            "shelter_state",
            SHELTER,
            STATE,
        ),
        (level, "abate.shelter.waiters", "{call}", "Calls that wait in the shelter.", "shelter_waiters", SHELTER),
        (gauge, "abate.shelter.limit", "{attempt}", "Attempts that may be in flight.", "shelter_limit", SHELTER),
        (
            level,
            "abate.queue.depth",
            "{message}",
            "Keys or messages of a queue, by state.",
            "queue_depth",
            QUEUE,
            STATE,
        ),
        (gauge, "abate.queue.age", "s", "How long the oldest one has been ready.", "queue_age", QUEUE),
        (
            level,
            "abate.queue.workers",
            "{worker}",
            "Workers of a queue, by whether they have something.",
            "queue_workers",
            QUEUE,
            STATE,
        ),
        (total, "abate.queue.adds", "{key}", "Adds of keys.", "queue_adds", QUEUE),
        (total, "abate.queue.coalesced", "{key}", "Adds of keys that were waiting already.", "queue_coalesced", QUEUE),
        (level, "abate.store.degraded", "1", "1 while the store does not answer.", "store_degraded", STORE),
    ):
        observed(create, name, unit, description, *series)
