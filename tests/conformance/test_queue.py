"""What every queue of every store does with one message at a time."""

import pytest

from abate.stores import Depth, open_store
from abate.stores.encoding import MAX_REASON_BYTES
from abate.testing import VirtualClock
from abate.work import QueueFull


def one(queue):
    """The one message that is ready."""
    (message,) = queue.receive()
    return message


def keys(messages):
    return [message.key for message in messages]


# ── In ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_comes_out_as_it_went_in(queue):
    """Key, body and attributes are kept, whatever the language; it is its first receive."""
    queue.add("bestellung/42", "größe: ∞ 🦀", attributes={"von": "Zoë", "leer": ""})
    message = one(queue)
    assert (message.key, message.body, message.receives) == ("bestellung/42", "größe: ∞ 🦀", 1)
    assert dict(message.attributes) == {"von": "Zoë", "leer": ""}


def test_an_added_key_waits_once_with_the_newest_body(queue):
    """Adding a key that waits coalesces; the newest body and attributes are handed out."""
    assert [queue.add("a", body, attributes={"n": body}) for body in "123"] == [True, False, False]
    message = one(queue)
    assert (message.body, message.attributes) == ("3", {"n": "3"})
    assert queue.receive() == []


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("after", ["back", "done", "buried", "its lease"])
def test_the_newest_body_is_handed_out_whenever_it_came(queue, clock, after, again):
    """Added while it was in hand, and once more when it waits again: the last one counts, and is handed out once."""
    queue.add("a", "1")
    message = one(queue)
    queue.add("a", "2", attributes={"n": "2"})
    match after:
        case "back":
            queue.back(message, 0.0)
        case "done":
            queue.done(message)
        case "buried":
            queue.bury(message, "bad")
        case "its lease":
            clock.advance(10.0)
    if again:
        queue.add("a", "3", attributes={"n": "3"})
    newest, expected = one(queue), "3" if again else "2"
    assert (newest.body, newest.attributes) == (expected, {"n": expected})
    queue.done(newest)
    assert queue.depth() == Depth()


def test_messages_without_a_key_get_one_each(queue):
    """Two that say the same are two messages."""
    sent = [queue.send("hello"), queue.send("hello")]
    assert keys(queue.receive(10)) == sent
    assert len(set(sent)) == 2


def test_a_delayed_message_is_ready_when_its_time_comes(queue, clock):
    """Not before, and without anybody's doing."""
    queue.add("a", after=5.0)
    clock.advance(4.9)
    assert queue.receive() == []
    clock.advance(0.2)
    assert keys(queue.receive()) == ["a"]


@pytest.mark.parametrize(("first", "second", "expected"), [(5.0, 2.0, 2.0), (2.0, 5.0, 2.0), (5.0, 0.0, 0.0)])
def test_the_earlier_of_two_instants_counts(queue, clock, first, second, expected):
    """An add without delay makes a delayed one ready."""
    assert (queue.add("a", after=first), queue.add("a", after=second)) == (True, False)
    begun = clock.now()
    assert keys(queue.receive(wait=60.0)) == ["a"]
    assert clock.now() - begun == pytest.approx(expected)


def test_a_delayed_add_can_be_cancelled(queue):
    """What waits for its time is forgotten; what is ready, or not there, is not."""
    queue.add("later", after=5.0)
    queue.add("now")
    assert [queue.cancel(key) for key in ("later", "later", "now", "never")] == [True, False, False, False]
    assert queue.depth().waiting == 1


def test_the_delayed_add_of_a_leased_key_can_be_cancelled(queue):
    """With it goes its body: what is in hand comes back as it was."""
    queue.add("a", "old")
    message = one(queue)
    queue.add("a", "new", after=5.0)
    assert (queue.cancel("a"), queue.cancel("a")) == (True, False)
    queue.back(message, 0.0)
    assert one(queue).body == "old"


def test_a_full_queue_refuses_new_keys_only(store):
    """What waits, ready or delayed, fills it; coalescing needs no room, what is leased takes none."""
    queue = store.queue("small", capacity=2, lease=10.0)
    queue.add("a")
    queue.add("b", after=5.0)
    with pytest.raises(QueueFull, match="'small' is full: it holds 2 messages"):
        queue.add("c")
    assert queue.add("a") is False
    message = one(queue)
    assert queue.add("c") is True
    assert queue.add("a") is True
    queue.back(message, 0.0)
    assert queue.depth().ready == 2


def test_a_lease_that_ran_out_fills_the_queue_again(store, clock):
    """It waits, so it counts."""
    queue = store.queue("small", capacity=1, lease=10.0)
    queue.add("a")
    one(queue)
    clock.advance(10.0)
    with pytest.raises(QueueFull):
        queue.add("b")


