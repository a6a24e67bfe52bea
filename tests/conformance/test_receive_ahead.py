"""Messages that are received ahead of free workers: their receive counts when they are settled."""

import pytest

from abate.work.source import Back, Bury, Done


def fill(queue, *keys):
    for key in keys:
        queue.add(key)


def seen(messages):
    return [(message.key, message.receives, message.unanswered) for message in messages]


def test_messages_received_ahead_follow_the_others_in_order(queue):
    """They are leased like the others, and no second receive returns them."""
    fill(queue, *"abcd")
    assert seen(queue.receive(1, ahead=2)) == [("a", 1, 0), ("b", 1, 0), ("c", 1, 0)]
    assert queue.depth().leased == 3
    assert seen(queue.receive(5, ahead=5)) == [("d", 1, 0)]


def test_messages_may_be_received_ahead_only(queue):
    """Without a free worker; this does not wait, even if it is asked to."""
    fill(queue, "a", "b")
    assert seen(queue.receive(0, 30.0, ahead=1)) == [("a", 1, 0)]
    assert seen(queue.receive(0, ahead=5)) == [("b", 1, 0)]
    assert queue.receive(0, 30.0, ahead=5) == []


def test_a_crash_does_not_count_for_what_was_received_ahead(queue, clock):
    """The others were perhaps being handled: theirs counts. From then on every receive counts."""
    fill(queue, *"abc")
    queue.receive(1, ahead=2)
    clock.advance(10.0)
    assert seen(queue.receive(5)) == [("a", 2, 1), ("b", 1, 0), ("c", 1, 0)]
    clock.advance(10.0)
    assert seen(queue.receive(5)) == [("a", 3, 2), ("b", 2, 1), ("c", 2, 1)]


def test_a_message_is_received_ahead_only_if_it_never_was_before(queue, clock):
    """Nor is one that stands behind such a message, so that the order is kept."""
    fill(queue, "fresh")
    queue.add("returned")
    (fresh, returned) = queue.receive(2)
    queue.settle([(returned, Back(1.0)), (fresh, Done())])
    clock.advance(1.0)
    fill(queue, "later")
    assert queue.receive(0, ahead=5) == []
    assert seen(queue.receive(1, ahead=5)) == [("returned", 2, 0), ("later", 1, 0)]


def test_a_lease_that_ran_out_is_not_received_ahead_again(queue, clock):
    """Or a message that kills its process would never be counted."""
    fill(queue, "poison")
    queue.receive(0, ahead=1)
    clock.advance(10.0)
    assert queue.receive(0, ahead=1) == []
    assert seen(queue.receive(1)) == [("poison", 1, 0)]
    clock.advance(10.0)
    assert seen(queue.receive(1)) == [("poison", 2, 1)]


def test_an_add_after_the_lease_ran_out_does_not_hide_that(queue, clock):
    """The next receive counts."""
    fill(queue, "poison")
    queue.receive(0, ahead=1)
    clock.advance(10.0)
    fill(queue, "poison")
    assert queue.receive(0, ahead=1) == []
    assert seen(queue.receive(1)) == [("poison", 2, 0)]


def test_a_verdict_counts_the_receive(queue, clock):
    """A failure that comes back has been received once, and so has a dead letter."""
    fill(queue, *"abcd")
    a, b, c, d = queue.receive(0, ahead=4)
    queue.settle([(a, Back(0.0)), (b, Back(0.0, touched=False)), (c, Bury("fatal", "")), (d, Done(0.0))])
    assert [letter.receives for letter in queue.dead()] == [1]
    assert sorted(seen(queue.receive(5))) == [("a", 2, 0), ("b", 1, 0), ("d", 1, 0)]


def test_a_message_returned_untouched_can_be_received_ahead_again(queue):
    """As if it had not been received."""
    fill(queue, "a")
    (message,) = queue.receive(0, ahead=1)
    queue.back(message, touched=False)
    assert seen(queue.receive(0, ahead=1)) == [("a", 1, 0)]


def test_its_lease_is_extended_and_lost_like_any_other(queue, clock):
    """A message that was received ahead has a token of its own."""
    fill(queue, "a")
    (message,) = queue.receive(0, ahead=1)
    clock.advance(9.0)
    assert queue.extend([message]) == []
    clock.advance(9.0)
    assert queue.receive(1) == []
    clock.advance(1.0)
    (again,) = queue.receive(1)
    assert again.token > message.token
    assert queue.settle([(message, Done())]) == [message]


def test_priorities_apply_to_what_is_received_ahead(queue):
    """The highest priority first."""
    for priority in (0, 5, 9):
        queue.add(str(priority), priority=priority)
    assert [message.key for message in queue.receive(1, ahead=2)] == ["9", "5", "0"]


@pytest.mark.parametrize("ahead", [-1, 1.5, "1"])
def test_a_wrong_number_is_refused(queue, ahead):
    """The error names it."""
    with pytest.raises((TypeError, ValueError), match="ahead"):
        queue.receive(1, ahead=ahead)


def test_a_receive_of_nothing_is_refused(queue):
    """Without `ahead` it would never return a message."""
    with pytest.raises(ValueError, match="max_messages"):
        queue.receive(0)
