"""The rules by which a store answers offers, without I/O: for the engines that reckon in Python.

Redis states them in Lua as well; one conformance suite holds all of them to the same answers.

* **Budget**: one balance for all (see `abate.stores.ledger`). What a member was granted counts as withdrawn, from then
  on; what it still holds is handed in each time and drawn anew, so that a token is never older than one exchange, and
  those of a process that was killed leave the window by themselves. Nobody gets more than its part of what is left.
* **Bucket**: each member has a part of the rate, by what it wants; all parts together are never more than one. A tenth
  is kept for those who come newly.
* **Shelter**: see `weather`.
"""

from __future__ import annotations

from math import ceil

from abate.stores.ledger import Terms

KEPT = 0.1
"""The part of a bucket's rate that is left for newcomers."""
IDLE = 0.05
"""Who wants nothing is counted as wanting this part of what everybody else wants on average."""


def granted(terms: Terms, deposits: int, withdrawals: int, want: int, members: int) -> int:
    """How many withdrawals one of so many members is given.

    >>> granted(Terms(ratio=0.0, reserve=1.0, window=10.0), deposits=0, withdrawals=2, want=50, members=4)
    2
    """
    left = terms.granted(deposits, withdrawals, want=10**9)
    return min(want, ceil(left / max(1, members)))


def part(wanted: float, others_wanted: list[float], others_parts: list[float]) -> float:
    """The part of a bucket's rate for one member, given what the others want, and the parts that they have.

    >>> part(10.0, [10.0], [0.45]), part(10.0, [], []), part(10.0, [10.0], [0.9])
    (0.45, 0.9, 0.09...)
    """
    everybody = [wanted, *others_wanted]
    least = IDLE * sum(everybody) / len(everybody) or 1.0
    fair = max(wanted, least) / sum(max(one, least) for one in everybody)
    return max(0.0, min(fair * (1.0 - KEPT), 1.0 - sum(others_parts)))
