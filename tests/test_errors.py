"""Errors: what abate raises itself, and how it names the values it refuses."""

import copy
import inspect
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate.clients import aws_lambda
from abate.clients.sqlalchemy import transaction
from abate.errors import (
    AbateError,
    AttemptTimeout,
    LayeredRetryWarning,
    Refused,
    Report,
    RetryExhausted,
    choice,
    number,
    whole,
)
from abate.testing import Script

NAN, INF = float("nan"), float("inf")
REPORT = Report("orders", attempts=3, waited=1.25, reason="attempts")


# -- the errors


def test_they_have_one_base():
    """Everything that abate makes itself can be caught at once; a timeout is a TimeoutError as well."""
    assert all(issubclass(kind, AbateError) for kind in (Refused, RetryExhausted, AttemptTimeout))
    assert issubclass(AttemptTimeout, TimeoutError)
    assert not issubclass(Refused, OSError)
    assert issubclass(LayeredRetryWarning, UserWarning)


def test_they_say_what_happened():
    """Each message names what it is about, and the parts can be read apart."""
    refused, timeout, exhausted = (
        Refused("db", "all permits are held"),
        AttemptTimeout(2.5),
        RetryExhausted(REPORT, 42),
    )
    assert (str(refused), refused.gate, refused.why) == (
        "db refused: all permits are held",
        "db",
        "all permits are held",
    )
    assert (str(timeout), timeout.seconds) == ("the attempt took longer than 2.5 s", 2.5)
    assert (str(exhausted), exhausted.report, exhausted.result) == (str(REPORT), REPORT, 42)
    assert RetryExhausted(REPORT).result is None


@pytest.mark.parametrize("clone", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])
@pytest.mark.parametrize(
    "make",
    [lambda: Refused("db", "busy"), lambda: AttemptTimeout(2.5), lambda: RetryExhausted(REPORT, result=[1])],
    ids=["Refused", "AttemptTimeout", "RetryExhausted"],
)
def test_they_travel_between_processes(clone, make):
    """A worker's error arrives as it was, notes included."""
    error = make()
    error.add_note("in worker 7")
    arrived = clone(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
    assert arrived.__notes__ == ["in worker 7"]


def test_the_report_on_them_travels_too():
    """What a policy left on its own error in one process is read in another."""
    policy = abate.Policy(on=KeyError, max_attempts=1, raises="exhausted", name="orders")
    with pytest.raises(RetryExhausted) as caught:
        policy.call(Script(KeyError()))
    arrived = pickle.loads(pickle.dumps(caught.value))
    assert abate.report(arrived) == Report("orders", 1, 0.0, "attempts")


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (REPORT, "orders gave up after 3 attempts and 1.25 s of waiting: attempts"),
        (Report("orders", 1, 0.0, "fatal"), "orders gave up after 1 attempt: fatal"),
        (Report("", 2, 0.12345, "budget"), "a policy gave up after 2 attempts and 0.123 s of waiting: budget"),
        (
            Report("outer", 1, 0.0, "layer", inner=REPORT),
            "outer gave up after 1 attempt: layer (orders gave up after 3 attempts and 1.25 s of waiting: attempts)",
        ),
    ],
)
def test_a_report_reads_as_a_sentence(report, text):
    """The policy that gave up, its attempts and waits, and the reason; with the policy inside that did the retrying."""
    assert str(report) == text


def test_a_report_is_a_value():
    """Equal where all its parts are, and frozen."""
    assert Report("orders", 3, 1.25, "attempts") == REPORT
    assert Report("orders", 3, 1.25, "budget") != REPORT
    with pytest.raises(AttributeError, match="a Report is frozen"):
        REPORT.reason = "budget"


# -- numbers


