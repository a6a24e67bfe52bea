"""Replies of a server that are lost or late, after it has executed the request.

No message is lost, and a store's own retry executes nothing twice.
"""

import pytest

from abate.stores import Depth, StoreError, open_store
from abate.work.source import Back, Bury, Done
from tests.conformance import postgres_server, redis_server
from tests.faults.proxy import Proxy
from tests.stores.processes import GUARD, keys

SERVERS = {"postgres": postgres_server, "redis": redis_server}
LEASE = 0.3
LATE = 1.5
"""Seconds that a call waits for a late reply."""


@pytest.fixture(params=SERVERS)
def kind(request):
    return request.param


@pytest.fixture
def url(kind):
    return SERVERS[kind].empty_store()


@pytest.fixture
def direct(url):
    """The store without the proxy: no reply is lost."""
    with open_store(url) as store:
        yield store


@pytest.fixture
def proxy(kind):
    with Proxy(SERVERS[kind].server().port) as between:
        yield between


@pytest.fixture
def timeout(request):
    """The store's timeout: generous if no call has to reach it."""
    return LATE if request.node.callspec.params.get("how") == "late" else GUARD


@pytest.fixture
def store(kind, url, proxy, timeout):
    """The same store through the proxy; it is connected, and the server has loaded the scripts."""
    port = SERVERS[kind].server().port
    with open_store(url.replace(f":{port}/", f":{proxy.port}/") + f"&timeout={timeout}") as store:
        warm_up(store)
        yield store


def warm_up(store):
    """Call every operation once."""
    queue = store.queue("warm")
    for verdict in (Done(), Bury("permanent", "bad")):
        queue.add("a")
        messages = queue.receive()
        queue.extend(messages)
        queue.settle([(message, verdict) for message in messages])
    queue.dead()
    queue.redrive()
    queue.purge()
    store.exchange("warm", store.ledger("warm").terms)
    store.ledger("warm").balance()


@pytest.fixture
def call_without_reply(proxy, store):
    """Return a function that makes a call whose request is executed and whose reply is lost or late: it raises."""

    def make(call, *args, how="lost", **options):
        store.queue("warm").depth()  # opens a connection if there is none
        proxy.drop_next_reply, proxy.discard_replies = how == "lost", how == "late"
        with pytest.raises(StoreError):
            call(*args, **options)
        assert not proxy.drop_next_reply
        proxy.discard_replies = False

    return make


lost_or_late = pytest.mark.parametrize("how", ["lost", "late"])


# ── Idempotent operations are retried ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("operation", ["depth", "dead", "queues", "extend", "balance"])
def test_idempotent_operations_survive_a_broken_connection(store, direct, proxy, operation):
    """Reads and `extend` are retried once, on another connection."""
    queue = direct.queue("orders")
    queue.add("a")
    queue.add("b")
    queue.bury(queue.receive()[0], "bad")
    messages = queue.receive()
    proxied = store.queue("orders")
    call, expected = {
        "depth": (proxied.depth, lambda found: found == Depth(leased=1, dead=1)),
        "dead": (proxied.dead, lambda found: keys(found) == ["a"]),
        "queues": (store.queues, lambda found: found["orders"] == Depth(leased=1, dead=1)),
        "extend": (lambda: proxied.extend(messages), lambda found: found == []),
        "balance": (store.ledger("x", reserve=1.0).balance, lambda found: found == 10.0),
    }[operation]
    store.queue("warm").depth()
    proxy.drop_next_reply = True
    assert expected(call())
    assert not proxy.drop_next_reply, "no reply was lost"
    proxy.cut()
    assert expected(call())


# ── Other operations are executed once ───────────────────────────────────────────────────────────────────


@lost_or_late
def test_an_add_is_executed_once(store, direct, call_without_reply, how):
    """Adding the key again after the error adds no second message."""
    call_without_reply(store.queue("orders").add, "a", "body", how=how)
    there = direct.queue("orders")
    assert there.depth().ready == 1
    assert store.queue("orders").add("a", "body") is False
    assert [(message.body, message.receives) for message in there.receive(5)] == [("body", 1)]


@lost_or_late
def test_a_message_whose_receive_reply_is_lost_is_redelivered_after_its_lease(store, direct, call_without_reply, how):
    """It counts as received one more time; messages that were not received keep their count."""
    queue, there = store.queue("orders", lease=LEASE), direct.queue("orders", lease=LEASE)
    for key in "ab":
        there.add(key)
    call_without_reply(queue.receive, 1, how=how)
    received = {}
    while len(received) < 2:
        for message in there.receive(1, GUARD):
            received[message.key] = message.receives
            there.done(message)
    assert received == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("verdict", "how", "left", "receives"),
    [
        (Done(), "lost", (0, 0), []),
        (Done(), "late", (0, 0), []),
        (Back(0.0), "lost", (1, 0), [2]),
        (Bury("permanent", "bad"), "lost", (0, 1), []),
    ],
    ids=["done", "done late", "back", "bury"],
)
def test_a_settle_is_executed_once(store, direct, call_without_reply, verdict, how, left, receives):
    """Settling again after the error reports the lease as lost."""
    queue, there = store.queue("orders"), direct.queue("orders")
    there.add("a")
    messages = there.receive()
    call_without_reply(queue.settle, [(messages[0], verdict)], how=how)
    depth = there.depth()
    assert (depth.ready, depth.dead) == left
    assert queue.settle([(messages[0], verdict)]) == messages
    assert [message.receives for message in there.receive(5)] == receives


@pytest.mark.parametrize("operation", ["redrive", "purge"])
def test_redrive_and_purge_are_executed_once(store, direct, call_without_reply, operation):
    """Calling again after the error finds no dead letter."""
    queue, there = store.queue("orders"), direct.queue("orders")
    there.add("a")
    there.bury(there.receive()[0], "bad")
    call_without_reply(getattr(queue, operation), ["a"])
    assert getattr(queue, operation)() == 0
    assert keys(there.receive(5)) == (["a"] if operation == "redrive" else [])


def test_a_withdrawal_is_executed_once(store, direct, call_without_reply):
    """A withdrawal whose reply is lost counts as spent."""
    budget = direct.ledger("x", ratio=0.0, reserve=1.0)
    call_without_reply(store.exchange, "x", budget.terms, want=3)
    assert budget.balance() == 7.0
