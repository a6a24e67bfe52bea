"""The rules by which a store grants shares, without I/O.

SQLite uses them directly. Redis has them in Lua, PostgreSQL in PL/pgSQL; one conformance suite holds all three to the
same replies.

* **Budget**: one balance for all (see `abate.stores.budget`). Tokens count as withdrawn when they are granted. Tokens
  that a member still holds are returned with each sync and granted anew, so a token is never older than one sync, and
  the tokens of a killed process leave the window by themselves. A member gets at most its share of the balance.
* **Bucket**: each member has a share of the rate, by its demand; the shares never add up to more than one. A tenth is
  reserved for new members.
* **Shelter**: see `shelter_rules`.
"""

from __future__ import annotations

from math import ceil

from abate.stores.budget import BudgetTerms

NEWCOMERS_RESERVE = 0.1
"""The share of a bucket's rate that is reserved for new members."""
IDLE_DEMAND = 0.05
"""The demand of an idle member, as a fraction of the average demand."""


def budget_grant(terms: BudgetTerms, deposits: int, withdrawals: int, want: int, members: int) -> int:
    """Return how many withdrawals one of `members` members is granted.

    >>> budget_grant(BudgetTerms(ratio=0.0, reserve=1.0, window=10.0), deposits=0, withdrawals=2, want=50, members=4)
    2
    """
    left = terms.granted(deposits, withdrawals, want=10**9)
    return min(want, ceil(left / max(1, members)))


def bucket_share(wanted: float, others_wanted: list[float], others_shares: list[float]) -> float:
    """Return one member's share of a bucket's rate, given the demands and the shares of the others.

    >>> bucket_share(10.0, [10.0], [0.45]), bucket_share(10.0, [], []), bucket_share(10.0, [10.0], [0.9])
    (0.45, 0.9, 0.09...)
    """
    demands = [wanted, *others_wanted]
    least = IDLE_DEMAND * sum(demands) / len(demands) or 1.0
    fair = max(wanted, least) / sum(max(demand, least) for demand in demands)
    return max(0.0, min(fair * (1.0 - NEWCOMERS_RESERVE), 1.0 - sum(others_shares)))
