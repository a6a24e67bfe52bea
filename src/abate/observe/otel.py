"""Metrics and span events for OpenTelemetry, with its API alone. Needs ``abate[otel]``.

* Names follow the semantic conventions where one exists: ``error.type``, and ``http.request.resend_count`` on the span
  of an HTTP client. They have none for retries, so the rest is ``abate.*`` in their style, with units.
* Events are counted as they come; state is read when a reader collects (see `snapshot`). Exporting is the SDK's job, in
  its own threads, so that an exporter that hangs or fails holds up no call.
* The current span gets an event per retry, and attributes when the call ends; of several calls within one span the last
  one sets them. No span is created: a call is part of what its caller does.
* Attributes are bounded like labels: a limited number of names, closed sets of reasons and endings, no keys or texts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Any
from weakref import ref

from abate import events, forks
from abate.events import DEAD_LETTER_REASONS, ENDINGS, FAILURE_KINDS, SHELTER_STATES, Event
from abate.observe.call_outcomes import CallCountsSince, CallOutcomes
from abate.observe.event_text import error_type
from abate.observe.lasting_totals import Pair
from abate.observe.metric_series import BUCKET_BOUNDS, LabelValues, known_or_other
from abate.observe.snapshot import Snapshot, snapshot
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

Attributes = Mapping[str, str]
Reading = Callable[[Snapshot], Iterable[tuple[Attributes, float | None]]]


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
        self._names = {
            kind: LabelValues() for kind in (POLICY, QUEUE, SHELTER, STORE, BREAKER, "abate.gate", "abate.bucket")
        }
        self._errors = LabelValues(MAX_ERROR_TYPES)
        self._outcomes = CallOutcomes(self._names[POLICY])
        self._call_counts = CallCountsSince()
        self._section = Section()
        forks.register(self)
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

    # -- state, read at a collection

    def calls(self) -> Iterator[tuple[Attributes, float]]:
        """Yield the ended calls by policy and outcome, since this sink was made."""
        counts = self._call_counts.read()
        # a re-entrant collection may see an event half counted; nothing changes while it reads
        ended = self._section.call(self._ended, counts, otherwise=self._ended)
        for (policy, outcome), count in ended.items():
            yield {POLICY: policy, "abate.outcome": outcome}, count

    def _ended(self, counts: Mapping[str, Pair]) -> dict[tuple[str, str], int]:
        return dict(self._outcomes.read(counts))

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


class SharedSnapshot:
    """One snapshot for all instruments of a collection; a new one when an instrument asks again.

    >>> look = SharedSnapshot()
    >>> first = look.of("abate.queue.age")
    >>> look.of("abate.queue.depth") is first, look.of("abate.queue.age") is first
    (True, False)
    """

    __slots__ = ("_asked", "_last", "_section")

    def __init__(self) -> None:
        self._section = forks.register(Section())
        self._asked: set[str] = set()
        self._last: Snapshot | None = None

    def of(self, instrument: str) -> Snapshot:
        """Return the snapshot for this instrument."""
        return self._section.call(self._of, instrument, otherwise=_own_snapshot)

    def _of(self, instrument: str) -> Snapshot:
        if self._last is None or instrument in self._asked:
            self._last = snapshot()
            self._asked.clear()
        self._asked.add(instrument)
        return self._last


def _own_snapshot(instrument: str) -> Snapshot:
    """Return a separate snapshot for a collection within another collection of the same thread."""
    return snapshot()


def _create_instruments(meter: Meter, sink: ref[OpenTelemetrySink]) -> None:
    """Make the instruments that are read at a collection; they do not keep the sink alive."""
    look = SharedSnapshot()

    def observed(create: Callable[..., Any], name: str, unit: str, description: str, read: Reading) -> None:
        def callback(_: CallbackOptions) -> list[Observation]:
            if sink() is None:
                return []
            return [
                Observation(value, attributes)
                for attributes, value in read(look.of(name))
                if value is not None and isfinite(value)  # limits and balances may be infinite
            ]

        create(name, [callback], unit, description)

    def calls(_: Snapshot) -> Iterable[tuple[Attributes, float]]:
        known = sink()
        return () if known is None else known.calls()

    gauge, total = meter.create_observable_gauge, meter.create_observable_counter
    level = meter.create_observable_up_down_counter
    observed(total, "abate.calls", "{call}", "Calls that have ended, by outcome.", calls)
    for create, name, unit, description, read in (
        (level, "abate.active_calls", "{call}", "Calls that have begun and not ended.", _in_flight),
        (gauge, "abate.budget.balance", "{retry}", "Retries that could be made now.", _balance),
        (gauge, "abate.budget.remaining", "1", "Share of what the budget's window allows that is left.", _remaining),
        (level, "abate.shelter.state", "1", "1 for the state that the shelter is in.", _state),
        (level, "abate.shelter.waiters", "{call}", "Calls that wait in the shelter.", _waiters),
        (gauge, "abate.shelter.limit", "{attempt}", "Attempts that may be in flight.", _limit),
        (level, "abate.queue.depth", "{message}", "Keys or messages of a queue, by state.", _depth),
        (gauge, "abate.queue.age", "s", "How long the oldest one has been ready.", _age),
        (level, "abate.queue.workers", "{worker}", "Workers of a queue, by whether they have something.", _workers),
        (total, "abate.queue.adds", "{key}", "Adds of keys.", _adds),
        (total, "abate.queue.coalesced", "{key}", "Adds of keys that were waiting already.", _coalesced),
        (level, "abate.store.degraded", "1", "1 while the store does not answer.", _degraded),
    ):
        observed(create, name, unit, description, read)


Readings = Iterator[tuple[Attributes, float | None]]


def _in_flight(seen: Snapshot) -> Readings:
    return (({POLICY: view.name}, view.in_flight) for view in seen.policies)


def _balance(seen: Snapshot) -> Readings:
    return (({POLICY: view.name}, view.balance) for view in seen.policies)


def _remaining(seen: Snapshot) -> Readings:
    return (({POLICY: view.name}, view.share) for view in seen.policies)


def _state(seen: Snapshot) -> Readings:
    return (
        ({SHELTER: view.name, STATE: state}, int(view.state == state))
        for view in seen.shelters
        for state in SHELTER_STATES
    )


def _waiters(seen: Snapshot) -> Readings:
    return (({SHELTER: view.name}, view.waiters) for view in seen.shelters)


def _limit(seen: Snapshot) -> Readings:
    return (({SHELTER: view.name}, view.limit) for view in seen.shelters)


def _depth(seen: Snapshot) -> Readings:
    return (
        ({QUEUE: view.name, STATE: state}, getattr(view, state))
        for view in seen.queues
        for state in ("ready", "delayed", "in_hand", "dead")
    )


def _age(seen: Snapshot) -> Readings:
    return (({QUEUE: view.name}, view.age) for view in seen.queues)


def _workers(seen: Snapshot) -> Readings:
    for view in seen.queues:
        yield {QUEUE: view.name, STATE: "busy"}, min(view.in_hand, view.workers)
        yield {QUEUE: view.name, STATE: "idle"}, max(0, view.workers - view.in_hand)


def _adds(seen: Snapshot) -> Readings:
    return (({QUEUE: view.name}, view.adds) for view in seen.queues)


def _coalesced(seen: Snapshot) -> Readings:
    return (({QUEUE: view.name}, view.coalesced) for view in seen.queues)


def _degraded(seen: Snapshot) -> Readings:
    return (({STORE: view.name}, int(view.degraded)) for view in seen.stores)
