"""Rules: from types, from predicates on errors and results; the first that answers decides."""

import asyncio
import concurrent.futures
import functools
import re
import socket
from datetime import timedelta
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from abate.decide import Outcome, Rule, Ruling, http, on_error, on_result, widen
from abate.decide.outcome import BLIP, FATAL, OVERLOAD, UNREACHED
from abate.decide.rules import build_rules, check_matchers


class Odd(OSError):
    """An error of the user's own."""


class SlowRead(TimeoutError):
    """A timeout of a library's own."""


class Refusal(ConnectionRefusedError):
    """A refusal of a library's own."""


# what each error says by itself, written down by hand
NATURES = {
    TimeoutError: OVERLOAD,
    SlowRead: OVERLOAD,
    ConnectionRefusedError: UNREACHED,
    Refusal: UNREACHED,
    socket.gaierror: UNREACHED,
    ConnectionError: BLIP,
    ConnectionResetError: BLIP,
    BrokenPipeError: BLIP,
    FileNotFoundError: BLIP,
    OSError: BLIP,
    Odd: BLIP,
    KeyError: BLIP,
    LookupError: BLIP,
    ValueError: BLIP,
    Exception: BLIP,
}
types = st.sampled_from(list(NATURES))
errors = types.map(lambda kind: kind("it failed"))


def decide(rule, error=None, result=None, elapsed=0.0, unless=()):
    return build_rules(rule, unless).decide(Outcome(error, result, elapsed))


# -- the nature of errors


