"""The mark of a give-up: found through chains, told from older ones, carried through pickles, noted once."""

import asyncio
import contextlib
import dataclasses
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate import Policy, Report
from abate.call.layers import (
    MAX_CHAIN,
    NO_LAYER,
    GiveUp,
    error_chain,
    given_up_within,
    mark,
    retry_serials,
    thread_and_task,
)
from abate.testing import Script

pytestmark = pytest.mark.filterwarnings("ignore::abate.LayeredRetryWarning")

REPORT = Report("inner", 3, 1.5, "attempts")


def policy(name="orders", **settings):
    return Policy(**{"on": Exception, "name": name, "backoff": [0.0], **settings})


def reason(function, *args, **kwargs):
    """Why a call gave up on the error it raised."""
    with pytest.raises(Exception) as caught:  # any error may come out of a layer
        function(*args, **kwargs)
    return abate.report(caught.value).reason


def linked(*errors):
    """The first of these errors, each raised from the next."""
    for error, behind in pairwise(errors):
        error.__cause__ = behind
    return errors[0]


def given_up(error, report=REPORT):
    """The error, marked as one that a policy has retried and given up on."""
    retry_serials.last = next(retry_serials.numbers)
    mark(error, GiveUp(report, retry_serials.last, error.__traceback__))
    return error


def found_within(error, since=0):
    """The report of the policy inside, if there is one."""
    give_up = given_up_within(error, since)
    return None if give_up is None else give_up.report


# -- chains


def test_a_give_up_is_found_behind_other_errors():
    """An error raised from one that was given up on has been given up on as well."""
    outer = linked(KeyError(), ValueError(), given_up(OSError()))
    assert found_within(outer) == abate.report(outer) == REPORT


def translate(error):
    try:
        raise error
    except OSError:
        raise KeyError  # noqa: B904  the implicit context is the point


def translate_hiding(error):
    try:
        raise error
    except OSError:
        raise KeyError from None


def translate_at_the_end(error):
    try:
        raise error
    finally:
        raise KeyError


def translate_twice(error):
    try:
        translate(error)
    except KeyError:
        raise ValueError  # noqa: B904


@contextlib.contextmanager
def translating():
    try:
        yield
    except OSError:
        raise KeyError  # noqa: B904


def translate_by_a_block(error):
    with translating():
        raise error


def translate_in_a_group(error):
    try:
        raise error
    except OSError as found:
        raise ExceptionGroup("several", [ValueError(), found])  # noqa: B904


def fail_with(error):
    raise KeyError(str(error))


def translate_by_a_function(error):
    try:
        raise error
    except OSError as caught:
        fail_with(caught)


def fail_with_what_is_handled():
    caught = sys.exc_info()
    raise KeyError(str(caught[1]))


def translate_by_a_function_that_looks(error):
    try:
        raise error
    except OSError:
        fail_with_what_is_handled()


def translate_by_functions_of_functions(error):
    try:
        raise error
    except OSError as caught:
        in_this_thread(fail_with, caught)


class Translating:
    """A context manager written as a class; what it raises may come from deeper down."""

    def __init__(self, instead):
        self.instead = instead

    def __enter__(self):
        return self

    def __exit__(self, *caught):
        self.instead()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *caught):
        await asyncio.sleep(0)
        self.instead()


def translate_by_a_class(error):
    with Translating(raises_again):
        raise error


def translate_by_a_class_and_raise_that_again(error):
    try:
        with Translating(raises_again):
            raise error
    except KeyError as instead:
        raise instead


def translate_by_a_stack(error):
    with contextlib.ExitStack() as stack:
        stack.enter_context(Translating(raises_again))
        raise error


def clean_up_in_vain(error):
    with Translating(lambda: {}["connection"]):
        raise error


def translate_by_an_async_class(error):
    async def main():
        async with Translating(raises_again):
            raise error

    asyncio.run(main())


def translate_after_raising_again(error):
    try:
        try:
            raise error
        except OSError as caught:
            raise caught
    except OSError as caught:
        fail_with(caught)


