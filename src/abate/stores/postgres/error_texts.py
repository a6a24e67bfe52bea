"""Explain errors of PostgreSQL: what happened and what to do. The texts contain no password and no full URL.

While connecting, libpq returns no code, only a message in the server's language; an unknown message is passed on
unchanged.
"""

from __future__ import annotations

from abate.stores.errors import StoreError, StoreUnreachable
from abate.stores.postgres.address import Address
from abate.stores.postgres.session import ConnectFailed, ConnectionLost, SessionError, StatementFailed, TimedOut

TEMPORARY = (
    "could not translate host name",
    "Connection refused",
    "Network is unreachable",
    "No such file or directory",
    "the database system is",
    "server closed the connection",
    "too many clients",
    "remaining connection slots",
)
"""Messages of failed connects that a later attempt may not have."""

BY_CONNECT_TEXT = {
    "password authentication failed": "rejects this password: check the user and the password in the URL",
    "no password supplied": "asks for a password: put one into the URL, postgresql://user:password@host/database",
    "could not translate host name": "can't be found: there is no host of that name",
    "Connection refused": "can't be reached: nothing listens there; is the server up, and the port right?",
    "Network is unreachable": "can't be reached: this machine has no route to that network",
    "No such file or directory": "can't be reached: there is no such socket; is the server up?",
    "no pg_hba.conf entry": "does not accept this user from this host: its pg_hba.conf needs an entry",
    "the database system is": "is starting up or shutting down; the next call tries again",
    "too many clients": "has no connection left: raise its max_connections, or run fewer processes",
    "remaining connection slots": "has no connection left: raise its max_connections, or run fewer processes",
    "does not support SSL": "does not speak TLS, and the URL asks for it (sslmode)",
    "certificate verify failed": "has a certificate that can't be verified (sslmode, sslrootcert)",
}

BY_SQLSTATE = {
    "42501": "does not give user {user!r} the right to do that: GRANT ALL ON SCHEMA {schema}, ON ALL TABLES, "
    "ON ALL SEQUENCES and ON ALL FUNCTIONS IN SCHEMA {schema} TO {user}",
    "25006": "can only be read, as a standby is: connect to the primary (?target_session_attrs=read-write)",
    "57014": "took longer than its time limit",
    "55P03": "timed out waiting for a lock that another session holds",
    "53100": "has a full disk; nothing was changed",
    "53200": "is out of memory; nothing was changed",
    "53300": "has no connection left: raise its max_connections, or run fewer processes",
    "40P01": "reported a deadlock twice; nothing was changed",
    "40001": "reported a conflict twice; nothing was changed",
}

RIGHTS = (
    "does not let user {user!r} create tables. As an administrator of the database run: "
    "CREATE SCHEMA IF NOT EXISTS {schema}; GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}"
)
OWNER = (
    "has the schema {schema!r} of an older version, which user {user!r} may not migrate: let its owner "
    "open the store once, as `abate queue ls` does"
)


def to_store_error(error: SessionError, address: Address, limit: float, preparing: bool = False) -> StoreError:
    """Return the error for the caller; `limit` is the time limit of the operation in seconds."""
    said = f" (PostgreSQL says: {address.without_password(error.said)})" if error.said else ""
    match error:
        case ConnectFailed():
            why = next((words for phrase, words in BY_CONNECT_TEXT.items() if phrase in error.said), "can't be reached")
            if "does not exist" in error.said:
                why = "does not know this user, or has no database of this name: create it, or correct the URL"
        case TimedOut():
            why = f"does not answer within {limit:g} s; it is not known whether anything was done"
        case ConnectionLost():
            why = "has cut the connection; it is not known whether anything was done"
        case StatementFailed() if preparing and error.state == "42501":
            why = (OWNER if "must be owner" in error.said else RIGHTS).format(user=address.user, schema=address.schema)
        case StatementFailed():
            why = BY_SQLSTATE.get(error.state, "failed; nothing was changed").format(
                user=address.user, schema=address.schema
            )
        case _:
            why = "failed"
    away = isinstance(error, (TimedOut, ConnectionLost)) or (
        isinstance(error, ConnectFailed) and any(phrase in error.said for phrase in TEMPORARY)
    )
    return (StoreUnreachable if away else StoreError)(f"{address} {why}{said}")
