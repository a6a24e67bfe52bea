"""redis-py against a real Valkey on loopback: stopped, killed, loading, busy, full, demoted."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import threading

import pytest
import redis
from redis.asyncio import BlockingConnectionPool as AsyncBlockingPool
from redis.asyncio import ConnectionPool as AsyncPool

import abate
from abate.clients.redis import aclient, aquiet, client, quiet, transient
from tests.clients.valkey_server import LIMIT, Valkey, eventually, free_port
from tests.decide.network_faults import full


@pytest.fixture(scope="module")
def valkey(tmp_path_factory):
    """A server that every test leaves as it was."""
    server = Valkey(tmp_path_factory.mktemp("valkey")).start("--busy-reply-threshold", "1")
    yield server
    server.kill()


@pytest.fixture
def mortal(tmp_path):
    """A server for one test."""
    server = Valkey(tmp_path).start()
    yield server
    server.kill()


class Sync:
    """Commands by redis.Redis."""

    def execute(self, url, *command, policy=None, **settings):
        with client(url, **settings) as connected:
            return (policy or ONCE).call(connected.execute_command, *command)


class Async:
    """Commands by redis.asyncio.Redis."""

    def execute(self, url, *command, policy=None, **settings):
        async def main():
            async with aclient(url, **settings) as connected:
                return await (policy or ONCE).acall(connected.execute_command, *command)

        return asyncio.run(main())


ONCE = abate.Policy(name="once", on=transient, max_attempts=1)


@pytest.fixture(params=[Sync(), Async()], ids=["sync", "async"])
def way(request):
    """Either client."""
    return request.param


def ruling(call, *args, **kwargs):
    """The rule's answer to the error that a call ends with."""
    with pytest.raises((redis.RedisError, redis.exceptions.RedisClusterException)) as caught:
        call(*args, **kwargs)
    return transient.judge(abate.Outcome(error=caught.value))


UNREACHED = abate.Ruling.blip(reached=False)
BLIP = abate.Ruling.blip()
OVERLOAD = abate.Ruling.overload()
SHUT_OUT = abate.Ruling.overload(reached=False)
FATAL = abate.Ruling.fatal()


# -- no connection


def test_a_refused_connection_was_never_reached(way, tmp_path):
    """If nothing listens on the port, the server never saw the command."""
    assert ruling(way.execute, Valkey(tmp_path).url, "PING") == UNREACHED


def test_a_name_that_does_not_resolve_was_never_reached(way):
    """Nor was a server without an address."""
    assert ruling(way.execute, "redis://no-such-name.invalid:1", "PING") == UNREACHED


def test_a_command_that_reached_no_server_is_repeated_whatever_it_does(way, tmp_path):
    """A policy that is not idempotent retries a refused connection, and raises redis-py's own error in the end."""
    policy = abate.Policy(name="incr", on=transient, idempotent=False, max_attempts=3, backoff=[0.0])
    with pytest.raises(redis.ConnectionError) as caught:
        way.execute(Valkey(tmp_path).url, "INCR", "n", policy=policy)
    assert (abate.report(caught.value).attempts, abate.report(caught.value).reason) == (3, "attempts")


def test_a_connect_timeout_was_never_reached(way):
    """A server that takes no more connections is overloaded, and has seen nothing."""
    with full() as url:
        url = url.replace("http", "redis")
        assert ruling(way.execute, url, "PING", socket_connect_timeout=0.2) == SHUT_OUT


def test_a_server_with_too_many_clients_lets_nothing_in(way, valkey):
    """A client that was refused at connect has sent nothing, if redis-py can still read the reason."""
    with valkey.set(maxclients="1"):
        assert ruling(way.execute, valkey.url, "PING") in (SHUT_OUT, BLIP)
    read = redis.ConnectionError("max number of clients reached")
    assert transient.judge(abate.Outcome(error=read)) == SHUT_OUT


@pytest.mark.parametrize(
    "make",
    [
        lambda **settings: redis.ConnectionPool(**settings),
        lambda **settings: redis.BlockingConnectionPool(timeout=0.01, **settings),
    ],
    ids=["pool", "waiting pool"],
)
def test_an_empty_pool_sends_nothing(valkey, make):
    """No connection was free: nothing was sent, and there is too much to do."""
    pool = make(**quiet(host="127.0.0.1", port=valkey.port, max_connections=1))
    taken = pool.get_connection()
    try:
        assert ruling(redis.Redis(connection_pool=pool).ping) == SHUT_OUT
    finally:
        pool.release(taken)
        pool.disconnect()


