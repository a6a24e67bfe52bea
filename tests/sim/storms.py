"""Storms on one server in virtual time: policies with shelters as in production, and a server with a few workers.

A storm takes a second or two. The server, the arrivals and what is measured are those of the storm benchmark on real
sockets (`benchmarks/storm`), whose figures these reproduce.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from random import Random
from typing import Any

import abate
from abate import clock as clocks
from abate.sim.agenda import Agenda
from abate.sim.event_loop import VirtualLoop

WIRE = 0.0003
"""Seconds that a request or an answer is on its way."""
FOREVER = 1e6
AFTER = 40.0
"""Seconds after the last arrival by which everything is over."""


class Unavailable(Exception):
    """What a client raises on a 503."""

    status_code = 503

    def __init__(self, retry_after: float | None) -> None:
        super().__init__("HTTP 503")
        self.headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}


@dataclass(frozen=True)
class Server:
    """The server: `workers` of `service` seconds each, and places to wait."""

    workers: int = 10
    service: float = 0.03
    places: int = 50
    outages: tuple[tuple[float, float, str], ...] = ()
    """From, to, and how: ``503``, ``hang`` or ``reset``."""
    slow: tuple[tuple[float, float, float], ...] = ()
    """From, to, and the factor of the service time of requests that begin there."""
    retry_after: float | None = None


@dataclass(frozen=True)
class Plan:
    """A storm: who calls, and the server."""

    server: Server
    herd: int = 0
    """This number of calls at once, at 0 s; else `rate` per second until `until`."""
    rate: float = 0.0
    until: float = 25.0
    processes: int = 4
    attempts: int = 6
    timeout: float = 1.0
    """Of one attempt, in seconds."""
    patience: float = 7.5
    """The timeout of a call: of each of these in turn, if there are several."""
    patiences: tuple[float, ...] = ()
    seed: str = "B"


@dataclass
class Call:
    """One call, and what became of it."""

    number: int
    began: float
    attempts: int = 0
    ended: float | None = None
    answered: bool = False


@dataclass
class Request:
    """One request at the server: `outcome` is ``failed``, ``shed``, ``served``, or ``dead`` for nobody."""

    at: float
    call: int
    attempt: int
    outcome: str = "failed"


@dataclass
class Storm:
    """A storm that is over."""

    plan: Plan
    calls: list[Call]
    requests: list[Request]

    @property
    def down(self) -> float:
        """When the first outage begins."""
        return self.plan.server.outages[0][0]

    @property
    def up(self) -> float:
        """When the last outage, or slow time without one, ends."""
        server = self.plan.server
        return server.outages[-1][1] if server.outages else server.slow[-1][1]

    def during(self) -> list[Call]:
        """The calls that began in the time of trouble."""
        return [call for call in self.calls if self.down <= call.began < self.up]

    def lost(self, calls: Iterable[Call]) -> float:
        """The share of these calls that got no answer."""
        calls = list(calls)
        return sum(not call.answered for call in calls) / max(1, len(calls))

    def within(self, calls: Iterable[Call], seconds: float = 1.0) -> float:
        """The share of these calls that were answered within so many seconds."""
        calls = list(calls)
        return sum(call.answered and call.ended - call.began <= seconds for call in calls) / max(1, len(calls))

    def load(self) -> float:
        """Requests in the outages, for each call that began in them."""
        sent = sum(any(a <= request.at < b for a, b, _ in self.plan.server.outages) for request in self.requests)
        hit = sum(any(a <= call.began < b for a, b, _ in self.plan.server.outages) for call in self.calls)
        return sent / max(1, hit)

    def peak(self, width: float, requests: Iterable[Request]) -> int:
        """The most requests in any `width` seconds."""
        times, best, low = sorted(request.at for request in requests), 0, 0
        for high, at in enumerate(times):
            while times[low] <= at - width:
                low += 1
            best = max(best, high - low + 1)
        return best

    def peak_after(self, width: float = 0.25) -> float:
        """The most requests in any `width` seconds after the outage, as a multiple of the calls; of a herd, a count."""
        most = self.peak(width, (request for request in self.requests if request.at >= self.up))
        return most / (self.plan.rate * width) if self.plan.rate else float(most)

    def recovery(self, width: float = 0.5) -> float:
        """Seconds after the trouble until, in every half second, 95 % of the calls are answered within a second."""
        last = start = self.up
        for number in range(int((self.plan.until - start) / width)):
            at = start + number * width
            mine = [call for call in self.calls if at <= call.began < at + width]
            if self.within(mine) < 0.95:
                last = at + width
        return last - start

    def counted(self, outcome: str) -> int:
        """The number of requests with this outcome."""
        return sum(request.outcome == outcome for request in self.requests)


class _Service:
    """The server's queue; when it takes a request, it is known when the answer comes."""

    def __init__(self, plan: Server) -> None:
        self.plan = plan
        self.free = [0.0] * plan.workers
        self.starts: deque[float] = deque()

    def take(self, now: float) -> float | None:
        """Take a request: return the instant of the answer, or None if the queue is full."""
        plan, starts = self.plan, self.starts
        while starts and starts[0] <= now:
            starts.popleft()
        begin = max(now, self.free[0])
        if begin > now:
            if len(starts) >= plan.places:
                return None
            starts.append(begin)
        end = begin + plan.service * next((factor for a, b, factor in plan.slow if a <= begin < b), 1.0)
        heapq.heapreplace(self.free, end)
        return end


