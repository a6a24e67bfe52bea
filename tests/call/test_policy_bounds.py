"""Bounds on attempts by time and by kind; results of blocks; notes on refused retries."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate import Backoff, Budget, Policy, RetryExhausted, on_result
from abate.call import Call, Stop
from abate.testing import Script, VirtualClock


def policy(**settings):
    return Policy(**{"on": OSError, "name": "orders", "backoff": [1.0], "budget": Budget.unlimited(), **settings})


@pytest.fixture(autouse=True)
def clock():
    with VirtualClock() as clock:
        yield clock


def test_attempts_may_be_bounded_by_time_only(way, clock):
    """With `max_attempts=None` a call retries until its timeout, then raises the last error."""
    script = Script(*[ConnectionError() for _ in range(50)])
    with pytest.raises(ConnectionError) as caught:
        way(policy(max_attempts=None, timeout=20.0), script)
    assert abate.report(caught.value).reason == "deadline"
    assert len(script.calls) == 20


def test_unbounded_attempts_are_refused():
    """`max_attempts=None` needs a timeout, and a backoff that never returns zero."""
    with pytest.raises(ValueError, match="max_attempts=None is bounded by time only: give a timeout"):
        policy(max_attempts=None)
    for backoff in ([1.0, 0.0], Backoff(0.0)):
        with pytest.raises(ValueError, match="needs a backoff that waits"):
            policy(max_attempts=None, timeout=5.0, backoff=backoff)
    assert policy(max_attempts=None, timeout=5.0, backoff=lambda retry: 1.0).max_attempts is None


def test_the_worst_case_of_a_bound_by_time():
    """The worst case of calls bounded by time gives no number of attempts."""
    worst = policy(max_attempts=None, timeout=30.0, budget=Budget()).describe()
    assert (worst.attempts, worst.added_latency, worst.amplification) == (None, 30.0, 1.2)
    assert str(worst).startswith("as many attempts as there is time for; at most 30 s of waiting")


def test_more_attempts_for_overload_than_for_blips(way):
    """Failures count against the bound of their kind and against `max_attempts`."""
    orders = policy(max_attempts=5, max_attempts_by_kind={"blip": 2})
    for failures, made in (("bb", 2), ("ooooo", 5), ("obob", 4), ("oobo", 5), ("ooooo", 5)):
        script = Script(*[TimeoutError() if kind == "o" else ConnectionError() for kind in failures], *["fine"])
        if (made == len(failures) and made < 5) or made == 5 == len(failures):
            with pytest.raises(OSError) as caught:
                way(orders, script)
            assert abate.report(caught.value).reason == "attempts"
        else:
            assert way(orders, script) == "fine"
        assert len(script.calls) == made


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (3, "max_attempts_by_kind must be a mapping of blip and overload to numbers of attempts, not 3"),
        ({"fatal": 3}, "not of 'fatal'"),
        ({"blip": 0}, r"max_attempts_by_kind\['blip'\] must be a whole number of at least 1, not 0"),
    ],
)
def test_bounds_by_kind_are_checked(bounds, message):
    """The error names the value and what was expected."""
    with pytest.raises((TypeError, ValueError), match=message):
        policy(max_attempts_by_kind=bounds)


def test_bounds_by_kind_are_part_of_the_policys_value():
    """`replace` and pickles keep them, and they are read-only."""
    orders = policy(max_attempts_by_kind={"blip": 2, "overload": 4})
    assert pickle.loads(pickle.dumps(orders)) == orders.replace() == orders
    with pytest.raises(TypeError):
        orders.max_attempts_by_kind["blip"] = 9


@given(
    kinds=st.lists(st.sampled_from(["blip", "overload"]), min_size=1, max_size=12),
    max_attempts=st.integers(1, 8),
    bounds=st.dictionaries(st.sampled_from(["blip", "overload"]), st.integers(1, 8)),
    factor=st.sampled_from([1.0, 2.0]),
)
def test_no_call_exceeds_the_worst_case(kinds, max_attempts, bounds, factor):
    """No order of failures exceeds the described attempts and waiting time."""
    orders = policy(
        on=lambda error: abate.Ruling(True, error.args[0]),
        max_attempts=max_attempts,
        max_attempts_by_kind=bounds,
        backoff=Backoff(0.5, 4.0, factor, "none"),
    )
    worst, call, now = orders.describe(), Call(orders), 0.0
    counts = dict.fromkeys(("blip", "overload"), 0)
    for kind in kinds:
        action = call.failed(ConnectionError(kind), now)
        counts[kind] += 1
        over = sum(counts.values()) >= max_attempts or counts[kind] >= bounds.get(kind, 99)
        assert isinstance(action, Stop) == over
        if over:
            break
        now = action.until
    assert sum(counts.values()) <= worst.attempts
    assert now <= worst.added_latency + 1e-9


def test_the_worst_case_by_kind():
    """Retries that only one kind allows are charged with that kind's delays."""
    backoff = Backoff(0.25, 8.0, 2.0, "none")
    made = policy(max_attempts=6, backoff=backoff, max_attempts_by_kind={"blip": 3, "overload": 3})
    assert made.describe().attempts == 5
    # 1, 2, 4, 8 after overloads and 0.25, 0.5, 1, 2 after blips: the last two are overloads
    assert made.describe().added_latency == 0.25 + 0.5 + 4.0 + 8.0
    assert policy(max_attempts=20_001, max_attempts_by_kind={"blip": 3}).describe().added_latency == 20_000.0
    both = {"blip": 2, "overload": 2}
    assert policy(max_attempts=None, timeout=9.0, max_attempts_by_kind=both).describe().attempts == 3


