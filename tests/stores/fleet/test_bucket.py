"""A token bucket that a fleet shares: each member has a part of the rate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate.stores.fleet import FleetBucket
from abate.stores.fleet.grant_rules import NEWCOMERS_RESERVE, bucket_share
from abate.stores.fleet.sync_requests import MEMBER_TIMEOUT, BucketRequest
from abate.testing import VirtualClock


def members(fleet_sync, count, rate=100.0, burst=20):
    """Return `count` members that share one bucket."""
    fleet_syncs = [fleet_sync() for _ in range(count)]
    return fleet_syncs, [FleetBucket(one, "mails", rate, burst) for one in fleet_syncs]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.integers(1, 5), st.randoms())
def test_the_parts_never_add_up_to_more_than_the_rate(wanted, rounds, rng):
    """The sum is at most 1 in any order of syncs and for any demand."""
    parts = [0.0] * len(wanted)
    for _ in range(rounds):
        order = list(range(len(wanted)))
        rng.shuffle(order)
        for index in order:
            others = [other for other in range(len(wanted)) if other != index]
            parts[index] = bucket_share(
                wanted[index], [wanted[other] for other in others], [parts[other] for other in others]
            )
            assert sum(parts) <= 1.0 + 1e-9


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=20))
def test_parts_converge_to_the_demand(wanted):
    """After 30 rounds all but the newcomers' reserve is granted, and a larger demand has no smaller part."""
    parts = [0.0] * len(wanted)
    for _ in range(30):
        for index in range(len(wanted)):
            others = [other for other in range(len(wanted)) if other != index]
            parts[index] = bucket_share(
                wanted[index], [wanted[other] for other in others], [parts[other] for other in others]
            )
    assert sum(parts) == pytest.approx(1.0 - NEWCOMERS_RESERVE)
    for (want, has), (less, little) in zip(
        sorted(zip(wanted, parts, strict=True))[1:], sorted(zip(wanted, parts, strict=True)), strict=False
    ):
        assert want < less or has >= little - 1e-6


def test_an_idle_member_keeps_a_small_part(fleet_sync):
    """The first calls of an idle member need not wait for a sync."""
    (busy, idle), (one, other) = members(fleet_sync, 2)
    for _ in range(5):
        for _ in range(1000):
            one.try_acquire()
        busy.sync_once()
        idle.sync_once()
    assert one._share > 0.8
    assert other._share > 0.01


def test_a_member_s_rate_is_its_part_of_the_fleet_s_rate(fleet_sync):
    """Two members with equal demand get half each, less the newcomers' reserve."""
    fleet_syncs, buckets = members(fleet_sync, 2)
    for _ in range(5):
        for one in fleet_syncs:
            one.sync_once()
    for bucket in buckets:
        bucket.try_acquire()
        assert bucket.rate == pytest.approx(45.0)


def test_without_the_store_members_have_equal_parts(fleet_sync, flaky):
    """Each falls back to the rate divided by the last known number of members."""
    fleet_syncs, buckets = members(fleet_sync, 4)
    for one in fleet_syncs:
        one.sync_once()
    flaky.error = ConnectionError("gone")
    for one, bucket in zip(fleet_syncs, buckets, strict=True):
        one.sync_once()
        bucket._valid_until = 0.0
        bucket.try_acquire()
        assert bucket.rate == 25.0


def test_a_newcomer_has_at_least_a_tenth_of_an_equal_part(fleet_sync):
    """It has that rate before the other members have released theirs."""
    fleet_syncs, buckets = members(fleet_sync, 4, rate=10.0, burst=1)
    newest = buckets[-1]
    newest.try_acquire()
    assert newest.rate >= 10.0 * 0.1 / 4
    for _ in range(10):
        for one in fleet_syncs:
            one.sync_once()
    newest.try_acquire()
    assert newest.rate >= 10.0 * 0.1 / 4


def test_a_member_can_acquire_the_whole_burst_by_waiting(fleet_sync):
    """Acquiring more than the member's part of the burst waits instead of raising."""
    fleet_syncs, buckets = members(fleet_sync, 4, rate=1e6, burst=20)
    for one in fleet_syncs:
        one.sync_once()
    buckets[0].acquire(20)


def test_in_virtual_time_it_works_as_a_local_bucket(fleet_sync):
    """The second acquire waits for 1 / rate of virtual time."""
    _, (bucket,) = members(fleet_sync, 1, rate=10.0, burst=1)
    with VirtualClock() as clock:
        bucket.acquire()
        bucket.acquire()
        assert clock.now() == pytest.approx(1 / bucket.rate)


def test_the_part_of_a_member_that_stops_syncing_is_released(manual_sync):
    """A killed process is removed after MEMBER_TIMEOUT."""
    clock = VirtualClock(start=1000.0)
    with abate.open_store("memory:", clock=clock) as store:
        (gone,) = store.sync_members("a", [BucketRequest("mails", 10.0)])
        (newcomer,) = store.sync_members("b", [BucketRequest("mails", 10.0)])
        assert gone.share == pytest.approx(0.9)
        assert newcomer.share == pytest.approx(0.1)
        clock.advance(MEMBER_TIMEOUT)
        (alone,) = store.sync_members("b", [BucketRequest("mails", 10.0)])
        assert (alone.share, alone.members) == (pytest.approx(0.9), 1)


def test_a_policy_accepts_it_as_a_gate(fleet_sync):
    """The refusal says that the rate is that of all processes together."""
    _, (bucket,) = members(fleet_sync, 1, rate=0.001, burst=1)
    policy = abate.Policy(on=ConnectionError, gate=bucket)
    policy.call(lambda: None)
    with pytest.raises(abate.Refused, match="in all processes together"):
        policy.call(lambda: None)