@given(value=st.integers(-(10**300), 10**300) | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_given_back_as_a_float(value):
    """Any finite number, where nothing bounds it."""
    result = number("window", value)
    assert type(result) is float
    assert result == float(value)


@given(
    value=st.floats(-10, 10) | st.integers(-10, 10),
    above=st.none() | st.integers(-10, 10),
    least=st.none() | st.integers(-10, 10),
    most=st.none() | st.integers(-10, 10),
)
def test_a_number_keeps_its_bounds(value, above, least, most):
    """Strictly above, at least, at most: each as far as it was given."""
    fits = (above is None or value > above) and (least is None or value >= least) and (most is None or value <= most)
    if fits:
        assert number("window", value, above=above, least=least, most=most) == value
    else:
        with pytest.raises(ValueError, match=r"^window must be a number "):
            number("window", value, above=above, least=least, most=most)


@pytest.mark.parametrize(
    ("value", "bounds", "error", "message"),
    [
        (NAN, {}, ValueError, "window must be a number, not nan"),
        (INF, {}, ValueError, "window must be a number that is finite, not inf"),
        (-INF, {"infinite": True, "least": 0}, ValueError, "window must be a number at least 0, not -inf"),
        (NAN, {"infinite": True}, ValueError, "window must be a number, not nan"),
        (True, {}, TypeError, "window must be a number, not True"),
        ("1", {"above": 0}, TypeError, "window must be a number above 0, not '1'"),
        (None, {"least": 0.5}, TypeError, "window must be a number at least 0.5, not None"),
        (1j, {"most": 3}, TypeError, "window must be a number at most 3, not 1j"),
        (5, {"above": 0, "most": 3}, ValueError, "window must be a number above 0 and at most 3, not 5"),
        (0.0, {"above": 0}, ValueError, "window must be a number above 0, not 0.0"),
        (10**400, {}, ValueError, "window must be a number, not an integer too large for a float"),
    ],
)
def test_a_bad_number_is_named(value, bounds, error, message):
    """The error says which value, what was expected and what was given."""
    with pytest.raises(error) as caught:
        number("window", value, **bounds)
    assert str(caught.value) == message
    assert type(caught.value) is error


def test_an_infinite_number_where_it_is_allowed():
    """Only where the caller says so."""
    assert number("hint", INF, least=0, infinite=True) == INF


# -- whole numbers and choices


@given(value=st.integers(), least=st.integers(-5, 5))
def test_a_whole_number_keeps_its_bounds(value, least):
    """And that of 64 bits."""
    if least <= value < 2**63:
        assert whole("attempts", value, least=least) == value
    else:
        with pytest.raises(ValueError, match=r"^attempts must be a whole number of at least "):
            whole("attempts", value, least=least)


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (1.0, TypeError), (True, TypeError), ("3", TypeError), (None, TypeError)]
)
def test_a_bad_whole_number_is_named(value, error):
    """The error says which value, what was expected and what was given."""
    with pytest.raises(error) as caught:
        whole("attempts", value, least=1)
    assert str(caught.value) == f"attempts must be a whole number of at least 1, not {value!r}"


def test_a_choice_is_one_of_those_allowed():
    """Anything else, of whatever type, is refused with the list of them."""
    assert choice("raises", "original", ("original", "exhausted")) == "original"
    for value in ("Original", "", None, 1, ["original"]):
        with pytest.raises(ValueError, match=r"^raises must be one of 'original', 'exhausted', not ") as caught:
            choice("raises", value, ("original", "exhausted"))
        assert str(caught.value).endswith(repr(value))


# -- what to write instead


@pytest.mark.parametrize(
    ("decorate", "said"),
    [
        (abate.retry, "Policy takes its settings by keyword: write @abate.retry(on=...), with the errors to retry"),
        (abate.controller, "write @abate.controller() or @abate.controller(workers=4)"),
        (abate.consumer, "write @abate.consumer() or @abate.consumer(workers=4)"),
        (abate.retry_on_db_conflict, "write @abate.retry_on_db_conflict()"),
        (transaction, "write @transaction(engine)"),
        (aws_lambda.consumer, "write @aws_lambda.consumer()"),
    ],
)
def test_a_bare_decorator_says_what_to_write(decorate, said):
    """Instead of an error about positional arguments, or none until the function is called."""

    def function(message): ...

    with pytest.raises(TypeError, match=re.escape(said)):
        decorate(function)


@pytest.mark.parametrize(
    ("make", "misspelt", "meant"),
    [
        (abate.Policy, "attempts", "max_attempts"),
        (abate.controller, "max_requeue", "max_requeues"),
        (abate.consumer, "max_recieves", "max_receives"),
        (abate.retry_on_db_conflict, "timout", "timeout"),
        (aws_lambda.consumer, "dead_letter", "dead_letters"),
    ],
)
def test_a_misspelt_setting_says_which_was_meant(make, misspelt, meant):
    """The nearest one that there is."""
    with pytest.raises(TypeError, match=f"has no setting '{misspelt}': did you mean '{meant}'"):
        make(**{misspelt: 5})


