"""The same with abate: one controller and one policy per process, a budget and a shelter for all processes together.

* **The controller** hands an object to one of a few workers. One that fails comes back after its backoff, with
  jitter, and is looked at afresh.
* **The policy** retries a request, within a budget.
* **The shelter** holds requests back while the API is down. Through the store, a SQLite file, the processes know of
  each other: one of them probes for all, and when the API is back the doors open one after the other.
"""

from __future__ import annotations

import abate
from abate.cli.demo.objects import Objects

WORKERS = 8
"""Per process. With as many as there are controllers all would be sent once at the sneeze, as the naive loop does;
what comes after that is the shelter's to say."""
PATIENCE = 120.0
"""Seconds; nobody is waiting for these calls, so they can wait for the API as long as it takes."""
SLOW = 2.0
"""Seconds until an object comes back whose retry the budget refused."""


async def calm(objects: Objects, url: str) -> None:
    """Look after what changes, until cancelled."""
    store = abate.open_store(url)
    policy = abate.Policy(
        name="api",
        on=(abate.http.transient, OSError),  # TimeoutError is one
        attempts=5,
        budget=store.budget("api"),
        shelter=store.shelter("api", patience=PATIENCE),
        idempotent=True,  # a version that is written twice is written once
    )
    ask = policy(objects.ask)

    @abate.controller(name="objects", workers=WORKERS, slow=SLOW)
    async def keep_in_step(name: int) -> None:
        await objects.reconcile(name, ask)

    keep_in_step.source(objects.changes)
    await keep_in_step.arun()
