"""Which events are worth a line: without clock or I/O. A storm of failures is not a storm of lines.

The rules:

* What goes as planned is no line, nor is what another line tells: a retry is one only when the backoff of its call has
  grown to its cap, once, a key only when it first fails, when it has failed 5, 10, 20, 40, … times in a row, when its
  backoff has grown to its cap, and when it is well again.
* Lines come in episodes: one per policy, kind and detail (the reason, the state, the gate). The first `burst` events of
  an episode are a line each; what follows is counted, and told by one line every `window` seconds.
* If there was more to an episode than its burst, a line says that it is over once it has been quiet for some seconds
  (see `abate.observe.episode`). It ends when nothing of its kind has come for a window; what comes then is a first
  again.
* There are `most` episodes at a time; what would be one more is told together with others of its kind. So at most
  ``(most + number of kinds) * (burst + 1)`` lines come in any window, and whatever is not a line of its own is counted.
* Events come from any thread. What is merely counted takes no lock, so that nobody waits in a storm; what may be a line
  is decided by one thread at a time, which takes microseconds. An event that comes within a decision, as a garbage
  collection may bring it, is decided next.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from math import inf

from abate import events
from abate.errors import number, whole
from abate.events import Event
from abate.locks import Section
from abate.observe.caps import Caps
from abate.observe.episode import Episode
from abate.observe.words import LONGEST_NAME, Fact, Level, error_type, facts, sentence
from abate.redact import line, shown
from abate.values import Value

MOST_KEYS = 10_000
"""Keys that are known to fail; the one that has not failed for longest is forgotten."""
REPEATED = 5
"""Failures in a row after which a key is told again; and after twice as many, and so on."""
QUIET = 10.0
"""Seconds without an event after which an episode may be over."""
LAST_WAIT = 1.0
"""Seconds that the end of a program waits for a thread that is still deciding."""
OTHERS = "(others)"
"""The policy in the lines of those that are told together."""
UNTOLD = frozenset({"budget", "layer", "cancelled"})
"""Reasons for giving up: the first two have events of their own, the third is the caller's will."""

KINDS: dict[str, tuple[Level, str]] = {
    "failing": ("warning", "calls failed at their first attempt"),
    "at_cap": ("warning", "calls had a backoff that has grown to its cap"),
    "refused": ("warning", "attempts were refused"),
    "gave_up": ("warning", "calls gave up"),
    "fatal": ("info", "calls ended in an error that is not retried"),
    "recovered": ("info", "calls succeeded after a retry"),
    "layered": ("warning", "calls were not retried, as a layer inside had given up"),
    "shelter": ("warning", "changes of a shelter"),
    "key_failing": ("warning", "keys failed for the first time"),
    "key_keeps_failing": ("warning", "keys failed again and again"),
    "key_at_cap": ("warning", "keys had a backoff that has grown to its cap"),
    "key_recovered": ("info", "keys that had failed are done"),
    "slowed": ("warning", "keys come back at the slow rate, as the budget is exhausted"),
    "buried": ("error", "keys were buried"),
    "lease_lost": ("warning", "leases ran out"),
    "crashed": ("error", "workers crashed"),
    "fuse": ("warning", "times most messages failed and none were taken"),
    "source_failing": ("warning", "failures of a source"),
    "store": ("warning", "changes of a store"),
    "other": ("info", "other events"),
}
"""Every kind of line: its level, and what many of them are called."""


class Line(Value):
    """One line: of an `event`, or of `more` events in so many `seconds` that were not told by lines of their own.

    `failures` is how often the key has failed in a row; `over` says that the episode has ended.

    >>> Line("gave_up", "orders", "attempts", more=4212, seconds=60.0).text
    'orders: … and 4,212 more calls gave up (attempts) in the last 60 s'
    """

    kind: str
    policy: str
    detail: str = ""
    event: Event | None = None
    failures: int = 0
    more: int = 0
    seconds: float = 0.0
    over: bool = False

    @property
    def level(self) -> Level:
        """How much it matters."""
        return "info" if self.over and not self.more else KINDS[self.kind][0]

    @property
    def text(self) -> str:
        """The line in words."""
        if self.event is None:
            return f"{self.policy}: {self._summary()}"
        match self.kind, self.event:
            case "at_cap", events.Retry():
                return f"{sentence(self.event)} (the backoff has grown to its cap)"
            case (("key_failing" | "key_keeps_failing" | "key_at_cap"), events.Worked(_, key, _, _, _, error)):
                times = "" if self.failures == 1 else f" {self.failures} times in a row"
                cap = " (the backoff has grown to its cap)" if self.kind == "key_at_cap" else ""
                return f"{self.policy}: {shown(key, LONGEST_NAME)} has failed{times}: {shown(error)}{cap}"
            case "key_recovered", events.Worked(_, key):
                times = "failure" if self.failures == 1 else "failures"
                return f"{self.policy}: {shown(key, LONGEST_NAME)} is done after {self.failures} {times}"
            case "slowed", events.Worked(_, key):
                return f"{self.policy}: the budget is exhausted: {shown(key, LONGEST_NAME)} comes back at the slow rate"
            case _:
                return sentence(self.event)

    @property
    def facts(self) -> dict[str, Fact]:
        """The line as plain values."""
        if self.event is None:
            told: dict[str, Fact] = {"policy": self.policy, "more": self.more, "seconds": round(self.seconds, 3)}
            return told | ({"detail": self.detail} if self.detail else {}) | {"over": self.over}
        return facts(self.event) | ({"failures": self.failures} if self.failures else {})

    def _summary(self) -> str:
        what = KINDS[self.kind][1] + (f" ({self.detail})" if self.detail else "")
        span = f"{self.seconds:.3g} s"
        if not self.over:
            return f"… and {self.more:,} more {what} in the last {span}"
        return f"… and {self.more:,} more {what}; it is over" if self.more else f"no more {what} for {span}: it is over"


