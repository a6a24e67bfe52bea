"""Generators with retries: until the first item, and after it with `resume`."""

import asyncio
import functools
import gc
import inspect

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import Backoff, Budget, ConcurrencyLimit, Policy, RetryExhausted, on_result
from abate.events import GaveUp, Recovered, Retry
from abate.testing import Recorder, VirtualClock

LOOPS = ("threads", "asyncio", "trio")


def policy(**settings):
    return Policy(**{"on": ConnectionError, "name": "rows", "backoff": [0.0], **settings})


class Source:
    """A generator function that plays one script per attempt: items, and errors to raise."""

    def __init__(self, *scripts):
        self.scripts = list(scripts)
        self.starts = []
        self.closed = 0

    def decorated(self, policy, loop):
        def play(start=0, **rest):
            self.starts.append(start)
            script = self.scripts.pop(0)
            try:
                for step in script:
                    if isinstance(step, BaseException):
                        raise step
                    yield step
            except GeneratorExit:
                self.closed += 1
                raise

        async def aplay(start=0, **rest):
            generator = play(start, **rest)
            try:
                for item in generator:
                    if isinstance(item, Pause):
                        await item.clock.asleep(item.seconds)
                    else:
                        yield item
            finally:
                generator.close()

        return policy(play if loop == "threads" else aplay)


class Pause:
    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds


def run(loop, main):
    return trio.run(main) if loop == "trio" else asyncio.run(main())


def read(loop, stream, most=None):
    """At most the given number of items of a stream, which is then closed."""
    items = []
    if loop == "threads":
        for item in stream:
            items.append(item)
            if len(items) == most:
                break
        stream.close()
        return items

    async def main():
        async for item in stream:
            items.append(item)
            if len(items) == most:
                break
        await stream.aclose()
        return items

    return run(loop, main)


@pytest.fixture(params=LOOPS)
def loop(request):
    return request.param


pytestmark = pytest.mark.usefixtures("either_time")


def test_the_kind_and_the_signature_are_kept():
    """What is decorated stays a generator function, with its name and parameters."""

    def rows(table: str, after: int = 0):
        yield table

    async def arows(table: str):
        yield table

    made, amade = policy()(rows), policy()(arows)
    assert inspect.isgeneratorfunction(made)
    assert inspect.isasyncgenfunction(amade)
    assert inspect.signature(made) == inspect.signature(rows)
    assert (made.__name__, made("x").__name__) == ("rows", "rows")
    assert inspect.isgeneratorfunction(policy()(functools.partial(rows, "x")))


def test_failures_before_the_first_item_are_retried(loop, counting_budget):
    """The retry is paid for, and the stream deposits once."""
    budget, source = counting_budget(), Source([ConnectionError()], [1, 2])
    assert read(loop, source.decorated(policy(budget=budget), loop)()) == [1, 2]
    assert (budget.granted, budget.deposited) == (1, 1)


def test_an_error_after_the_first_item_passes(loop):
    """It is not retried, not wrapped and not marked."""
    error = ConnectionError()
    source = Source([1, error], ["never"])
    with pytest.raises(ConnectionError) as caught:
        read(loop, source.decorated(policy(raises="exhausted"), loop)())
    assert caught.value is error
    assert abate.report(error) is None
    assert len(source.starts) == 1


def test_a_stream_is_resumed_after_its_last_item(loop, counting_budget):
    """The function gets what `resume` returns, in place of the argument of that name; there is one deposit."""
    budget = counting_budget()
    source = Source([1, 2, ConnectionError()], [ConnectionError()], [3, ConnectionError()], [4])
    stream = source.decorated(policy(resume=lambda last: {"start": last + 1}, budget=budget), loop)
    assert read(loop, stream(1)) == [1, 2, 3, 4]
    assert source.starts == [1, 3, 3, 4]
    assert (budget.granted, budget.deposited) == (3, 1)


def test_each_resumption_has_its_own_attempts(loop):
    """When they run out without an item, the error is raised with its report."""
    source = Source([1, ConnectionError()], [ConnectionError()], [ConnectionError()])
    items = source.decorated(policy(resume=lambda last: {}, raises="exhausted"), loop)()
    with pytest.raises(RetryExhausted) as caught:
        read(loop, items)
    assert caught.value.report.attempts == 3


def test_resume_must_return_keyword_arguments(loop):
    """Anything else is an error that says so."""
    source = Source([1, ConnectionError()])
    with pytest.raises(TypeError, match="resume must return a mapping of keyword arguments, not 2"):
        read(loop, source.decorated(policy(resume=lambda last: 2), loop)())


def test_an_empty_stream_is_a_success(loop, counting_budget):
    """No rule for results is asked about it."""
    budget = counting_budget()
    on = (ConnectionError, on_result(lambda item: item["error"]))
    assert read(loop, Source([]).decorated(policy(on=on, budget=budget), loop)()) == []
    assert budget.deposited == 1


