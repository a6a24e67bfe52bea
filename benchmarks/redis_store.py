"""What a queue in Valkey does in a second, beside the bare round trips; and what an exchange of a fleet's offers costs.

make bench
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from abate.stores import Store, open_store
from abate.stores.budget import BudgetTerms
from abate.stores.fleet.sync_requests import BucketRequest, BudgetRequest, ShelterReport, SyncRequest
from benchmarks.stores import BODY, PROCESSES, drain, drain_together, fill
from tests.clients.valkey_server import Valkey

MESSAGES = 3_000
ROUNDS = 3
TURN = 250
"""Messages one at a time, between two looks at the bare round trips."""
BATCHES = (10, 100)
WAYS = {
    "in memory": (),
    "appendfsync everysec": ("--appendonly", "yes"),
    "always": ("--appendonly", "yes", "--appendfsync", "always"),
}
MEMBERS = 500
BAR_BATCHED, BAR_UNBATCHED = 3_000, 3.0


def unbatched(url: str) -> dict[str, float]:
    """One at a time, beside two bare round trips that write and delete as much, turn by turn on a busy machine."""
    bare, ours, ratios = [], [], []
    with open_store(url) as store, redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), protocol=2) as client:
        queue = store.queue("work")
        fill(queue, MESSAGES)
        for _ in range(MESSAGES // TURN):
            start = time.perf_counter()
            for n in range(TURN):
                client.execute_command("SET", f"orders/{n}", BODY)
                client.execute_command("DEL", f"orders/{n}")
            between = time.perf_counter()
            for _ in range(TURN):
                queue.done(queue.receive()[0])
            end = time.perf_counter()
            bare.append(TURN / (between - start))
            ours.append(TURN / (end - between))
            ratios.append((end - between) / (between - start))
    return {"a bare SET and DEL": max(bare), "done, one at a time": max(ours), "ratio": median(ratios)}


def measured(url: str) -> dict[str, float]:
    """One round: figures per second."""
    figures = unbatched(url)
    with open_store(url) as store:
        queue = store.queue("work")
        figures["adds"] = fill(queue, MESSAGES)
        for batch in BATCHES:
            figures[f"done, {batch} at a time"] = drain(queue, batch)
            fill(queue, MESSAGES)
        figures[f"done, {PROCESSES} processes, ten at a time"] = drain_together(url, 10)
    return figures


def best(url: str, measure: Callable[[str], dict[str, float]]) -> dict[str, float]:
    """The best of the rounds; of the ratio, the middle one."""
    rounds = [measure(url) for _ in range(ROUNDS)]
    found = {what: max(figures[what] for figures in rounds) for what in rounds[0]}
    return found | {"ratio": median(figures["ratio"] for figures in rounds)}


def requests(store: Store) -> list[tuple[str, float]]:
    """Return the server's milliseconds for one exchange when a number of members share one limit of each kind."""
    kinds: dict[str, SyncRequest] = {
        "budget": BudgetRequest("x", BudgetTerms(), 1, 0, 0, 1),
        "bucket": BucketRequest("x", 1.0),
        "shelter": ShelterReport("x", "calm", 1, 0, 0.0),
    }
    found = []
    for kind, request in kinds.items():
        times = []
        for _ in range(2):
            start = time.perf_counter()
            for member in range(MEMBERS):
                store.sync_members(f"member-{member}", [request])
            times.append((time.perf_counter() - start) / MEMBERS * 1000)
        found.append((kind, min(times)))
    return found


def main() -> int:
    tables = {}
    for way, settings in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            valkey = Valkey(folder).start(*settings)
            try:
                tables[way] = best(valkey.url, measured)
                if way == "in memory":
                    with open_store(valkey.url) as store:
                        exchanges = requests(store)
            finally:
                valkey.kill()
    print("\n| per second |", " | ".join(WAYS), "|\n|---|" + "---:|" * len(WAYS))
    for what in (what for what in tables["in memory"] if what != "ratio"):
        print(f"| {what} |", " | ".join(f"{tables[way][what]:,.0f}" for way in WAYS), "|")
    for way in WAYS:
        found = tables[way]
        cost = found["ratio"]
        batched = found[f"done, {BATCHES[-1]} at a time"]
        print(
            f"\n{way}: one at a time {cost:.1f} times the bare round trips (bar {BAR_UNBATCHED:g}: "
            f"{'kept' if cost <= BAR_UNBATCHED else 'missed'}), in batches {batched:,.0f} (bar {BAR_BATCHED:,}: "
            f"{'kept' if batched >= BAR_BATCHED else 'missed'})"
        )
    print(f"\n| an exchange, {MEMBERS} members | ms |\n|---|---:|")
    for kind, milliseconds in exchanges:
        print(f"| {kind} | {milliseconds:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
