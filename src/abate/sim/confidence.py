"""How sure a tuning is of what it found, in a sentence: for the terminal and for the page alike."""

from __future__ import annotations

from abate.sim.study import figure
from abate.sim.tune import FEWEST, Tuning


def confidence(tuning: Tuning) -> str:
    """How sure it is that the best one is the best, or why there is none to recommend."""
    best, limit = tuning.best, f"{tuning.limit:g}"
    if best is None:
        return f"nothing that was tried keeps the limit of {limit}"
    if not tuning.recovers:
        return f"nothing that was tried within the limit of {limit} recovers, so there is nothing to recommend"
    doubt = "" if best.fits else f"; with fresh seeds it exceeds the limit of {limit}"
    if tuning.runner_up is None:
        return f"nothing else that was tried keeps the limit of {limit}{doubt}"
    mean, low, high = map(figure, tuning.lead)
    told = "sure" if tuning.sure else f"not sure{_reason(tuning)}"
    return (
        f"{told}: it recovers {mean} s sooner than the runner-up (95 %: {low} to {high}),"
        f" and wins with {tuning.wins:.0%} of {len(best.seen)} seeds{doubt}"
    )


def _reason(tuning: Tuning) -> str:
    """Why a lead that looks like one is none."""
    if not tuning.finished:
        return ", as it was broken off"
    return f", as it takes {FEWEST} seeds at least" if tuning.lead[1] > 0.0 else ""
