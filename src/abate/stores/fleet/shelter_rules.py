"""What a fleet knows of one dependency: one process probes for all, and recovery is gradual. Without I/O.

    calm ──► more members see failures than answers ──► storm ──► the prober has an answer ──► recovering ──► calm
                                                          ▲                                        │ more by the answer
                                                          └──────── failures again ◄───────────────┘

* The report of a member counts for `REPORT_VALID` seconds: bad if more calls failed than were answered since the last
  report, good if calls were answered. A member whose own network is broken does not hold back the others.
* **storm**, the stored name of an outage: one member probes for `PROBE_TURN` seconds; then the next member that reports
  and has calls waiting does, so that no idle or disconnected member keeps the turn. The others send nothing. When no
  member has had calls for `OUTAGE_TIMEOUT` seconds, the outage is forgotten.
* **recovering**: the fleet may have `limit` calls in flight, at first an eighth of its members. Each answer raises the
  limit, by a factor of at most `LIMIT_GROWTH` per second, or `SLOW_GROWTH` once each member has one. A member whose
  calls fail by more than `MAX_FAILURE_RATIO` halves it, once a second. Members share it equally. While that is less
  than one call each, members take turns: those whose position, rotated by one each second, is below the limit have one.
  At `CALM_LIMIT` per member the state is calm.
* A hint applies to the member that got it. In a storm it pauses all members, for `MAX_PAUSE` seconds at most, and until
  the first answer.
* Errors that the server answers with and that are no overload (a 500) are not reported: they may concern one member's
  callers only. A member that gets nothing else shelters alone.
"""

from __future__ import annotations

from math import floor, inf
from typing import Literal, NamedTuple

from abate.stores.fleet.sync_requests import ShelterAdvice, ShelterReport

REPORT_VALID = 3.0
"""Seconds for which a member's report counts."""
PROBE_TURN = 3.0
"""Seconds for which one member probes."""
OUTAGE_TIMEOUT = 30.0
"""Seconds without calls after which an outage is forgotten."""
MAX_PAUSE = 30.0
"""Seconds; after this part of a longer hint the dependency is probed."""
FIRST_LIMIT, FIRST_LIMIT_SHARE = 4.0, 1 / 8
"""The first limit of the fleet: this many calls, or this share of the members if that is more."""
LIMIT_GROWTH, GROWTH_INTERVAL = 2.0, 1.0
"""The limit grows by at most this factor in this many seconds."""
SLOW_GROWTH = 1.1
"""The same once each member has one: the server's own limit may be near."""
MAX_FAILURE_RATIO = 0.1
"""The ratio of failures above which the server counts as overloaded."""
CALM_LIMIT = 8.0
"""Calls in flight per member at which the limit is lifted."""


class OutageState(NamedTuple):
    """The state of one dependency in a store, by the store's clock. The limit grows from `base`, set at `grown`."""

    state: str = "calm"
    until: float = -inf
    prober: str = ""
    turn: float = -inf
    limit: float = 0.0
    base: float = 0.0
    grown: float = -inf


class MemberCounts(NamedTuple):
    """How many members there are, how many have good and bad reports, and the position of this one."""

    members: int
    good: int
    bad: int
    place: int


def classify(report: ShelterReport) -> Literal["good", "bad", "nothing"]:
    """Classify the report of a member."""
    if report.failed > report.answered:
        return "bad"
    return "good" if report.answered else "nothing"


def update(
    known: OutageState, report: ShelterReport, member: str, counts: MemberCounts, now: float
) -> tuple[OutageState, ShelterAdvice]:
    """Update the state by the report of a member. Return the new state, and the advice for the member.

    >>> down, counts = ShelterReport("orders", "probing", 0, 5, 0.0), MemberCounts(members=2, good=0, bad=1, place=0)
    >>> known, advice = update(OutageState(), down, "a", counts, now=10.0)
    >>> advice.state, advice.probe
    ('storm', True)
    >>> update(known, down, "b", counts._replace(bad=2, place=1), now=10.1)[1].probe
    False
    """
    known = _reset_stale(known, now)
    if known.state == "calm":
        if counts.bad > counts.good and classify(report) == "bad":
            known = known._replace(state="storm", prober=member, turn=now + PROBE_TURN)
    elif known.state == "storm":
        known = _during_outage(known, report, member, counts, now)
    else:
        known = _recovering(known, report, member, counts, now)
    if known.state == "storm" and report.hint_left > 0:
        known = known._replace(until=max(known.until, now + min(report.hint_left, MAX_PAUSE)))
    return known, _advice(known, member, counts, now)


def _reset_stale(known: OutageState, now: float) -> OutageState:
    """End an outage without calls, and clamp instants of the future, which a clock that was set back leaves behind."""
    if known.state != "calm" and now >= max(known.turn, known.grown) + OUTAGE_TIMEOUT:
        known = OutageState()
    if known.state == "recovering":  # another program may have written 0, from which the limit would never grow
        known = known._replace(limit=max(1.0, known.limit), base=max(1.0, known.base))
    return known._replace(
        until=min(known.until, now + MAX_PAUSE), turn=min(known.turn, now + PROBE_TURN), grown=min(known.grown, now)
    )


def _during_outage(
    known: OutageState, report: ShelterReport, member: str, counts: MemberCounts, now: float
) -> OutageState:
    if report.answered > report.failed:
        first = max(FIRST_LIMIT, counts.members * FIRST_LIMIT_SHARE)
        return known._replace(state="recovering", until=-inf, limit=first, base=first, grown=now)
    if now >= known.turn and report.state != "calm":
        return known._replace(prober=member, turn=now + PROBE_TURN)
    return known


def _recovering(
    known: OutageState, report: ShelterReport, member: str, counts: MemberCounts, now: float
) -> OutageState:
    if classify(report) == "bad" and counts.bad > counts.good:
        return known._replace(state="storm", prober=member, turn=now + PROBE_TURN)
    overloaded = report.failed > MAX_FAILURE_RATIO * (report.answered + report.failed)
    if now >= known.grown + GROWTH_INTERVAL:
        base = max(FIRST_LIMIT, known.limit / 2) if overloaded else known.limit
        known = known._replace(limit=base, base=base, grown=now)
    growth = LIMIT_GROWTH if known.base < counts.members else SLOW_GROWTH
    limit = known.limit if overloaded else min(known.limit + report.answered, known.base * growth)
    if limit >= CALM_LIMIT * counts.members:
        return OutageState()
    return known._replace(limit=limit)


def _advice(known: OutageState, member: str, counts: MemberCounts, now: float) -> ShelterAdvice:
    pause = max(0.0, known.until - now)
    if known.state == "calm":
        return ShelterAdvice("calm", pause, False, inf, counts.members)
    if known.state == "storm":
        return ShelterAdvice("storm", pause, known.prober == member, 0.0, counts.members)
    each = known.limit / counts.members
    if each < 1:
        each = float(_has_turn(known, counts, now))
    return ShelterAdvice("recovering", pause, False, each, counts.members)


def _has_turn(known: OutageState, counts: MemberCounts, now: float) -> bool:
    """Return whether a member may have one call in flight while there is less than one for each."""
    return (counts.place + floor(now / GROWTH_INTERVAL)) % counts.members < known.limit
