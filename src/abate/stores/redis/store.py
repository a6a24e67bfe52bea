"""A store in Redis: queues by name, and the limits that a fleet shares."""

from __future__ import annotations

from collections.abc import Sequence

from abate.clock import Clock, MachineClock
from abate.stores.budget import BudgetTerms
from abate.stores.encoding import DEFAULT_MAX_BODY, batches
from abate.stores.errors import StoreError
from abate.stores.fleet.sync_requests import SyncReply, SyncRequest
from abate.stores.queue_contract import Depth
from abate.stores.redis import scripts, sync_codec
from abate.stores.redis.connection import RedisConnection
from abate.stores.redis.key_names import KeyNames
from abate.stores.redis.queue import RedisQueue, decode_depth
from abate.stores.redis.scripts import BATCH
from abate.stores.store_contract import Store


class RedisStore(Store):
    """Queues and shared limits in a Redis server or cluster."""

    def __init__(self, server: RedisConnection, clock: Clock | None) -> None:
        super().__init__(server.address.name, clock)
        self.server = server
        self.names = KeyNames(server.address.prefix, server.address.cluster)
        self._registered: set[str] = set()

    def now(self) -> str:
        """Return the instant of a virtual clock for a script; empty if the server's own clock applies."""
        clock = self.clock
        return "" if isinstance(clock, MachineClock) else repr(float(clock.wall()))

    def queue(
        self, name: str, *, lease: float = 30.0, capacity: int | None = None, max_body: int = DEFAULT_MAX_BODY
    ) -> RedisQueue:
        return RedisQueue(self, name, lease, capacity, max_body)

    def register_queue(self, name: str) -> None:
        """In a cluster, add the name to the set of queues, once per process: the script can't access that key."""
        if self.server.address.cluster and name not in self._registered:
            self.server.command("SADD", self.names.queues, name)
            self._registered.add(name)

    def queues(self) -> dict[str, Depth]:
        # a name that is not UTF-8 was added by another program
        listed = self.server.command("SMEMBERS", self.names.queues)
        names = sorted(name for found in listed if (name := found.decode(errors="ignore")).encode() == found)
        depths: dict[str, Depth] = {}
        for batch in batches(names, BATCH):
            calls = [(scripts.DEPTH, self.names.queue_keys(name), (self.now(),)) for name in batch]
            replies = self.server.calls(calls, repeatable=True)
            depths.update(zip(batch, map(decode_depth, replies), strict=True))
        return depths

    def close(self) -> None:
        self.leave()
        self.server.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    # -- shared limits

    def balance(self, name: str, terms: BudgetTerms) -> float:
        keys, args = self.names.budget_keys(name)[:1], (self.now(), *sync_codec.encode_terms(terms))
        deposits, withdrawals = self.server.call(scripts.BALANCE, keys, args, repeatable=True)
        return terms.balance(int(deposits), int(withdrawals))

    def _exchange(self, name: str, terms: BudgetTerms, deposits: int, want: int, returned: int) -> int:
        counts = sync_codec.clamp_counts(deposits, want, returned)
        args = (self.now(), *sync_codec.encode_terms(terms), *counts)
        return int(self.server.call(scripts.EXCHANGE, self.names.budget_keys(name)[:1], args))

    def sync_members(self, member: str, requests: Sequence[SyncRequest]) -> list[SyncReply | StoreError]:
        calls = [sync_codec.encode_request(self.names, self.now(), member, request) for request in requests]
        replies = self.server.calls(calls, "sync", skip_wrong_type=True)
        return [
            reply if isinstance(reply, StoreError) else sync_codec.decode_reply(request, reply)
            for request, reply in zip(requests, replies, strict=True)
        ]
