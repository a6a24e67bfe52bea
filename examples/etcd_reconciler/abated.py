"""The same with abate: one controller for all services, a rate for all of them together, a shelter before etcd.

* **The controller** hands each service to one of a few workers. One that fails comes back after its backoff, with
  jitter and within a budget, and is looked at afresh. It is the only one that retries.
* **The shelter** holds back what would be sent while etcd doesn't answer. One request at a time tries whether it is
  up again, and then more and more are let through.
* **The bucket** paces the looks at services, so that a thousand of them at once are no reason to hurry.
"""

import abate
from abate.schedule.backoff import RandomSource
from examples.etcd_reconciler.client import Conflict, Etcd, NoAnswer
from examples.etcd_reconciler.state import Services, reconcile

WORKERS = 20
RATE = 200.0
"""Looks at services per second; one takes two requests."""
PATIENCE = 600.0
"""Seconds; no caller waits for these calls, so they can wait for etcd."""
SLOW = 5.0
"""Seconds until a service comes back whose retry the budget refused."""


async def abated(etcd: Etcd, services: Services, backoff: abate.Backoff, *, rng: RandomSource | None = None) -> None:
    """Reconcile what changes, until cancelled."""
    shelter = abate.Shelter(name="etcd", patience=PATIENCE, rng=rng)
    sheltered = etcd.through(abate.Policy(name="etcd", on=NoAnswer, max_attempts=1, shelter=shelter))
    pace = abate.TokenBucket(rate=RATE)

    @abate.controller(workers=WORKERS, on=(Conflict, NoAnswer), backoff=backoff, slow=SLOW, rng=rng)
    async def bring_about(name: str) -> None:
        await pace.aacquire()
        await reconcile(sheltered, name)

    bring_about.source(services)
    await bring_about.arun()
