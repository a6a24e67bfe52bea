"""Facts about calls and about work, and the sinks that receive them.

An event is a frozen value; a sink is a function of one event. Sinks belong to the process. One that raises, or that
holds calls up for more than `STUCK` seconds of a minute, is logged and left alone for a while, and then given one event
to see whether it works again: observing never breaks a call, and no incident ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import TypeAlias, TypeVar

from abate import forks
from abate.cooldown import Cooldown
from abate.counts import Tick
from abate.locks import Section
from abate.logs import Log
from abate.redact import shown
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


class _Standing:
    """How an installed sink has done lately."""

    __slots__ = ("cooldown", "dropped", "held", "inside", "since", "told")

    def __init__(self) -> None:
        self.cooldown = Cooldown()
        self.inside: dict[object, float] = {}
        """The events that it has not returned from, each with the instant at which it was called."""
        self.since, self.held = -inf, 0.0
        """Since when, and for how many seconds, it has held calls up in this minute."""
        self.dropped = Tick()
        """Events that it was not given."""
        self.told = 0
        """How many of them the log has told."""

    def stuck(self, now: float) -> bool:
        """Has a call waited for it for too long?"""
        return any(now - since > STUCK for since in list(self.inside.values()))

    def holds_up(self, now: float, took: float) -> bool:
        """Is it too much, with what it took in this minute?"""
        if now - self.since > MINUTE:
            self.since, self.held = now, 0.0
        self.held += took
        return self.held > STUCK


_standings: dict[int, _Standing] = {}
"""One for each sink that is installed, by its id: none that is removed is called again, nor leaves its standing to
another one that gets its id."""


class _Changes(Section):
    """Of the list of sinks, and of the standing of each."""

    __slots__ = ()

    def after_fork(self) -> None:
        super().after_fork()
        for standing in list(_standings.values()):
            standing.inside.clear()  # threads that were busy with an event do not exist in the child


_changes = forks.keep(_Changes())
removing: list[Callable[[Sink], object]] = []
"""Called with each sink that is removed."""
sinks: tuple[Sink, ...] = ()
"""The installed sinks. Whoever makes events looks here first, so that nobody listening costs nothing."""


def install(sink: Sink) -> Sink:
    """Send every event of this process to `sink`, until it is removed.

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
        _standings[id(sink)] = _Standing()
        sinks = (*sinks, sink)


S = TypeVar("S", bound=Sink)


def checked(sink: S) -> S:
    """The sink, if it is one."""
    if isinstance(sink, type):
        raise TypeError(f"a sink must be a function of one event, not a class: {sink.__name__}() instead of {sink!r}?")
    if not callable(sink):
        raise TypeError(f"a sink must be a function of one event, not {shown(sink)}")
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
        _standings.pop(id(other), None)
    if gone:
        for tell in removing:
            tell(sink)


def dropped(sink: Sink) -> int:
    """Return how many events an installed sink was not given, because it had failed or blocked.

    >>> sink = install([].append)
    >>> dropped(sink)
    0
    >>> remove(sink)
    """
    for other in sinks:
        if other == sink:
            standing = _standings.get(id(other))
            own = getattr(other, "dropped", 0)
            return (0 if standing is None else standing.dropped.read()) + (own if isinstance(own, int) else 0)
    return 0


def emit(event: Event) -> None:
    """Hand an event to every sink, but those that have failed lately."""
    for sink in sinks:
        standing = _standings.get(id(sink))
        if standing is None:
            continue  # it was removed after this loop had begun
        now = monotonic()
        trial = standing.cooldown.on
        if (trial or standing.inside) and not _may_enter(sink, standing, now):
            standing.dropped.add()
            continue
        call, error = object(), None
        standing.inside[call] = now
        try:
            sink(event)
        except Exception as raised:
            error = raised
        finally:
            standing.inside.pop(call, None)
        took = monotonic() - now
        if error is not None:
            _pause(sink, standing, f"failed on {event!r}"[:LONGEST], trial, error)
        elif took > SLOW and standing.holds_up(now, took):
            _pause(sink, standing, "holds calls up (put it behind abate.observe.Detached)", trial)
        elif trial:
            _resume(sink, standing)
        error = None  # it leads to this frame


def _may_enter(sink: Sink, standing: _Standing, now: float) -> bool:
    """May this call give an event to a sink that has failed, or that another call is busy with?

    Once a pause is over, one call tries: but not as long as an earlier one is stuck, as it would be stuck as well.
    """
    if not standing.cooldown.on:
        if standing.stuck(now):  # another call waits for it already: one is enough
            _pause(sink, standing, "has not returned", False)
            return False
        return True
    if now < standing.cooldown.until or not _changes.ask(standing.cooldown.claim, now, otherwise=_no):
        return False
    if standing.inside:
        text = "the sink %r has still not returned: it is tried again in %.3g s; %d events were dropped so far"
        Log("abate").warning(text, sink, standing.cooldown.pause, standing.dropped.read())
        return False
    return True


def _pause(sink: Sink, standing: _Standing, why: str, trial: bool, error: BaseException | None = None) -> None:
    """Send nothing to a sink for a while, and log it, once."""
    pause = _changes.ask(standing.cooldown.begin, monotonic(), trial, otherwise=_nothing)
    if pause is not None:
        Log("abate").error("the sink %r %s: it is tried again in %.3g s", sink, why, pause, exc_info=error)


def _resume(sink: Sink, standing: _Standing) -> None:
    """Send every event to a sink again, and log it."""
    _changes.run(standing.cooldown.end, monotonic())
    now, told = standing.dropped.read(), standing.told
    standing.told = now
    standing.since, standing.held = -inf, 0.0
    Log("abate").warning("the sink %r takes events again; %d were dropped meanwhile", sink, now - told)


def _no(now: float) -> bool:
    """Answer from within a change of the list: another call tries."""
    return False


def _nothing(now: float, trial: bool) -> None:
    """Change nothing from within a change: the next event that fails does."""
