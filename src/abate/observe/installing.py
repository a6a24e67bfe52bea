"""Install sinks, and count calls while a sink that needs the counts is installed."""

from __future__ import annotations

from typing import TypeVar

from abate import event_sinks
from abate.call.counters import wrapper_versions
from abate.events import Sink
from abate.observe.detached import TimeLimited, has_flag

S = TypeVar("S", bound=Sink)


def install(sink: S) -> S:
    """Send every event of this process to `sink`, until it is removed.

    A sink that raises or blocks is skipped for a while, and then tried again.

    With the attribute ``counts = True`` a sink asks for successful calls to be counted (see `snapshot`). With
    ``writes_logs = True`` it replaces the logging without a sink (see `abate.observe.default_logging`). With
    ``inline = True`` it promises not to block, and runs in the thread of the call. Other sinks run in a thread of their
    own, for which a call waits, but not for ever.

    >>> from abate.observe import LoggingSink
    >>> sink = install(LoggingSink())
    >>> remove(sink)
    """
    if sink not in event_sinks.installed:
        event_sinks.install(event_sinks.check_sink(sink) if has_flag(sink, "inline") else TimeLimited(sink))
        if has_flag(sink, "counts"):
            wrapper_versions.start_counting()
    return sink


def remove(sink: Sink) -> None:
    """Stop sending events to `sink`; nothing happens if it is not installed."""
    event_sinks.remove(sink)


def _stop_counting(sink: Sink) -> None:
    if has_flag(sink, "counts"):
        wrapper_versions.stop_counting()


event_sinks.on_remove.append(_stop_counting)
