"""Facts about calls and about work, and the sinks that receive them.

An event is a frozen value; a sink is a function of one event. Sinks belong to the process. One that raises, or that
holds calls up for more than `STUCK` seconds of a minute, is cut off and logged: observing never breaks a call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from typing import TypeAlias, TypeVar

from abate import forks
from abate.locks import Section
from abate.logs import Log
from abate.values import Value


class Event(Value):
    """Something that happened to a call of `policy`, or to the work of the controller or consumer of that name."""

    policy: str


class FirstFailure(Event):
    """The first attempt of a call failed; `reason` is what the ruling said (blip, overload, fatal)."""

    reason: str
    error: Exception | None


class Retry(Event):
    """Attempt number `attempt` failed, and another one follows after `delay` seconds."""

    attempt: int
    delay: float
    reason: str
    hint: float | None
    error: Exception | None


class BudgetRefused(Event):
    """A retry was worth making, and `gate` did not admit it."""

    gate: str
    attempt: int


class GaveUp(Event):
    """A call ended without success, for one of the nine reasons."""

    reason: str
    attempts: int
    waited: float
    error: BaseException | None


class Recovered(Event):
    """A call succeeded after at least one retry."""

    attempts: int
    waited: float


class LayeredRetry(Event):
    """`policy` saw an error that the policy `inner` had already given up on."""

    inner: str


class ShelterChanged(Event):
    """The outcome of a call of `policy` has changed the state of a shelter: calm, storm, probing or recovering."""

    shelter: str
    state: str
    waiters: int
    limit: float


class Waited(Event):
    """Somebody has waited for `seconds` until a bucket had its tokens. The `policy` is the bucket's name."""

    seconds: float


class Worked(Event):
    """A piece of work has ended after `seconds`: done, again, silent, retry, slow or buried."""

    key: object
    ending: str
    seconds: float
    receives: int
    error: BaseException | None


class Buried(Event):
    """A key was parked, or a message went to the dead letters: permanent, fatal, receives or unreadable."""

    key: object
    kind: str
    reason: str


class LeaseLost(Event):
    """The lease of a message ran out while it was in hand: what was done about it does not count."""

    key: object


class WorkerCrashed(Event):
    """A worker ended by something that is no answer; another has taken its place, and the key comes back."""

    key: object
    error: BaseException


class FuseBlown(Event):
    """Most messages fail: none are taken for `pause` seconds."""

    pause: float


class SourceFailed(Event):
    """`source` could not be read or written, and is tried again after `delay` seconds."""

    source: str
    error: Exception
    delay: float


class StoreDegraded(Event):
    """A store doesn't answer, so that each process goes by limits of its own; or (`degraded` is false) it does again.

    The `policy` is the store's name.
    """

    degraded: bool
    error: Exception | None


Sink: TypeAlias = Callable[[Event], object]

STUCK = 1.0
"""Seconds for which a sink may hold calls up, at once or in a minute, before it is taken to be stuck."""
SLOW = 0.05
"""Seconds from which on an event held its call up."""
MINUTE = 60.0

LONGEST = 1000
"""Characters of an event in the log."""

_inside: dict[int, float] = {}
"""Since when a sink has been busy with an event."""
_held: dict[int, tuple[float, float]] = {}
"""Since when, and for how many seconds, a sink has held calls up in this minute."""


class _Changes(Section):
    """Of the list of sinks."""

    __slots__ = ()

    def after_fork(self) -> None:
        super().after_fork()
        _inside.clear()  # threads that were busy with an event do not exist in the child


_changes = forks.keep(_Changes())
removing: list[Callable[[Sink], object]] = []
"""Called with each sink that is removed or cut off."""
sinks: tuple[Sink, ...] = ()
"""The installed sinks. Whoever makes events looks here first, so that nobody listening costs nothing."""


def install(sink: Sink) -> Sink:
    """Send every event of this process to `sink`, until it raises or is removed.

    >>> seen = []
    >>> sink = install(seen.append)
    >>> emit(Recovered("orders", attempts=2, waited=0.1)); remove(sink); emit(Recovered("orders", 2, 0.1))
    >>> seen
    [Recovered(policy='orders', attempts=2, waited=0.1)]
    """
    checked(sink)
    _changes.run(_add, sink)
    return sink


def _add(sink: Sink) -> None:
    global sinks
    if sink not in sinks:
        sinks = (*sinks, sink)


S = TypeVar("S", bound=Sink)


def checked(sink: S) -> S:
    """The sink, if it is one."""
    if isinstance(sink, type):
        raise TypeError(f"a sink must be a function of one event, not a class: {sink.__name__}() instead of {sink!r}?")
    if not callable(sink):
        raise TypeError(f"a sink must be a function of one event, not {sink!r}")
    return sink


def remove(sink: Sink) -> None:
    """Stop sending events to `sink`; nothing happens if it is not installed."""
    _changes.run(_take_out, sink)


def _take_out(sink: Sink) -> None:
    global sinks
    # equality, not identity: a bound method is a new object each time it is looked up
    gone = [other for other in sinks if other == sink]
    sinks = tuple(other for other in sinks if other != sink)
    for other in gone:
        _held.pop(id(other), None)
    if gone:
        for tell in removing:
            tell(sink)


def emit(event: Event) -> None:
    """Hand an event to every sink."""
    for sink in sinks:
        now = monotonic()
        if now - _inside.setdefault(id(sink), now) > STUCK:  # another call waits for it already: one is enough
            _cut_off(sink, "has not returned")
            continue
        try:
            sink(event)
        except Exception:
            _cut_off(sink, f"failed on {event!r}"[:LONGEST])
        finally:
            _inside.pop(id(sink), None)
        took = monotonic() - now
        if took > SLOW and _holds_up(sink, now, took):
            _cut_off(sink, "holds calls up; put it behind abate.observe.Detached")


def _holds_up(sink: Sink, now: float, took: float) -> bool:
    """Is it too much, with what it took in this minute?"""
    since, before = _held.get(id(sink), (now, 0.0))
    if now - since > MINUTE:
        since, before = now, 0.0
    _held[id(sink)] = since, before + took
    return before + took > STUCK


def _cut_off(sink: Sink, why: str) -> None:
    """Send nothing to a sink any more, and log it, with the error that is being handled."""
    remove(sink)
    Log("abate").error("the sink %r %s, and was cut off", sink, why, exc_info=sys.exc_info()[1])