TRANSLATIONS = [
    translate_by_a_function,
    translate_by_a_function_that_looks,
    translate_by_functions_of_functions,
    translate_by_a_class,
    translate_by_a_class_and_raise_that_again,
    translate_by_a_stack,
    translate_by_an_async_class,
    translate_after_raising_again,
    clean_up_in_vain,
    translate,
    translate_hiding,
    translate_at_the_end,
    translate_twice,
    translate_by_a_block,
    translate_in_a_group,
]


@pytest.mark.parametrize("translation", TRANSLATIONS, ids=lambda function: function.__name__)
def test_a_give_up_is_found_behind_its_translation(translation):
    """What the code that caught it raises in its place has been given up on, whether or not it says `from`."""
    with pytest.raises(Exception) as caught:
        translation(given_up(OSError()))
    assert found_within(caught.value) == abate.report(caught.value) == REPORT


def raises_again():
    raise KeyError


async def fallback_in_a_task(error):
    try:
        raise error
    except OSError:
        await asyncio.sleep(0)
        raises_again()


def fall_back(error):
    try:
        raise error
    except OSError:
        raises_again()


def fall_back_on_a_builtin(error):
    try:
        raise error
    except OSError:
        return {}["other"]


def fall_back_on_a_function_in_c(error):
    try:
        raise error
    except OSError:
        return int("other")


def fall_back_twice(error):
    try:
        fall_back(error)
    except KeyError:
        raise ValueError  # noqa: B904  translates the fallback's error


def log_and_ask_another(error):
    return int(str(error))


def fall_back_on_what_is_told_the_error(error):
    try:
        raise error
    except OSError as caught:
        log_and_ask_another(caught)


def ask_another(error):
    raises_again()


def fall_back_on_what_asks_another(error):
    try:
        raise error
    except OSError as caught:
        ask_another(caught)


def fall_back_in_a_block(error):
    with Translating(lambda: None):
        fall_back(error)


FALLBACKS = [
    fall_back_on_what_is_told_the_error,
    fall_back_on_what_asks_another,
    fall_back_in_a_block,
    fall_back,
    fall_back_on_a_builtin,
    fall_back_on_a_function_in_c,
    fall_back_twice,
    lambda error: asyncio.run(fallback_in_a_task(error)),
]


@pytest.mark.parametrize("fallback", FALLBACKS, ids=lambda function: function.__name__)
def test_what_a_fallback_raises_is_its_own(fallback):
    """Another server was asked after the first was given up on: that call has not been retried."""
    with pytest.raises((KeyError, ValueError)) as caught:
        fallback(given_up(OSError()))
    assert found_within(caught.value) is None


def test_an_error_whose_traceback_is_gone_is_followed_by_from_alone():
    """Without a traceback it is not known which function raised it."""
    with pytest.raises(KeyError) as caught:
        translate(given_up(OSError()))
    for error in (caught.value, caught.value.__context__):
        trace, error.__traceback__ = error.__traceback__, None
        assert found_within(caught.value) is None
        error.__traceback__ = trace
    assert found_within(caught.value) == REPORT


def test_a_give_up_is_found_in_groups():
    """One error of a group is enough, however deep the groups are nested."""
    error = given_up(OSError())
    group = ExceptionGroup("outer", [KeyError(), ExceptionGroup("inner", [ValueError(), linked(KeyError(), error)])])
    assert found_within(group) == abate.report(group) == REPORT


def test_errors_without_a_mark_have_no_report():
    """Neither a single error nor a chain nor a group."""
    for error in (OSError(), linked(OSError(), KeyError()), ExceptionGroup("two", [OSError(), KeyError()])):
        assert abate.report(error) is None
        assert found_within(error) is None


@pytest.mark.parametrize("given", [None, "an error", OSError, object()])
def test_a_report_is_asked_of_an_exception_or_a_response(given):
    """Of anything else it says what was given."""
    with pytest.raises(TypeError, match=rf"the exception .*, or the response .*, not a {type(given).__name__}$"):
        abate.report(given)


