"""A store in a cluster of two nodes: every script finds the keys of its queue on one of them."""

import pytest
import redis as driver

from abate.stores import Depth, StoreError, open_store
from abate.stores.budget import BudgetTerms
from abate.stores.fleet.messages import BucketRequest, BudgetRequest, ShelterReport
from abate.testing import VirtualClock
from abate.work.source import Done
from tests.clients.valkey_server import Valkey, eventually, free_port
from tests.stores.processes import GUARD, Thread, keys
from tests.stores.redis.test_store import use

NAMES = [f"queue {n}" for n in range(12)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The URL of a cluster, and its nodes."""
    nodes = []
    try:
        for n in range(2):
            node = Valkey(tmp_path_factory.mktemp(f"node-{n}"))
            nodes.append(node)
            node.start("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
        first, second = admins = [driver.Redis(port=node.port) for node in nodes]
        first.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
        second.execute_command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
        bus = int(second.config_get("cluster-port")["cluster-port"])
        first.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port, bus)
        for admin in admins:
            eventually(lambda admin=admin: b"cluster_state:ok" in _bytes(admin.execute_command("CLUSTER INFO")))
            eventually(lambda admin=admin: len(admin.execute_command("CLUSTER SLOTS")) == 2)
        for admin in admins:
            admin.close()
        yield f"{nodes[0].url}?cluster=true", nodes
    finally:
        for node in nodes:
            if node.process is not None:
                node.kill()


def _bytes(answer):
    return answer if isinstance(answer, bytes) else repr(answer).replace("'", "").replace(": ", ":").encode()


def test_the_rights_that_a_user_is_told_of_are_enough_in_a_cluster(cluster):
    """And it is not said to be no cluster."""
    url, nodes = cluster
    theirs = url.replace("redis://", "redis://clerk:hunter2@")
    for node in nodes:
        with driver.Redis(port=node.port) as admin:
            admin.execute_command("ACL", "SETUSER", "clerk", "reset", "on", ">hunter2")
    with pytest.raises(StoreError, match="does not let this user") as raised:
        open_store(theirs).queue("orders").add("a")
    acl_rights = str(raised.value).partition("expected the rights ")[2].split()
    for node in nodes:
        with driver.Redis(port=node.port) as admin:
            admin.execute_command("ACL", "SETUSER", "clerk", *acl_rights)
    with open_store(theirs) as store:
        use(store)


def test_queues_lie_on_all_nodes_and_each_on_one(cluster):
    """What is added is received, settled, counted and listed wherever it lies."""
    url, nodes = cluster
    with open_store(f"{url}&prefix=queues") as store:
        tokens = []
        for name in NAMES:
            queue = store.queue(name)
            for n in range(3):
                queue.add(f"key {n}", priority=n)
            messages = queue.receive(3)
            tokens += [message.token for message in messages]
            assert keys(messages) == ["key 2", "key 1", "key 0"]
            assert queue.extend(messages) == []
            queue.bury(messages[0], "bad")
            assert queue.settle([(message, Done()) for message in messages]) == [messages[0]]
        assert tokens == sorted(set(tokens)), "tokens grow with the clock, over queues as well"
        assert store.queues() == dict.fromkeys(sorted(NAMES), Depth(dead=1))
    for node in nodes:
        with driver.Redis(port=node.port) as admin:
            assert admin.dbsize() > 0


def test_tokens_only_grow_where_a_clock_stands_still(cluster):
    """Over done and another add; the counter is the queue's own, and is never deleted."""
    with open_store(f"{cluster[0]}&prefix=tokens", clock=VirtualClock(start=1000.0)) as store:
        queue, tokens = store.queue("orders"), []
        for _ in range(5):
            queue.add("a")
            (message,) = queue.receive()
            tokens.append(message.token)
            queue.done(message)
        assert tokens == sorted(set(tokens))


def test_who_waits_is_woken(cluster):
    """On whichever node the bell hangs."""
    with open_store(f"{cluster[0]}&prefix=waking") as store:
        for name in NAMES[:4]:
            thread = Thread(store.queue(name).receive, 1, GUARD)
            store.queue(name).add("a", after=0.05)
            assert keys(thread.answer()) == ["a"]


def test_offers_of_one_member_reach_all_nodes(cluster):
    """One pipeline for each of them."""
    requests = [
        request
        for name in NAMES
        for request in (
            BudgetRequest(name, BudgetTerms(), 1, 0, 0, 1),
            BucketRequest(name, 1.0),
            ShelterReport(name, "calm", 1, 0, 0.0),
        )
    ]
    with open_store(f"{cluster[0]}&prefix=requests") as store:
        assert [answer.members for answer in store.sync_members("me", requests)] == [1] * 36
        assert [answer.members for answer in store.sync_members("you", requests)] == [2] * 36
        assert store.ledger(NAMES[0]).try_withdraw()


def test_a_node_of_a_cluster_alone_is_refused(cluster):
    """Some of the keys lie elsewhere."""
    with pytest.raises(StoreError, match=r"is part of a cluster: add \?cluster=true"):
        open_store(cluster[1][0].url)


def test_scripts_that_a_node_forgot_are_sent_again(cluster):
    """In a pipeline too."""
    with open_store(f"{cluster[0]}&prefix=scripts") as store:
        for name in NAMES:
            store.queue(name).add("a")
        for node in cluster[1]:
            with driver.Redis(port=node.port) as admin:
                admin.script_flush()
        assert [depth.ready for depth in store.queues().values()] == [1] * len(NAMES)
