"""The names of keys in Redis: ``prefix:{what:name}:part``. What is in braces, the hash tag, keeps these parts together.

In a cluster each script may touch the keys of one tag only, so the counter of tokens is each queue's own there; it is
never deleted, and grows with the clock besides (see receive.lua), so that tokens of one queue only grow, and those of
different queues nearly do. Elsewhere there is one for the whole store.
"""

from __future__ import annotations

QUEUE_PARTS = ("item", "line", "lane", "leased", "dead", "meta", "bell")


class Names:
    """The keys of one store.

    >>> Names("abate", cluster=False).bell("orders{1}")
    'abate:{queue:orders%7B1%7D}:bell'
    """

    def __init__(self, prefix: str, cluster: bool) -> None:
        self._prefix = prefix
        self._cluster = cluster
        self.queues = f"{prefix}:queues"
        """The names of the queues."""

    def of_queue(self, name: str) -> tuple[str, ...]:
        """The keys that the scripts of a queue are given."""
        base = self._base("queue", name)
        parts = tuple(f"{base}:{part}" for part in QUEUE_PARTS)
        return (*parts, f"{base}:token") if self._cluster else (*parts, f"{self._prefix}:token", self.queues)

    def bell(self, name: str) -> str:
        """What those who wait for a queue block on."""
        return f"{self._base('queue', name)}:bell"

    def of_budget(self, name: str) -> tuple[str, ...]:
        """The slots of a budget, and those who share it."""
        base = self._base("budget", name)
        return f"{base}:slots", f"{base}:members"

    def of_bucket(self, name: str) -> tuple[str, ...]:
        """Those who share a bucket."""
        return (f"{self._base('bucket', name)}:members",)

    def of_shelter(self, name: str) -> tuple[str, ...]:
        """Those who share a shelter, who of them has seen what, and what is known."""
        base = self._base("shelter", name)
        return f"{base}:members", f"{base}:good", f"{base}:bad", f"{base}:weather"

    def _base(self, what: str, name: str) -> str:
        for character in "%{}":  # a brace would end the hash tag
            name = name.replace(character, f"%{ord(character):02X}")
        return f"{self._prefix}:{{{what}:{name}}}"
