"""Calls that begin after their deadline: nothing is sent, and the error says so."""

import asyncio
import pickle
import subprocess
import sys
from unittest.mock import AsyncMock, Mock

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate import Budget, ConcurrencyLimit, DeadlineExceeded, Hedge, Policy, Shelter, Timeouts
from abate.call import Call
from abate.call.counters import wrapper_versions
from abate.schedule.deadlines import deadline_aware
from abate.testing import Recorder, Script, VirtualClock

POLICIES = {
    "plain": {},
    "exhausted": {"raises": "exhausted"},
    "boundless": {"budget": Budget.unlimited()},
    "timeout": {"timeout": 60.0},
    "attempt timeout": {"attempt_timeout": 60.0},
    "gate": {"gate": ConcurrencyLimit(1)},
    "shelter": {"shelter": Shelter()},
    "reads results": {"on": abate.on_result(lambda result: False)},
}


def policy(**settings):
    return Policy(**{"on": ConnectionError, "name": "orders", "backoff": [0.0], **settings})


def decorated(policy, script):
    return policy(script)()


def called(policy, script):
    return policy.call(script)


def in_a_block(policy, script):
    for attempt in policy.attempts():
        with attempt:
            return script()


def adecorated(policy, script):
    return asyncio.run(policy(script.acall)())


def awaited(policy, script):
    return asyncio.run(policy.acall(script.acall))


def under_trio(policy, script):
    return trio.run(policy.acall, script.acall)


def in_an_async_block(policy, script):
    async def main():
        async for attempt in policy.attempts():
            with attempt:
                return await script.acall()

    return asyncio.run(main())


def hedged(policy, script):
    return Hedge(policy, Timeouts()).call(script)


FORMS = [decorated, called, in_a_block, adecorated, awaited, under_trio, in_an_async_block, hedged]
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


@every_form
@pytest.mark.parametrize("settings", POLICIES.values(), ids=POLICIES)
def test_nothing_is_sent_after_the_deadline(form, settings):
    """Whatever the form and the policy: an error of its own is raised, which is a timeout, and has a report."""
    script, used = Script("fine"), policy(**settings)
    with (
        Recorder() as seen,
        abate.deadline(0.0),
        pytest.raises(DeadlineExceeded, match="orders sent nothing") as caught,
    ):
        form(used, script)
    assert script.calls == []
    assert isinstance(caught.value, TimeoutError)
    assert abate.report(caught.value) == abate.Report("orders", 0, 0.0, "deadline")
    assert [(event.reason, event.attempts) for event in seen.of(abate.events.GaveUp)] == [("deadline", 0)]
    assert form(used, script) == "fine"  # and no gate is left closed


@every_form
def test_what_is_in_time_is_sent(form):
    """Within a deadline, after one that is over, and where it was shed."""
    script = Script(1, 2, 3)
    with abate.deadline(60.0):
        assert form(policy(), script) == 1
    with abate.deadline(0.0), abate.deadline(None):
        assert form(policy(), script) == 2
    assert form(policy(), script) == 3


@pytest.mark.parametrize("watched", [False, True])
def test_a_call_that_is_late_is_counted(watched):
    """It has begun and ended badly, and earned nothing."""
    used = policy(budget=Budget(reserve=1.0))
    load = used(Script("fine"))
    if watched:
        wrapper_versions.start_counting()
    try:
        with abate.deadline(0.0), pytest.raises(DeadlineExceeded):
            load()
    finally:
        if watched:
            wrapper_versions.stop_counting()
    assert (used.counter.begun.read(), used.counter.good.read(), used.counter.bad.read()) == (watched, 0, watched)
    assert used.budget.balance() == 10.0


def test_a_budget_that_is_funded_by_requests_gets_nothing():
    """A request that was not sent is none."""
    used = policy(budget=Budget(ratio=1.0, reserve=1.0, funded_by="request"))
    with abate.deadline(0.0), pytest.raises(DeadlineExceeded):
        used.call(Script())
    assert used.budget.balance() == 10.0


