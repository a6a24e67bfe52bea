"""The store in PostgreSQL (13 or newer), shared by the processes of many machines.

    postgresql://user:password@host:port/database?schema=abate&timeout=5

* `schema`: where its tables are, ``abate`` by default; made when it is opened first, and migrated by every newer
  version. Two stores of one database are two schemas.
* `timeout`: seconds that anything may take, 5 by default. Then it is a `StoreError`, and it is not known whether
  anything was done. An exchange of what a fleet shares takes a second at most.
* Everything else is libpq's: ``sslmode``, ``target_session_attrs``, several hosts, ``.pgpass``.

The time is the server's clock, so the clocks of workers needn't agree. What was answered is on the server's disk if its
``synchronous_commit`` is on, as it is by default; where it is off, a crash of the server may undo the last moments, and
leases that were handed out in them. Budgets, buckets and shelters are never waited for: see `trading`.

A process has one or two connections, four at most, and one that listens while somebody waits for a message. Through
PgBouncer in transaction mode nothing can be heard: then who waits looks twice a second, with jitter.
"""

from __future__ import annotations

from abate.clock import Clock

try:
    from psycopg import pq as _driver  # noqa: F401
except ImportError as missing:
    raise ImportError("a store in PostgreSQL needs psycopg 3: pip install 'abate[postgres]'") from missing

from abate.stores.postgres.address import EXPECTED, Address
from abate.stores.postgres.store import PostgresStore


def open_url(scheme: str, rest: str, clock: Clock | None, required: bool) -> PostgresStore:
    """The store of ``scheme:rest``."""
    if not rest.startswith("//"):  # what follows may hold a password
        raise ValueError(f"'{scheme}:' is followed by two slashes: {EXPECTED}")
    return PostgresStore(Address(rest), clock, required)
