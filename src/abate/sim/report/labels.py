"""Labels of a report: axes, cases, numbers, summaries."""

from __future__ import annotations

import math

from abate.sim.scenario import Case
from abate.sim.study import Estimate, Result
from abate.sim.study_tables import heading
from abate.sim.world import Trigger, World

MAX_LABEL_LENGTH = 80
"""Longer names are cut."""
AXES = {
    "amplification": "attempts per call",
    "attempts": "attempts",
    "completed": "time of the last result (s)",
    "recovery": "recovery (s)",
    "success": "share of calls that succeed",
    "clients.count": "clients",
    "clients.rate": "calls per second and client",
    "controllers.count": "controllers",
}
"""Axis labels that are not just a measure with its unit or the key of a setting."""


def one_line(text: str, most: int = MAX_LABEL_LENGTH) -> str:
    """Return text on one line, without unprintable characters, cut to a length.

    >>> one_line("two\\nlines"), one_line("x" * 100)[-3:]
    ('two lines', 'xx…')
    """
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def axis(name: str) -> str:
    """Return the axis label of a measure or a setting.

    >>> axis("clients.count"), axis("p99"), axis("services.api.error_rate")
    ('clients', 'p99 (s)', 'error rate of api')
    """
    if name in AXES:
        return AXES[name]
    table, _, rest = name.partition(".")
    if table == "services" and "." in rest:
        service, _, field = rest.partition(".")
        return one_line(f"{field.replace('_', ' ')} of {service}")
    return one_line(heading(name))


def format_tick(value: float, _place: object = None) -> str:
    """Format a number for an axis.

    >>> format_tick(12000.0), format_tick(0.25), format_tick(1e6)
    ('12,000', '0.25', '1,000,000')
    """
    return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"


def case_label(case: Case, otherwise: str) -> str:
    """Return the name of a case, or `otherwise` if it has none.

    >>> from abate.sim.scenario import load_scenario
    >>> case_label(load_scenario("herd").cases()[0], "herd")
    'none'
    """
    return one_line(case.name or otherwise)


def summary(result: Result) -> str:
    """Return the summary of a case: attempts per call, successful calls, recovery."""
    measures = result.measures
    amplification, success = measures["amplification"].mean, measures["success"].mean
    words = []
    if math.isfinite(amplification):
        words.append(f"{pluralize(float(f'{amplification:.3g}'), 'attempt')} per call")
    if math.isfinite(success):
        words.append(f"{percent(success)} succeed")
    if result.case.world.triggers and result.case.world.clients.offered:
        words.append(recovered(measures["recovery"]))
    return ", ".join(words)


def pluralize(number: float, word: str) -> str:
    """Return a number with its noun.

    >>> pluralize(1, "run"), pluralize(2000, "attempt"), pluralize(0.5, "attempt")
    ('1 run', '2,000 attempts', '0.5 attempts')
    """
    return f"{format_tick(number)} {word}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """Format a share, rounded down, so that 100 % means all.

    >>> percent(0.9999), percent(1.0), percent(0.054)
    ('99.9 %', '100 %', '5.4 %')
    """
    return f"{math.floor(share * 1000 + 1e-9) / 10:g} %"


def recovered(seen: Estimate) -> str:
    """Describe a recovery.

    >>> from abate.sim.study import estimate
    >>> recovered(estimate([2.0, 2.0])), recovered(estimate([math.inf])), recovered(estimate([0.0]))
    ('recovers after 2 s', 'never recovers', 'recovers at once')
    """
    if not seen.seeds or math.isnan(seen.mean):
        return "recovery unknown"
    if seen.never == seen.seeds:
        return "never recovers"
    if seen.never:
        return f"does not recover in {seen.never} of {seen.seeds} runs"
    return f"recovers after {seen.mean:.3g} s" if seen.mean else "recovers at once"


def troubles(world: World) -> str:
    """Describe the triggers of a world.

    >>> from abate.sim.scenario import load_scenario
    >>> troubles(load_scenario("herd").cases()[0].world)
    'error from 1 s to 1.05 s'
    """
    return ", ".join(map(_trouble, world.triggers))


def _trouble(trigger: Trigger) -> str:
    where = f" of {one_line(trigger.service)}" if trigger.service else ""
    return f"{trigger.kind}{where} from {format_tick(trigger.at)} s to {format_tick(trigger.end)} s"
