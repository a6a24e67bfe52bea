"""One policy for many hosts, tenants or endpoints: what is known of one key is not taken for what is true of another.

A family of policies (those made from one another by `replace`, `also` and `keyed`, with the same budget, gate and
shelter) has one budget, gate and shelter for each key.

* At most `most` keys are kept, and beside them one for `SPARE` of these that are new, or a single one. One that was not
  used for `IDLE` seconds goes; where there are too many, those go that were used in the fewest seconds, and of these
  the ones that were not used for the longest time. So a flood of new keys pushes out other new keys: to push out one
  that has been in use for n seconds, as many keys as are kept have to be in use for n seconds each. A key that comes
  back begins anew, with a shelter that closes at the first failure.
* What a call holds stays: a key that was pushed out while calls of it wait or are in flight, or while somebody holds
  its policy, is found again, and nothing of it is lost. So memory is bounded by `most` and by the program's calls.
* There is no lock: every change is one atomic operation of a dict, as the collector, a signal handler or another thread
  may ask for a key at any moment. Of two threads that ask for a new key at once, both get the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import ref

from abate.admit.budget import Budget
from abate.admit.gate import Gate
from abate.admit.shelter import Shelter
from abate.clock import current

if TYPE_CHECKING:
    from abate.call.policy import Policy

MOST = 1000
"""Keys that are kept, unless the policy says otherwise."""
IDLE = 600.0
"""Seconds without use after which a key is forgotten."""
SPARE = 8
"""One new key is kept beside so many, and when there are more, all of these go at once: not every new one has to look
at all, and none that is in use has to make room for it."""
TENURE = 1.0
"""Seconds; uses within one count as one."""
MOST_COPIES = 16
"""Policies of one family for which a key keeps its copy; of more, the oldest copy is made anew when it is needed."""

P = TypeVar("P")
Path = tuple[Hashable, ...]


class Apart:
    """What a key has for itself. Policies of the key hold it, and with it they and the key are found again."""

    __slots__ = ("__weakref__", "budget", "gate", "made", "shelter")

    def __init__(self, budget: Budget, gate: Gate | None, shelter: Shelter | None) -> None:
        self.budget = budget.apart()
        self.gate = None if gate is None else gate.apart()
        self.shelter = None if shelter is None else shelter.apart()
        self.made: dict[int, ref[Policy]] = {}


class Entry(Generic[P]):
    """A key that is kept: what it has for itself, its policies by the number of those they were made from, and how it
    is used.
    """

    __slots__ = ("apart", "copies", "seconds", "used")

    def __init__(self, apart: Apart, now: float) -> None:
        self.apart = apart
        self.copies: dict[int, P] = {}
        self.used = now
        self.seconds = 1

    def touch(self, now: float) -> None:
        """Note that the key is used."""
        if abs(now - self.used) >= TENURE:
            self.seconds += 1
            self.used = now


class Keys:
    """The keys of one family of policies.

    >>> import abate
    >>> orders = abate.Policy(on=ConnectionError, keys=2)
    >>> orders.keyed("a") is orders.keyed("a"), orders.keyed("a").budget is orders.keyed("b").budget
    (True, False)
    """

    __slots__ = ("_budget", "_entries", "_gate", "_held", "_shelter", "_sweep", "most")

    def __init__(self, most: int, budget: Budget, gate: Gate | None, shelter: Shelter | None) -> None:
        self.most = most
        self._budget = budget
        self._gate = gate
        self._shelter = shelter
        self._entries: dict[Path, Entry[Policy]] = {}
        self._held: dict[Path, ref[Apart]] = {}
        """Keys that were pushed out, and that something else still holds."""
        self._sweep = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def shelters(self) -> list[Shelter]:
        """The shelters of the keys that are kept."""
        entries = self._entries.copy()
        return [entry.apart.shelter for entry in entries.values() if entry.apart.shelter is not None]

    def policy(self, path: Path, number: int, make: Callable[[Apart, Path], Policy]) -> Policy:
        """Return the policy of a key for the policy of that number; where there is none, make it."""
        now = current().now()
        entry = self._entries.get(path) or self._enter(path, now)
        entry.touch(now)
        if abs(now - self._sweep) >= IDLE / 4:
            self._sweep = now
            self._drop(now)
        return entry.copies.get(number) or self._copy(entry, path, number, make)

    def _copy(self, entry: Entry[Policy], path: Path, number: int, make: Callable[[Apart, Path], Policy]) -> Policy:
        made = entry.apart.made
        held = made.get(number)
        copy = entry.copies.setdefault(number, (None if held is None else held()) or make(entry.apart, path))
        made[number] = ref(copy)
        for kept in (entry.copies, made):
            if len(kept) > MOST_COPIES:
                kept.pop(next(iter(kept.copy())), None)
        return copy

    def _enter(self, path: Path, now: float) -> Entry[Policy]:
        held = self._held.get(path)
        apart = None if held is None else held()
        if apart is None:
            apart = Apart(self._budget, self._gate, self._shelter)
        entry = self._entries.setdefault(path, Entry(apart, now))
        self._held.pop(path, None)
        if len(self._entries) > self.most + max(1, self.most // SPARE):
            self._drop(now)
        return entry

    def _drop(self, now: float) -> None:
        """Forget what is idle; where there are too many, also those that were used the least, some at once."""
        known = self._entries.copy()
        idle = [path for path, entry in known.items() if abs(now - entry.used) >= IDLE]
        excess = len(known) - len(idle) - self.most
        if excess > 0:
            kept = [(entry.seconds, entry.used, path) for path, entry in known.items() if abs(now - entry.used) < IDLE]
            kept.sort(key=_least_used)
            idle += [path for _, _, path in kept[:excess]]
        for path in idle:
            # held before it is gone: whoever asks between the two finds the same
            self._held[path] = ref(known[path].apart, partial(_forget, self._held, path))
            self._entries.pop(path, None)


def _forget(held: dict[Path, ref[Apart]], path: Path, dead: ref[Apart]) -> None:
    """Nothing holds what this key had for itself any more."""
    if held.get(path) is dead:
        held.pop(path, None)


def _least_used(known: tuple[int, float, Path]) -> tuple[int, float]:
    return known[:2]
