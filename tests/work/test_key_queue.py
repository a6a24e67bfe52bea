"""The key queue without waiting, rule by rule, and the bounds of what it keeps."""

import doctest
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate.work import KeyQueue, QueueFull, key_queue


def take_all(queue):
    return [queue.take() for _ in range(len(queue))]


def test_a_key_waits_once_however_often_it_is_added():
    """And in its first place."""
    queue = KeyQueue()
    assert [queue.add(key, 0.0) for key in "abaab"] == [True, True, False, False, False]
    assert take_all(queue) == ["a", "b"]


def test_a_key_that_is_added_while_in_hand_comes_back_once():
    """After done, at the end of the line, however often it was added."""
    queue = KeyQueue()
    for key in "ab":
        queue.add(key, 0.0)
    assert queue.take() == "a"
    for _ in range(3):
        queue.add("a", 1.0)
    assert (queue.take(), queue.take()) == ("b", None)
    assert queue.done("a", 2.0)
    assert (queue.take(), queue.oldest()) == ("a", None)
    assert not queue.done("a", 3.0)
    assert queue.take() is None


def test_a_low_priority_gets_one_turn_of_eight():
    """Though there is always another of a higher one."""
    queue = KeyQueue()
    for n in range(3):
        queue.add(f"low{n}", 0.0)
    taken = []
    for n in range(24):
        queue.add(f"high{n}", 1.0 + n, priority=5)
        queue.add(f"top{n}", 1.0 + n, priority=9)
        taken.append(queue.take())
    assert [taken.index(f"low{n}") for n in range(3)] == [7, 15, 23]


def test_a_raised_key_keeps_its_age():
    """It moves to the end of its new priority, and is as old as it was."""
    queue = KeyQueue()
    queue.add("a", 1.0)
    queue.add("b", 2.0, priority=1)
    queue.add("a", 3.0, priority=1)
    assert queue.oldest() == 1.0
    queue.add("a", 4.0)  # a lower one changes nothing
    assert take_all(queue) == ["b", "a"]


def test_a_raised_key_is_not_held_up_by_younger_ones():
    """It is last of its new priority, but its turn as the oldest comes where it would have come."""
    queue = KeyQueue()
    queue.add("raised", 0.0)
    for n in range(50):
        queue.add(f"young{n}", 1.0, priority=1)
    queue.add("raised", 2.0, priority=1)
    taken = []
    for n in range(20):
        queue.add(f"high{n}", 3.0, priority=2)
        taken.append(queue.take())
    assert taken.index("raised") == key_queue.FAIRNESS_TURNS - 1


@given(
    adds=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), min_size=1, max_size=150),
    flood=st.lists(st.integers(0, 4), min_size=3, max_size=3),
)
def test_a_key_with_n_before_it_goes_within_8_n_plus_8_turns(adds, flood):
    """Whatever priorities come after it or are raised: no key starves."""
    queue, waiting, new_adds = KeyQueue(), {}, count(100)
    for now, (key, priority) in enumerate(adds):
        ahead = len(queue)
        if queue.add(key, float(now), priority):
            waiting[key] = key_queue.FAIRNESS_TURNS * (ahead + 1)
        for level in flood:
            queue.add(next(new_adds), float(now), level)
        taken = queue.take()
        queue.done(taken, float(now))
        waiting.pop(taken, None)
        waiting = {key: turns - 1 for key, turns in waiting.items()}
        assert all(turns > 0 for turns in waiting.values())


def test_the_priority_of_a_delayed_key_is_kept_when_it_is_added():
    """Of two priorities the higher counts; also for one that is in hand."""
    queue = KeyQueue()
    queue.add("held", 0.0)
    queue.take()
    for key in ("held", "free"):
        queue.add_after(key, 10.0, 0.0, priority=3)
    queue.add("other", 1.0, priority=2)
    queue.add("free", 1.0)
    queue.add("held", 1.0)
    assert (queue.take(), queue.done("held", 1.0), queue.take(), queue.take()) == ("free", True, "held", "other")


def test_a_key_in_hand_is_not_counted_twice():
    """One that was to come later and is added meanwhile takes one place."""
    queue = KeyQueue(capacity=2)
    queue.add("a", 0.0)
    queue.take()
    queue.add_after("a", 5.0, 0.0)
    queue.add("a", 0.0)
    assert not queue.add_after("a", 1.0, 0.0)
    queue.add("b", 0.0)
    with pytest.raises(QueueFull, match="the queue is full: it holds 2 keys"):
        queue.add_after("c", 1.0, 0.0)


