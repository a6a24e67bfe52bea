"""The connections that a process has to a Redis, and the calls of scripts over them.

* Every call has a time limit. After one that failed the connection is dropped; the next call makes a new one. There is
  no loop of our own that reconnects: those who call have backoff with jitter. redis-py's own retries are off.
* A connection that was found dead before anything was sent is replaced silently. A call that reads, or that does the
  same when it is made twice, is made once more when the connection breaks under it; any other is not, as the server may
  have carried it out.
* A script that the server does not know (any more) is sent as a whole.
* Waiting for a bell, exchanging a fleet's offers and everything else have connections apart, as their time limits
  differ.
* A signal handler that raises may break off redis-py anywhere, and leave a connection that its pool takes for one in
  use for ever, or an answer that nobody has read. So the whole client is dropped then, and the next call makes a new
  one; what other threads do over the old one goes on. So it is with a pool that is used up.
* A fork's child makes connections of its own.
* What redis-py says is said again in words, as `StoreError`; the original is left out, as it could hold a password.
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
from abate.stores.contract import StoreError, StoreUnreachable
from abate.stores.redis.address import Address
from abate.stores.redis.scripts import Script
from abate.stores.redis.trouble import explained, is_foreign

log = Log("abate.stores")

Keys: TypeAlias = Sequence[str] | Sequence[bytes]
Use: TypeAlias = Literal["work", "trade", "wait"]
T = TypeVar("T")

OLDEST: Final = (6, 2)
"""The version of Redis that has the commands which the scripts use."""
QUICKLY: Final = 1.0
"""Seconds that an exchange of offers may take at most."""
LONGEST_LOOK: Final = 2.0
"""Seconds for which one waits for a bell, before one looks whether it has missed any."""
OF_THE_DRIVER = (exceptions.RedisError, exceptions.RedisClusterException)
ERRORS = (*OF_THE_DRIVER, OSError)
MOVED_ON = (exceptions.ReadOnlyError, exceptions.BusyLoadingError)
"""Nothing was done, and the server at this address may be another one by now."""
SHORTEST_WAIT = 0.001
"""Seconds; 0 would be a wait without end."""


class Server:
    """A Redis, or a cluster of them."""

    def __init__(self, address: Address, required: bool = True) -> None:
        self.address = address
        self._timeouts: dict[Use, float] = {
            "work": address.timeout,
            "trade": min(QUICKLY, address.timeout),
            "wait": address.timeout + LONGEST_LOOK,
        }
        self._closed = False
        self._parents: list[Any] = []  # in a child, the clients of its parent: closing one here would disturb it
        self._clients: dict[Use, Any] = {}
        forks.keep(self)
        try:
            self._look_over()  # so what is wrong with the server is said now
        except StoreUnreachable as error:
            if required:
                raise
            log.warning("%s: it is asked again when it is needed", error)

    def after_fork(self) -> None:
        """In the child: connections of its own."""
        self._parents += self._clients.values()
        self._clients = {}

    # -- calls

    def call(self, script: Script, keys: Keys, args: Sequence[Any], *, repeatable: bool = False) -> Any:
        """What a script answers."""
        return self._asked("work", lambda client: _evaluated(client, script, keys, args), repeatable)

    def calls(
        self,
        calls: Sequence[tuple[Script, Keys, Sequence[Any]]],
        use: Use = "work",
        repeatable: bool = False,
        apart: bool = False,
    ) -> list[Any]:
        """Return what several scripts answer, in one round trip.

        With `apart`, a call that finds something else under its keys is answered by a `StoreError`, and the others as
        if it had not been there.
        """
        if not calls:
            return []
        answers = self._asked(use, lambda client: _evaluated_together(client, calls, apart), repeatable)
        return [self._said(answer, use) if isinstance(answer, Exception) else answer for answer in answers]

    def command(self, *words: Any) -> Any:
        """What a command answers that does the same when it is sent twice."""
        return self._asked("work", lambda client: client.execute_command(*words), repeatable=True)

    def listen(self, bell: str, seconds: float) -> None:
        """Wait for a bell for so long, or a little less."""
        try:
            self._asked("wait", lambda client: client.blpop([bell], max(SHORTEST_WAIT, seconds)), repeatable=False)
        except Broken:
            pass  # whether the server is there is found out by who looks next

    def _asked(self, use: Use, ask: Callable[[Any], T], repeatable: bool) -> T:
        client = self._client(use)
        try:
            return self._ask(use, client, ask)
        except Exception as error:
            if isinstance(error, MOVED_ON):
                _drop(client)
            elif self._closed or not (
                _used_up(error) or (repeatable and isinstance(error, exceptions.ConnectionError))
            ):
                raise self._said(error, use) from None
        client = self._client(use)
        try:
            return self._ask(use, client, ask)
        except Exception as error:
            raise self._said(error, use) from None

    def _ask(self, use: Use, client: Any, ask: Callable[[Any], T]) -> T:
        try:
            return ask(client)
        except BaseException as error:
            broken_off = not isinstance(error, OF_THE_DRIVER)
            if (broken_off or _used_up(error)) and self._clients.get(use) is client:
                # not closed, as other threads may be using it: that is done when nobody has it any more
                self._clients.pop(use, None)
            raise

    def _said(self, error: Exception, use: Use) -> Exception:
        if self._closed:  # who reads from a connection that is closed beside it gets errors of all kinds
            return StoreError(f"{self.address.name} is closed")
        if not isinstance(error, ERRORS):
            return error
        words = explained(error, self.address, self._timeouts[use])
        if isinstance(error, exceptions.ConnectionError) and _was_there(error):
            return Broken(words)
        away = isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError))
        refused = isinstance(error, exceptions.AuthenticationError)
        return StoreUnreachable(words) if away and not refused else StoreError(words)

    # -- connections

    def _client(self, use: Use) -> Any:
        # no lock, as a cluster is connected to here, and a signal handler may come in the middle of that
        client = self._clients.get(use)
        if client is None and not self._closed:
            made = self._made(use)
            client = self._clients.setdefault(use, made)
            if client is not made:
                made.close()  # another thread was first
        if self._closed:
            self.close()
            raise StoreError(f"{self.address.name} is closed")
        return client

    def _made(self, use: Use) -> Any:
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
            return RedisCluster(**settings)  # this one connects at once
        except ERRORS as error:
            raise self._said(error, use) from None

    def _look_over(self) -> None:
        try:
            # a cluster answers for each of its nodes
            answers = self._asked("work", lambda client: _every(client.info()), repeatable=True)
        except StoreError as error:
            if "the rights" in str(error):  # whoever may not ask is let work
                return
            raise
        for facts in answers:
            refuse_old(self.address.name, str(facts.get("redis_version", "")))
            if facts.get("cluster_enabled") and not self.address.cluster:
                raise StoreError(f"{self.address.name} is part of a cluster: add ?cluster=true to the URL")
            if facts.get("maxmemory") and str(facts.get("maxmemory_policy", "")).startswith("allkeys"):
                log.warning(
                    "%s evicts any key when its memory is full (maxmemory-policy %s), those of queues too: "
                    "what waits in them can be lost; expected noeviction or volatile-*",
                    self.address.name,
                    facts["maxmemory_policy"],
                )

    def close(self) -> None:
        """Let go of the connections; whoever waits on one is woken."""
        self._closed = True
        for use in list(self._clients):
            client = self._clients.pop(use, None)
            if client is not None:
                client.close()


class Broken(StoreUnreachable):
    """The connection broke while a call was under way."""


def refuse_old(name: str, version: str) -> None:
    """Refuse a server that is too old.

    >>> refuse_old("redis://cache:6379/0", "5.0.14")
    Traceback (most recent call last):
    abate.stores.contract.StoreError: redis://cache:6379/0 is Redis 5.0.14: expected 6.2 or newer, or Valkey
    """
    try:
        found = tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        return  # a relative of Redis that counts otherwise
    if found < OLDEST:
        raise StoreError(f"{name} is Redis {version}: expected {OLDEST[0]}.{OLDEST[1]} or newer, or Valkey")


def _evaluated(client: Any, script: Script, keys: Keys, args: Sequence[Any]) -> Any:
    try:
        return _sent(client, "EVALSHA", script.digest, len(keys), *keys, *args)
    except exceptions.NoScriptError:
        return _sent(client, "EVAL", script.text, len(keys), *keys, *args)


def _sent(client: Any, *words: Any) -> Any:
    """What a command answers. On one server it goes straight to a connection: redis-py's own way to pack and send so
    many words takes longer than the server does."""
    if not isinstance(client, redis.Redis):
        return client.execute_command(*words)
    packed = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        packed.append(b"$%d\r\n%b\r\n" % (len(data), data))
    pool = client.connection_pool
    connection: Any = pool.get_connection()
    try:
        connection.send_packed_command([b"".join(packed)])
        return connection.read_response()
    finally:
        pool.release(connection)


def _evaluated_together(
    client: Any, calls: Sequence[tuple[Script, Keys, Sequence[Any]]], apart: bool = False
) -> list[Any]:
    if len(calls) == 1:
        try:
            return [_evaluated(client, *calls[0])]
        except exceptions.ResponseError as error:
            if apart and is_foreign(error):
                return [error]
            raise
    with client.pipeline(transaction=False) as pipeline:
        for script, keys, args in calls:
            pipeline.execute_command("EVALSHA", script.digest, len(keys), *keys, *args)
        answers = list(pipeline.execute(raise_on_error=False))
    for place, answer in enumerate(answers):
        if isinstance(answer, exceptions.NoScriptError):
            answers[place] = _evaluated(client, *calls[place])
        elif isinstance(answer, Exception) and not (apart and is_foreign(answer)):
            raise answer
    return answers


def _every(info: dict[str, Any]) -> list[dict[str, Any]]:
    return [info] if "redis_version" in info else [facts for facts in info.values() if isinstance(facts, dict)]


def _used_up(error: BaseException) -> bool:
    """Has the pool as many connections as it may have? Then nothing was sent."""
    return isinstance(error, exceptions.ConnectionError) and "Too many connections" in str(error)


def _was_there(error: Exception) -> bool:
    """Was the connection there before it broke?"""
    return not isinstance(error, exceptions.AuthenticationError) and " connecting to " not in str(error)


def _drop(client: Any) -> None:
    """Let the next call connect anew, and look the host up anew."""
    if isinstance(client, redis.Redis):
        client.connection_pool.disconnect(inuse_connections=False)
