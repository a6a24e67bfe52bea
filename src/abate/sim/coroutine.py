"""The coroutine engine: the clients are tasks of asyncio, in the same world and the same order of events as `exact`.

* A call is a task that awaits the production driver, ``policy.acall(send)``, or the clients' own `code`: any async
  function that takes `send`, with whatever it uses to retry. ``await send()`` is one attempt. It raises the `Answer` of
  a service that failed; to cancel it abandons the request.
* abate's objects that have no clock of their own follow the world's, as do `asyncio.sleep` and `asyncio.timeout`. The
  module `random` is seeded for the run, and put back after it.
* A call has succeeded when the code returns, and failed when it raises. An error that comes from no service is counted
  as well, and noted: it may be a mistake in the code.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import Context, copy_context
from functools import partial
from importlib import import_module
from typing import Any

from abate import clock as clocks
from abate.call.giveup import chain, report
from abate.errors import AbateError, Refused
from abate.schedule.deadlines import due
from abate.sim.agenda import RESTLESS
from abate.sim.answers import Answer
from abate.sim.arrivals import Arrivals
from abate.sim.clients import Code, Controllers
from abate.sim.control import control
from abate.sim.loop import VirtualLoop
from abate.sim.measures import Load, Run
from abate.sim.server import Request
from abate.sim.stage import Stage
from abate.sim.world import World

MOST_KINDS = 5
"""Kinds of errors that come from no service of which there is a note each."""


def run(world: World, seed: int, raster: bool = False) -> Run:
    """Run a world, its clients as tasks.

    >>> import abate.sim as sim
    >>> async def fetch(send):
    ...     async with asyncio.timeout(0.55):
    ...         await send()
    >>> clients = sim.Clients(count=10, arrivals="once", code=fetch)
    >>> found = run(sim.World(clients, [sim.Service("api", service_time=0.1)]), seed=1)
    >>> found.successes, found.reasons
    (5, {'fatal': 5})
    """
    stage = Stage(world, seed, raster)
    loop = VirtualLoop(stage.agenda)  # type: ignore[abstract]  # what it lacks refuses
    if isinstance(world.clients, Controllers):
        control(stage)  # they wait for keys and for the service alone: there is nothing of theirs to be awaited
        loads = Context().run(_live, stage, loop, None)
    elif world.clients.code:
        crowd = Crowd(stage, loop, [function_of(world.clients.code)])
        if world.policy is not None:
            stage.notes.append("the policy of the clients is not used: they have code of their own")
        with _seeded(stage):
            loads = copy_context().run(_live, stage, loop, crowd)
    else:
        # in a context of its own: the deadlines around whoever runs this are in another time
        crowd = Crowd(stage, loop, [policy.acall for policy in stage.policies])
        loads = Context().run(_live, stage, loop, crowd)
    return stage.recorder.run("coroutine", seed, loads, stage.notes)


def _live(stage: Stage, loop: VirtualLoop, crowd: Crowd | None) -> dict[str, Load]:
    """Let everything happen until the horizon, and end it; what the services saw until then."""
    clocks.enter(stage.agenda)
    try:
        with loop.running():
            stage.agenda.run(stage.world.horizon)
        loads = stage.loads()
    finally:
        if crowd is not None:
            crowd.end()
        stubborn = loop.shut()
        stage.notes += loop.notes()
    if stubborn:
        stage.notes.append(f"{stubborn:,} tasks would not end when they were cancelled")
    return loads


@contextmanager
def _seeded(stage: Stage) -> Generator[None]:
    """Let the chance of code that asks the module `random` be the world's."""
    state = random.getstate()
    random.setstate(stage.chance.stream("code").getstate())
    try:
        yield
    finally:
        random.setstate(state)