def test_cycles_in_a_chain_end():
    """Errors that refer to each other in a circle are each looked at once."""
    first, second, third = OSError(), KeyError(), ValueError()
    linked(first, second, third, first)
    second.__context__ = second
    assert list(error_chain(first)) == [first, second, third]
    given_up(third)
    assert found_within(first) == REPORT


@pytest.mark.parametrize(("depth", "found"), [(MAX_CHAIN - 1, True), (MAX_CHAIN, False), (999, False)])
def test_long_chains_are_looked_at_so_far(depth, found):
    """Of a chain of a thousand errors the nearest hundred are looked at."""
    errors = [OSError(number) for number in range(1000)]
    given_up(errors[depth])
    error = linked(*errors)
    assert len(list(error_chain(error))) == MAX_CHAIN
    assert (found_within(error) == abate.report(error) == REPORT) is found


@given(st.data())
def test_a_chain_holds_all_that_can_be_reached_once(data):
    """Whatever refers to what: the error itself comes first, then everything behind it, nearest first."""
    errors = [OSError(number) for number in range(data.draw(st.integers(1, 12)))]
    other = st.none() | st.sampled_from(errors)
    for error in errors:
        error.__cause__, error.__context__ = data.draw(other), data.draw(other)
    members = data.draw(st.lists(st.sampled_from(errors), min_size=1))
    errors.append(ExceptionGroup("group", members))
    errors[0].__context__ = data.draw(st.sampled_from([None, errors[-1]]))
    start = data.draw(st.sampled_from(errors))

    def behind(error):
        return {error.__cause__, error.__context__, *getattr(error, "exceptions", ())} - {None}

    depths, ring = {}, {start}
    while ring:
        depths.update(dict.fromkeys(ring, max(depths.values(), default=-1) + 1))
        ring = {further for error in ring for further in behind(error)} - depths.keys()
    found = list(error_chain(start))
    assert len(found) == len(set(found))
    assert set(found) == depths.keys()
    assert [depths[error] for error in found] == sorted(depths.values())


# -- layers


def test_an_outer_policy_does_not_retry_what_an_inner_one_gave_up_on():
    """One layer retries: three attempts, not nine."""
    script = Script(*[OSError] * 9)
    inner, outer = policy("inner"), policy("outer")
    with pytest.raises(OSError) as caught:
        outer.call(inner.call, script)
    assert len(script.calls) == 3
    assert abate.report(caught.value) == Report("outer", 1, 0.0, "layer", Report("inner", 3, 0.0, "attempts"))


def test_a_third_layer_sees_the_second():
    """However many policies stand around each other, only the innermost retries."""
    script = Script(*[OSError] * 27)
    assert reason(policy("third").call, policy("second").call, policy("first").call, script) == "layer"
    assert len(script.calls) == 3


def test_a_policy_around_itself_is_a_layer():
    """The same policy inside and outside would multiply like two different ones."""
    script = Script(*[OSError] * 9)
    orders = policy()
    assert reason(orders.call, orders.call, script) == "layer"
    assert len(script.calls) == 3


@pytest.mark.parametrize("run", [lambda main: asyncio.run(main()), trio.run], ids=["asyncio", "trio"])
def test_a_policy_around_itself_in_one_task_is_a_layer(run):
    """Under an event loop as well."""
    script = Script(*[OSError] * 9)
    orders = policy()

    async def main():
        await orders.acall(orders.acall, script.acall)

    assert reason(run, main) == "layer"
    assert len(script.calls) == 3


def test_what_was_fatal_inside_may_be_retried_outside():
    """An error that the inner policy does not retry may be retried by an outer one."""
    script = Script(KeyError(), KeyError(), "fine")
    assert policy("outer", on=KeyError).call(policy("inner", on=OSError).call, script) == "fine"


def test_what_an_inner_policy_wrapped_is_not_retried():
    """`RetryExhausted` carries the mark itself, and so does its cause."""
    script = Script(*[OSError] * 9)
    inner = policy("inner", raises="exhausted")
    assert reason(policy("outer", on=abate.RetryExhausted).call, inner.call, script) == "layer"
    assert len(script.calls) == 3