def test_rules_judge_the_first_item(loop):
    """An error event in a stream counts as the failure it is; the stream that had it is closed."""
    source = Source(["overloaded", "never"], ["fine", "overloaded"])
    on = on_result(lambda item: item == "overloaded")
    assert read(loop, source.decorated(policy(on=on), loop)()) == ["fine", "overloaded"]
    assert source.closed == 1


def test_the_last_stream_is_handed_out_when_attempts_run_out(loop):
    """As the last result of a function is returned."""
    on = on_result(lambda item: item == "overloaded")
    source = Source(["overloaded", 1], ["overloaded", 2])
    assert read(loop, source.decorated(policy(on=on, max_attempts=2), loop)()) == ["overloaded", 2]


def test_items_before_the_first_content_are_held_back(loop):
    """A failure among them is retried, and the consumer sees nothing of it."""
    source = Source(["start", ConnectionError()], ["start", "overloaded"], ["start", "ping", "text", "end"], ["start"])
    settings = {"content": lambda item: item == "text", "on": (ConnectionError, on_result(lambda i: i == "overloaded"))}
    stream = source.decorated(policy(**settings), loop)
    assert read(loop, stream()) == ["start", "ping", "text", "end"]
    assert read(loop, stream()) == ["start"]


def test_a_consumer_that_stops_early_has_had_a_success(loop, counting_budget):
    """The generator is closed, and sinks hear of no failure."""
    budget, source = counting_budget(), Source([1, 2, 3])
    with Recorder() as events:
        assert read(loop, source.decorated(policy(budget=budget), loop)(), most=1) == [1]
    assert (source.closed, budget.deposited, list(events)) == (1, 1, [])


def test_a_limit_on_what_is_in_flight_is_held_until_the_end(loop, scripted_gate):
    """Other gates are left at the first item; each is left once."""
    limit, gate = ConcurrencyLimit(1), scripted_gate()
    source = Source([ConnectionError()], [1, 2, ConnectionError()], [3])
    stream = source.decorated(policy(gate=limit & gate, resume=lambda last: {}), loop)()
    seen = []
    if loop == "threads":
        seen = [(item, limit.held, len(gate.left)) for item in stream]
    else:

        async def main():
            async for item in stream:
                seen.append((item, limit.held, len(gate.left)))

        run(loop, main)
    assert seen == [(1, 1, 2), (2, 1, 2), (3, 1, 3)]
    assert limit.held == 0


def test_an_abandoned_stream_leaves_its_gates():
    """Also an async one whose event loop is gone."""
    limit = ConcurrencyLimit(1)
    stream = Source([1, 2]).decorated(policy(gate=limit), "threads")()
    next(stream)
    del stream
    assert limit.held == 0
    stream = Source([1, 2]).decorated(policy(gate=limit), "asyncio")()
    with pytest.raises(StopIteration):
        stream.__anext__().send(None)  # outside of any loop
    assert limit.held == 1
    del stream
    gc.collect()
    assert limit.held == 0


def test_the_call_is_counted_and_told(loop, abate_events):
    """A sink that counts calls sees one that is good, and one that is not."""

    class Counting(Recorder):
        counts = True

    from abate.call.counters import wrapper_versions

    wrapper_versions.start_counting()
    try:
        good = policy(name="good")
        read(loop, Source([ConnectionError()], [1]).decorated(good, loop)())
        with pytest.raises(ConnectionError):
            read(loop, Source([ConnectionError()]).decorated(good.replace(max_attempts=1), loop)())
    finally:
        wrapper_versions.stop_counting()
    assert (good.counter.begun.read(), good.counter.good.read(), good.counter.bad.read()) == (2, 1, 1)
    assert [type(event) for event in abate_events if isinstance(event, (Retry, Recovered, GaveUp))] == [
        Retry,
        Recovered,
        GaveUp,
    ]


def test_values_and_errors_reach_the_generator():
    """`send`, `throw` and the returned value pass through."""

    @policy(resume=lambda last: {})
    def echo():
        got = yield "ready"
        while got != "end":
            try:
                got = yield got
            except KeyError:
                got = "caught"
        return "over"

    stream = echo()
    assert [next(stream), stream.send(1), stream.throw(KeyError())] == ["ready", 1, "caught"]
    with pytest.raises(StopIteration) as stop:
        stream.send("end")
    assert stop.value.value == "over"
    stream, thrown = echo(), ConnectionError()
    next(stream)
    with pytest.raises(ConnectionError) as caught:
        stream.throw(thrown)
    assert caught.value is thrown


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_values_and_errors_reach_an_async_generator(loop):
    """`asend` and `athrow` pass through."""

    @policy(resume=lambda last: {})
    async def echo():
        got = yield "ready"
        while got != "end":
            try:
                got = yield got
            except KeyError:
                got = "caught"

    async def main():
        stream = echo()
        got = [await anext(stream), await stream.asend(1), await stream.athrow(KeyError())]
        with pytest.raises(StopAsyncIteration):
            await stream.asend("end")
        stream, thrown = echo(), ConnectionError()
        await anext(stream)
        with pytest.raises(ConnectionError) as caught:
            await stream.athrow(thrown)
        assert caught.value is thrown
        return got

    assert run(loop, main) == ["ready", 1, "caught"]


