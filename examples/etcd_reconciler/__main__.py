"""``python -m examples.etcd_reconciler``: both ways through the same outage, side by side."""

import argparse
import asyncio
import random
import signal
import sys
from functools import partial

from examples.etcd_reconciler.abated import abated
from examples.etcd_reconciler.naive import naive
from examples.etcd_reconciler.storm import LIMIT, Passage, Storm, Way, pass_through


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.etcd_reconciler", description=__doc__)
    parser.add_argument("--reconcilers", type=int, default=500, help="services, each with its reconciler (500)")
    parser.add_argument("--stop-seconds", type=float, default=10.0, help="how long etcd is frozen (10)")
    parser.add_argument("--seed", type=int, default=0, help="of what the user wants, and of abate's jitter (0)")
    options = parser.parse_args()
    try:
        storm = Storm(options.reconcilers, options.stop_seconds, seed=options.seed)
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    ways: dict[str, Way] = {"naive": naive, "abate": partial(abated, rng=random.Random(storm.seed))}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no etcd is left behind, frozen at that
    passages = {}
    for name, way in ways.items():
        print(f"{name}: {storm.services} reconcilers, etcd frozen for {storm.stop:g} s ...", file=sys.stderr)
        passages[name] = asyncio.run(pass_through(way, storm))
    print(table(passages))
    return int(any(found.books.wrong for found in passages.values()))


def table(passages: dict[str, Passage]) -> str:
    """What was measured, one column for each way."""
    columns = [("", list(ROWS)), *((name, [str(row(one)) for row in ROWS.values()]) for name, one in passages.items())]
    lines = zip(*([head, *cells] for head, cells in columns), strict=True)
    return "\n".join(f"{first:<50}" + "".join(f"{cell:>9}" for cell in cells) for first, *cells in lines)


ROWS = {
    "requests while etcd was frozen": lambda one: one.during,
    "most requests in 100 ms after it ran again": lambda one: one.peak,
    "seconds until all services had caught up": lambda one: (
        f"over {LIMIT:g}" if one.caught_up is None else f"{one.caught_up:.1f}"
    ),
    "requests in all": lambda one: len(one.sent),
    "requests without an answer": lambda one: one.unanswered,
    "conflicts": lambda one: one.conflicts,
    "changes lost": lambda one: one.books.lost,
    "changes counted wrongly": lambda one: one.books.miscounted,
    "services not in step at the end": lambda one: one.books.behind,
}


if __name__ == "__main__":
    sys.exit(main())
