"""Events as entries of structlog: a name, and keys with values. Needs ``abate[structlog]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from abate.clock import Clock
from abate.events import Event
from abate.observe.extras import needed
from abate.observe.lines import Lines
from abate.observe.transitions import Line
from abate.observe.words import facts, level, name

with needed(by="abate.observe.StructlogSink", extra="structlog"):
    import structlog


class StructlogSink:
    """Makes an entry of what is worth one: the same choice as `LoggingSink` makes, or each event with ``every=True``.

    Controllers, consumers and stores log their troubles in the standard library's logging as well; here these are
    entries too.

    >>> import structlog
    >>> from abate import events
    >>> with structlog.testing.capture_logs() as entries:
    ...     StructlogSink()(events.Recovered("orders", attempts=2, waited=0.5))
    >>> entries
    [{'policy': 'orders', 'attempts': 2, 'waited': 0.5, 'event': 'recovered', 'log_level': 'info'}]
    """

    inline = True
    """Called by the calls themselves, as any other logging is."""

    def __init__(
        self,
        logger: Any = None,
        every: bool = False,
        burst: int = 3,
        window: float = 60.0,
        clock: Clock | Callable[[], float] | None = None,
    ) -> None:
        if logger is not None and not all(callable(getattr(logger, name, None)) for name in ("info", "warning")):
            raise TypeError(f"logger must be one of structlog's, with info() and warning(), not {logger!r}")
        self.logger = structlog.get_logger("abate") if logger is None else logger
        self._take = self._write_event if every else Lines(self._write, burst, window, clock)

    def __call__(self, event: Event) -> None:
        self._take(event)

    def _write_event(self, event: Event) -> None:
        getattr(self.logger, level(event))(name(event), **facts(event))

    def _write(self, line: Line) -> None:
        getattr(self.logger, line.level)(line.kind, **line.facts)
