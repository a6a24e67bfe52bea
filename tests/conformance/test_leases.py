"""Which worker has a message, and for how long: leases, adds during a lease, and tokens."""

import pytest

from abate.stores import Depth
from abate.work.source import Back, Bury, Done, LeaseLost


def one(queue):
    """The one message that is ready."""
    (message,) = queue.receive()
    return message


def keys(messages):
    return [message.key for message in messages]


def test_a_leased_message_is_not_delivered_again(queue):
    """Until it is settled."""
    queue.add("a")
    message = one(queue)
    assert queue.receive() == []
    queue.done(message)
    assert queue.receive() == []
    assert queue.depth() == Depth()


def test_a_key_added_while_leased_comes_back_once(queue):
    """After done, with what was added last, as if it were new."""
    queue.add("a", "1", priority=5)
    message = one(queue)
    assert [queue.add("a", "2"), queue.add("a", "3")] == [True, False]
    assert queue.receive() == []
    queue.done(message)
    again = one(queue)
    assert (again.body, again.receives) == ("3", 1)
    queue.done(again)
    assert queue.receive() == []


def test_a_key_added_for_later_while_leased_keeps_its_time(queue, clock):
    """The delay counts from the add."""
    queue.add("a")
    message = one(queue)
    queue.add("a", after=8.0)
    clock.advance(5.0)
    queue.done(message)
    assert queue.receive() == []
    clock.advance(3.0)
    assert keys(queue.receive()) == ["a"]


def test_of_several_adds_while_leased_the_earliest_and_highest_count(queue, clock):
    """As of those to a key that waits."""
    for delays in ((6.0, 2.0), (2.0, 6.0)):
        queue.add("a", priority=9)
        (message,) = queue.receive()
        for after, priority in zip(delays, (5, 1), strict=True):
            queue.add("a", after=after, priority=priority)
        queue.done(message)
        clock.advance(2.0)
        queue.add("b", priority=3)
        assert keys(queue.receive(1)) == ["a"]
        clock.advance(10.0)
        queue.settle([(left, Done()) for left in queue.receive(10)])


def test_done_for_now_and_an_add_meanwhile_make_the_earlier_of_both(queue, clock):
    """It comes once, whichever is first."""
    for again, after in ((60.0, 2.0), (2.0, 60.0)):
        queue.add("a")
        (message,) = queue.receive()
        queue.add("a", after=after)
        queue.done(message, again=again)
        clock.advance(2.0)
        (message,) = queue.receive()
        queue.done(message)
        assert queue.depth() == Depth()


def test_an_expired_lease_makes_the_message_available_again(queue, clock):
    """The former holder's settlement is refused; the new one's counts."""
    queue.add("a")
    late = one(queue)
    clock.advance(10.0)
    message = one(queue)
    assert message.receives == 2
    assert message.token > late.token
    for verdict in (Done(), Done(0.0), Back(0.0), Bury("permanent", "late")):
        assert queue.settle([(late, verdict)]) == [late]
    assert queue.extend([late]) == [late]
    with pytest.raises(LeaseLost, match="'a'"):
        queue.done(late)
    queue.done(message)
    assert queue.depth() == Depth()


def test_a_late_settlement_is_refused_even_if_the_message_is_still_waiting(queue, clock):
    """A holder can tell by the clock whether it still has its lease."""
    queue.add("a")
    late = one(queue)
    clock.advance(10.0)
    with pytest.raises(LeaseLost):
        queue.done(late)
    assert queue.extend([late]) == [late]
    assert queue.depth() == Depth(ready=1, age=0.0)


def test_an_extended_lease_begins_anew(queue, clock):
    """As often as it is extended in time."""
    queue.add("a")
    message = one(queue)
    for _ in range(5):
        clock.advance(9.0)
        assert queue.extend([message]) == []
        assert queue.receive() == []
    queue.done(message)


def test_what_was_added_before_a_lease_ran_out_is_not_lost(queue, clock):
    """The newest body is handed out, at the higher priority."""
    queue.add("a", "old")
    one(queue)
    queue.add("a", "new", priority=3, after=60.0)
    clock.advance(10.0)
    queue.add("b", priority=2)
    first, second = queue.receive(2)
    assert (first.key, first.body, first.receives, second.key) == ("a", "new", 2, "b")
    queue.done(first)
    assert queue.cancel("a") is False


def test_an_add_to_a_lease_that_ran_out_is_of_what_waits(queue, clock):
    """It is coalesced, and the former holder can't be done with it."""
    queue.add("a", "old")
    late = one(queue)
    clock.advance(10.0)
    assert queue.add("a", "new") is False
    with pytest.raises(LeaseLost):
        queue.done(late)
    clock._now -= 5.0  # a wall clock that is set back revives no lease
    with pytest.raises(LeaseLost):
        queue.done(late)
    clock.advance(5.0)
    assert one(queue).body == "new"


def test_tokens_grow_over_the_whole_store(store):
    """Over queues, and over keys that are gone and added again."""
    tokens = []
    for name in ("x", "y", "x", "y"):
        queue = store.queue(name)
        queue.add("a")
        queue.add("b")
        messages = queue.receive(2)
        tokens += [message.token for message in messages]
        queue.settle([(message, Done()) for message in messages])
    assert tokens == sorted(set(tokens))
    assert tokens[0] > 0


def test_one_settlement_may_hold_several_verdicts(queue, clock):
    """Those that are lost are named, the others are carried out; of one message the first verdict counts."""
    for key in "abcd":
        queue.add(key)
    lost = one(queue)
    clock.advance(5.0)
    b, c, d = queue.receive(3)
    clock.advance(5.0)
    answer = queue.settle([(lost, Done()), (b, Done()), (c, Back(60.0)), (d, Bury("fatal", "no")), (b, Done())])
    assert answer == [lost, b]
    assert queue.depth() == Depth(ready=1, delayed=1, dead=1, age=0.0)
