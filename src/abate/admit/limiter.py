"""The adaptive concurrency limiter: how many attempts may be in flight to one dependency. No I/O, no lock.

    calm ──► failures, or answers that take much longer than usual ──► storm ──► all fails ──► probing
      ▲                                                                  │                        │ an answer
      └── quiet for a second, no call waits ◄── recovering ◄─────────────┴────────────────────────┘

* Only blips and overload count as failures. Any answer, including a fatal error, shows that the server is up.
* An error that the server answered with and that is no overload (a 500) counts only if the server answers no other call
  well (`abate.admit.outage_detector`). An attempt that a caller's deadline cut off counts only if it hung (`is_hung`).
* **calm** has no limit and counts no outcomes. A failure or an error starts the counting, still without a limit;
  `CALM_AFTER` seconds without a failure end it. A new process starts with `INITIAL_LIMIT` in flight.
* **storm**: more than half of the recent attempts failed, or attempts queue up at the server. The limit is cut at most
  once per round trip, down to the share of it that was answered. While calls wait for the limit, each answer raises it:
  quickly until attempts begin to queue, step by step from then on.
* **Queueing** (Vegas): latencies tell how many of the attempts in flight wait in a queue of the server. The limit moves
  towards the point where these are a few, and shrinks at once if they are more than `QUEUED_MAX`. More are allowed
  where many calls wait, so that clients which don't know of each other share the server by demand.
* **Trials**: if answers stay slow without failures, a third more is sent for a while. If answers become slower by that,
  they wait in our own queue; if not, the slower latency becomes the baseline, step by step.
* **Silence**: if the last `INITIAL_LIMIT` attempts have all been out for longer than an attempt may take, the limit
  drops at once, long before they time out.
* **probing**: almost every attempt fails, the last `CLOSING_STREAK` at least (or the first ever). Nothing is sent but
  one probe after each pause (`abate.admit.prober`). Attempts that were in flight when probing began are no longer
  counted: they may never end.
* Attempts under a limit are paced, so that the answers to one burst don't become the next burst.
"""

from __future__ import annotations

from math import inf
from typing import Literal

from abate.admit.latency_model import LatencyModel
from abate.admit.outage_detector import NO_OUTCOME_TIMEOUT, OutageDetector
from abate.admit.prober import Prober
from abate.schedule.backoff import RandomSource, Schedule

State = Literal["calm", "storm", "probing", "recovering"]

INITIAL_LIMIT = 10
"""Attempts in flight before anything is known; also the number of unanswered attempts that counts as silence."""
RECOVERY_LIMIT = 4.0
"""Attempts in flight after the first answer to a probe."""
CALM_AFTER = 1.0
"""Seconds without a failure and without a waiting call after which the state is calm."""
CLOSING_STREAK = 5
"""Failures in a row that probing needs at least, whatever the failure ratio."""
STORM_FAILURE_RATIO = 0.5
"""The failure ratio above which the limit is cut."""
OUTAGE_FAILURE_RATIO = 0.8
"""The failure ratio from which all attempts count as failing: with a third of errors, five in a row happen by
chance."""
RECENT_OUTCOMES = 10
"""The failure ratio is a moving average over about this many outcomes."""
RELAPSE_ERRORS = 20
"""Errors since the last good answer after which a recovering server counts as down again."""
QUEUED_TARGET, QUEUED_EXTRA, QUEUED_MAX, MANY_WAITERS = 2.0, 4.0, 9.0, 200
"""Attempts that may wait in the server's queue: `QUEUED_TARGET`, and up to `QUEUED_EXTRA` more as the number of waiting
calls approaches `MANY_WAITERS`. Above `QUEUED_MAX` the limit shrinks at once."""
FAST_STEP = 0.75
"""What each answer adds to the limit at first."""
SLOW_STEP, MIN_SLOW_STEP = 0.02, 0.4
"""What the answers of one round trip add later: this share of the limit, and at least `MIN_SLOW_STEP`."""
SHRINK_ON_QUEUEING, SHRINK_ON_FAILURES = 0.8, 0.5
"""What remains of the limit after queueing and after failures."""
PACING_RATIO = 0.5
"""Attempts under a limit keep this share of their mean distance."""
TRIAL_AFTER, TRIAL_SECONDS, TRIAL_ANSWERS = 10.0, 5.0, 100
"""Seconds of slow answers before a trial, seconds of the trial, and the answers that each of the two needs."""
TRIAL_SLOWDOWN, TRIAL_GROWTH, BASELINE_DRIFT = 1.1, 1.3, 1.02
"""Latency above the baseline that starts a trial, growth of the limit in it, and growth of the baseline per second."""


