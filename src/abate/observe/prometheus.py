"""Metrics for Prometheus, with `prometheus_client`.

* Events are counted as they come: retries, delays, refusals, work, dead letters. A successful call makes no event.
* State is read at a scrape: balances, depths, calls in flight, successes (see `snapshot`).
* Labels are bounded: a limited number of policies, queues, shelters, stores and buckets appear by name, further ones as
  ``other``. Reasons, states and endings are closed sets. Keys, errors and texts are never labels.
* Counters never decrease while the process lives, although policies and controllers may be collected.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

from abate import events, forks
from abate.events import DEAD_LETTER_REASONS, ENDINGS, FAILURE_KINDS, Event
from abate.observe.call_outcomes import OUTCOMES
from abate.observe.metric_series import Counters, Histograms, Labels, LabelValues, known_or_other
from abate.observe.state_reader import State, StateReader
from abate.optional_dependencies import requires_extra
from abate.reentrant_locks import Section

with requires_extra(by="abate.observe.PrometheusSink", extra="prometheus"):
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

SHARED_FILES = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
"""The variables that tell prometheus_client to join the metrics of several processes."""

Series = Iterable[tuple[Labels, float]]
Histogram = tuple[Labels, list[tuple[str, float]], float]

METRICS: dict[str, tuple[Callable[..., Metric], str, Labels]] = {
    "abate_calls": (CounterMetricFamily, "Calls that have ended, by outcome.", ("policy", "outcome")),
    "abate_retries": (CounterMetricFamily, "Retries, by the nature of the failure.", ("policy", "reason")),
    "abate_retry_delay_seconds": (HistogramMetricFamily, "Delays before retries.", ("policy",)),
    "abate_inflight": (GaugeMetricFamily, "Calls that have begun and not ended.", ("policy",)),
    "abate_retry_budget_balance": (GaugeMetricFamily, "Retries that could be made now.", ("policy",)),
    "abate_retry_budget_remaining_ratio": (
        GaugeMetricFamily,
        "Share of the retries that the budget's window allows which is left.",
        ("policy",),
    ),
    "abate_retry_budget_exhausted": (
        CounterMetricFamily,
        "Retries that were worth making, and that budget or gate did not admit.",
        ("policy",),
    ),
    "abate_layered_retries": (
        CounterMetricFamily,
        "Errors that a policy did not retry, as the policy inside it had given up on them.",
        ("policy", "inner"),
    ),
    "abate_breaker_opened": (CounterMetricFamily, "Times that a circuit breaker opened.", ("breaker",)),
    "abate_shelter_state": (GaugeMetricFamily, "1 for the state that the shelter is in.", ("shelter", "state")),
    "abate_shelter_waiters": (GaugeMetricFamily, "Calls that wait in the shelter.", ("shelter",)),
    "abate_shelter_limit": (
        GaugeMetricFamily,
        "Attempts that may be in flight; infinite where there is no limit.",
        ("shelter",),
    ),
    "abate_rate_limiter_wait_seconds": (HistogramMetricFamily, "Waits for tokens of a bucket.", ("bucket",)),
    "abate_queue_depth": (GaugeMetricFamily, "Keys or messages of a queue, by state.", ("queue", "state")),
    "abate_queue_age_seconds": (GaugeMetricFamily, "How long the oldest one has been ready.", ("queue",)),
    "abate_queue_adds": (CounterMetricFamily, "Adds of keys.", ("queue",)),
    "abate_queue_coalesced": (CounterMetricFamily, "Adds of keys that were waiting already.", ("queue",)),
    "abate_work_seconds": (HistogramMetricFamily, "How long handlers took, by ending.", ("queue", "ending")),
    "abate_worker_utilization": (GaugeMetricFamily, "Share of the workers that are busy.", ("queue",)),
    "abate_dead_letters": (CounterMetricFamily, "Keys and messages that were buried.", ("queue", "reason")),
    "abate_store_degraded": (GaugeMetricFamily, "1 while the store does not answer.", ("store",)),
}
"""Every metric: its type, its help text, its labels. Counters are exposed as ``…_total``."""

GAUGES = {
    "abate_retry_budget_balance": "budget_balance",
    "abate_retry_budget_remaining_ratio": "budget_remaining",
    "abate_inflight": "active_calls",
    "abate_shelter_state": "shelter_state",
    "abate_shelter_waiters": "shelter_waiters",
    "abate_shelter_limit": "shelter_limit",
    "abate_queue_depth": "queue_depth",
    "abate_queue_age_seconds": "queue_age",
    "abate_worker_utilization": "worker_utilization",
    "abate_store_degraded": "store_degraded",
}
"""The gauges, and their series in the state that `StateReader` reads."""


class PrometheusSink:
    """Counts events, and reads state when the `registry` (by default the global one) is scraped.

    One sink serves a registry. It is also the collector: ``registry.unregister(sink)`` removes it.

    >>> import abate
    >>> from abate import observe
    >>> from prometheus_client import CollectorRegistry
    >>> registry = CollectorRegistry()
    >>> sink = observe.install(PrometheusSink(registry))
    >>> orders = abate.Policy(name="orders", on=OSError)
    >>> orders.call(max, 1, 2)
    2
    >>> registry.get_sample_value("abate_calls_total", {"policy": "orders", "outcome": "success"})
    1.0
    >>> observe.remove(sink)
    """

    counts = True
    """Ask for successful calls to be counted while this is installed."""
    inline = True
    """Runs in the thread of the call, as it does not block."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        if registry is not None and not isinstance(registry, CollectorRegistry):
            raise TypeError(f"registry must be a CollectorRegistry of prometheus_client, not {registry!r}")
        if any(name in os.environ for name in SHARED_FILES):
            warnings.warn(
                "PROMETHEUS_MULTIPROC_DIR is set, and prometheus_client's MultiProcessCollector shows nothing of abate:"
                " scrape each process by a port of its own, by prometheus_client.start_http_server(port) in each"
                " worker, or look at its page (abate.observe.page)",
                UserWarning,
                stacklevel=2,
            )
        self._section = Section()
        self._state = StateReader(self._section)
        self._policies, self._queues = self._state.policies, self._state.queues
        self._buckets, self._breakers = LabelValues(), LabelValues()
        self._retries, self._exhausted, self._layered, self._dead = Counters(), Counters(), Counters(), Counters()
        self._opened = Counters()
        self._delays, self._waits, self._work = Histograms(), Histograms(), Histograms()
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            events.Retry: self._retry,
            events.Recovered: self._state.outcomes.recovered,
            events.GaveUp: self._state.outcomes.gave_up,
            events.BudgetRefused: self._refused,
            events.LayeredRetry: self._layer,
            events.BreakerOpened: self._breaker_opened,
            events.Waited: self._waited,
            events.Worked: self._worked,
            events.Buried: self._buried,
        }
        forks.register(self)
        try:
            (REGISTRY if registry is None else registry).register(self)
        except ValueError:
            raise ValueError(
                "this registry has abate's metrics already: it is served by one PrometheusSink, which observe.remove"
                " leaves there; install that one again, or take it out by registry.unregister(sink)"
            ) from None

    def after_fork(self) -> None:
        """Replace the lock in the child: its owner thread does not exist there."""
        self._section.after_fork()

    # -- as a sink

    def __call__(self, event: Event) -> None:
        note = self._handlers.get(type(event))
        if note is not None:
            self._section.run_or_defer(note, event)

    def _retry(self, event: events.Retry) -> None:
        policy = self._policies.of(event.name)
        self._retries.add(policy, known_or_other(FAILURE_KINDS, event.reason))
        self._delays.add(event.delay, policy)

    def _refused(self, event: events.BudgetRefused) -> None:
        if event.attempt:
            self._exhausted.add(self._policies.of(event.name))
        else:
            self._state.outcomes.refused(event)

    def _layer(self, event: events.LayeredRetry) -> None:
        self._layered.add(self._policies.of(event.name), self._policies.of(event.inner))

    def _breaker_opened(self, event: events.BreakerOpened) -> None:
        self._opened.add(self._breakers.of(event.name))

    def _waited(self, event: events.Waited) -> None:
        self._waits.add(event.seconds, self._buckets.of(event.name))

    def _worked(self, event: events.Worked) -> None:
        self._work.add(event.seconds, self._queues.of(event.name), known_or_other(ENDINGS, event.ending))

    def _buried(self, event: events.Buried) -> None:
        self._dead.add(self._queues.of(event.name), known_or_other(DEAD_LETTER_REASONS, event.kind))

    # -- as a collector

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values, for the registry."""
        return [_family(name) for name in METRICS]

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics with their values."""
        # before the lock is taken, on which calls would wait: stores take their time to report depths
        state = self._state.read()
        # a re-entrant scrape may see an event half counted; nothing changes while it reads
        values, histograms = self._section.call(self._values, state, otherwise=self._values)
        for name in METRICS:
            family: Any = _family(name)
            for labels, value in values.get(name, ()):
                family.add_metric(labels, float(value))
            for labels, buckets, total in histograms.get(name, ()):
                family.add_metric(labels, buckets, total)
            yield family

    def _values(self, state: State) -> tuple[dict[str, Series], dict[str, list[Histogram]]]:
        return {**{name: state[key].items() for name, key in GAUGES.items()}, **self._counters(state)}, {
            "abate_retry_delay_seconds": list(self._delays),
            "abate_rate_limiter_wait_seconds": list(self._waits),
            "abate_work_seconds": list(self._work),
        }

    def _counters(self, state: State) -> dict[str, Series]:
        """Return the counters. Those of existing objects begin at 0, so that the first event is an increase."""
        policies = [policy for (policy,) in state["active_calls"]]
        queues = [queue for (queue,) in state["worker_utilization"]]
        return {
            "abate_calls": _from_zero(product(policies, OUTCOMES), state["calls"].items()),
            "abate_retries": _from_zero(product(policies, FAILURE_KINDS), self._retries),
            "abate_retry_budget_exhausted": _from_zero(product(policies), self._exhausted),
            "abate_layered_retries": list(self._layered),
            "abate_breaker_opened": list(self._opened),
            "abate_queue_adds": state["queue_adds"].items(),
            "abate_queue_coalesced": state["queue_coalesced"].items(),
            "abate_dead_letters": _from_zero(product(queues, DEAD_LETTER_REASONS), self._dead),
        }


def _family(name: str) -> Metric:
    kind, text, labels = METRICS[name]
    return kind(name, text, labels=labels)


def _from_zero(known: Iterable[Labels], counted: Series) -> Series:
    return {**dict.fromkeys(known, 0), **dict(counted)}.items()
