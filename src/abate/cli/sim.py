"""``abate sim``: what a policy does to a struggling server, before an outage shows it.

* What is wrong with the input, or with where the output goes, is said before anything is run.
* Ctrl-C ends with what has been computed so far, and says that it is not complete.
* Exit codes: 0, or 1 where something that was asserted does not hold; 2 for wrong input; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from abate.errors import AbateError

if TYPE_CHECKING:
    from abate.sim.scenario import Scenario
    from abate.sim.study import Study

BROKEN, REFUSED, BROKEN_OFF = 1, 2, 130
NO_OPTION = "\0"
"""No word begins like this: all words behind ``sim`` are read here, as the first one decides what may follow."""
SENTENCE = re.compile(r"(?<=[.!?])\s")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "sim", help="see what a policy does to a struggling server", prefix_chars=NO_OPTION, add_help=False
    )
    parser.add_argument("words", nargs="*")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read the words, and do what they ask; an error is one line."""
    from abate.cli.terminal import say

    words: list[str] = options.words
    deed = words[0] if words and words[0] in PARSERS else ""
    parser = PARSERS[deed]()
    if not words:
        parser.print_help()
        return 0
    chosen = parser.parse_args(words[1:] if deed else words)
    try:
        code: int = chosen.deed(chosen)
        return code
    except BrokenPipeError:
        raise
    except (AbateError, OSError, TypeError, ValueError, ImportError) as error:
        say(str(error))
        return REFUSED


# -- the words


def _list_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="abate sim list", description="The scenarios that ship.")
    parser.set_defaults(deed=list_scenarios)
    return parser


def _show_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="abate sim show", description="Print a scenario that ships, to start one's own from."
    )
    parser.add_argument("name", metavar="NAME")
    parser.set_defaults(deed=show_scenario)
    return parser


def _run_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="abate sim",
        usage="abate sim SCENARIO [options] | list | show NAME | tune SCENARIO [options]",
        description="Run a scenario many times in virtual time. Exit codes: 1 where an assertion does not hold,"
        " 2 for wrong input, 130 after Ctrl-C.",
    )
    add_scenario(parser, nargs="?")
    add = parser.add_argument
    add("--compare", nargs="+", default=[], metavar="SCENARIO", help="these side by side, with their differences")
    add("--engine", metavar="NAME", help="exact, coroutine or fleet (what the scenario says, or exact)")
    add("--policy", action="append", default=[], metavar="FILE:NAME", help="a policy of your own, as one more variant")
    add("--measures", type=_names, metavar="A,B", help="the columns (those that say something)")
    add("--picture", metavar="FILE", help="write the pictures, as .png or .svg")
    add("--map", action="store_true", help="in report and picture a recovery map, however long it takes")
    add("--live", action="store_true", help="also run it on real sockets, and print both")
    add_output(parser)
    parser.set_defaults(deed=run_scenarios, refuse=parser.error)
    return parser


def _tune_parser() -> argparse.ArgumentParser:
    from abate.cli.sim_tune import parser

    return parser()


PARSERS = {"": _run_parser, "list": _list_parser, "show": _show_parser, "tune": _tune_parser}
"""By the first word; any other is a scenario."""


