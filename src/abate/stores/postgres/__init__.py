"""Open a store in PostgreSQL (13 or newer), shared by the processes of many machines.

    postgresql://user:password@host:port/database?schema=abate&timeout=5

* `schema`: the schema of its tables, ``abate`` by default; created when the store is first opened, and migrated by
  newer versions. Two stores in one database have two schemas.
* `timeout`: maximum seconds of an operation, 5 by default. A later operation raises `StoreError`, and the server may
  or may not have executed it. A sync of shared limits takes at most one second.
* All other options are libpq's: ``sslmode``, ``target_session_attrs``, several hosts, ``.pgpass``.

The server's clock applies, so the clocks of workers need not agree. Every completed operation is on the server's disk
if its ``synchronous_commit`` is on, which is the default; if it is off, a crash of the server may undo the latest
operations, including leases. Budgets, buckets and shelters commit asynchronously (see `shared_limit_functions`).

A process has one or two connections, at most four, and one that listens while a thread waits for a message. PgBouncer
in transaction mode hides notifications: waiting threads then poll about twice a second, with jitter.
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
    """Open the store of ``scheme:rest``."""
    if not rest.startswith("//"):  # the error does not repeat the rest, which may contain a password
        raise ValueError(f"'{scheme}:' is followed by two slashes: {EXPECTED}")
    return PostgresStore(Address(rest), clock, required)
