"""Periodic work: the offset that belongs to a key, and beats that neither drift nor pile up."""

import gc
import os
import subprocess
import sys
import uuid
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abate import clock as clocks
from abate.schedule import Tick, consistent_jitter, ticks
from abate.testing import VirtualClock

NAN, INF = float("nan"), float("inf")

periods = st.floats(0.0, exclude_min=True, allow_infinity=False)
# quarters of seconds add up without rounding, so that instants can be compared exactly
quarters = st.integers(0, 400).map(lambda count: count / 4)
with_a_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)


# -- the offset of a key


@pytest.mark.parametrize(
    ("key", "period", "offset"),
    [
        ("host-7", 60.0, 3.9981634784204267),
        ("host-8", 60.0, 12.90672682339877),
        ("", 1.0, 0.8931675160897388),
        ("naïve ☂", 3600.0, 3524.176719469103),
        ("\udcff", 1.0, 0.8051663147196484),  # as os.fsdecode makes it from a name that is no text
        (b"\xff\x00", 10.0, 5.465322875141543),
        (42, 86400.0, 29600.11850897223),
        (("eu", 3), 5.0, 1.9330734295012637),
    ],
)
def test_the_offsets_are_these_for_ever(key, period, offset):
    """A new version that moved them would make every fleet's periodic work jump. (`b2sum -l 64` agrees.)"""
    assert consistent_jitter(key, period) == offset


@given(
    key=st.text() | st.text("a\ud800\udfff") | st.binary() | st.integers() | st.tuples(st.text(), st.integers()),
    period=periods,
)
def test_an_offset_lies_within_the_period(key, period):
    """From 0 up to the period and never on it, however small or large it is."""
    assert 0.0 <= consistent_jitter(key, period) < period


@given(key=st.text(), power=st.integers(-40, 40))
def test_an_offset_is_a_share_of_the_period(key, power):
    """A key stands at the same share of every period."""
    assert consistent_jitter(key, 2.0**power) == consistent_jitter(key, 1.0) * 2.0**power


@pytest.mark.parametrize(
    "key",
    [
        lambda number: f"host-{number}",
        lambda number: number,
        lambda number: f"{number}.shop.example",
        lambda number: f"{'x' * 200}{number}",
        lambda number: str(uuid.UUID(int=number)),
        lambda number: number.to_bytes(4, "big"),
    ],
    ids=["names", "numbers", "hosts", "long", "uuids", "bytes"],
)
def test_keys_spread_evenly(key):
    """Twenty thousand keys over fifty slots pass the chi-square test (85.4 at 49 degrees is one in a thousand)."""
    slots = [0] * 50
    for number in range(20_000):
        slots[int(consistent_jitter(key(number), 50.0))] += 1
    assert sum((count - 400) ** 2 / 400 for count in slots) < 85.4


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_an_offset_is_the_same_in_every_process(seed):
    """Python's own hash differs from run to run; this one does not."""
    code = "import abate; print(repr(abate.consistent_jitter('host-7', 60.0)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) == consistent_jitter("host-7", 60.0)


def test_a_key_is_read_through_str():
    """A number, its text and its bytes are one key."""
    assert consistent_jitter(7, 60.0) == consistent_jitter("7", 60.0) == consistent_jitter(b"7", 60.0)


BAD_PERIODS = [
    (0, ValueError),
    (-1.0, ValueError),
    (NAN, ValueError),
    (INF, ValueError),
    (True, TypeError),
    ("60", TypeError),
    (None, TypeError),
]


@pytest.mark.parametrize(("period", "error"), BAD_PERIODS)
@pytest.mark.parametrize("make", [lambda period: consistent_jitter("key", period), ticks], ids=["offset", "ticks"])
def test_a_bad_period_is_refused(make, period, error):
    """The error names the period and what was expected, before anything waits."""
    with pytest.raises(error, match=f"^period must be a number above 0( and finite)?, not {period!r}$"):
        make(period)


# -- beats


def test_the_first_beat_comes_at_once(beats):
    """Without a key the beats begin now, and each is waited for."""
    with VirtualClock(start=7.0) as clock:
        seen = beats(ticks(10.0), 3)
    assert seen == [Tick(7.0, 0), Tick(17.0, 0), Tick(27.0, 0)]
    assert clock.waits == [10.0, 10.0]


