"""Which rules of the shelter are needed: storms with one rule less each time.

    python benchmarks/ablation.py [--rounds 5]       # the table of RESULTS.md (some five minutes)

For each rule: what gets worse without it, by more than what differs by chance. The storms are those of
tests/sim/storms.py, in virtual time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from math import inf
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.sim.storms import STORMS, Storm, run

RULES: dict[str, dict[str, float]] = {
    "(all rules)": {},
    "late calls of a long outage go by their deadlines": {"limiter.LONG_OUTAGE": inf},
    "only calls that can be answered soon count as fresh": {"shelter_queue.SOON": inf},
    "nearly twice the answer time must be left before a deadline": {"latency_model.ANSWER_TIME_FACTOR": 0.0},
    "attempts are paced": {"limiter.PACING_RATIO": 0.0},
    "more may queue while many calls wait": {"limiter.QUEUED_EXTRA": 0.0},
    "the limit shrinks at once if too many queue": {"limiter.QUEUED_MAX": inf},
    "the limit grows quickly until attempts queue": {"limiter.FAST_STEP": 0.02},
    "the limit grows step by step afterwards": {"limiter.SLOW_STEP": 0.0},
    "the limit shrinks after failures": {"limiter.SHRINK": 1.0},
    "probing ends with a few in flight, not one": {"limiter.RECOVERY_LIMIT": 1.0},
    "probing needs most of the recent attempts to fail": {"limiter.OUTAGE_FAILURE_RATIO": 0.0},
    "probing needs five failures in a row": {"limiter.PROBING_STREAK": 1},
    "calm needs a quiet second": {"limiter.CALM_AFTER": 0.0},
    "a busy process probes more often": {"prober.PROBE_RATIO": 1e-9},
    "probes become rarer the longer the outage lasts": {"prober.OUTAGE_SHARE": 0.0},
    "later pauses vary little": {"prober.PAUSE_LEAST": 0.0},
    "the load experiment": {"load_experiment.EXPERIMENT_AFTER": inf},
    "some slowdown is tolerated": {"latency_model.TOLERATED_SLOWDOWN": 1.0},
    "silence is noticed before attempts time out": {"latency_model.SILENCE_FACTOR": inf},
}
NOISE = {
    "lost": 0.012,
    "not within a second": 0.025,
    "load": 0.02,
    "peak": 0.06,
    "refused by the server": 0.012,
    "answered too late": 0.012,
    "arrivals": 0.1,
    "last": 0.25,
}
"""What may differ by chance, in the unit of each figure: shares, multiples, seconds."""


def figures(storm: Storm) -> dict[str, float]:
    """What a storm is judged by; less is better."""
    calls, requests = storm.calls, len(storm.requests)
    found = {
        "lost": storm.lost(calls),
        "refused by the server": storm.counted("shed") / requests,
        "answered too late": storm.counted("dead") / requests,
        "arrivals": requests / len(calls),
    }
    if storm.plan.rate:
        found["not within a second"] = 1.0 - storm.within(calls)
        if storm.plan.server.outages:
            found |= {"load": storm.load(), "peak": storm.peak_after()}
    else:
        found["last"] = max(call.ended or inf for call in calls)
    return found


@contextmanager
def without(settings: dict[str, float]) -> Iterator[None]:
    """Set constants of `abate.admit`, wherever they are imported, for a block."""
    undo = []
    for path, value in settings.items():
        module, name = path.split(".")
        import_module(f"abate.admit.{module}")
        for known in [module for key, module in sys.modules.items() if key.startswith("abate.admit.")]:
            if hasattr(known, name):
                undo.append((known, name, getattr(known, name)))
                setattr(known, name, value)
    try:
        yield
    finally:
        for known, name, value in undo:
            setattr(known, name, value)


def measured(rounds: int) -> dict[str, dict[str, float]]:
    """The mean figures of each storm."""
    found = {}
    for name, plan in STORMS.items():
        rows = [figures(run(plan, seed)) for seed in range(rounds)]
        found[name] = {key: mean(row[key] for row in rows) for key in rows[0]}
    return found


def main(rounds: int) -> None:
    base = {}
    print("| without the rule | what gets worse |\n|---|---|")
    for rule, settings in RULES.items():
        with without(settings):
            found = measured(rounds)
        base = base or found
        worse = sorted(
            (
                ((figure - base[name][key]) / NOISE[key], f"{name}: {key} {base[name][key]:.2f} → {figure:.2f}")
                for name, row in found.items()
                for key, figure in row.items()
                if figure - base[name][key] > NOISE[key]
            ),
            reverse=True,
        )
        print(f"| {rule} | {'; '.join(text for _, text in worse[:4]) or 'nothing'} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    main(parser.parse_args().rounds)
