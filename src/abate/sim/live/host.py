"""The services of a world behind real sockets, in a process of their own: ``python -m abate.sim.live.host``.

The services are the simulator's own, on an agenda of the machine's clock, so that both follow the same rules. What is
real is everything around them: requests come over connections, and one whose connection is closed is given up; calls
of further services go by the production driver over sockets. Rows are real: what was read is written if unchanged.

On its standard input come the world and the seed (pickled), then ``begin EPOCH`` and ``end``; where that closes, the
process ends. On its standard output go the ports, and at the end what each service saw, in JSON.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import signal
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from threading import Thread
from typing import Any, BinaryIO, cast

from abate.call.policy import Policy
from abate.clock import MACHINE
from abate.schedule.deadlines import deadline as within
from abate.schedule.deadlines import remaining
from abate.sim.answers import Answer
from abate.sim.binding import bound, failures_of, once
from abate.sim.calls import Over
from abate.sim.chance import Chance
from abate.sim.durations import Duration
from abate.sim.live.agenda import LiveAgenda
from abate.sim.live.clients import reason_of
from abate.sim.live.line import DEADLINE, Line
from abate.sim.live.wire import HOST, Answering, Head
from abate.sim.measures import Load
from abate.sim.server import Request, Server
from abate.sim.services import Row, Service
from abate.sim.world import World

BACKLOG = 4096
"""Connections that may wait to be taken: a herd comes at once."""
DRAIN = 2.0
"""Seconds in which clients must have hung up when all is over."""


class Ingress:
    """Where requests for one service come in."""

    def __init__(self) -> None:
        self.wires: set[Answering] = set()
        self.service: Server | LiveRow | None = None
        self.agenda: LiveAgenda | None = None
        self._pending: dict[Answering, Request] = {}

    def wire(self) -> Answering:
        """A client has connected."""
        wire = Answering(self._came, self._lost)
        self.wires.add(wire)
        return wire

    def _came(self, wire: Answering, head: Head) -> None:
        assert self.service is not None
        assert self.agenda is not None
        if isinstance(self.service, LiveRow):
            self.service.came(wire, head)
            return
        left = head.headers.get(DEADLINE.lower())
        due = None if left is None else self.agenda.time + float(left) / 1000
        request = self._pending[wire] = Request(self._reply, wire, due)
        self.service.submit(request)

    def _reply(self, request: Request, failure: Exception | None) -> None:
        if request.over:
            return
        request.over = True
        wire: Answering = request.owner
        self._pending.pop(wire, None)
        if failure is None:
            wire.answer(200, {})
        else:
            assert isinstance(failure, Answer)
            wire.answer(failure.status_code, failure.headers)

    def _lost(self, wire: Answering) -> None:
        self.wires.discard(wire)
        request = self._pending.pop(wire, None)
        if request is not None:
            request.over = True  # whatever is done for it from now on is done for nothing


class LiveRow:
    """A row with a version, which is read and written over sockets; each leg takes its time."""

    def __init__(self, row: Row, agenda: LiveAgenda, chance: Chance) -> None:
        self._agenda = agenda
        self._leg = Duration.of(row.network).drawn_from(chance.stream(f"network/{row.name}"))
        self._version = 0
        self._written = self._lost = 0

    def came(self, wire: Answering, head: Head) -> None:
        """A read or a write has been sent; it arrives after a while."""
        arrived = self._read if head.words[0] == "GET" else self._write
        self._agenda.at(self._agenda.time + self._leg(), arrived, (wire, head.headers.get("if-match")))

    def _read(self, asked: tuple[Answering, str | None]) -> None:
        self._answer(asked[0], 200)

    def _write(self, asked: tuple[Answering, str | None]) -> None:
        wire, expected = asked
        if expected == str(self._version):
            self._version += 1
            self._written += 1
            self._answer(wire, 200)
        else:
            self._lost += 1
            self._answer(wire, 409)

    def _answer(self, wire: Answering, status: int) -> None:
        headers = {"ETag": str(self._version)}
        self._agenda.at(self._agenda.time + self._leg(), lambda _: wire.answer(status, headers), None)

    def load(self) -> Load:
        """What it saw so far."""
        return Load(requests=self._written + self._lost, served=self._written, errors=self._lost)


class Onward:
    """How a service calls a further one: by the production driver, over sockets."""

    def __init__(self, policy: Policy, line: Line, agenda: LiveAgenda) -> None:
        self._policy = policy
        self._line = line
        self._agenda = agenda
        self._tasks: set[asyncio.Task[None]] = set()

    def call(self, over: Over, deadline: float | None = None) -> None:
        """Make a call, which ends by `deadline` and by the policy's own timeout."""
        task = asyncio.get_running_loop().create_task(self._call(over, deadline))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, over: Over, deadline: float | None) -> None:
        reason = None
        try:
            left = None if deadline is None else max(0.0, deadline - self._agenda.time)
            with nullcontext() if left is None else within(left):
                await self._policy.acall(self._attempt)
        except Exception as error:
            reason = reason_of(error)
        over(cast(Any, None), reason)  # a service asks for the reason alone

    async def _attempt(self) -> None:
        left = remaining()
        if left is None or self._policy.bounded:  # the policy cuts it off itself
            await self._line.attempt()
            return
        cut = MACHINE.within(left)
        async with cut:
            await self._line.attempt()


