"""Redis and Valkey, by redis-py: a rule for its errors, and clients whose own retries are off.

redis-py retries by itself, up to ten times with jitter, and two layers of retries multiply: make clients here. Its
errors, sync and async, are judged by `transient`:

* no connection could be made, had from the pool, or was let in by the server: nothing was sent, which is safe to
  repeat whatever the command does. All but a plain failure to connect mean overload;
* timeouts mean overload; any other break of the connection is a blip, and the server may have seen the command;
* LOADING, BUSY (a script), CLUSTERDOWN, MASTERDOWN, NOREPLICAS, READONLY and a cluster without a node for the slot
  pass, in seconds rather than milliseconds: a failover or a restart is on its way. They count as overload;
* TRYAGAIN (resharding) and a watched key that changed are conflicts: a blip;
* everything else is fatal: wrong types and passwords, ASK and MOVED (which only a cluster client can follow), MISCONF
  (a disk that somebody has to mend), and OOM: a server that may not evict has no more memory in a second, and those
  who retry writes keep it full.

Retry the function that fills a pipeline, not ``execute`` alone: a pipeline that failed is empty.
"""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
from redis import exceptions
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from abate.decide.outcome import BLIP, FATAL, OVERLOAD, UNREACHED, Outcome, Ruling
from abate.decide.rules import Rule

PASSING = (
    exceptions.BusyLoadingError,
    exceptions.ClusterError,  # CLUSTERDOWN and MASTERDOWN among them
    exceptions.ReadOnlyError,
    exceptions.SlotNotCoveredError,
    exceptions.TimeoutError,
)
CONFLICTS = (exceptions.TryAgainError, exceptions.WatchError)
DENIED = (exceptions.AuthenticationError, exceptions.AuthorizationError)

PASSING_TEXTS = ("BUSY ", "NOREPLICAS ", "Redis Cluster cannot be connected")
"""What redis-py has no exception of its own for."""

NO_CONNECTION = (
    "Timeout connecting to",
    "No connection available",  # of a pool that waits
    "Too many connections",  # of a pool that doesn't
    "max number of clients reached",
)
OVERLOADED_UNREACHED = Ruling.overload(reached=False)

RETRY_SETTINGS = ("retry", "retry_on_error", "retry_on_timeout")


class OnRedis(Rule):
    """Errors of redis-py, sync and async.

    >>> transient.judge(Outcome(error=exceptions.TimeoutError("Timeout reading from socket"))).reason
    'overload'
    >>> transient.judge(Outcome(error=exceptions.OutOfMemoryError())).retry
    False
    """

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        if not isinstance(error, (exceptions.RedisError, exceptions.RedisClusterException)):
            return None
        text = str(error)
        if isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError)) and text.startswith(NO_CONNECTION):
            return OVERLOADED_UNREACHED
        if isinstance(error, PASSING) or text.startswith(PASSING_TEXTS):
            return OVERLOAD
        if isinstance(error, CONFLICTS):
            return BLIP
        if isinstance(error, exceptions.ConnectionError) and not isinstance(error, DENIED):
            # as opposed to "Error while reading" and "Error 32 while writing": no command was sent yet
            return UNREACHED if text.startswith("Error ") and " connecting to " in text else BLIP
        return FATAL


transient = OnRedis()
"""The rule for `on`: what is worth another attempt, by the table above."""


def quiet(**settings: Any) -> dict[str, Any]:
    """The settings of a client or pool of redis-py, with its retries off.

    >>> redis.Redis(**quiet(host="cache", socket_timeout=1.0)).get_retry().get_retries()
    0
    """
    return {**_checked(settings), "retry": Retry(NoBackoff(), 0)}


def aquiet(**settings: Any) -> dict[str, Any]:
    """The same for `redis.asyncio`.

    >>> redis.asyncio.Redis(**aquiet(host="cache", socket_timeout=1.0)).get_retry().get_retries()
    0
    """
    return {**_checked(settings), "retry": AsyncRetry(NoBackoff(), 0)}


def client(url: str, **settings: Any) -> redis.Redis:
    """A client that makes one attempt of each command, for a policy around it to retry.

    Give it a ``socket_timeout``: a server that hangs is noticed by nothing else.

    >>> import abate
    >>> cache = abate.Policy(name="cache", on=transient, attempts=2, backoff=[0.0])
    >>> with client("redis://127.0.0.1:1", socket_timeout=1.0) as nobody:
    ...     try:
    ...         cache.call(nobody.ping)
    ...     except redis.ConnectionError as error:
    ...         print(abate.report(error))
    cache gave up after 2 attempts: attempts
    """
    return redis.Redis.from_url(url, **quiet(**settings))


def aclient(url: str, **settings: Any) -> redis.asyncio.Redis:
    """The same for `redis.asyncio`.

    >>> import abate, asyncio
    >>> cache = abate.Policy(name="cache", on=transient, attempts=2, backoff=[0.0])
    >>> async def ping():
    ...     async with aclient("redis://127.0.0.1:1", socket_timeout=1.0) as nobody:
    ...         try:
    ...             await cache.acall(nobody.ping)
    ...         except redis.ConnectionError as error:
    ...             print(abate.report(error))
    >>> asyncio.run(ping())
    cache gave up after 2 attempts: attempts
    """
    return redis.asyncio.Redis.from_url(url, **aquiet(**settings))


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    for name in RETRY_SETTINGS:
        if name in settings:
            raise TypeError(f"{name} cannot be set, as {settings[name]!r}: the policy retries, redis-py does not")
    return settings