def policies(plan: Plan, seed: int) -> list[abate.Policy]:
    """The policy of each process, with a shelter of its own."""
    longest = max(plan.patiences, default=plan.patience)
    return [
        abate.Policy(
            name="storm",
            on=(abate.http.transient, Unavailable, TimeoutError, ConnectionError),
            max_attempts=plan.attempts,
            timeout=longest,
            backoff=abate.Backoff(base=0.1, cap=2.0),
            shelter=abate.Shelter(patience=longest, rng=Random(f"{plan.seed}{seed}/shelter {number}")),
            rng=Random(f"{plan.seed}{seed}/policy {number}"),
        )
        for number in range(plan.processes)
    ]


def run(plan: Plan, seed: int = 0, make: Callable[[Plan, int], list[abate.Policy]] = policies) -> Storm:
    """Run a storm with the policies that `make` returns, one for each process."""
    return copy_context().run(_run, plan, seed, make)


def _run(plan: Plan, seed: int, make: Callable[[Plan, int], list[abate.Policy]]) -> Storm:
    agenda = Agenda()
    scope = clocks.enter(agenda)
    try:
        return _World(plan, seed, agenda).run(make(plan, seed))
    finally:
        clocks.leave(scope)


class _World:
    """The server, the wire and the callers of one storm."""

    def __init__(self, plan: Plan, seed: int, agenda: Agenda) -> None:
        self.plan, self.agenda, self.service = plan, agenda, _Service(plan.server)
        self.storm = Storm(plan, [Call(number, at) for number, at in enumerate(_arrivals(plan, seed))], [])
        self.functions: list[Callable[[Call], Any]] = []

    def run(self, known: list[abate.Policy]) -> Storm:
        loop = VirtualLoop(self.agenda)  # type: ignore[abstract]
        self.functions = [policy(self.attempt) for policy in known]
        with loop.running():
            for call in self.storm.calls:
                self.agenda.at(call.began, lambda call: loop.create_task(self.issue(call)), call)
            self.agenda.run(until=max(self.storm.calls[-1].began, self.plan.until) + AFTER)
        loop.cancel_all()
        return self.storm

    async def issue(self, call: Call) -> None:
        """One call, within the patience of its caller."""
        patiences = self.plan.patiences or (self.plan.patience,)
        with suppress(Exception), abate.deadline(patiences[call.number % len(patiences)]):
            await self.functions[call.number % len(self.functions)](call)
            call.answered = True
        call.ended = self.agenda.time

    async def attempt(self, call: Call) -> None:
        call.attempts += 1
        async with asyncio.timeout(self.plan.timeout):
            await self.exchange(Request(self.agenda.time, call.number, call.attempts))

    async def exchange(self, request: Request) -> None:
        """One request on the wire, and its answer."""
        await asyncio.sleep(WIRE)
        end = request.at = self.agenda.time
        self.storm.requests.append(request)
        how = next((how for a, b, how in self.plan.server.outages if a <= request.at < b), None)
        if how == "hang":
            await asyncio.sleep(FOREVER)
        if how is None:
            answer_at = self.service.take(request.at)
            if answer_at is None:
                request.outcome = "shed"
            else:
                request.outcome, end = "dead", answer_at
        await asyncio.sleep(end - self.agenda.time + WIRE)
        if how == "reset":
            raise ConnectionResetError("reset by the server")
        if request.outcome != "dead":
            raise Unavailable(self.plan.server.retry_after)
        request.outcome = "served"


