"""``abate sim tune``: search for the policy with which a scenario recovers fastest, within a limit of amplification.

Attempts, backoff and budget are searched; everything else stays as the scenario has it. Of a scenario with several
cases the first is tuned, or the one of ``--variant``.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from abate.cli.sim import (
    ASSERTION_FAILED,
    INTERRUPTED,
    add_scenario,
    check_engines,
    check_numbers,
    load_changed_scenario,
)

if TYPE_CHECKING:
    from abate.sim.scenario import Case, Scenario
    from abate.sim.tune import Candidate, Trial, Tuning

SPANS = {
    "max_attempts": "attempts per call, at most",
    "base": "the first ceiling of the backoff, in seconds",
    "cap": "the last ceiling of the backoff, in seconds",
    "ratio": "retries per success",
    "reserve": "retries per second in addition",
}
LIMIT = 1.5
SEEDS, SAMPLES = 10, 60
MAX_SAMPLES = 10_000
MEASURES = ("recovery", "amplification", "success")


def parser() -> argparse.ArgumentParser:
    """Build the parser of ``abate sim tune``."""
    found = argparse.ArgumentParser(
        prog="abate sim tune",
        description="Search for the policy that recovers fastest within a limit of amplification. Give bounds as"
        " LOW:HIGH, or one number to keep a setting fixed. Exit codes: 1 if no policy keeps the limit or recovers,"
        " 2 for wrong input, 130 after Ctrl-C.",
    )
    add_scenario(found)
    add = found.add_argument
    add("--variant", metavar="NAME", help="the variant to tune (the first)")
    for name, text in SPANS.items():
        add(f"--{name.replace('_', '-')}", type=parse_span, metavar="LOW:HIGH", help=text)
    add("--jitter", type=_words, metavar="A,B", help="full, equal, decorrelated, none")
    add("--max-amplification", type=float, default=LIMIT, metavar="X", help=f"attempts per call, at most ({LIMIT:g})")
    add("--samples", type=int, default=SAMPLES, metavar="N", help=f"policies to try ({SAMPLES})")
    add("--engine", metavar="NAME", help="exact, coroutine or fleet (what the scenario says, or exact)")
    add("--json", action="store_true", help="print JSON")
    found.set_defaults(handler=run, jobs=None)
    return found


def parse_span(text: str) -> tuple[float, float]:
    """Parse LOW:HIGH, or one number.

    >>> parse_span("0.05:2"), parse_span("3")
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
    """Search, and print the result."""
    from abate.cli.terminal import Progress, say
    from abate.errors import number, whole
    from abate.sim.scenario_parser import locate_code_errors
    from abate.sim.tune import Bounds, tune

    check_numbers(options)
    if whole("--samples", options.samples, least=1) > MAX_SAMPLES:
        raise ValueError(f"--samples must be at most {MAX_SAMPLES:,}, not {options.samples:,}")
    number("--max-amplification", options.max_amplification, least=1)
    scenario = load_changed_scenario(options.scenario, options)
    check_engines([scenario], options.engine)
    case = chosen_case(scenario, options.variant)
    bounds = Bounds(**_given_bounds(options))
    with Progress(f"tune {scenario.name}") as progress, locate_code_errors(scenario.place):
        tuning = tune(
            case.world,
            options.max_amplification,
            bounds,
            seeds=options.seeds or SEEDS,
            samples=options.samples,
            engine=options.engine or case.engine,
            progress=progress,
        )
    if options.json:
        print(json.dumps(as_json(scenario, case, tuning), indent=2))
    else:
        print_tuning(scenario, case, tuning)
    if not tuning.finished:
        say(f"not complete: interrupted after {tuning.total_runs} runs")
        return INTERRUPTED
    return 0 if tuning.recovers else ASSERTION_FAILED


