"""A server that has done what it was asked, and whose answer is lost or comes too late: nothing is lost, and nothing is
done twice by a store that asks again by itself."""

import pytest

from abate.stores import Depth, StoreError, open_store
from abate.work.source import Back, Bury, Done
from tests.conformance import postgres_server, redis_server
from tests.faults.proxy import Proxy
from tests.stores.processes import GUARD, keys

SERVERS = {"postgres": postgres_server, "redis": redis_server}
LEASE = 0.3


@pytest.fixture(params=SERVERS)
def kind(request):
    return request.param


@pytest.fixture
def url(kind):
    return SERVERS[kind].empty_store()


@pytest.fixture
def direct(url):
    """The store, by a way on which nothing is lost."""
    with open_store(url) as store:
        yield store


@pytest.fixture
def proxy(kind):
    with Proxy(SERVERS[kind].server().port) as between:
        yield between


@pytest.fixture
def store(kind, url, proxy):
    """The same store, through the proxy; its connection is made, and the server knows the scripts."""
    port = SERVERS[kind].server().port
    with open_store(url.replace(f":{port}/", f":{proxy.port}/") + "&timeout=0.5") as store:
        warm_up(store)
        yield store


def warm_up(store):
    """Have everything done once."""
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
def silenced(proxy, store):
    """Make a call of which the server does its part and the caller hears nothing: it raises."""

    def make(call, *args, how="lost", **options):
        store.queue("warm").depth()  # over a connection that is there
        proxy.drops_next_answer, proxy.swallows_answers = how == "lost", how == "late"
        with pytest.raises(StoreError):
            call(*args, **options)
        assert not proxy.drops_next_answer
        proxy.swallows_answers = False

    return make


either_way = pytest.mark.parametrize("how", ["lost", "late"])


# ── What does the same when it is done twice is asked again ──────────────────────────────────────────────


@pytest.mark.parametrize("what", ["depth", "dead", "queues", "extend", "balance"])
def test_who_looks_does_not_notice_a_connection_that_breaks(store, direct, proxy, what):
    """Neither does who extends: the question is asked again, once, on another connection."""
    queue = direct.queue("orders")
    queue.add("a")
    queue.add("b")
    queue.bury(queue.receive()[0], "bad")
    messages = queue.receive()
    asked = store.queue("orders")
    question, answer = {
        "depth": (asked.depth, lambda found: found == Depth(leased=1, dead=1)),
        "dead": (asked.dead, lambda found: keys(found) == ["a"]),
        "queues": (store.queues, lambda found: found["orders"] == Depth(leased=1, dead=1)),
        "extend": (lambda: asked.extend(messages), lambda found: found == []),
        "balance": (store.ledger("x", reserve=1.0).balance, lambda found: found == 10.0),
    }[what]
    store.queue("warm").depth()
    proxy.drops_next_answer = True
    assert answer(question())
    assert not proxy.drops_next_answer, "nothing was lost"
    proxy.cut()
    assert answer(question())


# ── What does not is done once ───────────────────────────────────────────────────────────────────────────


@either_way
def test_an_add_is_done_once(store, direct, silenced, how):
    """Who adds again adds nothing new."""
    silenced(store.queue("orders").add, "a", "body", how=how)
    there = direct.queue("orders")
    assert there.depth().ready == 1
    assert store.queue("orders").add("a", "body") is False
    assert [(message.body, message.receives) for message in there.receive(5)] == [("body", 1)]


@either_way
def test_what_was_received_and_not_heard_of_comes_back_by_its_lease(store, direct, silenced, how):
    """Having been received once more, and no more than once; what was not received is not touched."""
    queue, there = store.queue("orders", lease=LEASE), direct.queue("orders", lease=LEASE)
    for key in "ab":
        there.add(key)
    silenced(queue.receive, 1, how=how)
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
def test_a_verdict_is_carried_out_once(store, direct, silenced, verdict, how, left, receives):
    """Who settles again is told that the lease is over."""
    queue, there = store.queue("orders"), direct.queue("orders")
    there.add("a")
    messages = there.receive()
    silenced(queue.settle, [(messages[0], verdict)], how=how)
    depth = there.depth()
    assert (depth.ready, depth.dead) == left
    assert queue.settle([(messages[0], verdict)]) == messages
    assert [message.receives for message in there.receive(5)] == receives


@pytest.mark.parametrize("what", ["redrive", "purge"])
def test_dead_letters_are_dealt_with_once(store, direct, silenced, what):
    """Who asks again has nothing left to do."""
    queue, there = store.queue("orders"), direct.queue("orders")
    there.add("a")
    there.bury(there.receive()[0], "bad")
    silenced(getattr(queue, what), ["a"])
    assert getattr(queue, what)() == 0
    assert keys(there.receive(5)) == (["a"] if what == "redrive" else [])


def test_a_withdrawal_is_made_once(store, direct, silenced):
    """It counts, as it may have been used."""
    budget = direct.ledger("x", ratio=0.0, reserve=1.0)
    silenced(store.exchange, "x", budget.terms, want=3)
    assert budget.balance() == 7.0
