"""Around the runs of ``abate sim``: what is refused beforehand, the progress bar, what is printed at the end."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from abate.cli.sim_tables import comparison_table, study_table, telling
from abate.cli.terminal import StatusLine, plain, seconds
from abate.clock import current
from abate.errors import AbateError, choice, whole
from abate.sim.engines import engine_of
from abate.sim.outlook import Outlook, outlook
from abate.sim.scenario import Scenario
from abate.sim.study import Result, Study, figure
from abate.sim.world import ENGINES

BAR = 24
"""Letters of the progress bar."""
PICTURES = (".png", ".svg")


# -- before anything is run


def check_numbers(options: argparse.Namespace) -> None:
    """Refuse counts that are none."""
    from abate.sim.parts import MOST_SEEDS

    for name in ("clients", "seeds", "jobs"):
        count = getattr(options, name)
        if count is not None:
            whole(f"--{name}", count, least=1)
    if options.seeds is not None and options.seeds > MOST_SEEDS:
        raise ValueError(f"--seeds must be at most {MOST_SEEDS:,}, not {options.seeds:,}")


def check_outputs(report: str | None, picture: str | None = None) -> None:
    """Refuse files that could not be written after all the work is done.

    >>> check_outputs("no/such/folder/out.html")
    Traceback (most recent call last):
    abate.errors.AbateError: --report no/such/folder/out.html can't be written: there is no folder no/such/folder
    """
    if picture is not None and Path(picture).suffix not in PICTURES:
        raise AbateError(f"--picture must end in {' or '.join(PICTURES)}, not {picture!r}")
    for option, name in (("--report", report), ("--picture", picture)):
        if name is None:
            continue
        refused, folder = f"{option} {name} can't be written", Path(name).parent
        if not folder.is_dir():
            raise AbateError(f"{refused}: there is no folder {folder}")
        if Path(name).is_dir():
            raise AbateError(f"{refused}: it is a folder")
        if not os.access(name if Path(name).exists() else folder, os.W_OK):
            raise AbateError(f"{refused}: permission denied")
        if importlib.util.find_spec("matplotlib") is None:
            raise AbateError(f"{option} needs matplotlib: pip install 'abate[sim]'")


def check_engines(scenarios: Sequence[Scenario], given: str | None) -> None:
    """Refuse an engine that is none, or that lacks what it needs."""
    if given is not None:
        choice("--engine", given, ENGINES)
    for name in dict.fromkeys(given or case.engine for scenario in scenarios for case in scenario.cases()):
        if name == "fleet" and importlib.util.find_spec("numpy") is None:
            raise AbateError("the fleet engine needs NumPy: pip install 'abate[sim]'")
        engine_of(name)


# -- while it runs


class Progress:
    """A bar on a terminal that shows how many runs are done, and none elsewhere.

    >>> with Progress("herd") as told:
    ...     told(1, 30)
    """

    def __init__(self, name: str, unit: str = "runs") -> None:
        self._name = name
        self._unit = unit
        self._status = StatusLine(sys.stderr) if sys.stderr.isatty() else None
        self._began = current().now()

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.draw(f"{self._name} …")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.clear()

    def __call__(self, done: int, total: int) -> None:
        if self._status is not None:
            self._status.draw(self.line(done, total))

    def line(self, done: int, total: int) -> str:
        """What the bar says."""
        full = BAR * done // total
        left = (current().now() - self._began) / done * (total - done)
        bar = f"{'█' * full}{'░' * (BAR - full)}"
        return f"{self._name} {bar} {done:,} of {total:,} {self._unit}, {seconds(left)} left"


# -- after it has run


def print_studies(studies: Sequence[Study], measures: Sequence[str] | None) -> None:
    """The table, and below it what a reader should know."""
    results = [result for study in studies for result in study.results]
    if not any(result.samples for result in results):
        return
    shown = list(measures or telling(results))
    for study in studies:
        print(_caption(study))
    print()
    print(study_table(studies[0], shown) if len(studies) == 1 else comparison_table(studies, shown))
    below = []
    for study in studies:
        below += outlook_lines(study.results, "" if len(studies) == 1 else f"{study.scenario.name}: ")
    below += list(dict.fromkeys(f"note: {note}" for result in results for note in result.notes))
    if all(study.complete for study in studies):
        below += _held([verdict.holds for result in results for verdict in result.verdicts()])
    if below:
        print()
        print("\n".join(map(plain, below)))


def _held(verdicts: Sequence[bool]) -> list[str]:
    """How many of the assertions hold, where there are any."""
    if len(verdicts) < 2:
        return ["what is asserted holds" if holds else "what is asserted does not hold" for holds in verdicts]
    held = sum(verdicts)
    return [f"all {held} assertions hold" if held == len(verdicts) else f"{held} of {len(verdicts)} assertions hold"]


def _caption(study: Study) -> str:
    counts = sorted({len(result.samples) for result in study.results})
    seeds = _counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {_counted(counts[-1], 'seed')}"
    engines = sorted({sample.engine for result in study.results for sample in result.samples}) or ["no"]
    cases = _counted(len(study.results), "case")
    return plain(f"{study.scenario.name}: {cases}, {seeds}, {' and '.join(engines)} engine; mean ± 95 % interval")


def _counted(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def outlook_lines(results: Sequence[Result], prefix: str = "") -> list[str]:
    """What each service is in for, each sentence once; where it is not that of all cases, it names the variants."""
    groups: dict[tuple[str, str], list[tuple[Result, Outlook]]] = {}
    for result in results:
        for found in outlook(result.case.world):
            if found.offered and math.isfinite(found.capacity):
                sentence = str(found).rpartition(" (")[0]
                groups.setdefault((sentence, figure(found.capacity)), []).append((result, found))
    lines = []
    for (sentence, capacity), members in groups.items():
        names = dict.fromkeys(result.case.variant or result.case.name for result, _ in members)
        whose = "" if len(members) == len(results) else f"{', '.join(names)}: "
        least, most = (figure(pick(found.offered for _, found in members)) for pick in (min, max))
        offered = least if least == most else f"{least} to {most}"
        lines.append(f"{prefix}{whose}{sentence} (capacity {capacity}, offered {offered})")
    return lines
