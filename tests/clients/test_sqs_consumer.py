"""Consumers over SQS, against two real servers: what is killed, slow, broken or out of order."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abate.clients.sqs import Queue
from abate.testing import VirtualClock
from abate.work.consumer import consumer
from abate.work.handler_results import PermanentFailure, Recoverable, SilentSuccess
from abate.work.source import Back
from tests.clients.sqs_servers import KINDS, Front, eventually, garbage, refused, running, unavailable

FEW = settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
DOOMED = """
import sys, time
from abate.clients.sqs import Queue
from abate.clients.sqs_api import client_for
from abate.work.consumer import consumer

@consumer(workers=1)
def handle(message):
    print(message.body, flush=True)
    time.sleep(600)

url = sys.argv[1]
client = client_for(url, aws_access_key_id="id", aws_secret_access_key="secret", region_name="us-east-1")
handle.run(Queue(url, client=client, lease=1))
"""


@pytest.fixture(scope="module", params=KINDS)
def sqs(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


def worked_off(handle, queue, sqs):
    """Run a consumer until its queue is empty: how the messages ended."""
    tally = Counter()

    def empty():
        tally.update(handle.run(queue, drain=True))
        return sqs.held(queue.url) == 0

    eventually(empty)
    return tally


def test_every_answer_has_its_effect(sqs):
    """Done and silent are deleted, what is recoverable comes back, what fails for good is a dead letter."""
    queue, dead = sqs.opened()
    tries = Counter()

    @consumer(backoff=[0.0], workers=2)
    def handle(message):
        tries[message.body] += 1
        if message.body == "silent":
            raise SilentSuccess
        if message.body == "permanent":
            raise PermanentFailure("no address")
        if message.body == "recoverable" and tries["recoverable"] < 3:
            raise Recoverable("not yet")

    for body in ("done", "silent", "permanent", "recoverable"):
        queue.send(body)
    tally = worked_off(handle, queue, sqs)
    assert tally == {"done": 2, "silent": 1, "buried": 1, "retry": 2}
    assert tries == {"done": 1, "silent": 1, "permanent": 1, "recoverable": 3}
    (letter,) = sqs.received(dead)
    assert (letter["Body"], letter["MessageAttributes"]["Abate-Reason"]["StringValue"]) == ("permanent", "no address")


def test_a_message_that_was_handed_out_too_often_is_a_dead_letter(sqs):
    """With what its last error said."""
    queue, dead = sqs.opened()

    @consumer(backoff=[0.0], max_receives=3, breaker=False)
    def handle(message):
        raise ConnectionError("the ledger is down")

    queue.send("x")
    assert worked_off(handle, queue, sqs) == {"retry": 2, "buried": 1}
    (letter,) = sqs.received(dead)
    assert letter["MessageAttributes"]["Abate-Kind"]["StringValue"] == "receives"
    assert "the ledger is down" in letter["MessageAttributes"]["Abate-Reason"]["StringValue"]


@pytest.mark.parametrize("ends", ["done", "failed"])
def test_what_other_processes_passed_over_is_handled_before_it_is_buried(sqs, ends):
    """However often they received it: of a queue whose redrive policy ends what kills its processes."""
    queue, dead = sqs.opened()
    other = Queue(queue.url, client=sqs.client)
    queue.send("x")
    for _ in range(7):
        eventually(lambda: (taken := other.receive(1, 0)) and other.settle([(taken[0], Back(0.0, False))]) == [])
    handled = []

    @consumer(max_receives=3, breaker=False)
    def handle(message):
        handled.append(message.receives)
        if ends == "failed":
            raise ConnectionError("the ledger is down")

    assert worked_off(handle, queue, sqs) == ({"done": 1} if ends == "done" else {"buried": 1})
    assert handled == [8]
    assert len(sqs.received(dead)) == (ends == "failed")


def test_what_kills_has_an_end_where_the_queue_has_none(sqs):
    """Without a redrive policy it is buried untouched, after twice as many receives as are allowed."""
    dead = sqs.create()
    queue = Queue(sqs.create(), client=sqs.client, dead_letters=dead)
    other = Queue(queue.url, client=sqs.client, dead_letters=dead)
    queue.send("x")
    for _ in range(6):
        eventually(lambda: (taken := other.receive(1, 0)) and other.settle([(taken[0], Back(0.0, False))]) == [])
    handled = []
    assert worked_off(consumer(max_receives=3)(handled.append), queue, sqs) == {"buried": 1}
    assert (handled, len(sqs.received(dead))) == ([], 1)


def test_the_heartbeat_keeps_the_message_of_a_slow_handler(sqs):
    """It takes longer than its lease, and no other process gets the message meanwhile."""
    queue, _ = sqs.opened(lease=2)
    other_queue = Queue(queue.url, client=sqs.client)
    began, elsewhere = threading.Event(), []
    calls = []

    @consumer(workers=1)
    def handle(message):
        calls.append(message.receives)
        began.set()
        threading.Event().wait(2.5)

    def look():
        began.wait(30.0)
        while not done.is_set():
            elsewhere.extend(other_queue.receive(1, 0))
            done.wait(0.1)

    done = threading.Event()
    looker = threading.Thread(target=look)
    looker.start()
    queue.send("x")
    try:
        tally = handle.run(queue, drain=True)
    finally:
        done.set()
        looker.join(30.0)
    assert (tally, calls, elsewhere) == ({"done": 1}, [1], [])
    assert sqs.held(queue.url) == 0


def test_a_killed_consumers_message_comes_back(sqs):
    """After its visibility timeout; kill -9 loses nothing."""
    queue, _ = sqs.opened()
    queue.send("precious")
    process = subprocess.Popen([sys.executable, "-c", DOOMED, queue.url], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "precious\n"
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait(30.0)
        process.stdout.close()
    (message,) = eventually(lambda: queue.receive(1, 0))
    assert message.body == "precious"
    assert message.receives >= 2


def test_a_consumer_outlives_an_sqs_that_fails_for_a_while(sqs):
    """Refused, unavailable and garbage for longer than a request is repeated: nothing is lost, nothing twice."""
    handled = Counter()

    @consumer(workers=4)
    def handle(message):
        handled[message.body] += 1

    with Front(sqs) as front, VirtualClock():
        queue = Queue(sqs.create(), client=front.client, dead_letters=False)
        for place in range(20):
            queue.send(str(place))
        front.troubles["ReceiveMessage"] += [refused, unavailable] * 5
        front.troubles["DeleteMessageBatch"] += [garbage, refused] * 5
        tally = handle.run(queue, drain=True)
    assert tally == {"done": 20}
    assert handled == {str(place): 1 for place in range(20)}
    assert sqs.held(queue.url) == 0


@FEW
@given(
    groups=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=3),
    workers=st.integers(1, 4),
    asynchronous=st.booleans(),
)
def test_groups_stay_in_order_over_failures(sqs, groups, workers, asynchronous):
    """Each message first fails the given number of times; those of a group are done in the order of sending."""
    queue, _ = sqs.opened(fifo=True)
    failures = {}
    for place in range(max(map(len, groups))):
        for group, plan in enumerate(groups):
            if place < len(plan):
                failures[f"{group}/{place}"] = plan[place]
                queue.send(f"{group}/{place}", group=str(group))
    done, in_hand, together, lock = defaultdict(list), set(), [], threading.Lock()

    def begin(message):
        with lock:
            if message.group in in_hand:
                together.append(message.group)
            in_hand.add(message.group)

    def end(message):
        with lock:
            in_hand.discard(message.group)
            failures[message.body] -= 1
            if failures[message.body] >= 0:
                raise ConnectionError
            group, _, place = message.body.partition("/")
            done[int(group)].append(int(place))

    def work(message):
        begin(message)
        threading.Event().wait(0.001)
        end(message)

    async def awork(message):
        begin(message)
        await asyncio.sleep(0.001)
        end(message)

    handle = consumer(backoff=[0.0], workers=workers, breaker=False)(awork if asynchronous else work)
    worked_off(handle, queue, sqs)
    assert together == []
    assert done == {group: list(range(len(plan))) for group, plan in enumerate(groups)}


def test_a_consumer_polls_for_as_long_as_the_queue_has_patience(sqs):
    """A patience below a second is waited for in the process, because SQS waits for whole seconds."""
    queue, _ = sqs.opened(patience=0.2)

    @consumer(source=queue)
    def handle(message):
        handle.stop()

    queue.send("x")
    with sqs.watched("ReceiveMessage") as seen:
        handle.run()
    assert {request["WaitTimeSeconds"] for request in seen} == {0}
