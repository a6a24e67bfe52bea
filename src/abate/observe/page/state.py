"""The contents of the page, made once a second from the current state (`snapshot`) and from recent events.

They are encoded once for all visitors, and only if there is a visitor.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from abate import registry
from abate.call.counters import call_totals
from abate.clock import Clock
from abate.observe.number_checks import check_depth
from abate.observe.page import severity
from abate.observe.page.rates import POINTS, Rates, rounded
from abate.observe.page.recent_activity import PolicyActivity, QueueActivity, RecentActivity, text
from abate.observe.queue_depths import DepthReader, DepthReading
from abate.observe.snapshot import PolicyView, ShelterView, by_name, policy_view, shelter_view
from abate.redact import described

MINUTE = 60.0
DEPTH_INTERVAL = 5.0
"""Seconds between two reads of one queue in a store."""
KEYS = 8
"""Keys that are shown of each kind."""
PAIRS = 20
"""Layered pairs that are shown."""
T = TypeVar("T")


class PageState:
    """The page's contents. Call `refresh` once a second, and read `frame` or `history` after that.

    >>> import abate
    >>> policy = abate.Policy(name="doc-board", on=OSError)
    >>> board = PageState(RecentActivity(), abate.clock.current())
    >>> board.refresh()
    >>> b'"doc-board"' in board.frame()
    True
    """

    def __init__(self, recent: RecentActivity, clock: Clock) -> None:
        self._recent = recent
        self._clock = clock
        self._depths = DepthReader(DEPTH_INTERVAL)
        self._looked: float | None = None
        self._times: deque[float] = deque(maxlen=POINTS)
        self._policies: dict[str, Rates] = {}
        self._queues: dict[str, Rates] = {}
        self._all = Rates()
        self._shown: dict[str, Any] = {}
        self._frame: bytes | None = None
        self._history: bytes | None = None
        script = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
        self._process = f"{script} on {socket.gethostname()}, process {os.getpid()}"

    # -- reading the state

    @property
    def is_ready(self) -> bool:
        """Return whether there is anything to show yet."""
        return self._looked is not None

    def refresh(self) -> None:
        """Read the current state of everything."""
        now = self._clock.now()
        seconds = 1.0 if self._looked is None else max(0.001, now - self._looked)
        self._looked = now
        self._times.append(round(self._clock.wall(), 1))
        policies = [policy for policy in registry.policies.alive() if policy.name]
        sheltering = {id(shelter): shelter for policy in policies for shelter in policy.shelters}
        shelters = {name: shelter_view(name, group) for name, group in by_name(sheltering.values())}
        counted = call_totals.totals()

        def policy_row(name: str, group: list[Any]) -> dict[str, Any]:
            return self._policy_row(policy_view(name, group, counted), shelters, now, seconds)

        def queue_row(name: str, queue: tuple[Any, DepthReading]) -> dict[str, Any]:
            return self._queue_row(name, *queue, now, seconds)

        unreadable: list[tuple[str, str]] = []
        rows = _rows(by_name(policies), policy_row, unreadable)
        work = _rows(self._queues_by_name(now), queue_row, unreadable)
        _drop_gone(self._policies, (row["name"] for row in rows))
        _drop_gone(self._queues, (row["name"] for row in work))
        self._frame = self._history = None
        self._shown = {
            "at": self._times[-1],
            "process": self._process,
            "totals": self._total_rates(rows, seconds),
            "policies": _worst_first(rows),
            "queues": _worst_first(work),
            "stores": [
                {"name": name, "degraded": any(store.degraded for store in group)}
                for name, group in by_name(registry.stores.alive())
            ],
            "layers": [
                {"outer": outer, "inner": inner, "times": times}
                for outer, inner, times in sorted(self._recent.layers(), key=lambda pair: -pair[2])[:PAIRS]
            ],
            "notices": [
                *({"at": self._times[-1], "name": name, "text": why, "times": 1} for name, why in unreadable),
                *(
                    {"at": round(at, 1), "name": name, "text": what, "times": times}
                    for at, name, what, times in self._recent.notices()
                ),
            ],
        }

    def _queues_by_name(self, now: float) -> list[tuple[str, tuple[Any, DepthReading]]]:
        """Return the first controller or consumer of each name, with the depth of its queue."""
        services = {name: group[0] for name, group in by_name(registry.services.alive())}
        readings = self._depths.read(services.values(), 0.0, now)
        return list(zip(services, zip(services.values(), readings, strict=True), strict=True))

    def _policy_row(
        self, view: PolicyView, shelters: dict[str, ShelterView], now: float, seconds: float
    ) -> dict[str, Any]:
        def read(calls: PolicyActivity) -> dict[str, Any]:
            return {
                "retries": calls.retries,
                "reasons": calls.retried.counts(now),
                "given_up": calls.given_up.counts(now),
                "refused": calls.refused.counts(now),
                "delays": sorted(delay for at, delay in calls.delays if now - at <= MINUTE),
                "error": None if calls.error is None else [round(calls.error[0], 1), calls.error[1]],
            }

        row = self._recent.with_policy_activity(view.name, read)
        rates = self._policies.setdefault(view.name, Rates())
        calls, retries, failed = rates.note((view.begun, row["retries"], view.bad), seconds)
        shelter = None if view.shelter is None else shelters.get(view.shelter)
        delays = row.pop("delays")
        wrong = view.wrong
        if shelter is not None and math.isnan(shelter.limit):
            wrong = wrong or "limit of the shelter"
        wrong = wrong and f"wrong numbers: {wrong}"
        level, why = severity.policy_severity(
            shelter=None if shelter is None else shelter.state,
            share=view.share,
            calls=rates.recent_sum(0, int(MINUTE)),
            retried=row["reasons"],
            given_up=row["given_up"],
            refused=row["refused"],
            wrong=wrong,
        )
        return row | {
            "name": view.name,
            "level": level,
            "why": why,
            "calls": calls,
            "retries": retries,
            "failed": failed,
            "in_flight": view.in_flight,
            "balance": _finite(view.balance),
            "share": _finite(view.share),
            "wrong": wrong,
            "delay": [rounded(delays[len(delays) // 2]), rounded(delays[-1])] if delays else None,
            "shelter": None if shelter is None else _shelter_shown(shelter),
        }

    def _queue_row(self, name: str, service: Any, reading: DepthReading, now: float, seconds: float) -> dict[str, Any]:
        def read(work: QueueActivity) -> dict[str, Any]:
            return {
                "totals": (work.ended, work.failed, work.seconds),
                "endings": work.endings.counts(now),
                "hottest": [pair for pair in work.hottest.top(KEYS) if pair[1] > 1],
                "failing_keys": work.failing.top(KEYS, now),
                "dead_letters": [(round(at, 1), *letter) for at, *letter in reversed(work.dead_letters)],
            }

        row = self._recent.with_queue_activity(name, read)
        health, depth = service.health(), check_depth(reading.depth)
        failing = health.failing or reading.failing
        rates = self._queues.setdefault(name, Rates())
        ended, failed, busy, _ = rates.note(row.pop("totals"), seconds, depth.ready or 0)
        level, why = severity.queue_severity(
            live=health.live,
            ready=depth.ready,
            age=depth.age,
            failing=failing,
            endings=row["endings"],
            wrong=depth.wrong,
        )
        return row | {
            "name": name,
            "level": level,
            "why": why,
            "live": health.live,
            "workers": service.workers,
            "in_hand": health.in_hand,
            "busy": rounded(min(1.0, busy / service.workers)),
            "ended": ended,
            "failed": failed,
            "ready": depth.ready,
            "delayed": depth.delayed,
            "dead": depth.dead,
            "age": None if depth.age is None else rounded(depth.age),
            "adds": getattr(service, "adds", None),
            "coalesced": getattr(service, "coalesced", None),
            "failing": depth.wrong if failing is None else text(failing),
        }

    def _total_rates(self, rows: list[dict[str, Any]], seconds: float) -> dict[str, float]:
        sums = [math.fsum(row[kind] for row in rows) for kind in ("calls", "retries", "failed")]
        calls, retries, failed = self._all.note((), seconds, *sums)
        return {"calls": calls, "retries": retries, "failed": failed}

    # -- for visitors

    def frame(self) -> bytes:
        """Return the last state as an event of the stream."""
        if self._frame is None:
            self._frame = b"data: " + _encoded(self._shown) + b"\n\n"
        return self._frame

    def history(self) -> bytes:
        """Return the first event for a new visitor: the points of all charts so far."""
        if self._history is None:
            lines = {
                "times": list(self._times),
                "all": self._all.lines(),
                "policies": {name: rates.lines() for name, rates in self._policies.items()},
                "queues": {name: rates.lines() for name, rates in self._queues.items()},
            }
            self._history = b"retry: 1000\nevent: history\ndata: " + _encoded(lines) + b"\n\n"
        return self._history


def _encoded(thing: object) -> bytes:
    """Encode as ASCII JSON, so that no peer's text can end an event of the stream."""
    return json.dumps(thing, separators=(",", ":"), allow_nan=False).encode("ascii")


def _rows(
    named: Iterable[tuple[str, T]], make: Callable[[str, T], dict[str, Any]], unreadable: list[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Make the row of each; one that can't be read goes to `unreadable`, and hides no other."""
    rows = []
    for name, thing in named:
        try:
            rows.append(make(name, thing))
        except Exception as error:  # a budget or a source of the user's own may raise anything
            unreadable.append((name, f"can't be shown: {described(error)}"))
    return rows


def _shelter_shown(shelter: ShelterView) -> dict[str, Any]:
    limit = _finite(shelter.limit)
    return {"name": shelter.name, "state": shelter.state, "waiters": shelter.waiters, "limit": limit}


def _finite(value: float) -> float | None:
    return rounded(value) if math.isfinite(value) else None


def _worst_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (-row["level"], row["name"]))


def _drop_gone(kept: dict[str, Rates], names: Iterable[str]) -> None:
    """Drop the chart lines of what no longer exists."""
    for gone in kept.keys() - set(names):
        del kept[gone]
