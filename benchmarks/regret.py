"""Random storms in virtual time: what naive retries and a shelter lose, and how far both are from the oracle.

    python benchmarks/regret.py [--storms 400] [--first 0]     # the figures of RESULTS.md (half a minute)
    python benchmarks/regret.py --failing                      # every storm in which the shelter breaks a rule

The storms are those of the test (tests/sim/random_worlds.py): outages of all kinds, 1 to 50 processes, callers with and
without time. Regret is what a policy loses beyond what the oracle loses, which knows the future.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.sim.random_worlds import PARTIAL, TOTAL, Storm

SHOWN = (0.5, 0.75, 0.9, 0.95, 1.0)


def row(name: str, values: Sequence[float]) -> str:
    """The mean and the percentiles, in points."""
    ordered = sorted(values)
    cells = [sum(ordered) / len(ordered), *(ordered[min(len(ordered) - 1, int(len(ordered) * at))] for at in SHOWN)]
    return f"| {name} | {len(ordered)} | " + " | ".join(f"{100 * cell:.1f}" for cell in cells) + " |"


def main(storms: Sequence[Storm], failing: bool) -> None:
    for storm in storms:
        if failing and (broken := storm.broken()):
            print(f"{storm}\n    {'; '.join(broken)}", flush=True)
    if failing:
        return
    heads = ["mean", *(f"{at:.0%}" if at < 1.0 else "worst" for at in SHOWN)]
    print(f"| regret, in points | storms | {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) + 1)}")
    for name in ("naive", "shelter"):
        print(row(name, [storm.lost(name) - storm.lost("oracle") for storm in storms]))
    for kind in (*TOTAL, *PARTIAL):
        some = [storm for storm in storms if storm.outages[0][0] == kind]
        print(row(f"shelter, {kind} first", [storm.lost("shelter") - storm.lost("oracle") for storm in some]))
    above = [storm.lost("shelter") - storm.lost("naive") for storm in storms]
    loads = [(sent, allowed) for storm in storms for _, sent, allowed in storm.loads()]
    count = len(storms)
    print(f"\nlost no more than naive retries: {sum(each <= 0.0 for each in above) / count:.1%} of {count} storms")
    print(f"at most {100 * max(above):.1f} points more, over 5 points in {sum(each > 0.05 for each in above)}")
    print(f"more load than allowed: {sum(sent > allowed for sent, allowed in loads)} of {len(loads)} outages")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--storms", type=int, default=400)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--failing", action="store_true")
    options = parser.parse_args()
    main([Storm(options.first + number) for number in range(options.storms)], options.failing)
