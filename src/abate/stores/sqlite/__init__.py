"""The store in a SQLite file, shared by the processes of one machine; and the same in memory, for one process.

    sqlite:///work.db?synchronous=full&timeout=10

* `synchronous`: with ``normal``, the default, what was written survives the death of every process, and a power cut
  may undo the last moments; with ``full`` every transaction is on the disk before it counts.
* `timeout`: seconds to wait for another process that writes, 10 by default.
* `shared`: with ``true`` the file and its directory may belong to other users (see `place`); ``false`` by default.

The time is the machine's, counted since its start, so that setting the clock changes nothing (see `instants`).
"""

from __future__ import annotations

import os
from urllib.parse import parse_qsl, unquote

from abate.clock import Clock
from abate.errors import choice, number
from abate.stores.sqlite.file import File
from abate.stores.sqlite.store import SqliteStore

TIMEOUT = 10.0
EXPECTED = "expected 'sqlite:///relative/path.db' or 'sqlite:////absolute/path.db'"


def open_url(scheme: str, rest: str, clock: Clock | None, required: bool) -> SqliteStore:
    """The store of ``scheme:rest``; a file is always there, or what is wrong with it is said."""
    if scheme == "memory":
        if rest:  # which may hold a password
            raise ValueError("'memory:' is the whole URL of a store in memory; nothing may follow")
        return SqliteStore(File(None, "OFF", TIMEOUT), clock)
    address, _, query = rest.partition("?")
    if not address.startswith("///"):
        # a file has no host, and what stands in its place may hold a password
        raise ValueError(f"'sqlite:' is followed by three slashes and a path: {EXPECTED}")
    path = unquote(address[3:])
    if not path or "\0" in path:
        raise ValueError(f"{'sqlite:' + address!r} names no file: {EXPECTED}")
    if path == ":memory:":
        raise ValueError("a store in memory is 'memory:', not 'sqlite:///:memory:'")
    synchronous, timeout, shared = options(query)
    # absolute, as a child of this process may change its directory before it opens the file
    return SqliteStore(File(os.path.abspath(path), synchronous, timeout, shared=shared), clock)


def options(query: str) -> tuple[str, float, bool]:
    """What a URL says after its question mark."""
    synchronous, timeout, shared = "normal", TIMEOUT, False
    for name, value in parse_qsl(query, keep_blank_values=True):
        match name:
            case "synchronous":
                synchronous = choice("synchronous", value.lower(), ("normal", "full"))
            case "timeout":
                try:
                    timeout = float(value)
                except ValueError:
                    raise ValueError(f"timeout must be a number of seconds, not {value!r:.80}") from None
                number("timeout", timeout, least=0)
            case "shared":
                shared = choice("shared", value.lower(), ("true", "false")) == "true"
            case _:
                raise ValueError(f"a store in SQLite has the options synchronous, timeout and shared, not {name!r:.80}")
    return synchronous.upper(), timeout, shared
