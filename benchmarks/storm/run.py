"""The storm: what candidates do to a server in trouble, and to the requests that they were asked to make.

    python benchmarks/storm/run.py [--scenario A,B] [--only "naive; abate, shelter"] [--rounds 3] [--out FILE]
    python benchmarks/storm/run.py --tables FILE

Real sockets on 127.0.0.1, real time, a process for the server and one for the clients, fresh for each run. Prints
markdown, medians of the rounds. A round takes some 18 minutes; with --short, which leaves out candidates that behave
like another, some 12. What has not begun after --minutes is left out, and said.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from scenarios import SCENARIOS, candidates

from clients import NOTES, PARTS

PLAY = Path(__file__).with_name("play.py")
TOO_LATE = 0.1
"""Seconds of a loop's lag beyond which a run says more about the machine than about the candidate: it is repeated."""
LONGEST = 110.0
TRIES = 2

Job = tuple[int, str, str]
Rows = list[dict[str, Any]]


async def played(job: Job) -> dict[str, Any]:
    seed, scenario, name = job
    row = {"scenario": scenario, "candidate": name, "round": seed}
    for left in reversed(range(TRIES)):
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(PLAY), scenario, name, str(seed), stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(LONGEST):
                text, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            continue
        if process.returncode == 0:
            row |= json.loads(text)
            if row["lag"] < TOO_LATE or not left:
                break
    return row


async def all_played(jobs: list[Job], at_once: int, until: float, out: TextIO | None) -> Rows:
    slots, rows = asyncio.Semaphore(at_once), []

    async def one(job: Job) -> None:
        async with slots:
            if time.monotonic() > until:
                return
            row = await played(job)
            rows.append(row)
            if out is not None:
                print(json.dumps(row), file=out, flush=True)
            state = f"lag {1000 * row['lag']:.0f} ms" if row.get("valid") else "INVALID"
            print(
                f"{len(rows)}/{len(jobs)} {row['scenario']}: {row['candidate']}, {state}", file=sys.stderr, flush=True
            )

    await asyncio.gather(*(one(job) for job in jobs))
    if len(rows) < len(jobs):
        print(f"The time is over: {len(jobs) - len(rows)} runs were left out.", file=sys.stderr)
    return rows


def median(values: Iterable[float | None]) -> float | None:
    """Never is worse than any number."""
    found = statistics.median_low(float("inf") if value is None else value for value in values)
    return None if found == float("inf") else found


def shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def table(rows: Rows, names: Iterable[str]) -> None:
    columns: list[str] = []
    for name in names:
        runs = [row["figures"] for row in rows if row["candidate"] == name and row.get("valid")]
        if not runs:
            continue
        if not columns:
            columns = list(runs[0])
            print(f"| candidate | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
        cells = (shown(median(run[column] for run in runs)) for column in columns)
        print(f"| {name} | {' | '.join(cells)} |")


TOLD_BY = (
    ("A", "arrivals"),
    ("A", "retries per 50 ms, peak"),
    ("B", "load in it"),
    ("B", "lost of its requests %"),
    ("B", "shed"),
    ("C", "back s"),
    ("C", "lost of all %"),
    ("D", "arrivals of the first call"),
    ("E", "arrivals"),
    ("E", "too early %"),
    ("E", "per 50 ms, peak after"),
)
"""The figures that tell what a part of abate is good for."""


def parts_table(rows: Rows) -> None:
    """abate with one part switched off at a time."""
    print(f"\n### Parts switched off\n\n| | {' | '.join(f'{key}: {column}' for key, column in TOLD_BY)} |")
    print(f"|---|{'---:|' * len(TOLD_BY)}")
    for name in ("abate, shelter", *PARTS, "abate, no shelter"):
        cells = []
        for key, column in TOLD_BY:
            mine = (row for row in rows if row["scenario"] == key and row["candidate"] == name and row.get("valid"))
            values = [row["figures"][column] for row in mine]
            cells.append(shown(median(values)) if values else "")
        print(f"| {name} | {' | '.join(cells)} |")


def tables(rows: Rows) -> None:
    for key, scenario in SCENARIOS.items():
        mine = [row for row in rows if row["scenario"] == key]
        if not mine:
            continue
        rounds = len({row["round"] for row in mine})
        invalid = sum(not row.get("valid") for row in mine)
        lag = max((row["lag"] for row in mine if row.get("valid")), default=0.0)
        print(f"\n### {key}: {scenario.title}\n")
        print(f"{rounds} round(s), worst lag of a loop {1000 * lag:.0f} ms, invalid runs: {invalid}.\n")
        table(mine, [name for name in scenario.clients if name not in PARTS])
    if any(row["candidate"] in PARTS for row in rows):
        parts_table(rows)
    print("\n" + "\n".join(f"* {name}: {note}" for name, note in NOTES.items() if note))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--scenario", default=",".join(SCENARIOS), help="names, with commas between them")
    parser.add_argument("--only", help="candidates, with semicolons between them")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after this many minutes")
    parser.add_argument("--short", action="store_true", help="leave out candidates that behave like another")
    parser.add_argument("--out", type=Path, help="append the rows to this file, as JSON lines")
    parser.add_argument("--tables", type=Path, help="print the tables of such a file, and run nothing")
    given = parser.parse_args()
    if given.tables:
        tables([json.loads(line) for line in given.tables.read_text().splitlines()])
        return 0
    only = [name.strip() for name in given.only.split(";")] if given.only else None
    jobs: list[Job] = []
    for seed in range(given.rounds):
        for key in given.scenario.split(","):
            names = [name for name in candidates(key, given.short) if only is None or name in only]
            jobs += [(seed, key, name) for name in random.sample(names, len(names))]
    out = given.out.open("a") if given.out else None
    rows = asyncio.run(all_played(jobs, given.jobs, time.monotonic() + 60 * given.minutes, out))
    tables(rows)
    return 0 if all(row.get("valid") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
