"""A process that fails and retries, for `test_fleet_faults`: asks for fifty retries per line of stdin, and tells.

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
told = []
abate.observe.install(lambda event: told.append(event.degraded) if isinstance(event, events.StoreDegraded) else None)
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
    facts = {"spent": spent, "slowest": slowest, "told": told, "degraded": store.fleet_sync.degraded}
    print(json.dumps(facts), flush=True)
