"""The coroutine engine: it agrees with the exact one to the count, for any world."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import abate
from abate import sim

COUNTED = ("series", "reasons", "latencies", "loads", "completed", "fairness", "points", "notes")
"""Everything that a run says, but for the engine's name."""

instants = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.7, 5.0])
shares = st.sampled_from([0.1, 0.5, 1.0])


@st.composite
def durations(draw: Any, least: float = 0.0) -> sim.Duration:
    mean = draw(st.sampled_from([value for value in (0.0, 0.01, 0.1, 0.25, 0.5) if value >= least]))
    shape = draw(st.sampled_from(["constant", "exponential", "uniform", "normal", "lognormal"])) if mean else "constant"
    return sim.Duration(mean, shape, spread=mean / 4 if shape in ("uniform", "normal", "lognormal") else 0.0)


@st.composite
def gates(draw: Any) -> Any:
    bucket = abate.TokenBucket(rate=draw(st.sampled_from([1.0, 5.0, 20.0])), burst=draw(st.sampled_from([1, 5])))
    permits = abate.ConcurrencyLimit(draw(st.sampled_from([1, 3])))
    return draw(
        st.sampled_from([bucket, permits, bucket & permits, abate.AdaptiveThrottle(), abate.Budget(0.5, reserve=1)])
    )


@st.composite
def backoffs(draw: Any) -> Any:
    if draw(st.booleans()):
        return draw(st.sampled_from([[0.0], [0.0, 0.1, 0.0, 1.0], [0.25], [1.0]]))
    jitter = draw(st.sampled_from(["full", "equal", "decorrelated", "none"]))
    return abate.Backoff(draw(st.sampled_from([0.05, 0.2, 1.0])), draw(st.sampled_from([1.0, 30.0])), jitter=jitter)


@st.composite
def budgets(draw: Any) -> abate.Budget:
    if draw(st.booleans()):
        return abate.Budget.unlimited()
    ratio, reserve, window = (
        draw(st.sampled_from(kinds)) for kinds in ([0.0, 0.2, 1.0], [0.0, 1.0, 10.0], [1.0, 10.0])
    )
    return abate.Budget(ratio, reserve, window, draw(st.sampled_from(["success", "request"])))


@st.composite
def policies(draw: Any) -> abate.Policy | None:
    if draw(st.integers(0, 9)) == 0:
        return None
    perhaps = lambda *values: draw(st.sampled_from([None, None, *values]))  # noqa: E731
    return abate.Policy(
        name="simulated",
        on=draw(st.sampled_from([sim.simulated, abate.http.transient, ConnectionError])),
        max_attempts=draw(st.integers(1, 5)),
        timeout=perhaps(0.3, 1.0, 5.0),
        attempt_timeout=perhaps(0.1, 0.25, 1.0),
        backoff=draw(backoffs()),
        budget=draw(budgets()),
        gate=draw(st.none() | gates()),
        shelter=perhaps(abate.Shelter(), abate.Shelter(5, patience=0.5)),
        idempotent=perhaps(True, False),
        max_hint=draw(st.sampled_from([1.0, 300.0])),
    )


@st.composite
def limits(draw: Any) -> sim.Limit | None:
    if draw(st.booleans()):
        return None
    kind, hint = draw(st.sampled_from(["bucket", "window"])), draw(st.sampled_from([None, 0.0, 2.0]))
    return sim.Limit(draw(st.sampled_from([5.0, 20.0])), draw(st.sampled_from([1.0, 2.0])), kind, hint)


@st.composite
def services(draw: Any, name: str, calls: tuple[str, ...] = ()) -> sim.Service:
    return sim.Service(
        name,
        workers=draw(st.sampled_from([1, 2, 5])),
        service_time=draw(durations()),
        queue_limit=draw(st.sampled_from([None, 0, 3, 20])),
        order=draw(st.sampled_from(["fifo", "lifo"])),
        drop_expired=draw(st.booleans()),
        error_rate=draw(st.sampled_from([0.0, 0.0, 0.3])),
        status=draw(st.sampled_from([400, 429, 500, 503])),
        network=draw(durations()),
        calls=calls,
        policy=draw(policies()) if calls else None,
        cold_start=draw(st.sampled_from([0.0, 2.0])),
        limit=draw(limits()),
    )


