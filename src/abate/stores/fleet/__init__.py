"""Limits that a fleet of processes shares without a round trip per call: budgets, buckets and shelters.

Each process has one background sync for a store. About once a second it sends what was earned, spent, wanted or seen by
all limits of this process, and gets what is granted until the next time. Calls never wait for it. While the store is
slow or down, each process applies local limits, and logs that.
"""

from abate.stores.fleet.background_sync import FleetSync
from abate.stores.fleet.bucket import FleetBucket
from abate.stores.fleet.budget import FleetBudget
from abate.stores.fleet.shelter import FleetShelter

__all__ = ["FleetBucket", "FleetBudget", "FleetShelter", "FleetSync"]