@pytest.mark.parametrize(
    ("make", "misspelt", "meant"),
    [
        (abate.Budget, "reserv", "reserve"),
        (abate.TokenBucket, "brust", "burst"),
        (abate.ConcurrencyLimit, "limits", "limit"),
        (abate.AdaptiveThrottle, "widow", "window"),
        (abate.CircuitBreaker, "threshold", "failure_ratio"),
        (abate.CircuitBreaker, "reset_timeout", "pause"),
        (abate.Shelter, "capacty", "capacity"),
        (abate.Timeouts, "cieling", "ceiling"),
        (abate.Hedge, "quantil", "quantile"),
        (abate.WorkQueue, "capcity", "capacity"),
        (abate.AsyncWorkQueue, "back_off", "backoff"),
    ],
)
def test_a_misspelt_setting_of_a_constructor_says_which_was_meant(make, misspelt, meant):
    """Also where settings may be given by position."""
    with pytest.raises(TypeError) as raised:
        make(**{misspelt: 5})
    assert str(raised.value) == f"{make.__name__} has no setting '{misspelt}': did you mean '{meant}'?"


def test_a_constructor_still_refuses_what_is_missing_or_of_a_wrong_type():
    """The error is that of Python, or of the check of the value."""
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'limit'"):
        abate.ConcurrencyLimit()
    with pytest.raises(TypeError, match="limit must be a whole number"):
        abate.ConcurrencyLimit(limit="5")


def test_a_setting_that_is_like_no_other_lists_them():
    """What it has is named in order."""
    with pytest.raises(
        TypeError, match=r"abate\.consumer has no setting 'zeal'; known are source, workers, batch, on, backoff"
    ):
        abate.consumer(zeal=3)


@pytest.mark.parametrize("function", [abate.controller, abate.consumer, aws_lambda.consumer])
def test_signatures_are_true(function):
    """Editors and `help` show the settings by name."""
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: abate.retry(), "Policy needs on: write @abate.retry(on=...)"),
        (lambda: abate.Policy(on=OSError, retries=3), "did you mean 'max_attempts'?"),
        (lambda: abate.Policy(on=OSError, exceptions=OSError), "did you mean 'on'?"),
        (lambda: abate.Policy(on=OSError, wait=1.0), "did you mean 'backoff'?"),
        (lambda: abate.Policy(on=OSError, max_time=10.0), "did you mean 'timeout'?"),
        (lambda: abate.Policy(on=OSError, before_sleep=print), "did you mean 'before_retry'?"),
        (lambda: abate.Policy(on=OSError, giveup=print), "did you mean 'unless'?"),
        (
            lambda: abate.Policy(on=OSError, retry_error_callback=print),
            "the last error is raised; catch it around the call",
        ),
        (lambda: abate.Policy(on=OSError, breaker=None), "did you mean 'gate'?"),
        (lambda: abate.consumer(max_attempts=3), "did you mean 'max_receives'?"),
    ],
)
def test_words_of_other_libraries_lead_to_the_setting(make, said):
    """A stranger's first guess is answered with what to write."""
    with pytest.raises(TypeError) as raised:
        make()
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda count: abate.Policy(on=OSError, max_attempts=count),
        lambda count: abate.ConcurrencyLimit(count),
        lambda count: abate.CircuitBreaker(min_calls=count),
        lambda count: abate.Shelter(capacity=count),
        lambda count: abate.WorkQueue(capacity=count),
        lambda count: abate.WorkQueue(rate=1.0, burst=count),
        lambda count: abate.TokenBucket(1.0, count),
    ],
)
@pytest.mark.parametrize("count", [2**63, 10**5000, -(10**5000)], ids=["64 bits", "huge", "negative"])
def test_counts_that_no_counter_holds_are_refused(make, count):
    """Python does not even write them: the limit's repr, its logs and its error would fail."""
    with pytest.raises(ValueError, match=rf"must be a .*, not an integer of {count.bit_length()} bits$"):
        make(count)
