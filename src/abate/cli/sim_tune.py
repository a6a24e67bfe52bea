"""``abate sim tune``: the policy with which a scenario recovers fastest, within a limit of amplification.

Attempts, backoff and budget are searched. All else, such as timeouts and a shelter, stays as the scenario has it.
A scenario with several cases is tuned in one of them: the first, or that of ``--variant``.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from abate.cli.sim import BROKEN, BROKEN_OFF, add_output, add_scenario, prepared

if TYPE_CHECKING:
    from abate.sim.scenario import Case, Scenario
    from abate.sim.study import Estimate, Study
    from abate.sim.tune import Candidate, Trial, Tuning

SPANS = {
    "attempts": "how many attempts",
    "base": "the first ceiling of the backoff, in seconds",
    "cap": "the last one, in seconds",
    "ratio": "retries per success",
    "reserve": "retries per second beside that",
}
LIMIT = 1.5
SEEDS = 10
MOST_SAMPLES = 10_000
BEST, OVER = "best", "over"
POINTS = {BEST: "●", OVER: "×", "": "○"}
IDLE = "where ratio and reserve are 0 no retry is admitted, so each call makes one attempt"
WIDTH, HEIGHT = 60, 12
"""Letters and lines of the plot."""


def parser() -> argparse.ArgumentParser:
    """The words of ``abate sim tune``."""
    found = argparse.ArgumentParser(
        prog="abate sim tune",
        description="Search for the policy that recovers fastest within a limit of amplification. Bounds are given as"
        " LOW:HIGH; one number alone is left as it is. Exit codes: 1 where nothing keeps the limit, or nothing"
        " recovers, 2 for wrong input, 130 after Ctrl-C.",
    )
    add_scenario(found)
    add = found.add_argument
    add("--variant", metavar="NAME", help="of the scenario (the first)")
    for name, text in SPANS.items():
        add(f"--{name}", type=span, metavar="LOW:HIGH", help=text)
    add("--jitter", type=_words, metavar="A,B", help="full, equal, decorrelated, none")
    add("--max-amplification", type=float, default=LIMIT, metavar="X", help=f"attempts per call, at most ({LIMIT:g})")
    add("--samples", type=int, default=36, metavar="N", help="policies that are tried at first (36)")
    add("--engine", metavar="NAME", help="exact, coroutine or fleet (what the scenario says, or exact)")
    add_output(found)
    found.set_defaults(deed=run, picture=None)
    return found


def span(text: str) -> tuple[float, float]:
    """Bounds as people write them.

    >>> span("0.05:2"), span("3")
    ((0.05, 2.0), (3.0, 3.0))
    """
    low, colon, high = text.partition(":")
    try:
        return float(low), float(high if colon else low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be LOW:HIGH or one number, not {text!r}") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


def run(options: argparse.Namespace) -> int:
    """Search, and print what was found."""
    from abate.cli.sim_output import Progress, check_engines, check_numbers, check_outputs
    from abate.cli.terminal import say
    from abate.errors import number, whole
    from abate.sim.parts import about_code
    from abate.sim.tune import Bounds, tune

    check_numbers(options)
    if whole("--samples", options.samples, least=1) > MOST_SAMPLES:
        raise ValueError(f"--samples must be at most {MOST_SAMPLES:,}, not {options.samples:,}")
    number("--max-amplification", options.max_amplification, least=1)
    check_outputs(options.report)
    scenario = prepared(options.scenario, options)
    check_engines([scenario], options.engine)
    case = chosen_case(scenario, options.variant)
    bounds = Bounds(**_given(options))
    with Progress(f"tune {scenario.name}") as told, about_code(scenario.place):
        tuning = tune(
            case.world,
            options.max_amplification,
            bounds,
            seeds=options.seeds or SEEDS,
            samples=options.samples,
            engine=options.engine or case.engine,
            progress=told,
        )
    if options.json:
        print(json.dumps(as_json(scenario, case, tuning), indent=2))
    else:
        print_tuning(scenario, case, tuning)
    if options.report is not None:
        _report(scenario, case, tuning, options)
    if not tuning.finished:
        say(f"not complete: broken off after {tuning.runs} runs")
        return BROKEN_OFF
    return 0 if tuning.recovers else BROKEN


def chosen_case(scenario: Scenario, variant: str | None) -> Case:
    """The case to tune: the first, or the first of a variant.

    >>> from abate.sim import load_scenario
    >>> chosen_case(load_scenario("herd"), "full").variant
    'full'
    """
    cases = scenario.cases()
    if variant is None:
        return cases[0]
    for case in cases:
        if case.variant == variant:
            return case
    names = ", ".join(dict.fromkeys(case.variant for case in cases if case.variant)) or "none"
    raise ValueError(f"--variant: {scenario.place} has no variant {variant!r}; it has {names}")


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """The bounds that were given, attempts as whole numbers where they are."""
    found = {name: getattr(options, name) for name in (*SPANS, "jitter") if getattr(options, name) is not None}
    if "attempts" in found and all(value.is_integer() for value in found["attempts"]):
        found["attempts"] = tuple(map(int, found["attempts"]))
    return found


# -- for people


def print_tuning(scenario: Scenario, case: Case, tuning: Tuning) -> None:
    """The front as a table and a plot, the best one, and how sure it is."""
    from abate.cli.sim_tables import columns, heading
    from abate.cli.terminal import plain
    from abate.sim.confidence import confidence

    name = f"{scenario.name}, {case.name}" if case.name else scenario.name
    print(plain(f"{name}: {tuning.runs:,} runs; what no other policy beats in all three, mean ± 95 % interval"))
    if not tuning.front:
        return
    print()
    measures = ("recovery", "amplification", "success")
    rows = [[_mark(trial, tuning), *settings(trial.candidate), *map(str, figures(trial))] for trial in tuning.front]
    heads = ["", "attempts", "base (s)", "cap (s)", "jitter", "ratio", "reserve"]
    print(columns(heads, [heading(measure) for measure in measures], rows))
    if any(_idle(trial.candidate) for trial in tuning.front):
        print(f"note: {IDLE}")
    drawn = plot(tuning)
    if drawn:
        print(f"\n{drawn}")
    print()
    if tuning.best is not None:
        recovery, amplification, success = figures(tuning.best)
        print(f"best: recovery {recovery} s, amplification {amplification}, success {success}")
    print(confidence(tuning))
    if tuning.best is not None and tuning.recovers:
        print(f"\n{as_toml(tuning.best.candidate)}")


def figures(trial: Trial) -> tuple[Estimate, Estimate, Estimate]:
    """What counts: recovery, amplification, success."""
    return trial.recovery, trial.amplification, trial.success


def settings(candidate: Candidate) -> list[str]:
    """What was searched, for one row; what makes no difference, as nothing is retried, is left out.

    >>> from abate.sim.tune import Candidate
    >>> settings(Candidate(attempts=1)), settings(Candidate(ratio=0.0, reserve=0.0))
    (['1', '-', '-', '-', '-', '-'], ['3', '-', '-', '-', '0', '0'])
    """
    if candidate.attempts == 1:
        return ["1", *"-----"]
    backoff = [f"{candidate.base:g}", f"{candidate.cap:g}", candidate.jitter]
    return [
        str(candidate.attempts),
        *("---" if _idle(candidate) else backoff),
        f"{candidate.ratio:g}",
        f"{candidate.reserve:g}",
    ]


def _idle(candidate: Candidate) -> bool:
    """Are there attempts that its budget never pays for?"""
    return candidate.attempts > 1 and not (candidate.ratio or candidate.reserve)


def _mark(trial: Trial, tuning: Tuning) -> str:
    if not trial.fits:
        return OVER
    return BEST if tuning.best is not None and trial.candidate == tuning.best.candidate else ""


def plot(tuning: Tuning) -> str:
    """Recovery against amplification, in letters; empty where nothing recovers."""
    found = [trial for trial in tuning.front if math.isfinite(trial.recovery.mean)]
    if not found:
        return ""
    costs, times = [trial.amplification.mean for trial in found], [trial.recovery.mean for trial in found]
    left, right = _ends(costs, 1.0, max(tuning.limit, 1.1))
    least, most = _ends(times, 0.0, 1.0)
    across, up = _scale(costs, left, right, WIDTH), _scale(times, least, most, HEIGHT)
    lines = [[" "] * WIDTH for _ in range(HEIGHT)]
    points = zip([_mark(trial, tuning) for trial in found], across, up, strict=True)
    for mark, column, row in sorted(points, key=lambda point: point[0] == BEST):  # the best is drawn above all others
        lines[HEIGHT - 1 - row][column] = POINTS[mark]
    labels = [f"{most:.3g} s", *[""] * (HEIGHT - 2), f"{least:.3g} s"]
    edge = f"{left:.3g}".ljust(WIDTH - len(f"{right:.3g}")) + f"{right:.3g}"
    body = [f"{label:>8} │{''.join(line)}".rstrip() for label, line in zip(labels, lines, strict=True)]
    legend = "recovery against amplification: ● the best, ○ within the limit, × over it"
    return "\n".join([*body, f"{'':8} └{'─' * WIDTH}", f"{'':10}{edge}", f"{'':10}{legend}"])


def _ends(values: Sequence[float], low: float, high: float) -> tuple[float, float]:
    """Where an axis begins and ends: with the values, or as given at least where their labels would be the same.

    >>> _ends([0.0, 0.0], 0.0, 1.0), _ends([2.0, 5.0], 0.0, 1.0), _ends([4.0], 0.0, 1.0)
    ((0.0, 1.0), (2.0, 5.0), (0.0, 4.0))
    """
    least, most = min(values), max(values)
    return (least, most) if f"{least:.3g}" != f"{most:.3g}" else (min(least, low), max(most, high))


def _scale(values: Sequence[float], least: float, most: float, places: int) -> list[int]:
    return [round((value - least) / (most - least) * (places - 1)) for value in values]


def as_toml(candidate: Candidate) -> str:
    """The policy as a scenario or an app's file has it.

    >>> from abate.sim.tune import Candidate
    >>> print(as_toml(Candidate(attempts=4, base=0.1, cap=5.0)))
    attempts = 4
    backoff = { base = 0.1, cap = 5.0, jitter = "full" }
    budget = { ratio = 0.2, reserve = 10.0 }
    """
    return (
        f"attempts = {candidate.attempts}\n"
        f'backoff = {{ base = {candidate.base}, cap = {candidate.cap}, jitter = "{candidate.jitter}" }}\n'
        f"budget = {{ ratio = {candidate.ratio}, reserve = {candidate.reserve} }}"
    )


# -- for machines


def as_json(scenario: Scenario, case: Case, tuning: Tuning) -> dict[str, Any]:
    """What was found, without infinities and NaN; `never` says how often there was no recovery."""
    from abate.sim.confidence import confidence

    mean, low, high = tuning.lead
    rivals = tuning.runner_up is not None
    return {
        "scenario": scenario.name,
        "case": case.name,
        "complete": tuning.finished,
        "limit": tuning.limit,
        "runs": tuning.runs,
        "best": None if tuning.best is None else _trial(tuning.best),
        "runner_up": None if tuning.runner_up is None else _trial(tuning.runner_up),
        "wins": tuning.wins if rivals else None,
        "lead": {"mean": mean, "low": low, "high": high} if rivals else None,
        "confidence": confidence(tuning),
        "front": [_trial(trial) for trial in tuning.front],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    candidate = trial.candidate
    names = ("recovery", "amplification", "success")
    return {
        "policy": {name: getattr(candidate, name) for name in candidate.__match_args__},
        "fits": trial.fits,
        "seeds": len(trial.seen),
        **{name: _figure(seen) for name, seen in zip(names, figures(trial), strict=True)},
    }


def _figure(seen: Estimate) -> dict[str, Any]:
    known = math.isfinite(seen.mean)
    return {"mean": seen.mean if known else None, "within": seen.within if known else None, "never": seen.never}


# -- the page


def _report(scenario: Scenario, case: Case, tuning: Tuning, options: argparse.Namespace) -> None:
    """A page with the policy as it was and the best one side by side, and the front."""
    from abate.cli.sim_output import Progress
    from abate.cli.terminal import say
    from abate.sim.report import write_report

    with Progress(f"{scenario.name}, before and after") as told:
        study = _before_and_after(scenario, case, tuning, options, told)
    write_report(study, options.report, tuning)
    say(f"wrote {options.report}")


def _before_and_after(scenario: Scenario, case: Case, tuning: Tuning, options: argparse.Namespace, told: Any) -> Study:
    from abate.sim.study import run_study

    for path, value in case.settings.items():
        scenario = scenario.changed(f"{path}={json.dumps(value)}")
    document = copy.deepcopy(scenario.document)
    overlay = document.pop("variants", {}).get(case.variant, {})
    document["variants"] = {case.variant or "as it is": overlay}
    if tuning.best is not None and tuning.recovers:
        best = tuning.best.candidate
        tuned = copy.deepcopy(overlay)
        policy = tuned.setdefault("policy", {})
        policy["attempts"] = best.attempts
        for table, keys in (("backoff", ("base", "cap", "jitter")), ("budget", ("ratio", "reserve"))):
            old = policy.get(table)
            policy[table] = {**(old if isinstance(old, dict) else {}), **{key: getattr(best, key) for key in keys}}
        document["variants"]["tuned"] = tuned
    return run_study(
        scenario.replaced(document=document, policies=()),
        seeds=options.seeds or SEEDS,
        engine=options.engine,
        jobs=options.jobs,
        progress=told,
        raster=True,
    )