class Crowd:
    """The clients of a world, as tasks."""

    __slots__ = (
        "_agenda",
        "_arrivals",
        "_functions",
        "_instant",
        "_loop",
        "_notes",
        "_over",
        "_recorder",
        "_sent",
        "_server",
        "_strange",
        "_tasks",
    )

    def __init__(self, stage: Stage, loop: VirtualLoop, functions: list[Callable[[Any], Any]]) -> None:
        self._agenda = stage.agenda
        self._recorder = stage.recorder
        self._server = stage.entry
        self._notes = stage.notes
        self._loop = loop
        self._functions = functions
        self._tasks: set[asyncio.Task[None]] = set()
        self._strange: dict[type[Exception], tuple[str, int]] = {}
        self._instant, self._sent = 0.0, 0
        self._over = False
        self._arrivals = Arrivals(stage.world, stage.agenda, stage.chance, self.begin)

    def begin(self, client: int) -> None:
        """A client calls."""
        self._recorder.call(client, self._agenda.time)
        self._tasks.add(self._loop.create_task(self._call(client)))

    async def _call(self, client: int) -> None:
        began, reason = self._agenda.time, None
        try:
            await self._awaitable(self._functions[client % len(self._functions)], partial(self._send, client))
        except asyncio.CancelledError:
            if self._over:
                raise
            reason = "cancelled"
        except Exception as error:
            reason = self._reason(error)
        if self._over:
            return
        self._tasks.discard(asyncio.current_task())
        if reason is None:
            self._recorder.success(client, began, self._agenda.time)
        else:
            self._recorder.failure(began, self._agenda.time, reason)
        self._arrivals.finished(client)

    def _awaitable(self, function: Callable[[Any], Any], send: Callable[[], Any]) -> Any:
        found = function(send)
        if not hasattr(found, "__await__"):
            self._loop.fail(TypeError(f"clients.code must be an async function; {_name(function)} returned {found!r}"))
            return self._loop.create_future()
        return found

    async def _send(self, client: int) -> None:
        """Make one attempt."""
        now = self._agenda.time
        if self._over or self._stands_still(now):
            await self._loop.create_future()  # there is no answer any more
        self._recorder.attempt(client, now)
        future = self._loop.create_future()
        request = Request(_answered, future, due())
        try:
            self._server.submit(request)
            failure = await future
        finally:
            request.over = True
        if failure is not None:
            # a new one each time: what is raised gathers tracebacks and notes, and a service answers with one error
            raise type(failure)()

    def _stands_still(self, now: float) -> bool:
        """Does code send without end, where an attempt takes no time and nobody waits between two of them?"""
        if now > self._instant:
            self._instant, self._sent = now, 0
        self._sent += 1
        if self._sent <= RESTLESS:
            return False
        self._loop.fail(AbateError(f"clients make more than {RESTLESS:,} attempts at {now:g} s: time stands still"))
        return True

    def _reason(self, error: Exception) -> str:
        """Why a call was given up: the policy's word for it, where there is one."""
        found = report(error)
        if found is not None:
            return found.reason
        if isinstance(error, Refused):
            return "budget"  # by a gate, which leaves no report
        if not any(isinstance(each, (Answer, TimeoutError, Refused)) for each in chain(error)):
            kind = type(error)
            if kind in self._strange or len(self._strange) < MOST_KINDS:
                first, count = self._strange.get(kind, (repr(error), 0))
                self._strange[kind] = (first, count + 1)
        return "fatal"

    def end(self) -> None:
        """Count nothing from now on, and say what a reader should know."""
        self._over = True
        for task in self._tasks:
            self._loop.hear(task)
        for error, count in self._strange.values():
            self._notes.append(f"{count:,} calls failed with {error}, which comes from no service")
        if self._tasks and self._agenda.empty:
            self._notes.append(f"{len(self._tasks):,} calls wait for something that never comes")


def _name(function: Callable[[Any], Any]) -> str:
    """A function as people know it, and not where it lies in memory."""
    return getattr(function, "__qualname__", type(function).__qualname__)


def _answered(request: Request, failure: Exception | None) -> None:
    if not request.owner.done():  # or nobody waits any more
        request.owner.set_result(failure)


def function_of(code: Code) -> Callable[[Any], Any]:
    """The function that clients run: one that is given, or the one that a name like ``app:fetch`` stands for.

    >>> function_of("asyncio:sleep") is asyncio.sleep
    True
    """
    if not isinstance(code, str):
        return code
    module, _, path = code.partition(":")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # of something that the module imports
        raise ValueError(f"clients.code is {code!r}, but there is no module {error.name!r} on Python's path") from None
    for name in path.split("."):
        if not hasattr(found, name):
            raise ValueError(f"clients.code is {code!r}, but {module} has no {path!r}")
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"clients.code is {code!r}, which must be an async function, not {found!r}")
    return found  # type: ignore[no-any-return]
