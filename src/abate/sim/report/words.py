"""How things are named in a report: measures with their units, cases, numbers on axes."""

from __future__ import annotations

import math

from abate.sim.scenario import Case
from abate.sim.study import Estimate, Result
from abate.sim.world import Trigger, World

MOST_LETTERS = 80
"""Of a name; a longer one is cut."""
UNITS = {
    "goodput": "per second",
    "recovery": "s",
    "completed": "s",
    "peak_100ms": "per 100 ms",
    "peak_1s": "per second",
    "peak_after": "per 100 ms",
    "mean": "s",
    "p50": "s",
    "p99": "s",
    "p999": "s",
}
"""Of the measures that have one; the others are counts, shares and ratios."""
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
"""What stands along an axis, where that is not a measure with its unit or the key of a setting."""


def shown(text: str, most: int = MOST_LETTERS) -> str:
    """Text of somebody else in one line: nothing that can't be printed, and not too long.

    >>> shown("two\\nlines"), shown("x" * 100)[-3:]
    ('two lines', 'xx…')
    """
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def heading(measure: str) -> str:
    """A measure with its unit.

    >>> heading("recovery"), heading("amplification")
    ('recovery (s)', 'amplification')
    """
    unit = UNITS.get(measure)
    return shown(measure) if unit is None else f"{measure} ({unit})"


def axis(name: str) -> str:
    """What stands along the axis of a measure or a setting.

    >>> axis("clients.count"), axis("p99"), axis("services.api.error_rate")
    ('clients', 'p99 (s)', 'error rate of api')
    """
    if name in AXES:
        return AXES[name]
    table, _, rest = name.partition(".")
    if table == "services" and "." in rest:
        service, _, field = rest.partition(".")
        return shown(f"{field.replace('_', ' ')} of {service}")
    return heading(name)


def tick(value: float, _place: object = None) -> str:
    """A number on an axis.

    >>> tick(12000.0), tick(0.25), tick(1e6)
    ('12,000', '0.25', '1,000,000')
    """
    return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"


def named(case: Case, otherwise: str) -> str:
    """A case by its name; the only one of a scenario may have none.

    >>> from abate.sim.scenario import load_scenario
    >>> named(load_scenario("herd").cases()[0], "herd")
    'none'
    """
    return shown(case.name or otherwise)


def summary(result: Result) -> str:
    """The figures that stand beside a panel: attempts per call, how many calls succeed, when things are well again."""
    measures = result.measures
    amplification, success = measures["amplification"].mean, measures["success"].mean
    words = []
    if math.isfinite(amplification):
        words.append(f"{counted(float(f'{amplification:.3g}'), 'attempt')} per call")
    if math.isfinite(success):
        words.append(f"{percent(success)} succeed")
    if result.case.world.triggers and result.case.world.clients.offered:
        words.append(recovered(measures["recovery"]))
    return ", ".join(words)


def counted(number: float, word: str) -> str:
    """A number of things.

    >>> counted(1, "run"), counted(2000, "attempt"), counted(0.5, "attempt")
    ('1 run', '2,000 attempts', '0.5 attempts')
    """
    return f"{tick(number)} {word}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """A share, rounded down: it is not all as long as one is missing.

    >>> percent(0.9999), percent(1.0), percent(0.054)
    ('99.9 %', '100 %', '5.4 %')
    """
    return f"{math.floor(share * 1000 + 1e-9) / 10:g} %"


def recovered(seen: Estimate) -> str:
    """A recovery in words.

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
    """What goes wrong in a world, and when.

    >>> from abate.sim.scenario import load_scenario
    >>> troubles(load_scenario("herd").cases()[0].world)
    'error from 1 s to 1.05 s'
    """
    return ", ".join(map(_trouble, world.triggers))


def _trouble(trigger: Trigger) -> str:
    where = f" of {shown(trigger.service)}" if trigger.service else ""
    return f"{trigger.kind}{where} from {tick(trigger.at)} s to {tick(trigger.end)} s"
