"""What a fleet shares without a round trip per call: budgets, buckets, and what is known of a dependency.

Each process has one courier for a store. It goes once a second or so, and carries everything at once: what was earned,
spent, wanted or seen here, for what is granted until the next time. Calls never wait for it. When the store is slow or
gone each process goes by limits of its own, and says so.
"""

from abate.stores.fleet.bucket import FleetBucket
from abate.stores.fleet.budget import FleetBudget
from abate.stores.fleet.courier import Courier
from abate.stores.fleet.shelter import FleetShelter

__all__ = ["Courier", "FleetBucket", "FleetBudget", "FleetShelter"]
