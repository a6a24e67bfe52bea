"""The offers of a fleet's members to a store in PostgreSQL, and its answers. The rules are in `trading`."""

from __future__ import annotations

import json
from math import inf
from typing import Any, assert_never

from abate.admit.budget import Terms as Units
from abate.stores.fleet import rules, weather
from abate.stores.fleet.offers import GONE, Accounts, Answer, Demand, Forecast, Offer, Share, Sight, Tokens
from abate.stores.ledger import Terms
from abate.stores.postgres.letters import written
from abate.stores.postgres.session import Row

NUMBERS = json.dumps(
    {
        "gone": GONE,
        "idle": rules.IDLE,
        "kept": rules.KEPT,
        "lately": weather.LATELY,
        "turn": weather.TURN,
        "first": weather.FIRST,
        "eighth": weather.EIGHTH,
        "growth": weather.GROWTH,
        "gently": weather.GENTLY,
        "every": weather.EVERY,
        "shed": weather.SHED,
        "plenty": weather.PLENTY,
        "stale": weather.STALE,
        "longest": weather.LONGEST,
    }
)
"""The numbers of the rules."""


def told(offer: Offer) -> dict[str, Any]:
    """An offer as an object of JSON."""
    name = written(offer.name)
    match offer:
        case Accounts():
            return {
                "scope": f"budget:{name}",
                "name": name,
                **{part: str(value) for part, value in units(offer.terms).items()},
                "earned": offer.earned,
                "spent": offer.spent,
                "held": offer.held,
                "want": offer.want,
            }
        case Demand():
            return {"scope": f"bucket:{name}", "wanted": repr(offer.wanted)}
        case Sight():
            return {
                "scope": f"shelter:{name}",
                "name": name,
                "state": offer.state,
                "answered": offer.answered,
                "failed": offer.failed,
                "closed": repr(offer.closed),
                "sees": weather.seen(offer),
            }
        case other:
            assert_never(other)


def units(terms: Terms) -> dict[str, Any]:
    """The terms of a budget, in whole numbers beside its window."""
    whole = Units.of(float(terms.ratio), float(terms.reserve * terms.window))
    return {
        "window": repr(float(terms.window)),
        "one": whole.one,
        "per_deposit": whole.per_deposit,
        "reserved": whole.reserved,
    }


def answer(offer: Offer, row: Row) -> Answer:
    """What was answered to an offer."""
    members, granted, part, state, closed, probe, limit = row
    many = int(members or 0)
    match offer:
        case Accounts():
            return Tokens(int(granted or 0), many)
        case Demand():
            return Share(float(part or 0), many)
        case Sight():
            return Forecast((state or b"").decode(), float(closed or 0), probe == b"t", float(limit or inf), many)
        case other:
            assert_never(other)