def test_a_value_is_refused_while_items_are_held_back():
    """It would reach the generator at another place; an error thrown in discards them."""
    made = policy(content=lambda item: item == 2)(lambda: (yield from (1, 2)))
    stream = made()
    next(stream)
    with pytest.raises(TypeError, match="cannot be sent a value while items"):
        stream.send("value")
    stream = policy(content=lambda item: False)(lambda: (yield from (1, 2)))()
    next(stream)
    with pytest.raises(KeyError):
        stream.throw(KeyError())

    @policy(content=lambda item: False)
    async def two():
        yield 1
        yield 2

    async def main():
        stream = two()
        await anext(stream)
        with pytest.raises(KeyError):
            await stream.athrow(KeyError())

    asyncio.run(main())


def test_items_that_are_coroutines_cannot_be_judged():
    """Without rules for results they are items like any other."""

    async def load(): ...

    one, two = load(), load()
    assert list(policy()(lambda: (yield one))()) == [one]
    with pytest.raises(TypeError, match="items that are coroutines"):
        list(policy(on=on_result(lambda item: False))(lambda: (yield two))())
    one.close()
    two.close()


# -- time


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_silence_cuts_an_async_stream_off(loop):
    """Before the first item it is retried; after it the error passes, or the stream is resumed."""
    with VirtualClock() as clock:
        pause = Pause(clock, 60.0)
        source = Source([pause, 1], [1, pause, 2], [2])
        stream = source.decorated(policy(idle=5.0, resume=lambda last: {}), loop)
        assert read(loop, stream()) == [1, 2]
        assert clock.now() == 10.0
        with pytest.raises(abate.IdleTimeout, match="no item came for 5 s"):
            read(loop, Source([1, pause]).decorated(policy(idle=5.0), loop)())


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_timeout_of_the_generator_itself_is_its_own(loop):
    """It is not taken for silence."""
    error = abate.AttemptTimeout(1.0)
    with pytest.raises(abate.AttemptTimeout) as caught:
        read(loop, Source([1, error]).decorated(policy(idle=5.0), loop)())
    assert caught.value is error


def test_silence_is_a_deadline_in_a_thread():
    """Clients inside keep it; it does not run while the consumer works."""
    with VirtualClock() as clock:
        left = []

        @policy(idle=5.0)
        def rows():
            for number in range(3):
                left.append(abate.remaining())
                yield number

        for _ in rows():
            assert abate.remaining() is None
            clock.advance(60.0)
        assert left == [5.0] * 3

        @policy(idle=5.0)
        def broken():
            raise KeyError
            yield

        with pytest.raises(KeyError):
            next(broken())
        assert abate.remaining() is None


def test_the_timeouts_end_with_the_first_item(loop):
    """`timeout` and `attempt_timeout` bound the time until then."""
    with VirtualClock() as clock:
        source = Source([1, 2])
        items = []
        stream = source.decorated(policy(timeout=5.0, attempt_timeout=2.0), loop)()

        def seen(item):
            items.append((item, abate.remaining()))
            clock.advance(10.0)

        if loop == "threads":
            for item in stream:
                seen(item)
        else:

            async def main():
                async for item in stream:
                    seen(item)

            run(loop, main)
        assert items == [(1, None), (2, None)]


@pytest.mark.parametrize("when", ["first attempt", "wait", "item"])
def test_a_cancelled_stream_returns_what_it_holds(when, counting_budget):
    """Wherever it is cancelled: the withdrawal of a retry that was not made, and the gates."""
    budget, limit = counting_budget(), ConcurrencyLimit(1)

    @policy(gate=limit, budget=budget, backoff=[30.0])
    async def rows():
        if when == "first attempt":
            await asyncio.sleep(30.0)
        if when == "wait":
            raise ConnectionError
        yield 1
        await asyncio.sleep(30.0)

    async def consume():
        async for _ in rows():
            pass

    async def main():
        task = asyncio.ensure_future(consume())
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert (limit.held, budget.granted - budget.refunded) == (0, 0)


# -- what is refused


async def coroutine_function(item): ...


