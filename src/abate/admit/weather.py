"""What a process knows about a dependency, and how much it may send there: the rules of the shelter, without I/O.

    calm ──► failures, or answers that take much longer than usual ──► storm ──► all fails ──► probing
      ▲                                                                  │                        │ an answer
      └── quiet for a second, nobody waits ◄── recovering ◄──────────────┴────────────────────────┘

* Only blips and overload count as failures. An answer, a fatal error included, says that the server is up.
* **One caller's trouble is not everybody's.** An error that the server answered with and that is no overload (a 500)
  counts only where nothing else is answered well: `serves` says for how long that takes to be known. An attempt that
  a caller's own deadline cut off counts only if it was out for much longer than usual (`hung`).
* **calm** has no limit and counts nothing. After a failure it begins to count, still without a limit, and stops when
  `QUIET` seconds bring no other. A process that knows nothing yet begins with `START` in flight and learns.
* **storm**: more than half of the recent attempts failed, or answers crowd up. What may be in flight is halved, once
  per round trip, down to the share of it that was answered. While the limit is what holds calls back, it grows with
  each answer: quickly until answers begin to crowd, step by step from there on.
* **Crowding** (Vegas): of `limit` in flight, ``limit * (1 - usual / now)`` stand in somebody's queue, where `usual` is
  the latency in calm and `now` that of the last answers. The limit goes to where these are a few, little by little, and
  shrinks at once where they are `MANY`. A few are more where many calls wait, so that clients which don't know of each
  other share the server by what they need.
* Answers that stay slow are put to the test: a third more is sent for a while. Those that become slower by it stand in
  our own queue; those that don't are the new usual, and what may be sent follows, step by step.
* Silence is an answer too: where the last `START` attempts have all been out for longer than is usual, no more are sent
  until one of them is back, long before they time out.
* Slow is not down: what is only slow holds calls back for a while, and never refuses one (`failed`, see
  `abate.admit.door`).
* **probing**: next to nothing but failures, the last `ROW` at least (or the very first of all). Closed for a while,
  then one attempt, and so on. The pause is the failed call's own backoff; a busy process may probe sooner, but not
  with more than `PROBES` of its calls, and the longer the outage, the slower. Where the server answers, with errors,
  it may be with `ERRORS` of them, however long that lasts: others may be answered well, and are not known before.
* What is sent under a limit is paced, or the answers to one bunch would be the next one.
* A hint is for the call that it was given to. Where all fails it is taken to be for everybody, and is as long as the
  pause before the next probe; but a pause is no longer than `HOLD` of the shelter's patience, so that those who wait
  learn in time whether the hint still holds. An answer ends it.
* What was in flight when it closed is not counted any more: it may never come back.
"""

from __future__ import annotations

from math import inf
from typing import Literal

from abate.schedule.backoff import FunctionSchedule, Schedule, Uniform

State = Literal["calm", "storm", "probing", "recovering"]

