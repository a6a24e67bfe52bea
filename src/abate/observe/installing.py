"""Installs sinks; while one is there that counts calls, calls are counted."""

from __future__ import annotations

from typing import TypeVar

from abate import events
from abate.call.tally import watch
from abate.events import Sink
from abate.observe.detached import Attended

S = TypeVar("S", bound=Sink)


def install(sink: S) -> S:
    """Send every event of this process to `sink`, until it raises, is stuck or is removed.

    A sink that has ``counts = True`` wants the calls that succeed to be counted as well (see `snapshot`). One that has
    ``inline = True`` promises not to block, and is called by the calls themselves; any other one is called in a thread,
    for which a call waits, but not for ever.

    >>> from abate.observe import LoggingSink
    >>> sink = install(LoggingSink())
    >>> remove(sink)
    """
    if sink not in events.sinks:
        events.install(events.checked(sink) if getattr(sink, "inline", False) else Attended(sink))
        if getattr(sink, "counts", False):
            watch.come()
    return sink


def remove(sink: Sink) -> None:
    """Stop sending events to `sink`; nothing happens if it is not installed."""
    events.remove(sink)


def _count_no_more(sink: Sink) -> None:
    if getattr(sink, "counts", False):
        watch.go()


events.removing.append(_count_no_more)
