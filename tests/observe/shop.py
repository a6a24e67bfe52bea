"""A program with metrics for a real Prometheus to scrape: it exercises everything that abate measures.

It prints its port, and runs until its standard input is closed.
"""

import sys
import threading
from contextlib import suppress

from prometheus_client import start_http_server

import abate
from abate import observe
from abate.observe.prometheus import PrometheusSink
from abate.testing import Script

observe.install(PrometheusSink())
store = abate.open_store("memory:")
orders = abate.Policy(name="orders", on=OSError, backoff=[0.0], shelter=abate.Shelter(name="shop"))
outer = abate.Policy(name="outer", on=OSError)
tiny = abate.Policy(name="tiny", on=OSError, backoff=[0.0], budget=abate.Budget(ratio=0.0, reserve=0.1, window=10.0))
guarded = abate.Policy(
    name="guarded", on=OSError, max_attempts=1, gate=abate.CircuitBreaker(min_calls=2, pause=0.05, name="payments")
)
bucket = abate.TokenBucket(rate=100.0, name="mail")


@abate.controller(name="reconcile", workers=2)
def reconcile(key):
    if key == "bad":
        raise abate.PermanentFailure("no such order")


def fails(*, times, then=None):
    return Script(*[ConnectionError("x" * 1000)] * times, then)


def work():
    """Run one round that touches every metric."""
    orders.call(fails(times=0))
    orders.call(fails(times=1))
    for policy, call in (
        (tiny, lambda: tiny.call(fails(times=3))),
        (outer, lambda: outer.call(tiny.call, fails(times=3))),
        (orders, lambda: orders.call(Script(ValueError("no")))),
    ):
        try:
            call()
        except (OSError, ValueError) as error:
            assert abate.report(error).policy == policy.name
    for _ in range(2):
        with suppress(OSError, abate.Refused):
            guarded.call(fails(times=1))
    for key in ("good", "good", "bad"):
        reconcile.add(key)
    reconcile.run(drain=True)
    for _ in range(2):
        bucket.acquire()


def keep_working(stopping):
    while not stopping.wait(0.1):
        work()


work()
server, thread = start_http_server(0, "127.0.0.1")
print(server.server_port, flush=True)
stopping = threading.Event()
worker = threading.Thread(target=keep_working, args=(stopping,))
worker.start()
sys.stdin.read()
stopping.set()
worker.join()
