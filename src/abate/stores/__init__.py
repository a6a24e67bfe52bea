"""Where shared state lives: durable queues of keys and messages, and budgets, behind one URL.

    memory:                  this process alone; gone with it
    sqlite:///work.db        a file beside this process, shared by the processes of one machine
    sqlite:////var/work.db   the same, by its absolute path
    redis://host:6379/0      a Redis or Valkey, shared by all who reach it; rediss:// over TLS, unix:///path.sock
    postgresql://host/db     a PostgreSQL, shared by all who reach it

The guarantees of a queue, whatever the store:

* **Once by key**: a key waits at most once, however often it is added; the newest body counts, the higher priority,
  the earlier of two instants. One that is added while somebody has it comes back once, after it is settled.
* **One at a time**: a key is leased to one holder. A lease ends when it is settled or when it runs out, and what its
  holder says after that is refused. Every lease has a token of its own, and tokens only grow.
* **At least once**: what is added is there until somebody is done with it, or buries it; kill -9 loses nothing.
* **Fair**: a higher priority first, then by the instant since which a message is ready; of eight turns one is for the
  oldest, whatever its priority.
* **Bounded**: full means `abate.QueueFull`. Keys, bodies and reasons have a length.

A driver is imported only when a URL asks for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from abate.clock import Clock, given
from abate.stores.contract import DeadLetter, Depth, Queue, Store, StoreError, StoreUnreachable
from abate.stores.ledger import StoreBudget, Terms

__all__ = [
    "DeadLetter",
    "Depth",
    "Queue",
    "Store",
    "StoreBudget",
    "StoreError",
    "StoreUnreachable",
    "Terms",
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
"""Where the stores of a scheme are opened: by `open_url(scheme, rest, clock, required)` of that module."""
LONGEST_SCHEME = 16
"""Letters of what is taken for a scheme, and shown."""
EXPECTED = (
    "'memory:', 'sqlite:///relative/path.db', 'sqlite:////absolute/path.db', 'redis://host:6379/0' "
    "or 'postgresql://host:5432/database'"
)


def open_store(url: str, *, clock: Clock | Callable[[], float] | None = None, required: bool = True) -> Store:
    """Open the store that a URL names; it is made where it is not there yet.

    What is wrong with it is said now: a wrong password, a file of another program, a server too old. A server that
    can't be reached is an error too, unless it is not `required`: then budgets, buckets and shelters go by this
    process's own limits until it can be, and queues raise as long as it can't.

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
    if not isinstance(url, str):  # it may hold a password all the same
        raise TypeError(f"a store's URL must be a string, {EXPECTED}, not {type(url).__name__}")
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise ValueError(f"a store's URL begins with a scheme and a colon: expected {EXPECTED}")
    if scheme not in SCHEMES:  # what follows the colon may hold a password, and so may what is no scheme
        named = f" {scheme + ':'!r}" if scheme.isascii() and scheme.isalnum() and len(scheme) <= LONGEST_SCHEME else ""
        raise ValueError(f"there is no store{named}: expected {EXPECTED}")
    store: Store = importlib.import_module(SCHEMES[scheme]).open_url(scheme, rest, given(clock), required)
    return store
