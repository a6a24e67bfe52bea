"""Encode the sync requests of a fleet's members for PostgreSQL (`shared_limit_functions`), and decode the replies."""

from __future__ import annotations

import json
from math import inf
from typing import Any, assert_never

from abate.admit.budget_units import Units
from abate.stores.budget import BudgetTerms
from abate.stores.fleet import grant_rules, shelter_rules
from abate.stores.fleet.sync_requests import (
    MEMBER_TIMEOUT,
    BucketGrant,
    BucketRequest,
    BudgetGrant,
    BudgetRequest,
    ShelterAdvice,
    ShelterReport,
    SyncReply,
    SyncRequest,
)
from abate.stores.postgres.encoding import encode_text
from abate.stores.postgres.session import Row

CONSTANTS = json.dumps(
    {
        "gone": MEMBER_TIMEOUT,
        "idle": grant_rules.IDLE_DEMAND,
        "kept": grant_rules.NEWCOMERS_RESERVE,
        "lately": shelter_rules.REPORT_VALID,
        "turn": shelter_rules.PROBE_TURN,
        "first": shelter_rules.FIRST_LIMIT,
        "eighth": shelter_rules.FIRST_LIMIT_SHARE,
        "growth": shelter_rules.LIMIT_GROWTH,
        "gently": shelter_rules.SLOW_GROWTH,
        "every": shelter_rules.GROWTH_INTERVAL,
        "shed": shelter_rules.MAX_FAILURE_RATIO,
        "plenty": shelter_rules.CALM_LIMIT,
        "stale": shelter_rules.OUTAGE_TIMEOUT,
        "longest": shelter_rules.MAX_PAUSE,
    }
)
"""The constants of the rules, passed with every sync."""


def encode_request(request: SyncRequest) -> dict[str, Any]:
    """Encode a request as a JSON object."""
    name = encode_text(request.name)
    match request:
        case BudgetRequest():
            return {
                "scope": f"budget:{name}",
                "name": name,
                **{part: str(value) for part, value in units(request.terms).items()},
                "earned": request.earned,
                "spent": request.spent,
                "held": request.held,
                "want": request.want,
            }
        case BucketRequest():
            return {"scope": f"bucket:{name}", "wanted": repr(request.wanted)}
        case ShelterReport():
            return {
                "scope": f"shelter:{name}",
                "name": name,
                "state": request.state,
                "answered": request.answered,
                "failed": request.failed,
                "closed": repr(request.hint_left),
                "sees": shelter_rules.classify(request),
            }
        case other:
            assert_never(other)


def units(terms: BudgetTerms) -> dict[str, Any]:
    """Return the terms of a budget: its window, and the rest in whole numbers."""
    whole = Units.of(float(terms.ratio), float(terms.reserve * terms.window))
    return {
        "window": repr(float(terms.window)),
        "one": whole.one,
        "per_deposit": whole.per_deposit,
        "reserved": whole.reserved,
    }


def decode_reply(request: SyncRequest, row: Row) -> SyncReply:
    """Decode the reply to a request."""
    members, granted, share, state, pause, probe, limit = row
    many = int(members or 0)
    match request:
        case BudgetRequest():
            return BudgetGrant(int(granted or 0), many)
        case BucketRequest():
            return BucketGrant(float(share or 0), many)
        case ShelterReport():
            return ShelterAdvice((state or b"").decode(), float(pause or 0), probe == b"t", float(limit or inf), many)
        case other:
            assert_never(other)
