"""Write events to structlog: an event name with keys and values. Needs ``abate[structlog]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from abate.clock import Clock
from abate.events import Event
from abate.observe.event_text import event_type, facts, level
from abate.observe.log_sampler import LogLine
from abate.observe.log_writer import LogWriter
from abate.optional_dependencies import requires_extra

with requires_extra(by="abate.observe.StructlogSink", extra="structlog"):
    import structlog


class StructlogSink:
    """Makes an entry of each event that `LoggingSink` would log; of every event with ``every=True``.

    Controllers, consumers and stores also log their failures to the standard library's logging; here these are entries
    as well.

    >>> import structlog
    >>> from abate import events
    >>> with structlog.testing.capture_logs() as entries:
    ...     StructlogSink()(events.Recovered("orders", attempts=2, waited=0.5))
    >>> entries
    [{'name': 'orders', 'attempts': 2, 'waited': 0.5, 'event': 'recovered', 'log_level': 'info'}]
    """

    inline = True
    """Runs in the thread of the call, as any logging does."""
    writes_logs = True
    """Replaces the logging without a sink."""

    def __init__(
        self,
        logger: Any = None,
        every: bool = False,
        burst: int = 3,
        window: float = 60.0,
        *,
        clock: Clock | Callable[[], float] | None = None,
    ) -> None:
        if logger is not None and not all(
            callable(getattr(logger, event_type, None)) for event_type in ("info", "warning")
        ):
            raise TypeError(f"logger must be one of structlog's, with info() and warning(), not {logger!r}")
        self.logger = structlog.get_logger("abate") if logger is None else logger
        self._take = self._write_event if every else LogWriter(self._write, burst, window, clock)

    def __call__(self, event: Event) -> None:
        self._take(event)

    def _write_event(self, event: Event) -> None:
        getattr(self.logger, level(event))(event_type(event), **facts(event))

    def _write(self, line: LogLine) -> None:
        getattr(self.logger, line.level)(line.kind, **line.facts)
