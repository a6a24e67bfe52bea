"""Events as lines of the standard library's logging."""

from __future__ import annotations

import logging
from typing import ClassVar

from abate import events
from abate.events import Event


class LoggingSink:
    """Logs each event on one logger, with its facts as ``extra`` under the name ``abate``.

    >>> from abate import observe
    >>> sink = observe.install(LoggingSink())
    >>> observe.remove(sink)
    """

    LEVELS: ClassVar[dict[type[Event], int]] = {
        events.FirstFailure: logging.DEBUG,
        events.Retry: logging.INFO,
        events.Recovered: logging.INFO,
        events.BudgetRefused: logging.WARNING,
        events.GaveUp: logging.WARNING,
        events.LayeredRetry: logging.WARNING,
        events.ShelterChanged: logging.WARNING,
        events.Worked: logging.DEBUG,
    }
    LOGGED_AT_HOME = (
        events.Buried,
        events.FuseBlown,
        events.LeaseLost,
        events.SourceFailed,
        events.StoreDegraded,
        events.WorkerCrashed,
    )
    """What controllers, consumers and stores log by themselves, whether there is a sink or not."""

    def __init__(self, logger: logging.Logger | str = "abate") -> None:
        self.logger = logging.getLogger(logger) if isinstance(logger, str) else logger

    def __call__(self, event: Event) -> None:
        if isinstance(event, self.LOGGED_AT_HOME):
            return
        level = self.LEVELS.get(type(event), logging.INFO)
        if self.logger.isEnabledFor(level):
            self.logger.log(level, "%s", _Line(event), extra={"abate": event})


class _Line:
    """The text of an event, made only if somebody reads it."""

    __slots__ = ("event",)

    def __init__(self, event: Event) -> None:
        self.event = event

    def __str__(self) -> str:
        match self.event:
            case events.FirstFailure(policy, reason, error):
                return f"{policy}: first failure ({reason}): {error!r}"
            case events.Retry(policy, attempt, delay, reason, hint, error):
                asked = "" if hint is None else f", asked for {hint:.3g} s"
                return f"{policy}: attempt {attempt} failed ({reason}{asked}), next in {delay:.3g} s: {error!r}"
            case events.BudgetRefused(policy, gate, attempt):
                return f"{policy}: {gate} refused attempt {attempt + 1}"
            case events.GaveUp(policy, reason, attempts, waited, error):
                return f"{policy}: gave up after {attempts} attempts and {waited:.3g} s ({reason}): {error!r}"
            case events.Recovered(policy, attempts, waited):
                return f"{policy}: succeeded on attempt {attempts} after {waited:.3g} s of waiting"
            case events.LayeredRetry(policy, inner):
                return f"{policy}: did not retry what {inner} had given up on"
            case events.ShelterChanged(policy, shelter, state, waiters, limit):
                return f"{policy}: {shelter} is {state}, with {waiters} waiting and at most {limit:.3g} in flight"
            case events.Worked(policy, key, ending, seconds, receives, error):
                failed = "" if error is None else f": {error!r}"
                return f"{policy}: {key!r} is {ending} after {seconds:.3g} s (handed out {receives} times){failed}"
            case other:
                return repr(other)
