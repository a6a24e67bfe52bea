"""One policy for many hosts, tenants or endpoints, with a separate state for each key.

A family of policies (those made from one another by `replace`, `also` and `keyed`, with the same budget, gate and
shelter) has one budget, gate and shelter for each key.

* At most `most` keys are kept, plus one new key per `SPARE_DIVISOR` of them (at least one). A key that was not used for
  `IDLE_SECONDS` is evicted. If there are too many, those used in the fewest seconds are evicted first, and of these the
  least recently used. So a flood of new keys evicts other new keys: a key used in n different seconds is evicted only
  when `most` other keys have been used in at least n seconds each. A key that returns starts over, with a shelter that
  pauses at the first failure.
* State in use is not lost: a key that was evicted while its calls wait or are in flight, or while its policy is
  referenced, is found again. So memory is bounded by `most` and by the program's calls.
* There is no lock: every change is one atomic operation of a dict, because the collector, a signal handler or another
  thread may look up a key at any moment. Two threads that look up a new key at once get the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import ref

from abate.admit.budget import Budget
from abate.admit.gate import Gate
from abate.clock import current

if TYPE_CHECKING:
    from abate.admit.shelter import Shelter
    from abate.call.policy import Policy

MAX_KEYS = 1000
"""The default number of keys that are kept."""
IDLE_SECONDS = 600.0
"""Seconds without use after which a key is forgotten."""
SPARE_DIVISOR = 8
"""One new key is kept for this many others; when there are more, all excess keys are evicted at once. So not every new
key causes a search, and no key in use is evicted for it."""
TENURE = 1.0
"""Uses within this many seconds count as one."""
MAX_COPIES = 16
"""The most policies of one family whose copies a key keeps; older copies are created again when needed."""

P = TypeVar("P")
Path = tuple[Hashable, ...]


class KeyState:
    """The budget, gate and shelter of a key; its policies hold it, so that an evicted key in use is found again."""

    __slots__ = ("__weakref__", "budget", "gate", "made", "shelter")

    def __init__(self, budget: Budget, gate: Gate | None, shelter: Shelter | None) -> None:
        self.budget = budget.apart()
        self.gate = None if gate is None else gate.apart()
        self.shelter = None if shelter is None else shelter.apart()
        self.made: dict[int, ref[Policy]] = {}


class KeyEntry(Generic[P]):
    """A key that is kept: its state, its policies by the number of the original policy, and its use."""

    __slots__ = ("copies", "seconds", "state", "used")

    def __init__(self, state: KeyState, now: float) -> None:
        self.state = state
        self.copies: dict[int, P] = {}
        self.used = now
        self.seconds = 1

    def touch(self, now: float) -> None:
        """Record a use of the key."""
        if abs(now - self.used) >= TENURE:
            self.seconds += 1
            self.used = now


class KeyedPolicies:
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
        self._entries: dict[Path, KeyEntry[Policy]] = {}
        self._held: dict[Path, ref[KeyState]] = {}
        """Evicted keys whose state is still referenced."""
        self._sweep = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def shelters(self) -> list[Shelter]:
        """Return the shelters of the keys that are kept."""
        entries = self._entries.copy()
        return [entry.state.shelter for entry in entries.values() if entry.state.shelter is not None]

    def policy(self, path: Path, number: int, make: Callable[[KeyState, Path], Policy]) -> Policy:
        """Return the policy of a key for the policy of that number; create it if necessary."""
        now = current().now()
        entry = self._entries.get(path) or self._enter(path, now)
        entry.touch(now)
        if abs(now - self._sweep) >= IDLE_SECONDS / 4:
            self._sweep = now
            self._evict(now)
        return entry.copies.get(number) or self._copy(entry, path, number, make)

    def _copy(
        self, entry: KeyEntry[Policy], path: Path, number: int, make: Callable[[KeyState, Path], Policy]
    ) -> Policy:
        made = entry.state.made
        held = made.get(number)
        copy = entry.copies.setdefault(number, (None if held is None else held()) or make(entry.state, path))
        made[number] = ref(copy)
        for kept in (entry.copies, made):
            if len(kept) > MAX_COPIES:
                kept.pop(next(iter(kept.copy())), None)
        return copy

    def _enter(self, path: Path, now: float) -> KeyEntry[Policy]:
        held = self._held.get(path)
        state = None if held is None else held()
        if state is None:
            state = KeyState(self._budget, self._gate, self._shelter)
        entry = self._entries.setdefault(path, KeyEntry(state, now))
        self._held.pop(path, None)
        if len(self._entries) > self.most + max(1, self.most // SPARE_DIVISOR):
            self._evict(now)
        return entry

    def _evict(self, now: float) -> None:
        """Evict idle keys; if there are still too many, also those used least."""
        known = self._entries.copy()
        idle = [path for path, entry in known.items() if abs(now - entry.used) >= IDLE_SECONDS]
        excess = len(known) - len(idle) - self.most
        if excess > 0:
            kept = [
                (entry.seconds, entry.used, path)
                for path, entry in known.items()
                if abs(now - entry.used) < IDLE_SECONDS
            ]
            kept.sort(key=_least_used)
            idle += [path for _, _, path in kept[:excess]]
        for path in idle:
            # stored before it is removed: a lookup in between finds the same state
            self._held[path] = ref(known[path].state, partial(_forget, self._held, path))
            self._entries.pop(path, None)


def _forget(held: dict[Path, ref[KeyState]], path: Path, dead: ref[KeyState]) -> None:
    """Forget an evicted key: its state was collected."""
    if held.get(path) is dead:
        held.pop(path, None)


def _least_used(known: tuple[int, float, Path]) -> tuple[int, float]:
    return known[:2]