def chosen_case(scenario: Scenario, variant: str | None) -> Case:
    """Return the case to tune: the first, or the first of a variant.

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


def _given_bounds(options: argparse.Namespace) -> dict[str, Any]:
    found = {name: getattr(options, name) for name in (*SPANS, "jitter") if getattr(options, name) is not None}
    if "max_attempts" in found and all(value.is_integer() for value in found["max_attempts"]):
        found["max_attempts"] = tuple(map(int, found["max_attempts"]))
    return found


def print_tuning(scenario: Scenario, case: Case, tuning: Tuning) -> None:
    """Print the finalists as a table, the best policy as TOML, and how it compares with the runner-up."""
    from abate.cli.terminal import escape, table
    from abate.sim.study_tables import heading

    name = f"{scenario.name}, {case.name}" if case.name else scenario.name
    print(escape(f"{name}: {tuning.total_runs:,} runs; the best policies that were tried, mean ± 95 % interval"))
    if not tuning.trials:
        return
    rows = [
        [_mark(trial, tuning), *_settings(trial.candidate), *(str(getattr(trial, name)) for name in MEASURES)]
        for trial in tuning.trials
    ]
    settings = ["", "max_attempts", "base (s)", "cap (s)", "jitter", "ratio", "reserve"]
    print(f"\n{table([*settings, *map(heading, MEASURES)], rows, figures_from=len(settings))}\n")
    print(verdict(tuning))
    if tuning.best is not None and tuning.recovers:
        print(f"\n{as_toml(tuning.best.candidate)}")


def _settings(candidate: Candidate) -> list[str]:
    return [value if isinstance(value, str) else f"{value:g}" for value in _policy(candidate).values()]


def _mark(trial: Trial, tuning: Tuning) -> str:
    if not trial.fits:
        return "over"
    return "best" if tuning.best is not None and trial.candidate == tuning.best.candidate else ""


def verdict(tuning: Tuning) -> str:
    """Say how the best policy compares with the runner-up, or why no policy is recommended."""
    from abate.sim.tune import MIN_SEEDS

    best, limit = tuning.best, f"the limit of {tuning.limit:g}"
    if best is None:
        return f"no policy that was tried keeps {limit}"
    if not tuning.recovers:
        return f"no policy that was tried within {limit} recovers: there is nothing to recommend"
    exceeds = "" if best.fits else f"; with fresh seeds it exceeds {limit}"
    if tuning.difference is None:
        return f"best: no other policy that was tried keeps {limit}{exceeds}"
    seeds = "the seeds of the search" if not tuning.finished else f"{tuning.difference.seeds} fresh seeds"
    compared = f"best: recovers {tuning.difference} s sooner than the runner-up, with {seeds}"
    if tuning.significant:
        return f"{compared}: significant (95 %){exceeds}"
    few = f" (needs {MIN_SEEDS} seeds)" if tuning.finished and tuning.difference.seeds < MIN_SEEDS else ""
    return f"{compared}: not significant{few}{exceeds}"


def as_toml(candidate: Candidate) -> str:
    """Return the policy as TOML, for a scenario or an app's file.

    >>> from abate.sim.tune import Candidate
    >>> print(as_toml(Candidate(max_attempts=4, base=0.1, cap=5.0)))
    max_attempts = 4
    backoff = { base = 0.1, cap = 5.0, jitter = "full" }
    budget = { ratio = 0.2, reserve = 10.0 }
    """
    return (
        f"max_attempts = {candidate.max_attempts}\n"
        f'backoff = {{ base = {candidate.base}, cap = {candidate.cap}, jitter = "{candidate.jitter}" }}\n'
        f"budget = {{ ratio = {candidate.ratio}, reserve = {candidate.reserve} }}"
    )


def as_json(scenario: Scenario, case: Case, tuning: Tuning) -> dict[str, Any]:
    """Return the result without infinities and NaN; `never` counts the runs without recovery."""
    return {
        "scenario": scenario.name,
        "case": case.name,
        "complete": tuning.finished,
        "limit": tuning.limit,
        "runs": tuning.total_runs,
        "best": None if tuning.best is None else _trial(tuning.best),
        "runner_up": None if tuning.runner_up is None else _trial(tuning.runner_up),
        "difference": None if tuning.difference is None else tuning.difference.as_json(),
        "significant": tuning.significant,
        "verdict": verdict(tuning),
        "trials": [_trial(trial) for trial in tuning.trials],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "policy": _policy(trial.candidate),
        "fits": trial.fits,
        "seeds": len(trial.runs),
        **{name: getattr(trial, name).as_json() for name in MEASURES},
    }


def _policy(candidate: Candidate) -> dict[str, Any]:
    return {name: getattr(candidate, name) for name in candidate.__match_args__}
