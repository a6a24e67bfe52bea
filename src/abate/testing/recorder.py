"""A record of events."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

from abate import event_sinks
from abate.events import Event

E = TypeVar("E", bound=Event)


class Recorder(list[Event]):
    """Keeps every event of the process while it is entered.

    >>> import abate
    >>> with abate.testing.VirtualClock(), Recorder() as seen:
    ...     abate.Policy(on=OSError, name="orders").call(abate.testing.Script(OSError(), "fine"))
    'fine'
    >>> [type(event).__name__ for event in seen]
    ['FirstFailure', 'Retry', 'Recovered']
    >>> seen.of(abate.events.Recovered)[0].attempts
    2
    """

    def __enter__(self) -> Recorder:
        event_sinks.install(self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        event_sinks.remove(self._record)

    def _record(self, event: Event) -> None:
        self.append(event)

    def of(self, kind: type[E]) -> list[E]:
        """The events of one type."""
        return [event for event in self if isinstance(event, kind)]
