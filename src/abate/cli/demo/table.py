"""What came of it, in figures: the ways side by side."""

from __future__ import annotations

from abate.cli.demo.passage import Passage
from abate.cli.demo.scenario import Scenario

ROWS = (
    "attempts in all",
    "attempts during the outage",
    "peak per 100 ms after the outage",
    "seconds to recover",
    "work lost",
)
HEADINGS = ("naive backoff", "abate", "ratio")
LABEL, COLUMNS = 34, (15, 12, 8)


def headline(scenario: Scenario) -> str:
    """What both ways went through, in one line."""
    return (
        f"{scenario.controllers} controllers in {scenario.processes} processes, "
        f"an API that answers 503 for {scenario.outage:g} s"
    )


def rows(naive: Passage, abated: Passage) -> list[tuple[str, str, str, str]]:
    """Each row's label, both figures, and what abate's is of the naive one."""
    before, after = figures(naive), figures(abated)
    return [
        (label, _shown(label, before[label], naive), _shown(label, after[label], abated), _ratio(before, after, label))
        for label in ROWS
    ]


def table(naive: Passage, abated: Passage) -> str:
    """The table for a terminal."""
    lines = [("", *HEADINGS), *rows(naive, abated)]
    return "\n".join(
        label.ljust(LABEL) + "".join(cell.rjust(width) for cell, width in zip(cells, COLUMNS, strict=True))
        for label, *cells in lines
    )


def figures(passage: Passage) -> dict[str, float | None]:
    """One way's figures by the labels of `ROWS`; None for what never came about."""
    values = (passage.attempts, passage.during, passage.peak, passage.recovered, passage.lost)
    return dict(zip(ROWS, values, strict=True))


def _shown(label: str, figure: float | None, passage: Passage) -> str:
    if figure is None:
        return f"> {passage.scenario.limit:g}"
    if label == "seconds to recover":
        return f"{figure:.1f}"
    return f"{figure:g} of {passage.wanted}" if label == "work lost" else f"{figure:g}"


def _ratio(before: dict[str, float | None], after: dict[str, float | None], label: str) -> str:
    base, figure = before[label], after[label]
    return "-" if not base or figure is None else f"{figure / base:.0%}"
