"""The names of keys in Redis: ``prefix:{what:name}:part``.

The part in braces is the hash tag: a cluster keeps all keys of one tag on one node.

In a cluster a script may use the keys of one tag only, so each queue has its own counter of tokens. It is never
deleted, and it follows the clock (see receive.lua), so the tokens of one queue always grow, and those of different
queues nearly always. Without a cluster there is one counter for the whole store.
"""

from __future__ import annotations

QUEUE_PARTS = ("item", "line", "lane", "leased", "dead", "meta", "bell")


class KeyNames:
    """The keys of one store.

    >>> KeyNames("abate", cluster=False).wakeup_list("orders{1}")
    'abate:{queue:orders%7B1%7D}:bell'
    """

    def __init__(self, prefix: str, cluster: bool) -> None:
        self._prefix = prefix
        self._cluster = cluster
        self.queues = f"{prefix}:queues"
        """The key of the set of queue names."""

    def queue_keys(self, name: str) -> tuple[str, ...]:
        """Return the keys of a queue, in the order that its scripts expect."""
        base = self._base("queue", name)
        parts = tuple(f"{base}:{part}" for part in QUEUE_PARTS)
        return (*parts, f"{base}:token") if self._cluster else (*parts, f"{self._prefix}:token", self.queues)

    def wakeup_list(self, name: str) -> str:
        """Return the key of the list on which waiting clients block."""
        return f"{self._base('queue', name)}:bell"

    def budget_keys(self, name: str) -> tuple[str, ...]:
        """Return the keys of a budget's slots and members."""
        base = self._base("budget", name)
        return f"{base}:slots", f"{base}:members"

    def bucket_keys(self, name: str) -> tuple[str, ...]:
        """Return the key of a bucket's members."""
        return (f"{self._base('bucket', name)}:members",)

    def shelter_keys(self, name: str) -> tuple[str, ...]:
        """Return the keys of a shelter's members, of their good and bad reports, and of the outage state."""
        base = self._base("shelter", name)
        return f"{base}:members", f"{base}:good", f"{base}:bad", f"{base}:weather"

    def _base(self, what: str, name: str) -> str:
        for character in "%{}":  # a brace would end the hash tag
            name = name.replace(character, f"%{ord(character):02X}")
        return f"{self._prefix}:{{{what}:{name}}}"
