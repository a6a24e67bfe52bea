"""Parse the URL of a store in Redis. Errors never contain the password.

    redis://[user:password@]host[:port][/database][?prefix=abate&timeout=5&cluster=true]
    rediss://…      the same over TLS, with the certificates that the system trusts
    unix:///run/redis.sock[?database=0&…]

Any part of a URL apart from its options may belong to a password that was not escaped, so errors don't repeat it.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from abate.errors import choice, number
from abate.frozen import Frozen

EXPECTED = "'redis://user:password@host:6379/0'"
PORT = 6379
TIMEOUT = 5.0
OPTIONS = "prefix, timeout, cluster and, for a socket, database"
PREFIX = re.compile(r"[A-Za-z0-9_.:/-]{1,100}")


class Address(Frozen):
    """The server of a store, and how to use it."""

    name: str
    """The URL without a user, a password or options."""
    server: dict[str, Any]
    """Arguments of redis-py."""
    password: str = ""
    prefix: str = "abate"
    timeout: float = TIMEOUT
    cluster: bool = False

    def __repr__(self) -> str:
        return f"<Address {self.name}>"


def parse_url(scheme: str, rest: str) -> Address:
    """Parse ``scheme:rest``.

    >>> address = parse_url("redis", "//me:secret@cache/3?prefix=shop&timeout=2")
    >>> address.name, address.prefix, address.timeout
    ('redis://cache:6379/3', 'shop', 2.0)
    """
    url = _split_url(scheme, rest)
    options = _options(url.query)
    database = options.pop("database", None)
    name, server = _socket(url, database) if scheme == "unix" else _host(url, database)
    if options.get("cluster") and (server["db"] or scheme == "unix"):
        raise ValueError("the URL of a cluster must name a host, and no database other than 0")
    password = unquote(url.password or "")
    login = {"username": unquote(url.username or "") or None, "password": password or None}
    return Address(name, login | server, password, **options)


def _split_url(scheme: str, rest: str) -> SplitResult:
    """Split a URL, and refuse one with characters that should have been escaped."""
    try:
        url = urlsplit(f"{scheme}:{rest}", allow_fragments=False)
        _ = url.hostname, url.port
    except ValueError:  # its message repeats a part of the URL
        raise ValueError(f"the URL of a store in Redis can't be parsed: expected {EXPECTED}") from None
    if "@" in url.path + url.query or "#" in rest:
        raise ValueError(
            "the URL of a store in Redis has a '#', or an '@' after its host: "
            "in a password, write '/', '?', '#', '@', ':' and '%' as %2F, %3F, %23, %40, %3A and %25"
        )
    return url


def _socket(url: SplitResult, database: str | None) -> tuple[str, dict[str, Any]]:
    """Return the name and the driver's settings of a Unix socket."""
    if url.netloc.rpartition("@")[2] or not url.path.startswith("/") or url.path == "/":
        raise ValueError("'unix:' is followed by three slashes and the path of a socket: 'unix:///run/redis.sock'")
    path = unquote(url.path)
    return f"unix://{path}", {"unix_socket_path": path, "db": _database(database or "0")}


def _host(url: SplitResult, database: str | None) -> tuple[str, dict[str, Any]]:
    """Return the name and the driver's settings of a host."""
    host, port = url.hostname, url.port or PORT
    if not host:
        raise ValueError(f"the URL of a store in Redis names no host: expected {EXPECTED}")
    if database is not None:
        raise ValueError(f"the database of a host is given in the path of the URL: expected {EXPECTED}")
    db = _database(url.path.strip("/") or "0")
    name = f"{url.scheme}://{f'[{host}]' if ':' in host else host}:{port}/{db}"
    return name, {"host": host, "port": port, "db": db, "ssl": url.scheme == "rediss"}


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
                    found[name] = number("timeout", float(value), above=0, most=3600)
                except ValueError:
                    raise ValueError(
                        f"timeout must be a number of seconds above 0 and at most 3600, not {value!r:.80}"
                    ) from None
            case "cluster":
                found[name] = choice("cluster", value.lower(), ("true", "false")) == "true"
            case "database":
                found[name] = value
            case _:
                raise ValueError(f"a store in Redis has the options {OPTIONS}, not {name!r:.80}")
    return found