@pytest.mark.parametrize("setting", [{"resume": dict}, {"idle": 1.0}, {"content": bool}])
def test_settings_of_streams_are_refused_elsewhere(setting):
    """Nothing is accepted and ignored."""
    streams = policy(**setting)
    with pytest.raises(TypeError, match=r"resume, idle (and|or) content.* work for generator functions only"):
        streams(len)
    with pytest.raises(TypeError, match=r"resume, idle (and|or) content.* work for generator functions only"):
        streams.call(len, "")
    with pytest.raises(TypeError, match=r"resume, idle (and|or) content.* work for generator functions only"):
        asyncio.run(streams.acall(coroutine_function, 1))
    with pytest.raises(TypeError, match=r"resume, idle (and|or) content.* work for generator functions only"):
        streams.attempts()


@pytest.mark.parametrize("name", ["resume", "content"])
def test_functions_of_items_are_checked(name):
    """They must be plain functions."""
    with pytest.raises(TypeError, match=f"{name} must be a function of an item, not 3"):
        policy(**{name: 3})
    with pytest.raises(TypeError, match=f"{name} must be a plain function"):
        policy(**{name: coroutine_function})


def test_generator_functions_are_decorated_not_called():
    """`call` and `acall` would retry nothing; a plain function may return a generator."""

    def rows():
        yield 1

    async def arows():
        yield 1

    for more in ({}, {"timeout": 5.0}):
        with pytest.raises(TypeError, match="is a generator function: decorate it"):
            policy(**more).call(rows)
        with pytest.raises(TypeError, match="is a generator function: decorate it"):
            asyncio.run(policy(**more).acall(arows))
        assert list(policy(**more).call(lambda: rows())) == [1]


# -- any script


steps = st.lists(st.sampled_from(["item", "error", "fatal"]), max_size=5)


def model(scripts, resumes, max_attempts):
    """What a consumer gets from these scripts, one per attempt: the items, how it ends, and the attempts."""
    items, attempts, failures, handed = [], 0, 0, False
    for script in scripts:
        attempts += 1
        for step in script:
            if step == "item":
                items.append(len(items))
                handed, failures = True, 0
                continue
            if step == "fatal":
                return items, "fatal", attempts
            failures += 1
            if (handed and not resumes) or failures == max_attempts:
                return items, "error", attempts
            break
        else:
            return items, "end", attempts
    raise AssertionError


@given(
    scripts=st.lists(steps, max_size=6),
    resumes=st.booleans(),
    max_attempts=st.integers(1, 3),
    loop=st.sampled_from(LOOPS),
)
@settings(deadline=None, max_examples=150)
def test_any_script_is_played_as_the_model_says(scripts, resumes, max_attempts, loop):
    """Items are handed out once and in order, failures before items are retried, others pass or are resumed."""
    scripts = [*scripts, []]
    played = Source()
    items = iter(range(1000))
    errors = {"error": ConnectionError, "fatal": KeyError}
    played.scripts = [[next(items) if s == "item" else errors[s]() for s in _until_failure(x)] for x in scripts]
    made = policy(
        max_attempts=max_attempts,
        budget=Budget.unlimited(),
        backoff=Backoff(1.0),
        **({"resume": lambda _: {}} if resumes else {}),
    )
    seen, ending = [], "end"

    async def main():
        async for item in stream:
            seen.append(item)

    with VirtualClock():
        stream = played.decorated(made, loop)()
        try:
            if loop == "threads":
                for item in stream:
                    seen.append(item)
            else:
                run(loop, main)
        except ConnectionError:
            ending = "error"
        except KeyError:
            ending = "fatal"
    assert (seen, ending, len(played.starts)) == model(scripts, resumes, max_attempts)


def _until_failure(script):
    for place, step in enumerate(script):
        if step != "item":
            return script[: place + 1]
    return script


def test_a_gate_that_fails_as_a_stream_leaves_it_does_not_keep_the_others():
    """Its error is raised, after the other gates were left too."""

    class Broken(ConcurrencyLimit):
        def leave(self, accepted):
            raise LookupError("broken")

    permits = ConcurrencyLimit(1)

    @policy(gate=permits & Broken(1))
    def rows():
        yield 1

    with pytest.raises(LookupError, match="broken"):
        list(rows())
    assert permits.held == 0


def test_a_gate_that_is_interrupted_as_a_stream_leaves_it_is_left_again():
    """A signal handler raises in the middle of it, once: all gates are left, and what it raised passes."""
    left = []

    class Slow(abate.Gate):
        held_by_streams = True

        def __init__(self, name):
            self.name = name

        def enter(self, retry):
            return None

        def leave(self, accepted):
            left.append(self.name)
            if len(left) == 1:
                raise KeyboardInterrupt

    @Policy(on=ConnectionError, gate=Slow("first") & Slow("second"))
    def items():
        yield from "ab"

    stream = items()
    next(stream)
    with pytest.raises(KeyboardInterrupt):
        stream.close()
    assert left == ["second", "second", "first"]
