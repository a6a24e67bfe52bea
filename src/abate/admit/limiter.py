"""The adaptive concurrency limiter: how many attempts may be in flight to one dependency. No I/O, no lock.

    calm ──► failures, or answers that take much longer than usual ──► storm ──► all fails ──► probing
      ▲                                                                  │                        │ an answer
      └── quiet for a second, no call waits ◄── recovering ◄─────────────┴────────────────────────┘

* Only blips and overload count as failures. Any answer, including a fatal error, shows that the server is up.
* An error that the server answered with and that is no overload (a 500) counts only if the server answers no other call
  well (`abate.admit.outage_detector`). An attempt that a caller's deadline cut off counts only if it hung
  (`abate.admit.hang_detector`).
* **calm** has no limit and counts no outcomes. A failure or an error switches counting on, still without a limit;
  `CALM_AFTER` seconds without a failure switch it off. A new process starts with `INITIAL_LIMIT` in flight.
* **storm**: more than half of the recent attempts failed, or attempts queue up at the server. The limit is cut at most
  once per round trip, down to the share of it that was answered. While calls wait for the limit, each answer raises it:
  quickly until attempts begin to queue, step by step from then on.
* **Queueing** (Vegas): latencies tell how many of the attempts in flight wait in a queue of the server. The limit moves
  towards `QUEUED_TARGET` of these, and shrinks at once above `QUEUED_MAX`. The target is higher while many calls wait,
  so that clients which don't know of each other share the server by demand.
* **Load experiments** (`abate.admit.load_experiment`): if answers stay slow without failures, a third more is sent for
  a while, to find out whether the server is slower or attempts queue up.
* **Silence**: if the last `INITIAL_LIMIT` attempts have all been in flight for longer than an attempt may take, the
  limit drops at once, long before they time out.
* **probing**: almost every attempt fails, at least the last `PROBING_STREAK` (or the first one of this process). The
  limiter is paused: only one probe is sent after each pause (`abate.admit.prober`). Attempts that were in flight when
  probing began are no longer counted: they may never end.
* Attempts under a limit are sent at a distance from each other, so that the answers to one burst don't cause another.
"""

from __future__ import annotations

from math import inf

from abate.admit.hang_detector import INITIAL_LIMIT, HangDetector
from abate.admit.latency_model import LatencyModel
from abate.admit.load_experiment import LoadExperiment
from abate.admit.outage_detector import NO_OUTCOME_TIMEOUT, OutageDetector
from abate.admit.prober import Prober
from abate.events import ShelterState
from abate.schedule.backoff import RandomSource, Schedule

RECOVERY_LIMIT = 4.0
"""Attempts in flight after the first answer to a probe."""
LONG_OUTAGE = 2.0
"""Seconds of an outage after which the calls that waited are worked off by their deadlines: too long for most of them
to be answered soon (`abate.admit.shelter_queue.SOON`)."""
CALM_AFTER = 1.0
"""Seconds without a failure and without a waiting call after which the state is calm."""
PROBING_STREAK = 5
"""Probing begins after at least this many failures in a row, whatever the failure ratio."""
STORM_FAILURE_RATIO = 0.5
"""The failure ratio above which the limit is cut."""
OUTAGE_FAILURE_RATIO = 0.7
"""The failure ratio from which all attempts count as failing. The streak alone is not enough: if a third of the
attempts fail, five failures in a row happen by chance."""
RECENT_OUTCOMES = 10
"""The failure ratio is a moving average over about this many outcomes."""
QUEUED_TARGET, QUEUED_EXTRA, QUEUED_MAX, MANY_WAITERS = 2.0, 4.0, 9.0, 400
"""Attempts that may wait in the server's queue: `QUEUED_TARGET`, and up to `QUEUED_EXTRA` more as the number of waiting
calls approaches `MANY_WAITERS`. Above `QUEUED_MAX` the limit shrinks at once."""
FAST_STEP = 0.5
"""At first, each answer adds this to the limit."""
SLOW_STEP = 0.4
"""Later, the answers of one round trip add this to the limit."""
SHRINK = 0.65
"""The limit is multiplied by this after failures, and if too many attempts queue."""
PACING_RATIO = 0.5
"""Attempts under a limit are sent at least this share of their mean distance apart."""


class Permit:
    """An attempt in flight. `epoch` counts how often probing has begun; `out` is true until the attempt has ended."""

    __slots__ = ("epoch", "out", "sent")

    def __init__(self, epoch: int, sent: float) -> None:
        self.epoch = epoch
        self.sent = sent
        self.out = True


