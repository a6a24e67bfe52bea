"""The sink of the live page: recent events, in bounded memory.

It keeps no objects of the caller: keys and errors are stored as cut text. A new name replaces the least recent one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TypeVar

from abate import clock as clocks
from abate import events, forks
from abate.clock import Clock
from abate.events import Event
from abate.observe.number_checks import is_number
from abate.observe.page.hot_keys import FailingKeys, HottestKeys
from abate.observe.page.sliding_counts import SlidingCounts
from abate.observe.snapshot import MAX_NAME, MAX_NAMES, display_name
from abate.redact import described, one_line
from abate.reentrant_locks import Section

MAX_TEXT = 200
"""Characters of an error, a key or a reason."""
DELAYS = 64
"""Delays that are kept of one policy."""
MAX_DEAD_LETTERS = 10
"""Dead letters that are kept of one queue."""
MAX_NOTICES = 15
"""Notices that are kept: as many as a person reads at a glance."""
MAX_PAIRS = 100
"""Layered pairs of policies."""
FADE = 60.0
"""Seconds in which the count of a hot key is halved."""
R = TypeVar("R")


class PolicyActivity:
    """Recent events of one policy's calls."""

    def __init__(self) -> None:
        self.retries = 0
        self.retried = SlidingCounts()
        """By kind of failure: blip, overload, or the word of a user's rule."""
        self.given_up = SlidingCounts()
        """By reason."""
        self.refused = SlidingCounts()
        """By gate."""
        self.delays: deque[tuple[float, float]] = deque(maxlen=DELAYS)
        """The instant and the seconds of each delay."""
        self.error: tuple[float, str] | None = None
        """The last error, with the wall time."""


class QueueActivity:
    """Recent events of one controller's or consumer's work."""

    def __init__(self, now: float) -> None:
        self.ended = 0
        self.failed = 0
        self.seconds = 0.0
        self.endings = SlidingCounts()
        self.hottest = HottestKeys()
        self.failing = FailingKeys()
        self.dead_letters: deque[tuple[float, str, str, str]] = deque(maxlen=MAX_DEAD_LETTERS)
        """Wall time, key, kind and reason of the last dead letters."""
        self.fades = now + FADE

    def fade(self, now: float) -> None:
        """Halve the counts of hot keys if that is due."""
        while now >= self.fades:
            self.fades = max(self.fades + FADE, now - 10 * FADE)
            self.hottest.fade()


class Notice:
    """A message for a person on call; `times` in a row."""

    __slots__ = ("at", "name", "text", "times")

    def __init__(self, at: float, name: str, text: str) -> None:
        self.at, self.name, self.text, self.times = at, name, text, 1


