"""Explain errors of redis-py: what happened and what to do. The texts never contain a password."""

from __future__ import annotations

from redis import exceptions

from abate.redact import HIDDEN, redacted
from abate.stores.redis.address import Address

NO_RIGHTS = "does not let this user do what is needed: expected the rights {acl_rights}"
RIGHTS = "~{prefix}:* +@read +@write +@scripting +time +blpop +info"
RIGHTS_BEYOND_0 = " +select"
"""Additional rights for a database other than 0."""
RIGHTS_IN_A_CLUSTER = " +cluster|slots +command"
BY_KIND: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.BusyLoadingError, "is still loading its data: try again in a moment"),
    (exceptions.ReadOnlyError, "is a replica, which can't be written to: name the primary, or wait for the failover"),
    (exceptions.OutOfMemoryError, "has no memory left (maxmemory); nothing was changed"),
    (exceptions.NoPermissionError, NO_RIGHTS),
    (exceptions.AuthenticationError, "refuses the user and password of the URL"),
)
FOREIGN = "WRONGTYPE"
BY_TEXT = (
    (FOREIGN, "has keys of another program under the prefix {prefix!r}: choose another prefix in the URL"),
    ("Authentication required", "requires a password: put it into the URL"),
    ("WRONGPASS", "refuses the user and password of the URL"),
    ("invalid password", "refuses the user and password of the URL"),
    ("without any password configured", "has no password, and the URL has one"),
    ("DB index is out of range", "has no database with that number"),
    ("ACL failure", NO_RIGHTS),
    ("Cluster mode is not enabled", "is not a cluster: remove ?cluster=true from the URL"),
    ("MISCONF", "can't write to its disk, and takes no writes until it can"),
    ("NOREPLICAS", "has too few replicas (min-replicas-to-write); nothing was changed"),
    ("BUSY ", "is busy with a script"),
    ("CLUSTERDOWN", "is a cluster without all of its slots: wait for the failover"),
    (
        "unknown command",
        "lacks a command: expected Redis 6.2 or newer, or Valkey, with EVALSHA, EVAL and BLPOP allowed",
    ),
    ("max number of clients reached", "has too many clients (maxclients)"),
)
BY_CONNECT_TEXT = (
    ("Connection refused", "refuses connections: nothing listens there"),
    ("Name or service not known", "has an unknown host name"),
    ("nodename nor servname", "has an unknown host name"),
    ("No address associated", "has an unknown host name"),
    ("Temporary failure in name resolution", "has a host name that can't be resolved now"),
    ("Hostname mismatch", "has a certificate for another host name"),
    ("IP address mismatch", "has a certificate for a host name or another address"),
    ("CERTIFICATE_VERIFY_FAILED", "has a certificate that this machine does not trust"),
    ("UNEXPECTED_EOF", "ended the connection during the TLS handshake"),
    ("SSL", "does not speak TLS: is it 'redis:' rather than 'rediss:'?"),
    ("No such file or directory", "has no socket at that path"),
)


def explain(error: Exception, address: Address, timeout: float) -> str:
    """Return what an error of redis-py means for a store.

    >>> from abate.stores.redis.address import parse_url
    >>> explain(exceptions.TimeoutError("Timeout reading from socket"), parse_url("redis", "//cache"), 5.0)
    'redis://cache:6379/0 did not answer within 5 s'
    """
    said = str(error)
    if isinstance(error, exceptions.TimeoutError):
        doubt = ": does it speak TLS there?" if address.server.get("ssl") and "connecting" in said else ""
        return f"{address.name} did not answer within {timeout:g} s{doubt}"
    if (words := _words(error, said)) is None:
        return f"{address.name} failed (the driver says: {_scrubbed(said, address)})"
    return f"{address.name} {words.format(prefix=address.prefix, acl_rights=acl_rights(address))}"


def is_wrong_type(error: Exception) -> bool:
    """Return whether a script found a key of another type, written by another program; other scripts may succeed."""
    return FOREIGN in str(error)


def acl_rights(address: Address) -> str:
    """Return the rights that a user of the store needs, in the syntax of ACL SETUSER.

    >>> from abate.stores.redis.address import parse_url
    >>> acl_rights(parse_url("redis", "//cache/3?prefix=shop"))
    '~shop:* +@read +@write +@scripting +time +blpop +info +select'
    """
    beyond = RIGHTS_BEYOND_0 if address.server["db"] else ""
    return RIGHTS.format(prefix=address.prefix) + beyond + (RIGHTS_IN_A_CLUSTER if address.cluster else "")


def _words(error: Exception, said: str) -> str | None:
    if isinstance(_first(error), exceptions.NoPermissionError):  # redis-py reports it as a server without cluster mode
        return NO_RIGHTS
    for text, words in BY_TEXT:
        if text in said:
            return words
    for kind, words in BY_KIND:
        if isinstance(error, kind):
            return words
    if isinstance(error, (exceptions.ConnectionError, exceptions.RedisClusterException)):
        for text, words in BY_CONNECT_TEXT:
            if text in said:
                return words
    return None


DEEPEST = 100
"""Maximum length of a chain of causes, which may be circular."""


def _first(error: BaseException) -> BaseException:
    """Return the first error in the chain of causes."""
    for _ in range(DEEPEST):
        before = error.__cause__ or error.__context__
        if before is None:
            break
        error = before
    return error


def _scrubbed(said: str, address: Address) -> str:
    """Remove secrets from a message of the server, which may repeat the command."""
    return redacted(said.replace(address.password, HIDDEN) if address.password else said)
