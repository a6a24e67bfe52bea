"""A store in Redis: its URL, its error messages, and that passwords appear in none of them."""

import logging
import re
import subprocess
import sys
import traceback

import pytest
import redis as driver

from abate.stores import Depth, StoreError, open_store
from abate.stores.queue_contract import Queue
from abate.stores.redis import scripts
from abate.testing import VirtualClock
from abate.work.source import Back, Done, Message
from tests.clients.valkey_server import Valkey, free_port
from tests.conformance import redis_server
from tests.reentry import raised_at

KIND = "redis"
GUARD = 30.0


def prefix(url):
    return url.partition("prefix=")[2]


def refused(url):
    """Open a store that can't be used, and return the error message."""
    with pytest.raises(StoreError) as raised:
        open_store(url)
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))
    return str(raised.value)


# ── URLs ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://", "names no host: expected 'redis://user:password@host:6379/0'"),
        ("redis:host", "names no host"),
        ("redis://me:hunter2@", "names no host"),
        ("redis://me:hunter2@host:port", "can't be parsed"),
        ("redis://me:hunter2@host:70000", "can't be parsed"),
        ("redis://me:hun/ter2@host:1", "can't be parsed"),
        ("redis://me:1/hunter2@host:1", "write '/', '?', '#', '@', ':' and '%' as %2F"),
        ("redis://me:1?hunter2@host:1", "write '/', '?', '#', '@', ':' and '%' as %2F"),
        ("redis://me:1#hunter2@host:1", "write '/', '?', '#', '@', ':' and '%' as %2F"),
        ("redis://me:hunter2\u2100@host", "can't be parsed"),
        ("redis://host/hunter2", "the database of a Redis is a small whole number"),
        ("redis://host/-1", "the database of a Redis is a small whole number"),
        ("redis://host?password=hunter2", "has the options prefix, timeout, cluster"),
        ("redis://host?prefix=", "prefix must be 1 to 100 of the letters A to Z"),
        ("redis://host?prefix=a%7Bb%7D", "not 'a{b}'"),
        ("redis://host?prefix=a+b", "not 'a b'"),
        ("redis://host?prefix=a%0Ab", "not 'a\\nb'"),
        ("redis://host?timeout=soon", "timeout must be a number of seconds above 0 and at most 3600, not 'soon'"),
        ("redis://host?timeout=0", "timeout must be a number of seconds above 0 and at most 3600, not '0'"),
        ("redis://host?timeout=1e308", "timeout must be a number of seconds above 0 and at most 3600, not '1e308'"),
        ("redis://host?cluster=maybe", "cluster must be one of 'true', 'false', not 'maybe'"),
        ("redis://host/1?cluster=true", "no database other than 0"),
        ("redis://host?database=1", "given in the path of the URL"),
        ("unix:relative.sock", "'unix:' is followed by three slashes"),
        ("unix://host/socket", "'unix:' is followed by three slashes"),
    ],
)
def test_a_wrong_url_is_refused_and_no_password_is_shown(url, said):
    """The error says what was expected."""
    with pytest.raises(ValueError) as raised:
        open_store(url)
    assert said in str(raised.value)
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))


