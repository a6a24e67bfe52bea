"""The sinks of this process: installing them, and giving events to them.

A sink is a function of one event. A sink that raises, or that delays calls for more than `MAX_HOLD_UP` seconds of a
minute, is logged and paused, and later gets one event to see whether it works again: observing never breaks a call, and
no failure ends it for good.

Unless it is switched off, or a sink that writes logs is installed, events go to the logger ``abate`` as well. To keep
that cheap, code that emits asks `log_enabled` first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from math import inf
from time import monotonic
from typing import TypeVar

from abate import forks
from abate.atomic_counter import AtomicCounter
from abate.cooldown import Cooldown
from abate.events import Event, Sink
from abate.logs import WARNING, Log
from abate.redact import short_repr
from abate.reentrant_locks import Section

MAX_HOLD_UP = 1.0
"""Seconds for which a sink may delay calls, at once or in a minute, before it is paused."""
SLOW = 0.05
"""An event that takes longer than this many seconds has delayed its call."""
MINUTE = 60.0

MAX_EVENT_TEXT = 1000
"""The most characters of an event in the log."""


class _SinkHealth:
    """The recent behaviour of an installed sink."""

    __slots__ = ("cooldown", "dropped", "held", "inside", "reported", "since")

    def __init__(self) -> None:
        self.cooldown = Cooldown()
        self.inside: dict[object, float] = {}
        """Calls that have not returned, with the instant at which each began."""
        self.since, self.held = -inf, 0.0
        """The start of the current minute, and the seconds for which it delayed calls since."""
        self.dropped = AtomicCounter()
        """Events that it did not get."""
        self.reported = 0
        """The number of dropped events that was logged last."""

    def stuck(self, now: float) -> bool:
        """Return whether a call has waited for it for too long."""
        return any(now - since > MAX_HOLD_UP for since in list(self.inside.values()))

    def exceeds_hold_up(self, now: float, took: float) -> bool:
        """Add a delay; return whether this minute's delays are too long."""
        if now - self.since > MINUTE:
            self.since, self.held = now, 0.0
        self.held += took
        return self.held > MAX_HOLD_UP


_sink_health: dict[int, _SinkHealth] = {}
"""The health of each installed sink, by its id; removed together with the sink, before the id can be reused."""


class _Changes(Section):
    """The lock of the list of sinks and their health."""

    __slots__ = ()

    def after_fork(self) -> None:
        super().after_fork()
        for health in list(_sink_health.values()):
            health.inside.clear()  # threads that were busy with an event do not exist in the child


_changes = forks.register(_Changes())
on_remove: list[Callable[[Sink], object]] = []
"""Called with each sink that is removed."""
installed: tuple[Sink, ...] = ()
"""The installed sinks. Emitting code checks this and `log_enabled` first, so that unused events cost little."""


def _never(level: int) -> bool:
    """Return False: nothing is logged by default."""
    return False


def _find_logger(level: int) -> bool:
    """Return whether the default log takes events of this level, and find its logger if `logging` is imported.

    If it is not, the root logger would have its default level.
    """
    if "logging" not in sys.modules:
        return level >= WARNING and not sys.is_finalizing()
    import logging

    get_logger = getattr(logging, "getLogger", None)
    if get_logger is None:
        return False  # a signal handler or a finalizer has interrupted the import of `logging`
    found: Callable[[int], bool] = get_logger("abate").isEnabledFor
    _changes.run_or_defer(_use_logger, found)
    return found(level)


def _use_logger(found: Callable[[int], bool]) -> None:
    global log_enabled
    if log_enabled is _find_logger:  # not switched off meanwhile
        log_enabled = found


def _log_first(event: Event) -> None:
    """Import the default log, which is not needed before its first event, and write that."""
    try:
        module = import_module(DEFAULT_LOG)  # by name, as it belongs to a higher layer
    except ImportError:
        return  # the interpreter shuts down
    # a signal handler or a finalizer that interrupted the import finds the module without it
    log: Sink | None = getattr(module, "log", None)
    if log is not None:
        log(event)


DEFAULT_LOG = "abate.observe.default_logging"
default_log: Sink = _log_first
"""Writes events to the logger ``abate``, and handles the errors of that itself: see `abate.observe.default_logging`."""
log_enabled: Callable[[int], bool] = _find_logger
"""Returns whether the default log takes events of a level, as `logging` numbers them."""
_log_by_default = True
"""Whether the default log is switched on. While a sink that writes logs is installed, it writes nothing either way."""


def install(sink: Sink) -> Sink:
    """Send every event of this process to `sink`, until it is removed.

    >>> seen = []
    >>> sink = install(seen.append)
    >>> from abate.events import Recovered
    >>> emit(Recovered("orders", attempts=2, waited=0.1)); remove(sink); emit(Recovered("orders", 2, 0.1))
    >>> seen
    [Recovered(name='orders', attempts=2, waited=0.1, target=None)]
    """
    check_sink(sink)
    _changes.run_or_defer(_add, sink)
    return sink


