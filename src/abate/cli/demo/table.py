"""The figures of both runs, side by side."""

from __future__ import annotations

from abate.cli.demo.measured_run import DemoRun
from abate.cli.demo.settings import DemoSettings
from abate.cli.terminal import table

ROWS = (
    "attempts in all",
    "attempts during the outage",
    "peak per 100 ms after the outage",
    "seconds to recover",
    "work lost",
)
HEADINGS = ("naive backoff", "abate", "ratio")


def headline(settings: DemoSettings) -> str:
    """Return the settings in one line."""
    return (
        f"{settings.controllers} controllers in {settings.processes} processes, "
        f"an API that answers 503 for {settings.outage:g} s"
    )


def comparison(naive: DemoRun, abated: DemoRun) -> str:
    """Return the table for a terminal."""
    return table(["", *HEADINGS], rows(naive, abated), figures_from=1)


def rows(naive: DemoRun, abated: DemoRun) -> list[tuple[str, str, str, str]]:
    """Return each row: its label, both figures, and the ratio of abate's to the naive one."""
    before, after = figures(naive), figures(abated)
    return [
        (label, _cell(label, before[label], naive), _cell(label, after[label], abated), _ratio(before, after, label))
        for label in ROWS
    ]


def figures(run: DemoRun) -> dict[str, float | None]:
    """Return the figures of one run by the labels of `ROWS`; None for a recovery that did not happen."""
    values = (run.attempts, run.during, run.peak, run.recovered, run.lost)
    return dict(zip(ROWS, values, strict=True))


def _cell(label: str, figure: float | None, run: DemoRun) -> str:
    if figure is None:
        return f"> {run.settings.limit:g}"
    if label == "seconds to recover":
        return f"{figure:.1f}"
    return f"{figure:g} of {run.wanted}" if label == "work lost" else f"{figure:g}"


def _ratio(before: dict[str, float | None], after: dict[str, float | None], label: str) -> str:
    base, figure = before[label], after[label]
    return "-" if not base or figure is None else f"{figure / base:.0%}"
