"""The sink of the live page: what happened lately, in bounded memory, kept until somebody looks.

Nothing of a caller's is held on to: keys and errors are kept as text, which is cut. A name that was not heard of for
longest makes room for a new one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TypeVar

from abate import clock as clocks
from abate import events, forks
from abate.clock import Clock
from abate.events import Event
from abate.locks import Section
from abate.observe.page.keys import Failing, Hottest
from abate.observe.page.lately import Lately
from abate.observe.page.trouble import FAILED
from abate.observe.snapshot import LONGEST_NAME, MOST, named
from abate.observe.stored_numbers import is_number
from abate.redact import described, line

LONGEST = 200
"""Characters of an error, a key or a reason."""
DELAYS = 64
"""Delays that are kept of one policy."""
LETTERS = 10
"""Dead letters that are kept of one queue."""
HAPPENINGS = 15
"""Lines of what happened: as many as are read at a glance."""
PAIRS = 100
"""Layered pairs of policies."""
FADE = 60.0
"""Seconds in which the count of a hot key is halved."""
R = TypeVar("R")


class Calls:
    """What happened to the calls of one policy."""

    def __init__(self) -> None:
        self.retries = 0
        self.retried = Lately()
        """By what was wrong: blip, overload, or what a rule of the user's calls it."""
        self.given_up = Lately()
        """By reason."""
        self.refused = Lately()
        """By gate."""
        self.delays: deque[tuple[float, float]] = deque(maxlen=DELAYS)
        """The instant of each, and its seconds."""
        self.error: tuple[float, str] | None = None
        """The last one, with the wall time."""


class Work:
    """What happened to the work of one controller or consumer."""

    def __init__(self, now: float) -> None:
        self.ended = 0
        self.failed = 0
        self.seconds = 0.0
        self.endings = Lately()
        self.hottest = Hottest()
        self.failing = Failing()
        self.letters: deque[tuple[float, str, str, str]] = deque(maxlen=LETTERS)
        """Wall time, key, kind and reason of what was buried last."""
        self.fades = now + FADE

    def fade(self, now: float) -> None:
        """Let the hottest keys grow cold."""
        while now >= self.fades:
            self.fades = max(self.fades + FADE, now - 10 * FADE)
            self.hottest.fade()


class Happening:
    """Something that a person on call wants to know; `times` in a row."""

    __slots__ = ("at", "name", "text", "times")

    def __init__(self, at: float, name: str, text: str) -> None:
        self.at, self.name, self.text, self.times = at, name, text, 1


