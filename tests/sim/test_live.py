"""Live runs: the same worlds on real sockets give what the simulator says, and every request is accounted for."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import signal
import statistics
import subprocess
import sys
from typing import Any

import pytest

import abate
from abate import sim
from abate.sim.live import compare_live, compared, run_live, table
from abate.sim.live import runs as live
from abate.sim.live.process import HostProcess

HANG = 30.0
SEEDS = range(6)


def policy(**settings: Any) -> abate.Policy:
    return abate.Policy(**{"on": sim.simulated, "budget": abate.Budget.unlimited(), **settings})


def simulated(world: sim.World, name: str) -> float:
    """What the simulator says of a measure, as a mean."""
    return statistics.fmean(world.run(seed).measures()[name] for seed in SEEDS)


def check_counts(run: sim.Run) -> None:
    """What must hold of every run, whatever the machine did."""
    entry = run.loads[run.world.entry]
    assert abs(entry.requests - run.attempts) <= 2  # one that was on its way at the end
    assert run.calls >= run.successes + run.failures
    assert run.notes == () or all("late" in note for note in run.notes)


# -- worlds


def test_a_herd_comes_back_as_simulated() -> None:
    """All get a 503 once, and all succeed at the second attempt: to the count."""
    world = sim.World(
        sim.Clients(count=100, arrivals="once", start=0.3),
        [sim.Service("api", workers=10, service_time=0.01)],
        policy(attempts=3, backoff=abate.Backoff(base=2.0, jitter="none")),
        [sim.Trigger("error", at=0.0, for_=1.7)],
        horizon=20.0,
    )
    run = run_live(world, raster=True)
    check_counts(run)
    assert (run.calls, run.attempts, run.successes, run.failures) == (100, 200, 100, 0)
    assert run.loads["api"] == sim.Load(
        requests=200, served=100, errors=100, busy=pytest.approx(1.0), wasted=run.loads["api"].wasted
    )
    assert len(run.points) == 200
    assert run.attempts == world.run().attempts


def test_an_outage_is_retried_as_simulated() -> None:
    """Open clients with a budget: as many attempts per call as the simulator says."""
    world = sim.World(
        sim.Clients(count=80),
        [sim.Service("api", workers=10, service_time=0.02)],
        policy(attempts=4, backoff=abate.Backoff(base=0.2, cap=1.0), budget=abate.Budget(ratio=1.0, reserve=20)),
        [sim.Trigger("error", at=1.0, for_=1.0)],
        horizon=4.0,
    )
    run = run_live(world, seed=1)
    check_counts(run)
    assert run.reasons.keys() <= {"attempts", "budget"}
    assert run.measures()["amplification"] == pytest.approx(simulated(world, "amplification"), rel=0.15)
    assert run.measures()["success"] == pytest.approx(simulated(world, "success"), abs=0.1)


def test_an_overload_stays_as_simulated() -> None:
    """Timeouts after a stall: clients hang up, and the service works on what nobody waits for."""
    world = sim.World(
        sim.Clients(count=50),
        [sim.Service("api", workers=3, service_time=sim.Duration(0.05, "exponential"))],
        policy(attempts=2, attempt_timeout=0.4, backoff=[0.0]),
        [sim.Trigger("stall", at=1.0, for_=1.5)],
        horizon=5.0,
    )
    run = run_live(world, seed=2)
    check_counts(run)
    measures = run.measures()
    assert measures["amplification"] == pytest.approx(simulated(world, "amplification"), rel=0.15)
    assert measures["wasted"] == pytest.approx(simulated(world, "wasted"), abs=0.15)
    assert measures["wasted"] > 0.3


@pytest.mark.parametrize(("tells", "requests"), [(True, [1, 1, 3]), (False, [3, 9, 27])])
def test_retries_of_a_stack_multiply_unless_told(tells: bool, requests: list[int]) -> None:
    """Services call services over sockets; ``Abate-Exhausted`` tells who is further out not to begin anew."""
    world = sim.World(
        sim.Clients(count=1, arrivals="once"),
        [
            sim.Service("gateway", workers=9, calls=("orders",), policy=policy(attempts=3, backoff=[0.0])),
            sim.Service("orders", workers=9, calls=("database",), policy=policy(attempts=3, backoff=[0.0])),
            sim.Service("database", error_rate=1.0, status=500),
        ],
        policy(attempts=3, backoff=[0.0]),
        horizon=20.0,
        tells_layers=tells,
    )
    run = run_live(world)
    check_counts(run)
    assert [run.loads[name].requests for name in ("gateway", "orders", "database")] == requests
    assert run.reasons == ({"layer": 1} if tells else {"attempts": 1})
    assert run.reasons == world.run().reasons


def test_a_deadline_travels_to_the_services_behind() -> None:
    """A service that knows how long its caller waits does not wait longer for those behind it."""
    world = sim.World(
        sim.Clients(count=3, arrivals="once"),
        [sim.Service("gateway", workers=3, calls=("slow",)), sim.Service("slow", workers=3, service_time=20.0)],
        policy(attempts=2, attempt_timeout=0.3, backoff=[0.5]),
        horizon=10.0,
    )
    run = run_live(world)
    check_counts(run)
    assert run.attempts == 6
    # the first three: the gateway gave up on its own, or its workers would be busy to the end
    assert run.loads["gateway"].served >= 3
    assert run.loads["slow"].served == 0


def test_who_hangs_up_is_dropped_by_a_service_that_drops() -> None:
    """Closed connections are how a service learns that nobody waits any more, where deadlines don't travel."""
    world = sim.World(
        sim.Clients(count=20, rate=0.5, arrivals="periodic"),
        [sim.Service("api", service_time=0.5, drop_expired=True)],
        policy(attempts=1, attempt_timeout=0.8),
        horizon=2.2,
        tells_layers=False,
    )
    run = run_live(world)
    check_counts(run)
    assert run.loads["api"].expired == 18  # one was served, and one was being served when its caller left


