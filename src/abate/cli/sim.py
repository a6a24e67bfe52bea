"""``abate sim``: simulate what a policy does to a failing server.

* Errors in the input and in output paths are reported before anything is run.
* Ctrl-C prints what has been computed so far, and that it is not complete.
* Exit codes: 1 if an assertion does not hold, 2 for wrong input, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from abate.errors import AbateError, choice, whole

if TYPE_CHECKING:
    from abate.sim.scenario import Scenario
    from abate.sim.study import Study

ASSERTION_FAILED, REFUSED, INTERRUPTED = 1, 2, 130
NO_OPTION = "\0"
"""As the prefix of options, this turns argparse's parsing off: the arguments after ``sim`` are parsed here, because the
first one selects the parser."""
PICTURES = (".png", ".svg")
SENTENCE = re.compile(r"(?<=[.!?])\s")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "sim", help="simulate what a policy does to a failing server", prefix_chars=NO_OPTION, add_help=False
    )
    parser.add_argument("words", nargs="*")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run a subcommand, or a scenario; an error is one line."""
    from abate.cli.terminal import say

    words: list[str] = options.words
    command = words[0] if words and words[0] in PARSERS else ""
    parser = PARSERS[command]()
    if not words:
        parser.print_help()
        return 0
    chosen = parser.parse_args(words[1:] if command else words)
    try:
        code: int = chosen.handler(chosen)
        return code
    except BrokenPipeError:
        raise
    except (AbateError, OSError, TypeError, ValueError, ImportError) as error:
        say(str(error))
        return REFUSED


# -- arguments


def _list_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="abate sim list", description="List the scenarios that ship.")
    parser.set_defaults(handler=list_scenarios)
    return parser


def _show_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="abate sim show", description="Print a scenario that ships, to start your own from."
    )
    parser.add_argument("name", metavar="NAME")
    parser.set_defaults(handler=show_scenario)
    return parser


def _run_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="abate sim",
        usage="abate sim SCENARIO [options] | list | show NAME | tune SCENARIO [options]",
        description="Run a scenario many times in virtual time. Exit codes: 1 if an assertion does not hold,"
        " 2 for wrong input, 130 after Ctrl-C.",
    )
    add_scenario(parser, nargs="?")
    add = parser.add_argument
    add("--compare", nargs="+", default=[], metavar="SCENARIO", help="compare these scenarios, with their differences")
    add("--engine", metavar="NAME", help="exact, coroutine or fleet (what the scenario says, or exact)")
    add("--policy", action="append", default=[], metavar="FILE:NAME", help="your own policy, as one more variant")
    add("--measures", type=_names, metavar="A,B", help="the columns (those that apply)")
    add("--picture", metavar="FILE", help="write the pictures, as .png or .svg")
    add("--map", action="store_true", help="add a recovery map to report and picture, however long it takes")
    add("--jobs", type=int, metavar="N", help="processes (one per core)")
    add("--json", action="store_true", help="print JSON")
    add("--report", metavar="FILE", help="write one HTML page with the pictures")
    parser.set_defaults(handler=run_scenarios, refuse=parser.error)
    return parser


def _tune_parser() -> argparse.ArgumentParser:
    from abate.cli.sim_tune import parser

    return parser()


PARSERS = {"": _run_parser, "list": _list_parser, "show": _show_parser, "tune": _tune_parser}
"""By the first argument; any other is a scenario."""


