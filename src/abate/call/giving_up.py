"""How a call ends without success: what outer policies learn from it, and what it tells its user to do."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from abate.call.layers import NO_LAYER, GiveUp, given_up_on, given_up_within, retry_serials
from abate.decide.responses import FINAL_REASONS
from abate.errors import LayeredRetryWarning
from abate.redact import one_line

if TYPE_CHECKING:
    from abate.admit.budget import Budget
    from abate.decide.outcome import Outcome

MAX_WARNINGS = 1000
"""The most pairs of policies that are warned about."""
_warned: set[tuple[str, str]] = set()


def inner_give_up(outcome: Outcome | Exception, since: int) -> GiveUp | None:
    """Return the mark of a policy that has retried and given up since the call with serial `since`, or None."""
    if isinstance(outcome, Exception):
        return given_up_within(outcome, since)
    return given_up_on(outcome.result) if outcome.error is None else given_up_within(outcome.error, since)


def warn_about_layers(outer: str, inner: str) -> None:
    """Warn once about two policies, one around the other, which would multiply each other's attempts."""
    if (outer, inner) not in _warned and len(_warned) < MAX_WARNINGS:
        _warned.add((outer, inner))
        around, within = (one_line(name) or "a policy" for name in (outer, inner))
        warnings.warn(
            f"{around} wraps {within}: only {within} retries, so that retries don't multiply",
            LayeredRetryWarning,
            stacklevel=3,
        )


def layer_serial(reason: str, inner: GiveUp | None, own: int) -> int:
    """Return the serial by which outer layers know that this work must not be repeated.

    `inner` is the mark of a policy inside this call, and `own` the call's number; `NO_LAYER` if it made no retry.
    """
    if reason == "fatal":
        return NO_LAYER  # this layer did not retry, so an outer one may
    if inner is not None:
        return inner.serial
    if own != NO_LAYER:
        return own
    if reason not in FINAL_REASONS:
        return NO_LAYER
    retry_serials.last = next(retry_serials.numbers)
    return retry_serials.last


def budget_advice(budget: Budget) -> str:
    """Say what to do about retries that the budget refuses."""
    funds = "requests" if budget.funded_by == "request" else "successes"
    return (
        f"the retries of all calls together are limited to {100 * budget.ratio:.3g} % of the {funds} and"
        f" {budget.reserve:g} per second: for batch jobs use Budget.unlimited() or a larger reserve"
    )