def test_an_attempt_that_ran_out_of_time_inside_is_retried_outside():
    """A thread that can't be cut off notices at its next call that its attempt is over."""
    sent = Script("fine")
    inner = policy(name="inner")(sent)
    outer = policy(name="outer", attempt_timeout=1.0)
    clock, slow = VirtualClock(), iter([2.0, 0.0])

    def attempt():
        clock.advance(next(slow))
        return inner()

    with clock:
        assert outer.call(attempt) == "fine"
    assert len(sent.calls) == 1


def test_a_client_that_keeps_deadlines_is_asked():
    """It ends at once, with the timeout error of its library."""
    script = Script(TimeoutError("the library's own"), TimeoutError("the library's own"))

    @deadline_aware
    def send():
        return script()

    @deadline_aware
    async def asend():
        return script()

    with abate.deadline(0.0):
        for call in (lambda: policy().call(send), lambda: asyncio.run(policy().acall(asend))):
            with pytest.raises(TimeoutError, match="own"):
                call()
    assert len(script.calls) == 2


@given(st.floats(0.0, 100.0), st.floats(0.0, 100.0), st.sampled_from(FORMS[:3]))
def test_a_first_attempt_is_sent_before_the_deadline_alone(seconds, later, form):
    """In virtual time, to the instant."""
    script = Script("fine")
    with VirtualClock() as clock, abate.deadline(seconds):
        clock.advance(later)
        if later < seconds:
            assert form(policy(), script) == "fine"
        else:
            with pytest.raises(DeadlineExceeded):
                form(policy(), script)
            assert script.calls == []


def test_the_machine_refuses_by_the_instant_it_is_given_or_by_its_clock():
    """At the deadline it is too late."""
    clock = VirtualClock(start=100.0)
    assert Call(policy(clock=clock), 101.0).begin() is Call(policy(), 101.0).begin(100.9)
    for late in (lambda: Call(policy(clock=clock), 100.0).begin(), lambda: Call(policy(), 101.0).begin(101.0)):
        with pytest.raises(DeadlineExceeded):
            late()


def test_a_retry_that_was_admitted_is_sent():
    """It was planned to be in time: a thread that sleeps too long does not replace the error of the first attempt."""
    call = Call(policy(), 101.0)
    call.failed(ConnectionError(), 100.0)
    assert call.begin(102.0) is Call(policy()).begin()


def test_the_error_can_be_pickled():
    """Between processes it keeps its name and report."""
    with abate.deadline(0.0), pytest.raises(DeadlineExceeded) as caught:
        policy().call(Script())
    travelled = pickle.loads(pickle.dumps(caught.value))
    assert (str(travelled), travelled.policy) == ("orders sent nothing: the deadline had passed", "orders")
    assert abate.report(travelled) == abate.report(caught.value)
    assert str(DeadlineExceeded()) == "a policy sent nothing: the deadline had passed"


def test_until_the_first_deadline_stand_ins_do_not_look():
    """A process that sets no deadline pays nothing; one that does has its stand-ins exchanged, counted ones as well."""
    code = """if True:
        import abate
        from abate.call.counters import wrapper_versions
        load = abate.Policy(on=OSError)(lambda: 1)
        looks = lambda: "_a_peek_deadline" in load.__code__.co_names
        load(), load()
        assert not looks()
        wrapper_versions.start_counting()
        assert not looks()
        with abate.deadline(None):
            assert looks()
            wrapper_versions.stop_counting()
            assert looks()
        other = abate.Policy(on=OSError)(lambda: 1)
        assert "_a_peek_deadline" in other.__code__.co_names
    """
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("settings", [{}, {"timeout": 60.0}], ids=["plain", "timeout"])
def test_a_function_with_an_attribute_for_every_name_sends_nothing(settings):
    """Mocks and remote procedures, as of xmlrpc, have never said that they keep deadlines."""
    function, coroutine = Mock(), AsyncMock()
    with abate.deadline(0.0):
        with pytest.raises(DeadlineExceeded):
            policy(**settings).call(function)
        with pytest.raises(DeadlineExceeded):
            asyncio.run(policy(**settings).acall(coroutine))
    assert (function.call_count, coroutine.call_count) == (0, 0)
