"""Decides whether an outcome is worth another attempt, and whether it is safe to repeat.

A rule is a function from an `Outcome` to a `Ruling`, or to None if it does not decide. The first ruling counts; without
one, an error is fatal and a result is good.
"""

from abate.decide import http
from abate.decide.outcome import Outcome, Ruling
from abate.decide.rules import Rule, Rules, on_error, on_result, widen

__all__ = ["Outcome", "Rule", "Rules", "Ruling", "http", "on_error", "on_result", "widen"]


def __dir__() -> list[str]:
    return sorted(__all__)
