"""Draws the picture in docs/shelter.md, from runs in virtual time: `python benchmarks/shelter_picture.py`."""

from __future__ import annotations

from pathlib import Path

from abate.sim import load_scenario, run_study
from abate.sim.report import write_picture

DOCS = Path(__file__).parents[1] / "docs"

if __name__ == "__main__":
    write_picture(run_study(load_scenario(DOCS / "shelter.toml")), DOCS / "images" / "shelter.png")
