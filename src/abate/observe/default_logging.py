"""Logging without a sink: what happens to calls goes to the logger ``abate``, unless it is switched off.

It writes what a `LoggingSink` writes, in the same bounds: retries at INFO; calls that were given up on, storms and
their end at WARNING; first failures at DEBUG. `abate.event_sinks` imports this module when there is something to write.

* Levels, handlers, filters and propagation are those of the application: abate sets none. Without any, Python prints
  warnings to stderr.
* While a sink with ``writes_logs = True`` is installed, as `LoggingSink` and `StructlogSink` have, nothing is written.
* Policies, shelters and breakers with a `clock` of their own are not logged, and neither are simulated worlds.
* Errors of handlers and filters go to stderr, as with the standard library's handlers. Other errors pass: they can only
  come from a signal handler that raises, such as a soft time limit, which must not be lost.
"""

from __future__ import annotations

from abate import event_sinks
from abate.clock import entered_clock
from abate.events import Event
from abate.logs import report_error
from abate.observe.log_sampler import LogLine
from abate.observe.logging import LoggingSink

__all__ = ["disable_logging", "enable_logging"]


class DefaultLog(LoggingSink):
    """A `LoggingSink` that is used while no other one is installed."""

    def __call__(self, event: Event) -> None:
        if getattr(entered_clock(), "is_logged", True):
            super().__call__(event)

    def _write(self, line: LogLine) -> None:
        try:
            super()._write(line)
        except Exception:
            report_error(line.text)


log = DefaultLog()
event_sinks.replace_default_log(log)


def disable_logging() -> None:
    """Log no calls without a sink, in the whole process. Sinks that are installed keep logging.

    Workers, stores and sinks still log their own problems; to silence these as well, set the level of the logger
    ``abate``.

    >>> disable_logging()
    """
    event_sinks.switch_default_log(False)


def enable_logging() -> None:
    """Undo `disable_logging`."""
    event_sinks.switch_default_log(True)
