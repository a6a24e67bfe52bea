"""Installs sinks; while one is there that counts calls, calls are counted."""

from __future__ import annotations

from typing import TypeVar

from abate import events
from abate.call.tally import watch
from abate.events import Sink
from abate.observe.detached import Attended, says

S = TypeVar("S", bound=Sink)


def install(sink: S) -> S:
    """Send every event of this process to `sink`, until it is removed.

    A sink that raises or is stuck is left alone for a while, and then tried again.

    A sink that has ``counts = True`` wants the calls that succeed to be counted as well (see `snapshot`). One that has
    ``inline = True`` promises not to block, and is called by the calls themselves; any other one is called in a thread,
    for which a call waits, but not for ever.

    >>> from abate.observe import LoggingSink
    >>> sink = install(LoggingSink())
    >>> remove(sink)
    """
    if sink not in events.sinks:
        events.install(events.checked(sink) if says(sink, "inline") else Attended(sink))
        if says(sink, "counts"):
            watch.come()
    return sink


def remove(sink: Sink) -> None:
    """Stop sending events to `sink`; nothing happens if it is not installed."""
    events.remove(sink)


def _count_no_more(sink: Sink) -> None:
    if says(sink, "counts"):
        watch.go()


events.removing.append(_count_no_more)
