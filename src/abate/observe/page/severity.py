"""Rate how bad a policy or queue is, for a person on call: 0 is fine, 1 is worth a look, 2 is trouble.

Each rating comes with its reasons. Counts are those of the last minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from abate.events import FAILED_ENDINGS

Severity: TypeAlias = tuple[int, tuple[str, ...]]

MANY_RETRIES = 0.1
"""Retries per call that are worth a look."""
MANY_GIVEN_UP = 0.05
"""The share of calls given up on that is trouble."""
LOW = 0.25
"""The share of the budget's window that is low."""
OLD, TOO_OLD = 10.0, 60.0
"""Seconds that the oldest key has been ready."""
OWN = ("fatal", "unsafe", "cancelled", "layer")
"""Reasons that say nothing about the dependency: these calls must not be retried, or not by this policy."""


def policy_severity(
    *,
    shelter: str | None,
    share: float,
    calls: float,
    retried: Mapping[str, int],
    given_up: Mapping[str, int],
    refused: Mapping[str, int],
    wrong: str | None = None,
) -> Severity:
    """Rate a policy.

    >>> policy_severity(shelter="storm", share=0.9, calls=100, retried={"blip": 3}, given_up={}, refused={})
    (2, ('sheltering',))
    >>> policy_severity(shelter=None, share=1.0, calls=100, retried={"blip": 3}, given_up={"fatal": 9}, refused={})
    (0, ())
    """
    bad, odd = [], []
    if shelter in ("storm", "probing"):
        bad.append("sheltering")
    elif shelter == "recovering":
        odd.append("recovering")
    if refused:
        bad.append(f"{' and '.join(sorted(refused))} refused {sum(refused.values())} retries")
    elif share < LOW:
        odd.append("budget is low")
    if wrong is not None:
        odd.append(wrong)
    lost = sum(count for reason, count in given_up.items() if reason not in OWN)
    if lost:
        (bad if lost >= MANY_GIVEN_UP * calls else odd).append(f"gave up on {lost} {_plural('call', lost)}")
    if sum(retried.values()) > MANY_RETRIES * max(calls, 1.0):
        odd.append("many retries")
    return _worst(bad, odd)


def queue_severity(
    *,
    live: bool,
    ready: int | None,
    age: float | None,
    failing: str | None,
    endings: Mapping[str, int],
    wrong: str | None = None,
) -> Severity:
    """Rate a controller or consumer.

    >>> queue_severity(live=True, ready=3, age=75.0, failing=None, endings={"done": 10, "retry": 1})
    (2, ('the oldest waits for 75 s', '1 failed'))
    """
    bad, odd = [], []
    if failing is not None:
        bad.append("its source fails")
    if wrong is not None:
        odd.append(wrong)
    if not live and ready:
        odd.append("no worker runs")
    elif age is not None and age > OLD:
        (bad if age > TOO_OLD else odd).append(f"the oldest waits for {age:.0f} s")
    buried = endings.get("buried", 0)
    if buried:
        bad.append(f"{buried} buried")
    failed = sum(endings.get(ending, 0) for ending in FAILED_ENDINGS) - buried
    if failed:
        most = 2 * (failed + buried) > sum(endings.values())
        (bad if most else odd).append("most fail" if most else f"{failed} failed")
    return _worst(bad, odd)


def _worst(bad: list[str], odd: list[str]) -> Severity:
    return (2 if bad else 1 if odd else 0), (*bad, *odd)


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
