"""Usual retries, which are made without the machine, cannot be told from those that it makes."""

import asyncio
import gc
import random
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import Backoff, Budget, Policy, event_sinks
from abate.call.layers import retry_serials
from abate.call.usual_retry import usual_delay
from abate.errors import LayeredRetryWarning
from abate.testing import Script, VirtualClock, off
from tests.call.conftest import Way
from tests.call.strategies import backoffs


class Exit(BaseException):
    """A BaseException, as KeyboardInterrupt and SystemExit are."""


def warmed(**settings):
    """A policy that has seen both kinds of failures, so that they are usual from now on."""
    policy = Policy(
        **{"on": (ConnectionError, TimeoutError), "name": "orders", "backoff": [0.0], "budget": Budget(0.0, 3.0)}
        | settings
    )
    for error in (ConnectionError, TimeoutError):
        policy.usual_backoffs[error] = policy.overload_backoff if error is TimeoutError else policy.backoff
    return policy


def test_the_first_failure_of_a_type_makes_it_usual():
    """What a later failure of the type needs is its backoff; that of an overload is the wider one."""
    policy = Policy(on=(ConnectionError, TimeoutError), backoff=Backoff(0.0, 5.0, jitter="none"), budget=Budget(0, 9))
    with VirtualClock():
        for error in (ConnectionError, TimeoutError):
            assert usual_delay(policy, error(), 2, retry_serials.last, None) is None
            assert policy.call(Script(error(), "fine")) == "fine"
    assert policy.usual_backoffs == {ConnectionError: policy.backoff, TimeoutError: policy.overload_backoff}
    assert policy.overload_backoff != policy.backoff


@pytest.mark.parametrize(
    "more",
    [
        {"gate": abate.ConcurrencyLimit(5)},
        {"shelter": abate.Shelter()},
        {"idempotent": False},
        {"max_attempts_by_kind": {"blip": 2}},
        {"on": lambda error: True},
    ],
    ids=["gate", "shelter", "not idempotent", "kinds", "predicate"],
)
def test_what_needs_more_checks_is_never_usual(more):
    """The machine decides about every failure of a policy whose settings ask for more."""
    policy = Policy(**{"on": ConnectionError, "backoff": [0.0], **more})
    with pytest.raises(ConnectionError):
        policy.call(Script(*[ConnectionError()] * 3))
    assert policy.usual_backoffs == {}


def test_an_exit_during_a_retry_keeps_its_withdrawal(way, counting_budget):
    """A retry that was sent is paid for, however it ends."""
    budget = counting_budget(ratio=0.0, reserve=10.0)
    with pytest.raises(Exit):
        way(warmed(budget=budget), Script(ConnectionError(), ConnectionError(), Exit()))
    assert (budget.granted, budget.refunded) == (2, 0)


def test_a_withdrawal_whose_wait_is_interrupted_is_refunded():
    """Whatever ends a wait, the retry was not sent."""

    class Interrupted(VirtualClock):
        def sleep(self, seconds):
            raise KeyboardInterrupt

    policy = warmed(backoff=[1.0], clock=Interrupted(), budget=Budget(0.0, 3.0, 1.0))
    with pytest.raises(KeyboardInterrupt):
        policy.call(Script(ConnectionError(), "fine"))
    assert policy.budget.balance() == 3.0


class Lost(ConnectionError):
    """An error that can be referred to weakly."""


class Failing:
    """Fails twice, with an error that only its traceback and the call refer to."""

    def __init__(self, end):
        self.end = end
        self.errors = []

    def __call__(self):
        if len(self.errors) == 2:
            return self.end()
        error = Lost()
        self.errors.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    async def acall(self):
        return self()


def _exits():
    raise Exit


@pytest.mark.parametrize("end", [list, _exits])
def test_the_errors_of_a_call_are_freed_when_it_ends(way, end):
    """No frame that the traceback of an error refers to refers to that error: the collector has nothing to do."""
    policy, warm, failing = warmed(on=Lost, max_attempts=4), Failing(list), Failing(end)
    way(policy, warm)
    gc.disable()
    try:
        way(policy, failing)
    except Exit:
        pass
    finally:
        gc.enable()
    assert [error() for error in failing.errors] == [None, None]


class NegativeSchedule:
    """A schedule of the user's own that returns a negative delay."""

    def delay(self, retry, rng, previous=None):
        return -1.0

    def ceiling(self, retry):
        return 0.0

    def at_least(self, base):
        return self