def test_dead_letters_take_no_room(store):
    """But one that lives again does."""
    queue = store.queue("small", capacity=1)
    queue.add("a")
    queue.bury(one(queue), "bad")
    assert queue.add("b") is True
    with pytest.raises(QueueFull):
        queue.add("a")
    assert queue.depth() == Depth(ready=1, dead=1, age=0.0)


def test_purged_letters_make_no_room(store):
    """They took none."""
    queue = store.queue("small", capacity=1)
    queue.add("a")
    queue.bury(one(queue), "bad")
    assert queue.purge() == 1
    assert queue.add("b") is True
    with pytest.raises(QueueFull):
        queue.add("c")


# ── Order ────────────────────────────────────────────────────────────────────────────────────────────────


def test_in_the_order_in_which_they_became_ready(queue, clock):
    """Not in that in which they were added, nor of their keys."""
    queue.add("z", after=3.0)
    queue.add("y", after=2.0)
    queue.add("x", after=1.0)
    clock.advance(5.0)
    queue.add("a")
    assert keys(queue.receive(10)) == ["x", "y", "z", "a"]


def test_what_is_lifted_goes_at_once_however_long_it_has_waited(queue, clock):
    """Also where all that is known of the higher priority is younger."""
    queue.add("old")
    queue.add("urgent", priority=1)
    assert keys(queue.receive(1)) == ["urgent"]
    clock.advance(queue.lease + 1.0)
    assert keys(queue.receive(1)) == ["urgent"]  # its lease had run out
    queue.add("old", priority=1)
    assert keys(queue.receive(1)) == ["old"]


def test_a_higher_priority_goes_first_and_a_later_one_counts(queue, clock):
    """An add with a higher priority lifts what waits; one with a lower does not take it back."""
    for key, priority in (("a", 0), ("b", 1), ("c", 2), ("a", 3), ("c", 0)):
        queue.add(key, priority=priority)
        clock.advance(1.0)
    assert keys(queue.receive(10)) == ["a", "c", "b"]


@pytest.mark.parametrize("batch", [1, 3, 8, 20])
def test_one_of_eight_turns_is_for_the_oldest(queue, clock, batch):
    """However many of a higher priority come, a low one gets through, one at a time or in batches."""
    queue.add("low 1")
    queue.add("low 2")
    clock.advance(1.0)
    for n in range(40):
        queue.add(f"high {n}", priority=9)
    taken = []
    while len(taken) < 20:
        taken += keys(queue.receive(min(batch, 20 - len(taken))))
    assert [taken.index("low 1"), taken.index("low 2")] == [7, 15]
    assert [key for key in taken if key.startswith("high")] == [f"high {n}" for n in range(18)]


def test_queues_of_one_store_do_not_mix(store):
    """One key in two queues is two messages."""
    first, second = store.queue("first"), store.queue("second")
    first.add("a", "1")
    second.add("a", "2")
    assert (one(first).body, one(second).body) == ("1", "2")
    assert first.depth().leased == second.depth().leased == 1
    assert list(store.queues()) == ["first", "second"]


# ── Verdicts ─────────────────────────────────────────────────────────────────────────────────────────────


def test_back_counts_a_receive_unless_it_was_not_touched(queue, clock):
    """And it comes back after its delay."""
    queue.add("a")
    queue.back(one(queue), 5.0)
    assert queue.receive() == []
    clock.advance(5.0)
    message = one(queue)
    assert message.receives == 2
    queue.back(message, 0.0, touched=False)
    assert one(queue).receives == 2


def test_an_add_makes_ready_what_went_back_for_later(queue):
    """Whether it came before the verdict or after it."""
    for before in (True, False):
        queue.add("a")
        message = one(queue)
        if before:
            queue.add("a", "new")
        queue.back(message, 60.0)
        if not before:
            queue.add("a", "new")
        again = one(queue)
        assert (again.body, again.receives) == ("new", 2)
        queue.done(again)


def test_done_for_now_comes_again_as_if_new(queue, clock):
    """After its delay, with the body it had, its receives forgotten."""
    queue.add("a", "body", priority=2)
    queue.back(one(queue), 0.0)
    queue.done(one(queue), again=5.0)
    assert queue.depth() == Depth(delayed=1)
    clock.advance(5.0)
    message = one(queue)
    assert (message.body, message.receives) == ("body", 1)


def test_a_buried_message_keeps_what_is_needed_to_see_why(queue, clock):
    """Kind, reason, trace, body, attributes, receives, and when."""
    queue.add("a", "body", attributes={"from": "me"})
    queue.bury(one(queue), "it has no address", kind="fatal", trace="Traceback …")
    assert queue.receive() == []
    (letter,) = queue.dead()
    assert (letter.key, letter.body, dict(letter.attributes)) == ("a", "body", {"from": "me"})
    assert (letter.kind, letter.reason, letter.trace) == ("fatal", "it has no address", "Traceback …")
    assert (letter.receives, letter.died) == (1, clock.wall())


