"""A store in a cluster of two nodes: all keys of a queue are on the same node."""

import pytest
import redis as driver

from abate.stores import Depth, StoreError, open_store
from abate.stores.budget import BudgetTerms
from abate.stores.fleet.sync_requests import BucketRequest, BudgetRequest, ShelterReport
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


def _bytes(reply):
    return reply if isinstance(reply, bytes) else repr(reply).replace("'", "").replace(": ", ":").encode()


def test_the_acl_rights_named_in_the_error_are_enough_in_a_cluster(cluster):
    """A user with only the rights that the error lists can use the store."""
    url, nodes = cluster
    clerk_url = url.replace("redis://", "redis://clerk:hunter2@")
    for node in nodes:
        with driver.Redis(port=node.port) as admin:
            admin.execute_command("ACL", "SETUSER", "clerk", "reset", "on", ">hunter2")
    with pytest.raises(StoreError, match="does not let this user") as raised:
        open_store(clerk_url).queue("orders").add("a")
    acl_rights = str(raised.value).partition("expected the rights ")[2].split()
    for node in nodes:
        with driver.Redis(port=node.port) as admin:
            admin.execute_command("ACL", "SETUSER", "clerk", *acl_rights)
    with open_store(clerk_url) as store:
        use(store)


def test_queues_are_spread_over_the_nodes(cluster):
    """Every operation works on every queue, and both nodes hold keys."""
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
        assert tokens == sorted(set(tokens)), "tokens increase across queues"
        assert store.queues() == dict.fromkeys(sorted(NAMES), Depth(dead=1))
    for node in nodes:
        with driver.Redis(port=node.port) as admin:
            assert admin.dbsize() > 0


def test_tokens_increase_while_the_clock_stands_still(cluster):
    """Each receive returns a higher token, also after the key was done and added again."""
    with open_store(f"{cluster[0]}&prefix=tokens", clock=VirtualClock(start=1000.0)) as store:
        queue, tokens = store.queue("orders"), []
        for _ in range(5):
            queue.add("a")
            (message,) = queue.receive()
            tokens.append(message.token)
            queue.done(message)
        assert tokens == sorted(set(tokens))


def test_a_waiting_receive_is_woken_on_every_node(cluster):
    """A delayed add wakes the receive that waits, whichever node holds the queue."""
    with open_store(f"{cluster[0]}&prefix=waking") as store:
        for name in NAMES[:4]:
            thread = Thread(store.queue(name).receive, 1, GUARD)
            store.queue(name).add("a", after=0.05)
            assert keys(thread.answer()) == ["a"]


def test_sync_requests_of_one_member_reach_all_nodes(cluster):
    """The requests of one sync are sent to each node that holds their keys."""
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
        assert [reply.members for reply in store.sync_members("me", requests)] == [1] * 36
        assert [reply.members for reply in store.sync_members("you", requests)] == [2] * 36
        assert store.ledger(NAMES[0]).try_withdraw()


def test_a_cluster_node_is_refused_without_cluster_true(cluster):
    """The error says to add ?cluster=true."""
    with pytest.raises(StoreError, match=r"is part of a cluster: add \?cluster=true"):
        open_store(cluster[1][0].url)


def test_scripts_are_loaded_again_after_a_flush_on_every_node(cluster):
    """A pipeline loads the missing scripts, too."""
    with open_store(f"{cluster[0]}&prefix=scripts") as store:
        for name in NAMES:
            store.queue(name).add("a")
        for node in cluster[1]:
            with driver.Redis(port=node.port) as admin:
                admin.script_flush()
        assert [depth.ready for depth in store.queues().values()] == [1] * len(NAMES)