@pytest.mark.parametrize(
    "make",
    [lambda **settings: AsyncPool(**settings), lambda **settings: AsyncBlockingPool(timeout=0.01, **settings)],
    ids=["pool", "waiting pool"],
)
def test_an_empty_async_pool_sends_nothing(valkey, make):
    """The same for the pools of redis.asyncio."""

    async def main():
        pool = make(**aquiet(host="127.0.0.1", port=valkey.port, max_connections=1))
        taken = await pool.get_connection()
        try:
            with pytest.raises(redis.ConnectionError) as caught:
                await redis.asyncio.Redis(connection_pool=pool).ping()
            return caught.value
        finally:
            await pool.release(taken)
            await pool.disconnect()

    assert transient.judge(abate.Outcome(error=asyncio.run(main()))) == SHUT_OUT


def test_a_cluster_without_any_answer_is_an_overload(tmp_path):
    """All nodes gone is a failover on its way, and a command may have been sent before."""
    port = Valkey(tmp_path).port
    assert ruling(redis.RedisCluster, **quiet(host="127.0.0.1", port=port)) == OVERLOAD


# -- a connection that breaks


def test_a_stopped_server_is_an_overload(way, mortal):
    """Only the read timeout tells; redis-py's TimeoutError is not the builtin one."""
    with mortal.stopped():
        assert ruling(way.execute, mortal.url, "PING", socket_timeout=0.1) == OVERLOAD
    assert way.execute(mortal.url, "PING")


def test_a_server_that_thaws_is_reached_by_the_next_attempt(way, mortal):
    """A policy around the command rides out the freeze."""

    def thaw(retry):
        os.kill(mortal.process.pid, signal.SIGCONT)
        return 0.0

    policy = abate.Policy(on=transient, backoff=thaw)
    with mortal.stopped():
        assert way.execute(mortal.url, "PING", policy=policy, socket_timeout=0.5)


def test_a_server_killed_over_a_command_may_have_seen_it(way, mortal):
    """The connection breaks while the answer is waited for: a blip, and no proof that nothing was done."""
    killer = threading.Thread(target=lambda: (eventually(lambda: waiting(mortal.url)), mortal.kill()))
    killer.start()
    assert ruling(way.execute, mortal.url, "BLPOP", "nothing", "0") == BLIP
    killer.join(LIMIT)


def waiting(url):
    """Does some client wait for a key?"""
    with client(url) as admin:
        return admin.info("clients")["blocked_clients"] > 0


def test_a_server_that_was_killed_is_found_again(way, mortal):
    """A policy around the command rides out the restart."""
    mortal.kill()

    def restart(retry):
        mortal.start()
        return 0.0

    policy = abate.Policy(on=transient, idempotent=False, backoff=restart)
    assert way.execute(mortal.url, "SET", "a", "1", policy=policy)


# -- what the server answers


def test_a_server_that_loads_its_data_is_an_overload(way, mortal):
    """LOADING passes when all keys are in."""
    with client(mortal.url) as admin:
        admin.mset({f"key{number}": "x" * 1000 for number in range(1000)})
        admin.save()
    mortal.kill()
    mortal.start("--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024")
    assert ruling(way.execute, mortal.url, "GET", "key1") == OVERLOAD


def test_a_server_that_runs_a_script_is_an_overload(way, valkey):
    """BUSY passes when the script is over."""

    def spin():
        with client(valkey.url) as scripts, contextlib.suppress(redis.ResponseError):
            scripts.eval("while true do end", 0)

    spinning = threading.Thread(target=spin)
    spinning.start()
    try:
        eventually(lambda: busy(valkey.url))
        assert ruling(way.execute, valkey.url, "GET", "a") == OVERLOAD
    finally:
        Sync().execute(valkey.url, "SCRIPT", "KILL")
        spinning.join(LIMIT)


def busy(url):
    """Does the server run a script?"""
    try:
        Sync().execute(url, "PING")
    except redis.ResponseError as error:
        return str(error).startswith("BUSY ")
    return False


def test_a_demoted_server_is_an_overload(way, valkey):
    """READONLY and MASTERDOWN are what a failover looks like."""
    with client(valkey.url) as admin:
        admin.replicaof("127.0.0.1", "1")
        try:
            assert ruling(way.execute, valkey.url, "SET", "a", "1") == OVERLOAD
            with valkey.set(replica_serve_stale_data="no"):
                assert ruling(way.execute, valkey.url, "GET", "a") == OVERLOAD
        finally:
            admin.replicaof("NO", "ONE")


