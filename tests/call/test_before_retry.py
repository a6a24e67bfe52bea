"""`before_retry`: what it receives, what it may change, and how its errors end a call."""

import asyncio

import pytest

import abate
from abate import Hedge, Policy, RetryContext, Timeouts
from abate.testing import Script, VirtualClock


def policy(**settings):
    return Policy(**{"on": ConnectionError, "name": "orders", "backoff": [2.0], **settings})


@pytest.fixture(autouse=True)
def clock():
    with VirtualClock() as clock:
        yield clock


def test_it_sees_error_attempt_and_delay_before_each_wait(way, clock):
    """`before_retry` is called before each wait, and not after the last failure."""
    seen, errors = [], [ConnectionError(), ConnectionError(), ConnectionError()]
    orders = policy(before_retry=lambda retry: seen.append((retry.error, retry.attempt, retry.delay, clock.now())))
    with pytest.raises(ConnectionError):
        way(orders, Script(*errors))
    assert seen == [(errors[0], 1, 2.0, 0.0), (errors[1], 2, 2.0, 2.0)]
    assert repr(RetryContext(KeyError(), 1, 2.0)) == "RetryContext(KeyError(), attempt=1, delay=2)"


def test_it_sees_a_rejected_result(way_with_result):
    """For a rejected result, the context has the result and no error."""
    seen = []
    orders = policy(on=abate.on_result(lambda result: result < 2), before_retry=seen.append)
    assert way_with_result(orders, Script(1, 2)) == 2
    assert [(retry.error, retry.result) for retry in seen] == [(None, 1)]
    assert repr(seen[0]) == "RetryContext(result=1, attempt=1, delay=2)"


def test_it_changes_the_arguments(way_with_result):
    """Changed arguments apply to all later attempts; the caller's own mapping is not modified."""

    def refresh(retry):
        retry.args = (*retry.args, retry.attempt)
        retry.kwargs["token"] = retry.attempt

    given, script = {"token": 0}, Script(ConnectionError(), ConnectionError(), "fine")
    assert way_with_result(policy(before_retry=refresh), script, "a", **given) == "fine"
    assert script.calls == [(("a",), {"token": 0}), (("a", 1), {"token": 1}), (("a", 1, 2), {"token": 2})]
    assert given == {"token": 0}


def test_it_changes_by_name_an_argument_given_by_position():
    """A changed keyword replaces the argument that was passed by position, unless it is positional-only."""

    def refresh(retry):
        retry.kwargs["token"] = "new"

    @policy(before_retry=refresh)
    def load(order, token="old", /, *, fresh=False):  # positional-only
        raise ConnectionError

    @policy(before_retry=refresh)
    def fetch(order, token="old"):
        if token == "old":
            raise ConnectionError
        return order, token

    assert fetch(42, "old") == (42, "new")
    with pytest.raises(TypeError, match="positional-only"):
        load(42)


def test_args_must_be_a_tuple():
    """The error names the value that was assigned."""
    with pytest.raises(TypeError, match="args must be a tuple of arguments, not 'a'"):
        RetryContext(KeyError(), 1, 0.0, (), {}).args = "a"


def test_a_block_has_no_arguments(block):
    """Changing the arguments of a block raises an error, since it would have no effect."""

    def refresh(retry):
        retry.kwargs["token"] = "new"

    with pytest.raises(AttributeError, match="a block has no arguments"):
        block(policy(before_retry=refresh), Script(ConnectionError()))


def test_its_error_ends_the_call(way, counting_budget):
    """The withdrawal is refunded, and the attempt's error is the context of the raised one."""
    budget, error, mistake = counting_budget(), ConnectionError(), KeyError("token")

    def refresh(retry):
        raise mistake

    with pytest.raises(KeyError) as caught:
        way(policy(before_retry=refresh, budget=budget), Script(error, "never"))
    assert caught.value is mistake
    assert caught.value.__context__ is error
    assert (budget.granted, budget.refunded) == (1, 1)


def test_its_time_is_part_of_the_wait(way, clock):
    """Time spent in `before_retry` is subtracted from the delay."""
    way(policy(before_retry=lambda retry: clock.advance(1.5)), Script(ConnectionError(), "fine"))
    assert clock.now() == 2.0


