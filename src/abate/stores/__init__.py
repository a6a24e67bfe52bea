"""Stores: durable queues of keys and messages, and limits that processes share, behind one URL.

    memory:                  in this process only
    sqlite:///work.db        a file, shared by the processes of one machine
    sqlite:////var/work.db   the same, by its absolute path
    redis://host:6379/0      a Redis or Valkey server; rediss:// over TLS, unix:///path.sock for a socket
    postgresql://host/db     a PostgreSQL server; postgres:// is the same

The guarantees of a queue in every store:

* **Once by key**: a key waits at most once, however often it is added; the newest body, the higher priority and the
  earlier due instant count. A key that is added while it is leased comes back once, after it is settled.
* **One at a time**: a key is leased to one worker. A lease ends when it is settled or runs out, and later verdicts of
  its holder are refused. Every lease has a token of its own, and tokens only grow.
* **At least once**: a message stays in the queue until it is done or buried; kill -9 loses nothing.
* **Fair**: the highest priority first, then the message that has been ready longest; every eighth turn is for the
  oldest message, whatever its priority.
* **Bounded**: a full queue raises `abate.QueueFull`. The lengths of keys, bodies and reasons are limited.

The driver of a store is imported when a URL needs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from abate.clock import Clock, as_clock
from abate.stores.budget import BudgetTerms, StoreBudget
from abate.stores.errors import StoreError, StoreUnreachable
from abate.stores.queue_contract import DeadLetter, Depth, Queue
from abate.stores.store_contract import Store

__all__ = [
    "BudgetTerms",
    "DeadLetter",
    "Depth",
    "Queue",
    "Store",
    "StoreBudget",
    "StoreError",
    "StoreUnreachable",
    "open_store",
]

SCHEMES = {
    "memory": "abate.stores.sqlite",
    "sqlite": "abate.stores.sqlite",
    "redis": "abate.stores.redis",
    "rediss": "abate.stores.redis",
    "unix": "abate.stores.redis",
    "postgresql": "abate.stores.postgres",
    "postgres": "abate.stores.postgres",
}
"""The module that opens a store, by `open_url(scheme, rest, clock, required)`."""
MAX_SCHEME_LENGTH = 16
"""The maximum length of an unknown scheme that an error shows."""
EXPECTED = (
    "'memory:', 'sqlite:///relative/path.db', 'sqlite:////absolute/path.db', 'redis://host:6379/0' "
    "or 'postgresql://host:5432/database'"
)


def open_store(url: str, *, clock: Clock | Callable[[], float] | None = None, required: bool = True) -> Store:
    """Open the store of a URL; create it if it does not exist.

    Raise now if something is wrong: a wrong password, a file of another program, a server that is too old. A server
    that can't be reached raises too, unless `required` is false: then budgets, buckets and shelters apply local limits
    until it can be reached, and queues raise.

    >>> with open_store("memory:") as store:
    ...     queue = store.queue("orders")
    ...     queue.add("orders/42"), queue.add("orders/42")
    ...     for message in queue.receive():
    ...         queue.done(message)
    (True, False)
    >>> open_store("mysql://user:secret@host/db")
    Traceback (most recent call last):
    ValueError: there is no store 'mysql:': expected 'memory:', 'sqlite:///relative/path.db', ...
    """
    if not isinstance(url, str):  # the error does not show it: it may hold a password
        raise TypeError(f"a store's URL must be a string, {EXPECTED}, not {type(url).__name__}")
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise ValueError(f"a store's URL begins with a scheme and a colon: expected {EXPECTED}")
    if scheme not in SCHEMES:  # the error shows neither the rest nor an unusual scheme: both may hold a password
        named = (
            f" {scheme + ':'!r}" if scheme.isascii() and scheme.isalnum() and len(scheme) <= MAX_SCHEME_LENGTH else ""
        )
        raise ValueError(f"there is no store{named}: expected {EXPECTED}")
    store: Store = importlib.import_module(SCHEMES[scheme]).open_url(scheme, rest, as_clock(clock), required)
    return store


def __dir__() -> list[str]:
    return sorted(__all__)