START = 10
"""In flight at once, before anything is known."""
FIRST = 4.0
"""In flight after the first answer to a probe."""
QUIET = 1.0
"""Seconds without a failure, and with nobody held back, after which it is calm."""
ROW = 5
"""Failures in a row without which not all is taken to fail, however bad the share."""
SHARE = 0.5
"""The share of failures above which less is sent."""
ALL = 0.8
"""The share of failures above which all is taken to fail: a third of errors has rows of five by chance."""
RECENT = 10
"""Outcomes that the share is over, more or less: each counts for a tenth, and fades."""
TOLERATED = 1.5
"""Answers may take this many times as long as usual without anybody crowding."""
SLOW = 2.5
"""Answers that take this many times as long as usual are looked into."""
NOTICED = 0.01
"""Seconds; where answers take microseconds, every hiccup of this process is many times as long as usual."""
FEW, MORE, MANY = 2.0, 4.0, 9.0
"""How many of those in flight may stand in a queue: `FEW`, and up to so many `MORE` where `CROWD` calls wait."""
CROWD = 200
QUICKLY = 0.75
"""What an answer adds to the limit at first."""
STEP, LEAST_STEP = 0.02, 0.4
"""What the answers of a round trip add to it later where nobody crowds: a share of the limit, and at least this."""
SHRINK, HALF = 0.8, 0.5
"""What is left of the limit after crowding, and after failures."""
PROBES = 0.05
"""The share of its own calls with which a busy process may probe."""
OUTAGE_SHARE = 0.08
"""The part of an outage's length that may pass before its end is noticed."""
PAUSE = (0.5, 0.6)
"""The least of a later pause, and what chance adds to it, as shares of the backoff's ceiling."""
SPAN = 3.0
"""Seconds; the rate of calls is taken over no less, and over no more than three times this."""
SILENCE, STILL = 0.2, 8.0
"""`START` attempts in a row without a word for so many seconds, or so many times as long as usual: the server hangs."""
OVERDUE = 10.0
"""Seconds without any outcome, after which another attempt may go, even if none is back."""
PACE = 0.5
"""Attempts under a limit keep this share of their mean distance: what comes back in a bunch is not sent as one."""
HOLD = 0.5
"""The share of the shelter's patience for which a hint that all are given keeps it shut before it is probed."""
MISSED = 10.0
"""The server answers well no more after this many times as long as is usual between two good answers, and no sooner
than `SILENCE`, nor later than `OVERDUE`: by chance that is rarer than one in twenty thousand."""
RARER = 2.0
"""Where errors were answered between two good answers, their distance counts for no more than this many times as long
as is usual: good answers that are rare in an outage are not what is usual."""
AGAIN = 20
"""Errors in a row with which a server that has just begun to answer well does so no more."""
ERRORS, APART = 0.1, 0.05
"""The share of its own calls with which a process may probe where the server answers with errors, and the most seconds
that the length of an outage adds to the pause: others may be answered well, and are found by trying several."""
UNKNOWN = 1.0
"""Seconds after which an attempt that was cut off says that the server hangs, where no usual latency is known."""
HASTE = 1.2
"""An attempt is sent only if there is time for an answer that takes this many times as long as the last ones."""
SAMPLES = 20.0
"""Latencies measured per second in calm."""
LEARNED, ENOUGH = 100, 50
"""Samples that the usual latency is the average of, more or less: it follows within some seconds. Until there are
`ENOUGH`, every answer is one, in calm or not."""
PERSISTENT, TRIAL, TRIED = 10.0, 5.0, 100
"""After so many seconds of slow answers without failures, and so many answers, more is sent for a while to see if they
become slower: those that don't are the new usual, and a limit that was made for the old one would starve everybody."""
SLOWER, DARE, DRIFT = 1.1, 1.3, 1.02
"""How slow is slow, how much more is sent then, and how much slower the usual may become per second."""


class Ticket:
    """An attempt in flight: when it was sent, between which two closings, and whether it is still out."""

    __slots__ = ("epoch", "out", "sent")

    def __init__(self, epoch: int, sent: float) -> None:
        self.epoch = epoch
        self.sent = sent
        self.out = True