def test_too_few_replicas_are_an_overload(way, valkey):
    """NOREPLICAS passes when one is back."""
    with valkey.set(min_replicas_to_write="1"):
        assert ruling(way.execute, valkey.url, "SET", "a", "1") == OVERLOAD


def test_a_cluster_without_its_slots_is_an_overload(way, tmp_path):
    """CLUSTERDOWN passes when all slots are served again."""
    server = Valkey(tmp_path).start("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    try:
        assert ruling(way.execute, server.url, "GET", "a") == OVERLOAD
    finally:
        server.kill()


def test_a_full_server_is_fatal(way, valkey):
    """OOM: waiting makes no room."""
    with valkey.set(maxmemory="1"):
        assert ruling(way.execute, valkey.url, "SET", "a", "1") == FATAL


def test_a_server_that_cannot_save_is_fatal(way, tmp_path):
    """MISCONF: the disk has to be repaired first."""
    gone = tmp_path / "gone"
    gone.mkdir()
    server = Valkey(gone).start()
    try:
        with client(server.url) as admin:
            admin.config_set("save", "1000 1000")
            shutil.rmtree(gone)
            admin.bgsave()
            eventually(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err")
        assert ruling(way.execute, server.url, "SET", "a", "1") == FATAL
    finally:
        server.kill()


@pytest.mark.parametrize(
    "command", [("NONSENSE",), ("LPUSH", "text", "1"), ("EVALSHA", "0" * 40, "0")], ids=lambda command: command[0]
)
def test_mistakes_are_fatal(way, valkey, command):
    """Another attempt would fail the same way."""
    way.execute(valkey.url, "SET", "text", "x")
    assert ruling(way.execute, valkey.url, *command) == FATAL


def test_a_wrong_password_is_fatal(way, valkey):
    """Though redis-py calls it a ConnectionError."""
    with valkey.set(requirepass="secret"):
        assert ruling(way.execute, valkey.url, "PING", password="wrong") == FATAL
        assert ruling(way.execute, valkey.url, "PING") == FATAL


def test_a_watched_key_that_changed_is_a_conflict(valkey):
    """Only the code that retries the whole transaction repeats it."""
    tried = []

    def increment():
        with client(valkey.url) as other, client(valkey.url) as own, own.pipeline() as pipeline:
            pipeline.watch("counter")
            value = int(pipeline.get("counter") or 0)
            if not tried:
                other.set("counter", 10)
            tried.append(value)
            pipeline.multi()
            pipeline.set("counter", value + 1)
            pipeline.execute()

    abate.Policy(on=transient, backoff=[0.0]).call(increment)
    assert tried == [0, 10]
    assert Sync().execute(valkey.url, "GET", "counter") == b"11"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (redis.exceptions.TryAgainError("Multiple keys request during rehashing of slot"), BLIP),
        (redis.exceptions.MovedError("3999 127.0.0.1:6381"), FATAL),
        (redis.exceptions.AskError("3999 127.0.0.1:6381"), FATAL),
        (redis.exceptions.SlotNotCoveredError('Slot "7" not covered by the cluster.'), OVERLOAD),
        (redis.exceptions.ClusterError("TTL exhausted."), OVERLOAD),
        (redis.exceptions.RedisClusterException("No way to dispatch this command"), FATAL),
        (redis.exceptions.DataError(), FATAL),
        (redis.exceptions.ResponseError("BUSYGROUP Consumer Group name already exists"), FATAL),
        (OSError(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_that_take_a_whole_cluster_to_provoke(error, expected):
    """Resharding is a conflict; redirections belong to cluster clients; what is not redis-py's is left to others."""
    assert transient.judge(abate.Outcome(error=error)) == expected


# -- the library's own retries


@pytest.mark.parametrize("settings", [{}, {"socket_timeout": 5.0}])
def test_a_client_makes_one_attempt(way, settings):
    """A server that hangs up at once is asked once, not ten times."""
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    accepted.append(connection.getpeername())
                    connection.close()

        accepting = threading.Thread(target=hang_up, daemon=True)
        accepting.start()
        assert ruling(way.execute, f"redis://127.0.0.1:{listener.getsockname()[1]}", "PING", **settings) == BLIP
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(LIMIT)
    assert len(accepted) == 1


@pytest.mark.parametrize("make", [quiet, aquiet, lambda **settings: client("redis://127.0.0.1:1", **settings)])
@pytest.mark.parametrize("name", ["retry", "retry_on_timeout", "retry_on_error"])
def test_settings_of_the_library_s_retries_are_refused(make, name):
    """Asking for both layers is an error at once."""
    with pytest.raises(TypeError, match=f"{name} cannot be set, as True"):
        make(**{name: True})
