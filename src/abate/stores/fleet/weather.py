"""What a fleet knows of one dependency: one probe for all, and doors that don't open all at once. Without I/O.

    calm ──► more members see failures than answers ──► storm ──► the prober has an answer ──► recovering ──► calm
                                                          ▲                                        │ more by the answer
                                                          └──────── failures again ◄───────────────┘

* A member's sight counts for `LATELY` seconds: bad where more failed than was answered since the last time, good where
  there were answers. One whose own network is broken does not close the doors of the others.
* **storm**: one member probes for `TURN` seconds, then it is the turn of the next that comes and has calls waiting, so
  that none who is idle or cut off keeps it. The others send nothing. When nobody has calls for it for `STALE` seconds
  the storm is forgotten.
* **recovering**: the fleet may have `limit` in flight, at first an eighth of its members; it grows with every answer,
  up to `GROWTH` times as much in a second, and `GENTLY` where everybody has one. A member of whose calls more than
  `SHED` fail halves it, once a second. Everybody has its part; while that is less than one each, it is one for some:
  those whose place in the line of members, which moves on by one each second, is below the limit. At `PLENTY` for each
  it is calm.
* A hint is for those who were given it. In a storm, where more members see failures than answers, it closes everybody's
  door until then, for `LONGEST` at most, and until the first answer.
* Errors that the server answers with and that are no overload (a 500) are not told to others: they may be those of one
  member's callers. A member that gets nothing else shelters alone.
"""

from __future__ import annotations

from math import floor, inf
from typing import Literal, NamedTuple

from abate.stores.fleet.offers import Forecast, Sight

LATELY = 3.0
"""Seconds for which a member's sight counts."""
TURN = 3.0
"""Seconds for which one member probes."""
STALE = 30.0
"""Seconds after which a storm that nobody has calls for is forgotten."""
LONGEST = 30.0
"""Seconds; a hint of more is taken as this much, and then it is probed whether it still holds."""
FIRST, EIGHTH = 4.0, 1 / 8
"""In flight, of all together, after the first answer: this many, or this part of the members."""
GROWTH, EVERY = 2.0, 1.0
"""The limit grows by what was answered, and by no more than this factor in so many seconds."""
GENTLY = 1.1
"""The same where everybody has one: the server's limit may be near."""
SHED = 0.1
"""The share of failures above which the server is taken to turn calls away."""
PLENTY = 8.0
"""In flight for each member, at which there is no limit any more."""


class Known(NamedTuple):
    """What a store keeps of one dependency; instants are the store's. From `base`, at `grown`, the limit grows."""

    state: str = "calm"
    until: float = -inf
    prober: str = ""
    turn: float = -inf
    limit: float = 0.0
    base: float = 0.0
    grown: float = -inf


class Line(NamedTuple):
    """The members, as far as it matters here: how many see what, and how many stand before this one."""

    members: int
    good: int
    bad: int
    place: int


def seen(sight: Sight) -> Literal["good", "bad", "nothing"]:
    """What a member has seen of a dependency since the last time, in one word."""
    if sight.failed > sight.answered:
        return "bad"
    return "good" if sight.answered else "nothing"


def heard(known: Known, sight: Sight, member: str, line: Line, now: float) -> tuple[Known, Forecast]:
    """What is known after a member has told what it sees, and what it is told.

    >>> down, line = Sight("orders", "probing", 0, 5, 0.0), Line(members=2, good=0, bad=1, place=0)
    >>> known, forecast = heard(Known(), down, "a", line, now=10.0)
    >>> forecast.state, forecast.probe
    ('storm', True)
    >>> heard(known, down, "b", line._replace(bad=2, place=1), now=10.1)[1].probe
    False
    """
    known = _current(known, now)
    if known.state == "calm":
        if line.bad > line.good and seen(sight) == "bad":
            known = known._replace(state="storm", prober=member, turn=now + TURN)
    elif known.state == "storm":
        known = _in_storm(known, sight, member, line, now)
    else:
        known = _recovering(known, sight, member, line, now)
    if known.state == "storm" and sight.closed > 0:
        known = known._replace(until=max(known.until, now + min(sight.closed, LONGEST)))
    return known, _told(known, member, line, now)


def _current(known: Known, now: float) -> Known:
    """What is known, less what is over: a storm that nobody asks about, and instants of a clock that was set back."""
    if known.state != "calm" and now >= max(known.turn, known.grown) + STALE:
        known = Known()
    if known.state == "recovering":  # from nothing, which another program may have written, it would never grow
        known = known._replace(limit=max(1.0, known.limit), base=max(1.0, known.base))
    return known._replace(
        until=min(known.until, now + LONGEST), turn=min(known.turn, now + TURN), grown=min(known.grown, now)
    )


def _in_storm(known: Known, sight: Sight, member: str, line: Line, now: float) -> Known:
    if sight.answered > sight.failed:
        first = max(FIRST, line.members * EIGHTH)
        return known._replace(state="recovering", until=-inf, limit=first, base=first, grown=now)
    if now >= known.turn and sight.state != "calm":
        return known._replace(prober=member, turn=now + TURN)
    return known


def _recovering(known: Known, sight: Sight, member: str, line: Line, now: float) -> Known:
    if seen(sight) == "bad" and line.bad > line.good:
        return known._replace(state="storm", prober=member, turn=now + TURN)
    turned_away = sight.failed > SHED * (sight.answered + sight.failed)
    if now >= known.grown + EVERY:
        base = max(FIRST, known.limit / 2) if turned_away else known.limit
        known = known._replace(limit=base, base=base, grown=now)
    growth = GROWTH if known.base < line.members else GENTLY
    limit = known.limit if turned_away else min(known.limit + sight.answered, known.base * growth)
    if limit >= PLENTY * line.members:
        return Known()
    return known._replace(limit=limit)


def _told(known: Known, member: str, line: Line, now: float) -> Forecast:
    closed = max(0.0, known.until - now)
    if known.state == "calm":
        return Forecast("calm", closed, False, inf, line.members)
    if known.state == "storm":
        return Forecast("storm", closed, known.prober == member, 0.0, line.members)
    each = known.limit / line.members
    if each < 1:
        each = float((line.place + floor(now / EVERY)) % line.members < known.limit)
    return Forecast("recovering", closed, False, each, line.members)
