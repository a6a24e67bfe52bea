"""The connections of a process to a Redis server or cluster, and the calls of scripts over them.

* Every call has a time limit. A failed connection is dropped, and the next call opens a new one. There is no reconnect
  loop here: callers have backoff with jitter. The retries of redis-py are off.
* A connection found dead before anything was sent is replaced silently. If the connection breaks during a call, a
  read or another idempotent call is repeated once; other calls are not, since the server may have executed them.
* A script that the server does not know is sent in full.
* Blocking waits, the fleet's sync and all other calls use separate connections, since their time limits differ.
* A signal handler that raises may interrupt redis-py anywhere, and leave a connection that its pool counts as in use
  forever, or an unread reply. The whole client is then dropped, and the next call makes a new one; other threads
  continue on the old one. The same applies to an exhausted pool.
* A forked child opens its own connections.
* Errors of redis-py are raised as `StoreError` with an explanation; the original is omitted, since it could contain a
  password.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from abate import forks
from abate.logs import Log
from abate.stores.errors import StoreError, StoreUnreachable
from abate.stores.redis.address import Address
from abate.stores.redis.error_texts import explain, is_wrong_type
from abate.stores.redis.scripts import LuaScript

log = Log("abate.stores")

Keys: TypeAlias = Sequence[str] | Sequence[bytes]
Use: TypeAlias = Literal["work", "sync", "wait"]
T = TypeVar("T")

MIN_VERSION: Final = (6, 2)
"""The first version of Redis with all commands that the scripts use."""
SYNC_TIMEOUT: Final = 1.0
"""Maximum seconds for one sync of the fleet's shared limits."""
MAX_BLOCK: Final = 5.0
"""Maximum seconds that a client blocks before it reads the queue again, in case a wake-up was lost."""
DRIVER_ERRORS = (exceptions.RedisError, exceptions.RedisClusterException)
ERRORS = (*DRIVER_ERRORS, OSError)
FAILED_OVER = (exceptions.ReadOnlyError, exceptions.BusyLoadingError)
"""The command was not executed, and the address may lead to another server by now."""
INTERRUPT_KEPT_FOR: Final = 10
"""Seconds until an interrupt expires for which no client has waited."""
SHORTEST_WAIT = 0.001
"""Seconds; 0 would block forever."""