def add_scenario(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Which scenario, and what is changed in it."""
    add = parser.add_argument
    add("scenario", nargs=nargs, metavar="SCENARIO", help="a file, or the name of one that ships")
    add("--clients", type=int, metavar="N", help="so many clients, or controllers")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="change one key, as in policy.attempts=6")
    add("--seeds", type=int, metavar="N", help="runs of each case")
    add("--code", action="append", default=[], metavar="MODULE", help="let the files name what is in this module")


def add_output(parser: argparse.ArgumentParser) -> None:
    """Where it goes, and how much of the machine it takes."""
    add = parser.add_argument
    add("--jobs", type=int, metavar="N", help="processes (one per core)")
    add("--json", action="store_true", help="for machines")
    add("--report", metavar="FILE", help="write one HTML page with the pictures")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


# -- list and show


def list_scenarios(options: argparse.Namespace) -> int:
    """Print the scenarios that ship, each with the first sentence about it."""
    from abate.cli.terminal import table
    from abate.sim.scenario import load_scenario, shipped_names

    rows = [[name, first_sentence(load_scenario(name).about)] for name in shipped_names()]
    print(table(["scenario", "what it is"], rows))
    return 0


def first_sentence(text: str) -> str:
    """The first sentence of a text, on one line.

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
    """Run one scenario, or several side by side; print the table; say what does not hold."""
    from abate.cli import sim_tables as tables
    from abate.cli.sim_output import check_engines, check_numbers, check_outputs, print_studies
    from abate.cli.sim_report import write_files
    from abate.clock import current

    names = [*([] if options.scenario is None else [options.scenario]), *options.compare]
    if not names:
        options.refuse("name a scenario: a file, or one of those that `abate sim list` prints")
    if options.compare and len(names) < 2:
        options.refuse("--compare needs two scenarios at least")
    if len(names) > 1 and (options.report or options.picture or options.live):
        options.refuse("--report, --picture and --live are of one scenario: leave --compare out")
    if options.live and (options.report or options.picture):
        options.refuse("--live prints a table: leave --report and --picture out")
    check_numbers(options)
    check_outputs(options.report, options.picture)
    scenarios = [prepared(name, options) for name in names]
    check_engines(scenarios, options.engine)
    if options.measures is not None:
        tables.check_measures(options.measures, scenarios)
    if options.live:
        from abate.cli.sim_live import run_beside

        return run_beside(scenarios[0], options)
    clock = current()
    began = clock.now()
    studies = _run_all(scenarios, options)
    spent = clock.now() - began
    if options.json:
        found = studies[0].as_json() if len(scenarios) == 1 else tables.comparison_json(studies)
        print(json.dumps(found, indent=2))
    else:
        print_studies(studies, options.measures)
    drawn = write_files(studies[0], options, spent)
    return BROKEN_OFF if not drawn else ending(studies, scenarios, options)


def prepared(name: str, options: argparse.Namespace) -> Scenario:
    """A scenario with everything changed in it that the words ask for."""
    from abate.sim.scenario import load_scenario

    if options.code and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that nothing there takes the place of what is installed
    scenario = load_scenario(name, code=options.code)
    steps: list[tuple[str, Scenario]] = []
    if options.clients is not None:
        scenario = _crowded(scenario, options.clients)
        steps.append((f"--clients {options.clients}", scenario))
    for setting in options.set:
        scenario = scenario.changed(setting)
        steps.append((f"--set {setting}", scenario))
    policies = tuple(getattr(options, "policy", ()))
    scenario = scenario.replaced(policies=policies)
    if options.clients is not None:
        _check_processes(scenario, options.clients)
    try:
        scenario.cases()  # what is wrong in it is wrong now
    except ValueError as error:
        raise ValueError(_blamed(str(error), steps)) from error
    return scenario


def _blamed(said: str, steps: Sequence[tuple[str, Scenario]]) -> str:
    """The error of a scenario that was changed, with what it comes from: the first change that has it.

    The file was all right when it was loaded.
    """
    for words, scenario in steps:
        try:
            scenario.cases()
        except ValueError as error:
            if str(error) == said:
                return f"{scenario.place}: {words}: {said.removeprefix(scenario.place).lstrip(': ')}"
    return said


def _crowded(scenario: Scenario, count: int) -> Scenario:
    """The scenario with so many clients or controllers; where each is a process of its own, each stays one."""
    who = "controllers" if "controllers" in scenario.document else "clients"
    table = scenario.document.get(who, {})
    alone = "processes" in table and table["processes"] == table.get("count")
    scenario = scenario.changed(f"{who}.count={count}")
    return scenario.changed(f"{who}.processes={count}") if alone else scenario


def _check_processes(scenario: Scenario, count: int) -> None:
    """Refuse so few clients that they cannot be divided: the file is not to blame."""
    for table in (scenario.document, *scenario.document.get("variants", {}).values()):
        for who in ("clients", "controllers"):
            given = table.get(who, {}) if isinstance(table, dict) else {}
            processes = given.get("processes") if isinstance(given, dict) else None
            if isinstance(processes, int) and processes > count == given.get("count", count):
                raise ValueError(
                    f"--clients must be at least the {processes} processes of {scenario.place}, not {count}"
                )


def _run_all(scenarios: Sequence[Scenario], options: argparse.Namespace) -> list[Study]:
    """Run one after the other; after Ctrl-C no more."""
    from abate.cli.sim_output import Progress
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


def ending(studies: Sequence[Study], scenarios: Sequence[Scenario], options: argparse.Namespace) -> int:
    """Say what is missing, or what does not hold; the exit code."""
    from abate.cli.terminal import say

    if not all(study.complete for study in studies):  # and nothing is asserted of half a study
        runs = sum(len(result.samples) for study in studies for result in study.results)
        wanted = sum(options.seeds or case.seeds for scenario in scenarios for case in scenario.cases())
        say(f"not complete: broken off after {runs} of {wanted} runs")
        return BROKEN_OFF
    broken = [line for study in studies for line in study.broken()]
    for line in broken:
        say(f"asserted and not so: {line}")
    return BROKEN if broken else 0
