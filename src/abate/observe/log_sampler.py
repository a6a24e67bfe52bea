"""Decide which events are worth a log line, without a clock or I/O: a storm of failures is not a storm of lines.

The rules:

* Not logged: what goes as planned, and events that another line already covers. A key is a line when it first fails,
  when it has failed 5, 10, 20, 40, … times in a row, and when it succeeds again.
* Lines belong to episodes: one per name, kind and detail (the reason, the state, the gate). The first `burst` events of
  an episode are a line each; further ones are counted, and one line every `window` seconds says how many.
* After an episode with more events than its burst, a line says that it is over once it has been quiet for some seconds
  (see `abate.observe.log_episode`). An episode ends when a window passes without an event.
* There are at most `max_episodes` at a time; further ones share one episode per kind. So any window has at most
  ``(max_episodes + number of kinds) * (burst + 1)`` lines, and each event is a line or counted.
* Events come from any thread. Counting takes no lock, so that no call waits in a storm. One thread at a time decides
  about lines, which takes microseconds; an event emitted meanwhile in the same thread (for example by a finalizer) is
  decided right after it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from abate import events
from abate.errors import number, whole
from abate.events import Event
from abate.frozen import Frozen
from abate.observe.event_text import MAX_NAME, Fact, Level, error_type, facts, sentence, shown_name
from abate.observe.log_episode import LogEpisode
from abate.redact import one_line, short_repr
from abate.reentrant_locks import Section

MAX_KEYS = 10_000
"""Failing keys that are remembered; the one whose last failure is oldest is forgotten first."""
REPEAT_EVERY = 5
"""Failures in a row after which a key is a line again; and after twice as many, and so on."""
QUIET = 10.0
"""Seconds without an event after which an episode may be over."""
EXIT_TIMEOUT = 1.0
"""Seconds that the end of the program waits for a thread that is still deciding."""
OTHER_NAMES = "(others)"
"""The name in the lines of episodes beyond `max_episodes`."""
LINE_KINDS: dict[str, tuple[Level, str]] = {
    "failing": ("debug", "calls failed at their first attempt"),
    "retry": ("info", "retries"),
    "refused": ("warning", "attempts were refused"),
    "gave_up": ("warning", "calls gave up"),
    "cancelled": ("info", "calls were cancelled"),
    "fatal": ("info", "calls ended in an error that is not retried"),
    "recovered": ("info", "calls succeeded after a retry"),
    "layered": ("warning", "calls were not retried, as a layer inside had given up"),
    "shelter": ("warning", "changes of a shelter"),
    "key_failing": ("warning", "keys failed for the first time"),
    "key_keeps_failing": ("warning", "keys failed again and again"),
    "key_recovered": ("info", "keys that had failed are done"),
    "slowed": ("warning", "keys come back at the slow rate, as the budget is exhausted"),
    "buried": ("error", "keys were buried"),
    "lease_lost": ("warning", "leases ran out"),
    "crashed": ("error", "workers crashed"),
    "breaker": ("warning", "times that the circuit breaker opened"),
    "source_failing": ("warning", "failures of a source"),
    "store": ("warning", "changes of a store"),
    "other": ("info", "other events"),
}
"""Every kind of line: its level, and its plural for summaries."""


class LogLine(Frozen):
    """One line: about an `event`, or a summary of `more` events of the last `seconds` that were no lines.

    `failures` is how often the key has failed in a row; `over` marks the end of the episode.

    >>> LogLine("gave_up", "orders", "attempts", more=4212, seconds=60.0).text
    'orders: … and 4,212 more calls gave up (attempts) in the last 60 s'
    """

    kind: str
    name: str
    detail: str = ""
    event: Event | None = None
    failures: int = 0
    more: int = 0
    seconds: float = 0.0
    over: bool = False

    @property
    def level(self) -> Level:
        """Return the log level."""
        return LINE_KINDS[self.kind][0]

    @property
    def text(self) -> str:
        """Return the text of the line."""
        if self.event is None:
            return f"{self.name}: {self._summary()}"
        match self.kind, self.event:
            case (("key_failing" | "key_keeps_failing"), events.Worked(_, key, _, _, _, error)):
                times = "" if self.failures == 1 else f" {self.failures} times in a row"
                return f"{self.name}: {short_repr(key, MAX_NAME)} has failed{times}: {short_repr(error)}"
            case "key_recovered", events.Worked(_, key):
                times = "failure" if self.failures == 1 else "failures"
                return f"{self.name}: {short_repr(key, MAX_NAME)} is done after {self.failures} {times}"
            case "slowed", events.Worked(_, key):
                return f"{self.name}: the budget is exhausted: {short_repr(key, MAX_NAME)} comes back at the slow rate"
            case _:
                return sentence(self.event)

    @property
    def facts(self) -> dict[str, Fact]:
        """Return the fields of the line as plain values."""
        if self.event is None:
            fields: dict[str, Fact] = {"name": self.name, "more": self.more, "seconds": round(self.seconds, 3)}
            return fields | ({"detail": self.detail} if self.detail else {}) | {"over": self.over}
        return facts(self.event) | ({"failures": self.failures} if self.failures else {})

    def _summary(self) -> str:
        what = LINE_KINDS[self.kind][1] + (f" ({self.detail})" if self.detail else "")
        span = f"{self.seconds:.3g} s"
        if not self.over:
            return f"… and {self.more:,} more {what} in the last {span}"
        return f"… and {self.more:,} more {what}; it is over" if self.more else f"no more {what} for {span}: it is over"


EpisodeKey = tuple[str, str, str]
"""Kind, name and detail."""


class LogSampler:
    """Takes events and returns the lines that they are worth.

    >>> sampler = LogSampler(burst=1, window=60.0)
    >>> down = events.FirstFailure("orders", "blip", OSError("down"))
    >>> [line.text for line in sampler.lines(down, now=0.0)]
    ["orders: first failure (blip): OSError('down')"]
    >>> [sampler.lines(down, now=1.0), sampler.lines(down, now=2.0)]
    [[], []]
    >>> [line.text for line in sampler.due_lines(now=12.0)]
    ['orders: … and 2 more calls failed at their first attempt (blip); it is over']
    """

    __slots__ = (
        "__weakref__",
        "_due",
        "_episodes",
        "_full_until",
        "_keys",
        "_now",
        "_ready",
        "_section",
        "burst",
        "max_episodes",
        "quiet",
        "window",
    )

    def __init__(self, burst: int = 3, window: float = 60.0, max_episodes: int = 200) -> None:
        self.burst = whole("burst", burst, least=1)
        self.window = number("window", window, above=0)
        self.quiet = min(QUIET, self.window)
        self.max_episodes = whole("max_episodes", max_episodes, least=1)
        self._episodes: dict[EpisodeKey, LogEpisode] = {}
        self._keys: OrderedDict[int, int] = OrderedDict()  # failures in a row
        self._now = -inf
        self._due = inf
        self._full_until = -inf
        """No episode can be forgotten before this instant: not searched at each event of a name beyond the bound."""
        self._section = Section()
        self._ready: list[LogLine] = []
        """Lines that were decided and not yet written."""

    @property
    def due(self) -> float:
        """The instant at which `due_lines` may return lines; infinite if nothing is left to say."""
        return self._due

    def lines(self, event: Event, now: float) -> list[LogLine]:
        """Take an event, and return the lines to write now; they may include summaries of other episodes."""
        key = _episode_key(event)
        if now < self._due and not isinstance(event, events.Worked):
            if key is None:
                return []
            episode = self._episodes.get(key)
            if episode is not None and episode.is_long and now < min(episode.began, episode.last) + self.window:
                episode.record_counted(now)
                return []
        return self._decide_and_take_lines(event, key, now)

    def due_lines(self, now: float) -> list[LogLine]:
        """Return the summaries that are due."""
        return self._decide_and_take_lines(None, None, now)

    def remaining_lines(self, now: float) -> list[LogLine]:
        """Return a summary of everything counted and not yet written, at the end of the program."""
        lines: list[LogLine] = []
        for taken in iter(partial(self._section.lock.acquire, timeout=EXIT_TIMEOUT), None):
            if taken:
                try:
                    lines += self._section.call(self._remaining_lines, now, otherwise=_nothing)
                finally:
                    self._section.lock.release()
            break
        return lines + self._take_ready()

    def _remaining_lines(self, now: float) -> list[LogLine]:
        return [_summary(key, episode, now) for key, episode in self._episodes.items() if episode.untold]

    def after_fork(self) -> None:
        """Start anew in the child: the parent writes what the parent counted."""
        self._section.after_fork()
        self._section.deferred.clear()
        self._ready = []
        self._episodes = {}
        self._due = inf
        self._full_until = -inf

    def _decide_and_take_lines(self, event: Event | None, key: EpisodeKey | None, now: float) -> list[LogLine]:
        self._section.run_or_defer(self._decide, event, key, now)
        return self._take_ready()

    def _take_ready(self) -> list[LogLine]:
        """Take the lines to write; each is taken once."""
        lines: list[LogLine] = []
        while self._ready:
            try:
                lines.append(self._ready.pop(0))
            except IndexError:
                break  # another thread took it
        return lines

    # -- under the lock

    def _decide(self, event: Event | None, key: EpisodeKey | None, now: float) -> None:
        now = self._now = max(now, self._now)  # a later event may be served first
        if now >= self._due:
            self._close_quiet(now)
        keys, failures = [] if key is None else [key], 0
        if isinstance(event, events.Worked):
            kinds, failures = self._worked(event)
            keys = [(kind, shown_name(event.name), "") for kind in kinds]
        for each in keys:
            if self._count_event(each, now):
                self._ready.append(LogLine(*each, event, failures))

    def _count_event(self, key: EpisodeKey, now: float) -> bool:
        """Count an event, with a summary of earlier ones if that is due; return whether it gets its own line."""
        episode = self._episodes.get(key)
        if episode is None and len(self._episodes) >= self.max_episodes:
            if now >= self._full_until:
                self._forget_ended(now)
            if len(self._episodes) >= self.max_episodes:
                key = (key[0], OTHER_NAMES, "")
                episode = self._episodes.get(key)
        if episode is None:
            episode = self._episodes[key] = LogEpisode(now)
        elif now >= episode.last + self.window:  # it ended without a summary
            episode.begin(now)
        elif episode.is_long and now >= episode.began + self.window:
            self._ready.append(_summary(key, episode, now))
        if episode.lines_written < self.burst:
            episode.lines_written += 1
            episode.record(now)
            return True
        episode.record_counted(now)
        episode.is_long = True
        self._due = min(self._due, episode.due(self.window, self.quiet))
        return False

    def _forget_ended(self, now: float) -> None:
        """Forget ended episodes with nothing left to say and no recent line."""
        self._episodes = {
            key: episode
            for key, episode in self._episodes.items()
            if now < max(episode.last, episode.began) + self.window or episode.untold
        }
        self._full_until = min(
            (max(episode.last, episode.began) + self.window for episode in self._episodes.values()), default=-inf
        )

    def _close_quiet(self, now: float) -> None:
        """End the episodes that have been quiet for long enough."""
        for key, episode in self._episodes.items():
            if now >= episode.due(self.window, self.quiet):
                self._ready.append(_summary(key, episode, now, over=True))
                episode.mark_over(now)
        self._due = min((each.due(self.window, self.quiet) for each in self._episodes.values()), default=inf)

    def _worked(self, event: events.Worked) -> tuple[list[str], int]:
        """Return the kinds of lines that a piece of work is worth, and how often its key has failed in a row."""
        key = _key_hash(event)
        failures = self._keys.pop(key, 0)
        if event.ending not in ("retry", "slow"):
            recovered = failures and event.ending != "buried"  # `Buried` is a line
            return ["key_recovered"] if recovered else [], failures
        failures += 1
        self._keys[key] = failures
        if len(self._keys) > MAX_KEYS:
            self._keys.popitem(last=False)
        kinds = []
        if failures == 1:
            kinds.append("key_failing")
        elif failures % REPEAT_EVERY == 0 and (failures // REPEAT_EVERY).bit_count() == 1:
            kinds.append("key_keeps_failing")
        if event.ending == "slow":
            kinds.append("slowed")
        return kinds, failures


def _episode_key(event: Event) -> EpisodeKey | None:
    """Return the episode of an event; None if it is no line, or if that depends on its key (`Worked`)."""
    find = EPISODES.get(type(event))
    found = ("other", type(event).__name__) if find is None else find(event)
    return None if found is None else (found[0], shown_name(event.name), one_line(found[1], MAX_NAME))


def _first_failure(event: events.FirstFailure) -> tuple[str, str] | None:
    return None if event.reason == "fatal" else ("failing", event.reason)  # then `GaveUp` is a line


def _gave_up(event: events.GaveUp) -> tuple[str, str] | None:
    if event.reason == "fatal":
        return "fatal", "" if event.error is None else error_type(event.error)
    return ("cancelled", "") if event.reason == "cancelled" else ("gave_up", event.reason)


EPISODES: dict[type[Event], Callable[[Any], tuple[str, str] | None]] = {
    events.Worked: lambda event: None,  # depends on its key: `LogSampler._worked`
    events.Waited: lambda event: None,  # a bucket that makes calls wait does its job
    events.Retry: lambda event: ("retry", event.reason),
    events.FirstFailure: _first_failure,
    events.GaveUp: _gave_up,
    events.BudgetRefused: lambda event: ("refused", event.gate),
    events.Recovered: lambda event: ("recovered", ""),
    events.LayeredRetry: lambda event: ("layered", event.inner),
    events.ShelterChanged: lambda event: ("shelter", event.state),
    events.Buried: lambda event: ("buried", event.kind),
    events.LeaseLost: lambda event: ("lease_lost", ""),
    events.WorkerCrashed: lambda event: ("crashed", ""),
    events.BreakerOpened: lambda event: ("breaker", ""),
    events.SourceFailed: lambda event: ("source_failing", event.source),
    events.StoreDegraded: lambda event: ("store", "degraded" if event.degraded else "well"),
}
"""The kind and the detail of the line that an event is worth; None for no line."""


def _nothing(now: float) -> list[LogLine]:
    """Return nothing on re-entry: the lines stay for later."""
    return []


def _summary(key: EpisodeKey, episode: LogEpisode, now: float, over: bool = False) -> LogLine:
    since = episode.began if episode.untold else episode.last
    return LogLine(*key, more=episode.take_count(now), seconds=now - since, over=over)


def _key_hash(event: events.Worked) -> int:
    """Return a number for a key, which may itself be of any size."""
    try:
        return hash((event.name, event.key))
    except Exception:
        return hash((event.name, short_repr(event.key)))