def test_a_rate_limit_tells_when_to_come_back() -> None:
    """``Retry-After`` goes over the wire, and nobody is back earlier."""
    world = sim.World(
        sim.Clients(count=10, arrivals="once"),
        [sim.Service("api", workers=10, limit=sim.Limit(5.0))],
        policy(attempts=2, backoff=[0.0]),
        horizon=10.0,
    )
    run = run_live(world)
    check_counts(run)
    assert (run.attempts, run.successes) == (15, 10)
    assert run.loads["api"].limited == 5
    assert sorted(run.latencies)[5] >= 1.0


def test_a_row_is_written_by_one_at_a_time() -> None:
    """Optimistic concurrency for real: as many writes win as there are clients, and the others try again."""
    world = sim.World(
        sim.Clients(count=15, arrivals="once"),
        [sim.Row("row", network=sim.Duration(0.01, "normal", spread=0.002))],
        policy(attempts=10_000, backoff=abate.Backoff(base=0.01, cap=2.0)),
        horizon=25.0,
    )
    run = run_live(world)
    check_counts(run)
    assert run.successes == 15
    assert run.loads["row"].served == 15
    assert run.loads["row"].errors == run.attempts - 15
    assert run.attempts == pytest.approx(simulated(world, "attempts"), rel=0.3)


def test_controllers_reconcile_over_sockets() -> None:
    """Every key is reconciled in the end, whatever fails on the way."""
    world = sim.World(
        sim.Controllers(count=20, keys=3, relist=0.2),
        [sim.Service("api", workers=10, service_time=0.01)],
        policy(backoff=abate.Backoff(base=0.1, cap=0.2)),
        [sim.Trigger("error", at=0.0, for_=0.7, status=500)],
        horizon=3.0,
    )
    run = run_live(world)
    check_counts(run)
    assert (run.calls, run.successes, run.failures) == (60, 60, 0)
    assert run.loads["api"].errors == run.attempts - 60 > 0


def test_serial_clients_shelters_and_own_code() -> None:
    """Serial clients wait for their results; code of one's own is run as it is."""

    async def impatient(send: Any) -> None:
        async with asyncio.timeout(0.5):
            await send()

    slow = sim.Service("api", workers=1, service_time=1.0)
    run = run_live(sim.World(sim.Clients(count=3, arrivals="once", code=impatient), [slow]))
    check_counts(run)
    assert run.reasons == {"fatal": 3}
    world = sim.World(
        sim.Clients(count=4, kind="serial", rate=20.0),
        [sim.Service("api", workers=4, service_time=0.1)],
        policy(shelter=abate.Shelter()),
        horizon=2.0,
    )
    run = run_live(world)
    check_counts(run)
    assert run.calls <= 4 * (2.0 / 0.1)
    assert run.attempts > 10


# -- what goes wrong


def test_services_that_die_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a hang, and not a run that looks like an outage."""
    hosts: list[HostProcess] = []

    class Caught(HostProcess):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            hosts.append(self)

    monkeypatch.setattr(live, "HostProcess", Caught)
    world = sim.World(sim.Clients(count=5), [sim.Service("api", service_time=0.01)], horizon=HANG)
    with pytest.raises(abate.AbateError, match="process has ended, with code -9"):
        run_live(world, progress=lambda done, total: hosts[0]._process.kill())


def test_a_policy_that_cannot_travel_is_named() -> None:
    """The services run in another process: what can't be sent there is refused at once."""
    inner = abate.Policy(on=lambda error: True)
    world = sim.World(sim.Clients(count=1), [sim.Service("a", calls=("b",), policy=inner), sim.Service("b")])
    with pytest.raises(abate.AbateError, match="a service's policy can't be sent to another process"):
        run_live(world)


def test_policies_of_services_travel_with_all_they_have() -> None:
    """Budgets, gates and shelters are made anew from their settings in the services' process."""
    gate = abate.Permits(5) & abate.TokenBucket(rate=100.0, burst=10) & abate.Throttle()
    inner = policy(gate=gate, shelter=abate.Shelter(name="b"), budget=abate.Budget(0.5, reserve=1))
    services = [sim.Service("a", workers=3, calls=("b",), policy=inner), sim.Service("b", service_time=0.01)]
    run = run_live(sim.World(sim.Clients(count=1, arrivals="once"), services, horizon=HANG))
    check_counts(run)
    assert (run.successes, run.loads["b"].served) == (1, 1)