class Limiter:
    """The limiter of one dependency on one clock.

    >>> import random
    >>> from abate.schedule.backoff import Backoff
    >>> limiter = Limiter(random.Random(1), now=0.0)
    >>> limiter.state, limiter.limit
    ('calm', 10.0)
    >>> limiter.on_failure(limiter.send(0.0), 0.1, Backoff(1.0, jitter="none"))
    >>> limiter.state, limiter.paused_until(), limiter.due()
    ('probing', 1.1, 1.1)
    """

    __slots__ = (
        "_catch_up_until",
        "_counted_outcomes",
        "_ever_answered",
        "_failure_streak",
        "_fast_growth",
        "_last_cut",
        "_last_held_back",
        "_last_outcome",
        "_last_trouble",
        "_limit_before_storm",
        "_next_paced",
        "_of_errors",
        "_patience",
        "_rng",
        "answers",
        "calm",
        "epoch",
        "experiment",
        "failure_ratio",
        "failures",
        "hangs",
        "in_flight",
        "last_failure",
        "latencies",
        "limit",
        "outages",
        "prober",
        "state",
    )

    def __init__(self, rng: RandomSource, now: float, patience: float = inf) -> None:
        self._rng = rng
        self.latencies = LatencyModel(now)
        self.hangs = HangDetector(self.latencies, now)
        self.outages = OutageDetector()
        self.prober = Prober(rng, now, patience)
        self.state: ShelterState = "calm"
        self.calm = False
        """Whether nothing is limited or counted. `state` is ``"calm"`` also while outcomes are still counted."""
        self.limit = float(INITIAL_LIMIT)
        self.in_flight = self.epoch = 0
        self.answers = self.failures = 0
        """Outcomes counted so far. Failures do not include error responses: they may concern this process alone."""
        self.last_failure = -inf
        """The instant of the last failure, seen here or reported by other processes."""
        self.failure_ratio = 0.0
        self._counted_outcomes = self._failure_streak = 0
        self._ever_answered = False
        self._next_paced = -inf
        self._limit_before_storm = 0.0
        self._fast_growth = True
        self._of_errors = False
        """Whether the server answered the last probe with an error: that may concern some callers only."""
        self._patience = patience
        self._catch_up_until = -inf
        """Until then the calls of an outage may wait: after the first answer, for as long as a call's patience."""
        self._last_outcome = self._last_trouble = self._last_held_back = self._last_cut = now
        self.experiment = LoadExperiment(now)

    # -- before an attempt

    def due(self) -> float:
        """Return the instant from which one more attempt may be sent, if nothing else happens."""
        return max(
            self.prober.next_probe,
            self.prober.hint_until,
            self._last_outcome + NO_OUTCOME_TIMEOUT if self._at_limit() else self._next_paced,
        )

    def _at_limit(self) -> bool:
        return self.in_flight + 1 > self.limit

    def paused_until(self) -> float:
        """Return the instant before which no attempt is sent, whatever the outcomes are."""
        return self.prober.paused_until()

    def catching_up(self, now: float) -> bool:
        """Return whether the calls of a long outage are worked off, as fast as the server takes them."""
        return self.state == "recovering" and self._fast_growth and now < self._catch_up_until

    def interval(self) -> float:
        """Return the seconds between two calls at the current limit; infinite if attempts fail and it is not known."""
        return inf if self.failure_ratio >= 1 / RECENT_OUTCOMES else self.latencies.usual() / self.limit

    def on_call(self, now: float) -> None:
        """Count a call that is about to make its first attempt."""
        if self.hangs.is_silent(now):
            self._on_silence(now)
        self.prober.on_call(now, self.latencies.next_sample if self.calm else None)

    def send(self, now: float) -> Permit:
        """Count one more attempt in flight."""
        if not self.in_flight or now >= self._last_outcome + NO_OUTCOME_TIMEOUT:
            self._last_outcome = now  # the next NO_OUTCOME_TIMEOUT starts here
        self.in_flight += 1
        self.hangs.on_sent(now)
        latency = self.latencies.latency
        if latency is not None and (self.state == "storm" or self.state == "recovering"):
            self._next_paced = now + PACING_RATIO * latency / self.limit
        return Permit(self.epoch, now)

    def on_held_back(self, now: float) -> None:
        """Note that a call has to wait, unless it waits only for the distance between two attempts."""
        if self._at_limit() or self.paused_until() > now:
            self._last_held_back = now

    # -- after an attempt

    def on_abandoned(self, permit: Permit, now: float, sent: bool = False) -> None:
        """End an attempt that has no outcome: it was not sent, or it was `sent` and its caller cut it off."""
        permit.out = False
        if permit.epoch == self.epoch:
            self.in_flight -= 1
            self.hangs.on_abandoned(permit.sent if sent else None, now)
            if sent and self.state == "probing":
                self.prober.abandoned(now)

    def start_counting(self, now: float) -> None:
        """Count outcomes from now on, although nothing is known to have failed: only counted attempts reveal a hang."""
        if self.calm:
            self._leave_calm(now)

    def is_serving(self) -> bool:
        """Return whether the server keeps answering other calls well, as far as is known."""
        return not self.outages.outage

    def probe_chance(self) -> float | None:
        """Return a random number in [0, 1) that picks the call that probes; None if the next attempt is no probe."""
        return self._rng.random() if self.state == "probing" else None

    def on_answer(self, permit: Permit | None, now: float, waiting: int) -> None:
        """Count an answer of the server to an attempt, with or without a permit, while `waiting` calls wait."""
        self._update_failure_ratio(0.0)
        self.answers += 1
        self._failure_streak = 0
        self._ever_answered = True
        self.outages.on_answer(now, self.latencies.next_sample if self.calm else None)
        self.hangs.on_good_answer()
        if self.state == "probing":
            self._start_recovery(now)
        if permit is not None:
            self._end_attempt(permit, now)
            self._measure(now - permit.sent, now)
            if not self.calm:
                interfered = not waiting or self.failure_ratio >= 1 / RECENT_OUTCOMES
                self.limit = self.experiment.on_answer(permit.sent, now, self.limit, self.latencies, interfered)
        if not self.calm and self.failure_ratio <= STORM_FAILURE_RATIO:
            self._adjust_limit(now, waiting)
        if self.state == "storm" and self.failure_ratio < STORM_FAILURE_RATIO / 2 and self.limit >= RECOVERY_LIMIT:
            self.state = "recovering"
        if not (self.calm or waiting) and self._is_quiet(now):
            self._enter_calm(now)

    def _is_quiet(self, now: float) -> bool:
        """Return whether nothing has failed and no call was held back for `CALM_AFTER` seconds."""
        return max(self._last_trouble, self._last_held_back) <= now - CALM_AFTER and self.paused_until() <= now

    def on_failure(
        self,
        permit: Permit | None,
        now: float,
        backoff: Schedule,
        hint_until: float | None = None,
        uncounted: bool = False,
        retry: int = 1,
        answered: bool = False,
    ) -> None:
        """Count a failed attempt.

        * `backoff` and `retry` are the schedule of the call and the number of its next retry; they give the pause.
        * `hint_until` is the instant before which the server asked for no attempt.
        * `uncounted`: the attempt was sent in calm. Its failure switches counting on and is not counted itself, because
          successes were not counted either.
        * `answered`: the server answered with an error, which may concern this request alone.
        """
        if self.calm:
            self._leave_calm(now)
            if uncounted:  # good answers to attempts of wrappers already in flight are not counted either
                self.outages.start_counting(now, self.latencies.late_after())
        self.outages.on_failure(answered, now)
        if permit is None:
            current = not uncounted and self.state != "probing"
        else:
            current = permit.epoch == self.epoch
            self._end_attempt(permit, now)
        if answered and self.state != "probing" and self.is_serving():
            return  # the error concerns this request alone
        self._last_trouble = self.last_failure = now
        if not uncounted:
            self._update_failure_ratio(1.0)
            self.failures += not answered
        if current:
            self._react_to_failure(now, backoff, retry, answered)
        if hint_until is not None and self.state == "probing":
            self.prober.hint(hint_until, now, for_all=not self._ever_answered or self.outages.was_clean)

    def apply_remote_outage(self, now: float, peers: int) -> None:
        """Probe, for `peers` processes, because other processes have seen an outage."""
        self.last_failure = now
        self.start_counting(now)
        if self.state != "probing":
            self.prober.outage_start = self._last_trouble = now
            self._of_errors = False
            self._start_probing()
            self.prober.next_probe = now
        self.prober.set_peers(peers, now)

    # -- rules

    def _react_to_failure(self, now: float, backoff: Schedule, retry: int, answered: bool) -> None:
        """Cut the limit or begin to probe, if too much fails."""
        self._failure_streak += 1
        if self.state == "probing" or self._all_fail():
            own_pause = self.prober.backoff_pause(backoff, retry)  # before any change: it may be the user's function
            if self.state != "probing":
                self.prober.outage_start = now
            self.prober.schedule(own_pause, now, answered)
            self._of_errors = answered
            self._start_probing()
        elif self.failure_ratio > STORM_FAILURE_RATIO and self._counted_outcomes >= PROBING_STREAK:
            if self.state != "storm":
                self.state, self._limit_before_storm = "storm", self._effective_limit()
            self._shrink_limit(now, max(1.0, self._limit_before_storm * (1.0 - self.failure_ratio)))

    def _all_fail(self) -> bool:
        streak = self._failure_streak >= PROBING_STREAK and self.failure_ratio >= OUTAGE_FAILURE_RATIO
        return streak or not self._ever_answered

    def _update_failure_ratio(self, failure: float) -> None:
        self._counted_outcomes += 1
        self.failure_ratio += (failure - self.failure_ratio) / min(self._counted_outcomes, RECENT_OUTCOMES)

    def _end_attempt(self, permit: Permit, now: float) -> None:
        permit.out = False
        if permit.epoch == self.epoch:
            self.in_flight -= 1
            self._last_outcome = now
            self.hangs.unanswered = 0

    def _measure(self, seconds: float, now: float) -> None:
        if not self.calm:
            self.latencies.observe(seconds)
        elif self.latencies.sample(seconds, now):
            self._leave_calm(now)

    def queued(self) -> float:
        """Return how many of the attempts that may be in flight wait in a queue of the server."""
        return self.latencies.queued(self._effective_limit())

    def _effective_limit(self) -> float:
        """Return the limit; without one, what is in flight."""
        return self.limit if self.limit < inf else self.in_flight + 1.0

    def _adjust_limit(self, now: float, waiting: int) -> None:
        """Raise or lower the limit according to how many attempts are queued."""
        if self.experiment.runs:
            return  # an experiment sends more than it should on purpose
        queued, target = self.queued(), QUEUED_TARGET + QUEUED_EXTRA * min(1.0, waiting / MANY_WAITERS)
        if queued > QUEUED_MAX:
            self._last_trouble = now
            if self.state == "calm":
                self.state = "storm"
            self._shrink_limit(now, 1.0)
        elif self.limit < inf and (waiting or self.in_flight + 2 > self.limit):
            self._fast_growth = self._fast_growth and queued < target
            if self._fast_growth:
                self.limit += FAST_STEP
            else:
                self.limit = max(1.0, self.limit + SLOW_STEP / self.limit * (1.0 - queued / target))

    def _shrink_limit(self, now: float, least: float) -> None:
        """Cut the limit, at most once per round trip: attempts sent before a cut must not count against it again."""
        if self.limit < inf and now < self._last_cut + (self.latencies.latency or 0.0):
            return
        self.limit = min(self._effective_limit(), max(least, self._effective_limit() * SHRINK))
        self._last_cut = now
        self._fast_growth = False

    def _on_silence(self, now: float) -> None:
        """Limit what is in flight to `INITIAL_LIMIT` while nothing is answered."""
        self.start_counting(now)
        if self.state == "calm":
            self.state = "storm"
        self.limit = min(self.limit, float(INITIAL_LIMIT))
        self._last_trouble = now
        self._fast_growth = True

    # -- changes of state

    def _start_probing(self) -> None:
        self.state = "probing"
        self.epoch += 1
        self.in_flight = self._failure_streak = self.hangs.unanswered = 0
        self.limit = 1.0

    def _start_recovery(self, now: float) -> None:
        self.state = "recovering"
        long = now - self.prober.outage_start > LONG_OUTAGE
        self._catch_up_until = now + self._patience if long and not self._of_errors else -inf
        self.limit = RECOVERY_LIMIT
        self.prober.end_pause()
        self.failure_ratio, self._counted_outcomes = STORM_FAILURE_RATIO / 2, PROBING_STREAK - 1
        self._fast_growth = True
        self._last_held_back = self._last_trouble = now

    def _leave_calm(self, now: float) -> None:
        """Count outcomes from now on."""
        self.calm = False
        self.latencies.leave_calm()
        self.outages.start_counting(now, 0.0)
        self._failure_streak = self._counted_outcomes = 0
        self.failure_ratio = 0.0
        self._last_trouble = self._last_outcome = now
        self.experiment.restart(now)
        self.prober.reset_call_rate(now)

    def _enter_calm(self, now: float) -> None:
        self.calm = True
        self.state = "calm"
        self.limit = inf
        self.latencies.enter_calm(now)
        self._next_paced = -inf
