"""May it be sent at all: gates that admit attempts or refuse them, and never wait inside a call.

`Budget` bounds retries by successes, `TokenBucket` bounds the rate, `Permits` bounds what is in flight, `Throttle`
refuses more the more the server refuses. ``a & b`` admits what both admit. `Shelter` is no gate: calls wait there.
"""

from abate.admit.bucket import TokenBucket
from abate.admit.budget import Budget
from abate.admit.gate import All, Gate
from abate.admit.permits import Permits
from abate.admit.shelter import Shelter
from abate.admit.throttle import Throttle

__all__ = ["All", "Budget", "Gate", "Permits", "Shelter", "Throttle", "TokenBucket"]
