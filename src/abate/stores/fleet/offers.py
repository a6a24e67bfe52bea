"""What a process brings to a store, and what it is given: the two sides of one exchange.

A process comes once a second or so, with one offer for each thing that it shares, and all of them are one round trip.
The store knows each of those who come as a member until it has stayed away for `GONE` seconds.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from abate.stores.ledger import Terms

GONE = 5.0
"""Seconds after which a member that has not come is not counted any more."""


class Accounts(NamedTuple):
    """For a budget: what was earned and spent since the last time, and the tokens that are held and wanted.

    `spent` are withdrawals that no token stood for; `held` are tokens that are handed in, to be drawn anew.
    """

    name: str
    terms: Terms
    earned: int
    spent: int
    held: int
    want: int


class Tokens(NamedTuple):
    """For a budget: withdrawals that are paid for, and how many members share it."""

    granted: int
    members: int


class Demand(NamedTuple):
    """For a bucket: tokens per second that this process would have taken."""

    name: str
    wanted: float


class Share(NamedTuple):
    """For a bucket: the part of its rate that is this process's until it comes again, and how many share it."""

    part: float
    members: int


class Sight(NamedTuple):
    """For a shelter: what this process has seen of a dependency since the last time.

    `state` is its own weather's; `closed` the seconds for which a server asked everybody to stay away.
    """

    name: str
    state: str
    answered: int
    failed: int
    closed: float


class Forecast(NamedTuple):
    """For a shelter: what the fleet knows of a dependency.

    * `state`: calm, storm or recovering.
    * `closed`: seconds for which nobody is to send anything.
    * `probe`: is it this process that asks whether the dependency is up again?
    * `limit`: how much this process may have in flight while it recovers; below 1, nothing yet.
    """

    state: str
    closed: float
    probe: bool
    limit: float
    members: int


Offer: TypeAlias = Accounts | Demand | Sight
Answer: TypeAlias = Tokens | Share | Forecast
