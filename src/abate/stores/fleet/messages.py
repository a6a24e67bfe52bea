"""The requests of a process to a store, and the replies: one sync of shared limits.

A process sends one request for each limit that it shares, about once a second, all in one round trip. It is a member of
the fleet until it has sent nothing for `MEMBER_TIMEOUT` seconds.
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
    """For a bucket: this process's part of the rate until the next sync, and the number of members."""

    part: float
    members: int


class ShelterReport(NamedTuple):
    """For a shelter: what this process has seen of a dependency since the last sync.

    `state` is that of its own limiter; `closed` is how many seconds of a server's hint are left.
    """

    name: str
    state: str
    answered: int
    failed: int
    closed: float


class ShelterAdvice(NamedTuple):
    """For a shelter: what the fleet knows of a dependency.

    * `state`: calm, storm (an outage) or recovering.
    * `closed`: seconds for which no process sends anything.
    * `probe`: whether this process is the one that probes.
    * `limit`: how many calls of this process may be in flight during recovery; below 1, none yet.
    """

    state: str
    closed: float
    probe: bool
    limit: float
    members: int


SyncRequest: TypeAlias = BudgetRequest | BucketRequest | ShelterReport
SyncReply: TypeAlias = BudgetGrant | BucketGrant | ShelterAdvice
