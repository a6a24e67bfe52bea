"""Where a Redis is, as its URL says it; and what is wrong with a URL, said without its password.

    redis://[user:password@]host[:port][/database][?prefix=abate&timeout=5&cluster=true]
    rediss://…      the same over TLS, by the certificates that the system trusts
    unix:///run/redis.sock[?database=0&…]

Whatever a URL holds outside of its options may be a piece of a password that was not written with percent signs, so it
is never repeated.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from abate.errors import choice, number
from abate.values import Value

EXPECTED = "'redis://user:password@host:6379/0'"
PORT = 6379
TIMEOUT = 5.0
OPTIONS = "prefix, timeout, cluster and, for a socket, database"
PREFIX = re.compile(r"[A-Za-z0-9_.:/-]{1,100}")


class Address(Value):
    """Where a store is, and how it is to be used."""

    name: str
    """The URL without a user, a password or options."""
    server: dict[str, Any]
    """What redis-py is told."""
    password: str = ""
    prefix: str = "abate"
    timeout: float = TIMEOUT
    cluster: bool = False

    def __repr__(self) -> str:
        return f"<Address {self.name}>"


def parsed(scheme: str, rest: str) -> Address:
    """The address that ``scheme:rest`` is.

    >>> address = parsed("redis", "//me:secret@cache/3?prefix=shop&timeout=2")
    >>> address.name, address.prefix, address.timeout
    ('redis://cache:6379/3', 'shop', 2.0)
    """
    try:
        url = urlsplit(f"{scheme}:{rest}", allow_fragments=False)
        host, port = url.hostname, url.port
    except ValueError:  # its text holds what could not be read
        raise ValueError(f"the URL of a store in Redis can't be read: expected {EXPECTED}") from None
    if "@" in url.path + url.query or "#" in rest:
        raise ValueError(
            "the URL of a store in Redis has a '#', or an '@' behind its host: "
            "in a password, '/', '?', '#', '@', ':' and '%' are written as %2F, %3F, %23, %40, %3A and %25"
        )
    password = unquote(url.password or "")
    options = _options(url.query)
    database = options.pop("database", None)
    server: dict[str, Any] = {"username": unquote(url.username or "") or None, "password": password or None}
    if scheme == "unix":
        if url.netloc.rpartition("@")[2] or not url.path.startswith("/") or url.path == "/":
            raise ValueError("'unix:' is followed by three slashes and the path of a socket: 'unix:///run/redis.sock'")
        server |= {"unix_socket_path": unquote(url.path), "db": _database(database or "0")}
        name = f"unix://{unquote(url.path)}"
    else:
        if not host:
            raise ValueError(f"the URL of a store in Redis names no host: expected {EXPECTED}")
        if database is not None:
            raise ValueError(f"the database stands behind the host: expected {EXPECTED}")
        db = _database(url.path.strip("/") or "0")
        server |= {"host": host, "port": port or PORT, "db": db, "ssl": scheme == "rediss"}
        name = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port or PORT}/{db}"
    if options.get("cluster") and (server["db"] or scheme == "unix"):
        raise ValueError("a cluster is reached by a host, and has no database but 0")
    return Address(name, server, password, **options)


def _database(words: str) -> int:
    if not (words.isascii() and words.isdigit() and len(words) < 6):
        raise ValueError(f"the database of a Redis is a small whole number: expected {EXPECTED}")
    return int(words)


def _options(query: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        match name:
            case "prefix":
                if not PREFIX.fullmatch(value):
                    raise ValueError(
                        f"prefix must be 1 to 100 of the letters A to Z, a to z, digits and _.:/-, not {value!r:.120}"
                    )
                found[name] = value
            case "timeout":
                try:
                    found[name] = number("timeout", float(value), above=0)
                except ValueError:
                    raise ValueError(f"timeout must be a number of seconds above 0, not {value!r:.80}") from None
            case "cluster":
                found[name] = choice("cluster", value.lower(), ("true", "false")) == "true"
            case "database":
                found[name] = value
            case _:
                raise ValueError(f"a store in Redis has the options {OPTIONS}, not {name!r:.80}")
    return found