def test_without_the_driver_the_extra_is_named():
    """Opening a Redis URL without redis-py says what to install; other stores still open."""
    code = """if True:
        import sys
        sys.modules["redis"] = None
        import abate.stores
        abate.stores.open_store("memory:").close()
        try:
            abate.stores.open_store("redis://host")
        except abate.stores.StoreError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "a store in Redis needs redis-py: pip install 'abate[redis]'\n"


def test_prefixes_and_databases_separate_stores(url):
    """A queue in one is not listed by the others."""
    other = url.replace("/0?", "/1?")
    with open_store(url) as one, open_store(other) as two, open_store(redis_server.empty_store()) as three:
        one.queue("orders").add("a")
        assert [list(store.queues()) for store in (one, two, three)] == [["orders"], [], []]


def test_queue_names_may_contain_any_character(store):
    """Names with braces or with the suffix of another key do not collide."""
    names = ["a", "a}:item", "{a}", "a%7D", "ü {", "a:b", "x}:bell"]
    for name in names:
        store.queue(name).add("key", name)
        assert store.exchange(name, store.ledger(name, 0.0, 0.1).terms, want=5) == 1
    assert [store.queue(name).receive()[0].body for name in names] == names
    assert set(store.queues()) == set(names)


def test_a_store_is_reached_over_a_unix_socket(tmp_path):
    """The URL has the path of the socket, and the database as an option."""
    valkey = Valkey(tmp_path).start("--unixsocket", f"{tmp_path}/s.sock")
    try:
        with open_store(f"unix://{tmp_path}/s.sock?database=2") as store, open_store(f"{valkey.url}/2") as same:
            store.queue("orders").add("a")
            assert list(same.queues()) == ["orders"]
            assert store.name == f"unix://{tmp_path}/s.sock"
        assert "has no socket at that path" in refused(f"unix://{tmp_path}/other.sock")
    finally:
        valkey.kill()


def use(store):
    """Call every operation of a store once."""
    queue = store.queue("acl_rights")
    queue.add("a")
    (message,) = queue.receive(wait=GUARD)
    queue.bury(message, "bad")
    assert [letter.key for letter in queue.dead()] == ["a"]
    assert queue.redrive() == 1
    queue.done(*queue.receive(wait=GUARD))
    assert queue.receive(wait=0.01) == []
    assert store.queues()["acl_rights"] == Depth()
    assert store.exchange("x", store.ledger("x").terms, want=1) == 1
    assert store.ledger("x").balance() > 0


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with a password and two users with few rights."""
    valkey = Valkey(tmp_path_factory.mktemp("guarded")).start("--requirepass", "hunter2")
    with driver.Redis(port=valkey.port, password="hunter2") as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", ">hunter2", "~*", "+@read", "+ping")
        client.execute_command(
            "ACL", "SETUSER", "worker", "on", ">hunter2", "~abate:*", "+@read", "+@write", "+@scripting", "+time"
        )
    yield valkey
    valkey.kill()


def test_a_wrong_or_missing_password_is_explained(guarded):
    """The error says what is wrong and does not contain the password."""
    host = f"127.0.0.1:{guarded.port}"
    assert "refuses the user and password of the URL" in refused(f"redis://me:nothunter2@{host}")
    assert "refuses the user and password of the URL" in refused(f"redis://:nothunter2@{host}")
    assert "requires a password: put it into the URL" in refused(f"redis://{host}")


def test_a_password_for_a_server_without_one_is_explained():
    """The error does not contain the password."""
    port = redis_server.server().port
    assert "has no password, and the URL has one" in refused(f"redis://:hunter2@127.0.0.1:{port}")


def test_no_name_or_repr_contains_the_password(guarded):
    """Names and reprs of the store, its queues and budgets are checked."""
    with open_store(f"redis://:hunter2@127.0.0.1:{guarded.port}") as store:
        queue = store.queue("orders")
        queue.add("a")
        budget = store.budget("retries")
        shown = [store.name, repr(store), repr(queue), repr(store.server.address), repr(budget), store.fleet_sync.name]
        assert "hunter2" not in " ".join(shown)
        assert store.name == f"redis://127.0.0.1:{guarded.port}/0"


def test_a_user_without_rights_gets_an_error_that_lists_them(guarded):
    """A user with these rights and no others can use the store."""
    reading = open_store(f"redis://reader:hunter2@127.0.0.1:{guarded.port}")
    with reading, pytest.raises(StoreError, match=r"does not let this user .* ~abate:\* \+@read"):
        reading.queue("orders").add("a")
    with open_store(f"redis://worker:hunter2@127.0.0.1:{guarded.port}") as store:
        queue = store.queue("worked")
        queue.add("a")
        (message,) = queue.receive(wait=GUARD)
        assert queue.receive(wait=0.01) == []
        queue.done(message)
        assert store.queues()["worked"] == Depth()
        assert store.exchange("x", store.ledger("x").terms, want=1) == 1


@pytest.mark.parametrize("database", [0, 3])
def test_the_acl_rights_named_in_the_error_are_enough(guarded, database):
    """They include the right to select a database other than 0."""
    url = f"redis://clerk:hunter2@127.0.0.1:{guarded.port}/{database}"
    with driver.Redis(port=guarded.port, password="hunter2") as client:
        client.execute_command("ACL", "SETUSER", "clerk", "reset", "on", ">hunter2")
        with pytest.raises(StoreError, match="does not let this user") as raised:
            open_store(url).queue("orders").add("a")
        acl_rights = str(raised.value).partition("expected the rights ")[2].split()
        client.execute_command("ACL", "SETUSER", "clerk", *acl_rights)
    with open_store(url) as store:
        use(store)


