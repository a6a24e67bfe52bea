"""Coroutine functions that hide behind plain ones: what they return is awaited under the policy all the same."""

import asyncio
import functools
import gc
import warnings

import pytest

import abate
from abate import AdaptiveThrottle, Budget, ConcurrencyLimit, Hedge, Policy, Shelter, Timeouts
from abate.clients.databases import OpenTransaction, open_transaction
from abate.testing import Script
from tests.event_loops import in_both_loops
from tests.reentry import guarded


def logged(function):
    """A plain wrapper, as many libraries have them."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def plain(function):
    """One that doesn't tell."""
    return lambda *args, **kwargs: function(*args, **kwargs)


class Wrapping:
    """A callable object."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    def method(self, *args, **kwargs):
        return self.function(*args, **kwargs)


HIDDEN = [
    logged,
    plain,
    Wrapping,
    lambda function: Wrapping(function).method,
    lambda function: functools.partial(logged(function)),
]
hidden = pytest.mark.parametrize("hide", HIDDEN, ids=["wraps", "lambda", "object", "method", "partial"])


def settings():
    """Policies that need nothing but a deposit on success, and such as need more."""
    return {
        "plain": {},
        "timeout": {"timeout": 60.0, "attempt_timeout": 30.0},
        "gate": {"gate": ConcurrencyLimit(1)},
        "shelter": {"shelter": Shelter()},
        "result": {"on": (ConnectionError, abate.on_result(lambda result: result is None))},
        "request": {"budget": Budget(funded_by="request")},
    }


@pytest.fixture(params=settings())
def policy(request):
    return Policy(**{"on": ConnectionError, "name": "orders", "backoff": [0.0], **settings()[request.param]})


@hidden
@in_both_loops
def test_it_is_retried_when_it_is_awaited(policy, hide, run):
    """Two failures, then an answer; again, once its kind is known."""

    async def main():
        script = Script(ConnectionError(), ConnectionError(), "fine", ConnectionError(), "again")
        fetch = policy(hide(script.acall))
        found = [await fetch(1, k=2), await fetch(3)]
        assert script.calls == [((1,), {"k": 2})] * 3 + [((3,), {})] * 2
        return found

    assert run(main) == ["fine", "again"]
    if isinstance(policy.gate, ConcurrencyLimit):
        assert policy.gate.held == 0


@hidden
def test_a_call_that_is_given_up_on_tells_its_report_and_earns_nothing(policy, hide, counting_budget):
    """Three attempts, two withdrawals, no deposit."""
    budget = counting_budget(funded_by=policy.budget.funded_by)
    fetch = policy.replace(budget=budget)(hide(Script(*[ConnectionError] * 3).acall))
    with pytest.raises(ConnectionError) as caught:
        asyncio.run(awaited(fetch))
    assert abate.report(caught.value).attempts == 3
    assert budget.granted == 2
    if budget.funded_by == "success":
        assert budget.deposited == 0


async def awaited(function):
    return await function()


def test_a_gate_is_asked_by_the_attempts_alone(scripted_gate):
    """Calling the function is not yet an attempt: what it entered is taken back, not counted as refused."""
    gate = scripted_gate()
    policy = Policy(on=ConnectionError, backoff=[0.0], gate=gate)
    fetch = policy(plain(Script("fine", "fine").acall))

    async def main():
        made = fetch()
        assert gate.left == []
        first = await made
        entered = len(gate.entered)
        made = fetch()
        assert len(gate.entered) == entered  # once it is known what it returns, the gate is asked when it is awaited
        return [first, await made]

    assert asyncio.run(main()) == ["fine", "fine"]
    assert gate.left == [True, True]


def test_a_throttle_does_not_take_it_for_a_refusal():
    """Many first calls of many functions leave it open."""
    throttle = AdaptiveThrottle()
    policy = Policy(on=ConnectionError, gate=throttle)

    async def main():
        for _ in range(200):
            assert await policy(plain(Script("fine").acall))() == "fine"

    asyncio.run(main())


@pytest.mark.parametrize("bounded", [False, True])
def test_a_plain_function_is_looked_at_until_it_has_returned(bounded):
    """What returns anything else is what it looks like, and is called once per call."""
    policy = Policy(on=ConnectionError, backoff=[0.0], timeout=60.0 if bounded else None)
    script = Script("fine", ConnectionError(), None, 3)
    function = policy(script)
    assert [function(), function(), function()] == ["fine", None, 3]
    assert "_a_returned_coroutine" not in function.__code__.co_names


def by_turns(calls):
    """A function that returns a coroutine if it is to be awaited, or else a result; it fails every other time."""

    def load(wait):
        calls.append(wait)
        if wait:
            return aload()
        if len(calls) % 2:
            raise ConnectionError
        return "fine"

    async def aload():
        if len(calls) % 2:
            raise ConnectionError
        return "fine"

    return load


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(
    ("policy", "warns"),
    [
        (Policy(on=ConnectionError, backoff=[0.0]), 1),
        (Policy(on=ConnectionError, backoff=[0.0], budget=Budget.unlimited()), 0),
        (Policy(on=ConnectionError, backoff=[0.0], budget=Budget(clock=lambda: 0.0)), 0),
        (Policy(on=ConnectionError, backoff=[0.0], gate=ConcurrencyLimit(1)), 0),
    ],
    ids=["plain", "boundless", "own clock", "gated"],
)
def test_a_function_is_retried_when_it_is_sync_and_async_by_turns(policy, warns, watched):
    """A warning tells of the first coroutine after a result, where not every result was looked at."""
    from abate.call.counters import wrapper_versions

    calls = [None]
    load = policy(by_turns(calls))
    tally = load.__globals__.get("_a_policy", policy).counter

    async def main():
        return await load(True)

    if watched:
        wrapper_versions.start_counting()
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert load(False) == "fine"
            for _ in range(3):
                assert asyncio.run(main()) == "fine"
                assert load(False) == "fine"
    finally:
        if watched:
            wrapper_versions.stop_counting()
    assert calls == [None, False] + [True, True, False, False] * 3
    assert [warning.category for warning in warned] == [RuntimeWarning] * warns
    if watched and policy.plain:
        assert (tally.begun.read(), tally.good.read(), tally.bad.read()) == (7, 7, 0)


def test_a_busy_function_that_returns_a_coroutine_at_last_is_found_out():
    """Results are looked at where the clock is, and each one after the first coroutine that was found."""
    calls = []
    turns = by_turns(calls)
    load = Policy(on=ConnectionError, backoff=[0.0], name="busy")(lambda wait: turns(wait) if wait else "fine")
    for _ in range(100_000):
        load(False)

    async def main():
        for _ in range(100_000):
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                made = load(True)
            if warned:
                break
            made.close()
        assert "busy returns a result in one call and a coroutine in another" in str(warned[0].message)
        calls[:] = [True, True]
        assert await made == "fine"
        for _ in range(10):
            calls.clear()
            assert await load(True) == "fine"
            assert calls == [True, True]

    asyncio.run(main())


def test_calls_are_counted_to_their_end():
    """While calls are counted, a call whose coroutine is hidden is in flight until that was awaited."""
    from abate.call.counters import wrapper_versions

    policy = Policy(on=ConnectionError, name="counted", backoff=[0.0], max_attempts=1)
    wrapper_versions.start_counting()
    try:
        fetch = policy(plain(Script("fine", ConnectionError()).acall))

        async def main():
            made = fetch()
            assert policy.counter.in_flight == 1
            await made
            with pytest.raises(ConnectionError):
                await fetch()

        asyncio.run(main())
        assert (policy.counter.begun.read(), policy.counter.good.read(), policy.counter.bad.read()) == (2, 1, 1)
    finally:
        wrapper_versions.stop_counting()


def test_a_stand_in_that_was_proven_is_counted_as_others():
    """The version without the check is exchanged as well when counting begins."""
    from abate.call.counters import wrapper_versions

    policy = Policy(on=ConnectionError, name="proven")
    function = policy(lambda: "fine")
    assert function() == "fine"
    wrapper_versions.start_counting()
    try:
        assert function() == "fine"
        assert policy.counter.good.read() == 1
    finally:
        wrapper_versions.stop_counting()
    assert function() == "fine"
    assert policy.counter.good.read() == 1


@hidden
def test_call_refuses_it_before_it_earns(policy, hide, counting_budget, scripted_gate):
    """It would not be awaited: the error says what to use, nothing is deposited, and no gate is left entered."""
    budget = counting_budget()
    gate = scripted_gate() if policy.gate is not None else None
    refusing = policy.replace(budget=budget, gate=gate)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TypeError, match="returned a coroutine, which `call` does not await: write "):
            refusing.call(hide(Script("fine").acall))
        gc.collect()
    assert budget.deposited == 0


def test_a_hedge_refuses_it():
    """In a thread of its own it could not be awaited."""
    hedge = Hedge(Policy(on=ConnectionError), Timeouts())
    for way in (hedge.call, lambda function: hedge(function)()):
        with pytest.raises(TypeError, match="returns a coroutine: use acall, or hedge the coroutine function"):
            way(plain(Script("fine").acall))


def test_a_transaction_lasts_until_it_was_awaited():
    """A function inside, decorated as well, is not retried by itself."""
    seen = []

    @abate.retry_on_db_conflict()
    @plain
    async def whole():
        seen.append(isinstance(open_transaction(), OpenTransaction))

    asyncio.run(awaited(whole))
    assert seen == [True]
    assert open_transaction() is None


class Unsent:
    """Ways in which a hidden coroutine is never begun."""

    def __init__(self):
        self.gate = ConcurrencyLimit(1)
        self.policy = Policy(on=ConnectionError, name="orders", gate=self.gate)
        self.script = Script("sent")
        self.function = self.policy(plain(self.script.acall))

    async def refused(self):
        made = self.function()
        assert self.gate.enter(False) is None
        with pytest.raises(abate.Refused):
            await made

    async def late(self):
        with abate.deadline(1.0):
            made = self.function()
        with abate.deadline(0.0), pytest.raises(abate.DeadlineExceeded):
            await made

    async def cancelled(self):
        task = asyncio.create_task(self.function())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def closed(self):
        self.function().close()


@pytest.mark.parametrize("way", [Unsent.refused, Unsent.late, Unsent.cancelled, Unsent.closed])
def test_a_hidden_coroutine_that_is_not_let_in_is_closed(way):
    """Python does not warn of it as of one that was forgotten, and nothing is sent."""
    unsent = Unsent()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(way(unsent))
        gc.collect()
    assert [str(one.message) for one in warned if "never awaited" in str(one.message)] == []
    assert unsent.script.calls == []


ON_RESULT = abate.on_result(lambda result: False)


@pytest.mark.parametrize("guard", [{}, {"timeout": 60.0}, {"gate": ConcurrencyLimit(9)}, {"on": ON_RESULT}])
def test_a_result_after_a_coroutine_is_a_result(guard):
    """In an event loop as well; behind a gate or shelter, where a call is awaited first, from the second on."""
    turns = iter([True, False, False])
    load = Policy(**{"on": ConnectionError, **guard})(lambda: asyncio.sleep(0, "fine") if next(turns) else "fine")

    async def main():
        assert await load() == "fine"
        second = load()
        assert (await second if "gate" in guard else second) == "fine"
        assert load() == "fine"

    asyncio.run(main())


@in_both_loops
def test_a_request_pays_once(run):
    """The call that finds out that there is a coroutine has not been sent."""
    budget = Budget(ratio=0.5, reserve=0.0, funded_by="request")
    load = Policy(on=ConnectionError, budget=budget)(plain(Script("fine").acall))
    run(load)
    assert budget.balance() == 0.5


@pytest.mark.parametrize("settings", [{}, {"timeout": 600.0}], ids=["plain", "full"])
def test_a_closed_shelter_does_not_hold_up_the_event_loop(settings):
    """Calls of a hidden coroutine function wait in their tasks, so that the loop can do what ends the storm."""
    down = True

    async def aload():
        if down:
            raise ConnectionError
        return "fine"

    async def main():
        nonlocal down
        calls = []
        for _ in range(20):
            calls.append(asyncio.ensure_future(load()))
            await asyncio.sleep(0.01)
        down = False
        return await asyncio.gather(*calls)

    shelter = Shelter(patience=60.0)
    backoff = abate.Backoff(0.05, 0.1)
    load = Policy(on=ConnectionError, max_attempts=100, backoff=backoff, shelter=shelter, **settings)(plain(aload))
    assert guarded(lambda: asyncio.run(main())) == ["fine"] * 20


def test_a_hidden_coroutine_that_fails_is_counted_as_failed():
    """When it has ended, and not when it was made."""
    from abate.call.counters import wrapper_versions

    policy = Policy(on=OSError, name="orders", timeout=60.0)
    load = policy(plain(Script(ValueError()).acall))
    wrapper_versions.start_counting()
    try:
        with pytest.raises(ValueError):
            asyncio.run(load())
    finally:
        wrapper_versions.stop_counting()
    assert (policy.counter.begun.read(), policy.counter.good.read(), policy.counter.bad.read()) == (1, 0, 1)
