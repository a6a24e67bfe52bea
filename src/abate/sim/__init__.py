"""The storm before the storm: worlds in virtual time, in which the very policies run that run in production.

    clients ──policy──► service ──► service …      one attempt after the other, in the order in which they would happen

* A `World` says who calls (`Clients`, `Controllers`), what is called (`Service`, `Row`), what goes wrong (`Trigger`).
* An engine runs it: **exact** goes from event to event with the production objects; **coroutine** runs async code,
  abate's or anybody's, in the same world; **fleet** does millions of clients with arrays.
* The same seed gives the same run. One run says little: read means over seeds, with their intervals.
"""

from __future__ import annotations

from abate.sim.answers import Answer, simulated
from abate.sim.clients import Clients, Controllers
from abate.sim.durations import Duration
from abate.sim.measures import Load, Run
from abate.sim.scenario import Scenario, load_scenario
from abate.sim.services import Limit, Row, Service
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
