"""The machine's steps: what it counts, what it answers, what it tells the sinks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate import Backoff, Budget, Outcome, Policy, Ruling
from abate.call import Call, Send, Stop, Wait
from abate.errors import Report
from abate.events import BudgetRefused, FirstFailure, GaveUp, LayeredRetry, Recovered, Retry
from abate.testing import off

ERROR = ConnectionError("gone")


def policy(**settings):
    """A policy without chance: 1 s, 2 s, 4 s."""
    return Policy(**{"on": ConnectionError, "name": "orders", "backoff": Backoff(1.0, jitter="none"), **settings})


# -- steps


def test_begin_answers_send():
    """Without a gate, every attempt may be sent."""
    assert Call(policy()).begin() == Send()


def test_attempts_count_the_first_one():
    """Three attempts are one call and two retries."""
    call = Call(policy(max_attempts=3))
    answers = [call.failed(ERROR, now=100.0) for _ in range(3)]
    assert answers == [Wait(101.0), Wait(102.0), Stop("attempts")]
    assert (call.attempts, call.waited) == (3, 3.0)


def test_an_outcome_and_its_bare_error_are_the_same():
    """The error of an attempt may be given as it is, or within an outcome."""
    assert Call(policy()).failed(Outcome(error=ERROR), 0.0) == Call(policy()).failed(ERROR, 0.0) == Wait(1.0)


def test_an_error_no_rule_knows_is_fatal():
    """What `on` does not name is not retried."""
    assert Call(policy()).failed(KeyError("order"), 0.0) == Stop("fatal")


def test_results_are_good_unless_a_rule_speaks_against_them():
    """A result is judged by the rules that read results."""
    call = Call(policy(on=abate.on_result(lambda result: result is None)))
    assert call.is_good(42)
    assert not call.is_good(None)
    assert call.failed(Outcome(result=None), 0.0) == Wait(1.0)


def test_elapsed_counts_from_the_first_outcome():
    """Rules that widen for some seconds count them from the call's first failure."""
    call = Call(policy(on=abate.widen(ConnectionError, by=KeyError, seconds=5.0), max_attempts=9))
    answers = [call.failed(KeyError(), now) for now in (100.0, 104.9, 105.0)]
    assert answers == [Wait(101.0), Wait(106.9), Stop("fatal")]


def test_switched_off_every_call_makes_one_attempt():
    """Where retries are switched off, the first failure ends the call."""
    with off():
        assert Call(policy()).failed(ERROR, 0.0) == Stop("attempts")
    assert Call(policy()).failed(ERROR, 0.0) == Wait(1.0)


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e6), st.floats(0.001, 1e6))
def test_an_attempt_is_allowed_the_nearer_of_deadline_and_timeout(now, deadline, attempt_timeout):
    """What an attempt may take ends with the deadline, or after its own timeout, and is never negative."""
    bounded = policy(attempt_timeout=attempt_timeout)
    assert Call(bounded, deadline).allowance(now) == min(max(0.0, deadline - now), attempt_timeout)
    assert Call(policy(), deadline).allowance(now) == max(0.0, deadline - now)
    assert Call(bounded).allowance(now) == attempt_timeout


# -- blips and overload


@pytest.mark.parametrize(
    ("base", "cap", "blips", "overloads"),
    [
        (0.1, 30.0, [0.1, 0.2, 0.4], [1.0, 2.0, 4.0]),
        (5.0, 30.0, [5.0, 10.0, 20.0], [5.0, 10.0, 20.0]),
        (0.1, 0.5, [0.1, 0.2, 0.4], [0.5, 0.5, 0.5]),
        (0.0, 3.0, [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]),
    ],
)
def test_overload_starts_from_a_second_and_blips_from_the_base(fixed, base, cap, blips, overloads):
    """After an overload the backoff starts from at least 1 s, as far as the cap allows; a blip keeps the base."""
    orders = policy(on=(TimeoutError, ConnectionError), backoff=Backoff(base, cap), max_attempts=4, rng=fixed(1.0))
    for error, expected in ((ConnectionError(), blips), (TimeoutError(), overloads)):
        call = Call(orders)
        assert [call.failed(error, 0.0).until for _ in range(3)] == pytest.approx(expected)


def test_the_users_own_delays_are_the_same_after_an_overload():
    """A list or a function of seconds is taken as it is."""
    for backoff in ([0.1, 0.2], lambda retry: 0.1 * retry):
        call = Call(policy(on=TimeoutError, backoff=backoff))
        assert [call.failed(TimeoutError(), 0.0) for _ in range(2)] == [Wait(0.1), Wait(0.2)]


