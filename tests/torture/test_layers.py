"""Stacked policies: one layer retries, the others pass on."""

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import abate
from abate.testing import Recorder, Script, VirtualClock

pytestmark = pytest.mark.filterwarnings("ignore::abate.LayeredRetryWarning")


class Wrapped(Exception):
    """What a library makes of the errors below it."""


def bare(function):
    return function


def raised_from(function):
    def wrapper():
        try:
            return function()
        except OSError as error:
            raise Wrapped from error

    return wrapper


def raised_within(function):
    def wrapper():
        try:
            return function()
        except OSError:
            raise Wrapped  # noqa: B904  the implicit context is the point

    return wrapper


def grouped(function):
    def wrapper():
        try:
            return function()
        except OSError as error:
            raise ExceptionGroup("several", [error])  # noqa: B904

    return wrapper


def in_another_thread(function):
    def wrapper():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(function).result()

    return wrapper


@pytest.fixture
def clock():
    with VirtualClock() as clock:
        yield clock


def counted():
    """A function that always fails, and its calls."""
    calls = []

    def bottom():
        calls.append(1)
        raise OSError("down")

    return bottom, calls


@pytest.mark.parametrize("on_the_way", [bare, raised_from, raised_within, grouped, in_another_thread])
def test_three_layers_of_three_attempts_make_three_calls(clock, on_the_way):
    """Stacked layers do not multiply: 3 calls, not 27, also when the error is wrapped on the way."""
    function, calls = counted()
    for name in ("inner", "middle", "outer"):
        policy = abate.Policy(name=name, on=(OSError, Wrapped), backoff=[0.0])
        function = policy(on_the_way(function))
    with pytest.raises((OSError, Wrapped, ExceptionGroup)) as caught:
        function()
    assert len(calls) == 3
    report = abate.report(caught.value)
    assert (report.policy, report.reason) == ("outer", "layer")


def test_one_policy_around_itself_does_not_multiply(clock):
    """The same policy object at three layers makes three calls as well."""
    function, calls = counted()
    policy = abate.Policy(name="one", on=OSError, backoff=[0.0])
    with pytest.raises(OSError, match="down"):
        policy(policy(policy(function)))()
    assert len(calls) == 3


def test_layers_in_tasks_of_their_own_do_not_multiply():
    """An outer policy around gathered tasks with an inner policy each passes on what they gave up on."""
    calls = []
    inner = abate.Policy(name="inner", on=OSError, backoff=[0.0])
    outer = abate.Policy(name="outer", on=OSError, backoff=[0.0])

    @inner
    async def bottom():
        calls.append(1)
        raise OSError

    @outer
    async def top():
        await asyncio.gather(asyncio.create_task(bottom()))

    with pytest.raises(OSError):
        asyncio.run(top())
    assert len(calls) == 3


async def gathered(bottom):
    await asyncio.gather(bottom(), bottom())


async def grouped_tasks(bottom):
    async with asyncio.TaskGroup() as group:
        group.create_task(bottom())


async def awaited(bottom):
    await asyncio.create_task(bottom())


async def shielded(bottom):
    await asyncio.shield(bottom())


async def timed(bottom):
    await asyncio.wait_for(bottom(), 60.0)


@pytest.mark.parametrize("around", [gathered, grouped_tasks, awaited, shielded, timed])
def test_layers_in_tasks_do_not_multiply_however_they_are_awaited(around):
    """An outer policy passes on what a policy in another task has retried and given up on."""
    calls = []
    inner = abate.Policy(name="inner", on=OSError, backoff=[0.0])
    outer = abate.Policy(name="outer", on=OSError, backoff=[0.0])

    @inner
    async def bottom():
        calls.append(1)
        raise OSError

    with pytest.raises((OSError, ExceptionGroup)) as caught:
        asyncio.run(outer.acall(around, bottom))
    assert abate.report(caught.value).reason == "layer"
    assert len(calls) == (6 if around is gathered else 3)


def test_layers_in_a_thread_of_an_event_loop_do_not_multiply():
    """`asyncio.to_thread` hands the error over as it is."""
    function, calls = counted()
    inner = abate.Policy(name="inner", on=OSError, backoff=[0.0])(function)
    outer = abate.Policy(name="outer", on=OSError, backoff=[0.0])
    with pytest.raises(OSError, match="down"):
        asyncio.run(outer.acall(asyncio.to_thread, inner))
    assert len(calls) == 3


# -- where nothing is layered


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_fallback_is_retried_by_the_policy_around_it(clock, attempts):
    """The cache was given up on; calls of the database, another server, have not been retried yet."""
    cache = abate.Policy(name="cache", on=ConnectionError, max_attempts=attempts, backoff=[0.0])
    orders = abate.Policy(name="orders", on=ConnectionError, backoff=[0.0])
    database = Script(ConnectionError("blip"), ConnectionError("blip"), "row")

    @orders
    def load():
        try:
            return cache.call(Script(*[ConnectionError("the cache is down")] * attempts))
        except ConnectionError:
            return database()

    assert load() == "row"
    assert len(database.calls) == 3


