"""The clients of a live run: tasks of asyncio whose attempts are requests over real sockets.

Calls go by the production driver (`Policy.acall`), or by the clients' own code; budgets and shelters are real, on the
machine's clock. When calls begin is the simulator's to say, on an agenda of the machine's clock. Controllers are the
simulator's loops over the production queue and judge; their reconciles are requests as well.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from abate.call.giveup import chain, report
from abate.clock import MACHINE
from abate.errors import Refused
from abate.sim.answers import Answer
from abate.sim.arrivals import Arrivals
from abate.sim.chance import Chance
from abate.sim.clients import Clients
from abate.sim.control import control
from abate.sim.coroutine import function_of
from abate.sim.live.agenda import LiveAgenda
from abate.sim.live.line import Line
from abate.sim.measures import Recorder
from abate.sim.server import Request
from abate.sim.stage import Setting
from abate.sim.world import World

MOST_KINDS = 5
"""Kinds of errors that come from no service of which there is a note each."""
PATIENCE = 5.0
"""Seconds that calls have to end when all is over."""


def reason_of(error: Exception) -> str:
    """Why a call was given up: the policy's word for it, where there is one.

    >>> reason_of(ValueError()), reason_of(Refused("permits", "all are held"))
    ('fatal', 'budget')
    """
    found = report(error)
    if found is not None:
        return found.reason
    return "budget" if isinstance(error, Refused) else "fatal"


class LiveSetting(Setting):
    """What clients and controllers of a live run share; `tasks` are the calls and attempts under way."""

    __slots__ = ("late", "line", "over", "strange", "tasks")

    def __init__(self, world: World, seed: int, raster: bool, agenda: LiveAgenda, line: Line) -> None:
        self.world = world
        self.agenda = agenda
        self.chance = Chance(seed)
        self.late = 0.0
        """By how many seconds the timers were late at most."""
        self.over = False
        self.recorder = LiveRecorder(self, world, raster)
        self.notes = []
        self.line = line
        self.tasks: set[asyncio.Task[None]] = set()
        self.strange: Counter[str] = Counter()
        self.entry = Remote(self)
        self._bind_all(MACHINE)

    def start(self, work: Any) -> None:
        """Have something done in a task of its own."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def wonder(self, error: Exception) -> None:
        """Count an error that comes from no service, such as one of a socket."""
        if any(isinstance(each, (Answer, TimeoutError, Refused)) for each in chain(error)):
            return
        shown = repr(error)
        if shown in self.strange or len(self.strange) < MOST_KINDS:
            self.strange[shown] += 1

    async def end(self) -> None:
        """Count nothing from now on, break off what is under way, and hang up."""
        self.over = True
        tasks = set(self.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE)
        self.line.pool.close()
        await asyncio.sleep(0)  # connections are closed by the loop's next round
        for shown, count in self.strange.items():
            self.notes.append(f"{count:,} calls failed with {shown}, which comes from no service")


class LiveRecorder(Recorder):
    """Counts while the world runs; what comes after its horizon, or when all is over, is not counted."""

    __slots__ = ("_setting",)

    def __init__(self, setting: LiveSetting, world: World, raster: bool) -> None:
        super().__init__(world, raster)
        self._setting = setting

    def _late(self, now: float) -> bool:
        return self._setting.over or now > self._world.horizon

    def call(self, client: int, now: float) -> None:
        if not self._late(now):
            super().call(client, now)

    def attempt(self, client: int, now: float) -> None:
        if not self._late(now):
            super().attempt(client, now)

    def success(self, client: int, began: float, now: float) -> None:
        if not self._late(now):
            super().success(client, began, now)

    def failure(self, began: float, now: float, reason: str) -> None:
        if not self._late(now):
            super().failure(began, now, reason)


class Remote:
    """A service that is reached over sockets, for callers that think it is here."""

    __slots__ = ("_setting",)

    def __init__(self, setting: LiveSetting) -> None:
        self._setting = setting

    def submit(self, request: Request) -> None:
        """A request is sent."""
        if not self._setting.over:
            self._setting.start(self._exchange(request))

    async def _exchange(self, request: Request) -> None:
        setting, failure = self._setting, None
        left = None if request.deadline is None else request.deadline - setting.agenda.time
        try:
            async with asyncio.timeout(left):
                await setting.line.attempt()
        except TimeoutError:
            return  # the caller has an alarm of its own
        except Exception as error:
            setting.wonder(error)
            failure = error
        if not setting.over:
            request.reply(request, failure)


class Crowd:
    """The clients of a world, as tasks."""

    __slots__ = ("_arrivals", "_functions", "_left", "_setting")

    def __init__(self, setting: LiveSetting) -> None:
        clients = setting.world.clients
        assert isinstance(clients, Clients)
        self._setting = setting
        self._functions: list[Callable[[Any], Any]] = [policy.acall for policy in setting.policies]
        if clients.code:
            self._functions = [function_of(clients.code)]
        self._left = clients.count if clients.arrivals == "once" else -1
        self._arrivals = Arrivals(setting.world, setting.agenda, setting.chance, self.begin)

    @property
    def done(self) -> bool:
        """Have all clients made their only call?"""
        return self._left == 0

    def begin(self, client: int) -> None:
        """A client calls."""
        setting = self._setting
        if setting.over:
            return
        now = setting.agenda.time
        setting.recorder.call(client, now)
        setting.start(self._call(client, now))

    async def _call(self, client: int, began: float) -> None:
        setting, reason = self._setting, None
        try:
            await self._functions[client % len(self._functions)](partial(self._send, client))
        except Exception as error:
            reason = reason_of(error)
            setting.wonder(error)
        now = setting.agenda.time
        if reason is None:
            setting.recorder.success(client, began, now)
        else:
            setting.recorder.failure(began, now, reason)
        self._left -= 1
        if not setting.over:
            self._arrivals.finished(client)

    async def _send(self, client: int) -> None:
        """Make one attempt."""
        setting = self._setting
        setting.recorder.attempt(client, setting.agenda.time)
        await setting.line.attempt()


def people(setting: LiveSetting) -> Crowd | None:
    """Set those who call going; None where these are controllers, who are never done."""
    if isinstance(setting.world.clients, Clients):
        return Crowd(setting)
    control(setting)
    return None