class RedisConnection:
    """A client of a Redis server or cluster."""

    def __init__(self, address: Address, required: bool = True) -> None:
        self.address = address
        self._timeouts: dict[Use, float] = {
            "work": address.timeout,
            "sync": min(SYNC_TIMEOUT, address.timeout),
            "wait": address.timeout + MAX_BLOCK,
        }
        self._closed = False
        self._parents: list[Any] = []  # in a child, the parent's clients: kept, since closing them would disturb it
        self._clients: dict[Use, Any] = {}
        forks.register(self)
        try:
            self._check_server()  # report an unusable server now
        except StoreUnreachable as error:
            if required:
                raise
            log.warning("%s: the next operation tries again", error)

    def after_fork(self) -> None:
        """Reset the child: it opens its own connections."""
        self._parents += self._clients.values()
        self._clients = {}

    # -- calls

    def call(self, script: LuaScript, keys: Keys, args: Sequence[Any], *, repeatable: bool = False) -> Any:
        """Call a script and return its reply."""
        return self._run_retrying("work", lambda client: _eval(client, script, keys, args), repeatable)

    def calls(
        self,
        calls: Sequence[tuple[LuaScript, Keys, Sequence[Any]]],
        use: Use = "work",
        repeatable: bool = False,
        skip_wrong_type: bool = False,
    ) -> list[Any]:
        """Call several scripts in one round trip and return their replies.

        With `skip_wrong_type`, the reply to a call that finds a key of another type is a `StoreError`, and the other
        calls succeed.
        """
        if not calls:
            return []
        answers = self._run_retrying(use, lambda client: _eval_pipeline(client, calls, skip_wrong_type), repeatable)
        return [self._translated(answer, use) if isinstance(answer, Exception) else answer for answer in answers]

    def command(self, *words: Any) -> Any:
        """Send an idempotent command and return its reply."""
        return self._run_retrying("work", lambda client: client.execute_command(*words), repeatable=True)

    def listen(
        self, lists: Sequence[str], seconds: float, script: LuaScript, keys: Keys, args: Sequence[Any]
    ) -> list[Any] | None:
        """Block on lists for at most `seconds`, then call a script. Return its reply; None if it could not be called.

        Both are sent together, so that a wake-up costs one round trip. In a cluster the script is not called.
        """
        timeout = max(SHORTEST_WAIT, seconds)
        try:
            return self._run_retrying(
                "wait", lambda client: _block_and_eval(client, lists, timeout, script, keys, args), repeatable=False
            )
        except ConnectionBroken:
            return None  # the next read reports an unreachable server

    def interrupt(self, wakeup_list: str) -> None:
        """Wake the client that blocks on this list, now or within some seconds."""
        self.command("RPUSH", wakeup_list, "")
        self.command("EXPIRE", wakeup_list, INTERRUPT_KEPT_FOR)

    def _run_retrying(self, use: Use, ask: Callable[[Any], T], repeatable: bool) -> T:
        client = self._client(use)
        try:
            return self._run(use, client, ask)
        except Exception as error:
            if isinstance(error, FAILED_OVER):
                _drop(client)
            elif self._closed or not (
                _used_up(error) or (repeatable and isinstance(error, exceptions.ConnectionError))
            ):
                raise self._translated(error, use) from None
        client = self._client(use)
        try:
            return self._run(use, client, ask)
        except Exception as error:
            raise self._translated(error, use) from None

    def _run(self, use: Use, client: Any, ask: Callable[[Any], T]) -> T:
        try:
            return ask(client)
        except BaseException as error:
            broken_off = not isinstance(error, DRIVER_ERRORS)
            if (broken_off or _used_up(error)) and self._clients.get(use) is client:
                # not closed, since other threads may be using it: it is closed when the last reference is dropped
                self._clients.pop(use, None)
            raise

    def _translated(self, error: Exception, use: Use) -> Exception:
        if self._closed:  # a read from a connection that another thread closes fails with various errors
            return StoreError(f"{self.address.name} is closed")
        if not isinstance(error, ERRORS):
            return error
        words = explain(error, self.address, self._timeouts[use])
        if isinstance(error, exceptions.ConnectionError) and _was_there(error):
            return ConnectionBroken(words)
        away = isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError))
        refused = isinstance(error, exceptions.AuthenticationError)
        return StoreUnreachable(words) if away and not refused else StoreError(words)

    # -- connections

    def _client(self, use: Use) -> Any:
        # no lock: a cluster client connects here, and a signal handler may interrupt that and call this again
        client = self._clients.get(use)
        if client is None and not self._closed:
            made = self._make_client(use)
            client = self._clients.setdefault(use, made)
            if client is not made:
                made.close()  # another thread was first
        if self._closed:
            self.close()
            raise StoreError(f"{self.address.name} is closed")
        return client

    def _make_client(self, use: Use) -> Any:
        timeout = self._timeouts[use]
        settings = {
            **self.address.server,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": timeout,
            "socket_connect_timeout": min(timeout, self.address.timeout),
            "socket_keepalive": True,
        }
        if not self.address.cluster:
            return redis.Redis(**settings)
        try:
            del settings["db"]
            return RedisCluster(**settings)  # connects at once
        except ERRORS as error:
            raise self._translated(error, use) from None

    def _check_server(self) -> None:
        try:
            # a cluster returns one reply per node
            answers = self._run_retrying("work", lambda client: _per_node(client.info()), repeatable=True)
        except StoreError as error:
            if "the rights" in str(error):  # a user without the right to INFO can still use the store
                return
            raise
        for facts in answers:
            refuse_old(self.address.name, str(facts.get("redis_version", "")))
            if facts.get("cluster_enabled") and not self.address.cluster:
                raise StoreError(f"{self.address.name} is part of a cluster: add ?cluster=true to the URL")
            if facts.get("maxmemory") and str(facts.get("maxmemory_policy", "")).startswith("allkeys"):
                log.warning(
                    "%s evicts any key when its memory is full (maxmemory-policy %s), including those of queues: "
                    "waiting messages can be lost; expected noeviction or volatile-*",
                    self.address.name,
                    facts["maxmemory_policy"],
                )

    def close(self) -> None:
        """Close the connections; calls that block on one return."""
        self._closed = True
        for use in list(self._clients):
            client = self._clients.pop(use, None)
            if client is not None:
                client.close()