def _add(sink: Sink) -> None:
    global installed
    if sink not in installed:
        _sink_health[id(sink)] = _SinkHealth()
        installed = (*installed, sink)
        _choose_log()


def switch_default_log(on: bool) -> None:
    """Switch logging without a sink on or off, for the whole process."""
    _changes.run_or_defer(_switch_default_log, on)


def _switch_default_log(on: bool) -> None:
    global _log_by_default
    _log_by_default = on
    _choose_log()


def _choose_log() -> None:
    """Log by default unless that is switched off, or a sink writes logs: nothing is logged twice."""
    global log_enabled
    # compare with True: mocks and proxies have a truthy attribute for every name
    on = _log_by_default and not any(getattr(sink, "writes_logs", None) is True for sink in installed)
    log_enabled = _find_logger if on else _never


def replace_default_log(log: Sink) -> None:
    """Let this function write the log from now on."""
    global default_log
    default_log = log


S = TypeVar("S", bound=Sink)


def check_sink(sink: S) -> S:
    """Return the sink if it is valid; raise TypeError otherwise."""
    if isinstance(sink, type):
        raise TypeError(f"a sink must be a function of one event, not a class: {sink.__name__}() instead of {sink!r}?")
    if not callable(sink):
        raise TypeError(f"a sink must be a function of one event, not {short_repr(sink)}")
    return sink


def remove(sink: Sink) -> None:
    """Stop sending events to `sink`; nothing happens if it is not installed."""
    _changes.run_or_defer(_remove, sink)


def _remove(sink: Sink) -> None:
    global installed
    # equality, not identity: a bound method is a new object each time it is looked up
    gone = [other for other in installed if other == sink]
    installed = tuple(other for other in installed if other != sink)
    for other in gone:
        _sink_health.pop(id(other), None)
    _choose_log()
    if gone:
        for tell in on_remove:
            tell(sink)


def dropped(sink: Sink) -> int:
    """Return how many events an installed sink was not given, because it had failed or blocked.

    >>> sink = install([].append)
    >>> dropped(sink)
    0
    >>> remove(sink)
    """
    for other in installed:
        if other == sink:
            health = _sink_health.get(id(other))
            own = getattr(other, "dropped", 0)
            return (0 if health is None else health.dropped.read()) + (own if isinstance(own, int) else 0)
    return 0


def emit(event: Event, logged: bool = False) -> None:
    """Give an event to every sink, except those that are paused; and to the default log if it is to be `logged`."""
    for sink in installed:
        health = _sink_health.get(id(sink))
        if health is None:
            continue  # removed since this loop began
        now = monotonic()
        trial = health.cooldown.on
        if (trial or health.inside) and not _may_enter(sink, health, now):
            health.dropped.add()
            continue
        call, error = object(), None
        health.inside[call] = now
        try:
            sink(event)
        except Exception as raised:
            error = raised
        finally:
            health.inside.pop(call, None)
        took = monotonic() - now
        if error is not None:
            _pause(sink, health, f"failed on {event!r}"[:MAX_EVENT_TEXT], trial, error)
        elif took > SLOW and health.exceeds_hold_up(now, took):
            _pause(sink, health, "holds calls up (put it behind abate.observe.Detached)", trial)
        elif trial:
            _resume(sink, health)
        error = None  # its traceback refers to this frame
    if logged:
        default_log(event)


def _may_enter(sink: Sink, health: _SinkHealth, now: float) -> bool:
    """Return whether this call may call a sink that has failed or is still busy with an earlier call.

    After a pause one call tries, unless an earlier one is still stuck: it would be stuck as well.
    """
    if not health.cooldown.on:
        if health.stuck(now):  # one stuck call is enough
            _pause(sink, health, "has not returned", False)
            return False
        return True
    if now < health.cooldown.until or not _changes.call(health.cooldown.claim, now, otherwise=_no):
        return False
    if health.inside:
        text = "the sink %r has still not returned: it is tried again in %.3g s; %d events were dropped so far"
        Log("abate").warning(text, sink, health.cooldown.pause, health.dropped.read())
        return False
    return True


def _pause(sink: Sink, health: _SinkHealth, why: str, trial: bool, error: BaseException | None = None) -> None:
    """Pause a sink, and log that once."""
    pause = _changes.call(health.cooldown.begin, monotonic(), trial, otherwise=_nothing)
    if pause is not None:
        Log("abate").error("the sink %r %s: it is tried again in %.3g s", sink, why, pause, exc_info=error)


def _resume(sink: Sink, health: _SinkHealth) -> None:
    """Resume a sink, and log that."""
    _changes.run_or_defer(health.cooldown.end, monotonic())
    now, reported = health.dropped.read(), health.reported
    health.reported = now
    health.since, health.held = -inf, 0.0
    Log("abate").warning("the sink %r takes events again; %d were dropped meanwhile", sink, now - reported)


def _no(now: float) -> bool:
    """Re-entrant call: let another call try."""
    return False


def _nothing(now: float, trial: bool) -> None:
    """Re-entrant call: do nothing; the next failing event pauses the sink."""