@with_a_fixture
@given(bodies=st.lists(st.floats(0.0, 0.9), min_size=50, max_size=100), start=st.floats(0.0, 1e6))
def test_beats_do_not_drift(beats, bodies, start):
    """However long the body takes within the period, beat n is due at n periods, to the last digit."""
    took = iter(bodies)
    late = []
    with VirtualClock(start) as clock:

        def body(tick):
            late.append(clock.now() - tick.due)
            clock.advance(next(took))

        seen = beats(ticks(1.1), len(bodies), body)
    assert [tick.due for tick in seen] == [start + count * 1.1 for count in range(len(bodies))]
    assert {tick.missed for tick in seen} == {0}
    assert max(late) <= 1e-9 * max(1.0, start)
    exact = Fraction(start) + (len(bodies) - 1) * Fraction(1.1)
    assert abs(Fraction(seen[-1].due) - exact) <= exact * Fraction(2) ** -51


def test_beats_during_an_overrun_are_left_out_and_counted(beats):
    """A body that takes 25 s of a 10 s beat loses two of them; the next comes on the old grid."""
    took = iter([1.0, 25.0, 1.0, 10.0, 10.5, 0.0])
    with VirtualClock() as clock:
        seen = beats(ticks(10.0), 6, lambda tick: clock.advance(next(took)))
    assert seen == [Tick(0, 0), Tick(10, 0), Tick(40, 2), Tick(50, 0), Tick(60, 0), Tick(80, 1)]


@with_a_fixture
@given(
    period=quarters.filter(bool),
    start=quarters,
    bodies=st.lists(st.tuples(quarters, st.booleans()), min_size=1, max_size=30),
)
def test_every_beat_of_the_grid_is_handed_out_or_counted(beats, period, start, bodies):
    """The next beat is the first on the grid after the last one that is not over yet; none is made up for."""
    took, ends = iter(bodies), []
    with VirtualClock(start) as clock:

        def body(tick):
            assert clock.now() == tick.due
            seconds, waits = next(took)
            (clock.sleep if waits else clock.advance)(seconds)
            ends.append(clock.now())

        seen = beats(ticks(period), len(bodies), body)
    assert seen[0] == Tick(start, 0)
    for last, end, tick in zip(seen, ends, seen[1:], strict=False):
        due, missed = last.due + period, 0
        while due < end:
            due, missed = due + period, missed + 1
        assert tick == Tick(due, missed)


@with_a_fixture
@given(key=st.text(), start=st.floats(0.0, 2e9), period=st.floats(0.5, 1e5))
def test_with_a_key_the_beats_stand_at_its_offset(beats, key, start, period):
    """Every beat is at the key's offset on the wall clock, whenever the process was started."""
    with VirtualClock(start):
        seen = beats(ticks(period, key=key), 3)
    assert start <= seen[0].due <= start + period
    for tick in seen:
        off = (tick.due - consistent_jitter(key, period)) % period
        assert min(off, period - off) <= 1e-5


def test_the_first_beat_of_a_key_on_a_new_clock_is_its_offset(beats):
    """On a clock that begins at nought, the offset is the instant itself."""
    with VirtualClock() as clock:
        seen = beats(ticks(60.0, key="host-7"), 2)
    assert seen == [Tick(3.9981634784204267, 0), Tick(63.9981634784204267, 0)]
    assert clock.waits[0] == 3.9981634784204267


class SetClock(VirtualClock):
    """A clock whose wall clock is set: from each instant on it is ahead of the other by the given seconds."""

    def __init__(self, steps, start=0.0):
        super().__init__(start)
        self.steps = sorted(steps)

    def wall(self):
        return self.now() + ([0.0] + [ahead for at, ahead in self.steps if at <= self.now()])[-1]


def off(wall, key, period):
    """By how many seconds an instant misses the key's offset."""
    missed = (wall - consistent_jitter(key, period)) % period
    return min(missed, period - missed)


