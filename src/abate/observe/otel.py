"""Metrics and span events for OpenTelemetry, by its API alone. Needs ``abate[otel]``.

* Names follow the semantic conventions where they have one: ``error.type``; ``http.request.resend_count`` on a span
  that is an HTTP client's. They have none for retries, so that the rest is ``abate.*``, in their style, with units.
* What happens is counted as it happens; what is, is read when a reader collects (see `snapshot`). Nothing here exports:
  that is the SDK's, in threads of its own, so that an exporter that hangs or fails holds up no call.
* The current span gets an event per retry, and attributes when the call has ended; of several calls within one span,
  the attributes are those of the last. No span is made: a call is part of what its caller does. Where there is no span
  that records, nothing is done about it.
* Attributes are bounded, as labels are: names up to a number, reasons and endings as closed sets, never keys or texts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Any
from weakref import ref

from abate import events, forks
from abate.events import Event
from abate.locks import Section
from abate.observe.carried import Pair
from abate.observe.extras import needed
from abate.observe.outcomes import Outcomes, Since
from abate.observe.series import SECONDS, Names, one_of
from abate.observe.snapshot import Snapshot, snapshot
from abate.observe.words import error_type

with needed(by="abate.observe.OpenTelemetrySink", extra="otel"):
    from opentelemetry import trace
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter

POLICY, QUEUE, SHELTER, STORE, STATE = "abate.policy", "abate.queue", "abate.shelter", "abate.store", "abate.state"
REASON, ERROR_TYPE = "abate.reason", "error.type"
RESENT, HTTP_METHOD = "http.request.resend_count", "http.request.method"

NATURES = ("blip", "overload")
STATES = ("calm", "storm", "probing", "recovering")
ENDINGS = ("done", "again", "silent", "retry", "slow", "buried")
BURIALS = ("permanent", "fatal", "receives", "unreadable")

MOST_ERROR_TYPES = 100
"""Types of errors that are told apart; the conventions call all others ``_OTHER``."""
MOST_SPAN_EVENTS = 32
"""A span that has so many events gets no more from here: the SDK would drop its first ones, which may be others'."""

Attributes = Mapping[str, str]
Reading = Callable[[Snapshot], Iterable[tuple[Attributes, float | None]]]


