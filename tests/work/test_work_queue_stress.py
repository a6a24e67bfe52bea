"""A queue of keys under many threads that take turns as often as they can: no key is lost, in two hands, or starved."""

import random
import threading

import pytest

from abate.work import ShutDown, WorkQueue

PRODUCERS, CONSUMERS, HOT = 8, 8, 12


@pytest.mark.parametrize("capacity", [None, 4])
def test_no_key_is_lost_and_none_is_in_two_hands(start_thread, capacity):
    """After each add a handling begins that sees it, of hot keys that eight threads add and eight handle."""
    keys = WorkQueue(capacity, backoff=[0.0001])
    wanted = [[0] * PRODUCERS for _ in range(HOT)]  # of each key, what each producer has asked for
    seen = [[0] * PRODUCERS for _ in range(HOT)]
    hands = [threading.Lock() for _ in range(HOT)]
    handled = []

    def produce(place):
        rng = random.Random(place)
        for n in range(1, 301):
            key = rng.randrange(HOT)
            wanted[key][place] = n
            match rng.randrange(8):
                case 0:
                    keys.put(key, priority=rng.randrange(3))
                case 1 if capacity is None:
                    keys.add_after(key, 0.0001)
                case _:
                    keys.put(key) if capacity else keys.add(key)

    def consume():
        mine = 0
        while True:
            try:
                key = keys.get()
            except ShutDown:
                handled.append(mine)
                return
            assert hands[key].acquire(blocking=False), "in two hands"
            seen[key] = list(wanted[key])
            mine += 1
            hands[key].release()
            keys.done(key)

    consumers = [start_thread(consume) for _ in range(CONSUMERS)]
    producers = [start_thread(produce, place) for place in range(PRODUCERS)]
    for producer in producers:
        producer.result()
    while keys.delayed:
        threading.Event().wait(0.0001)
    keys.drain()
    for consumer in consumers:
        consumer.result()
    assert seen == wanted
    assert len(handled) == CONSUMERS
    assert (len(keys), keys.in_hand, keys.delayed) == (0, 0, 0)
    assert not keys._getters
    assert not keys._watchers


def test_no_key_starves_among_hot_ones(start_thread):
    """A cold key of the lowest priority is handled while eight threads keep hot ones of a higher coming."""
    keys = WorkQueue()
    cold, over = threading.Event(), threading.Event()

    def produce(place):
        while not over.is_set():
            for n in range(4):
                keys.add((place, n), priority=1 + n)

    def consume():
        while True:
            try:
                key = keys.get()
            except ShutDown:
                return
            if key == "cold":
                cold.set()
            keys.done(key)

    threads = [start_thread(consume) for _ in range(CONSUMERS)]
    threads += [start_thread(produce, place) for place in range(PRODUCERS)]
    keys.add("cold")
    assert cold.wait(30.0), "it starves"
    over.set()
    for thread in threads[CONSUMERS:]:
        thread.result()
    keys.shutdown()
    for thread in threads[:CONSUMERS]:
        thread.result()


def test_every_add_of_many_threads_is_counted(start_thread):
    """Also those of a key that is ready, which take no lock; what is not coalesced has been taken, or waits."""
    keys, taken, each = WorkQueue(), [], 3000

    def produce():
        for n in range(each):
            keys.add(n % 3)

    def consume():
        while not over.is_set():
            for key in keys.take(2):
                taken.append(key)
                keys.done(key)

    over = threading.Event()
    consumer = start_thread(consume)
    for producer in [start_thread(produce) for _ in range(PRODUCERS)]:
        producer.result()
    over.set()
    consumer.result()
    assert keys.adds == PRODUCERS * each
    assert keys.adds - keys.coalesced == len(taken) + len(keys)