@with_a_fixture
@given(
    key=st.text(max_size=3),
    period=st.sampled_from([1.0, 60.0, 3600.0]),
    steps=st.lists(st.tuples(st.floats(0.0, 6.0), st.floats(-5.0, 5.0)), max_size=4),
    bodies=st.lists(st.floats(0.0, 2.0), min_size=6, max_size=6),
)
def test_beats_of_a_key_come_back_to_its_offset_when_the_wall_clock_was_set(beats, key, period, steps, bodies):
    """Set forward or back, in a body or in a wait: every beat is at the offset, no two are close, none stays away."""
    took, walls = iter(bodies), []
    with SetClock([(period * at, 1e6 + period * ahead) for at, ahead in steps]) as clock:

        def body(tick):
            walls.append((clock.wall(), clock.now() - tick.due))
            clock.advance(period * next(took))

        seen = beats(ticks(period, key=key), len(bodies), body)
    for wall, late in walls:
        assert off(wall, key, period) <= min(1.0, period / 100) + 1e-5
        assert late <= 1e-5
    for before, after, body in zip(seen, seen[1:], bodies, strict=False):
        between = sum(before.due <= period * at <= after.due for at, _ in steps)
        assert period * 0.499 <= after.due - before.due <= period * (1.001 + max(1.0, body) + between)
        assert after.missed == max(0, round((after.due - before.due) / period) - 1)


def test_a_wall_clock_that_is_set_back_brings_no_beat_twice(beats):
    """The instant of the last beat comes again on the wall clock: that one is over."""
    with SetClock([(4.0, -1.0)]) as clock:
        seen = beats(ticks(60.0, key="host-7"), 2)
    assert off(clock.wall(), "host-7", 60.0) <= 1e-5
    assert seen[1].due - seen[0].due == pytest.approx(61.0)


def test_a_long_wait_notices_that_the_wall_clock_was_set(beats):
    """Within a small part of the period, and not when it is over."""
    day = 86400.0
    with SetClock([(day / 2, day / 4)]) as clock:
        seen = beats(ticks(day, key="host-8"), 2)
    first, second = seen
    assert second.due - first.due == pytest.approx(0.75 * day)
    assert clock.now() == pytest.approx(second.due)


def test_a_wall_clock_that_runs_a_little_fast_is_followed(beats):
    """What adds up is noticed: beats don't leave their offset for good."""

    class Fast(VirtualClock):
        def wall(self):
            return self.now() * 1.001

    with Fast() as clock:
        seen = beats(ticks(60.0, key="host-7"), 200)
        assert off(clock.wall(), "host-7", 60.0) <= 0.7
    assert min(b.due - a.due for a, b in pairwise(seen)) > 55.0


def test_a_key_may_be_anything_but_none(beats):
    """A key of 0 or of no letters is a key."""
    for key in (0, ""):
        with VirtualClock():
            assert beats(ticks(60.0, key), 1) == [Tick(consistent_jitter(key, 60.0), 0)]


def test_a_clock_of_its_own_is_used(beats):
    """Given as `clock=`, a virtual clock is the beat's alone."""
    own = VirtualClock(start=5.0)
    with VirtualClock() as ambient:
        assert beats(ticks(2.0, clock=own), 3)[-1] == Tick(9.0, 0)
    assert (own.waits, ambient.waits) == ([2.0, 2.0], [])


def test_ticks_can_be_read_again(beats):
    """Every loop over the same `ticks` begins anew, on the clock that rules there."""
    again = ticks(10.0)
    with VirtualClock(start=3.0) as clock:
        assert beats(again, 2) == [Tick(3.0, 0), Tick(13.0, 0)]
        clock.advance(0.5)
        assert beats(again, 2) == [Tick(13.5, 0), Tick(23.5, 0)]


def test_beats_can_be_taken_one_by_one():
    """An iterator of `ticks` is an iterator like any other."""
    with VirtualClock():
        taken = iter(ticks(10.0))
        assert iter(taken) is taken
        assert aiter(taken) is taken
        assert (next(taken), next(taken)) == (Tick(0.0, 0), Tick(10.0, 0))


def test_leaving_the_loop_leaves_nothing_behind(run):
    """A loop that ends by break needs no closing: nothing is left for the event loop to complain about."""

    async def main():
        with VirtualClock():
            async for tick in ticks(1.0):
                if tick.due > 2.0:
                    break
        gc.collect()
        await clocks.current().asleep(0.0)

    run(main)


def test_a_beat_in_real_time():
    """On the machine's clock the first beat comes at once, at the clock's own time."""
    before = clocks.MACHINE.now()
    first = next(iter(ticks(3600.0)))
    assert before <= first.due <= clocks.MACHINE.now()
    assert first.missed == 0
