"""Storms of events: how many lines they make, and that nothing is lost."""

from collections import Counter, defaultdict
from threading import Thread

from hypothesis import given
from hypothesis import strategies as st

from abate import events
from abate.observe.log_sampler import OTHER_NAMES, LogSampler
from tests.observe.failing_events import DOWN, WINDOW, failed, kinds, worked
from tests.reentry import held_elsewhere


def test_a_storm_is_a_burst_a_summary_now_and_then_and_an_end():
    """Three lines at once, one a minute while it goes on, one when it is over."""
    transitions = LogSampler(burst=3, window=WINDOW)
    told = [line.text for second in range(100) for line in transitions.lines(failed(), float(second))]
    first = "orders: first failure (blip): OSError('down')"
    # the first three are lines; the events from 3 to 59 are told at 60
    assert told == [
        first,
        first,
        first,
        "orders: … and 57 more calls failed at their first attempt (blip) in the last 60 s",
    ]
    assert transitions.due_lines(108.9) == []
    assert [line.text for line in transitions.due_lines(109.0)] == [
        "orders: … and 40 more calls failed at their first attempt (blip); it is over"
    ]
    assert transitions.due == float("inf")
    assert transitions.due_lines(1_000.0) == []
    assert [line.text for line in transitions.lines(failed(), 1_000.0)] == [first]


def seconds_of(transitions, instants, until):
    """Play failures at these instants, and look every second: (instant, more, over) of what is told."""
    told, coming = [], sorted(instants)
    for now in range(until):
        told += [(now, line.more, line.over) for line in transitions.due_lines(float(now))]
        while coming and coming[0] <= now:
            told += [(now, line.more, line.over) for line in transitions.lines(failed(), float(coming.pop(0)))]
    return told


FIRST = (0, False)


def test_that_it_is_over_is_told_within_seconds():
    """A storm of three seconds is over after ten quiet ones, and not at the next minute."""
    assert seconds_of(LogSampler(burst=1), [0, 1, 2, 3], until=300) == [(0, *FIRST), (13, 3, True)]


def test_the_end_of_a_long_storm_does_not_wait_for_its_next_summary():
    """However shortly before it a summary came."""
    told = seconds_of(LogSampler(burst=1), range(63), until=300)
    assert told == [(0, *FIRST), (60, 59, False), (72, 3, True)]


def test_what_flaps_is_not_a_line_per_flap():
    """Up and down every twenty seconds: once it seems to be over, then a summary a minute, and the end."""
    bad = [second for second in range(300) if second % 20 < 3]
    told = seconds_of(LogSampler(burst=1), bad, until=600)
    assert told == [
        (0, *FIRST),
        (12, 2, True),
        (80, 9, False),
        (140, 9, False),
        (200, 9, False),
        (260, 9, False),
        (318, 6, True),
    ]


def test_what_comes_seldom_is_not_over_between_two_of_its_events():
    """A failure every fifteen seconds goes on; it is over when two of its pauses have been quiet."""
    told = seconds_of(LogSampler(burst=1), range(0, 151, 15), until=600)
    assert told == [(0, *FIRST), (60, 3, False), (120, 4, False), (180, 3, True)]


def test_a_storm_after_a_quiet_window_ends_as_soon_as_the_first():
    """The pause between two episodes belongs to none of them."""
    told = seconds_of(LogSampler(burst=1), [0, 1, 2, 100, 101, 102], until=600)
    assert told == [(0, *FIRST), (12, 2, True), (100, *FIRST), (112, 2, True)]


def test_a_storm_that_comes_back_before_its_end_was_told():
    """After a quiet window it is a first again, and nobody says any more that it was over."""
    transitions = LogSampler(burst=1, window=WINDOW)
    for now in (0.0, 1.0):
        transitions.lines(failed(), now)
    assert [line.more for line in transitions.due_lines(60.0)] == [1]
    assert [line.event for line in transitions.lines(failed(), 61.0)] == [failed()]
    assert transitions.due_lines(1_000.0) == []


def test_a_storm_that_ends_within_its_first_window():
    """What was counted is told with the end."""
    transitions = LogSampler(burst=1, window=WINDOW)
    for _ in range(5):
        transitions.lines(failed(), 0.0)
    (line,) = transitions.due_lines(60.0)
    assert line.text == "orders: … and 4 more calls failed at their first attempt (blip); it is over"
    assert line.level == "warning"
    assert line.facts == {"name": "orders", "more": 4, "seconds": 60.0, "detail": "blip", "over": True}


def test_a_blip_is_one_line():
    """Where there was nothing but the burst, nothing follows."""
    transitions = LogSampler()
    transitions.lines(failed(), 0.0)
    assert transitions.due == float("inf")
    assert transitions.due_lines(1_000.0) == []


def test_the_rest_is_told_once():
    """At the end of the program what was counted is told, and not again."""
    transitions = LogSampler(burst=1)
    for _ in range(3):
        transitions.lines(failed(), 0.0)
    assert [line.more for line in transitions.remaining_lines(1.0)] == [2]
    assert transitions.remaining_lines(2.0) == []


POLICIES = tuple(f"policy {number}" for number in range(8))
DETAILS = ("attempts", "deadline", "hint")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(POLICIES),
        st.sampled_from(DETAILS),
        st.sampled_from([0.0, 0.0, 0.0, 1.0, 7.0, 11.0, 30.0, 49.0, 59.0, 60.0, 61.0, 200.0]),
    ),
    max_size=120,
)
SETTINGS = st.tuples(st.integers(1, 4), st.integers(1, 30))


