"""Open a store in Redis or Valkey; with ``?cluster=true``, in a cluster.

    redis://user:password@host:6379/0?prefix=abate&timeout=5
    rediss://host:6379/0
    unix:///run/redis.sock
    redis://host:7000?cluster=true

* `prefix`: the beginning of every key, ``abate`` by default: two prefixes are two stores.
* `timeout`: seconds to wait for a reply of the server, 5 by default.

The server's clock applies, not the clients'. The time of a queue never goes back: if the server's clock is set back, or
a failover leads to a server whose clock is behind, time continues from the latest instant that the queue has recorded.

Durability depends on the server's settings: with ``appendonly yes`` and ``appendfsync always`` every write is on disk
before the reply; with ``everysec`` a crash of the machine may undo the last second; without persistence a restart
empties the queues, as ``FLUSHALL`` does. Leases are then lost and budgets start from zero, but no token is reused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from abate.clock import Clock
from abate.stores.errors import StoreError
from abate.stores.redis.address import parse_url

if TYPE_CHECKING:
    from abate.stores.redis.store import RedisStore


def open_url(scheme: str, rest: str, clock: Clock | None, required: bool) -> RedisStore:
    """Open the store of ``scheme:rest``."""
    address = parse_url(scheme, rest)
    try:
        import redis
    except ImportError:
        raise StoreError("a store in Redis needs redis-py: pip install 'abate[redis]'") from None
    del redis
    from abate.stores.redis.connection import RedisConnection
    from abate.stores.redis.store import RedisStore

    return RedisStore(RedisConnection(address, required), clock)
