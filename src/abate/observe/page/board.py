"""What the page shows, put together once a second from what is there (`snapshot`) and what happened (`Recent`).

It is encoded once for all who look, and only if somebody does.
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
from abate.call.tally import roll
from abate.clock import Clock
from abate.observe.page import trouble
from abate.observe.page.depths import Depths
from abate.observe.page.rates import POINTS, Rates, short
from abate.observe.page.recent import Calls, Recent, Work, text
from abate.observe.snapshot import PolicyView, ShelterView, grouped, policy_view, shelter_view
from abate.observe.stored_numbers import reading
from abate.redact import described

MINUTE = 60.0
KEYS = 8
"""Keys that are shown of each kind."""
PAIRS = 20
"""Layered pairs that are shown."""
T = TypeVar("T")


class Board:
    """The page's contents. Whoever has it calls `look` once a second, and reads `frame` or `hello` after that.

    >>> import abate
    >>> policy = abate.Policy(name="doc-board", on=OSError)
    >>> board = Board(Recent(), abate.clock.current())
    >>> board.look()
    >>> b'"doc-board"' in board.frame()
    True
    """

    def __init__(self, recent: Recent, clock: Clock) -> None:
        self._recent = recent
        self._clock = clock
        self.depths = Depths()
        self._looked: float | None = None
        self._times: deque[float] = deque(maxlen=POINTS)
        self._policies: dict[str, Rates] = {}
        self._queues: dict[str, Rates] = {}
        self._all = Rates()
        self._shown: dict[str, Any] = {}
        self._frame: bytes | None = None
        self._hello: bytes | None = None
        script = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
        self._process = f"{script} on {socket.gethostname()}, process {os.getpid()}"

    # -- looking

    @property
    def looked(self) -> bool:
        """Is there anything to show yet?"""
        return self._looked is not None

    def services(self) -> dict[str, Any]:
        """The controllers and consumers that are shown, by name; the first of each."""
        return {name: group[0] for name, group in grouped(registry.services.alive())}

    def look(self) -> None:
        """See how everything is now."""
        now = self._clock.now()
        seconds = 1.0 if self._looked is None else max(0.001, now - self._looked)
        self._looked = now
        self._times.append(round(self._clock.wall(), 1))
        policies = [policy for policy in registry.policies.alive() if policy.name]
        sheltering = {id(shelter): shelter for policy in policies for shelter in policy.shelters}
        shelters = {name: shelter_view(name, group) for name, group in grouped(sheltering.values())}
        counted = roll.totals()

        def policy_row(name: str, group: list[Any]) -> dict[str, Any]:
            return self._policy_row(policy_view(name, group, counted), shelters, now, seconds)

        def queue_row(name: str, service: Any) -> dict[str, Any]:
            return self._queue_row(name, service, now, seconds)

        unread: list[tuple[str, str]] = []
        rows = _rows(grouped(policies), policy_row, unread)
        work = _rows(self.services().items(), queue_row, unread)
        _keep(self._policies, (row["name"] for row in rows))
        _keep(self._queues, (row["name"] for row in work))
        self._frame = self._hello = None
        self._shown = {
            "at": self._times[-1],
            "process": self._process,
            "totals": self._total(rows, seconds),
            "policies": _worst_first(rows),
            "queues": _worst_first(work),
            "stores": [
                {"name": name, "degraded": any(store.degraded for store in group)}
                for name, group in grouped(registry.stores.alive())
            ],
            "layers": [
                {"outer": outer, "inner": inner, "times": times}
                for outer, inner, times in sorted(self._recent.layers(), key=lambda pair: -pair[2])[:PAIRS]
            ],
            "happenings": [
                *({"at": self._times[-1], "name": name, "text": why, "times": 1} for name, why in unread),
                *(
                    {"at": round(at, 1), "name": name, "text": what, "times": times}
                    for at, name, what, times in self._recent.happenings()
                ),
            ],
        }

    def _policy_row(
        self, view: PolicyView, shelters: dict[str, ShelterView], now: float, seconds: float
    ) -> dict[str, Any]:
        def read(calls: Calls) -> dict[str, Any]:
            return {
                "retries": calls.retries,
                "reasons": calls.retried.counts(now),
                "given_up": calls.given_up.counts(now),
                "refused": calls.refused.counts(now),
                "delays": sorted(delay for at, delay in calls.delays if now - at <= MINUTE),
                "error": None if calls.error is None else [round(calls.error[0], 1), calls.error[1]],
            }

        row = self._recent.read_calls(view.name, read)
        rates = self._policies.setdefault(view.name, Rates())
        calls, retries, failed = rates.note((view.begun, row["retries"], view.bad), seconds)
        shelter = None if view.shelter is None else shelters.get(view.shelter)
        delays = row.pop("delays")
        wrong = view.wrong
        if shelter is not None and math.isnan(shelter.limit):
            wrong = wrong or "limit of the shelter"
        wrong = wrong and f"wrong numbers: {wrong}"
        level, why = trouble.of_policy(
            shelter=None if shelter is None else shelter.state,
            share=view.share,
            calls=rates.lately(0, int(MINUTE)),
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
            "delay": [short(delays[len(delays) // 2]), short(delays[-1])] if delays else None,
            "shelter": None if shelter is None else _shelter_shown(shelter),
        }

    def _queue_row(self, name: str, service: Any, now: float, seconds: float) -> dict[str, Any]:
        def read(work: Work) -> dict[str, Any]:
            return {
                "totals": (work.ended, work.failed, work.seconds),
                "endings": work.endings.counts(now),
                "hottest": [pair for pair in work.hottest.top(KEYS) if pair[1] > 1],
                "failing_keys": work.failing.top(KEYS, now),
                "letters": [(round(at, 1), *letter) for at, *letter in reversed(work.letters)],
            }

        row = self._recent.read_work(name, read)
        health, known = service.health(), self.depths.of(service)
        depth = reading(known.depth)
        failing = health.failing or known.failing
        rates = self._queues.setdefault(name, Rates())
        ended, failed, busy, _ = rates.note(row.pop("totals"), seconds, depth.ready or 0)
        level, why = trouble.of_queue(
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
            "busy": short(min(1.0, busy / service.workers)),
            "ended": ended,
            "failed": failed,
            "ready": depth.ready,
            "delayed": depth.delayed,
            "dead": depth.dead,
            "age": None if depth.age is None else short(depth.age),
            "adds": getattr(service, "adds", None),
            "coalesced": getattr(service, "coalesced", None),
            "failing": depth.wrong if failing is None else text(failing),
        }

    def _total(self, rows: list[dict[str, Any]], seconds: float) -> dict[str, float]:
        sums = [math.fsum(row[kind] for row in rows) for kind in ("calls", "retries", "failed")]
        calls, retries, failed = self._all.note((), seconds, *sums)
        return {"calls": calls, "retries": retries, "failed": failed}

    # -- for who looks

    def frame(self) -> bytes:
        """How everything was at the last look, as an event of the stream."""
        if self._frame is None:
            self._frame = b"data: " + _encoded(self._shown) + b"\n\n"
        return self._frame

    def hello(self) -> bytes:
        """The first event for somebody who comes: the lines of all charts so far."""
        if self._hello is None:
            lines = {
                "times": list(self._times),
                "all": self._all.lines(),
                "policies": {name: rates.lines() for name, rates in self._policies.items()},
                "queues": {name: rates.lines() for name, rates in self._queues.items()},
            }
            self._hello = b"retry: 1000\nevent: hello\ndata: " + _encoded(lines) + b"\n\n"
        return self._hello


def _encoded(thing: object) -> bytes:
    """As JSON, in ASCII: no line ends in the midst of an event, whatever a peer sent."""
    return json.dumps(thing, separators=(",", ":"), allow_nan=False).encode("ascii")


def _rows(
    named: Iterable[tuple[str, T]], make: Callable[[str, T], dict[str, Any]], unread: list[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Make the row of each; one that can't be read is named in `unread`, and hides no other."""
    rows = []
    for name, thing in named:
        try:
            rows.append(make(name, thing))
        except Exception as error:  # a budget or a source of the user's own may raise anything
            unread.append((name, f"can't be shown: {described(error)}"))
    return rows


def _shelter_shown(shelter: ShelterView) -> dict[str, Any]:
    limit = _finite(shelter.limit)
    return {"name": shelter.name, "state": shelter.state, "waiters": shelter.waiters, "limit": limit}


def _finite(value: float) -> float | None:
    return short(value) if math.isfinite(value) else None


def _worst_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (-row["level"], row["name"]))


def _keep(kept: dict[str, Rates], names: Iterable[str]) -> None:
    """Drop the lines of what is not there any more."""
    for gone in kept.keys() - set(names):
        del kept[gone]