class Recent:
    """A sink: give it to `abate.observe.install`, and read what it has kept.

    >>> import abate
    >>> recent = abate.observe.install(Recent())
    >>> policy = abate.Policy(name="doc-orders", on=OSError, backoff=[0.0])
    >>> policy.call(abate.testing.Script(OSError("down"), "fine"))
    'fine'
    >>> abate.observe.remove(recent)
    >>> recent.read_calls("doc-orders", lambda calls: (calls.retries, calls.error[1]))
    (1, 'OSError: down')
    """

    counts = inline = True

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or clocks.current()
        self._section = Section()
        self._calls: OrderedDict[str, Calls] = OrderedDict()
        self._work: OrderedDict[str, Work] = OrderedDict()
        self._layers: dict[tuple[str, str], int] = {}
        self._happenings: deque[Happening] = deque(maxlen=HAPPENINGS)
        forks.keep(self)

    def after_fork(self) -> None:
        """In the child: replace the lock, whose owner may not exist there."""
        self._section.after_fork()

    def __call__(self, event: Event) -> None:
        self._section.run(self._take, event, self._clock.now())

    def _take(self, event: Event, now: float) -> None:
        name = named(event.policy)
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
                    self._happened(name, f"{text(gate, 40)} refused a retry")
                calls.refused.add(text(gate, 40), now)
            case events.LayeredRetry(inner=inner):
                self._layered(name or "a policy", text(inner, LONGEST_NAME) or "a policy")
            case events.Buried(key=key, kind=kind, reason=reason):
                work = self._work_of(name, now)
                work.letters.append((self._clock.wall(), text(key), kind, text(reason)))
                self._happened(name, f"buried a key ({kind})")
            case _:
                self._noted(name, event)

    # -- events

    def _worked(self, work: Work, event: events.Worked, now: float) -> None:
        key = text(event.key)
        work.ended += 1
        work.seconds += event.seconds
        work.endings.add(event.ending, now)
        work.fade(now)
        work.hottest.add(key)
        failed = event.ending in FAILED
        work.failed += failed
        if failed and event.ending != "buried":
            times = event.receives if is_number(event.receives, least=0.0) else 0  # a store's number
            work.failing.note(key, times, "" if event.error is None else described(event.error), now)
        else:
            work.failing.forget(key)

    def _layered(self, outer: str, inner: str) -> None:
        pair = outer, inner
        if pair not in self._layers:
            if len(self._layers) >= PAIRS:
                return
            self._happened(outer, f"stands around {inner}: only one of the two retries")
        self._layers[pair] = self._layers.get(pair, 0) + 1

    def _noted(self, name: str, event: Event) -> None:
        """What is worth a line, and nothing else."""
        match event:
            case events.ShelterChanged(shelter=shelter, state=state, waiters=waiters):
                waiting = f", {waiters} calls wait" if waiters else ""
                self._happened(name, f"{text(shelter, LONGEST_NAME)} is now {state}{waiting}")
            case events.FuseBlown(pause=pause):
                self._happened(name, f"most messages fail: takes none for {pause:.3g} s")
            case events.LeaseLost():
                self._happened(name, "lost a lease")
            case events.WorkerCrashed(error=error):
                self._happened(name, f"a worker crashed: {type(error).__name__}")
            case events.SourceFailed(source=source, error=error):
                self._happened(name, f"{text(source, LONGEST_NAME)} fails: {described(error)}")
            case events.StoreDegraded(degraded=degraded):
                self._happened(name, "doesn't answer: limits are local" if degraded else "answers again")
            case _:
                pass  # successes and first failures

    def _happened(self, name: str, what: str) -> None:
        name = name or "a policy"
        last = self._happenings[-1] if self._happenings else None
        if last is not None and (last.name, last.text) == (name, what):
            last.at, last.times = self._clock.wall(), last.times + 1
        else:
            self._happenings.append(Happening(self._clock.wall(), name, what))

    # -- by name

    def _calls_of(self, name: str) -> Calls:
        return _kept(self._calls, name, Calls)

    def _work_of(self, name: str, now: float) -> Work:
        return _kept(self._work, name, lambda: Work(now))

    # -- for who looks: the lock is held for one name at a time

    def read_calls(self, name: str, read: Callable[[Calls], R]) -> R:
        """What `read` makes of the calls of a policy, while nobody changes them."""
        return self._inside(lambda: read(self._calls.get(name) or Calls()))

    def read_work(self, name: str, read: Callable[[Work], R]) -> R:
        """The same for the work of a controller or consumer."""
        return self._inside(lambda: read(self._work.get(name) or Work(self._clock.now())))

    def layers(self) -> list[tuple[str, str, int]]:
        """Pairs of policies around one call: the outer, the inner, how often."""
        return self._inside(lambda: [(outer, inner, times) for (outer, inner), times in self._layers.items()])

    def happenings(self) -> list[tuple[float, str, str, int]]:
        """What happened, the newest first: wall time, name, text, how often in a row."""
        return self._inside(
            lambda: [(each.at, each.name, each.text, each.times) for each in reversed(self._happenings)]
        )

    def _inside(self, read: Callable[[], R]) -> R:
        # a read that re-enters sees at worst an event half counted: nothing changes while it reads
        return self._section.ask(read, otherwise=read)


def _kept(kept: OrderedDict[str, R], name: str, make: Callable[[], R]) -> R:
    """The record of a name, made where there is none; the one heard of longest ago is dropped for one too many."""
    record = kept.get(name)
    if record is None:
        if len(kept) >= MOST:
            kept.popitem(last=False)
        record = kept[name] = make()
    else:
        kept.move_to_end(name)
    return record


def text(thing: object, longest: int = LONGEST) -> str:
    """A thing as a line of text (see `abate.redact`); one that can't be shown is shown as its type.

    >>> text("x" * 1000, 5), text(("orders", 42))
    ('xxxx…', "('orders', 42)")
    """
    try:
        whole = str(thing)
    except Exception:
        whole = f"<{type(thing).__name__}>"
    return line(whole, longest)