class ConnectionBroken(StoreUnreachable):
    """The connection broke during a call."""


def refuse_old(name: str, version: str) -> None:
    """Refuse a server that is too old.

    >>> refuse_old("redis://cache:6379/0", "5.0.14")
    Traceback (most recent call last):
    abate.stores.errors.StoreError: redis://cache:6379/0 is Redis 5.0.14: expected 6.2 or newer, or Valkey
    """
    try:
        found = tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        return  # a compatible server with another version scheme
    if found < MIN_VERSION:
        raise StoreError(f"{name} is Redis {version}: expected {MIN_VERSION[0]}.{MIN_VERSION[1]} or newer, or Valkey")


def _eval(client: Any, script: LuaScript, keys: Keys, args: Sequence[Any]) -> Any:
    try:
        return _send(client, "EVALSHA", script.digest, len(keys), *keys, *args)
    except exceptions.NoScriptError:
        return _send(client, "EVAL", script.text, len(keys), *keys, *args)


def _send(client: Any, *words: Any) -> Any:
    """Send a command and return its reply."""
    if not isinstance(client, redis.Redis):
        return client.execute_command(*words)
    pool = client.connection_pool
    connection: Any = pool.get_connection()
    try:
        connection.send_packed_command([_packed(words)])
        return connection.read_response()
    finally:
        pool.release(connection)


def _packed(words: Sequence[Any]) -> bytes:
    """Encode a command for a single server: redis-py takes longer for this than the server does for the command."""
    packed = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        packed.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(packed)


def _block_and_eval(
    client: Any, lists: Sequence[str], seconds: float, script: LuaScript, keys: Keys, args: Sequence[Any]
) -> list[Any] | None:
    """Block on lists and call a script, in one round trip; None if the script was not called."""
    if not isinstance(client, redis.Redis):
        client.blpop(list(lists), seconds)
        return None
    block = _packed(("BLPOP", *lists, seconds))
    receive = _packed(("EVALSHA", script.digest, len(keys), *keys, *args))
    pool = client.connection_pool
    connection: Any = pool.get_connection()
    try:
        connection.send_packed_command([block + receive])
        try:
            connection.read_response()
        except exceptions.ResponseError:
            connection.read_response()  # or the next command would get this reply
            raise
        try:
            return connection.read_response()  # type: ignore[no-any-return]
        except exceptions.NoScriptError:
            return None
    finally:
        pool.release(connection)


def _eval_pipeline(
    client: Any, calls: Sequence[tuple[LuaScript, Keys, Sequence[Any]]], skip_wrong_type: bool = False
) -> list[Any]:
    if len(calls) == 1:
        try:
            return [_eval(client, *calls[0])]
        except exceptions.ResponseError as error:
            if skip_wrong_type and is_wrong_type(error):
                return [error]
            raise
    with client.pipeline(transaction=False) as pipeline:
        for script, keys, args in calls:
            pipeline.execute_command("EVALSHA", script.digest, len(keys), *keys, *args)
        answers = list(pipeline.execute(raise_on_error=False))
    for place, answer in enumerate(answers):
        if isinstance(answer, exceptions.NoScriptError):
            answers[place] = _eval(client, *calls[place])
        elif isinstance(answer, Exception) and not (skip_wrong_type and is_wrong_type(answer)):
            raise answer
    return answers


def _per_node(info: dict[str, Any]) -> list[dict[str, Any]]:
    return [info] if "redis_version" in info else [facts for facts in info.values() if isinstance(facts, dict)]


def _used_up(error: BaseException) -> bool:
    """Return whether the pool is exhausted; nothing was sent then."""
    return isinstance(error, exceptions.ConnectionError) and "Too many connections" in str(error)


def _was_there(error: Exception) -> bool:
    """Return whether the connection was established before it broke."""
    return not isinstance(error, exceptions.AuthenticationError) and " connecting to " not in str(error)


def _drop(client: Any) -> None:
    """Disconnect idle connections, so that the next call resolves the host and connects anew."""
    if isinstance(client, redis.Redis):
        client.connection_pool.disconnect(inuse_connections=False)
