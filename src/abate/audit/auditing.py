"""Runs an audit: files in, findings out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from abate.audit.findings import Finding, Rule, Spot, rule
from abate.audit.ignores import ALL, Ignores
from abate.audit.program import Program
from abate.audit.rules import RULES
from abate.audit.settings import Settings
from abate.audit.source_files import Candidates, Skipped, SourceFile, read
from abate.frozen import Frozen


def _nothing(program: Program) -> Iterator[Spot]:
    return iter(())


SKIPPED_FILE = rule(
    "skipped-file",
    "note",
    "a file was not audited",
    outage="What was not read may hurt as well.",
    abate="abate audit lists what it has skipped",
    fixes={"": "repair the file, or list it under exclude in [tool.abate.audit]"},
)(_nothing)
BAD_IGNORE = rule(
    "bad-ignore",
    "warning",
    "a comment silences nothing",
    outage="A misspelt rule leaves its finding unsilenced; a comment that is left over hides the next one.",
    abate="abate audit --rules lists the rules",
    fixes={"": "correct the rule's name, or remove the comment"},
)(_nothing)
ALL_RULES: tuple[Rule, ...] = (*RULES, SKIPPED_FILE, BAD_IGNORE)
RULES_BY_ID = {one.id: one for one in ALL_RULES}


class Audit(Frozen):
    """The result of an audit."""

    findings: tuple[Finding, ...]
    files: int
    lines: int
    tests_left_out: int
    retries: int
    """Retries of any kind that were found."""
    sound: tuple[str, ...]
    """What is right: a sentence for each thing."""
    silenced: int
    known: int = 0
    """Findings that are in the baseline."""
    gone: int = 0
    """Findings of the baseline that no longer occur."""


def audit(
    paths: Sequence[Path], settings: Settings, progress: Callable[[int, int], None] = lambda done, total: None
) -> Audit:
    """Audit the Python files under some paths.

    >>> audit([], Settings()).findings
    ()
    """
    settings.check_rules([one.id for one in ALL_RULES])
    candidates = Candidates(paths, settings.exclude, settings.tests)
    sources: list[SourceFile] = []
    skipped: list[Skipped] = list(candidates.skipped)
    collecting = gc.isenabled()
    gc.disable()  # trees are kept to the end: looking for garbage among them takes half the time
    try:
        for done, file in enumerate(candidates.files, 1):
            found = read(file)
            if isinstance(found, SourceFile):
                sources.append(found)
            else:
                skipped.append(found)
            progress(done, len(candidates.files))
        return _audited(sources, skipped, candidates.tests, settings)
    finally:
        if collecting:
            gc.enable()


def _audited(sources: list[SourceFile], skipped: list[Skipped], tests: int, settings: Settings) -> Audit:
    program = Program(sources)
    ignores = {source.shown: Ignores(source) for source in sources} if settings.comments else {}
    by_path = {source.shown: source for source in sources}
    findings: list[Finding] = []
    silenced = 0
    seen: set[tuple[str, int, int, str, str]] = set()
    for one in RULES:
        if one.id in settings.ignore:
            continue
        for spot in one.find(program):
            source = by_path[spot.path]
            key = (spot.path, spot.line, spot.column, one.id, spot.message)
            if key in seen:
                continue
            seen.add(key)
            comments = ignores.get(spot.path)
            if comments is not None and comments.silences(source, one.id, spot.line, spot.last_line):
                silenced += 1
                continue
            code = source.lines[spot.line - 1] if spot.line <= len(source.lines) else ""
            findings.append(Finding(one, settings.severity.get(one.id, one.severity), spot, code))
    findings += _about_comments(ignores, by_path, settings)
    if SKIPPED_FILE.id not in settings.ignore:
        severity = settings.severity.get(SKIPPED_FILE.id, SKIPPED_FILE.severity)
        findings += [
            Finding(SKIPPED_FILE, severity, Spot(file.shown, file.line, 1, file.line, f"not audited: {file.reason}"))
            for file in skipped
        ]
    findings.sort(key=lambda finding: finding.place)
    lines = sum(len(source.lines) for source in sources)
    return Audit(tuple(findings), len(sources), lines, tests, len(program.retries), _sound(program, findings), silenced)


def _about_comments(
    ignores: dict[str, Ignores], sources: dict[str, SourceFile], settings: Settings
) -> Iterator[Finding]:
    if BAD_IGNORE.id in settings.ignore:
        return
    severity = settings.severity.get(BAD_IGNORE.id, BAD_IGNORE.severity)
    for path, comments in ignores.items():
        unknown = comments.unknown(RULES_BY_ID)
        messages = [(line, f"there is no rule {name!r}") for line, name in unknown]
        messages += [
            (line, "the comment silences nothing" if name == ALL else f"there is no finding of {name} here")
            for line, name in comments.unused()
            if (line, name) not in unknown and name not in settings.ignore
        ]
        for line, message in messages:
            yield Finding(BAD_IGNORE, severity, Spot(path, line, 1, line, message), sources[path].lines[line - 1])


def _sound(program: Program, findings: list[Finding]) -> tuple[str, ...]:
    """Return what the program does right."""
    retries = [one for one in program.retries if one.retries]
    if not retries:
        return ()
    found = {finding.rule.id for finding in findings}
    said = []
    bounded = sum(not one.unbounded for one in retries)
    spread = sum(one.wait.jitter == "some" for one in retries)
    named = sum(one.errors is not None and "Exception" not in one.errors for one in retries)
    if bounded:
        said.append(f"{bounded} of {len(retries)} retries end after some attempts or some time")
    if spread:
        said.append(f"{spread} of {len(retries)} retries wait with jitter")
    if named:
        said.append(f"{named} of {len(retries)} retries name the errors that they repeat")
    for rule_id, text in (
        ("no-timeout", "no client without a timeout was found"),
        ("layers", "no retries around retries were found"),
        ("cancellation-caught", "cancellation passes through every retry"),
    ):
        if rule_id not in found:
            said.append(text)
    return tuple(said)