def test_an_unreachable_server_is_explained():
    """The error distinguishes unknown host, closed port, unknown database and missing TLS."""
    assert "nothing listens there" in refused(f"redis://me:hunter2@127.0.0.1:{free_port()}")
    assert "host name" in refused("redis://me:hunter2@nowhere.invalid")
    assert "has no database with that number" in refused(f"{redis_server.server().url}/99")
    assert "does it speak TLS there?" in refused(f"rediss://127.0.0.1:{redis_server.server().port}?timeout=1")


def test_cluster_true_for_a_single_server_is_refused():
    """The error says that the server is not a cluster."""
    assert "is not a cluster" in refused(f"{redis_server.server().url}?cluster=true")


def test_keys_of_another_program_are_refused_and_left_unchanged(store, url, admin):
    """The error says to choose another prefix."""
    admin.set(f"{prefix(url)}:{{queue:orders}}:line", "foreign")
    with pytest.raises(StoreError, match=r"has keys of another program under the prefix .*: choose another"):
        store.queue("orders").add("a")
    assert admin.get(f"{prefix(url)}:{{queue:orders}}:line") == b"foreign"


def test_a_server_without_memory_refuses_adds_but_settles_messages(tmp_path):
    """A queue that filled the memory can be drained."""
    valkey = Valkey(tmp_path).start()
    try:
        with open_store(valkey.url) as store:
            queue = store.queue("orders")
            for key in "abc":
                queue.add(key)
            messages = queue.receive(3)
            with valkey.set(maxmemory="1mb"):
                with pytest.raises(StoreError, match="has no memory left"):
                    queue.add("d")
                assert queue.settle([(message, Done()) for message in messages]) == []
            assert queue.depth() == Depth()
    finally:
        valkey.kill()


