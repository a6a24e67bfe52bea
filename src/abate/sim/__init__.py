"""Simulated worlds in virtual time, in which production policies run against services that fail.

    clients ──policy──► service ──► service …

* A `World` has callers (`Clients`, `Controllers`), services (`Service`, `Row`), and failures (`Trigger`).
* An engine runs it: **exact** processes one event at a time, with the production objects (calls that succeed at once
  take a short path with the same result); **coroutine** runs any async code; **fleet** runs millions of clients as
  arrays.
* The same seed gives the same run. Read means over many seeds, with their intervals.
"""

from __future__ import annotations

from abate.sim.measures import Load, Run
from abate.sim.model import Clients, Controllers, Duration, Limit, Row, Service
from abate.sim.scenario import Scenario, load_scenario
from abate.sim.server import Answer, simulated
from abate.sim.study import Estimate, Result, Study, run_study
from abate.sim.world import Trigger, World

__all__ = [
    "Answer",
    "Clients",
    "Controllers",
    "Duration",
    "Estimate",
    "Limit",
    "Load",
    "Result",
    "Row",
    "Run",
    "Scenario",
    "Service",
    "Study",
    "Trigger",
    "World",
    "load_scenario",
    "run_study",
    "simulated",
]


def __dir__() -> list[str]:
    return sorted(__all__)