def test_ctrl_c_gives_what_was_measured() -> None:
    """The run ends with what it has, says so, and leaves no process behind."""
    code = """
import os
from abate.sim.live import compare_live
from abate.sim.scenario import Scenario
document = {"run": {"horizon": 60.0}, "clients": {"count": 20}, "services": {"api": {"service_time": 0.01}}}
tell = lambda done, total: print(done, total, flush=True)
[beside] = compare_live(Scenario("long", "long.toml", document), progress=tell)
print(beside.complete, beside.figures, beside.run.attempts > 0, beside.run.notes, flush=True)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("nobody is left", flush=True)
"""
    with subprocess.Popen([sys.executable, "-W", "error", "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "1 60\n"
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=HANG)
        finally:
            process.kill()
    *_, found, left = said.splitlines()
    assert found.startswith("False () True ('broken off after ")
    assert left == "nobody is left"
    assert process.returncode == 0


def test_nothing_is_left_open() -> None:
    """No descriptors, no processes."""
    world = sim.World(sim.Clients(count=30, arrivals="once"), [sim.Service("api", workers=30, service_time=0.01)])
    run_live(world)
    gc.collect()
    before = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    run_live(world)
    gc.collect()
    assert len(os.listdir("/proc/self/fd") if before else []) <= len(before)


def test_what_is_no_world_is_refused() -> None:
    """A scenario of several cases has to say which one."""
    with pytest.raises(ValueError, match="a live run is of one case, and 'herd' has"):
        run_live(sim.load_scenario("herd"))
    with pytest.raises(TypeError, match="a live run is of a Case, a World or a Scenario with one case, not 3"):
        run_live(3)  # type: ignore[arg-type]


def test_async_code_is_told_to_use_a_thread() -> None:
    """There is one event loop per thread, and the clients need theirs."""
    world = sim.World(sim.Clients(count=2, arrivals="once"), [sim.Service("api", workers=2)])

    async def within() -> sim.Run:
        with pytest.raises(abate.AbateError, match=r"use asyncio\.to_thread"):
            run_live(world)
        return await asyncio.to_thread(run_live, world)

    assert asyncio.run(within()).successes == 2


# -- beside the simulated one


def test_a_scenario_is_compared_case_by_case() -> None:
    """Each case has its figures, live and simulated, and a table that states the difference."""
    document = {
        "run": {"horizon": 60.0},
        "clients": {"count": 20, "arrivals": "once"},
        "services": {"api": {"workers": 5, "service_time": 0.02, "error_rate": 1.0}},
        "variants": {"one": {}, "two": {"policy": {"attempts": 2, "backoff": [0.1]}}},
    }
    seen: list[tuple[int, int]] = []
    found = compare_live(
        sim.Scenario("small", "small.toml", document), seeds=3, progress=lambda *told: seen.append(told)
    )
    assert [beside.case.variant for beside in found] == ["one", "two"]
    figures = {figure.name: figure for figure in found[1].figures}
    assert (figures["attempts"].live, figures["attempts"].simulated.mean) == (40.0, 40.0)
    assert figures["attempts"].difference == 0.0
    assert figures["attempts"].explained
    assert all(total == 120 for _, total in seen)
    lines = table(found[1], ["attempts", "p50"]).splitlines()
    assert lines[0].split() == ["measure", "live", "simulated", "difference"]
    assert lines[1].split() == ["attempts", "40", "40", "+0", "(+0.0", "%)"]
    assert lines[2].split() == ["p50", "never", "never", "-"]


@pytest.mark.parametrize(
    ("name", "one", "many", "difference", "explained"),
    [
        ("attempts", 104.0, [100.0, 100.0], 4.0, True),  # within what sockets may do
        ("attempts", 130.0, [100.0, 100.0], 30.0, False),
        ("attempts", 120.0, [90.0, 100.0, 110.0], 20.0, True),  # within what chance may do to one run
        ("attempts", 180.0, [90.0, 100.0, 110.0], 80.0, False),
        ("p50", 0.015, [0.0, 0.0], 0.015, True),  # a lag of some milliseconds
        ("wasted", 0.015, [0.0, 0.0], 0.015, False),
        ("recovery", math.inf, [math.inf, 3.0], 0.0, True),
        ("recovery", math.inf, [3.0, 3.0], math.inf, False),
        ("recovery", 3.0, [math.inf, math.inf], -math.inf, False),
        ("recovery", math.nan, [math.nan, math.nan], 0.0, True),
    ],
)
def test_a_difference_is_explained_or_not(
    name: str, one: float, many: list[float], difference: float, explained: bool
) -> None:
    """By the spread of single runs, and a stated share for the sockets."""
    found = compared(name, one, many)
    assert found.difference == pytest.approx(difference)
    assert found.explained is explained