class Permit:
    """An attempt in flight. `epoch` counts the times that probing began; `out` is true until the attempt has ended."""

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
    >>> limiter.state, limiter.closed_until(), limiter.may_send(0.5), limiter.may_send(1.1)
    ('probing', 1.1, False, True)
    """

    __slots__ = (
        "_counted_outcomes",
        "_ever_answered",
        "_failure_streak",
        "_fast_growth",
        "_last_cut",
        "_last_held_back",
        "_last_outcome",
        "_last_trouble",
        "_late_cutoffs",
        "_late_cutoffs_since",
        "_limit_before_storm",
        "_next_paced",
        "_rng",
        "_trial_reference",
        "_trial_start",
        "_trial_sums",
        "_unanswered",
        "_unanswered_since",
        "answers",
        "calm",
        "epoch",
        "failure_ratio",
        "failures",
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
        self.outages = OutageDetector()
        self.prober = Prober(rng, now, patience)
        self.state: State = "calm"
        self.calm = False
        """True while there is no limit and no outcome is counted; the state is calm before that already."""
        self.limit = float(INITIAL_LIMIT)
        self.in_flight = 0
        self.epoch = 0
        self.answers = self.failures = 0
        """Outcomes counted so far; failures without errors that may concern this process alone."""
        self.last_failure = -inf
        """The instant of the last failure, seen here or reported by other processes."""
        self.failure_ratio = 0.0
        self._counted_outcomes = 0
        self._failure_streak = 0
        self._ever_answered = False
        self._late_cutoffs, self._late_cutoffs_since = 0, now
        """Attempts that were cut off late since the last good answer, and when the first of them was sent."""
        self._unanswered, self._unanswered_since = 0, now
        """Attempts sent since the last outcome, and when the first of them was."""
        self._next_paced = -inf
        self._limit_before_storm = 0.0
        self._fast_growth = True
        self._last_outcome = self._last_trouble = self._last_held_back = self._last_cut = now
        self._begin_trial(now, None)

    # -- before an attempt

    def may_send(self, now: float) -> bool:
        """Return whether one more attempt may be sent now."""
        return now >= self.due()

    def due(self) -> float:
        """Return the instant from which one more attempt may be sent, if nothing else happens."""
        return max(
            self.prober.pause_until,
            self.prober.hint_until,
            self._last_outcome + NO_OUTCOME_TIMEOUT if self._at_limit() else self._next_paced,
        )

    def _at_limit(self) -> bool:
        return self.in_flight + 1 > self.limit

    def closed_until(self) -> float:
        """Return the instant before which no attempt is sent, whatever the outcomes are."""
        return self.prober.closed_until()

    def on_call(self, now: float) -> None:
        """A call has come, with its first attempt."""
        if (
            self._unanswered >= INITIAL_LIMIT
            and self.latencies.baseline is not None
            and now - self._unanswered_since > self.latencies.hang_timeout()
        ):
            self._on_silence(now)
        self.prober.on_call(now)

    def send(self, now: float) -> Permit:
        """Count one more attempt in flight."""
        if not self.in_flight or now >= self._last_outcome + NO_OUTCOME_TIMEOUT:
            self._last_outcome = now  # the next NO_OUTCOME_TIMEOUT starts here
        self.in_flight += 1
        self._unanswered += 1
        if self._unanswered == 1:
            self._unanswered_since = now
        latency = self.latencies.latency
        if latency is not None and (self.state == "storm" or self.state == "recovering"):
            self._next_paced = now + PACING_RATIO * latency / self.limit
        return Permit(self.epoch, now)

    def on_held_back(self, now: float) -> None:
        """A call has to wait. Pacing alone does not count."""
        if self._at_limit() or self.closed_until() > now:
            self._last_held_back = now

    # -- after an attempt

    def on_abandoned(self, permit: Permit, now: float, sent: bool = False) -> None:
        """An attempt was not sent after all; or it was `sent`, and its caller cut it off."""
        permit.out = False
        if permit.epoch == self.epoch:
            self.in_flight -= 1
            if sent and now - permit.sent >= self.latencies.late_after():
                self._late_cutoffs += 1
                if self._late_cutoffs == 1:
                    self._late_cutoffs_since = permit.sent
            self._unanswered -= self._unanswered > 0  # the others are still unanswered
            if sent and self.state == "probing":
                self.prober.abandoned(now, NO_OUTCOME_TIMEOUT)

    def start_counting(self, now: float) -> None:
        """Start to count outcomes although nothing is known to have failed: a hang shows only in what is counted."""
        if self.calm:
            self._leave_calm(now)

    def is_hung(self, seconds: float, now: float = -inf) -> bool:
        """Return whether an attempt without an answer for this long hangs.

        So does an attempt that was only late, if `INITIAL_LIMIT` before it were, without a good answer between, over a
        time that long.
        """
        if self._late_cutoffs >= INITIAL_LIMIT and seconds >= self.latencies.late_after():
            seconds = max(seconds, now - self._late_cutoffs_since)
        return seconds >= self.latencies.hang_timeout()

    def is_serving(self) -> bool:
        """Return whether the server keeps answering other calls well, as far as is known."""
        if self.state == "recovering" and self.outages.errors > RELAPSE_ERRORS:
            return False  # one good answer during an outage does not end it
        return not self.outages.outage

    @property
    def probes_get_errors(self) -> bool:
        """Return whether the server answers probes with errors, so that other calls may be answered well."""
        return self.outages.errors > 0 and self.state == "probing"

    def random(self) -> float:
        """Return a random number from 0 to 1, to choose a probe: periodic callers must not always be passed over."""
        return self._rng.random()

    def on_answer(self, permit: Permit | None, now: float, waiting: int) -> None:
        """The server has answered, to a counted attempt or another one, while `waiting` calls are held back."""
        self._update_failure_ratio(0.0)
        self.answers += 1
        self._failure_streak = 0
        self._ever_answered = True
        self.outages.on_answer(now, self.latencies.next_sample if self.calm else None)
        self._late_cutoffs = 0
        if self.state == "probing":
            self._start_recovery(now)
        if permit is not None:
            self._end_attempt(permit, now)
            self._measure(now - permit.sent, now)
            if not self.calm:
                self._run_trial(permit.sent, now, waiting)
        if not self.calm and self.failure_ratio <= STORM_FAILURE_RATIO:
            self._adjust_limit(now, waiting)
        if self.state == "storm" and self.failure_ratio < STORM_FAILURE_RATIO / 2 and self.limit >= RECOVERY_LIMIT:
            self.state = "recovering"
        quiet = now - CALM_AFTER
        is_open = not waiting and self.closed_until() <= now
        if not self.calm and is_open and self._last_trouble <= quiet and self._last_held_back <= quiet:
            self._enter_calm(now)

    def on_failure(
        self,
        permit: Permit | None,
        now: float,
        plan: Schedule,
        hint_until: float | None = None,
        uncounted: bool = False,
        retry: int = 1,
        answered: bool = False,
    ) -> None:
        """An attempt has failed. `plan` and `retry` are the call's own backoff; `hint_until` is the server's request.

        An `uncounted` failure only starts the counting: where successes were not counted, failures must not be.
        `answered` says that the server took the request and answered with an error, which may concern it alone.
        """
        if self.calm:
            self._leave_calm(now)
            if uncounted:  # nor are good answers to what wrappers have in flight
                self.outages.start_counting(now, self.latencies.late_after())
        self.outages.on_failure(answered, now)
        if answered and self.state != "probing" and self.is_serving():
            if permit is not None:
                self._end_attempt(permit, now)
            return
        self._last_trouble = self.last_failure = now
        if permit is not None:
            current = permit.epoch == self.epoch
            self._end_attempt(permit, now)
        else:
            current = not uncounted and self.state != "probing"
        if not uncounted:
            self._update_failure_ratio(1.0)
            self.failures += not answered
        if current:
            self._react_to_failure(now, plan, retry, answered)
        if hint_until is not None and self.state == "probing":
            self.prober.hint(hint_until, now, for_all=not self._ever_answered or self.outages.was_clean)

    def apply_remote_outage(self, now: float, peers: int) -> None:
        """Other processes have seen an outage: probe, for `peers` processes, as if it had been seen here."""
        self.last_failure = now
        if self.calm:
            self._leave_calm(now)
        if self.state != "probing":
            self.prober.outage_start = self._last_trouble = now
            self._start_probing()
            self.prober.pause_until = now
        self.prober.set_peers(peers, now)

    # -- rules

    def _react_to_failure(self, now: float, plan: Schedule, retry: int, answered: bool) -> None:
        """Cut the limit or begin to probe, if too much fails."""
        self._failure_streak += 1
        if self.state == "probing" or self._all_fail():
            own_pause = self.prober.backoff_pause(plan, retry)  # before any change: it may be the user's function
            if self.state != "probing":
                self.prober.outage_start = now
            self.prober.schedule(own_pause, now, answered)
            self._start_probing()
        elif self.failure_ratio > STORM_FAILURE_RATIO and self._counted_outcomes >= CLOSING_STREAK:
            if self.state != "storm":
                self.state, self._limit_before_storm = "storm", self._effective_limit()
            self._shrink_limit(now, SHRINK_ON_FAILURES, max(1.0, self._limit_before_storm * (1.0 - self.failure_ratio)))

    def _all_fail(self) -> bool:
        if not self._ever_answered:
            return True
        return self._failure_streak >= CLOSING_STREAK and self.failure_ratio >= OUTAGE_FAILURE_RATIO

    def _update_failure_ratio(self, failure: float) -> None:
        self._counted_outcomes += 1
        self.failure_ratio += (failure - self.failure_ratio) / min(self._counted_outcomes, RECENT_OUTCOMES)

    def _end_attempt(self, permit: Permit, now: float) -> None:
        permit.out = False
        if permit.epoch == self.epoch:
            self.in_flight -= 1
            self._last_outcome = now
            self._unanswered = 0

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
        if self._trial_reference is not None:
            return  # a trial sends more than it should on purpose
        queued, target = self.queued(), QUEUED_TARGET + QUEUED_EXTRA * min(1.0, waiting / MANY_WAITERS)
        if queued > QUEUED_MAX:
            self._last_trouble = now
            if self.state == "calm":
                self.state = "storm"
            self._shrink_limit(now, SHRINK_ON_QUEUEING, 1.0)
        elif self.limit < inf and (waiting or self.in_flight + 2 > self.limit):
            self._fast_growth = self._fast_growth and queued < target
            if self._fast_growth:
                self.limit += FAST_STEP
            else:
                self.limit = max(1.0, self.limit + max(SLOW_STEP, MIN_SLOW_STEP / self.limit) * (1.0 - queued / target))

    def _begin_trial(self, now: float, reference: tuple[float, float] | None) -> None:
        """Sum up answers from here on: latency and limit as they are, or in a trial to compare with `reference`."""
        self._trial_start, self._trial_reference, self._trial_sums = now, reference, (0, 0.0, 0.0)

    def _run_trial(self, sent: float, now: float, waiting: int) -> None:
        """Find out whether answers are slow because of what is sent: send more, and compare."""
        latencies = self.latencies
        baseline = latencies.baseline or 0.0
        if not waiting or self.failure_ratio >= 1 / RECENT_OUTCOMES or latencies.recent <= TRIAL_SLOWDOWN * baseline:
            self._begin_trial(now, None)
        if sent < self._trial_start or self.limit == inf:
            return
        answers, took, allowed = self._trial_sums
        answers, took, allowed = self._trial_sums = answers + 1, took + now - sent, allowed + int(self.limit)
        seconds = TRIAL_AFTER if self._trial_reference is None else TRIAL_SECONDS
        if answers < TRIAL_ANSWERS or now - self._trial_start < seconds:
            return
        if self._trial_reference is None:
            self.limit = max(self.limit + 1.0, self.limit * TRIAL_GROWTH)
            self._begin_trial(now, (took / answers, allowed / answers))
            return
        latency_before, limit_before = self._trial_reference
        drift = BASELINE_DRIFT ** (TRIAL_AFTER + TRIAL_SECONDS)
        if took / answers < latency_before * (1.0 + allowed / answers / limit_before) / 2:
            latencies.baseline = baseline * drift
        else:
            latencies.baseline = max(latencies.lowest_baseline, baseline / drift)
            self.limit = max(1.0, self.limit / TRIAL_GROWTH)
        self._begin_trial(now, None)

    def _shrink_limit(self, now: float, ratio: float, least: float) -> None:
        """Cut the limit, at most once per round trip: attempts sent before a cut must not count against it again."""
        if self.limit < inf and now < self._last_cut + (self.latencies.latency or 0.0):
            return
        self.limit = min(self._effective_limit(), max(least, self._effective_limit() * ratio))
        self._last_cut = now
        self._fast_growth = False

    def _on_silence(self, now: float) -> None:
        """Send no more while nothing is answered."""
        if self.calm:
            self._leave_calm(now)
        if self.state == "calm":
            self.state = "storm"
        self.limit = min(self.limit, float(INITIAL_LIMIT))
        self._last_trouble = now
        self._fast_growth = True

    # -- changes of state

    def _start_probing(self) -> None:
        self.state = "probing"
        self.epoch += 1
        self.in_flight = self._failure_streak = self._unanswered = 0
        self.limit = 1.0

    def _start_recovery(self, now: float) -> None:
        self.state = "recovering"
        self.limit = RECOVERY_LIMIT
        self.prober.reopen()
        self.failure_ratio, self._counted_outcomes = STORM_FAILURE_RATIO / 2, CLOSING_STREAK - 1
        self._fast_growth = True
        self._last_held_back = self._last_trouble = now

    def _leave_calm(self, now: float) -> None:
        """Start to count outcomes."""
        self.calm = False
        self.latencies.leave_calm()
        self.outages.start_counting(now, 0.0)
        self._failure_streak = self._counted_outcomes = 0
        self.failure_ratio = 0.0
        self._last_trouble = self._last_outcome = now
        self._begin_trial(now, None)
        self.prober.reset_call_rate(now)

    def _enter_calm(self, now: float) -> None:
        self.calm = True
        self.state = "calm"
        self.limit = inf
        self.latencies.enter_calm(now)
        self._next_paced = -inf