class OpenTelemetrySink:
    """Counts events with the meters of `meter_provider`, the global one unless given, and notes retries on spans.

    One sink serves a provider, as instruments can't be taken out again.

    >>> import abate
    >>> from abate import observe
    >>> sink = observe.install(OpenTelemetrySink())
    >>> abate.Policy(name="orders", on=OSError, backoff=[0.0]).call(abate.testing.Script(OSError(), "fine"))
    'fine'
    >>> observe.remove(sink)
    """

    counts = True
    """Have calls that succeed counted while this is installed."""
    inline = True
    """Called by the calls themselves, as it does not block."""

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        if meter_provider is not None and not isinstance(meter_provider, MeterProvider):
            raise TypeError(f"meter_provider must be a MeterProvider of opentelemetry, not {meter_provider!r}")
        self._names = {kind: Names() for kind in (POLICY, QUEUE, SHELTER, STORE, "abate.gate", "abate.bucket")}
        self._errors = Names(MOST_ERROR_TYPES)
        self._outcomes = Outcomes(self._names[POLICY])
        self._tallies = Since()
        self._section = Section()
        forks.keep(self)
        meter = get_meter("abate", meter_provider=meter_provider)
        self._notes: dict[type[Event], Callable[[Any], None]] = self._counters(meter)
        self._spans: dict[type[Event], Callable[[Any, trace.Span], None]] = {
            events.Retry: self._tell_retry,
            events.Recovered: self._tell_end,
            events.GaveUp: self._tell_end,
        }
        _observe(meter, ref(self))

    def after_fork(self) -> None:
        """In the child: replace the lock, whose owner may not exist there."""
        self._section.after_fork()

    def __call__(self, event: Event) -> None:
        note = self._notes.get(type(event))
        if isinstance(sys.exception(), GeneratorExit):
            # the SDK's locks are not safe to re-enter, and the collector may abandon a call while one of them is held:
            # the next event, or the next collection, counts it; the current span is not that of the call
            if note is not None:
                self._section.left.append((note, (event,)))
            return
        if note is not None:
            self._section.run(note, event)
        tell = self._spans.get(type(event))
        if tell is not None:
            span = trace.get_current_span()
            if span.is_recording():
                tell(event, span)

    # -- counted as it happens

    def _counters(self, meter: Meter) -> dict[type[Event], Callable[[Any], None]]:
        """The instruments that events are written to, and how."""

        def counter(name: str, unit: str, description: str) -> Callable[..., None]:
            return meter.create_counter(name, unit, description).add

        def seconds(name: str, description: str) -> Callable[..., None]:
            return meter.create_histogram(
                name, "s", description, explicit_bucket_boundaries_advisory=list(SECONDS)
            ).record

        retries = counter("abate.retries", "{retry}", "Retries, by the nature of the failure.")
        delays = seconds("abate.retry.delay", "Delays before retries.")
        refusals = counter("abate.refusals", "{attempt}", "Attempts that budget or gate did not admit.")
        layered = counter("abate.layered_retries", "{call}", "Calls not retried, as a policy inside had given up.")
        waits = seconds("abate.rate_limiter.wait", "Waits for tokens of a bucket.")
        work = seconds("abate.work.duration", "How long handlers took, by ending.")
        buried = counter("abate.dead_letters", "{message}", "Keys and messages that were buried.")
        lost = counter("abate.leases_lost", "{lease}", "Leases that ran out while their message was in hand.")
        crashes = counter("abate.worker_crashes", "{crash}", "Workers that ended by something that is no answer.")
        blown = counter("abate.fuse.blown", "{time}", "Times that no messages were taken as most failed.")
        failures = counter("abate.source.failures", "{failure}", "Failures of a queue's source.")

        def retry(event: events.Retry) -> None:
            nature = self._named(POLICY, event.policy) | {REASON: one_of(NATURES, event.reason)}
            delays(event.delay, nature)
            retries(1, nature | self._error(event.error))

        def refused(event: events.BudgetRefused) -> None:
            refusals(1, self._named(POLICY, event.policy) | self._named("abate.gate", event.gate))
            if not event.attempt:
                self._outcomes.refused(event)

        def ended(event: events.Recovered | events.GaveUp) -> None:
            if isinstance(event, events.Recovered):
                self._outcomes.recovered(event)
            else:
                self._outcomes.gave_up(event)

        def layer(event: events.LayeredRetry) -> None:
            layered(1, self._named(POLICY, event.policy) | {"abate.inner": self._named(POLICY, event.inner)[POLICY]})

        def worked(event: events.Worked) -> None:
            ending = {"abate.ending": one_of(ENDINGS, event.ending)}
            work(event.seconds, self._named(QUEUE, event.policy) | ending | self._error(event.error))

        def bury(event: events.Buried) -> None:
            buried(1, self._named(QUEUE, event.policy) | {REASON: one_of(BURIALS, event.kind)})

        def failed(event: events.SourceFailed) -> None:
            failures(1, self._named(QUEUE, event.policy) | self._error(event.error))

        return {
            events.Retry: retry,
            events.BudgetRefused: refused,
            events.Recovered: ended,
            events.GaveUp: ended,
            events.LayeredRetry: layer,
            events.Waited: lambda event: waits(event.seconds, self._named("abate.bucket", event.policy)),
            events.Worked: worked,
            events.Buried: bury,
            events.LeaseLost: lambda event: lost(1, self._named(QUEUE, event.policy)),
            events.WorkerCrashed: lambda event: crashes(1, self._named(QUEUE, event.policy)),
            events.FuseBlown: lambda event: blown(1, self._named(QUEUE, event.policy)),
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

    # -- read when somebody collects

    def calls(self) -> Iterator[tuple[Attributes, float]]:
        """Calls that have ended, by policy and outcome, since this sink was made."""
        tallies = self._tallies.read()
        # a collection that re-enters shows at worst an event half counted: nothing changes while it reads
        ended = self._section.ask(self._ended, tallies, otherwise=self._ended)
        for (policy, outcome), count in ended.items():
            yield {POLICY: policy, "abate.outcome": outcome}, count

    def _ended(self, tallies: Mapping[str, Pair]) -> dict[tuple[str, str], int]:
        return dict(self._outcomes.read(tallies))

    # -- on the current span

    def _tell_retry(self, event: events.Retry, span: trace.Span) -> None:
        if len(getattr(span, "events", ())) >= MOST_SPAN_EVENTS:
            return
        told: dict[str, str | float] = {"abate.attempt": event.attempt, "abate.delay": event.delay}
        if event.hint is not None:
            told["abate.hint"] = event.hint
        named = self._named(POLICY, event.policy) | self._error(event.error)
        span.add_event("abate.retry", {**named, REASON: one_of(NATURES, event.reason), **told})

    def _tell_end(self, event: events.Recovered | events.GaveUp, span: trace.Span) -> None:
        span.set_attributes(self._named(POLICY, event.policy))
        span.set_attributes({"abate.attempts": event.attempts, "abate.waited": event.waited})
        span.set_attribute(REASON, event.reason if isinstance(event, events.GaveUp) else "recovered")
        if event.attempts > 1 and _sends_http(span):
            span.set_attribute(RESENT, event.attempts - 1)


def _sends_http(span: trace.Span) -> bool:
    """Does the span stand for an HTTP request, with all its attempts? The API can't tell, but the SDK's spans can."""
    return getattr(span, "kind", None) is trace.SpanKind.CLIENT and HTTP_METHOD in getattr(span, "attributes", ())


class Look:
    """One snapshot for all instruments of a collection: another is taken when one of them asks again.

    >>> look = Look()
    >>> first = look.of("abate.queue.age")
    >>> look.of("abate.queue.depth") is first, look.of("abate.queue.age") is first
    (True, False)
    """

    __slots__ = ("_asked", "_last", "_section")

    def __init__(self) -> None:
        self._section = forks.keep(Section())
        self._asked: set[str] = set()
        self._last: Snapshot | None = None

    def of(self, instrument: str) -> Snapshot:
        """What this instrument is to show."""
        return self._section.ask(self._of, instrument, otherwise=_apart)

    def _of(self, instrument: str) -> Snapshot:
        if self._last is None or instrument in self._asked:
            self._last = snapshot()
            self._asked.clear()
        self._asked.add(instrument)
        return self._last


def _apart(instrument: str) -> Snapshot:
    """A snapshot of its own for a collection in the middle of another one, of the same thread."""
    return snapshot()


def _observe(meter: Meter, sink: ref[OpenTelemetrySink]) -> None:
    """Make the instruments that are read at a collection; they don't keep the sink alive."""
    look = Look()

    def observed(create: Callable[..., Any], name: str, unit: str, description: str, read: Reading) -> None:
        def callback(_: CallbackOptions) -> list[Observation]:
            if sink() is None:
                return []
            return [
                Observation(value, attributes)
                for attributes, value in read(look.of(name))
                if value is not None and isfinite(value)  # a limit, a balance may be infinite
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
        ({SHELTER: view.name, STATE: state}, int(view.state == state)) for view in seen.shelters for state in STATES
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