def test_no_retry_follows_after_the_deadline(way, clock, counting_budget):
    """If `before_retry` runs past the deadline, the call raises the attempt's error and sends nothing."""
    budget, script = counting_budget(), Script(ConnectionError(), "never")
    left = []

    def refresh(retry):
        left.append(abate.remaining())
        clock.advance(20.0)

    with pytest.raises(ConnectionError) as caught:
        way(policy(before_retry=refresh, timeout=10.0, budget=budget), script)
    assert abate.report(caught.value).reason == "deadline"
    assert (left, len(script.calls), budget.refunded) == ([10.0], 1, 1)


def test_a_coroutine_function_is_awaited(way, clock):
    """Async calls await it, up to the deadline; sync calls refuse it before the first attempt."""
    done = []

    async def refresh(retry):
        await clock.asleep(1.0)
        done.append(retry.attempt)

    script = Script(ConnectionError(), "fine")
    if way.loop == "threads":
        with pytest.raises(TypeError, match="only async calls can await"):
            way(policy(before_retry=refresh), script)
        assert script.calls == []
        return
    assert way(policy(before_retry=refresh), script) == "fine"
    assert (done, clock.now()) == ([1], 2.0)

    async def slow(retry):
        await clock.asleep(60.0)

    with pytest.raises(abate.AttemptTimeout):
        way(policy(before_retry=slow, timeout=10.0), Script(ConnectionError()))
    assert clock.now() == 12.0


def test_a_plain_function_that_returns_a_coroutine_is_refused_in_threads():
    """A sync call raises a TypeError when `before_retry` returns a coroutine."""

    async def refresh(retry): ...

    with pytest.raises(TypeError, match="only async calls can await"):
        policy(before_retry=lambda retry: refresh(retry)).call(Script(ConnectionError()))


@pytest.mark.parametrize("given", [3, "refresh", RetryContext])
def test_it_must_be_a_function(given):
    """The error names what was expected."""
    with pytest.raises(TypeError, match="before_retry must be a function of a RetryContext"):
        policy(before_retry=given)


def test_a_generator_function_is_refused():
    """Calling a generator function would run none of its body."""
    with pytest.raises(TypeError, match="not the generator function"):
        policy(before_retry=lambda retry: (yield))


def test_a_hedge_passes_the_changed_arguments():
    """The retry of a hedged call, sync or async, gets the arguments that `before_retry` has set."""

    def refresh(retry):
        retry.kwargs["token"] = "new"

    script = Script(ConnectionError(), "fine", ConnectionError(), "fine")
    hedge = Hedge(policy(before_retry=refresh, clock=VirtualClock()), Timeouts())
    assert hedge.call(script, 1) == "fine"
    assert asyncio.run(hedge.acall(script.acall, 1)) == "fine"
    assert script.calls == [((1,), {}), ((1,), {"token": "new"})] * 2


def test_let_go_runs_before_before_retry():
    """Resources of the failed attempt are released before `before_retry` runs."""
    from abate.call import async_driver, sync_driver

    order = []

    async def alet_go(left):
        order.append("let go")

    orders = policy(before_retry=lambda retry: order.append("before retry"))
    sync_driver.drive(orders, None, 0, Script(ConnectionError(), 1), (), {}, let_go=lambda left: order.append("let go"))
    asyncio.run(async_driver.drive(orders, None, 0, Script(ConnectionError(), 1).acall, (), {}, let_go=alet_go))
    assert order[:2] == ["let go", "before retry"] == order[3:5]


def test_streams_call_it():
    """A resumed stream passes the arguments of its resumption, which `before_retry` may change."""
    seen = []

    def refresh(retry):
        seen.append(dict(retry.kwargs))
        retry.kwargs["token"] = "new"

    @policy(before_retry=refresh, resume=lambda last: {"start": last + 1})
    def rows(*, start=0, token="old"):
        yield start
        if token == "old":
            raise ConnectionError

    assert list(rows()) == [0, 1]
    assert seen == [{"start": 1}]
