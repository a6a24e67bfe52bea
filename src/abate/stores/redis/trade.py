"""The offers of a fleet's members as calls of scripts, and their answers; the rules are in Lua there, and in
`abate.stores.fleet` in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any, TypeAlias, assert_never

from abate.admit.budget import Terms as Units
from abate.stores.fleet.offers import Accounts, Answer, Demand, Forecast, Offer, Share, Sight, Tokens
from abate.stores.fleet.weather import seen
from abate.stores.ledger import Terms
from abate.stores.redis import scripts
from abate.stores.redis.names import Names
from abate.stores.redis.scripts import Script

Call: TypeAlias = tuple[Script, Sequence[str], Sequence[Any]]
LARGEST = 2**52
"""Lua counts in floats."""


def terms_told(terms: Terms) -> tuple[Any, ...]:
    """The window of a budget, and two fractions: what a deposit earns, and what is reserved.

    >>> terms_told(Terms(ratio=0.6, reserve=0.25, window=10.0))
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


def counts_told(*counts: int) -> tuple[int, ...]:
    """Counts that Lua can count with."""
    return tuple(min(count, LARGEST) for count in counts)


def told(names: Names, now: str, member: str, offer: Offer) -> Call:
    """The call that brings an offer."""
    match offer:
        case Accounts(name, terms, earned, spent, held, want):
            counts = counts_told(earned, want, held, spent)
            return scripts.TOKENS, names.of_budget(name), (now, *terms_told(terms), *counts, member)
        case Demand(name, wanted):
            return scripts.SHARE, names.of_bucket(name), (now, repr(wanted), member)
        case Sight(name, state, answered, failed, closed):
            sight = (state, seen(offer), answered, failed, repr(closed))
            return scripts.FORECAST, names.of_shelter(name), (now, member, *sight)
        case other:
            assert_never(other)


def heard(offer: Offer, answer: Sequence[Any]) -> Answer:
    """What a script answers to an offer."""
    match offer:
        case Accounts():
            return Tokens(*answer)
        case Demand():
            return Share(float(answer[0]), answer[1])
        case Sight():
            state, closed, probe, limit, members = answer
            return Forecast(state.decode(), float(closed), bool(probe), float(limit), members)
        case other:
            assert_never(other)
