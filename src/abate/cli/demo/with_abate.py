"""The same with abate: one controller and one policy per process; budget and shelter are shared by all processes.

* **The controller** gives an object to one of a few workers. If it fails, the object is added again after its backoff.
* **The policy** retries a request, within a budget.
* **The shelter** holds requests back while the API is down. Processes share its state through a store, a SQLite file:
  one of them probes for all, and when the API is back the limit grows step by step.
"""

from __future__ import annotations

import abate
from abate.cli.demo.desired_objects import Objects

WORKERS = 8
"""Per process. With one worker per controller all would send a request at the disconnect, as the naive loop does."""
PATIENCE = 120.0
"""Seconds; nothing waits for these calls, so that they can wait for the API."""
SLOW = 2.0
"""Seconds until an object is added again whose retry the budget refused."""


async def run_with_abate(objects: Objects, url: str) -> None:
    """Reconcile objects that change, until cancelled."""
    store = abate.open_store(url)
    policy = abate.Policy(
        name="api",
        on=(abate.http.transient, OSError),  # TimeoutError is an OSError
        max_attempts=5,
        budget=store.budget("api"),
        shelter=store.shelter("api", patience=PATIENCE),
        idempotent=True,  # writing a version twice has no effect
    )
    ask = policy(objects.ask)

    @abate.controller(name="objects", workers=WORKERS, slow=SLOW)
    async def keep_in_step(name: int) -> None:
        await objects.reconcile(name, ask)

    keep_in_step.source(objects.changes)
    await keep_in_step.arun()
