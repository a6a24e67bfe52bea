"""Encode the sync requests of a fleet's members as calls of scripts, and decode the replies.

The scripts implement the rules of `abate.stores.fleet` in Lua.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any, TypeAlias, assert_never

from abate.admit.budget_units import Units
from abate.stores.budget import BudgetTerms
from abate.stores.fleet.shelter_rules import classify
from abate.stores.fleet.sync_requests import (
    BucketGrant,
    BucketRequest,
    BudgetGrant,
    BudgetRequest,
    ShelterAdvice,
    ShelterReport,
    SyncReply,
    SyncRequest,
)
from abate.stores.redis import scripts
from abate.stores.redis.key_names import KeyNames
from abate.stores.redis.scripts import LuaScript

Call: TypeAlias = tuple[LuaScript, Sequence[str], Sequence[Any]]
MAX_LUA_INTEGER = 2**52
"""Lua's numbers are floats."""


def encode_terms(terms: BudgetTerms) -> tuple[Any, ...]:
    """Return the window of a budget, and two fractions: what a deposit earns, and the reserve.

    >>> encode_terms(BudgetTerms(ratio=0.6, reserve=0.25, window=10.0))
    ('10.0', 3, 5, 5, 2)
    """
    units = Units.of(float(terms.ratio), float(terms.reserve * terms.window))
    earned, reserved = gcd(units.per_deposit, units.one), gcd(units.reserved, units.one)
    return (
        repr(float(terms.window)),
        units.per_deposit // earned,
        units.one // earned,
        units.reserved // reserved,
        units.one // reserved,
    )


def clamp_counts(*counts: int) -> tuple[int, ...]:
    """Limit counts to integers that Lua represents exactly."""
    return tuple(min(count, MAX_LUA_INTEGER) for count in counts)


def encode_request(names: KeyNames, now: str, member: str, request: SyncRequest) -> Call:
    """Return the call of a script for a request."""
    match request:
        case BudgetRequest(name, terms, earned, spent, held, want):
            counts = clamp_counts(earned, want, held, spent)
            return scripts.BUDGET_GRANT, names.budget_keys(name), (now, *encode_terms(terms), *counts, member)
        case BucketRequest(name, wanted):
            return scripts.BUCKET_GRANT, names.bucket_keys(name), (now, repr(wanted), member)
        case ShelterReport(name, state, answered, failed, hint_left):
            report = (state, classify(request), answered, failed, repr(hint_left))
            return scripts.SHELTER_ADVICE, names.shelter_keys(name), (now, member, *report)
        case other:
            assert_never(other)


def decode_reply(request: SyncRequest, answer: Sequence[Any]) -> SyncReply:
    """Decode the reply of a script to a request."""
    match request:
        case BudgetRequest():
            return BudgetGrant(*answer)
        case BucketRequest():
            return BucketGrant(float(answer[0]), answer[1])
        case ShelterReport():
            state, pause, probe, limit, members = answer
            return ShelterAdvice(state.decode(), float(pause), bool(probe), float(limit), members)
        case other:
            assert_never(other)
