"""The requests of a process to a store, and the replies: one sync of shared limits.

A shared limit is a budget, a bucket or a shelter. A process sends one request for each of its shared limits, about once
a second, all in one round trip. It is a member of the fleet until it has sent nothing for `MEMBER_TIMEOUT` seconds.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from abate.stores.budget import BudgetTerms

MEMBER_TIMEOUT = 5.0
"""Seconds after its last request until a member is not counted any more."""


class BudgetRequest(NamedTuple):
    """For a budget: deposits and withdrawals since the last sync, and tokens held and wanted.

    `spent` counts withdrawals without a token; the `held` tokens are returned, and granted anew.
    """

    name: str
    terms: BudgetTerms
    earned: int
    spent: int
    held: int
    want: int


class BudgetGrant(NamedTuple):
    """For a budget: the tokens that the process may hold, and the number of members."""

    granted: int
    members: int


class BucketRequest(NamedTuple):
    """For a bucket: the tokens per second that this process has asked for."""

    name: str
    wanted: float


class BucketGrant(NamedTuple):
    """For a bucket: this process's share of the rate until the next sync, and the number of members."""

    share: float
    members: int


class ShelterReport(NamedTuple):
    """For a shelter: what this process has seen of a dependency since the last sync.

    `state` is that of its own limiter; `hint_left` is the seconds until a server's hint has passed.
    """

    name: str
    state: str
    answered: int
    failed: int
    hint_left: float


class ShelterAdvice(NamedTuple):
    """For a shelter: what the fleet knows of a dependency.

    * `state`: calm, storm (an outage) or recovering.
    * `pause`: seconds for which no process sends anything.
    * `probe`: whether this process is the one that probes.
    * `limit`: how many calls of this process may be in flight during recovery; below 1, none yet.
    """

    state: str
    pause: float
    probe: bool
    limit: float
    members: int


SyncRequest: TypeAlias = BudgetRequest | BucketRequest | ShelterReport
SyncReply: TypeAlias = BudgetGrant | BucketGrant | ShelterAdvice
