"""Stacks of layers, drawn at random: the innermost policy that retries is the only one, and nothing else is a layer."""

import asyncio
import contextvars
import functools
import pickle
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate import Policy
from abate import clock as clocks
from abate.schedule.timeouts import Timeouts

pytestmark = pytest.mark.filterwarnings("ignore::abate.LayeredRetryWarning")

SHARED = Policy(name="shared", on=Exception, backoff=[0.0], budget=abate.Budget.unlimited())


class Wrapped(Exception):
    """What a library makes of the errors below it."""


def policy(attempts=3, name="own", **settings):
    return SHARED.replace(max_attempts=attempts, name=name, **settings)


def run(function, *args):
    """Run a coroutine function to its end, in a thread of its own where a loop runs here already."""
    if not (asyncio._get_running_loop() or clocks.in_trio()):
        return asyncio.run(function(*args))
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, function(*args)).result()


def awaitable(function):
    async def awaited():
        return function()

    return awaited


# -- what may stand around a function: policies


def decorated(inner, policy):
    return policy(inner)


def called(inner, policy):
    return lambda: policy.call(inner)


def in_a_block(inner, policy):
    def block():
        for attempt in policy.attempts():
            with attempt:
                return inner()

    return block


def decorated_coroutine(inner, policy):
    return lambda: run(policy(awaitable(inner)))


def awaited(inner, policy):
    return lambda: run(policy.acall, awaitable(inner))


def in_an_async_block(inner, policy):
    async def block():
        async for attempt in policy.attempts():
            with attempt:
                return inner()

    return lambda: run(block)


def under_trio(inner, policy):
    def start():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(trio.run, policy.acall, awaitable(inner)).result()

    return start


def hedged(inner, policy):
    return lambda: abate.Hedge(policy, Timeouts()).call(inner)


FORMS = [decorated, called, in_a_block, decorated_coroutine, awaited, in_an_async_block, under_trio, hedged]

# -- ways to another task or thread


def by_a_pool(inner):
    def hop():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(inner).result()

    return hop


def by_a_pool_with_the_context(inner):
    def hop():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(contextvars.copy_context().run, inner).result()

    return hop


