"""Facts about calls and about work, and the sinks that receive them.

An event is a frozen value; a sink is a function of one event. Sinks belong to the process. One that raises, or that
holds a call up for more than `STUCK` seconds, is cut off and logged: observing never breaks a call.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import TypeAlias

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

STUCK = 2.0
"""Seconds after which a sink is taken to be stuck."""

LONGEST = 1000
"""Characters of an event in the log."""

_lock = Lock()
_inside: dict[int, float] = {}
"""Since when a sink has been busy with an event."""
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
    global sinks
    if not callable(sink):
        raise TypeError(f"a sink must be a function of one event, not {sink!r}")
    with _lock:
        if sink not in sinks:
            sinks = (*sinks, sink)
    return sink


def remove(sink: Sink) -> None:
    """Stop sending events to `sink`; nothing happens if it is not installed."""
    global sinks
    with _lock:
        # equality, not identity: a bound method is a new object each time it is looked up
        left = tuple(other for other in sinks if other != sink)
        gone, sinks = len(left) < len(sinks), left
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
        if monotonic() - now > STUCK:
            _cut_off(sink, "has held up a call; put it behind abate.observe.Detached")


if hasattr(os, "register_at_fork"):
    # who was busy in another thread is not in the child
    os.register_at_fork(after_in_child=_inside.clear)


def _cut_off(sink: Sink, why: str) -> None:
    """Send nothing to a sink any more, and log it, with the error that is being handled."""
    remove(sink)
    import logging

    error = sys.exc_info()[1]
    logging.getLogger("abate").error("the sink %r %s, and was cut off", sink, why, exc_info=error)