def test_decorrelated_delays_grow_from_the_delay_before(fixed):
    """Each delay is drawn up to three times the one before, without what a hint added to it."""
    orders = policy(
        on=lambda error: error.args[0],
        backoff=Backoff(1.0, 100.0, jitter="decorrelated"),
        max_attempts=9,
        rng=fixed(1.0),
    )
    call = Call(orders)
    answers = [call.failed(ConnectionError(verdict), 0.0) for verdict in (True, 1.0, True)]
    assert answers == [Wait(3.0), Wait(1.0 + 9.0), Wait(27.0)]


# -- safe to repeat?


@pytest.mark.parametrize(
    ("idempotent", "safe", "reached", "repeated"),
    [
        (None, None, True, True),
        (None, True, True, True),
        (None, False, True, False),
        (True, None, True, True),
        (True, True, True, True),
        (True, False, True, True),
        (False, None, True, False),
        (False, True, True, False),
        (False, False, True, False),
    ]
    # what the server never saw may always be sent again
    + [(idempotent, safe, False, True) for idempotent in (None, True, False) for safe in (None, True, False)],
)
def test_what_may_be_repeated(idempotent, safe, reached, repeated):
    """The policy's word counts, else the request's; what never reached the server is repeated in any case."""
    ruling = Ruling(True, "blip", None, reached, safe)
    answer = Call(policy(on=lambda error: ruling, idempotent=idempotent)).failed(ERROR, 0.0)
    assert answer == (Wait(1.0) if repeated else Stop("unsafe"))


def test_refused_connections_are_repeated_though_not_idempotent():
    """A refused connection proves that the server saw nothing; a reset one doesn't."""
    orders = policy(idempotent=False)
    assert Call(orders).failed(ConnectionRefusedError(), 0.0) == Wait(1.0)
    assert Call(orders).failed(ConnectionResetError(), 0.0) == Stop("unsafe")


# -- events


def test_the_events_of_a_call_that_recovers(abate_events):
    """First failure, one event per retry, the recovery."""
    call = Call(policy(on=lambda error: error.args[0]))
    first, second = ConnectionError(True), TimeoutError(2.0)
    call.begin()
    call.failed(first, 0.0)
    call.begin()
    call.failed(second, 1.0)
    call.begin()
    call.succeeded()
    assert abate_events == [
        FirstFailure("orders", "blip", first),
        Retry("orders", 1, 1.0, "blip", None, first),
        Retry("orders", 2, 4.0, "overload", 2.0, second),
        Recovered("orders", 3, 5.0),
    ]


def test_a_call_that_succeeds_at_once_makes_no_event(abate_events):
    """There is nothing to tell about a call without a failure."""
    call = Call(policy())
    call.begin()
    call.succeeded()
    assert abate_events == []


def test_the_events_of_a_call_that_gives_up(abate_events):
    """The last event names the reason, the attempts and the seconds waited."""
    call = Call(policy(max_attempts=2))
    call.failed(ERROR, 0.0)
    call.give_up(call.failed(ERROR, 1.0), ERROR)
    assert abate_events == [
        FirstFailure("orders", "blip", ERROR),
        Retry("orders", 1, 1.0, "blip", None, ERROR),
        GaveUp("orders", "attempts", 2, 1.0, ERROR),
    ]


def test_the_events_of_a_fatal_error(abate_events):
    """A fatal first failure is a first failure too."""
    error = KeyError("order")
    call = Call(policy())
    call.give_up(call.failed(error, 0.0), error)
    assert abate_events == [FirstFailure("orders", "fatal", error), GaveUp("orders", "fatal", 1, 0.0, error)]


def test_the_events_of_a_retry_that_the_budget_refuses(abate_events):
    """The refusal names the budget and the attempt that had failed."""
    call = Call(policy(budget=Budget.empty()))
    call.give_up(call.failed(ERROR, 0.0), ERROR)
    assert abate_events == [
        FirstFailure("orders", "blip", ERROR),
        BudgetRefused("orders", "empty budget", 1),
        GaveUp("orders", "budget", 1, 0.0, ERROR),
    ]


def test_the_events_of_a_bad_result(abate_events):
    """A result that is not good has no error to show."""
    call = Call(policy(on=abate.on_result(lambda result: not result), max_attempts=1))
    outcome = Outcome(result="")
    assert call.give_up(call.failed(outcome, 0.0), outcome) is None
    assert abate_events == [FirstFailure("orders", "blip", None), GaveUp("orders", "attempts", 1, 0.0, None)]


