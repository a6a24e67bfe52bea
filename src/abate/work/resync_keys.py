"""Remembers the keys for a resync without `keys=`: those that this process has added or handled."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress

from abate.logs import Log

log = Log("abate.work")

MAX_KNOWN = 1_000_000
"""Keys that are remembered; beyond that, the oldest is forgotten."""


class KnownKeys:
    """Keys in the order in which they were first seen. Any thread may add to them."""

    __slots__ = ("_keys", "_name", "_warned")

    def __init__(self, name: str) -> None:
        self._name = name
        self._keys: dict[Hashable, None] = {}
        self._warned = False

    def add(self, key: Hashable) -> None:
        """Remember a key."""
        keys = self._keys
        if key in keys:
            return
        keys[key] = None
        if len(keys) > MAX_KNOWN:
            if not self._warned:
                self._warned = True
                text = "%s: a resync without keys= remembers %d keys, and forgets the oldest for more: give keys="
                log.warning(text, self._name, MAX_KNOWN)
            with suppress(RuntimeError):  # another thread is adding a key, and will forget one
                keys.pop(next(iter(keys)), None)

    def discard(self, key: Hashable) -> None:
        """Forget a key."""
        self._keys.pop(key, None)

    def list(self) -> list[Hashable]:
        """Return all keys."""
        return list(self._keys)