# -- one error object, many calls


def in_this_thread(function, *args):
    return function(*args)


def in_another_thread(function, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


def in_another_task(function, *args):
    async def main():
        return function(*args)

    return asyncio.run(main())


@pytest.mark.parametrize("where", [in_this_thread, in_another_thread, in_another_task])
@pytest.mark.parametrize("again", ["the same policy", "another policy"])
def test_an_error_object_that_is_raised_again_later_is_not_a_layer(where, again):
    """A module that raises one and the same object each time is retried each time."""
    gone = OSError("gone")
    first = policy("first")
    second = first if again == "the same policy" else policy("second")
    assert reason(first.call, Script(*[gone] * 3)) == "attempts"
    for _ in range(3):
        script = Script(*[gone] * 3)
        assert where(reason, second.call, script) == "attempts"
        assert len(script.calls) == 3


def test_an_error_object_behind_a_new_one_is_not_a_layer_later():
    """An error raised while handling one that an earlier call gave up on is a new failure."""
    gone = OSError("gone")
    script = Script(KeyError(), "fine")
    with pytest.raises(OSError, match="gone"):
        policy("first").call(Script(*[gone] * 3))
    try:
        raise gone
    except OSError:
        assert policy("second").call(script) == "fine"


def test_one_error_object_in_two_calls_at_once_is_not_a_layer_in_threads():
    """A call of the same policy in another thread, at the same time, stands beside this one, not inside it."""
    gone, orders, scripts = OSError("gone"), policy(), []

    def attempt():
        scripts.append(Script(*[gone] * 3))
        with pytest.raises(OSError, match="gone"):
            in_another_thread(orders.call, scripts[-1])
        raise gone

    assert reason(orders.call, attempt) == "attempts"
    assert [len(script.calls) for script in scripts] == [3, 3, 3]


def test_one_error_object_in_two_calls_at_once_is_not_a_layer_in_tasks():
    """Nor a call in another task."""
    gone, orders = OSError("gone"), policy()

    async def attempt():
        beside = asyncio.create_task(orders.acall(Script(*[gone] * 3).acall))
        await asyncio.wait([beside])
        assert beside.exception() is gone
        raise gone

    assert reason(asyncio.run, orders.acall(attempt)) == "attempts"


class Shared:
    """One connect that several calls wait for: each round fails with one error object for all of them."""

    def __init__(self):
        self.rounds = 0
        self.waiting = None

    async def connect(self):
        if self.waiting is None:
            self.waiting = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self.waiting)

    async def fail(self, rounds):
        for _ in range(rounds):
            while self.waiting is None:
                await asyncio.sleep(0)
            for _ in range(5):
                await asyncio.sleep(0)
            waiting, self.waiting = self.waiting, None
            self.rounds += 1
            waiting.set_exception(OSError(f"round {self.rounds}"))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 30))
def test_one_error_object_for_many_tasks_is_not_a_layer(first, second, late):
    """Calls that wait for one connect give up each for itself, however their attempts lie to each other."""

    async def main():
        shared = Shared()

        async def slow():
            for _ in range(late):
                await asyncio.sleep(0)
            return await shared.connect()

        calls = [
            asyncio.create_task(policy("a", max_attempts=first).acall(shared.connect)),
            asyncio.create_task(policy("b", max_attempts=second).acall(slow)),
        ]
        failing = asyncio.create_task(shared.fail(first + second + 1))
        found = await asyncio.gather(*calls, return_exceptions=True)
        failing.cancel()
        return found

    seen = asyncio.run(main())
    reports = {abate.report(error).reason for error in seen}
    assert reports == {"attempts"}


# -- errors that are not like others


@dataclasses.dataclass(frozen=True)
class Frozen(OSError):
    """An error that takes no attributes."""

    code: int = 0


class Slotted(OSError):
    """An error that has its attributes in slots."""

    __slots__ = ("code",)


class Talkative(OSError):
    """An error that has an answer to every name."""

    def __getattr__(self, name):
        return "anything"


