"""How the end of a piece of work becomes a verdict."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate import Again, Backoff, PermanentFailure, Recoverable, SilentSuccess
from abate.decide.rules import build_rules
from abate.testing import VirtualClock
from abate.work import Back, Bury, Done
from abate.work.verdict_rules import MAX_REASON_CHARS, MAX_TRACE_CHARS, VerdictRules

PLAIN = Backoff(1.0, 60.0, jitter="none")


class Unavailable(Exception):
    status_code = 503

    def __init__(self, seconds=None):
        self.headers = {} if seconds is None else {"Retry-After": str(seconds)}


def test_nothing_returned_is_done():
    """None is done."""
    assert VerdictRules(PLAIN).returned(None) == (Done(), "done", False)


@given(st.floats(0, 1e6))
def test_again_is_done_and_comes_back(after):
    """Again is done, and once more after its seconds."""
    assert VerdictRules(PLAIN).returned(Again(after)) == (Done(again=after), "again", False)


VALUES = st.one_of(st.integers(), st.text(), st.booleans(), st.lists(st.integers()), st.builds(object))


@given(VALUES)
def test_any_other_value_is_done(value):
    """The work has been done, whatever the handler says of it."""
    assert VerdictRules(PLAIN).returned(value) == (Done(), "done", False)


@given(st.lists(st.none() | VALUES | st.builds(Again, st.just(1.0))))
def test_a_value_surprises_once(answers):
    """The first answer that says nothing is to be told, and no other."""
    verdict_rules = VerdictRules(PLAIN)
    first_ignored_value = [verdict_rules.first_ignored_value(answer) for answer in answers]
    odd = [answer is not None and not isinstance(answer, Again) for answer in answers]
    assert first_ignored_value == [odd[place] and not any(odd[:place]) for place in range(len(odd))]


def _numbers():
    yield 1


async def _later():
    yield 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Recoverable, "a handler must raise Recoverable, not return it"),
        (PermanentFailure("no"), "a handler must raise PermanentFailure, not return it"),
        (KeyError("x"), "a handler must raise KeyError, not return it"),
        (SystemExit, "a handler must raise SystemExit, not return it"),
        (Again, "a handler must return abate.Again(after), not the class"),
        (Back(5.0), "not a source's verdict Back"),
        (Done(), "not a source's verdict Done"),
        (Bury("permanent", "no"), "not a source's verdict Bury"),
        (_numbers(), "a handler must not be a generator: nothing of it has run"),
        (_later(), "a handler must not be a generator: nothing of it has run"),
    ],
)
def test_an_answer_that_was_meant_otherwise_is_buried_with_a_clear_reason(answer, reason):
    """To count it as done would lose the message."""
    verdict_rules = VerdictRules(PLAIN, budget=abate.Budget(ratio=1.0, reserve=0.0))
    verdict, ending, failed = verdict_rules.returned(answer)
    assert (verdict.kind, ending, failed) == ("fatal", "buried", None)
    assert reason in verdict.reason
    assert not verdict_rules.first_ignored_value(answer)


@given(st.floats(max_value=-1e-9) | st.just(float("nan")) | st.just(float("inf")))
def test_again_refuses_impossible_times(after):
    """Again takes seconds from 0 on."""
    with pytest.raises(ValueError, match="after must be a number at least 0"):
        Again(after)


def test_silent_success_is_done_and_counted_apart():
    """SilentSuccess is done."""
    assert VerdictRules(PLAIN).raised(SilentSuccess(), 1) == (Done(), "silent", False)


def test_a_permanent_failure_is_buried_with_its_reason():
    """PermanentFailure is buried at once, and says nothing about the dependency."""
    verdict, ending, failed = VerdictRules(PLAIN).raised(PermanentFailure("no address"), 1)
    assert (verdict.kind, verdict.reason, ending, failed) == ("permanent", "no address", "buried", None)


def test_a_permanent_failure_without_words_still_has_a_reason():
    """The reason is the name of the error where it says nothing."""
    assert VerdictRules(PLAIN).raised(PermanentFailure(), 1).verdict.reason == "PermanentFailure: "


def test_the_traceback_is_kept():
    """A dead letter tells where it happened."""
    try:
        raise PermanentFailure("here")
    except PermanentFailure as error:
        verdict = VerdictRules(PLAIN).raised(error, 1).verdict
    assert "test_the_traceback_is_kept" in verdict.trace


@given(st.integers(0, 50_000))
def test_reasons_and_traces_are_bounded(length):
    """A reason of any length is cut."""
    verdict = VerdictRules(PLAIN).raised(PermanentFailure("x" * length), 1).verdict
    assert len(verdict.reason) <= MAX_REASON_CHARS + 20
    assert len(verdict.trace) <= MAX_TRACE_CHARS


@given(st.integers(1, 100), st.integers(0, 2**32))
def test_errors_come_back_by_their_backoff(receives, seed):
    """Without `on`, any error comes back with the delay of the backoff for that number of failures."""
    backoff = Backoff(0.5, 30.0)
    verdict, ending, failed = VerdictRules(backoff, rng=random.Random(seed)).raised(KeyError("x"), receives)
    assert verdict == Back(backoff.delay(receives, random.Random(seed)))
    assert (ending, failed) == ("retry", True)


def test_overload_starts_from_a_second():
    """A timeout is an overload: its backoff starts wider."""
    verdict_rules = VerdictRules(Backoff(0.1, 60.0, jitter="none"))
    assert verdict_rules.raised(ConnectionError(), 1).verdict.after == 0.1
    assert verdict_rules.raised(TimeoutError(), 1).verdict.after == 1.0
    assert verdict_rules.raised(Unavailable(), 1).verdict.after == 1.0


@given(st.integers(1, 200), st.integers(1, 20), st.integers(0, 2**32))
def test_no_retry_comes_before_a_hint(seconds, receives, seed):
    """A Retry-After is kept, with jitter on top."""
    verdict_rules = VerdictRules(Backoff(0.5, 30.0), rng=random.Random(seed))
    assert verdict_rules.raised(Unavailable(seconds), receives).verdict.after >= seconds
    assert verdict_rules.raised(Recoverable("later", after=seconds), receives).verdict.after >= seconds


def test_a_server_that_asks_for_years_is_asked_again_within_hours():
    """A hint without end is a mistake; what a handler says is taken as it is."""
    verdict_rules = VerdictRules(Backoff(0.5, 30.0))
    assert verdict_rules.raised(Unavailable(999_999_999), 1).verdict.after <= 2 * 3600.0
    assert verdict_rules.raised(Recoverable("next week", after=604_800.0), 1).verdict.after >= 604_800.0


def test_recoverable_without_a_time_has_the_backoff():
    """Recoverable is an error like another."""
    assert VerdictRules(PLAIN).raised(Recoverable("later"), 3).verdict == Back(4.0)


def test_recoverable_survives_pickling():
    """Another process sees its time."""
    import pickle

    error = pickle.loads(pickle.dumps(Recoverable("later", after=3.0)))
    assert (error.args, error.after) == (("later",), 3.0)


def test_recoverable_refuses_impossible_times():
    """Its time is checked where it is raised."""
    with pytest.raises(ValueError, match="after must be a number at least 0, not -1"):
        Recoverable("later", after=-1)


def test_what_on_does_not_name_is_buried():
    """With `on`, other errors are fatal."""
    verdict_rules = VerdictRules(PLAIN, build_rules(on=ConnectionError))
    assert verdict_rules.raised(ConnectionError(), 1).ending == "retry"
    verdict, ending, failed = verdict_rules.raised(KeyError("x"), 1)
    assert (verdict.kind, verdict.reason, ending, failed) == ("fatal", "KeyError: 'x'", "buried", None)


def test_recoverable_comes_back_whatever_on_says():
    """The handler's own word counts."""
    assert VerdictRules(PLAIN, build_rules(on=ConnectionError)).raised(Recoverable(), 1).ending == "retry"