def test_the_events_of_a_call_that_is_broken_off(abate_events):
    """Cancelled is a reason like the others; a call that is left without an error makes no event."""
    for error in (None, KeyboardInterrupt()):
        call = Call(policy())
        call.failed(ERROR, 0.0)
        call.broken_off(error)
    assert abate_events[2:] == [
        FirstFailure("orders", "blip", ERROR),
        Retry("orders", 1, 1.0, "blip", None, ERROR),
        GaveUp("orders", "cancelled", 1, 1.0, error),
    ]


@pytest.mark.filterwarnings("ignore::abate.LayeredRetryWarning")
def test_the_events_of_a_layer(abate_events):
    """The layer is counted before the call gives up, and names the policy inside."""
    inner, outer = Call(policy(name="inner", max_attempts=2)), Call(policy(name="outer"))
    exhaust(inner, ERROR)
    outer.give_up(outer.failed(ERROR, 0.0), ERROR)
    assert abate_events[3:] == [
        FirstFailure("outer", "blip", ERROR),
        LayeredRetry("outer", "inner"),
        GaveUp("outer", "layer", 1, 0.0, ERROR),
    ]


# -- layers


def test_a_pair_of_layers_is_warned_about_once(no_warnings_yet):
    """The first time that one policy wraps another, a warning says so."""

    def layered(inner_name):
        inner, outer = Call(policy(name=inner_name, max_attempts=2)), Call(policy(name="outer"))
        exhaust(inner, ERROR)
        return outer.failed(ERROR, 0.0)

    for inner_name in ("inner", "other"):
        with pytest.warns(abate.LayeredRetryWarning, match=f"outer wraps {inner_name}"):
            assert layered(inner_name) == Stop("layer")
        assert layered(inner_name) == Stop("layer")  # a second warning would be an error here
    assert no_warnings_yet == {("outer", "inner"), ("outer", "other")}


def test_the_pairs_that_were_warned_about_are_bounded(no_warnings_yet):
    """A process with ever new policy names does not keep them all."""
    no_warnings_yet.update((str(number), "inner") for number in range(1000))
    inner, outer = Call(policy(name="inner", max_attempts=2)), Call(policy(name="outer"))
    exhaust(inner, ERROR)
    assert outer.failed(ERROR, 0.0) == Stop("layer")
    assert len(no_warnings_yet) == 1000


def test_a_bad_result_is_no_layer():
    """An attempt may give up on something inside, get over it, and return a result that is worth another attempt."""
    inner, outer = Call(policy(max_attempts=2)), Call(policy(on=abate.on_result(lambda result: result is None)))
    outer.begin()
    exhaust(inner, ERROR)
    assert outer.failed(Outcome(result=None), 0.0) == Wait(1.0)


@pytest.mark.filterwarnings("ignore::abate.LayeredRetryWarning")
def test_every_attempt_looks_for_layers_of_its_own():
    """What a policy gave up on before an attempt began is not held against that attempt."""
    error = ConnectionError()
    inner, outer = policy(name="inner", max_attempts=2), Call(policy(name="outer"))
    exhaust(Call(inner), error)
    outer.begin()
    assert outer.failed(error, 0.0) == Wait(1.0)
    exhaust(Call(inner), error)
    assert outer.failed(error, 1.0) == Stop("layer")
    assert abate.report(outer.give_up(Stop("layer"), error)) == Report(
        "outer", 2, 1.0, "layer", Report("inner", 2, 1.0, "attempts")
    )


@pytest.mark.parametrize("reason", ["attempts", "deadline", "shelter", "fatal"])
def test_what_was_tried_once_is_no_layer(reason):
    """Nothing multiplies where a policy inside made one attempt."""
    error = ConnectionError()
    inner, outer = Call(policy(name="inner", max_attempts=1)), Call(policy(name="outer"))
    inner.failed(error, 0.0)
    inner.give_up(Stop(reason), error)
    assert outer.failed(error, 0.0) == Wait(1.0)


@pytest.mark.filterwarnings("ignore::abate.LayeredRetryWarning")
@pytest.mark.parametrize("reason", ["unsafe", "hint", "budget", "layer"])
def test_what_must_not_be_repeated_by_anybody_is_a_layer(reason):
    """The server may have seen it, asked for time, or has enough retries: that holds for the layers around as well."""
    error = ConnectionError()
    inner, outer = Call(policy(name="inner")), Call(policy(name="outer"))
    outer.begin()
    inner.failed(error, 0.0)
    inner.give_up(Stop(reason), error)
    assert outer.failed(error, 0.0) == Stop("layer")
    assert Call(policy(name="later")).failed(error, 0.0) == Wait(1.0)


def exhaust(call, error):
    """Fail both attempts of a call."""
    assert call.failed(error, 0.0) == Wait(1.0)
    call.give_up(call.failed(error, 1.0), error)