def test_a_key_that_is_in_hand_is_never_refused():
    """Its worker could do nothing about it: what was added would be lost."""
    queue = KeyQueue(capacity=1)
    queue.add("a", 0.0)
    queue.take()
    queue.add("b", 0.0)
    assert queue.add("a", 0.0)
    assert queue.done("a", 0.0)
    assert len(queue) == 2


def test_what_came_due_before_goes_before():
    """Though no operation came in between when another was added."""
    queue = KeyQueue()
    queue.add_after("due", 1.0, 0.0)
    queue.add("added", 5.0)
    assert queue.oldest() == 1.0
    assert take_all(queue) == ["due", "added"]


def places(queue):
    return len(queue._line) + sum(map(len, queue._lanes.values()))


def test_nothing_is_left_of_many_raises():
    """A key that is raised a thousand times, or a thousand that are raised once and taken."""
    queue = KeyQueue()
    for priority in range(1000):
        queue.add("a", 0.0, priority)
        assert places(queue) <= 3 + key_queue.MAX_STALE
        assert len(queue._lanes) <= 2 + key_queue.MAX_STALE
    for n in range(1000):
        queue.add(n, 0.0)
        queue.add(n, 0.0, priority=1)
    while queue.take() is not None:
        assert places(queue) <= 3 * len(queue) + key_queue.MAX_STALE


def test_nothing_is_left_of_raises_when_the_last_key_is_taken():
    """An idle queue keeps little, too."""
    queue = KeyQueue()
    for priority in range(key_queue.MAX_STALE + 3):
        queue.add("a", 0.0, priority)
    assert places(queue) == key_queue.MAX_STALE + 3
    assert queue.take() == "a"
    assert places(queue) == 0


def test_lanes_of_unused_priorities_go():
    """Whether they rise or fall."""
    for priorities in (range(1, 1000), range(1000, 0, -1)):
        queue = KeyQueue()
        for priority in priorities:
            queue.add("a", 0.0, priority)
            queue.add("b", 0.0, priority)
            for _ in range(2):
                queue.done(queue.take(), 0.0)
            assert len(queue._lanes) == len(queue._priorities) <= key_queue.MAX_STALE


def test_nothing_is_left_of_cancelled_delays():
    """Neither of one that was planned a thousand times, nor of a thousand that were added or cancelled."""
    queue = KeyQueue()
    for n in range(1000):
        queue.add_after("a", 1000.0 - n, 0.0)
    assert len(queue._due_keys) == 1
    for n in range(1000):
        queue.add_after(n, 1.0, 0.0)
    for n in range(1000):
        assert queue.cancel(n) if n % 2 else not queue.add(n, 0.0)
    assert (len(queue._due_keys), queue.next_due()) == (1, 1.0)


def test_a_cancelled_delay_leaves_no_priority():
    """A later one for the same instant has its own."""
    queue = KeyQueue()
    queue.add_after("a", 1.0, 0.0, priority=9)
    queue.cancel("a")
    queue.add_after("a", 1.0, 0.0)
    queue.add_after("b", 1.0, 0.0, priority=1)
    queue.promote_due(1.0)
    assert take_all(queue) == ["b", "a"]


def test_every_add_is_fresh_or_coalesced():
    """Coalesced are those of a key that waits: for a worker, its time, or to come back; a refused one is neither."""
    queue = KeyQueue(capacity=2)
    assert queue.add("a", 0.0)
    assert not queue.add("a", 0.0, priority=1)
    assert queue.add_after("b", 5.0, 0.0)
    assert not queue.add_after("b", 9.0, 0.0)
    assert not queue.add_after("b", 2.0, 0.0)
    assert not queue.add("b", 0.0)
    with pytest.raises(QueueFull):
        queue.add("c", 0.0)
    assert (queue.new_adds, queue.coalesced, queue.adds) == (2, 4, 6)
    assert queue.take() == "a"
    assert queue.add("a", 0.0)
    assert not queue.add("a", 0.0)
    assert not queue.add_after("a", 1.0, 0.0)
    assert (queue.new_adds, queue.coalesced, queue.adds) == (3, 6, 9)


@pytest.mark.parametrize("wrong", [{"capacity": 0}, {"rate": 0.0}, {"burst": 0}])
def test_a_key_queue_says_what_it_cannot_be(wrong):
    """Each argument by its name."""
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be a"):
        KeyQueue(**wrong)


def test_the_examples_are_true():
    """Those in the documentation."""
    assert doctest.testmod(key_queue).failed == 0
