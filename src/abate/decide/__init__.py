"""Decides whether an outcome is worth another attempt, and whether it is safe to repeat.

A rule is a function from an `Outcome` to a `Ruling`, or to None if it does not decide. The first ruling counts; without
one, an error is fatal and a result is good.
"""

import importlib
from typing import TYPE_CHECKING, Any

from abate.decide.outcome import Outcome, Ruling
from abate.decide.rules import Rule, Rules, on_error, on_result, widen

if TYPE_CHECKING:
    from abate.decide import http

__all__ = ["Outcome", "Rule", "Rules", "Ruling", "http", "on_error", "on_result", "widen"]


if not TYPE_CHECKING:  # a type checker that sees `__getattr__` takes every name for Any

    def __getattr__(name: str) -> Any:
        """Import the rules for HTTP on first use."""
        if name == "http":
            return importlib.import_module("abate.decide.http")
        raise AttributeError(f"module 'abate.decide' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
