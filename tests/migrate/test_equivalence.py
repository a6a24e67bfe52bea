"""Migrated code behaves as the code that it was made from: attempts, waits, results and errors."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.migrate.rewriting import migrated, rewritten, run

HEAD = "import tenacity\nimport backoff\nimport stamina\nimport retrying\n\n\n"
ALWAYS = [ValueError("always")]
THEN_FINE = [ValueError("once"), KeyError("twice"), "fine"]
NOTHING = [None, None, "there"]


def target(decorator):
    return f"{HEAD}@{decorator}\ndef target():\n    return step()\n"


def check(decorator, outcomes, waits=True):
    """Compare the runs of both versions, and say that a second migration changes nothing."""
    code = target(decorator)
    new = rewritten(code)
    before, after = run(code, outcomes), run(new, outcomes)
    assert (after.attempts, after.end) == (before.attempts, before.end), new
    if waits:
        assert after.waits == pytest.approx(before.waits), new
    again = migrated(new)
    assert again is None or again.after == new


# -- tenacity, at random

NUMBERS = st.sampled_from(["1", "2", "0.5", "3", "datetime.timedelta(seconds=2)"])
ERRORS = st.sampled_from(["ValueError", "(ValueError, KeyError)", "LookupError", "Exception"])
STOPS = st.builds("tenacity.stop_after_attempt({})".format, st.integers(1, 7))
STOPS |= st.builds("({} | {})".format, STOPS, STOPS) | st.builds("tenacity.stop_any({}, {})".format, STOPS, STOPS)
STEPS = st.builds("tenacity.wait_fixed({})".format, NUMBERS)
WAITS = st.one_of(
    STEPS,
    st.just("tenacity.wait_none()"),
    st.builds(
        "tenacity.wait_incrementing(start={}, increment={}, max={})".format, NUMBERS, NUMBERS, st.sampled_from("59")
    ),
    st.builds("tenacity.wait_incrementing({}, {})".format, NUMBERS, NUMBERS),
    st.builds("tenacity.wait_exponential(multiplier={})".format, st.sampled_from(["1", "0.25", "3"])),
    st.builds(
        "tenacity.wait_exponential(multiplier={}, min={}, max={}, exp_base={})".format,
        st.sampled_from(["1", "0.25", "3"]),
        st.sampled_from(["0", "1", "4"]),
        st.sampled_from(["1", "5", "60"]),
        st.sampled_from(["2", "3", "1.5"]),
    ),
    st.builds("tenacity.wait_chain({}, {}, {})".format, STEPS, STEPS, STEPS),
    st.builds("({} + {})".format, STEPS, STEPS),
    st.builds("tenacity.wait_combine({}, {})".format, STEPS, STEPS),
    st.just("tenacity.wait_chain(*[tenacity.wait_fixed(1) for _ in range(2)] + [tenacity.wait_fixed(3)])"),
)
FOR_ERRORS = st.one_of(
    st.builds("tenacity.retry_if_exception_type({})".format, ERRORS),
    st.builds("tenacity.retry_if_not_exception_type({})".format, ERRORS),
    st.just("tenacity.retry_if_exception(lambda error: 'once' in str(error))"),
    st.just("tenacity.retry_if_exception_message(message='always')"),
    st.just("tenacity.retry_if_exception_message(match='al')"),
)
FOR_RESULTS = st.one_of(
    st.just("tenacity.retry_if_result(lambda result: result is None)"),
    st.just("tenacity.retry_if_not_result(bool)"),
    st.just("tenacity.retry_if_not_exception_message(match='al')"),
    st.builds("tenacity.retry_unless_exception_type({})".format, ERRORS),
)
CONDITIONS = FOR_ERRORS | FOR_RESULTS
CONDITIONS |= st.builds("({} | {})".format, CONDITIONS, CONDITIONS) | st.builds(
    "tenacity.retry_any({}, {})".format, CONDITIONS, CONDITIONS
)
CONDITIONS |= st.builds("({} & {})".format, FOR_ERRORS, FOR_ERRORS) | st.builds(
    "tenacity.retry_all({}, {})".format, FOR_ERRORS, FOR_ERRORS
)
OUTCOMES = st.lists(
    st.sampled_from([ValueError("once"), ValueError("always"), KeyError("key"), OSError("os"), None, "fine"]),
    min_size=1,
)


@settings(max_examples=40)
@given(stop=STOPS, wait=WAITS, condition=CONDITIONS, reraise=st.sampled_from(["", ", reraise=True"]), outcomes=OUTCOMES)
def test_tenacity_at_random(stop, wait, condition, reraise, outcomes):
    """Whatever a site of tenacity says, it is left as it is, or does the same afterwards."""
    code = "import datetime\nimport re\n" + target(
        f"tenacity.retry(stop={stop}, wait={wait}, retry={condition}{reraise})"
    )
    result = migrated(code)
    assert result.changed == result.sites[0].mapped
    before, after = run(code, outcomes), run(result.after, outcomes)
    assert (after.attempts, after.end) == (before.attempts, before.end), result.after
    assert after.waits == pytest.approx(before.waits), result.after
    again = migrated(result.after)
    assert again.after == result.after if result.sites[0].reason else again is None


@pytest.mark.parametrize(
    "decorator",
    [
        "tenacity.retry(stop=tenacity.stop_after_attempt(4))",
        "tenacity.retry(stop=tenacity.stop_after_attempt(4), wait=tenacity.wait_fixed(1), reraise=True)",
        "tenacity.retry(tenacity.nap.sleep, tenacity.stop_after_attempt(0))",
        "backoff.on_exception(backoff.expo, ValueError, max_tries=4, jitter=None)",
        "backoff.on_exception(backoff.expo, (ValueError, KeyError), max_tries=3, max_value=1, jitter=None)",
        "backoff.on_exception(backoff.expo, Exception, max_tries=4, base=3, factor=0.5, jitter=None)",
        "backoff.on_exception(backoff.constant, Exception, max_tries=4, interval=2, jitter=None)",
        "backoff.on_exception(backoff.fibo, Exception, max_tries=8, max_value=5, jitter=None)",
        "backoff.on_exception(backoff.constant, Exception, max_tries=4, jitter=None, giveup=lambda e: 'tw' in str(e))",
        "backoff.on_predicate(backoff.constant, max_tries=3, jitter=None)",
        "backoff.on_predicate(backoff.constant, lambda result: result is None, max_tries=2, jitter=None)",
        "stamina.retry(on=ValueError, attempts=4, wait_jitter=0, timeout=None)",
        "stamina.retry(on=(ValueError, KeyError), wait_initial=1, wait_max=2, wait_jitter=0, timeout=None)",
        "stamina.retry(on=lambda error: 'once' in str(error), wait_jitter=0, timeout=None)",
        "retrying.retry(stop_max_attempt_number=3)",
        "retrying.retry(stop_max_attempt_number=4, wait_fixed=2000)",
        "retrying.retry(stop_max_attempt_number=5, wait_exponential_multiplier=1000, wait_exponential_max=10000)",
        "retrying.retry(stop_max_attempt_number=5, wait_incrementing_start=500, wait_incrementing_increment=250)",
        "retrying.retry(stop_max_attempt_number=3, retry_on_exception=(ValueError,))",
        "retrying.retry(stop_max_attempt_number=3, retry_on_exception=lambda error: isinstance(error, ValueError))",
    ],
)
@pytest.mark.parametrize(
    "outcomes", [ALWAYS, THEN_FINE, NOTHING, ["fine"]], ids=["always", "then fine", "nothing", "fine"]
)
def test_deterministic_sites_do_the_same(decorator, outcomes):
    """The same attempts, the same waits, the same end."""
    check(decorator, outcomes)
