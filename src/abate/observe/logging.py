"""Events as lines of the standard library's logging."""

from __future__ import annotations

import logging
from collections.abc import Callable

from abate import events
from abate.clock import Clock
from abate.events import Event
from abate.observe.lines import Lines
from abate.observe.transitions import Line
from abate.observe.words import facts, level, name, sentence

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class LoggingSink:
    """Logs what is worth a line on one logger, with its facts as a dictionary in ``extra``, under the name ``abate``.

    The first events of a kind are a line each, those that follow are counted and told once in a `window`; see
    `abate.observe.transitions`. With ``every=True`` each event is a line.

    The event itself does not come along: it would carry an error of any size, and the frames that it was raised in,
    to handlers that keep their records.

    >>> from abate import observe
    >>> sink = observe.install(LoggingSink())
    >>> observe.remove(sink)
    """

    LOGGED_AT_HOME = (
        events.Buried,
        events.FuseBlown,
        events.LeaseLost,
        events.SourceFailed,
        events.StoreDegraded,
        events.WorkerCrashed,
    )
    """What controllers, consumers and stores log by themselves, whether there is a sink or not."""

    inline = True
    """Called by the calls themselves, as any other logging is."""

    def __init__(
        self,
        logger: logging.Logger | str = "abate",
        every: bool = False,
        burst: int = 3,
        window: float = 60.0,
        clock: Clock | Callable[[], float] | None = None,
    ) -> None:
        self.logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._take = self._write_event if every else Lines(self._write, burst, window, clock)

    def __call__(self, event: Event) -> None:
        if not isinstance(event, self.LOGGED_AT_HOME):
            self._take(event)

    def _write_event(self, event: Event) -> None:
        number = LEVELS[level(event)]
        if self.logger.isEnabledFor(number):
            self.logger.log(number, "%s", sentence(event), extra={"abate": {"event": name(event), **facts(event)}})

    def _write(self, line: Line) -> None:
        number = LEVELS[line.level]
        if self.logger.isEnabledFor(number):
            self.logger.log(number, "%s", line.text, extra={"abate": {"event": line.kind, **line.facts}})