def test_an_eviction_policy_is_warned_about(tmp_path, caplog):
    """A server that may evict keys of a queue causes a warning in the log."""
    valkey = Valkey(tmp_path).start("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    try:
        with caplog.at_level(logging.WARNING, "abate.stores"), open_store(valkey.url):
            pass
        assert "maxmemory-policy allkeys-lru" in caplog.text
    finally:
        valkey.kill()


# ── Data written or deleted by other programs ────────────────────────────────────────────────────────────


def test_unreadable_messages_are_buried_unchanged(store, url, admin):
    """Invalid UTF-8, invalid JSON or missing content becomes a dead letter; the rest is received."""
    queue = store.queue("orders")
    for key in ("body", "attributes", "list", "bare", "gone", "good"):
        queue.add(key, key)
    items = f"{prefix(url)}:{{queue:orders}}:item"
    for key, content in (("body", b"\n\xff"), ("attributes", b"{\nx"), ("list", b"[1]\nx"), ("bare", b"x")):
        admin.hset(items, f"c{key}", content)
    admin.hdel(items, "cgone")
    assert [message.key for message in queue.receive(10)] == ["good"]
    dead = {letter.key: letter for letter in queue.dead()}
    assert set(dead) == {"body", "attributes", "list", "bare", "gone"}
    assert {letter.kind for letter in dead.values()} == {"unreadable"}
    assert dead["body"].body == "\\xff"
    assert "its content is missing" in dead["gone"].reason
    assert queue.depth() == Depth(leased=1, dead=5)


def test_every_record_has_the_format_that_version_0_1_reads(url, admin):
    """Version 0.1 deletes messages whose record has any other format."""
    pattern = re.compile(rb"[a-z] \d+ \S+ \d+ \d+ \d+")  # in its Lua: ^(%a) (%d+) (%S+) (%d+) (%d+) (%d+)$
    items = f"{prefix(url)}:{{queue:orders}}:item"
    with VirtualClock() as clock, open_store(url, clock=clock) as store:
        queue = store.queue("orders", lease=10.0)

        def check_record():
            assert pattern.fullmatch(admin.hget(items, "ra"))

        queue.add("a", priority=3)
        check_record()
        for unanswered in range(3):  # each lease expires
            (message,) = queue.receive()
            assert message.unanswered == unanswered
            check_record()
            clock.advance(11.0)
        queue.add("a", priority=4)
        check_record()
        (message,) = queue.receive()
        assert message.unanswered == 3
        queue.extend([message])
        check_record()
        queue.add("a")
        check_record()
        queue.settle([(message, Back(0.0, touched=False))])
        check_record()
        (message,) = queue.receive()
        assert message.unanswered == 3
        queue.settle([(message, Back(0.0))])
        check_record()
        queue.bury(queue.receive()[0], "bad")
        check_record()
        queue.redrive()
        check_record()


@pytest.mark.parametrize("answer", ["back", "untouched", "none"])
def test_unanswered_receives_are_counted_when_version_0_1_shares_the_queue(url, admin, answer):
    """Version 0.1 updates only `receives`: the count of unanswered receives is valid while both agree."""
    items = f"{prefix(url)}:{{queue:orders}}:item"
    with VirtualClock() as clock, open_store(url, clock=clock) as store:
        queue = store.queue("orders", lease=10.0)
        queue.add("a")
        for _ in range(3):
            queue.receive()
            clock.advance(11.0)
        queue.receive()  # stands for a receive by version 0.1: the record is the same
        _, sequence, due, priority, receives, token = admin.hget(items, "ra").split()
        assert receives == b"4"
        admin.hset(items, "ua", b"%b 3 2" % sequence)
        if answer != "none":
            queue.settle([(Message("a", token=int(token)), Back(0.0, touched=answer == "back"))])
            receives = b"4" if answer == "back" else b"3"
            admin.hset(items, "ra", b" ".join([b"w", sequence, due, priority, receives, b"0"]))
            admin.hset(items, "ua", b"%b 3 2" % sequence)
        clock.advance(11.0)
        (message,) = queue.receive()
        assert message.unanswered == {"back": 0, "untouched": 2, "none": 1}[answer]


@pytest.mark.parametrize("end", ["done", "cancelled", "purged"])
def test_no_record_is_left_of_a_message_that_ended(url, admin, end):
    """The count of its unanswered receives is deleted, too."""
    with VirtualClock() as clock, open_store(url, clock=clock) as store:
        queue = store.queue("orders", lease=10.0)
        queue.add("a")
        for _ in range(3):
            (message,) = queue.receive()
            clock.advance(11.0)
        (message,) = queue.receive()
        assert message.unanswered == 3
        if end == "done":
            queue.done(message)
        elif end == "cancelled":
            queue.settle([(message, Back(60.0, touched=False))])
            assert queue.cancel("a")
        else:
            queue.bury(message, "bad")
            assert queue.purge() == 1
        assert not admin.exists(f"{prefix(url)}:{{queue:orders}}:item")


@pytest.mark.parametrize("priority", [0, 3])
def test_order_entries_without_a_record_are_removed(store, url, admin, priority):
    """When the server evicted the records of messages, receive skips and deletes their entries."""
    queue = store.queue("orders")
    for n in range(250):
        queue.add(f"stray {n}", priority=priority)
    admin.delete(f"{prefix(url)}:{{queue:orders}}:item")
    queue.add("good")
    assert [message.key for message in queue.receive(1)] == ["good"]
    assert queue.receive(1000) == []
    assert queue.depth() == Depth(leased=1)


def test_operations_on_more_messages_than_a_batch(store):
    """Receive, extend, settle, redrive and purge split them into several calls."""
    queue = store.queue("orders")
    for n in range(350):
        queue.add(f"key {n:03}")
    messages = queue.receive(1000)
    assert [message.key for message in messages] == [f"key {n:03}" for n in range(350)]
    assert queue.extend(messages) == []
    for message in messages[:250]:
        queue.bury(message, "bad")
    assert queue.settle([(message, Done()) for message in messages]) == messages[:250]
    assert len(queue.dead(1000)) == 250
    assert len(queue.dead(120)) == 120
    assert queue.redrive([f"key {n:03}" for n in range(150)]) == 150
    assert queue.redrive() == 100
    for message in queue.receive(1000):
        queue.bury(message, "bad")
    assert queue.purge() == 250
    assert queue.depth() == Depth()


def test_an_empty_queue_takes_constant_space(store, url, admin):
    """Only the metadata keys of a drained queue are left."""
    queue = store.queue("orders")
    for n in range(50):
        queue.add(f"key {n}", "body", priority=n % 3, attributes={"n": "1"})
    for message in queue.receive(50):
        queue.add(message.key)
        queue.bury(message, "bad")
    for message in queue.receive(50):
        queue.done(message)
    queue.receive(wait=0.001)
    left = {key.decode().removeprefix(prefix(url)) for key in admin.scan_iter(f"{prefix(url)}:*")}
    assert left == {":{queue:orders}:meta", ":queues", ":token"}


def test_shared_limits_expire(store, url, admin):
    """All keys of budgets, buckets and shelters have a time to live."""
    store.exchange("x", store.ledger("x").terms, deposits=1, want=1)
    with open_store(url) as other:
        other.budget("x"), other.bucket("x", rate=1.0), other.shelter("x")
    keys = list(admin.scan_iter(f"{prefix(url)}:*"))
    assert len(keys) >= 4
    assert all(0 < admin.ttl(key) <= 1200 for key in keys)


def test_scripts_are_loaded_again_after_a_flush(store, admin):
    """Single calls and pipelines load the missing scripts."""
    queue, terms = store.queue("orders"), store.ledger("x").terms
    for _ in range(2):
        admin.script_flush()
        queue.add("a")
        admin.script_flush()
        assert store.exchange("x", terms, want=1) == 1
        admin.script_flush()
        assert list(store.queues()) == ["orders"]


class Interrupted(Exception):
    """Raised by the signal handler."""


def test_an_unread_reply_is_not_returned_to_the_next_call(store, admin, monkeypatch):
    """A signal handler that raises between send and read closes the connection."""
    queue = store.queue("orders")
    queue.add("a")
    send = driver.Connection.send_packed_command

    def interrupted(*args, **kwargs):
        send(*args, **kwargs)
        raise Interrupted

    admin.client_pause(200)  # the reply arrives after the next call has started
    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(driver.Connection, "send_packed_command", interrupted)
        queue.add("b")
    assert queue.depth().ready in (1, 2)  # b may or may not have been added


def test_a_signal_handler_that_raises_leaves_no_unread_reply(store):
    """Wherever it raises in this package or the driver, the next call gets its own reply."""
    queue, point = store.queue("orders"), 0
    queue.add("a")
    while raised_at(point := point + 7, lambda: queue.add("b"), where="redis"):
        assert queue.depth().ready in (1, 2)
        assert not queue.add("a")
        assert queue.cancel("c") is False
        assert len(store.server._clients) == 1
    assert point > 50


@pytest.mark.parametrize("call", ["one", "several"])
def test_an_exhausted_connection_pool_is_replaced(store, call):
    """The driver's pool counts connections that were lost to signal handlers as in use."""
    queue = store.queue("orders")
    queue.add("a")
    queue.add("b")
    pool = store.server._client("work").connection_pool
    pool.max_connections = 3
    lost = [pool.get_connection() for _ in range(3)]
    with pytest.raises(driver.ConnectionError, match="Too many connections"):
        pool.get_connection()
    if call == "one":
        assert queue.add("c")
    else:
        assert store.server.calls([(scripts.DEPTH, queue._keys, [store.now()])] * 2)
    assert queue.depth().ready == (3 if call == "one" else 2)
    assert len(lost) == 3


def test_tokens_increase_after_flushall(tmp_path):
    """A lease from before the flush is not mistaken for one from after it."""
    valkey = Valkey(tmp_path).start()
    try:
        with open_store(valkey.url) as store:
            queue = store.queue("orders")
            queue.add("a")
            (before,) = queue.receive()
            with driver.Redis.from_url(valkey.url) as admin:
                admin.flushall()
            assert queue.settle([(before, Done())]) == [before]
            queue.add("a")
            (after,) = queue.receive()
            assert after.token > before.token
            assert queue.settle([(before, Done())]) == [before]
            assert list(store.queues()) == ["orders"]
            queue.done(after)
    finally:
        valkey.kill()


def test_the_servers_clock_decides(store, monkeypatch):
    """A worker whose clock is wrong receives the same messages as the others."""
    queue = store.queue("orders", lease=30.0)
    queue.add("now")
    queue.add("later", after=60.0)
    monkeypatch.setattr("abate.clock.MachineClock.wall", staticmethod(lambda: 0.0))
    (message,) = queue.receive(10)
    assert message.key == "now"
    monkeypatch.setattr("abate.clock.MachineClock.wall", staticmethod(lambda: 1e11))
    assert queue.receive(10) == []
    assert queue.extend([message]) == []
    queue.done(message)


def test_tokens_increase_in_the_far_future(url):
    """Tokens are distinct integers even when the virtual clock is 300,000 years ahead."""
    clock = VirtualClock(start=1e13)
    with open_store(url, clock=clock) as store:
        queue: Queue = store.queue("orders")
        tokens = []
        for _ in range(3):
            queue.add("a")
            (message,) = queue.receive()
            tokens.append(message.token)
            queue.done(message)
        assert tokens == sorted(set(tokens))