def add_scenario(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Add the scenario and the options that change it."""
    add = parser.add_argument
    add("scenario", nargs=nargs, metavar="SCENARIO", help="a file, or the name of one that ships")
    add("--clients", type=int, metavar="N", help="the number of clients or controllers")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="change one key, as in policy.max_attempts=6")
    add("--seeds", type=int, metavar="N", help="runs of each case")
    add("--code", action="append", default=[], metavar="MODULE", help="allow files to name objects of this module")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


# -- list and show


def list_scenarios(options: argparse.Namespace) -> int:
    """Print the scenarios that ship, each with the first sentence of its description."""
    from abate.cli.terminal import table
    from abate.sim.scenario import load_scenario, shipped_names

    rows = [[name, first_sentence(load_scenario(name).about)] for name in shipped_names()]
    print(table(["scenario", "description"], rows))
    return 0


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, on one line.

    >>> first_sentence("Two lines,\\none sentence. And another.")
    'Two lines, one sentence.'
    """
    return SENTENCE.split(" ".join(text.split()), maxsplit=1)[0]


def show_scenario(options: argparse.Namespace) -> int:
    """Print the TOML of a scenario that ships."""
    from abate.sim.scenario import SHIPPED, shipped_names

    names = shipped_names()
    if options.name not in names:
        raise ValueError(f"there is no scenario {options.name!r} among those that ship: {', '.join(names)}")
    print((SHIPPED / f"{options.name}.toml").read_text(encoding="utf-8"), end="")
    return 0


# -- run


def run_scenarios(options: argparse.Namespace) -> int:
    """Run one scenario, or compare several; print the table and the assertions that do not hold."""
    from abate.cli import sim_tables as tables
    from abate.clock import current

    names = [*([] if options.scenario is None else [options.scenario]), *options.compare]
    if not names:
        options.refuse("name a scenario: a file, or one of those that `abate sim list` prints")
    if options.compare and len(names) < 2:
        options.refuse("--compare needs at least two scenarios")
    if len(names) > 1 and (options.report or options.picture):
        options.refuse("--report and --picture show one scenario: leave --compare out")
    check_numbers(options)
    check_outputs(options.report, options.picture)
    scenarios = [load_changed_scenario(name, options) for name in names]
    check_engines(scenarios, options.engine)
    if options.measures is not None:
        check_measures(options.measures, scenarios)
    clock = current()
    began = clock.now()
    studies = _run_all(scenarios, options)
    spent = clock.now() - began
    if options.json:
        found = studies[0].as_json() if len(scenarios) == 1 else tables.comparison_json(studies)
        print(json.dumps(found, indent=2))
    else:
        tables.print_studies(studies, options.measures)
    if options.report is not None or options.picture is not None:
        from abate.cli.sim_output_files import write_files

        if not write_files(studies[0], options, spent):
            return INTERRUPTED
    return exit_code(studies, scenarios, options)


# -- what is checked before anything is run


def check_numbers(options: argparse.Namespace) -> None:
    """Refuse counts below 1, and too many seeds."""
    from abate.sim.scenario_parser import MAX_SEEDS

    for name in ("clients", "seeds", "jobs"):
        count = getattr(options, name)
        if count is not None:
            whole(f"--{name}", count, least=1)
    if options.seeds is not None and options.seeds > MAX_SEEDS:
        raise ValueError(f"--seeds must be at most {MAX_SEEDS:,}, not {options.seeds:,}")


def check_outputs(report: str | None, picture: str | None) -> None:
    """Refuse files that can't be written or drawn.

    >>> check_outputs(None, "out.jpg")
    Traceback (most recent call last):
    abate.errors.AbateError: --picture must end in .png or .svg, not 'out.jpg'
    """
    from abate.cli.terminal import check_writable

    if picture is not None and Path(picture).suffix not in PICTURES:
        raise AbateError(f"--picture must end in {' or '.join(PICTURES)}, not {picture!r}")
    for option, name in (("--report", report), ("--picture", picture)):
        if name is None:
            continue
        check_writable(option, name)
        if importlib.util.find_spec("matplotlib") is None:
            raise AbateError(f"{option} needs matplotlib: pip install 'abate[sim]'")


def check_engines(scenarios: Sequence[Scenario], given: str | None) -> None:
    """Refuse an unknown engine, and the fleet engine without NumPy."""
    from abate.sim.world import ENGINES

    if given is not None:
        choice("--engine", given, tuple(ENGINES))
    engines = {given or case.engine for scenario in scenarios for case in scenario.cases()}
    if "fleet" in engines and importlib.util.find_spec("numpy") is None:
        raise AbateError("the fleet engine needs NumPy: pip install 'abate[sim]'")


def check_measures(names: Sequence[str], scenarios: Sequence[Scenario]) -> None:
    """Refuse measures that not all of the scenarios have."""
    from abate.sim.study_tables import known_measures

    for scenario in scenarios:
        known = known_measures([case.world for case in scenario.cases()])
        for name in names:
            if name not in known:
                raise ValueError(f"--measures: {scenario.place} has no {name!r}; it has {', '.join(sorted(known))}")


def load_changed_scenario(name: str, options: argparse.Namespace) -> Scenario:
    """Load a scenario, with the changes of the options."""
    from abate.sim.scenario import load_scenario

    if options.code and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that it does not shadow installed modules
    scenario = load_scenario(name, code=options.code)
    steps: list[tuple[str, Scenario]] = []
    if options.clients is not None:
        scenario = _with_client_count(scenario, options.clients)
        steps.append((f"--clients {options.clients}", scenario))
    for setting in options.set:
        scenario = scenario.changed(setting)
        steps.append((f"--set {setting}", scenario))
    if policies := tuple(getattr(options, "policy", ())):
        scenario = scenario.replaced(policies=policies)
    try:
        scenario.cases()  # raises the errors of the scenario now
    except ValueError as error:
        raise ValueError(_locate_error(str(error), steps)) from error
    return scenario


def _locate_error(said: str, steps: Sequence[tuple[str, Scenario]]) -> str:
    """Return the error of a changed scenario with its origin: the first option that causes it."""
    for words, scenario in steps:
        try:
            scenario.cases()
        except ValueError as error:
            if str(error) == said:
                return f"{scenario.place}: {words}: {said.removeprefix(scenario.place).lstrip(': ')}"
    return said


def _with_client_count(scenario: Scenario, count: int) -> Scenario:
    """Set the number of clients or controllers; if each is a process of its own, set the processes too."""
    kind = "controllers" if "controllers" in scenario.document else "clients"
    table = scenario.document.get(kind, {})
    alone = "processes" in table and table["processes"] == table.get("count")
    scenario = scenario.changed(f"{kind}.count={count}")
    return scenario.changed(f"{kind}.processes={count}") if alone else scenario


def _run_all(scenarios: Sequence[Scenario], options: argparse.Namespace) -> list[Study]:
    """Run one scenario after the other, until Ctrl-C."""
    from abate.cli.terminal import Progress
    from abate.sim.study import run_study

    studies: list[Study] = []
    for scenario in scenarios:
        with Progress(scenario.name) as told:
            study = run_study(
                scenario,
                seeds=options.seeds,
                engine=options.engine,
                jobs=options.jobs,
                progress=told,
                raster=bool(options.report or options.picture),
            )
        studies.append(study)
        if not study.complete:
            break
    return studies


def exit_code(studies: Sequence[Study], scenarios: Sequence[Scenario], options: argparse.Namespace) -> int:
    """Report an interrupt or failed assertions, and return the exit code."""
    from abate.cli.terminal import say

    if not all(study.complete for study in studies):  # assertions need complete studies
        runs = sum(len(result.samples) for study in studies for result in study.results)
        wanted = sum(options.seeds or case.seeds for scenario in scenarios for case in scenario.cases())
        say(f"not complete: interrupted after {runs} of {wanted} runs")
        return INTERRUPTED
    broken = [line for study in studies for line in study.broken()]
    for line in broken:
        say(f"assertion failed: {line}")
    return ASSERTION_FAILED if broken else 0