def test_what_a_dead_letter_says_is_cut_to_its_length(queue):
    """The beginning and the end are kept, and nothing of it has to be valid text."""
    queue.add("a")
    queue.bury(one(queue), "ü" * 50_000 + "end", trace="first \udcff" + "x" * 50_000)
    (letter,) = queue.dead()
    for words in (letter.reason, letter.trace):
        assert len(words.encode()) <= MAX_REASON_BYTES
        assert "(cut)" in words
    assert letter.reason.startswith("üü")
    assert letter.reason.endswith("üend")
    assert letter.trace.startswith("first \\udcff")


def test_a_dead_letter_stays_dead_without_revive(queue):
    """A resync does not unpark keys; other keys are added as usual."""
    queue.add("dead")
    queue.bury(queue.receive()[0], "no")
    assert queue.add("dead", revive=False) is False
    assert [letter.key for letter in queue.dead()] == ["dead"]
    assert queue.add("alive", revive=False) is True
    assert queue.add("alive", revive=False) is False
    assert [message.key for message in queue.receive(10)] == ["alive"]


def test_a_dead_letter_lives_again_when_it_is_added(queue):
    """As if it had never been received."""
    queue.add("a", "old")
    queue.bury(one(queue), "bad")
    assert queue.add("a", "new") is True
    assert queue.dead() == []
    message = one(queue)
    assert (message.body, message.receives) == ("new", 1)


def test_an_add_before_the_burial_counts_like_one_after_it(queue):
    """An explicit add means that the key is to be processed again."""
    queue.add("a", "old")
    message = one(queue)
    queue.add("a", "new")
    queue.bury(message, "bad")
    assert queue.dead() == []
    again = one(queue)
    assert (again.body, again.receives) == ("new", 1)


def test_redriven_letters_are_ready_as_if_never_received(queue, clock):
    """All of them, or those that are named; what is not dead is left alone."""
    for key in "abc":
        queue.add(key, key)
        clock.advance(1.0)
        queue.bury(one(queue), "bad")
    assert [letter.key for letter in queue.dead()] == ["c", "b", "a"]
    assert [letter.key for letter in queue.dead(max_messages=1)] == ["c"]
    assert queue.redrive(["a", "nobody"]) == 1
    message = one(queue)
    assert (message.key, message.body, message.receives) == ("a", "a", 1)
    assert queue.redrive() == 2
    assert queue.redrive() == 0
    assert queue.depth().ready == 2


def test_purged_letters_are_gone(queue):
    """What is not dead stays."""
    for key in "abc":
        queue.add(key)
    for message in queue.receive(2):
        queue.bury(message, "bad")
    assert queue.purge(["a", "c"]) == 1
    assert queue.purge() == 1
    assert queue.depth() == Depth(ready=1, age=0.0)


# ── Waiting ──────────────────────────────────────────────────────────────────────────────────────────────


def test_who_waits_is_woken_by_the_next_due(queue, clock):
    """At its instant, not later."""
    queue.add("a", after=7.0)
    assert keys(queue.receive(wait=60.0)) == ["a"]
    assert clock.now() == pytest.approx(1007.0)


def test_who_waits_is_woken_by_a_lease_that_runs_out(queue, clock):
    """As if it had been added then."""
    queue.add("a")
    one(queue)
    assert keys(queue.receive(wait=60.0)) == ["a"]
    assert clock.now() == pytest.approx(1010.0)


def test_who_waits_in_vain_returns_when_it_said(queue, clock):
    """With nothing; without a wait at once."""
    queue.add("a", after=100.0)
    assert queue.receive(wait=60.0) == []
    assert clock.now() == pytest.approx(1060.0)
    assert queue.receive() == []
    assert clock.now() == pytest.approx(1060.0)


def test_the_depth_says_what_there_is(queue, clock):
    """Ready, delayed, leased, dead, and the age of the oldest that is ready."""
    for key in "abcde":
        queue.add(key)
    queue.add("later", after=100.0)
    leased, dead = queue.receive(2)
    queue.bury(dead, "bad")
    clock.advance(4.0)
    assert queue.depth() == Depth(ready=3, delayed=1, leased=1, dead=1, age=4.0)
    clock.advance(10.0)
    assert queue.depth() == Depth(ready=4, delayed=1, dead=1, age=14.0)
    assert queue.extend([leased]) == [leased]


def test_a_store_without_a_clock_of_its_own_follows_the_context(url):
    """A virtual clock that is entered rules."""
    with VirtualClock(start=50.0) as clock, open_store(url) as store:
        queue = store.queue("orders")
        queue.add("a", after=5.0)
        assert keys(queue.receive(wait=10.0)) == ["a"]
        assert clock.now() == pytest.approx(55.0)
