"""Whether: is this outcome worth another attempt, and is it safe to repeat?

A rule is a function from an `Outcome` to a `Ruling`, or to None where it has nothing to say. The first rule that
answers decides; where none answers, an error is fatal and a result is good.
"""

from abate.decide import http
from abate.decide.outcome import Outcome, Ruling
from abate.decide.rules import Rule, Rules, on_error, on_result, widen

__all__ = ["Outcome", "Rule", "Rules", "Ruling", "http", "on_error", "on_result", "widen"]
