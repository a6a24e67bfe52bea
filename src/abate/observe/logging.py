"""Write events to the standard library's logging."""

from __future__ import annotations

import logging
from collections.abc import Callable

from abate import events
from abate.clock import Clock
from abate.events import Event
from abate.observe.event_text import Level, event_type, facts, level, sentence
from abate.observe.log_sampler import LINE_KINDS, LogLine
from abate.observe.log_writer import LogWriter

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
LOWEST_LEVELS: dict[type[Event], Level] = {
    events.FirstFailure: LINE_KINDS["failing"][0],
    events.Retry: LINE_KINDS["retry"][0],
    events.Recovered: LINE_KINDS["recovered"][0],
}
"""The events of a call that goes on, which are below WARNING with ``every=True`` and without."""


class LoggingSink:
    """Logs events on one logger, with their fields as a dictionary in ``extra``, under the name ``abate``.

    The first events of a kind are a line each; the following ones are counted and summarized once in a `window`, see
    `abate.observe.log_sampler`. With ``every=True`` each event is a line.

    The record does not contain the event itself, which would pass an error of any size, and the frames it was raised
    in, to handlers that keep their records.

    >>> from abate import observe
    >>> sink = observe.install(LoggingSink())
    >>> observe.remove(sink)
    """

    LOGGED_ELSEWHERE = (
        events.Buried,
        events.LeaseLost,
        events.SourceFailed,
        events.StoreDegraded,
        events.WorkerCrashed,
    )
    """Events that controllers, consumers and stores log themselves, with or without a sink; so do consumers with a
    circuit breaker that opens."""

    inline = True
    """Runs in the thread of the call, as any logging does."""
    writes_logs = True
    """Replaces the logging without a sink."""

    def __init__(
        self,
        logger: logging.Logger | str = "abate",
        every: bool = False,
        burst: int = 3,
        window: float = 60.0,
        *,
        clock: Clock | Callable[[], float] | None = None,
    ) -> None:
        self.logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._take = self._write_event if every else LogWriter(self._write, burst, window, clock)

    def __call__(self, event: Event) -> None:
        if isinstance(event, self.LOGGED_ELSEWHERE) or (isinstance(event, events.BreakerOpened) and not event.gate):
            return
        lowest = LOWEST_LEVELS.get(type(event))
        # events that are off by level are not counted either
        if lowest is None or self.logger.isEnabledFor(LEVELS[lowest]):
            self._take(event)

    def _write_event(self, event: Event) -> None:
        number = LEVELS[level(event)]
        if self.logger.isEnabledFor(number):
            self.logger.log(
                number, "%s", sentence(event), extra={"abate": {"event": event_type(event), **facts(event)}}
            )

    def _write(self, line: LogLine) -> None:
        number = LEVELS[line.level]
        if self.logger.isEnabledFor(number):
            self.logger.log(number, "%s", line.text, extra={"abate": {"event": line.kind, **line.facts}})