@pytest.mark.parametrize("kind", [Frozen, Slotted, Talkative])
def test_every_error_can_be_told_to_have_been_retried(kind):
    """Two layers of three attempts make three calls, whatever the class of the error refuses or invents."""
    calls = []

    def fails():
        calls.append(1)
        raise kind

    inner, outer = policy("inner"), policy("outer")
    assert reason(outer.call, inner.call, fails) == "layer"
    assert len(calls) == 3


# -- where


def test_each_thread_and_each_task_is_a_place_of_its_own():
    """Code in one task runs in one place, whatever it calls; two tasks are two places."""

    async def here():
        return thread_and_task()

    async def two_tasks():
        return [await here(), await here(), await asyncio.create_task(here())]

    async def two_trio_tasks():
        places = [await here(), await here()]

        async def there():
            places.append(thread_and_task())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(there)
        return places

    for first, again, other in (asyncio.run(two_tasks()), trio.run(two_trio_tasks)):
        assert first == again != other
    assert thread_and_task() == thread_and_task() != in_another_thread(thread_and_task)


def test_a_process_that_never_imported_a_loop_has_places_too(monkeypatch):
    """Nothing is imported to find out that no task runs."""
    in_a_thread = thread_and_task()
    for name in ("asyncio", "trio"):
        monkeypatch.delitem(sys.modules, name)
    assert thread_and_task() == in_a_thread
    assert "asyncio" not in sys.modules


# -- pickles and notes


@pytest.mark.parametrize(
    "error",
    [OSError(2, "gone"), abate.AttemptTimeout(3.0), ExceptionGroup("two", [OSError(), KeyError("order")])],
    ids=lambda error: type(error).__name__,
)
def test_a_report_goes_with_a_pickled_error(error):
    """Between processes an error keeps its report and its note."""
    assert reason(policy().call, Script(*[error] * 3)) == "attempts"
    travelled = pickle.loads(pickle.dumps(error))
    assert abate.report(travelled) == abate.report(error)
    assert travelled.__notes__ == error.__notes__


def test_a_report_goes_with_a_pickled_wrapper():
    """`RetryExhausted` tells the same after its journey, by itself and through `abate.report`."""
    with pytest.raises(abate.RetryExhausted) as caught:
        policy(raises="exhausted").call(Script(*[OSError()] * 3))
    travelled = pickle.loads(pickle.dumps(caught.value))
    assert travelled.report == abate.report(travelled) == Report("orders", 3, 0.0, "attempts")


def test_an_error_from_another_process_is_not_a_layer_here():
    """Its mark belongs to no call of this process; a second pickle tells the same."""
    error = OSError(2, "gone")
    given_up(error)
    travelled = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))
    assert found_within(travelled) is None
    assert abate.report(travelled) == REPORT


def test_give_ups_are_numbered():
    """A mark made later has a higher number, and the last one is known."""
    before = retry_serials.last
    first = given_up(OSError())
    between = retry_serials.last
    second = given_up(OSError())
    assert before < between < retry_serials.last
    assert found_within(first, before) == REPORT
    assert found_within(first, between) is None
    assert found_within(second, between) == REPORT


def test_notes_do_not_pile_up():
    """An error object that is given up on a thousand times carries the last note only, and its own."""
    gone = OSError("gone")
    gone.add_note("written by somebody else")
    for attempts in range(1000):
        mark(gone, GiveUp(Report("orders", attempts, 0.0, "attempts"), NO_LAYER))
    assert gone.__notes__ == ["written by somebody else", "abate: orders gave up after 999 attempts: attempts"]


def test_a_note_that_was_removed_is_not_missed():
    """Another thread may give up on the same object, or the program may clear its notes."""
    gone = OSError("gone")
    given_up(gone)
    gone.__notes__.clear()
    given_up(gone)
    assert gone.__notes__ == [f"abate: {REPORT}"]
    del gone.__notes__
    given_up(gone)
    assert gone.__notes__ == [f"abate: {REPORT}"]
