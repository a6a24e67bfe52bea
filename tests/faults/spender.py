"""A fleet member for `test_fleet_faults`: per line of stdin, makes deposits, then attempts fifty withdrawals.

A line is the number of deposits; the reply on stdout is JSON.

    python spender.py URL RATIO RESERVE WINDOW
"""

import json
import sys
import time

import abate
from abate import events

url, ratio, reserve, window = sys.argv[1], *map(float, sys.argv[2:5])
store = abate.open_store(url, required=False)
budget = store.budget("fleet", ratio, reserve, window)
transitions = []


def record(event):
    if isinstance(event, events.StoreDegraded):
        transitions.append(event.degraded)


abate.observe.install(record)
print("ready", flush=True)
spent = 0
slowest = 0.0
for line in sys.stdin:
    for _ in range(int(line)):
        budget.deposit()
    for _ in range(50):
        began = time.perf_counter()
        spent += budget.try_withdraw()
        slowest = max(slowest, time.perf_counter() - began)
    state = {
        "spent": spent,
        "slowest": slowest,
        "transitions": transitions,
        "degraded": store.fleet_sync.degraded,
    }
    print(json.dumps(state), flush=True)