class Weather:
    """The state of one dependency on one clock.

    >>> import random
    >>> from abate.schedule.backoff import Backoff
    >>> weather = Weather(random.Random(1), now=0.0)
    >>> weather.state, weather.limit
    ('calm', 10.0)
    >>> weather.bad(weather.send(0.0), 0.1, Backoff(1.0, jitter="none"))
    >>> weather.state, weather.opens, weather.may_send(0.5), weather.may_send(1.1)
    ('probing', 1.1, False, True)
    """

    __slots__ = (
        "_answered",
        "_before",
        "_cut",
        "_errors",
        "_gap",
        "_good",
        "_heard",
        "_held_back",
        "_hold",
        "_lately",
        "_offered",
        "_offered_since",
        "_outcomes",
        "_paced",
        "_pauses",
        "_quickly",
        "_rng",
        "_row",
        "_sample_of",
        "_samples",
        "_silence",
        "_silent",
        "_since",
        "_taught",
        "_trial",
        "_trial_of",
        "_unheard",
        "_unheard_since",
        "_worried",
        "answers",
        "calm",
        "epoch",
        "failed",
        "failing",
        "failures",
        "hinted",
        "in_flight",
        "latency",
        "limit",
        "look",
        "opens",
        "peers",
        "state",
        "usual",
    )

    def __init__(self, rng: Uniform, now: float, patience: float = inf) -> None:
        self._rng = rng
        self._hold = HOLD * patience
        self.state: State = "calm"
        self.calm = False
        """Is nothing counted?"""
        self.limit = float(START)
        self.in_flight = 0
        self.epoch = 0
        self.answers = self.failures = 0
        """How many were counted so far; of the failures, those that may be of concern to other processes."""
        self.peers = 1
        """How many processes this one probes for: those of a fleet send its calls together."""
        self.failed = -inf
        """The instant of the last failure, here or told by others."""
        self.failing = 0.0
        """The share of recent attempts that failed."""
        self.opens = self.hinted = self._paced = -inf
        """No attempt before these instants: the end of a pause, what the server asked everybody for, the pace."""
        self.usual: float | None = None
        self.latency: float | None = None
        """Seconds that answers take in calm, and those of late."""
        self.look = now
        """The next instant at which a latency is measured in calm."""
        self._good = -inf
        self._gap = 0.0
        """The instant of the last good answer that was counted, and seconds between two of them."""
        self._errors = 0
        """How many errors the server has answered with since then."""
        self._unheard, self._unheard_since = 0, now
        """How many attempts were cut off late since then, and when the first of them was sent."""
        self._lately = self._taught = 0.0
        self._outcomes = 0
        self._row = 0
        self._pauses = 0
        self._silent = 0
        self._samples = 0
        self._before = 0.0
        self._answered = False
        self._quickly = True
        self._since = self._silence = self._heard = self._worried = self._held_back = self._cut = now
        self._begin_trial(now, None)
        self._offered, self._offered_since = 0.0, now

    # -- may it be sent?

    def may_send(self, now: float) -> bool:
        """Is there room for one more attempt?"""
        return now >= self.due()

    def due(self) -> float:
        """The instant from which there is room for one more attempt, if nothing else happens."""
        return max(self.opens, self.hinted, self._heard + OVERDUE if self._full() else self._paced)

    def _full(self) -> bool:
        return self.in_flight + 1 > self.limit

    def shut(self) -> float:
        """No attempt is sent before this instant, whatever comes in."""
        return max(self.opens, self.hinted)

    def answers_by(self, now: float) -> float:
        """The instant by which an attempt that is sent now will have its answer, as far as latencies tell."""
        return now + HASTE * (self.latency or self.usual or 0.0)

    def answers_in(self, unknown: float) -> float:
        """Seconds within which an attempt has its answer, as far as latencies tell; `unknown` where they don't."""
        known = self.latency or self.usual
        return unknown if known is None else HASTE * known

    def offered(self, now: float) -> None:
        """A call has come: the rate of them bounds that of the probes."""
        # where nothing is known yet, nothing takes longer than usual
        usual = self.usual
        if self._silent >= START and usual is not None and now - self._silence > max(SILENCE, STILL * usual):
            self._hush(now)
        if now - self._offered_since > 3 * SPAN:
            self._offered *= 0.5
            self._offered_since += (now - self._offered_since) * 0.5
        self._offered += 1

    def send(self, now: float) -> Ticket:
        """An attempt is sent."""
        if not self.in_flight or now >= self._heard + OVERDUE:
            self._heard = now  # what is overdue is counted from here
        self.in_flight += 1
        self._silent += 1
        if self._silent == 1:
            self._silence = now
        if self.latency is not None and (self.state == "storm" or self.state == "recovering"):
            self._paced = now + PACE * self.latency / self.limit
        return Ticket(self.epoch, now)

    def held_back(self, now: float) -> None:
        """A call has to wait: the limit is felt, unless it is only for the pace."""
        if self._full() or self.shut() > now:
            self._held_back = now

    # -- what came of it

    def void(self, ticket: Ticket, now: float, sent: bool = False) -> None:
        """An attempt was not sent after all; or it was `sent`, and cut off by its caller: it tells nothing."""
        ticket.out = False
        if ticket.epoch == self.epoch:
            self.in_flight -= 1
            if sent and now - ticket.sent >= self._late():
                self._unheard += 1
                if self._unheard == 1:
                    self._unheard_since = ticket.sent
            self._silent -= self._silent > 0  # no word from the server: the others are out as long as they were
            if sent and self.state == "probing":  # it was a probe none the less
                self.opens = max(self.opens, now + min(self._soonest(now), OVERDUE))

    def doubt(self, now: float) -> None:
        """Begin to count, though nothing is known to have failed: what is not counted can't be seen to hang."""
        if self.calm:
            self._wake(now)

    def hung(self, seconds: float, now: float = -inf) -> bool:
        """Is an attempt that had no answer for so long more than slow?

        So is one that was only late, where `START` before it were, without a good answer between, for as long as that.
        """
        long = UNKNOWN if self.usual is None else max(SILENCE, STILL * self.usual)
        if self._unheard >= START and seconds >= self._late():
            seconds = max(seconds, now - self._unheard_since)
        return seconds >= long

    def _late(self) -> float:
        """Seconds after which most answers would have come."""
        return inf if self.usual is None else max(TOLERATED * self.usual, self.usual + NOTICED)

    def serves(self, now: float) -> bool:
        """Do good answers keep coming, as far as is known?"""
        if self.state == "recovering" and self._errors > AGAIN:
            return False  # one answer in an outage does not make it less of one
        return now - self._good <= min(OVERDUE, max(SILENCE, MISSED * self._gap))

    @property
    def erring(self) -> bool:
        """Are probes answered with errors? Then any of those who wait may have another fate."""
        return self._errors > 0 and self.state == "probing"

    def chance(self) -> float:
        """A number from 0 to 1: callers that come in step must not always be passed over."""
        return self._rng.random()

    def good(self, ticket: Ticket | None, now: float, waiting: int) -> None:
        """The server has answered, to an attempt with a ticket or without, while so many calls are held back."""
        self._count(0.0)
        self.answers += 1
        self._row = 0
        self._answered = True
        if self.answers > 1:
            gap = min(now - self._good, OVERDUE)
            if self._errors:
                gap = min(gap, RARER * max(self._gap, SILENCE / MISSED))
            self._gap += (gap - self._gap) / min(self.answers - 1, RECENT)
        self._good, self._errors, self._unheard = now, 0, 0
        if self.state == "probing":
            self.state = "recovering"
            self.limit = FIRST
            self.opens = self.hinted = -inf
            self.failing, self._outcomes = SHARE / 2, ROW - 1
            self._pauses = 0
            self._quickly = True
            self._held_back = self._worried = now
        if ticket is not None:
            self._left(ticket, now)
            self._measure(now - ticket.sent, now)
            if not self.calm:
                self._compare(ticket.sent, now, waiting)
        if not self.calm and self.failing <= SHARE:
            self._adapt(now, waiting)
        if self.state == "storm" and self.failing < SHARE / 2 and self.limit >= FIRST:
            self.state = "recovering"
        quiet = now - QUIET
        open_ = not waiting and self.shut() <= now
        if not self.calm and open_ and self._worried <= quiet and self._held_back <= quiet:
            self._settle(now)

    def bad(
        self,
        ticket: Ticket | None,
        now: float,
        plan: Schedule,
        until: float | None = None,
        hearsay: bool = False,
        retry: int = 1,
        taken: bool = False,
    ) -> None:
        """An attempt has failed; `plan` and `retry` are the call's own backoff, `until` is what the server asked for.

        What is only `hearsay` starts the counting and no more: where successes were not counted, failures must not be.
        Where the server has `taken` the request and answered with an error, that is the request's own fault, as far as
        is known, while others are answered well.
        """
        self._errors += taken
        if taken and self.state != "probing" and self.serves(now):
            if ticket is not None:
                self._left(ticket, now)
            return
        self._worried = self.failed = now
        if self.calm:
            self._wake(now)
        if ticket is not None:
            current = ticket.epoch == self.epoch
            self._left(ticket, now)
        else:
            current = not hearsay and self.state != "probing"
        if not hearsay:
            self._count(1.0)
            self.failures += not taken
        if current:
            self._failed(now, plan, retry, taken)
        if until is not None and self.state == "probing":
            self.hinted = max(self.hinted, min(until, now + self._hold))

    # -- the rules behind it

    def _failed(self, now: float, plan: Schedule, retry: int, taken: bool) -> None:
        """Send less, or nothing but probes, where too much fails."""
        self._row += 1
        all_fails = (self._row >= ROW and self.failing >= ALL) or not self._answered
        if all_fails or self.state == "probing":
            self._close(now, plan, retry, taken)
        elif self.failing > SHARE and self._outcomes >= ROW:
            if self.state != "storm":
                self.state, self._before = "storm", self._felt()
            self._cut_down(now, HALF, max(1.0, self._before * (1.0 - self.failing)))

    def _count(self, failure: float) -> None:
        self._outcomes += 1
        self.failing += (failure - self.failing) / min(self._outcomes, RECENT)

    def _left(self, ticket: Ticket, now: float) -> None:
        ticket.out = False
        if ticket.epoch == self.epoch:
            self.in_flight -= 1
            self._heard = now
            self._silent = 0

    def _measure(self, seconds: float, now: float) -> None:
        """Learn from how long an answer took: what is usual in calm, and what it is now."""
        if self.calm:
            if now < self.look:
                return  # sent beside another one that was measured: a bunch of answers is one sample
            self.look = now + 1 / SAMPLES
            self._samples += 1
            self.usual = _towards(self.usual, seconds, 1 / min(self._samples, LEARNED))
            self.latency = _towards(self.latency, seconds, 0.5)
            if self.latency > max(SLOW * self.usual, self.usual + NOTICED):
                self._wake(now)
            return
        self.latency = _towards(self.latency, seconds, 0.3)
        if self._samples < ENOUGH:
            # little is known yet; not the quickest that was seen, which chance makes far quicker than the usual
            self._samples += 1
            self.usual = self._lately = self._taught = _towards(self.usual, seconds, 1 / self._samples)
            return
        self._lately = _towards(self._lately, seconds, 1 / LEARNED)
        if self.usual is not None and self._lately < self.usual:
            self.usual, self._taught = self._lately, min(self._taught, self._lately)

    def crowd(self) -> float:
        """How many of those that may be in flight stand in a queue, as far as latencies tell."""
        if not self.latency or self.usual is None:
            return 0.0
        return self._felt() * (1.0 - TOLERATED * self.usual / self.latency)

    def _felt(self) -> float:
        """The limit; where there is none, what is in flight."""
        return self.limit if self.limit < inf else self.in_flight + 1.0

    def _adapt(self, now: float, waiting: int) -> None:
        """Let the limit follow the crowd."""
        if self._trial_of is not None:
            return  # more is sent than there should be, to see what happens
        crowd, few = self.crowd(), FEW + MORE * min(1.0, waiting / CROWD)
        if crowd > MANY:
            self._worried = now
            if self.state == "calm":
                self.state = "storm"
            self._cut_down(now, SHRINK, 1.0)
        elif self.limit < inf and (waiting or self.in_flight + 2 > self.limit):
            self._quickly = self._quickly and crowd < few
            if self._quickly:
                self.limit += QUICKLY
            else:
                self.limit = max(1.0, self.limit + max(STEP, LEAST_STEP / self.limit) * (1.0 - crowd / few))

    def _begin_trial(self, now: float, of: tuple[float, float] | None) -> None:
        """Measure answers from here on: as it is, or against what it was `of`."""
        self._trial, self._trial_of, self._sample_of = now, of, (0, 0.0, 0.0)

    def _compare(self, sent: float, now: float, waiting: int) -> None:
        """Find out whether slow answers are slow because of what is sent: send more, and see."""
        usual = self.usual or 0.0
        if not waiting or self.failing >= 1 / RECENT or self._lately <= SLOWER * usual:
            self._begin_trial(now, None)
        if sent < self._trial or self.limit == inf:
            return
        number, took, allowed = self._sample_of
        number, took, allowed = self._sample_of = number + 1, took + now - sent, allowed + int(self.limit)
        if number < TRIED or now - self._trial < (PERSISTENT if self._trial_of is None else TRIAL):
            return
        if self._trial_of is None:
            self.limit = max(self.limit + 1.0, self.limit * DARE)
            self._begin_trial(now, (took / number, allowed / number))
            return
        before, less = self._trial_of
        drift = DRIFT ** (PERSISTENT + TRIAL)
        if took / number < before * (1.0 + allowed / number / less) / 2:
            self.usual = usual * drift
        else:
            self.usual = max(self._taught, usual / drift)
            self.limit = max(1.0, self.limit / DARE)
        self._begin_trial(now, None)

    def _cut_down(self, now: float, share: float, least: float) -> None:
        """Send less: once per round trip, so that what was sent before is not counted against it twice."""
        if self.limit < inf and now < self._cut + (self.latency or 0.0):
            return
        self.limit = min(self._felt(), max(least, self._felt() * share))
        self._cut = now
        self._quickly = False

    def _hush(self, now: float) -> None:
        """Send no more where nothing comes back: before its timeout, a server that hangs says just that."""
        if self.calm:
            self._wake(now)
        if self.state == "calm":
            self.state = "storm"
        self.limit = min(self.limit, float(START))
        self._worried = now
        self._quickly = True

    def _close(self, now: float, plan: Schedule, retry: int, taken: bool) -> None:
        """Send nothing for a while, and then a probe."""
        own = self._own_pause(plan, self._pauses + 1, retry)  # before anything changes: it may be the user's function
        if self.state != "probing":
            self._since = now
        self._pauses += 1
        self._shut(now + min(own, self._soonest(now, taken) * (0.8 + 0.4 * self._rng.random())))

    def warned(self, now: float, peers: int) -> None:
        """Others have seen all fail: nothing but a probe from now on, as if it had been seen here.

        It is for so many processes that it is sent, and the sooner for that.
        """
        self.failed = now
        if self.calm:
            self._wake(now)
        if self.state != "probing":
            self._since = self._worried = now
            self._shut(now)
        self.peers = peers
        self.opens = min(self.opens, now + self._soonest(now))

    def _shut(self, opens: float) -> None:
        self.state = "probing"
        self.epoch += 1
        self.in_flight = self._row = self._silent = 0
        self.limit = 1.0
        self.opens = opens

    def _own_pause(self, plan: Schedule, pause: int, retry: int) -> float:
        """What the failed call would wait by itself: the first time anything up to that, then about as long."""
        if isinstance(plan, FunctionSchedule):  # which may know of no more than the call's own retries
            pause = min(pause, retry)
        if not plan.jittered:
            return plan.delay(pause, self._rng)
        ceiling = plan.ceiling(pause)
        return ceiling * (self._rng.random() if pause == 1 else PAUSE[0] + PAUSE[1] * self._rng.random())

    def _soonest(self, now: float, taken: bool = False) -> float:
        """Seconds until the next probe, for a process that is busy; less where the server has `taken` the last one."""
        rate = self.peers * self._offered / max(SPAN, now - self._offered_since)
        share, most = (ERRORS, APART) if taken else (PROBES, inf)
        return max(1 / (share * rate) if rate else inf, min(most, (now - self._since) * OUTAGE_SHARE))

    def _wake(self, now: float) -> None:
        """Begin to count."""
        self.calm = False
        self._lately = self._taught = self.usual or 0.0
        self._row = self._outcomes = 0
        self.failing = 0.0
        self._worried = self._heard = now
        self._begin_trial(now, None)
        self._offered, self._offered_since = 0.0, now

    def _settle(self, now: float) -> None:
        self.calm = True
        self.state = "calm"
        self.limit = inf
        self.latency = self.usual
        self._paced = -inf
        self.look = now + 1 / SAMPLES


def _towards(value: float | None, seen: float, weight: float) -> float:
    return seen if value is None else value + (seen - value) * weight