# -- results of blocks


def retrying_none(*answers, **settings):
    """Return a script and a policy that retries the result None."""
    return Script(*answers), policy(on=(OSError, on_result(lambda answer: answer is None)), **settings)


def run_block(block, orders, script):
    """Run a block that sets the result of each attempt; return the results and attempt numbers."""
    seen = []

    async def in_task():
        async for attempt in orders.attempts():
            with attempt:
                attempt.result = script()
                seen.append((attempt.result, attempt.number))

    if block.loop == "threads":
        for attempt in orders.attempts():
            with attempt:
                attempt.result = script()
                seen.append((attempt.result, attempt.number))
    else:
        block.run(in_task)
    return seen


def test_rules_judge_the_result_of_a_block(block):
    """`attempt.result` is judged as the result of a function is."""
    script, orders = retrying_none(None, ConnectionError(), 3)
    assert run_block(block, orders, script) == [(None, 1), (3, 3)]


def test_the_loop_ends_when_attempts_run_out(block):
    """A rejected last result ends the loop, and raises with `raises="exhausted"` only."""
    script, orders = retrying_none(None, None)
    assert run_block(block, orders.replace(max_attempts=2), script) == [(None, 1), (None, 2)]
    script, orders = retrying_none(None, None, raises="exhausted")
    with pytest.raises(RetryExhausted) as caught:
        run_block(block, orders.replace(max_attempts=2), script)
    assert caught.value.report.attempts == 2


def test_a_gate_that_refuses_the_retry_of_a_result_ends_the_loop(block, scripted_gate):
    """The loop ends without an error and keeps the last result."""
    script, orders = retrying_none(None, None, gate=scripted_gate(True, False))
    assert run_block(block, orders, script) == [(None, 1)]


def test_a_rule_that_fails_ends_the_block(block):
    """The block raises the rule's error."""
    script, orders = retrying_none(None)
    with pytest.raises(ZeroDivisionError):
        run_block(block, orders.replace(on=on_result(lambda answer: 1 / 0)), script)


def test_setting_the_result_of_a_dropped_loop_fails():
    """An attempt whose loop is gone raises a RuntimeError."""
    orders = policy(on=on_result(lambda answer: True))
    attempt = next(orders.attempts())
    with pytest.raises(RuntimeError), attempt:
        attempt.result = 1


# -- notes on refused retries


def test_the_note_of_a_budget_refusal_gives_advice(way):
    """The note names the budget's limits and the settings to change; other notes do not."""
    with pytest.raises(ConnectionError) as caught:
        way(policy(budget=Budget(ratio=0.25, reserve=0)), Script(ConnectionError()))
    assert caught.value.__notes__ == [
        "abate: orders gave up after 1 attempt: budget (the retries of all calls together are limited to 25 % of the"
        " successes and 0 per second: for batch jobs use Budget.unlimited() or a larger reserve)"
    ]
    copied = pickle.loads(pickle.dumps(caught.value))
    with pytest.raises(ConnectionError):
        policy(max_attempts=1).call(Script(copied))
    assert copied.__notes__ == ["abate: orders gave up after 1 attempt: attempts"]


def test_the_note_of_a_gate_refusal_gives_no_advice(way, scripted_gate):
    """The note of a retry that a gate refused names no budget limits."""
    with pytest.raises(ConnectionError) as caught:
        way(policy(gate=scripted_gate(True, False)), Script(ConnectionError()))
    assert caught.value.__notes__ == ["abate: orders gave up after 1 attempt and 1 s of waiting: budget"]
