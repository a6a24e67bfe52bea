"""The store in Redis or Valkey, shared by all who reach it; with ``?cluster=true``, in a cluster of them.

    redis://user:password@host:6379/0?prefix=abate&timeout=5
    rediss://host:6379/0
    unix:///run/redis.sock
    redis://host:7000?cluster=true

* `prefix`: what every key begins with, ``abate`` by default: two prefixes are two stores.
* `timeout`: seconds after which a server that doesn't answer is given up, 5 by default.

The time is the server's, whatever the clocks of those who use it say. In a queue it never goes back: if the server's
clock is set back, or its successor's is behind, time goes on from the latest instant that the queue has seen.

What outlives the server is for its settings: with ``appendonly yes`` and ``appendfsync always`` every answer is on the
disk before it is given; with ``everysec`` a crash of the machine may undo the last second; without either a restart, as
``FLUSHALL`` at any time, empties the queues. Leases that are gone are lost then, budgets begin from zero, and no token
is handed out a second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from abate.clock import Clock
from abate.stores.contract import StoreError
from abate.stores.redis.address import parsed

if TYPE_CHECKING:
    from abate.stores.redis.store import RedisStore


def open_url(scheme: str, rest: str, clock: Clock | None, required: bool) -> RedisStore:
    """The store of ``scheme:rest``."""
    address = parsed(scheme, rest)
    try:
        import redis
    except ImportError:
        raise StoreError("a store in Redis needs redis-py: pip install 'abate[redis]'") from None
    del redis
    from abate.stores.redis.server import Server
    from abate.stores.redis.store import RedisStore

    return RedisStore(Server(address, required), clock)
