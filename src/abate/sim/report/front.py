"""The picture of a tuning: recovery against amplification of all that nothing else beats, and the limit."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from abate.sim.report.palette import ATTEMPTS, GOODPUT, MUTED, NEVER
from abate.sim.report.picture import Key, Panel, Picture
from abate.sim.report.words import tick
from abate.sim.tune import Candidate, Trial, Tuning

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def front_picture(found: Tuning) -> Picture:
    """The front of a tuning."""
    best = "nothing to recommend" if (trial := recommended(found)) is None else f"best: {described(trial.candidate)}"
    count = len(found.front)
    alt = f"The front of a tuning: {count} polic{'y' if count == 1 else 'ies'}, limit {found.limit:g}; {best}."
    keys = [Key("within the limit", GOODPUT, "o"), Key("beyond it", MUTED, "s")]
    keys += [Key("best", ATTEMPTS, "*")] if trial is not None else []
    keys += [Key("limit", MUTED, "dashed")]
    keys += (
        [Key("never recovers in some runs", NEVER, "X")] if any(trial.recovery.never for trial in found.front) else []
    )
    caption = (
        "Each sign is a policy that no other one beats in recovery, amplification and success at once; bars are the"
        " intervals of its means (95 %). Further left is cheaper, further down recovers sooner."
    )
    return Picture(
        "front",
        "Tuning: recovery against amplification",
        caption,
        (Panel("", "", alt, partial(_draw, found)),),
        tuple(keys),
    )


def recommended(found: Tuning) -> Trial | None:
    """The best one, if it ever recovers."""
    return found.best if found.recovers else None


def described(candidate: Candidate) -> str:
    """A candidate in one line.

    >>> described(Candidate(attempts=4, base=0.1, cap=5.0))
    '4 attempts, base 0.1 s, cap 5 s, jitter full, ratio 0.2, reserve 10'
    """
    return (
        f"{candidate.attempts} attempt{'' if candidate.attempts == 1 else 's'}, base {candidate.base:g} s,"
        f" cap {candidate.cap:g} s, jitter {candidate.jitter}, ratio {candidate.ratio:g}, reserve {candidate.reserve:g}"
    )


def _draw(found: Tuning, axes: Axes) -> None:
    axes.axvline(found.limit, color=MUTED.light, linestyle="--", linewidth=1.0, zorder=2)
    for trial in found.front:
        _draw_trial(trial, *((GOODPUT.light, "o") if trial.fits else (MUTED.light, "s")), axes)
    best = recommended(found)
    if best is not None:
        _draw_trial(best, ATTEMPTS.light, "*", axes)
    axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
    axes.margins(x=0.08)
    axes.set_xlabel("amplification (attempts per call)")
    axes.set_ylabel("recovery (s)")
    axes.xaxis.set_major_formatter(tick)
    axes.yaxis.set_major_formatter(tick)


def _draw_trial(trial: Trial, colour: str, marker: str, axes: Axes) -> None:
    cost, recovery = trial.amplification, trial.recovery
    if math.isfinite(recovery.mean):
        axes.errorbar(
            [cost.mean],
            [recovery.mean],
            xerr=[cost.within],
            yerr=[recovery.within],
            color=colour,
            marker=marker,
            markersize=12.0 if marker == "*" else 6.0,
            linewidth=1.0,
            zorder=4 if marker == "*" else 3,
            clip_on=False,
        )
    if recovery.never:
        edge = axes.get_xaxis_transform()
        (cross,) = axes.plot([cost.mean], [1.0], color=NEVER.light, marker="X", transform=edge, clip_on=False, zorder=5)
        cross.set_in_layout(False)
