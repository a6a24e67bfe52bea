"""Parse the URL of a store in PostgreSQL into libpq's options and abate's own."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, urlencode

from psycopg import OperationalError, pq

from abate.errors import number
from abate.redact import HIDDEN, redacted

EXPECTED = "expected 'postgresql://user:password@host:port/database?schema=abate&timeout=5'"
NAMES = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
TIMEOUT = 5.0
SCHEMA = "abate"
DEFAULTS = {
    "application_name": "abate",
    "client_encoding": "UTF8",
    # so that the listening connection notices a peer that has disappeared
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
}
LIMITS = "-c statement_timeout={milliseconds} -c default_transaction_isolation=read\\ committed"
"""The server stops a statement when the client gives up on it, so that it is not executed afterwards."""


class Address:
    """A database, a schema in it, and a time limit; its text has no user and no password."""

    def __init__(self, rest: str) -> None:
        uri, _, query = rest.partition("?")
        _refuse_unescaped(uri, query)
        libpq_options: list[tuple[str, str]] = []
        self.schema, self.timeout = SCHEMA, TIMEOUT
        for name, value in parse_qsl(query, keep_blank_values=True):
            match name:
                case "schema":
                    self.schema = _schema(value)
                case "timeout":
                    self.timeout = _seconds(value)
                case _:
                    libpq_options.append((name, value))
        asked = _parse_conninfo(
            f"postgresql:{uri}" + (f"?{urlencode(libpq_options, quote_via=quote)}" if libpq_options else "")
        )
        self._secrets = [secret for secret in (asked.get("password"), _password(uri)) if secret]
        self.user = asked.get("user", "")
        self._asked = {
            **DEFAULTS,
            "tcp_user_timeout": str(int(self.timeout * 1000)),
            **asked,
        }
        where = asked.get("host") or asked.get("hostaddr") or "localhost"
        port = f":{asked['port']}" if "port" in asked else ""
        schema = "" if self.schema == SCHEMA else f" (schema {self.schema})"
        self._shown = f"postgresql://{where}{port}/{asked.get('dbname', '')}{schema}"

    def conninfo(self, limited: bool) -> bytes:
        """Return the connection string for libpq; with `limited`, the server stops statements that take too long."""
        told = dict(self._asked)
        if limited:
            limits = LIMITS.format(milliseconds=int(self.timeout * 1000))
            told["options"] = f"{limits} {told.get('options', '')}".strip()
        return " ".join(f"{name}={_quoted(value)}" for name, value in told.items()).encode()

    def without_password(self, said: str) -> str:
        """Return a message without passwords."""
        for secret in self._secrets:
            said = said.replace(secret, HIDDEN)
        return redacted(said)

    def __str__(self) -> str:
        return self._shown

    __repr__ = __str__


def _refuse_unescaped(uri: str, query: str) -> None:
    """Refuse a URL with unescaped characters: a part of its password could be read, and shown, as host or option."""
    authority, _, path = uri.removeprefix("//").partition("/")
    hosts = authority.rpartition("@")[2].split(",")
    ports = [host.rpartition(":")[2] for host in hosts if ":" in host and not host.endswith("]")]
    if authority.count("@") > 1 or "@" in path or "@" in query or not all(port.isdigit() or not port for port in ports):
        raise ValueError(
            f"this URL can't be parsed: in a user or password, write : / ? # @ % as %3A %2F %3F %23 %40 %25; {EXPECTED}"
        )


def _password(uri: str) -> str:
    """Return the password of a URL, still escaped."""
    return uri.removeprefix("//").rpartition("@")[0].partition(":")[2]


def _parse_conninfo(uri: str) -> dict[str, str]:
    try:
        options = pq.Conninfo.parse(uri.encode())
    except OperationalError as error:  # its message may contain the URL
        unknown = re.search(r'invalid URI query parameter: "(\w+)"', str(error))
        if unknown:
            raise ValueError(
                f"a store in PostgreSQL has the options schema and timeout, and those of libpq, not {unknown[1]!r}"
            ) from None
        raise ValueError(f"this is not a URL of a PostgreSQL database: {EXPECTED}") from None
    except UnicodeEncodeError:
        raise ValueError(f"a URL must be text that can be encoded in UTF-8: {EXPECTED}") from None
    return {option.keyword.decode(): option.val.decode() for option in options if option.val}


def _schema(value: str) -> str:
    if not NAMES.fullmatch(value):
        raise ValueError(
            "schema must be a name of at most 63 small letters, digits and underscores, "
            f"that does not begin with a digit or pg_, not {value!r:.80}"
        )
    return value


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        raise ValueError(f"timeout must be a number of seconds, not {value!r:.80}") from None
    return number("timeout", seconds, least=0.1, most=3600)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
