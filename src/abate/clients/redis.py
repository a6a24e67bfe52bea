"""Supports redis-py (Redis and Valkey): a rule for its errors, and clients with its own retries turned off.

redis-py retries by itself, up to ten times with jitter, and two layers of retries multiply. Clients made here do not.
`transient` classifies the errors of sync and async clients:

* If a connection could not be made, taken from the pool or accepted by the server, nothing was sent, so any command can
  be repeated. All of these mean overload, except a plain failure to connect.
* TLS that can't work is fatal: a certificate that does not verify, another host's name, a server without TLS.
* Timeouts mean overload. Any other broken connection is a blip, and the server may have seen the command.
* LOADING, BUSY (a script), CLUSTERDOWN, MASTERDOWN, NOREPLICAS, READONLY and a cluster without a node for the slot last
  for seconds, until a failover or a restart is over. They count as overload.
* TRYAGAIN (resharding) and a watched key that changed are conflicts: a blip.
* Everything else is fatal: wrong types and passwords, ASK and MOVED (which only a cluster client can follow), MISCONF
  (a disk that needs repair), and OOM: a server that must not evict has no more memory a second later, and retried
  writes keep it full.

Retry the function that fills a pipeline, not ``execute`` alone: a pipeline that failed is empty.
"""

from __future__ import annotations

from typing import Any

from abate.decide.network_errors import judge_network_error
from abate.decide.outcome import (
    BLIP,
    FATAL,
    FATAL_UNREACHED,
    OVERLOAD,
    OVERLOAD_UNREACHED,
    UNREACHED,
    Outcome,
    Ruling,
)
from abate.decide.rules import Rule
from abate.optional_dependencies import requires_extra

with requires_extra(by="abate.clients.redis", extra="redis"):
    import redis
    import redis.asyncio
    from redis import exceptions
    from redis.asyncio.retry import Retry as AsyncRetry
    from redis.backoff import NoBackoff
    from redis.retry import Retry

__all__ = ["aclient", "aquiet", "client", "quiet", "transient"]

TRANSIENT_ERRORS = (
    exceptions.BusyLoadingError,
    exceptions.ClusterError,  # includes CLUSTERDOWN and MASTERDOWN
    exceptions.ReadOnlyError,
    exceptions.SlotNotCoveredError,
    exceptions.TimeoutError,
)
CONFLICTS = (exceptions.TryAgainError, exceptions.WatchError)
AUTH_ERRORS = (exceptions.AuthenticationError, exceptions.AuthorizationError)

TRANSIENT_TEXTS = ("BUSY ", "NOREPLICAS ", "Redis Cluster cannot be connected")
"""Errors without an exception type of their own in redis-py."""

UNREACHED_TEXTS = (
    "Timeout connecting to",
    "No connection available",  # from a pool that waits
    "Too many connections",  # from a pool that does not wait
    "max number of clients reached",
)

MAX_CHAIN = 5
"""Errors of redis-py, each raised while the last one was handled, that are looked into: a cluster client nests them."""

RETRY_SETTINGS = ("retry", "retry_on_error", "retry_on_timeout")


class OnRedis(Rule):
    """Classifies errors of redis-py, sync and async.

    >>> transient.judge(Outcome(error=exceptions.TimeoutError("Timeout reading from socket"))).reason
    'overload'
    >>> transient.judge(Outcome(error=exceptions.OutOfMemoryError())).retry
    False
    """

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        if not isinstance(error, (exceptions.RedisError, exceptions.RedisClusterException)):
            return None
        if _is_tls_mismatch(error):
            return FATAL_UNREACHED
        text = str(error)
        if isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError)) and text.startswith(
            UNREACHED_TEXTS
        ):
            return OVERLOAD_UNREACHED
        if isinstance(error, TRANSIENT_ERRORS) or text.startswith(TRANSIENT_TEXTS):
            return OVERLOAD
        if isinstance(error, CONFLICTS):
            return BLIP
        if isinstance(error, exceptions.ConnectionError) and not isinstance(error, AUTH_ERRORS):
            # unlike "Error while reading" and "Error 32 while writing": no command was sent
            return UNREACHED if text.startswith("Error ") and " connecting to " in text else BLIP
        return FATAL


def _is_tls_mismatch(error: BaseException) -> bool:
    """Return whether an error was raised while one of TLS was handled that another attempt would meet again."""
    for _ in range(MAX_CHAIN):
        inner = error.__context__
        if inner is None:
            return False
        if judge_network_error(inner) is FATAL_UNREACHED:
            return True
        if not isinstance(inner, exceptions.RedisError):
            return False
        error = inner
    return False


transient = OnRedis()
"""The rule for `on`: retries the errors listed in this module's docstring."""


def quiet(**settings: Any) -> dict[str, Any]:
    """Return settings for a client or pool of redis-py, with its retries off.

    >>> redis.Redis(**quiet(host="cache", socket_timeout=1.0)).get_retry().get_retries()
    0
    """
    return {**_checked(settings), "retry": Retry(NoBackoff(), 0)}


def aquiet(**settings: Any) -> dict[str, Any]:
    """Return the same settings for `redis.asyncio`.

    >>> redis.asyncio.Redis(**aquiet(host="cache", socket_timeout=1.0)).get_retry().get_retries()
    0
    """
    return {**_checked(settings), "retry": AsyncRetry(NoBackoff(), 0)}


def client(url: str, **settings: Any) -> redis.Redis:
    """Return a client that makes one attempt per command. A policy around it retries.

    Set a ``socket_timeout``: without one, a call to a server that hangs never ends.

    >>> import abate
    >>> cache = abate.Policy(name="cache", on=transient, max_attempts=2, backoff=[0.0])
    >>> with client("redis://127.0.0.1:1", socket_timeout=1.0) as down:
    ...     try:
    ...         cache.call(down.ping)
    ...     except redis.ConnectionError as error:
    ...         print(abate.report(error))
    cache gave up after 2 attempts: attempts
    """
    return redis.Redis.from_url(url, **quiet(**settings))


def aclient(url: str, **settings: Any) -> redis.asyncio.Redis:
    """Return the same client of `redis.asyncio`.

    >>> import abate, asyncio
    >>> cache = abate.Policy(name="cache", on=transient, max_attempts=2, backoff=[0.0])
    >>> async def ping():
    ...     async with aclient("redis://127.0.0.1:1", socket_timeout=1.0) as down:
    ...         try:
    ...             await cache.acall(down.ping)
    ...         except redis.ConnectionError as error:
    ...             print(abate.report(error))
    >>> asyncio.run(ping())
    cache gave up after 2 attempts: attempts
    """
    return redis.asyncio.Redis.from_url(url, **aquiet(**settings))


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    if "policy" in settings:
        raise TypeError("policy is no setting of redis-py: put it around the calls, as in policy.call(client.get, key)")
    for name in RETRY_SETTINGS:
        if name in settings:
            raise TypeError(f"{name} cannot be set, as {settings[name]!r}: the policy retries, redis-py does not")
    return settings