def _arrivals(plan: Plan, seed: int) -> list[float]:
    rng, times, at = Random(f"{plan.seed}{seed}"), [0.0] * plan.herd, 0.0
    while plan.rate and (at := at + rng.expovariate(plan.rate)) < plan.until:
        times.append(at)
    return times


def outage(how: str, start: float = 5.0, end: float = 10.0) -> Server:
    """Everything fails, and then for two seconds caches are cold."""
    return Server(outages=((start, end, how),), slow=((end, end + 2.0, 1.5),))


def brink(load: float, factor: float = 2.0) -> Plan:
    """A load close to the capacity, a queue longer than the timeout, and three slow seconds."""
    server = Server(places=400, slow=((5.0, 8.0, factor),))
    return Plan(server, rate=load * 1000 / 3, timeout=0.5, seed="C")


HERD = Server(outages=((-1.0, 3.0, "503"),), slow=((3.0, 4.0, 2.0),))
FLAPS = tuple((float(second), second + 1.0, "503") for second in range(3, 13, 2))
STORMS = {
    "A": Plan(HERD, herd=500, processes=500, attempts=10, patience=16.3, seed="A"),
    "A2": Plan(HERD, herd=500, processes=1, attempts=10, patience=16.3, seed="A"),
    "B": Plan(outage("503"), rate=200.0),
    "hang": Plan(outage("hang"), rate=200.0),
    "reset": Plan(outage("reset"), rate=200.0),
    "C": brink(0.85),
    "C75": brink(0.75),
    "C87": brink(0.87),
    "C95": brink(0.95),
    "E": Plan(Server(outages=((-1.0, 2.0, "503"),), retry_after=2.0), herd=300, processes=300, seed="E"),
    "flapping": Plan(Server(outages=FLAPS), rate=200.0, until=15.0, seed="f"),
    "halved": Plan(Server(places=400, slow=((4.0, 999.0, 2.0),)), rate=200.0, until=18.0, timeout=0.5, seed="h"),
    "halved for 60 s": Plan(
        Server(places=400, slow=((4.0, 999.0, 2.0),)), rate=200.0, until=64.0, timeout=0.5, seed="h"
    ),
    # one of each kind beside those of the benchmark
    "B at 50 %": Plan(outage("503"), rate=167.0, seed="B5"),
    "B at 80 %": Plan(outage("503"), rate=267.0, seed="B8"),
    "B at 90 %": Plan(outage("503"), rate=300.0, until=40.0, seed="B9"),
    "B for 2 s": Plan(outage("503", end=7.0), rate=200.0, seed="B2"),
    "B for 20 s": Plan(outage("503", end=25.0), rate=200.0, until=45.0, seed="B20"),
    "B, 2 to 15 s": Plan(outage("503"), rate=200.0, patiences=(2.0, 5.0, 7.5, 15.0), seed="Bm"),
    "B, one process": Plan(outage("503"), rate=200.0, processes=1, seed="B1"),
    "B, 20 processes": Plan(outage("503"), rate=200.0, processes=20, seed="B20p"),
    "quiet": Plan(outage("503"), rate=2.0, processes=1, seed="q"),
}