def play(steps, burst, most, looking):
    """Feed events of one kind: (instant, line) of every line, and the transitions at the end with the time."""
    transitions, now, told = LogSampler(burst, WINDOW, most), 0.0, []
    for policy, reason, pause in steps:
        now += pause
        if looking:
            told += [(now, line) for line in transitions.due_lines(now)]
        told += [(now, line) for line in transitions.lines(events.GaveUp(policy, reason, 3, 1.0, DOWN), now)]
    return told, transitions, now


@given(STEPS, SETTINGS, st.booleans())
def test_lines_are_bounded_whatever_comes(steps, settings, looking):
    """In any window there are at most `burst` lines and a summary for each episode that there is room for."""
    burst, most = settings
    told, _, _ = play(steps, burst, most, looking)
    for start, _ in told:
        within = [line for at, line in told if start <= at < start + WINDOW]
        assert len(within) <= (most + 1) * (burst + 1)  # one kind, so one more for all others
        each = Counter((line.name, line.detail if line.name != OTHER_NAMES else "") for line in within)
        assert all(count <= burst + 1 for (policy, _), count in each.items() if policy != OTHER_NAMES)


@given(STEPS, SETTINGS, st.booleans())
def test_nothing_is_lost(steps, settings, looking):
    """Every event is a line of its own, or counted by exactly one summary."""
    burst, most = settings
    told, transitions, now = play(steps, burst, most, looking)
    lines = [line for _, line in told] + transitions.remaining_lines(now)
    assert sum(line.more + (line.event is not None) for line in lines) == len(steps)


@given(STEPS, st.integers(1, 4), st.booleans())
def test_a_first_of_its_kind_is_always_a_line(steps, burst, looking):
    """Where there is room, the first event after a quiet window is told at once."""
    told, _, _ = play(steps, burst, len(POLICIES) * len(DETAILS), looking)
    shown = Counter((at, line.name, line.detail) for at, line in told if line.event is not None)
    last, now, firsts = defaultdict(lambda: -1_000.0), 0.0, Counter()
    for policy, reason, pause in steps:
        now += pause
        if now >= last[policy, reason] + WINDOW:
            firsts[now, policy, reason] += 1
        last[policy, reason] = now
    assert all(shown[first] >= count for first, count in firsts.items())


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=80))
def test_keys_by_a_model(steps):
    """A key is told when it first fails, at 5, 10, 20, …, and when it is done after that."""
    transitions, failures = LogSampler(burst=1_000), Counter()
    for key, good in steps:
        lines = transitions.lines(worked(key, "done" if good else "retry"), 0.0)
        if good:
            assert [(line.kind, line.failures) for line in lines] == (
                [("key_recovered", failures[key])] if failures[key] else []
            )
            failures[key] = 0
        else:
            failures[key] += 1
            told = {1: "key_failing", 5: "key_keeps_failing", 10: "key_keeps_failing", 20: "key_keeps_failing"}
            expected = [told[failures[key]]] if failures[key] in told else []
            assert kinds(lines) == expected


def test_more_policies_than_there_is_room_for_are_told_together():
    """A storm of names is no storm of lines either; what is too much is counted under one name."""
    transitions = LogSampler(burst=2, window=WINDOW, max_episodes=10)
    lines = [line for number in range(100_000) for line in transitions.lines(failed(f"policy {number}"), 0.0)]
    assert len(lines) == 10 + 2
    (line,) = transitions.due_lines(60.0)
    assert (line.name, line.more) == (OTHER_NAMES, 100_000 - 12)


def test_room_is_made_by_those_that_have_ended():
    """An episode that is over makes way for another."""
    transitions = LogSampler(max_episodes=1)
    transitions.lines(failed("one"), 0.0)
    assert [line.event.name for line in transitions.lines(failed("two"), 60.0)] == ["two"]
    assert [line.name for line in transitions.lines(failed("two"), 60.0)] == ["two"]


# -- threads


def test_threads_lose_nothing():
    """However threads interleave, lines and counts add up."""
    transitions, told = LogSampler(burst=2), []

    def storm():
        for number in range(2_000):
            told.extend(transitions.lines(failed(f"policy {number % 3}"), 0.0))

    threads = [Thread(target=storm) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    lines = told + transitions.remaining_lines(1.0)
    assert sum(line.more + (line.event is not None) for line in lines) == 16_000
    assert sum(line.event is not None for line in lines) == 6


def test_an_event_within_the_decision_about_another():
    """Code that runs while the lock is held, as a garbage collection may, does not wait for itself."""
    transitions = LogSampler(burst=10)
    seen = []

    class Nested:
        def __hash__(self):
            seen.append(transitions.lines(failed(), 0.0))
            return 1

    lines = transitions.lines(worked(Nested()), 0.0)
    assert seen == [[]]
    assert kinds(lines) == ["key_failing", "failing"]


def test_a_child_decides_for_itself():
    """After a fork, a lock that another thread held does not silence the child."""
    transitions = LogSampler(burst=1)
    with held_elsewhere(transitions._section):
        transitions.after_fork()
        assert kinds(transitions.lines(failed(), 0.0)) == ["failing"]