class RecentActivity:
    """A sink: install it by `abate.observe.install`, and read what it keeps.

    >>> import abate
    >>> recent = abate.observe.install(RecentActivity())
    >>> policy = abate.Policy(name="doc-orders", on=OSError, backoff=[0.0])
    >>> policy.call(abate.testing.Script(OSError("down"), "fine"))
    'fine'
    >>> abate.observe.remove(recent)
    >>> recent.with_policy_activity("doc-orders", lambda calls: (calls.retries, calls.error[1]))
    (1, 'OSError: down')
    """

    counts = inline = True

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or clocks.current()
        self._section = Section()
        self._calls: OrderedDict[str, PolicyActivity] = OrderedDict()
        self._work: OrderedDict[str, QueueActivity] = OrderedDict()
        self._layers: dict[tuple[str, str], int] = {}
        self._notices: deque[Notice] = deque(maxlen=MAX_NOTICES)
        forks.register(self)

    def after_fork(self) -> None:
        """Replace the lock in the child: its owner thread does not exist there."""
        self._section.after_fork()

    def __call__(self, event: Event) -> None:
        self._section.run_or_defer(self._take, event, self._clock.now())

    def _take(self, event: Event, now: float) -> None:
        name = display_name(event.name)
        match event:
            case events.Worked():
                self._worked(self._work_of(name, now), event, now)
            case events.Retry(reason=reason, delay=delay, error=error):
                calls = self._calls_of(name)
                calls.retries += 1
                calls.retried.add(text(reason, 40), now)
                calls.delays.append((now, delay))
                if error is not None:
                    calls.error = self._clock.wall(), described(error)
            case events.GaveUp(reason=reason, error=error):
                calls = self._calls_of(name)
                calls.given_up.add(reason, now)
                if error is not None:
                    calls.error = self._clock.wall(), described(error)
            case events.BudgetRefused(gate=gate):
                calls = self._calls_of(name)
                if not calls.refused.counts(now):
                    self._add_notice(name, f"{text(gate, 40)} refused a retry")
                calls.refused.add(text(gate, 40), now)
            case events.LayeredRetry(inner=inner):
                self._count_layers(name or "a policy", text(inner, MAX_NAME) or "a policy")
            case events.Buried(key=key, kind=kind, reason=reason):
                work = self._work_of(name, now)
                work.dead_letters.append((self._clock.wall(), text(key), kind, text(reason)))
                self._add_notice(name, f"buried a key ({kind})")
            case _:
                self._note_state_change(name, event)

    # -- events

    def _worked(self, work: QueueActivity, event: events.Worked, now: float) -> None:
        key = text(event.key)
        work.ended += 1
        work.seconds += event.seconds
        work.endings.add(event.ending, now)
        work.fade(now)
        work.hottest.add(key)
        failed = event.ending in events.FAILED_ENDINGS
        work.failed += failed
        if failed and event.ending != "buried":
            times = event.receives if is_number(event.receives, least=0.0) else 0  # a number from a store
            work.failing.note(key, times, "" if event.error is None else described(event.error), now)
        else:
            work.failing.forget(key)

    def _count_layers(self, outer: str, inner: str) -> None:
        pair = outer, inner
        if pair not in self._layers:
            if len(self._layers) >= MAX_PAIRS:
                return
            self._add_notice(outer, f"wraps {inner}: only one of the two retries")
        self._layers[pair] = self._layers.get(pair, 0) + 1

    def _note_state_change(self, name: str, event: Event) -> None:
        """Keep a notice of the events that are worth one."""
        match event:
            case events.ShelterChanged(shelter=shelter, state=state, waiters=waiters):
                waiting = f", {waiters} calls wait" if waiters else ""
                self._add_notice(name, f"{text(shelter, MAX_NAME)} is now {state}{waiting}")
            case events.BreakerOpened(pause=pause):
                self._add_notice(name, f"circuit breaker open for {pause:.3g} s: most attempts fail")
            case events.LeaseLost():
                self._add_notice(name, "lost a lease")
            case events.WorkerCrashed(error=error):
                self._add_notice(name, f"a worker crashed: {type(error).__name__}")
            case events.SourceFailed(source=source, error=error):
                self._add_notice(name, f"{text(source, MAX_NAME)} fails: {described(error)}")
            case events.StoreDegraded(degraded=degraded):
                self._add_notice(name, "doesn't answer: limits are local" if degraded else "answers again")
            case _:
                pass  # successes and first failures

    def _add_notice(self, name: str, what: str) -> None:
        name = name or "a policy"
        last = self._notices[-1] if self._notices else None
        if last is not None and (last.name, last.text) == (name, what):
            last.at, last.times = self._clock.wall(), last.times + 1
        else:
            self._notices.append(Notice(self._clock.wall(), name, what))

    # -- by name

    def _calls_of(self, name: str) -> PolicyActivity:
        return _record_of(self._calls, name, PolicyActivity)

    def _work_of(self, name: str, now: float) -> QueueActivity:
        return _record_of(self._work, name, lambda: QueueActivity(now))

    # -- reading: the lock is held for one name at a time

    def with_policy_activity(self, name: str, read: Callable[[PolicyActivity], R]) -> R:
        """Return what `read` makes of a policy's activity, under the lock."""
        return self._read(lambda: read(self._calls.get(name) or PolicyActivity()))

    def with_queue_activity(self, name: str, read: Callable[[QueueActivity], R]) -> R:
        """Return what `read` makes of a queue's activity, under the lock."""
        return self._read(lambda: read(self._work.get(name) or QueueActivity(self._clock.now())))

    def layers(self) -> list[tuple[str, str, int]]:
        """Return pairs of policies around one call: the outer, the inner, how often."""
        return self._read(lambda: [(outer, inner, times) for (outer, inner), times in self._layers.items()])

    def notices(self) -> list[tuple[float, str, str, int]]:
        """Return the notices, newest first: wall time, name, text, how often in a row."""
        return self._read(lambda: [(each.at, each.name, each.text, each.times) for each in reversed(self._notices)])

    def _read(self, read: Callable[[], R]) -> R:
        # a re-entrant read may see an event half counted; nothing changes while it reads
        return self._section.call(read, otherwise=read)


def _record_of(kept: OrderedDict[str, R], name: str, make: Callable[[], R]) -> R:
    """Return the record of a name, made if needed; the least recent record is dropped if there are too many."""
    record = kept.get(name)
    if record is None:
        if len(kept) >= MAX_NAMES:
            kept.popitem(last=False)
        record = kept[name] = make()
    else:
        kept.move_to_end(name)
    return record


def text(thing: object, longest: int = MAX_TEXT) -> str:
    """Return a thing as a line of text (see `abate.redact`), or its type if it can't be shown.

    >>> text("x" * 1000, 5), text(("orders", 42))
    ('xxxx…', "('orders', 42)")
    """
    try:
        whole = str(thing)
    except Exception:
        whole = f"<{type(thing).__name__}>"
    return one_line(whole, longest)