Subject = tuple[str, str, str]
"""Of an episode: kind, policy, detail."""


class Transitions:
    """Takes events, answers with the lines that they are worth.

    >>> transitions = Transitions(burst=1, window=60.0)
    >>> down = events.FirstFailure("orders", "blip", OSError("down"))
    >>> [line.text for line in transitions.lines(down, now=0.0)]
    ["orders: first failure (blip): OSError('down')"]
    >>> [transitions.lines(down, now=1.0), transitions.lines(down, now=2.0)]
    [[], []]
    >>> [line.text for line in transitions.overdue(now=12.0)]
    ['orders: … and 2 more calls failed at their first attempt (blip); it is over']
    """

    __slots__ = (
        "__weakref__",
        "_caps",
        "_due",
        "_episodes",
        "_keys",
        "_now",
        "_section",
        "_told",
        "burst",
        "most",
        "quiet",
        "window",
    )

    def __init__(self, burst: int = 3, window: float = 60.0, most: int = 200) -> None:
        self.burst = whole("burst", burst, least=1)
        self.window = number("window", window, above=0)
        self.quiet = min(QUIET, self.window)
        self.most = whole("most", most, least=1)
        self._episodes: dict[Subject, Episode] = {}
        self._keys: OrderedDict[int, tuple[int, bool]] = OrderedDict()  # failures; was the cap told?
        self._caps = Caps()
        self._now = -inf
        self._due = inf
        self._section = Section()
        self._told: list[Line] = []
        """Lines that were decided on, and are to be written by who comes next."""

    @property
    def due(self) -> float:
        """The instant at which `overdue` may have something to say; infinite where nothing is left untold."""
        return self._due

    def lines(self, event: Event, now: float) -> list[Line]:
        """An event has come: what is to be written now, perhaps of others as well."""
        subject = self._subject(event)
        if now < self._due and not isinstance(event, events.Worked):
            if subject is None:
                return []
            episode = self._episodes.get(subject)
            if episode is not None and episode.long and now < min(episode.began, episode.last) + self.window:
                episode.counted(now)
                return []
        return self._take(event, subject, now)

    def overdue(self, now: float) -> list[Line]:
        """What there is to say about episodes that go on or have ended."""
        return self._take(None, None, now)

    def rest(self, now: float) -> list[Line]:
        """Everything that has not been told yet: the program ends."""
        lines: list[Line] = []
        for taken in iter(partial(self._section.lock.acquire, timeout=LAST_WAIT), None):
            if taken:
                try:
                    lines += self._section.ask(self._rest, now, otherwise=_nothing)
                finally:
                    self._section.lock.release()
            break
        return lines + self._decided()

    def _rest(self, now: float) -> list[Line]:
        return [_summary(subject, episode, now) for subject, episode in self._episodes.items() if episode.more]

    def after_fork(self) -> None:
        """In the child nobody else decides; what the parent counted is the parent's to tell."""
        self._section.after_fork()
        self._section.left.clear()
        self._told = []
        self._episodes = {}
        self._due = inf

    def _take(self, event: Event | None, subject: Subject | None, now: float) -> list[Line]:
        self._section.run(self._decide, event, subject, now)
        return self._decided()

    def _decided(self) -> list[Line]:
        """Take the lines that are to be written; each is taken once."""
        lines: list[Line] = []
        while self._told:
            try:
                lines.append(self._told.pop(0))
            except IndexError:
                break  # another one writes it
        return lines

    # -- by one thread at a time

    def _decide(self, event: Event | None, subject: Subject | None, now: float) -> None:
        now = self._now = max(now, self._now)  # of two threads the later may be served first
        if now >= self._due:
            self._sweep(now)
        subjects, failures = [] if subject is None else [subject], 0
        if isinstance(event, events.Worked):
            kinds, failures = self._worked(event)
            subjects = [(kind, line(event.policy, LONGEST_NAME), "") for kind in kinds]
        for each in subjects:
            if self._enter(each, now):
                self._told.append(Line(*each, event, failures))

    def _enter(self, subject: Subject, now: float) -> bool:
        """Count an event, after a summary of those before it where that is due; is it a line of its own?"""
        episode = self._episodes.get(subject)
        if episode is None and len(self._episodes) >= self.most:
            self._clear(now)
            if len(self._episodes) >= self.most:
                subject = (subject[0], OTHERS, "")
                episode = self._episodes.get(subject)
        if episode is None:
            episode = self._episodes[subject] = Episode(now)
        elif now >= episode.last + self.window:  # it has ended, and there was nothing to say
            episode.begin(now)
        elif episode.long and now >= episode.began + self.window:
            self._told.append(_summary(subject, episode, now))
        if episode.shown < self.burst:
            episode.shown += 1
            episode.came(now)
            return True
        episode.counted(now)
        episode.long = True
        self._due = min(self._due, episode.due(self.window, self.quiet))
        return False

    def _clear(self, now: float) -> None:
        """Forget the episodes that have ended, of which nothing is left to say, nor was anything said of late."""
        self._episodes = {
            subject: episode
            for subject, episode in self._episodes.items()
            if now < max(episode.last, episode.began) + self.window or episode.more
        }

    def _sweep(self, now: float) -> None:
        """Say of what has been quiet for long enough that it is over."""
        for subject, episode in self._episodes.items():
            if now >= episode.due(self.window, self.quiet):
                self._told.append(_summary(subject, episode, now, over=True))
                episode.calm(now)
        self._due = min((each.due(self.window, self.quiet) for each in self._episodes.values()), default=inf)

    def _worked(self, event: events.Worked) -> tuple[list[str], int]:
        """The kinds of lines that a piece of work is worth, and how often its key has failed in a row."""
        key = _identity(event)
        failures, capped = self._keys.pop(key, (0, False))
        if event.ending not in ("retry", "slow"):
            told = failures and event.ending != "buried"  # which has an event of its own
            return ["key_recovered"] if told else [], failures
        failures += 1
        reaches_cap = not capped and self._caps.key_is_at_cap(event)
        self._keys[key] = failures, capped or reaches_cap
        if len(self._keys) > MOST_KEYS:
            self._keys.popitem(last=False)
        kinds = []
        if failures == 1:
            kinds.append("key_failing")
        elif failures % REPEATED == 0 and (failures // REPEATED).bit_count() == 1:
            kinds.append("key_keeps_failing")
        if reaches_cap:
            kinds.append("key_at_cap")
        if event.ending == "slow":
            kinds.append("slowed")
        return kinds, failures

    # -- by any thread

    def _subject(self, event: Event) -> Subject | None:
        """What an event is about, if it is worth a line; of work that depends on its key."""
        policy = line(event.policy, LONGEST_NAME)
        match event:
            case events.Worked() | events.Waited():
                return None  # a bucket that lets wait does its work
            case events.FirstFailure(_, "fatal"):
                return None  # then the call has given up as well, which is told
            case events.FirstFailure(_, reason):
                return "failing", policy, line(reason, LONGEST_NAME)
            case events.Retry(_, _, _, reason):
                return ("at_cap", policy, line(reason, LONGEST_NAME)) if self._caps.call_reaches_cap(event) else None
            case events.BudgetRefused(_, gate):
                return "refused", policy, line(gate, LONGEST_NAME)
            case events.GaveUp(_, "fatal", _, _, error):
                return "fatal", policy, "" if error is None else error_type(error)
            case events.GaveUp(_, reason):
                return None if reason in UNTOLD else ("gave_up", policy, line(reason, LONGEST_NAME))
            case events.Recovered():
                return "recovered", policy, ""
            case events.LayeredRetry(_, inner):
                return "layered", policy, line(inner, LONGEST_NAME)
            case events.ShelterChanged(_, _, state):
                return "shelter", policy, line(state, LONGEST_NAME)
            case events.Buried(_, _, kind):
                return "buried", policy, line(kind, LONGEST_NAME)
            case events.LeaseLost():
                return "lease_lost", policy, ""
            case events.WorkerCrashed():
                return "crashed", policy, ""
            case events.FuseBlown():
                return "fuse", policy, ""
            case events.SourceFailed(_, source):
                return "source_failing", policy, line(source, LONGEST_NAME)
            case events.StoreDegraded(_, degraded):
                return "store", policy, "degraded" if degraded else "well"
            case _:
                return "other", policy, type(event).__name__


def _nothing(now: float) -> list[Line]:
    """Tell nothing from within a decision: it stays to be told."""
    return []


def _summary(subject: Subject, episode: Episode, now: float, over: bool = False) -> Line:
    since = episode.began if episode.more else episode.last
    return Line(*subject, more=episode.tell(now), seconds=now - since, over=over)


def _identity(event: events.Worked) -> int:
    """A number for a key: the keys themselves may be of any size."""
    try:
        return hash((event.policy, event.key))
    except Exception:
        return hash((event.policy, shown(event.key)))
