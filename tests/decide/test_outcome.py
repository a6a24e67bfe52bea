"""Outcomes and rulings: plain values, checked where they are made."""

import pytest

from abate.decide import Outcome, Ruling
from abate.decide.outcome import BLIP, FATAL, OVERLOAD, UNREACHED


def test_an_outcome_is_an_error_or_else_a_result():
    """Both have a place, and the time since the first failure too."""
    error = KeyError("gone")
    assert (Outcome(error=error).error, Outcome(error=error).result) == (error, None)
    assert (Outcome(result=42).error, Outcome(result=42).result) == (None, 42)
    assert (Outcome().elapsed, Outcome(elapsed=3.5).elapsed) == (0.0, 3.5)


@pytest.mark.parametrize(
    ("ruling", "retry", "reason", "hint", "reached", "overloaded"),
    [
        (Ruling.blip(), True, "blip", None, True, False),
        (Ruling.blip(2.5, reached=False), True, "blip", 2.5, False, False),
        (Ruling.overload(), True, "overload", None, True, True),
        (Ruling.overload(hint=7, reached=False), True, "overload", 7, False, True),
        (Ruling.fatal(), False, "fatal", None, True, False),
        (Ruling.fatal(reached=False), False, "fatal", None, False, False),
        (BLIP, True, "blip", None, True, False),
        (OVERLOAD, True, "overload", None, True, True),
        (FATAL, False, "fatal", None, True, False),
        (UNREACHED, True, "blip", None, False, False),
    ],
)
def test_the_rulings_by_name(ruling, retry, reason, hint, reached, overloaded):
    """Each says whether to retry, why, after what wait, and whether the server may have seen the request."""
    assert ruling == Ruling(retry, reason, hint, reached)
    assert (ruling.retry, ruling.reason, ruling.hint, ruling.reached) == (retry, reason, hint, reached)
    assert ruling.safe is None
    assert ruling.overloaded is overloaded


@pytest.mark.parametrize(
    ("hint", "error"), [(-1, ValueError), (float("nan"), ValueError), ("soon", TypeError), (True, TypeError)]
)
def test_a_bad_hint_is_refused(hint, error):
    """The error names the value and what was expected."""
    with pytest.raises(error, match=f"^hint must be a number at least 0, not {hint!r}$"):
        Ruling.blip(hint)


@pytest.mark.parametrize("hint", [0, 0.0, 300.0, float("inf"), None])
def test_valid_hints(hint):
    """None, zero, a finite number or infinity."""
    assert Ruling.overload(hint).hint == hint


def test_a_ruling_is_frozen():
    """Calls share rulings, so they are immutable."""
    with pytest.raises(AttributeError, match="is frozen"):
        FATAL.retry = True
