"""Functions that are called before a retry."""

import textwrap

import pytest

from tests.migrate.rewriting import reason, rewritten, run

TENACITY = """\
import tenacity

seen = []


def note(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    seen.append((state.attempt_number, repr(error), state.next_action.sleep, state.args, f"{state.upcoming_sleep:.1f}"))


@tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_fixed(2), before_sleep=note)
def work(order):
    return step()


def target():
    try:
        work(42)
    finally:
        return list(seen)
"""

BACKOFF = """\
import backoff

seen = []


def note(details: dict) -> None:
    seen.append((details["tries"], repr(details["exception"]), details["wait"], details['args']))


@backoff.on_exception(backoff.constant, ValueError, interval=2, jitter=None, max_tries=3, on_backoff=note)
def work(order):
    return step()


def target():
    try:
        work(42)
    finally:
        return list(seen)
"""


@pytest.mark.parametrize("code", [TENACITY, BACKOFF], ids=["tenacity", "backoff"])
def test_a_callback_sees_the_same(code):
    """Attempts, errors, waits and arguments."""
    new = rewritten(code)
    assert "note(state: abate.RetryContext)" in new or "note(details: abate.RetryContext)" in new
    before = run(code, [ValueError("always")])
    assert run(new, [ValueError("always")]) == before
    assert len(before.end[1]) == 2


def test_a_lambda_is_rewritten_within_the_policy():
    """With its parameter's own name."""
    code = TENACITY.replace("before_sleep=note", "before_sleep=lambda s: seen.append(s.attempt_number)")
    code = code.replace(textwrap.dedent(code[code.index("def note") : code.index("@tenacity")]), "")
    new = rewritten(code)
    assert "before_retry=lambda s: seen.append(s.attempt)" in new
    assert run(new, [ValueError("always")]) == run(code, [ValueError("always")])


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("state.args", "state.fn", "state.fn on line 8"),
        ("state.args", "state.outcome", "state.outcome on line 8"),
        ("before_sleep=note", "before_sleep=print", "not a function of this file"),
        ("seen = []", "seen = []\nalso = lambda: note(None)", "also used on line 4"),
        ("def note(state: tenacity.RetryCallState)", "def note(state, more=None)", "not a function of one argument"),
    ],
)
def test_callbacks_that_cannot_be_rewritten_leave_the_site(old, new, why):
    """The reason names the line."""
    assert why in reason(TENACITY.replace(old, new))