def test_a_policy_that_never_retried_is_no_layer(clock):
    """One attempt inside, three outside: three calls."""
    function, calls = counted()
    inner = abate.Policy(name="inner", on=OSError, max_attempts=1)(function)
    with pytest.raises(OSError, match="down") as caught:
        abate.Policy(name="outer", on=OSError, backoff=[0.0]).call(inner)
    assert (len(calls), abate.report(caught.value).reason) == (3, "attempts")


def test_one_error_object_for_many_threads_is_not_a_layer():
    """Two threads wait for one future; the one that has retried before does not speak for the other."""
    error = OSError("shared")
    a = abate.Policy(name="a", on=OSError, max_attempts=2, backoff=[0.0])
    b = abate.Policy(name="b", on=OSError, max_attempts=3, backoff=[0.0])
    first, second = Future(), Future()
    b_waits = threading.Event()
    a_seen, b_seen = [], []

    def by_a():
        a_seen.append(1)
        if len(a_seen) == 1:
            raise OSError("own")
        b_waits.wait(60)
        return second.result()

    def by_b():
        b_seen.append(1)
        if len(b_seen) == 1:
            b_waits.set()
            first.result()  # until a has given up
            return second.result()
        return "fine"

    with ThreadPoolExecutor(2) as pool:
        ends_a = pool.submit(a.call, by_a)
        while not a_seen[1:]:
            threading.Event().wait(0.001)
        ends_b = pool.submit(b.call, by_b)
        second.set_exception(error)
        assert ends_a.exception() is error
        first.set_result(None)
        assert ends_b.result() == "fine"


def test_what_an_inner_policy_must_not_repeat_the_outer_one_does_not_repeat(clock):
    """A payment that may have been taken is sent once, whatever policies are around it."""
    function, calls = counted()
    pay = abate.Policy(name="pay", on=OSError, idempotent=False)(function)
    with pytest.raises(OSError, match="down") as caught:
        abate.Policy(name="outer", on=OSError, backoff=[0.0]).call(pay)
    assert (len(calls), abate.report(caught.value).reason) == (1, "layer")


@pytest.mark.parametrize("form", ["call", "block"])
def test_every_form_is_a_layer(clock, form):
    """A block, or call(), around a decorated function passes on what that gave up on."""
    function, calls = counted()
    inner = abate.Policy(name="inner", on=OSError, backoff=[0.0])(function)
    outer = abate.Policy(name="outer", on=OSError, backoff=[0.0])
    with pytest.raises(OSError, match="down"):
        if form == "call":
            outer.call(inner)
        else:
            for attempt in outer.attempts():
                with attempt:
                    inner()
    assert len(calls) == 3


def test_a_layer_is_warned_of_once_and_counted_each_time(clock):
    """Each pair of policies is warned of once; every layered retry is an event."""
    function, _ = counted()
    inner = abate.Policy(name="warned-inner", on=OSError, backoff=[0.0])(function)
    outer = abate.Policy(name="warned-outer", on=OSError, backoff=[0.0])
    with Recorder() as seen, pytest.warns(abate.LayeredRetryWarning, match="warned-outer") as warned:
        for _ in range(3):
            with pytest.raises(OSError):
                outer.call(inner)
    assert len(warned) == 1
    layered = seen.of(abate.events.LayeredRetry)
    assert [(event.name, event.inner) for event in layered] == [("warned-outer", "warned-inner")] * 3


def test_an_error_that_the_inner_policy_never_retried_is_the_outer_ones(clock):
    """What is fatal inside may be retried outside: the inner policy has not tried."""
    calls = []

    @abate.retry(on=TimeoutError)
    def inner():
        calls.append(1)
        raise ConnectionError

    outer = abate.Policy(on=ConnectionError, backoff=[0.0])
    with pytest.raises(ConnectionError):
        outer.call(inner)
    assert len(calls) == 3


def test_an_error_object_that_is_raised_again_is_not_a_layer(clock):
    """One exception object raised by call after call, of one policy or of several, is retried by each."""
    error = OSError("the very same")
    calls = []

    def fails():
        calls.append(1)
        raise error

    for policy in [abate.Policy(name=name, on=OSError, backoff=[0.0]) for name in "aab"]:
        with pytest.raises(OSError, match="same"):
            policy.call(fails)
        with pytest.raises(OSError, match="same"):
            policy(fails)()
    assert len(calls) == 18
    assert len(error.__notes__) == 1
