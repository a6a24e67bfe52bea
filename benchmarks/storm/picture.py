"""The picture in docs/shelter.md: arrivals and successes in scenario B. `python picture.py ROWS PICTURE`.

The rows are what `run.py --scenario B --out ROWS` has written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from measure import STEP
from scenarios import SCENARIOS

SHOWN = {
    "naive": "Exponential backoff, six attempts",
    "abate, no shelter": "abate without a shelter: jitter and a budget",
    "abate, shelter": "abate with a shelter",
}


def main(rows: Path, picture: Path) -> None:
    scenario = SCENARIOS["B"]
    start, end = scenario.window
    runs: dict[str, Any] = {}
    for row in map(json.loads, rows.read_text().splitlines()):
        if row["scenario"] == "B" and row.get("valid"):
            runs.setdefault(row["candidate"], row)
    figure, axes = plt.subplots(len(SHOWN), 1, sharex=True, sharey=True, figsize=(9, 7.5))
    for axis, (name, title) in zip(axes, SHOWN.items(), strict=True):
        run = runs[name]
        at = [STEP * i for i in range(len(run["arrived"]))]
        for key, label, colour in (
            ("arrived", "arrive at the server, per second", "tab:red"),
            ("succeeded", "succeed, per second", "tab:green"),
        ):
            axis.step(at, [count / STEP for count in run[key]], where="post", label=label, color=colour, linewidth=1.3)
        axis.axvspan(start, end, color="0.88", zorder=0)
        axis.axvspan(end, scenario.server.slow[0][1], color="0.95", zorder=0)
        axis.axhline(scenario.server.capacity, color="0.4", linestyle=":", linewidth=0.9)
        lost = run["figures"]["lost of its requests %"]
        axis.set_title(f"{title} – {lost:.0f} % of the requests of the outage are lost", fontsize=10, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(fontsize=9, loc="upper right", frameon=False)
    axes[-1].set_xlabel(
        "seconds (dark: the server answers 503; light: two thirds of its capacity; dotted: its capacity)"
    )
    axes[-1].set_xlim(0, scenario.seconds)
    axes[-1].set_ylim(0)
    figure.tight_layout()
    figure.savefig(picture, dpi=90)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