def test_a_negative_delay_is_no_wait(way):
    """The first failure of a type and later ones are treated alike."""
    policy = warmed(on=Lost, backoff=NegativeSchedule(), max_attempts=4)
    for _ in range(2):
        assert way(policy, Failing(list)) == []


def test_an_error_that_an_inner_policy_gave_up_on_is_not_usual():
    """The machine sees that a policy inside the attempt has retried."""
    inner, outer = warmed(name="usual inner"), warmed(name="usual outer")
    errors = Script(*[ConnectionError() for _ in range(9)])
    with pytest.warns(LayeredRetryWarning), pytest.raises(ConnectionError) as caught:
        outer.call(inner(errors))
    assert len(errors.calls) == 3
    assert abate.report(caught.value).reason == "layer"


def test_the_off_switch_and_deadlines_are_kept():
    """One attempt where retries are off, and none after a deadline."""
    policy, script = warmed(backoff=[2.0]), Script(*[ConnectionError() for _ in range(9)])
    with pytest.raises(ConnectionError), off():
        policy.call(script)
    assert len(script.calls) == 1
    with VirtualClock() as clock, pytest.raises(ConnectionError) as caught, abate.deadline(3.0):
        policy.call(script)
    assert (len(script.calls), clock.waits) == (3, [2.0])
    assert abate.report(caught.value).reason == "deadline"


OUTCOMES = st.lists(st.sampled_from([ConnectionError, TimeoutError, KeyError, Exit, "fine"]), max_size=6)


@settings(max_examples=150)
@given(
    OUTCOMES,
    st.integers(1, 5),
    st.integers(0, 4),
    backoffs(),
    st.sampled_from(["original", "exhausted"]),
    st.booleans(),
    st.integers(),
    st.sampled_from(["threads", "asyncio"]),
)
def test_usual_retries_and_the_machine_agree(outcomes, most, reserve, backoff, raises, same_object, seed, loop):
    """The same outcomes lead to the same attempts, waits, errors, reports and balance, event sink or not."""

    def run(sinks):
        with VirtualClock() as clock:
            budget = Budget(0.5, reserve, 1.0)
            policy = warmed(max_attempts=most, backoff=backoff, budget=budget, raises=raises, rng=random.Random(seed))
            shared = ConnectionError()
            script = Script(
                *[
                    shared if same_object and kind is ConnectionError else kind() if isinstance(kind, type) else kind
                    for kind in outcomes
                ],
                "fine",
            )
            for sink in sinks:
                event_sinks.install(sink)
            try:
                ended = Way(loop, "call")(policy, script)
            except (Exception, Exit) as error:
                ended = type(error), abate.report(error), getattr(error, "__notes__", [])
            finally:
                for sink in sinks:
                    event_sinks.remove(sink)
            waits = [round(wait, 9) for wait in clock.waits]  # the machine adds the instant and subtracts it again
            return ended, len(script.calls), waits, budget.balance()

    assert run([]) == run([[].append])


class Response:
    """A response of an HTTP client."""

    def __init__(self, status):
        self.status_code = status
        self.headers = {}


def test_an_error_response_to_a_usual_retry_is_left_to_the_machine(way):
    """It decides by the result, and the call goes on. A block has no results."""
    if way.form == "block":
        return
    policy = warmed(on=(ConnectionError, abate.http.transient), max_attempts=4)
    policy.usual_backoffs[ConnectionError] = policy.backoff
    assert policy.retries_usually
    with VirtualClock():
        script = Script(ConnectionError(), Response(503), Response(200))
        assert way(policy, script).status_code == 200
    assert len(script.calls) == 3


def test_a_sink_that_is_installed_during_a_usual_retry_learns_that_the_call_recovered(way):
    """It has not seen the failure."""
    seen = []

    class Flaky:
        def __init__(self):
            self.failed = False

        def __call__(self):
            if not self.failed:
                self.failed = True
                raise ConnectionError
            event_sinks.install(seen.append)
            return "fine"

        async def acall(self):
            return self()

    assert way(warmed(), Flaky()) == "fine"
    assert [(type(event).__name__, event.attempts) for event in seen] == [("Recovered", 2)]


def test_a_function_that_returns_a_coroutine_after_a_usual_failure_is_awaited():
    """Its first attempt failed before there was anything to await."""
    script = Script(ConnectionError(), "fine")

    async def fetch():
        return "fine"

    def either():
        script()
        return fetch()

    assert asyncio.run(_awaited(warmed()(either)())) == "fine"


async def _awaited(result):
    return await result