class Hosting:
    """All services of a world."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._chance = Chance(seed)
        self._doors = {service.name: Ingress() for service in world.services}
        self._ports: dict[str, int] = {}
        self._listeners: list[asyncio.Server] = []
        self._agenda: LiveAgenda | None = None

    async def open(self) -> dict[str, int]:
        """Listen; the answer is the port of each service."""
        for name, door in self._doors.items():
            listener = await asyncio.get_running_loop().create_server(door.wire, HOST, 0, backlog=BACKLOG)
            self._listeners.append(listener)
            self._ports[name] = listener.sockets[0].getsockname()[1]
        return self._ports

    def begin(self, epoch: float) -> None:
        """The world begins at this instant of the machine's clock."""
        agenda = self._agenda = LiveAgenda(asyncio.get_running_loop(), epoch)
        for service in self._world.services:
            door = self._doors[service.name]
            door.agenda = agenda
            if isinstance(service, Row):
                door.service = LiveRow(service, agenda, self._chance)
                continue
            door.service = server = Server(service, self._world, agenda, self._chance)
            server.callers = [self._onward(service, name, agenda) for name in service.calls]

    def _onward(self, service: Service, name: str, agenda: LiveAgenda) -> Onward:
        called = self._world.service(name)
        rng = self._chance.stream(f"policy/{service.name}/{name}")
        policy = bound(service.policy or once(), MACHINE, rng, failures_of(self._world, called))
        return Onward(policy, Line(called, self._ports[name], self._world.tells_layers), agenda)

    async def end(self) -> dict[str, Any]:
        """What each service saw, once the clients have hung up, and by how much the timers were late."""
        entry = self._doors[self._world.entry]
        for _ in range(int(DRAIN / 0.01)):
            if not entry.wires:
                break
            await asyncio.sleep(0.01)
        loads = {name: door.service.load() for name, door in self._doors.items() if door.service is not None}
        return {
            "loads": {name: {key: getattr(load, key) for key in load.__match_args__} for name, load in loads.items()},
            "late": 0.0 if self._agenda is None else self._agenda.late,
        }


async def host(source: BinaryIO) -> None:
    """Do what the words on the standard input ask for."""
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[bytes] = loop.create_future()
    loop.set_exception_handler(lambda _, context: _break(broken, context))
    words: asyncio.Queue[bytes] = asyncio.Queue()
    world, seed = pickle.load(source)
    hosting = Hosting(world, seed)
    _say(await hosting.open())
    Thread(target=_listen, args=(source, loop, words), daemon=True).start()
    while True:
        heard = asyncio.ensure_future(words.get())
        await asyncio.wait({heard, broken}, return_when=asyncio.FIRST_COMPLETED)
        word = broken.result() if broken.done() else heard.result()
        if word.startswith(b"begin "):
            hosting.begin(float(word.split()[1]))
            _say({})
        elif word == b"end\n":
            _say(await hosting.end())
        else:
            return  # whoever started this has gone


def _listen(source: BinaryIO, loop: asyncio.AbstractEventLoop, words: asyncio.Queue[bytes]) -> None:
    while word := source.readline():
        loop.call_soon_threadsafe(words.put_nowait, word)
    loop.call_soon_threadsafe(words.put_nowait, b"")


def _break(broken: asyncio.Future[bytes], context: dict[str, Any]) -> None:
    """What nobody has caught ends this process: a service that went on half-broken would be measured."""
    if not broken.done():
        broken.set_exception(context.get("exception") or RuntimeError(context["message"]))


def _say(fact: Mapping[str, Any]) -> None:
    print(json.dumps(fact), flush=True)


def main() -> None:
    """Serve until the standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the clients' process that is broken off
    asyncio.run(host(sys.stdin.buffer))


if __name__ == "__main__":
    main()
