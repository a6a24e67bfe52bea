"""A bucket that a fleet shares: the parts of its rate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate.stores.fleet import FleetBucket
from abate.stores.fleet.grant_rules import NEWCOMERS_RESERVE, bucket_share
from abate.stores.fleet.messages import MEMBER_TIMEOUT, BucketRequest
from abate.testing import VirtualClock


def members(fleet_sync, many, rate=100.0, burst=20):
    """So many processes that share one bucket."""
    fleet_syncs = [fleet_sync() for _ in range(many)]
    return fleet_syncs, [FleetBucket(one, "mails", rate, burst) for one in fleet_syncs]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.integers(1, 5), st.randoms())
def test_all_parts_together_are_never_more_than_the_whole(wanted, rounds, rng):
    """In whatever order members come, and whatever they want."""
    parts = [0.0] * len(wanted)
    for _ in range(rounds):
        order = list(range(len(wanted)))
        rng.shuffle(order)
        for who in order:
            others = [other for other in range(len(wanted)) if other != who]
            parts[who] = bucket_share(
                wanted[who], [wanted[other] for other in others], [parts[other] for other in others]
            )
            assert sum(parts) <= 1.0 + 1e-9


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=20))
def test_parts_settle_by_what_is_wanted(wanted):
    """After some rounds nearly all of the rate is handed out, and who wants more has no less."""
    parts = [0.0] * len(wanted)
    for _ in range(30):
        for who in range(len(wanted)):
            others = [other for other in range(len(wanted)) if other != who]
            parts[who] = bucket_share(
                wanted[who], [wanted[other] for other in others], [parts[other] for other in others]
            )
    assert sum(parts) == pytest.approx(1.0 - NEWCOMERS_RESERVE)
    for (want, has), (less, little) in zip(
        sorted(zip(wanted, parts, strict=True))[1:], sorted(zip(wanted, parts, strict=True)), strict=False
    ):
        assert want < less or has >= little - 1e-6


def test_an_idle_member_keeps_a_little(fleet_sync):
    """So that its first calls need not wait for a journey."""
    (busy, idle), (one, other) = members(fleet_sync, 2)
    for _ in range(5):
        for _ in range(1000):
            one.try_acquire()
        busy.sync_once()
        idle.sync_once()
    assert one._part > 0.8
    assert other._part > 0.01


def test_the_rate_here_is_the_part_of_it(fleet_sync):
    """Two members that want the same have half each, less what is kept for newcomers."""
    fleet_syncs, buckets = members(fleet_sync, 2)
    for _ in range(5):
        for one in fleet_syncs:
            one.sync_once()
    for bucket in buckets:
        bucket.try_acquire()
        assert bucket.rate == pytest.approx(45.0)


def test_without_the_store_everybody_has_an_equal_part(fleet_sync, flaky):
    """Of as many as there were."""
    fleet_syncs, buckets = members(fleet_sync, 4)
    for one in fleet_syncs:
        one.sync_once()
    flaky.error = ConnectionError("gone")
    for one, bucket in zip(fleet_syncs, buckets, strict=True):
        one.sync_once()
        bucket._valid_until = 0.0
        bucket.try_acquire()
        assert bucket.rate == 25.0


def test_a_newcomer_without_a_part_waits_no_longer_than_by_a_tenth_of_an_equal_one(fleet_sync):
    """Until those who were there have given way."""
    fleet_syncs, buckets = members(fleet_sync, 4, rate=10.0, burst=1)
    newest = buckets[-1]
    newest.try_acquire()
    assert newest.rate >= 10.0 * 0.1 / 4
    for _ in range(10):
        for one in fleet_syncs:
            one.sync_once()
    newest.try_acquire()
    assert newest.rate >= 10.0 * 0.1 / 4


def test_more_than_the_part_of_the_burst_can_be_had_with_patience(fleet_sync):
    """A claim of the whole burst is no error for a member with a small part."""
    fleet_syncs, buckets = members(fleet_sync, 4, rate=1e6, burst=20)
    for one in fleet_syncs:
        one.sync_once()
    buckets[0].acquire(20)


def test_in_virtual_time_it_is_a_bucket_like_another(fleet_sync):
    """Waiting is by reservation."""
    _, (bucket,) = members(fleet_sync, 1, rate=10.0, burst=1)
    with VirtualClock() as clock:
        bucket.acquire()
        bucket.acquire()
        assert clock.now() == pytest.approx(1 / bucket.rate)


def test_the_part_of_a_member_that_stays_away_is_free_again(still):
    """A process that was killed leaves by itself."""
    clock = VirtualClock(start=1000.0)
    with abate.open_store("memory:", clock=clock) as store:
        (gone,) = store.sync_members("a", [BucketRequest("mails", 10.0)])
        (newcomer,) = store.sync_members("b", [BucketRequest("mails", 10.0)])
        assert gone.part == pytest.approx(0.9)
        assert newcomer.part == pytest.approx(0.1)
        clock.advance(MEMBER_TIMEOUT)
        (alone,) = store.sync_members("b", [BucketRequest("mails", 10.0)])
        assert (alone.part, alone.members) == (pytest.approx(0.9), 1)


def test_a_policy_takes_it_as_a_gate(fleet_sync):
    """Refused names the fleet's rate."""
    _, (bucket,) = members(fleet_sync, 1, rate=0.001, burst=1)
    policy = abate.Policy(on=ConnectionError, gate=bucket)
    policy.call(lambda: None)
    with pytest.raises(abate.Refused, match="in all processes together"):
        policy.call(lambda: None)
