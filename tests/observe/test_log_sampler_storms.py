"""Storms of events: how many lines they make, and that every event is counted."""

from collections import Counter, defaultdict
from threading import Thread

from hypothesis import given
from hypothesis import strategies as st

from abate import events
from abate.observe.log_sampler import OTHER_NAMES, LogSampler
from tests.observe.failing_events import DOWN, WINDOW, failed, kinds, worked
from tests.reentry import held_elsewhere


def test_a_storm_makes_a_burst_periodic_summaries_and_an_end():
    """Three lines at once, one per minute while the storm lasts, one when it is over."""
    sampler = LogSampler(burst=3, window=WINDOW)
    logged = [line.text for second in range(100) for line in sampler.lines(failed(), float(second))]
    first = "orders: first failure (blip): OSError('down')"
    # the first three are lines; the summary at 60 covers the events from 3 to 59
    assert logged == [
        first,
        first,
        first,
        "orders: … and 57 more calls failed at their first attempt (blip) in the last 60 s",
    ]
    assert sampler.due_lines(108.9) == []
    assert [line.text for line in sampler.due_lines(109.0)] == [
        "orders: … and 40 more calls failed at their first attempt (blip); it is over"
    ]
    assert sampler.due == float("inf")
    assert sampler.due_lines(1_000.0) == []
    assert [line.text for line in sampler.lines(failed(), 1_000.0)] == [first]


def polled(sampler, instants, until):
    """Feed failures at these instants, and poll every second; return (instant, more, over) of each line."""
    logged, coming = [], sorted(instants)
    for now in range(until):
        logged += [(now, line.more, line.over) for line in sampler.due_lines(float(now))]
        while coming and coming[0] <= now:
            logged += [(now, line.more, line.over) for line in sampler.lines(failed(), float(coming.pop(0)))]
    return logged


FIRST = (0, False)


def test_the_end_of_a_storm_is_logged_within_seconds():
    """A storm of three seconds is over after ten quiet seconds, not at the next minute."""
    assert polled(LogSampler(burst=1), [0, 1, 2, 3], until=300) == [(0, *FIRST), (13, 3, True)]


def test_the_end_of_a_long_storm_does_not_wait_for_its_next_summary():
    """The end is logged even if a summary was written shortly before it."""
    logged = polled(LogSampler(burst=1), range(63), until=300)
    assert logged == [(0, *FIRST), (60, 59, False), (72, 3, True)]


def test_flapping_does_not_make_a_line_per_flap():
    """Failures every twenty seconds make one end, then a summary per minute, and a final end."""
    bad = [second for second in range(300) if second % 20 < 3]
    logged = polled(LogSampler(burst=1), bad, until=600)
    assert logged == [
        (0, *FIRST),
        (12, 2, True),
        (80, 9, False),
        (140, 9, False),
        (200, 9, False),
        (260, 9, False),
        (318, 6, True),
    ]


def test_rare_failures_are_not_over_between_two_events():
    """A failure every fifteen seconds is one episode; it is over after two quiet intervals."""
    logged = polled(LogSampler(burst=1), range(0, 151, 15), until=600)
    assert logged == [(0, *FIRST), (60, 3, False), (120, 4, False), (180, 3, True)]


def test_a_storm_after_a_quiet_window_ends_as_early_as_the_first():
    """The pause between two episodes does not count as an interval of either."""
    logged = polled(LogSampler(burst=1), [0, 1, 2, 100, 101, 102], until=600)
    assert logged == [(0, *FIRST), (12, 2, True), (100, *FIRST), (112, 2, True)]


def test_a_storm_that_returns_before_its_end_was_logged():
    """After a quiet window the failure is a first one again, and the missed end is not logged."""
    sampler = LogSampler(burst=1, window=WINDOW)
    for now in (0.0, 1.0):
        sampler.lines(failed(), now)
    assert [line.more for line in sampler.due_lines(60.0)] == [1]
    assert [line.event for line in sampler.lines(failed(), 61.0)] == [failed()]
    assert sampler.due_lines(1_000.0) == []


def test_a_storm_that_ends_within_its_first_window():
    """The line of the end has the count."""
    sampler = LogSampler(burst=1, window=WINDOW)
    for _ in range(5):
        sampler.lines(failed(), 0.0)
    (line,) = sampler.due_lines(60.0)
    assert line.text == "orders: … and 4 more calls failed at their first attempt (blip); it is over"
    assert line.level == "debug"
    assert line.facts == {"name": "orders", "more": 4, "seconds": 60.0, "detail": "blip", "over": True}


def test_a_blip_is_one_line():
    """If nothing exceeded the burst, no line follows."""
    sampler = LogSampler()
    sampler.lines(failed(), 0.0)
    assert sampler.due == float("inf")
    assert sampler.due_lines(1_000.0) == []


def test_remaining_counts_are_logged_once():
    """At exit the pending counts are logged, and not repeated."""
    sampler = LogSampler(burst=1)
    for _ in range(3):
        sampler.lines(failed(), 0.0)
    assert [line.more for line in sampler.remaining_lines(1.0)] == [2]
    assert sampler.remaining_lines(2.0) == []


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


def play(steps, burst, most, polling):
    """Feed events of one kind; return (instant, line) of every line, the sampler, and the time at the end."""
    sampler, now, logged = LogSampler(burst, WINDOW, most), 0.0, []
    for policy, reason, pause in steps:
        now += pause
        if polling:
            logged += [(now, line) for line in sampler.due_lines(now)]
        logged += [(now, line) for line in sampler.lines(events.GaveUp(policy, reason, 3, 1.0, DOWN), now)]
    return logged, sampler, now


