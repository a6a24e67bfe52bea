"""The adapter for the peer benchmarks' harness: ``call_overhead.py --adapter benchmarks/abate_adapter.py``."""

from __future__ import annotations

from harness import adapter

import abate

adapter("import", "abate")(lambda: "abate")


def decorated(budget):
    return abate.Policy(on=ValueError, max_attempts=3, backoff=[0.0], budget=budget)


@adapter("retry.sync", "abate")
def _(fn):
    return decorated(abate.Budget.unlimited())(fn)


@adapter("retry.sync", "abate+budget")
def _(fn):
    return decorated(abate.Budget(reserve=1e6))(fn)


@adapter("retry.async", "abate")
def _(fn):
    return decorated(abate.Budget.unlimited())(fn)


@adapter("retry.async", "abate+budget")
def _(fn):
    return decorated(abate.Budget(reserve=1e6))(fn)


@adapter("budget", "abate")
class Budget:
    def __init__(self, ttl, min_rps, pct, clock):
        budget = abate.Budget(ratio=pct, reserve=min_rps, window=ttl, clock=clock)
        self.deposit, self.balance, self.withdraw = budget.deposit, budget.balance, budget.try_withdraw


@adapter("limiter", "abate", per_key=True)
def _(limit, period):
    acquire = abate.TokenBucket(rate=limit / period, burst=limit).try_acquire
    return lambda key: acquire()


@adapter("limiter.async", "abate", per_key=True)
def _(limit, period):
    acquire = abate.TokenBucket(rate=limit / period, burst=limit).try_acquire

    async def take(key):
        return acquire()

    return take