@pytest.mark.parametrize(("kind", "ruling"), NATURES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_what_an_error_says_by_itself(kind, ruling):
    """A timeout is an overload; refused and unresolved were never seen by the server; the rest are blips."""
    assert decide(kind, kind("it failed")) == ruling
    assert decide(lambda error: True, kind("it failed")) == ruling


@pytest.mark.parametrize("kind", [asyncio.TimeoutError, socket.timeout, concurrent.futures.TimeoutError])
def test_timeouts_of_the_standard_library_are_overloads(kind):
    """Whichever module it comes from."""
    assert decide(Exception, kind()) == OVERLOAD


# -- types


def test_a_type_matches_itself_and_its_subclasses():
    """An error no rule knows is fatal, and so is a result where no rule reads results."""
    assert decide(ConnectionError, ConnectionResetError()) == BLIP
    assert decide(ConnectionError, ConnectionError()) == BLIP
    assert decide(ConnectionError, OSError()) == FATAL
    assert decide(ConnectionError, result="fine") == FATAL
    assert build_rules(ConnectionError).judge(Outcome(result="fine")) is None


# -- predicates

ANSWERS = [
    (True, BLIP),
    (False, FATAL),
    (None, FATAL),
    (0, FATAL),
    (0.0, FATAL),
    (timedelta(0), FATAL),
    ("", FATAL),
    ([], FATAL),
    (re.search("gone", "try again"), FATAL),
    (re.search("again", "try again"), BLIP),
    ("yes", BLIP),
    ([1], BLIP),
    (object(), BLIP),
    (4, Ruling(True, "blip", 4.0)),
    (2, Ruling(True, "blip", 2.0)),
    (2.5, Ruling(True, "blip", 2.5)),
    (-3.0, Ruling(True, "blip", 0.0)),
    (float("inf"), Ruling(True, "blip", float("inf"))),
    (timedelta(minutes=2), Ruling(True, "blip", 120.0)),
    (timedelta(seconds=-2), Ruling(True, "blip", 0.0)),
    (Ruling.overload(4.0), Ruling.overload(4.0)),
    (Ruling.fatal(), FATAL),
]


@pytest.mark.parametrize(("answer", "ruling"), ANSWERS)
def test_what_a_predicate_may_answer(answer, ruling):
    """A ruling, seconds to wait, or whatever is true or false: the same for errors and for results.

    A result is an answer, which an error need not be.
    """
    assert decide(lambda error: answer, KeyError()) == ruling
    assert decide(on_error(lambda error: answer), KeyError()) == ruling
    own = isinstance(answer, Ruling) or not ruling.retry
    answered = ruling if own else Ruling.blip(ruling.hint, answered=True)
    assert decide(on_result(lambda result: answer), result="empty") == answered


def test_seconds_keep_the_nature_of_the_error():
    """A hint on a timeout is the hint of an overload; on a refusal, of what was never seen."""
    assert decide(lambda error: 3.0, TimeoutError()) == Ruling(True, "overload", 3.0, True)
    assert decide(lambda error: 3.0, ConnectionRefusedError()) == Ruling(True, "blip", 3.0, False)


@pytest.mark.parametrize(("answer", "ruling"), ANSWERS)
def test_unless_understands_the_same_answers(answer, ruling):
    """What says that an error is worth another attempt is, as `unless`, what speaks against it; nothing else is."""
    found = decide(KeyError, KeyError(), unless=lambda error: answer)
    assert found == (FATAL if ruling.retry else BLIP)


@given(
    st.none() | st.booleans() | st.text(max_size=2) | st.lists(st.integers(), max_size=2) | st.integers() | st.binary()
)
def test_a_truthy_answer_means_retry(answer):
    """As everywhere in Python."""
    assert decide(lambda error: answer, KeyError()).retry is bool(answer)


async def coroutine_function(error):
    return True


def generator_function(error):
    yield True


@pytest.mark.parametrize("predicate", [coroutine_function, generator_function, functools.partial(coroutine_function)])
def test_a_predicate_that_does_not_answer_at_once_is_refused(predicate):
    """A coroutine is true whatever it will find: on, unless, on_error and on_result say so when they are made."""
    for make in (build_rules, lambda given: build_rules(OSError, given), on_error, on_result):
        with pytest.raises(TypeError, match=r"a predicate must return its answer, .*coroutine or generator function: "):
            make(predicate)


def test_a_coroutine_that_hides_behind_a_predicate_is_an_error():
    """A plain function that returns one is found out by its first answer, and nothing is left to be awaited."""
    with pytest.raises(TypeError, match=r"the predicate .*lambda.* must return its answer, not a coroutine"):
        decide(lambda error: coroutine_function(error), KeyError())


@pytest.mark.parametrize("garbage", [float("nan"), 10**400])
def test_seconds_that_are_no_number_are_an_error(garbage):
    """The error names the predicate; one without a name is shown as it is."""
    unsure = functools.partial(lambda answer, error: answer, garbage)
    with pytest.raises(ValueError, match=r"the answer of the predicate functools.partial.* must be a number, not "):
        decide(unsure, KeyError())


def test_predicates_see_what_they_are_for():
    """One for errors is not asked about results, nor the other way round."""
    seen = []
    both = (on_error(lambda error: seen.append(error)), on_result(lambda result: seen.append(result)))
    error = KeyError()
    decide(both, error)
    decide(both, result="empty")
    assert seen == [error, "empty"]


def test_an_error_in_a_predicate_propagates():
    """It is a bug in the user's code."""
    with pytest.raises(ZeroDivisionError):
        decide(lambda error: 1 / 0, KeyError())


def test_which_rules_read_results():
    """A policy judges results only if one of its rules does."""
    reads = on_result(lambda result: None)
    deaf = on_error(lambda error: None)
    for rule, expected in [
        (KeyError, False),
        (deaf, False),
        (reads, True),
        ((KeyError, reads), True),
        (http.transient, False),
        (http.status(404), False),
        (widen(KeyError, by=reads, seconds=1.0), True),
        (widen(reads, by=KeyError, seconds=1.0), True),
        (widen(KeyError, by=deaf, seconds=1.0), False),
    ]:
        assert build_rules(rule).reads_results is expected, rule
    assert not build_rules(KeyError, unless=reads).reads_results  # there is nothing to except


def test_which_rules_read_responses():
    """Rules for HTTP judge results that are responses, and no others."""
    for rule, expected in [
        (KeyError, False),
        (on_result(lambda result: None), False),
        (http.transient, True),
        (http.transient_result, True),
        ((KeyError, http.status(404)), True),
        (widen(KeyError, by=http.transient, seconds=1.0), True),
        (widen(http.transient, by=KeyError, seconds=1.0), True),
    ]:
        assert build_rules(rule).reads_responses is expected, rule
    assert not build_rules(KeyError, unless=http.status(404)).reads_responses


def test_a_rule_of_ones_own():
    """A subclass of Rule is used as it is; the base class itself judges nothing."""

    class Named(Rule):
        def judge(self, outcome):
            return Ruling.overload() if "busy" in str(outcome.error) else None

    assert decide(Named(), KeyError("busy")) == OVERLOAD
    assert decide(Named(), KeyError("gone")) == FATAL
    with pytest.raises(NotImplementedError):
        decide(Rule(), KeyError())


# -- the order of rules


class Answer(NamedTuple):
    """A predicate that answers the same to every error of one type."""

    kind: type
    verdict: object

    def __call__(self, error):
        return self.verdict if isinstance(error, self.kind) else None


answers = st.builds(Answer, types, st.sampled_from([verdict for verdict, _ in ANSWERS]))
matching = st.lists(types | answers.map(on_error), min_size=1, max_size=4)


def slow_model(on, unless, error):
    """What the rules promise, by looking at everything."""

    def answer(matcher):
        classify = NATURES[type(error)]
        if isinstance(matcher, type):
            return classify if isinstance(error, matcher) else None
        verdict = matcher.predicate(error)
        if isinstance(verdict, Ruling):
            return verdict
        if verdict is True or not isinstance(verdict, (int, float, timedelta)):
            return classify if verdict else None
        if not verdict:
            return None
        seconds = verdict.total_seconds() if isinstance(verdict, timedelta) else verdict
        return Ruling(True, classify.reason, max(0.0, seconds), classify.reached)

    if any(ruling.retry for ruling in map(answer, unless) if ruling):
        return FATAL
    return next((ruling for ruling in map(answer, on) if ruling), FATAL)


@given(on=matching, unless=st.just([]) | matching, error=errors)
@example(on=[OSError], unless=[on_error(lambda error: Ruling.fatal())], error=OSError())
def test_unless_is_asked_first_and_the_first_answer_decides(on, unless, error):
    """Whatever matches `unless` is fatal; else the first of `on` that answers is the ruling."""
    assert decide(on, error, unless=unless) == slow_model(on, unless, error)


def test_rules_within_rules_keep_their_unless():
    """What the inner rules call fatal is not left to the next rule."""
    assert decide((build_rules(OSError, unless=FileNotFoundError), Exception), FileNotFoundError()) == FATAL
    assert decide((build_rules(OSError, unless=FileNotFoundError), Exception), KeyError()) == BLIP


def test_a_good_result_that_unless_matches_stays_good():
    """`unless` takes results from what `on` would retry; it makes no failures."""
    rules = build_rules(on=on_result(lambda job: job["pending"]), unless=on_result(lambda job: job["failed"]))
    assert rules.is_good({"pending": False, "failed": True})
    assert rules.decide(Outcome(None, {"pending": True, "failed": True})) == FATAL


def test_a_predicate_of_on_may_rely_on_unless():
    """A result that `unless` matches is final, also where `on` can't judge it."""
    rules = build_rules(on=on_result(lambda job: job["pending"]), unless=on_result(lambda job: job is None))
    assert rules.decide(Outcome(None, None)) == FATAL


def test_unless_may_speak_against_results():
    """A rule on results in `unless` makes a result fatal, before `on` is asked."""
    either = build_rules(on_result(lambda result: result > 1), unless=on_result(lambda result: result > 5))
    assert [either.decide(Outcome(result=result)) for result in (2, 6)] == [Ruling.blip(answered=True), FATAL]


# -- bad input


@pytest.mark.parametrize("name", ["on", "unless"])
@pytest.mark.parametrize(
    ("matcher", "message"),
    [
        ("OSError", "not 'OSError'"),
        (b"OSError", "not b'OSError'"),
        (None, "not None"),
        (3, "not 3"),
        ([OSError, None], "not None"),
        ((OSError, (KeyError, ValueError)), "not (<class 'KeyError'>, <class 'ValueError'>)"),
        (OSError("gone"), "not the instance OSError('gone'): give its type OSError"),
        ([KeyError("gone")], "not the instance KeyError('gone'): give its type KeyError"),
        (503, "not 503: for a status write abate.http.status(503)"),
        ([429, 503], "not 429: for a status write abate.http.status(429)"),
        (dict, "not the class dict"),
        (Ruling, "not the class Ruling"),
        (KeyboardInterrupt, "KeyboardInterrupt asks the program to end and is never retried"),
        (SystemExit, "SystemExit asks the program to end and is never retried"),
        (BaseException, "BaseException asks the program to end and is never retried"),
        ((OSError, asyncio.CancelledError), "CancelledError asks the program to end and is never retried"),
        (KeyboardInterrupt(), "not the instance KeyboardInterrupt(): give its type KeyboardInterrupt"),
    ],
    ids=repr,
)
def test_what_is_no_matcher_is_refused(name, matcher, message):
    """The error says what was given and what may be."""
    with pytest.raises(TypeError) as caught:
        build_rules(**{"on": OSError} | {name: matcher})
    assert str(caught.value).startswith(f"{name} must be exception types, predicates or rules")
    assert str(caught.value).endswith(message)


@pytest.mark.parametrize("nothing", [(), [], set(), iter(())], ids=["()", "[]", "set()", "iterator"])
def test_on_must_not_be_empty(nothing):
    """`unless` may be empty."""
    with pytest.raises(ValueError, match=r"^on must name at least one exception type, predicate or rule, not none$"):
        build_rules(nothing)
    assert build_rules(OSError, unless=nothing).unless == ()


@pytest.mark.parametrize("make", [on_error, on_result])
@pytest.mark.parametrize("nonsense", [None, "again", OSError, bool, 3])
def test_a_rule_on_a_predicate_needs_a_function(make, nonsense):
    """A type belongs into `on` itself."""
    with pytest.raises(TypeError, match=f"^{make.__name__} needs a function, not "):
        make(nonsense)


def test_matchers_come_alone_or_in_any_iterable():
    """One, several, or what a generator gives."""
    assert check_matchers("on", OSError) == (OSError,)
    assert check_matchers("on", (kind for kind in (OSError, KeyError))) == (OSError, KeyError)
    rule = on_error(lambda error: True)
    assert build_rules([rule, OSError]).on[0] is rule
