"""The coroutine engine: clients are asyncio tasks, in the same world and with the same order of events as `exact`.

* A call is a task that awaits the production driver, ``policy.acall(send)``, or the clients' `code`: any async function
  that takes `send` and retries in its own way. ``await send()`` is one attempt. It raises the `Answer` of a service
  that failed; cancelling it abandons the request.
* abate's objects without a clock of their own use the world's clock, as do `asyncio.sleep` and `asyncio.timeout`. The
  module `random` is seeded for the run, and restored after it.
* A call succeeds when the code returns, and fails when it raises. An error that does not come from a service is counted
  too, and noted: it may be a bug in the code.
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
from abate.call.layers import error_chain, report
from abate.errors import AbateError, Refused
from abate.schedule.deadlines import nearest_deadline
from abate.sim.agenda import MAX_EVENTS_PER_INSTANT
from abate.sim.arrivals import Arrivals
from abate.sim.controller_loops import start_controllers
from abate.sim.event_loop import VirtualLoop
from abate.sim.measures import Load, Run
from abate.sim.model import Code, Controllers
from abate.sim.server import Answer, Request
from abate.sim.simulation import Simulation
from abate.sim.world import World

MAX_ERROR_KINDS = 5
"""Types of errors that do not come from a service and get a note each."""


def run(world: World, seed: int, raster: bool = False) -> Run:
    """Run a world, with clients as tasks.

    >>> import abate.sim as sim
    >>> async def fetch(send):
    ...     async with asyncio.timeout(0.55):
    ...         await send()
    >>> clients = sim.Clients(count=10, arrivals="once", code=fetch)
    >>> found = run(sim.World(clients, [sim.Service("api", service_time=0.1)]), seed=1)
    >>> found.successes, found.reasons
    (5, {'fatal': 5})
    """
    simulation = Simulation(world, seed, raster)
    loop = VirtualLoop(simulation.agenda)  # type: ignore[abstract]  # the missing methods refuse
    if isinstance(world.clients, Controllers):
        start_controllers(simulation)  # they wait for keys and the service only, and need no tasks
        loads = Context().run(_run_to_horizon, simulation, loop, None)
    elif world.clients.code:
        crowd = TaskClients(simulation, loop, [resolve_code(world.clients.code)])
        if world.policy is not None:
            simulation.notes.append("the policy of the clients is not used: they have their own code")
        with _seeded(simulation):
            loads = copy_context().run(_run_to_horizon, simulation, loop, crowd)
    else:
        # in a new context: the caller's deadlines are in real time
        crowd = TaskClients(simulation, loop, [policy.acall for policy in simulation.policies])
        loads = Context().run(_run_to_horizon, simulation, loop, crowd)
    return simulation.recorder.run("coroutine", seed, loads, simulation.notes)


def _run_to_horizon(simulation: Simulation, loop: VirtualLoop, crowd: TaskClients | None) -> dict[str, Load]:
    """Run to the horizon, cancel all tasks, and return the loads of the services."""
    clocks.enter(simulation.agenda)
    try:
        with loop.running():
            simulation.agenda.run(simulation.world.horizon)
        loads = simulation.loads()
    finally:
        if crowd is not None:
            crowd.end()
        unfinished = loop.cancel_all()
        simulation.notes += loop.notes()
    if unfinished:
        simulation.notes.append(f"{unfinished:,} tasks did not end when they were cancelled")
    return loads


@contextmanager
def _seeded(simulation: Simulation) -> Generator[None]:
    """Seed the module `random`, which the code may use, from the world's streams."""
    state = random.getstate()
    random.setstate(simulation.streams.stream("code").getstate())
    try:
        yield
    finally:
        random.setstate(state)


class TaskClients:
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
        "_tasks",
        "_unexpected",
    )

    def __init__(self, simulation: Simulation, loop: VirtualLoop, functions: list[Callable[[Any], Any]]) -> None:
        self._agenda = simulation.agenda
        self._recorder = simulation.recorder
        self._server = simulation.entry
        self._notes = simulation.notes
        self._loop = loop
        self._functions = functions
        self._tasks: set[asyncio.Task[None]] = set()
        self._unexpected: dict[type[Exception], tuple[str, int]] = {}
        self._instant, self._sent = 0.0, 0
        self._over = False
        self._arrivals = Arrivals(simulation.world, simulation.agenda, simulation.streams, self.begin)

    def begin(self, client: int) -> None:
        """Begin a call of a client."""
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
            self._loop.fail_run(
                TypeError(f"clients.code must be an async function; {_name(function)} returned {found!r}")
            )
            return self._loop.create_future()
        return found

    async def _send(self, client: int) -> None:
        """Make one attempt."""
        now = self._agenda.time
        if self._over or self._is_livelocked(now):
            await self._loop.create_future()  # never answered
        self._recorder.attempt(client, now)
        future = self._loop.create_future()
        request = Request(_answered, future, nearest_deadline())
        try:
            self._server.submit(request)
            failure = await future
        finally:
            request.over = True
        if failure is not None:
            # a new instance each time: a raised error collects tracebacks and notes
            raise type(failure)()

    def _is_livelocked(self, now: float) -> bool:
        """Return whether the code sends forever at one instant, as attempts take no time and it does not wait."""
        if now > self._instant:
            self._instant, self._sent = now, 0
        self._sent += 1
        if self._sent <= MAX_EVENTS_PER_INSTANT:
            return False
        self._loop.fail_run(
            AbateError(
                f"clients make more than {MAX_EVENTS_PER_INSTANT:,} attempts at {now:g} s: time does not advance"
            )
        )
        return True

    def _reason(self, error: Exception) -> str:
        """Return the reason of a give-up: that of the policy's report, if there is one."""
        found = report(error)
        if found is not None:
            return found.reason
        if isinstance(error, Refused):
            return "budget"  # by a gate, which leaves no report
        if not any(isinstance(each, (Answer, TimeoutError, Refused)) for each in error_chain(error)):
            kind = type(error)
            if kind in self._unexpected or len(self._unexpected) < MAX_ERROR_KINDS:
                first, count = self._unexpected.get(kind, (repr(error), 0))
                self._unexpected[kind] = (first, count + 1)
        return "fatal"

    def end(self) -> None:
        """Stop counting, and add notes about unexpected errors and calls that never end."""
        self._over = True
        for task in self._tasks:
            self._loop.record_task_error(task)
        for error, count in self._unexpected.values():
            self._notes.append(f"{count:,} calls failed with {error}, which does not come from a service")
        if self._tasks and self._agenda.empty:
            self._notes.append(f"{len(self._tasks):,} calls wait for something that never happens")


def _name(function: Callable[[Any], Any]) -> str:
    """Return a function's name, without its address in memory."""
    return getattr(function, "__qualname__", type(function).__qualname__)


def _answered(request: Request, failure: Exception | None) -> None:
    if not request.owner.done():  # unless the attempt was cancelled
        request.owner.set_result(failure)


def resolve_code(code: Code) -> Callable[[Any], Any]:
    """Return the function that clients run: as given, or imported by a name such as ``app:fetch``.

    >>> resolve_code("asyncio:sleep") is asyncio.sleep
    True
    """
    if not isinstance(code, str):
        return code
    module, _, path = code.partition(":")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # of a module that it imports
        raise ValueError(f"clients.code is {code!r}, but there is no module {error.name!r} on Python's path") from None
    for name in path.split("."):
        if not hasattr(found, name):
            raise ValueError(f"clients.code is {code!r}, but {module} has no {path!r}")
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"clients.code is {code!r}, which must be an async function, not {found!r}")
    return found  # type: ignore[no-any-return]