def by_a_thread(inner):
    def hop():
        ended = Future()

        def work():
            try:
                ended.set_result(inner())
            except Exception as error:
                ended.set_exception(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return ended.result()

    return hop


def by_to_thread(inner):
    return lambda: run(asyncio.to_thread, inner)


def by_a_task(inner):
    async def hop():
        return await asyncio.create_task(awaitable(inner)())

    return lambda: run(hop)


def by_gather(inner):
    async def hop():
        return await asyncio.gather(awaitable(inner)())

    return lambda: run(hop)


def by_a_task_group(inner):
    async def hop():
        async with asyncio.TaskGroup() as group:
            group.create_task(awaitable(inner)())

    return lambda: run(hop)


def by_wait_for(inner):
    async def hop():
        return await asyncio.wait_for(asyncio.shield(awaitable(inner)()), 60.0)

    return lambda: run(hop)


# -- translations


def with_from(inner):
    def translating():
        try:
            return inner()
        except Exception as error:
            raise Wrapped from error

    return translating


def without_from(inner):
    def translating():
        try:
            return inner()
        except Exception:
            raise Wrapped  # noqa: B904  the implicit context is the point

    return translating


def fail(error):
    raise Wrapped(str(error))


def by_a_function(inner):
    def translating():
        try:
            return inner()
        except Exception as error:
            fail(error)

    return translating


class Block:
    """A context manager that raises an error of its own."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        raise Wrapped


def by_a_block(inner):
    def translating():
        with Block():
            return inner()

    return translating


def in_a_group(inner):
    def translating():
        try:
            return inner()
        except Exception as error:
            raise ExceptionGroup("several", [Wrapped(), error])  # noqa: B904

    return translating


def untouched(inner):
    return lambda: inner()


WAYS = [by_a_pool, by_a_pool_with_the_context, by_a_thread, by_to_thread, by_a_task, by_gather, by_a_task_group]
WAYS += [by_wait_for, with_from, without_from, by_a_function, by_a_block, in_a_group, untouched]

layers = st.builds(
    lambda form, attempts, own: functools.partial(form, policy=policy(attempts) if own else SHARED),
    st.sampled_from(FORMS),
    st.integers(1, 3),
    st.booleans(),
)


@given(st.lists(st.tuples(layers, st.sampled_from(WAYS)), min_size=1, max_size=4))
def test_only_the_innermost_policy_that_retries_does(stack):
    """However the layers are called, reached and translated, and whether or not a policy wraps itself."""
    calls = []

    def bottom():
        calls.append(1)
        raise OSError("down")

    function = bottom
    for layer, way in stack:
        function = way(layer(function))
    with pytest.raises(Exception):  # noqa: B017  any error may come out of a stack
        function()
    attempts = [layer.keywords["policy"].max_attempts for layer, _ in stack]
    assert len(calls) == next((number for number in attempts if number > 1), 1)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_one_policy_around_itself_does_not_multiply(form, way):
    """In each form, by each way to another task or thread, and through each translation."""
    calls = []

    def bottom():
        calls.append(1)
        raise OSError("down")

    with pytest.raises(Exception) as caught:
        form(way(form(bottom, SHARED)), SHARED)()
    assert len(calls) == 3
    assert abate.report(caught.value).reason == "layer"


# -- where nothing is layered


@given(
    st.lists(st.tuples(st.sampled_from(FORMS[:3]), st.integers(1, 3), st.booleans()), min_size=2, max_size=4),
    st.booleans(),
)
def test_threads_that_share_one_error_object_make_all_their_attempts(calls, clean):
    """Calls beside each other, whose attempts overlap in every order, don't take each other for layers."""
    gone, counts = OSError("gone"), [0] * len(calls)
    together = threading.Barrier(len(calls))

    def start(number, form, attempts, own):
        def fails():
            counts[number] += 1
            if counts[number] == 1:
                together.wait(60)  # every first attempt begins before any call retries
            raise gone.with_traceback(None) if clean else gone

        form(fails, policy(attempts) if own else SHARED.replace(max_attempts=attempts))()

    with ThreadPoolExecutor(len(calls)) as pool:
        ended = [pool.submit(start, number, *call) for number, call in enumerate(calls)]
        assert {end.exception() for end in ended} == {gone}
    assert counts == [attempts for _, attempts, _ in calls]


@given(st.lists(st.tuples(st.sampled_from(FORMS[3:5]), st.integers(1, 3)), min_size=2, max_size=4), st.booleans())
def test_tasks_that_share_a_failed_task_make_all_their_attempts(calls, same):
    """Each round fails with one error object for all of them, which one policy's calls or many policies' meet."""

    async def main():
        loop, counts, rounds = asyncio.get_running_loop(), [0] * len(calls), {}

        async def connect():
            await asyncio.sleep(0)
            raise OSError("down")

        async def fails(number):
            counts[number] += 1
            turn = counts[number]
            if turn not in rounds:
                rounds[turn] = loop.create_task(connect())
            return await asyncio.shield(rounds[turn])

        def call(number, form, attempts):
            own = SHARED.replace(max_attempts=attempts) if same else policy(attempts)
            attempt = functools.partial(fails, number)
            return own(attempt)() if form is decorated_coroutine else own.acall(attempt)

        tasks = [loop.create_task(call(number, *each)) for number, each in enumerate(calls)]
        await asyncio.wait(tasks)
        return [task.exception() for task in tasks], counts

    errors, counts = asyncio.run(main())
    assert counts == [attempts for _, attempts in calls]
    assert all(isinstance(error, OSError) for error in errors)


@given(st.lists(st.sampled_from([1, 3]), min_size=1, max_size=3), st.sampled_from(FORMS), st.sampled_from(WAYS))
def test_a_fallback_after_a_layer_is_retried(inside, form, way):
    """Whatever was given up on before: what the fallback raises, this call alone has retried."""
    asked = []

    def refused():
        raise OSError("down")

    def other():
        asked.append(1)
        raise KeyError("other")

    def attempt():
        try:
            return first()
        except Exception:
            return other()

    first = refused
    for attempts in inside:
        first = way(decorated(first, policy(attempts)))
    with pytest.raises((KeyError, ExceptionGroup)):
        form(attempt, policy(3, on=KeyError))()
    assert len(asked) == 3


def after_except(inner):
    try:
        inner()
    except Exception as error:
        return error


def from_gather(inner):
    async def gather():
        (error,) = await asyncio.gather(awaitable(inner)(), return_exceptions=True)
        return error

    return run(gather)


def from_a_future(inner):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(inner).exception()


def from_a_pickle(inner):
    return pickle.loads(pickle.dumps(after_except(inner)))


@pytest.mark.parametrize(
    ("get", "linked", "calls"),
    [
        (after_except, True, 3),
        (from_gather, True, 3),
        (from_a_future, True, 3),
        (after_except, False, 9),
        (from_gather, False, 9),
        (from_a_future, False, 9),
        (from_a_pickle, True, 9),
    ],
)
def test_an_error_that_is_raised_later_is_recognised_by_what_it_was_raised_from(get, linked, calls):
    """With ``from``, unless the error was pickled; without, nothing tells that it was made of the other one."""
    made = []

    def fails():
        made.append(1)
        raise ConnectionError

    def translate():
        error = get(lambda: policy(name="inner").call(fails))
        if linked:
            raise Wrapped from error
        raise Wrapped

    with pytest.raises(Wrapped):
        policy(name="outer").call(translate)
    assert len(made) == calls