def test_an_error_that_a_policy_inside_gave_up_on_comes_back_once():
    """Nothing is dropped for a layer rule: the message has the queue's delay, like any other failure."""
    policy = abate.Policy(name="inner", on=ConnectionError, max_attempts=2, backoff=[0.0])
    with VirtualClock(), pytest.raises(ConnectionError) as raised:
        policy.call(abate.testing.Script(ConnectionError(), ConnectionError()))
    assert VerdictRules(PLAIN).raised(raised.value, 1).verdict == Back(1.0)
    assert VerdictRules(PLAIN, build_rules(on=ConnectionError)).raised(raised.value, 1).verdict == Back(1.0)


@given(st.integers(1, 20), st.integers(1, 40))
def test_who_was_handed_out_too_often_is_buried(most, receives):
    """With a bound, the last failure buries."""
    verdict, ending, failed = VerdictRules(PLAIN, max_receives=most).raised(ConnectionError("gone"), receives)
    assert failed
    if receives < most:
        assert ending == "retry"
    else:
        assert (verdict.kind, ending) == ("receives", "buried")
        assert verdict.reason == f"ConnectionError: gone (received {receives} times)"


@given(st.integers(1, 20), st.integers(1, 40))
def test_who_kills_its_workers_is_buried_untouched(most, receives):
    """A message that was handed out more often than allowed has killed its workers: it is not handed out again."""
    over_receive_limit = VerdictRules(PLAIN, max_receives=most).over_receive_limit(receives)
    assert (over_receive_limit is None) == (receives <= most)
    if over_receive_limit:
        assert over_receive_limit.verdict.kind == "receives"


def test_without_a_bound_no_message_is_hopeless():
    """None means for ever."""
    assert VerdictRules(PLAIN).over_receive_limit(10**9) is None
    assert VerdictRules(PLAIN).over_receive_limit(10**9, None) is None