@given(STEPS, SETTINGS, st.booleans())
def test_lines_are_bounded(steps, settings, polling):
    """A window has at most `burst` lines and one summary per tracked episode, for any sequence of events."""
    burst, most = settings
    logged, _, _ = play(steps, burst, most, polling)
    for start, _ in logged:
        within = [line for at, line in logged if start <= at < start + WINDOW]
        assert len(within) <= (most + 1) * (burst + 1)  # one kind, so one episode for all other names
        each = Counter((line.name, line.detail if line.name != OTHER_NAMES else "") for line in within)
        assert all(count <= burst + 1 for (policy, _), count in each.items() if policy != OTHER_NAMES)


@given(STEPS, SETTINGS, st.booleans())
def test_nothing_is_lost(steps, settings, polling):
    """Every event is a line of its own, or counted by exactly one summary."""
    burst, most = settings
    logged, sampler, now = play(steps, burst, most, polling)
    lines = [line for _, line in logged] + sampler.remaining_lines(now)
    assert sum(line.more + (line.event is not None) for line in lines) == len(steps)


@given(STEPS, st.integers(1, 4), st.booleans())
def test_the_first_event_of_a_kind_is_always_a_line(steps, burst, polling):
    """While episodes are below the limit, the first event after a quiet window is logged at once."""
    logged, _, _ = play(steps, burst, len(POLICIES) * len(DETAILS), polling)
    shown = Counter((at, line.name, line.detail) for at, line in logged if line.event is not None)
    last, now, firsts = defaultdict(lambda: -1_000.0), 0.0, Counter()
    for policy, reason, pause in steps:
        now += pause
        if now >= last[policy, reason] + WINDOW:
            firsts[now, policy, reason] += 1
        last[policy, reason] = now
    assert all(shown[first] >= count for first, count in firsts.items())


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=80))
def test_keys_match_a_model(steps):
    """A key is logged at its first failure, at 5, 10, 20, …, and when it is done after that."""
    sampler, failures = LogSampler(burst=1_000), Counter()
    for key, good in steps:
        lines = sampler.lines(worked(key, "done" if good else "retry"), 0.0)
        if good:
            assert [(line.kind, line.failures) for line in lines] == (
                [("key_recovered", failures[key])] if failures[key] else []
            )
            failures[key] = 0
        else:
            failures[key] += 1
            logged = {1: "key_failing", 5: "key_keeps_failing", 10: "key_keeps_failing", 20: "key_keeps_failing"}
            expected = [logged[failures[key]]] if failures[key] in logged else []
            assert kinds(lines) == expected


def test_policies_beyond_the_limit_share_one_episode():
    """Many names don't make many lines: those beyond the limit are counted under one name."""
    sampler = LogSampler(burst=2, window=WINDOW, max_episodes=10)
    lines = [line for number in range(100_000) for line in sampler.lines(failed(f"policy {number}"), 0.0)]
    assert len(lines) == 10 + 2
    (line,) = sampler.due_lines(60.0)
    assert (line.name, line.more) == (OTHER_NAMES, 100_000 - 12)


def test_ended_episodes_free_their_slots():
    """An episode that is over is replaced by a new one."""
    sampler = LogSampler(max_episodes=1)
    sampler.lines(failed("one"), 0.0)
    assert [line.event.name for line in sampler.lines(failed("two"), 60.0)] == ["two"]
    assert [line.name for line in sampler.lines(failed("two"), 60.0)] == ["two"]


# -- threads


def test_threads_lose_nothing():
    """Lines and counts add up under any interleaving of threads."""
    sampler, logged = LogSampler(burst=2), []

    def storm():
        for number in range(2_000):
            logged.extend(sampler.lines(failed(f"policy {number % 3}"), 0.0))

    threads = [Thread(target=storm) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    lines = logged + sampler.remaining_lines(1.0)
    assert sum(line.more + (line.event is not None) for line in lines) == 16_000
    assert sum(line.event is not None for line in lines) == 6


def test_an_event_while_another_is_processed():
    """Code that runs while the lock is held, as a finalizer may, does not deadlock."""
    sampler = LogSampler(burst=10)
    seen = []

    class Nested:
        def __hash__(self):
            seen.append(sampler.lines(failed(), 0.0))
            return 1

    lines = sampler.lines(worked(Nested()), 0.0)
    assert seen == [[]]
    assert kinds(lines) == ["key_failing", "failing"]


def test_a_child_has_its_own_lock():
    """After a fork, a lock that another thread held does not block the child."""
    sampler = LogSampler(burst=1)
    with held_elsewhere(sampler._section):
        sampler.after_fork()
        assert kinds(sampler.lines(failed(), 0.0)) == ["failing"]


def test_names_beyond_the_bound_are_not_a_search_each(monkeypatch):
    """Policies that are made per tenant fail together: the lines of all are decided under one lock."""
    searches = []
    forget_ended = LogSampler._forget_ended
    monkeypatch.setattr(
        LogSampler, "_forget_ended", lambda sampler, now: (searches.append(now), forget_ended(sampler, now))
    )
    sampler = LogSampler(window=WINDOW, max_episodes=10)
    for second in (0.0, 1.0, WINDOW - 0.5):
        for tenant in range(100):
            sampler.lines(failed(f"tenant {tenant}"), second)
    assert searches == [0.0]
    assert [line.name for line in sampler.lines(failed("tenant 101"), 3 * WINDOW) if line.event] == ["tenant 101"]
