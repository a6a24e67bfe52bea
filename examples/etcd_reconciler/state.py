"""The control plane's state: what is desired, what is actual, and how many changes were made.

    <zone>/<service>/desired   the version that the user wants
    <zone>/<service>/actual    the version that its reconciler has brought about
    <zone>/tally               how many changes were made in the zone, by all of its reconcilers

A change writes `actual` and `tally` in one transaction, or nothing. The reconcilers of a zone share its tally, so
they get into each other's way. etcd counts the writes of every key by itself, and so the books can be checked: a
tally that was written more often than it says has lost a change, and one that says more than the services of its
zone were written has counted one twice.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from examples.etcd_reconciler.client import Etcd, Item, NoAnswer

EVERYTHING = "zone-"
"""What all keys begin with."""
ZONE = 5
"""Services per zone."""
Services = Callable[[], AsyncIterator[str]]
"""Where the names of services that want attention come from."""
PAUSE = 0.2
"""Seconds before a watch that broke is opened again."""


def names(services: int) -> list[str]:
    """The names of that number of services."""
    return [f"{EVERYTHING}{number // ZONE:03}/service-{number:03}" for number in range(services)]


def desired(name: str) -> str:
    return f"{name}/desired"


def actual(name: str) -> str:
    return f"{name}/actual"


def tally(name: str) -> str:
    """The key of the tally in which a service is counted."""
    return f"{name.partition('/')[0]}/tally"


async def reconcile(etcd: Etcd, name: str) -> None:
    """Bring a service to the version that is wanted; `Conflict` and `NoAnswer` are worth another try, from here."""
    found, _ = await etcd.read(name.partition("/")[0] + "/")
    want, have, made = (found.get(key, Item()) for key in (desired(name), actual(name), tally(name)))
    if have.value != want.value:
        await etcd.swap({actual(name): (have, want.value), tally(name): (made, made.value + 1)})


async def changed(etcd: Etcd) -> AsyncIterator[str]:
    """The services whose desired version changes: all of them at first, then as etcd tells. It does not end."""
    found, revision = await etcd.read(EVERYTHING)
    for key in found:
        if key.endswith("/desired"):
            yield key.removesuffix("/desired")
    while True:
        with suppress(NoAnswer):
            async for key, written in etcd.watch(EVERYTHING, revision + 1):
                revision = written
                if key.endswith("/desired"):
                    yield key.removesuffix("/desired")
        await asyncio.sleep(PAUSE)


async def behind(etcd: Etcd, wanted: Mapping[str, int]) -> int:
    """How many services have not come to the version that is wanted."""
    found, _ = await etcd.read(EVERYTHING)
    return sum(found.get(actual(name), Item()).value < version for name, version in wanted.items())


@dataclass(frozen=True)
class Books:
    """What is wrong with the state; nothing is if all of it is zero."""

    behind: int
    """Services whose actual version is not the one that the user wants."""
    lost: int
    """Changes that a tally does not have, though it was written for them."""
    miscounted: int
    """Changes that were made and are in no tally, or are in one twice."""

    @property
    def wrong(self) -> bool:
        return bool(self.behind or self.lost or self.miscounted)


async def audit(etcd: Etcd, wanted: Mapping[str, int]) -> Books:
    """Check the books."""
    found, _ = await etcd.read(EVERYTHING)
    made: Counter[str] = Counter()
    for name in wanted:
        made[tally(name)] += found.get(actual(name), Item()).writes
    tallies = {key: found.get(key, Item()) for key in made}
    return Books(
        behind=sum(found.get(actual(name), Item()).value != version for name, version in wanted.items()),
        lost=sum(max(0, item.writes - item.value) for item in tallies.values()),
        miscounted=sum(abs(made[key] - item.value) for key, item in tallies.items()),
    )