@given(st.integers(1, 20), st.lists(st.sampled_from(["answered", "killed", "returned"]), max_size=60))
def test_no_message_is_buried_for_its_receives_before_it_was_alone(most, fates):
    """However answers, deaths and untouched returns mix: a death in company is never the last chance.

    And a message that is never settled is buried, at the latest one receive after the bound.
    """
    verdict_rules = VerdictRules(PLAIN, max_receives=most)
    receives = unanswered = 0
    alone = None  # was the last receive without an answer alone?
    for fate in fates:
        receives += 1
        if verdict_rules.over_receive_limit(receives, unanswered):
            assert not verdict_rules.suspect(receives, unanswered)
            assert alone
            assert receives in (most + 1, most + 2)
            return
        suspect = verdict_rules.suspect(receives, unanswered)
        assert not (suspect and unanswered == 0)
        if fate == "returned":
            receives -= 1
        elif fate == "killed":
            unanswered, alone = unanswered + 1, suspect
        elif receives >= most:
            return  # it is buried for its last failure
        else:
            unanswered, alone = 0, None
    if fates == ["killed"] * 60:
        raise AssertionError("it was never buried")


def test_one_death_makes_no_suspect_unless_it_is_the_last_chance():
    """A deployment that kills its processes leaves one receive without an answer in everything they had in hand."""
    verdict_rules = VerdictRules(PLAIN, max_receives=5)
    assert [verdict_rules.suspect(receives, 1) for receives in range(1, 7)] == [False] * 4 + [True] * 2
    assert verdict_rules.suspect(3, 2)
    assert not VerdictRules(PLAIN).suspect(10**6, 1)
    assert VerdictRules(PLAIN).suspect(3, 2)


@given(st.integers(1, 20), st.integers(1, 60))
def test_if_it_is_unknown_how_receives_ended_twice_as_many_are_allowed(most, receives):
    """Past the bound some of them had no answer, and others may have been none of the message's fault."""
    verdict_rules = VerdictRules(PLAIN, max_receives=most)
    assert (verdict_rules.over_receive_limit(receives, None) is None) == (receives <= 2 * most)
    assert verdict_rules.suspect(receives, None) == (most < receives <= 2 * most)


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), ValueError("odd")])
def test_rules_that_end_by_anything_bury(error):
    """There is always a judgement, or the message would stay in hand for ever."""

    def complain(failure):
        raise error

    verdict, ending, _ = VerdictRules(PLAIN, build_rules(on=complain)).decide_raised(KeyError("x"), 1)
    assert (verdict.kind, ending) == ("fatal", "buried")
    assert "in the rules" in verdict.reason


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 2**32))
def test_the_budget_decides_which_keys_come_back_by_the_backoff(outcomes, seed):
    """A failure that the budget pays for has its backoff; another comes back at the slow rate, give or take half."""
    with VirtualClock():
        budget, twin = (abate.Budget(ratio=0.5, reserve=0.2, window=10.0) for _ in range(2))
        verdict_rules = VerdictRules(PLAIN, budget=budget, slow=60.0, rng=random.Random(seed))
        for good in outcomes:
            if good:
                verdict_rules.returned(None)
                twin.deposit()
                continue
            verdict, ending, _ = verdict_rules.raised(ConnectionError(), 1)
            if twin.try_withdraw():
                assert (ending, verdict.after) == ("retry", 1.0)
            else:
                assert ending == "slow"
                assert 30.0 <= verdict.after <= 90.0


def test_silent_success_funds_the_budget():
    """What succeeds pays for retries, silently too."""
    with VirtualClock():
        budget = abate.Budget(ratio=1.0, reserve=0.0, window=10.0)
        VerdictRules(PLAIN, budget=budget).raised(SilentSuccess(), 1)
        assert budget.balance() == 1.0


def test_the_slow_rate_never_shortens_a_delay():
    """A hint counts for those whom the budget refuses as well."""
    verdict_rules = VerdictRules(PLAIN, budget=abate.Budget(ratio=0.0, reserve=0.0), slow=1.0)
    assert verdict_rules.raised(Unavailable(200), 1).verdict.after >= 200


@pytest.mark.parametrize(
    ("status", "failed"), [(500, "answered"), (502, "answered"), (503, True), (429, True), (504, True)]
)
def test_an_error_that_a_server_answered_with_is_told_apart(status, failed):
    """It may be this message's own fault, which an overload is not."""
    error = type("Answer", (Exception,), {"status_code": status})()
    assert VerdictRules(backoff=Backoff(1.0)).raised(error, receives=1).failed == failed
    assert VerdictRules(backoff=Backoff(1.0), max_receives=1).raised(error, receives=1).failed == failed
    assert VerdictRules(backoff=Backoff(1.0)).raised(ConnectionError(), receives=1).failed is True