@st.composite
def triggers(draw: Any, kinds: tuple[str, ...], names: tuple[str, ...]) -> sim.Trigger:
    kind = draw(st.sampled_from(kinds))
    settings: dict[str, Any] = {"service": draw(st.sampled_from(names))} if kind != "spike" else {}
    if kind == "error":
        settings["share"] = draw(shares)
        settings["status"] = draw(st.sampled_from([429, 500, 503]))
        settings["retry_after"] = draw(st.sampled_from([None, 0.0, 1.0, 400.0]))
    return sim.Trigger(kind, at=draw(instants), for_=draw(st.sampled_from([0.5, 2.0, 4.0])), **settings)


@st.composite
def crowds(draw: Any) -> sim.Clients | sim.Controllers:
    count = draw(st.integers(1, 25))
    processes = draw(st.sampled_from([1, min(3, count)]))
    if draw(st.integers(0, 5)) == 0:
        relist, resync = draw(st.sampled_from([(1.0, None), (None, 2.0), (3.0, 4.0)]))
        return sim.Controllers(count, keys=3, rate=0.5, relist=relist, resync=resync, slow=5.0, processes=processes)
    arrivals = draw(st.sampled_from(["poisson", "periodic", "once"]))
    offset = "none" if arrivals == "poisson" else draw(st.sampled_from(["none", "random", "consistent"]))
    return sim.Clients(
        count,
        rate=draw(st.sampled_from([0.2, 1.0, 2.0])),
        kind=draw(st.sampled_from(["open", "serial"])),
        arrivals=arrivals,
        offset=offset,
        start=draw(instants),
        spread=1.0 if arrivals == "once" and offset != "none" else 0.0,
        processes=processes,
    )


@st.composite
def worlds(draw: Any) -> sim.World:
    if draw(st.integers(0, 5)) == 0:
        parts: list[Any] = [sim.Row("row", network=draw(durations(least=0.01)))]
        kinds: tuple[str, ...] = ("spike",)
    else:
        depth = draw(st.sampled_from([1, 1, 2, 3]))
        names = [f"s{place}" for place in range(depth)]
        calls = [(name,) for name in names[1:]]
        if depth == 3 and draw(st.booleans()):
            calls[0] = ("s1", "s2")
        parts = [draw(services(name, inner)) for name, inner in zip(names, [*calls, ()], strict=True)]
        kinds = ("error", "stall", "slow", "capacity", "spike")
    clients, policy = draw(crowds()), draw(policies())
    if isinstance(clients, sim.Controllers) and policy is not None and policy.backoff.ceiling(9) == 0.0:
        policy = policy.replace(backoff=[0.0, 0.5])  # keys that come back at once, for ever, are not to be simulated
    return sim.World(
        clients=clients,
        services=parts,
        policy=policy,
        triggers=draw(st.lists(triggers(kinds, tuple(part.name for part in parts)), max_size=2)),
        horizon=draw(st.sampled_from([6.0, 10.0])),
        warmup=draw(st.sampled_from([0.0, 1.0])),
        tells_layers=draw(st.booleans()),
    )


@given(worlds(), st.integers(0, 1000))
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_agrees_with_the_exact_engine_to_the_count(world: sim.World, seed: int) -> None:
    """The same calls, attempts, reasons, latencies and loads, each at the same instant."""
    exact, coroutine = world.run(seed, raster=True), world.run(seed, engine="coroutine", raster=True)
    for name in COUNTED:
        assert getattr(coroutine, name) == getattr(exact, name), name


def test_agrees_in_a_storm_of_many() -> None:
    """Hundreds of clients with a shelter each, timeouts that abandon work, and a service that is down for a while."""
    policy = abate.Policy(
        on=sim.simulated, max_attempts=6, timeout=20.0, attempt_timeout=0.3, shelter=abate.Shelter(patience=5.0)
    )
    api = sim.Service("api", 5, sim.Duration(0.08, "exponential"), network=0.01, queue_limit=30, drop_expired=True)
    world = sim.World(
        sim.Clients(count=400, rate=0.1, processes=4),
        [api],
        policy,
        [sim.Trigger("error", at=5.0, for_=5.0), sim.Trigger("stall", at=12.0, for_=2.0)],
        horizon=25.0,
    )
    exact, coroutine = world.run(seed=1), world.run(seed=1, engine="coroutine")
    assert exact.attempts > exact.successes > 500
    for name in COUNTED:
        assert getattr(coroutine, name) == getattr(exact, name), name


def test_says_which_engine_it_was() -> None:
    """A run names its engine, its seed and its world."""
    world = sim.World(sim.Clients(count=1, arrivals="once"), [sim.Service("api")])
    run = world.run(seed=7, engine="coroutine")
    assert (run.engine, run.seed, run.world) == ("coroutine", 7, world)
