"""Open a store in a SQLite file, shared by the processes of one machine; or in memory, for one process.

    sqlite:///work.db?synchronous=full&timeout=10

* `synchronous`: with ``normal``, the default, committed data survives the death of every process, but a power failure
  may undo the last transactions; with ``full`` every transaction is on disk before the call returns.
* `timeout`: seconds to wait while another process writes, 10 by default.
* `shared`: with ``true`` the file and its directory may belong to other users (see `file_checks`); ``false`` by
  default.

Time is counted from the start of the machine, so setting the wall clock has no effect (see `file_clock`).
"""

from __future__ import annotations

import os
from urllib.parse import parse_qsl, unquote

from abate.clock import Clock
from abate.errors import choice, number
from abate.stores.sqlite.database import Database
from abate.stores.sqlite.store import SqliteStore

TIMEOUT = 10.0
EXPECTED = "expected 'sqlite:///relative/path.db' or 'sqlite:////absolute/path.db'"


def open_url(scheme: str, rest: str, clock: Clock | None, required: bool) -> SqliteStore:
    """Open the store of ``scheme:rest``; raise an error if its file can't be used, even if not `required`."""
    if scheme == "memory":
        if rest:  # it may contain a password, so the error does not repeat it
            raise ValueError("the URL of a store in memory is 'memory:', without anything after the colon")
        return SqliteStore(Database(None, "OFF", TIMEOUT), clock)
    address, _, query = rest.partition("?")
    if not address.startswith("///"):
        # a file has no host; the error does not repeat the text in its place, which may contain a password
        raise ValueError(f"'sqlite:' is followed by three slashes and a path: {EXPECTED}")
    path = unquote(address[3:])
    if not path or "\0" in path:
        raise ValueError(f"{'sqlite:' + address!r} does not name a file: {EXPECTED}")
    if path == ":memory:":
        raise ValueError("a store in memory is 'memory:', not 'sqlite:///:memory:'")
    synchronous, timeout, shared = options(query)
    # absolute: a child process may change its directory before it opens the file
    return SqliteStore(Database(os.path.abspath(path), synchronous, timeout, shared=shared), clock)


def options(query: str) -> tuple[str, float, bool]:
    """Parse the options of a URL."""
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
