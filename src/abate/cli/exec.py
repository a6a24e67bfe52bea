"""``abate exec``: run a command, with retries.

Retried are all exit codes except 0, permanent errors (64, wrong usage; 126 and 127, no such program) and requested ends
(SIGINT, SIGTERM). With ``--on``, only the given codes are retried. 75 and 69 (sysexits: "try again later" and
"unavailable") and timeouts count as overload, and wait longer.

Its exit code is the command's last one; 124 after a timeout, 125 for errors of abate, 128 + n after signal n.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from abate import event_sinks, events
from abate.call import Policy
from abate.decide import Ruling
from abate.errors import AbateError, AttemptTimeout, Report, number
from abate.schedule import Backoff, consistent_jitter, deadline, remaining, ticks

if TYPE_CHECKING:
    from abate.cli.command_process import SignalClock
    from abate.cli.replayed_stdin import ReplayedStdin
    from abate.cli.shared_budget import SharedBudget

DEADLINE = "ABATE_DEADLINE"
"""The environment variable with the milliseconds that a command has left."""
TIMED_OUT, OUR_OWN = 124, 125
OVERLOADED = frozenset({69, 75})
FINAL = frozenset({64, 126, 127, 130, 143})
"""Not retried by default; 130 and 143 are a shell's codes for SIGINT and SIGTERM."""
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "exec",
        help="run a command, with retries",
        usage="abate exec [options] -- CMD [ARGS]",
        description="Run a command, and again when it fails. Exit codes: the command's last one; 124 timed out,"
        " 125 abate's own error, 126 not executable, 127 not found, 128+n ended by signal n.",
    )
    add = parser.add_argument
    add("--max-attempts", type=int, default=3, metavar="N", help="attempts at most, including the first (3)")
    add("--timeout", type=period, metavar="TIME", help="for all attempts and waits together")
    add("--attempt-timeout", type=period, metavar="TIME", help="for one attempt: SIGTERM, then SIGKILL")
    add("--base", type=period, default=0.2, metavar="TIME", help="the first wait, before jitter (0.2)")
    add("--cap", type=period, default=30.0, metavar="TIME", help="the longest wait (30)")
    add("--on", type=exit_codes, metavar="CODES", help="retry these exit codes only, such as 69,75")
    add("--budget", metavar="NAME", help="share a retry budget with all commands that name it")
    add("--ratio", type=float, metavar="SHARE", help="retries per success (0.2)")
    add("--reserve", type=float, metavar="RATE", help="retries per second in addition (0.2)")
    add(
        "--store",
        metavar="URL",
        help="where budgets are kept, or env:NAME, file:PATH ($ABATE_STORE, or a file of this user)",
    )
    add(
        "--every",
        type=period,
        metavar="TIME",
        help="repeat at this interval, at this host's own offset: 30s, 5m, 1h, 1d",
    )
    add("--name", help="the name in messages (the file name of the command)")
    add("--quiet", action="store_true", help="print nothing about retries")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=run, refuse=parser.error)


def period(text: str) -> float:
    """Parse seconds, with or without a unit.

    >>> period("90"), period("1.5m"), period("1h")
    (90.0, 90.0, 3600.0)
    """
    number, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1.0)
    try:
        return float(number) * unit
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be seconds, or a number with s, m, h or d, not {text!r}") from None


def exit_codes(text: str) -> frozenset[int]:
    """Parse exit codes, separated by commas.

    >>> sorted(exit_codes("75,69"))
    [69, 75]
    """
    try:
        codes = frozenset(int(code) for code in text.split(","))
    except ValueError:
        codes = frozenset()
    if not codes or not all(1 <= code <= 255 for code in codes):
        raise argparse.ArgumentTypeError(f"must be exit codes from 1 to 255, separated by commas, not {text!r}")
    return codes


def inherited_deadline() -> AbstractContextManager[object]:
    """Return the deadline of an outer `abate exec`, if any; it can only shorten this one."""
    left = os.environ.get(DEADLINE, "")
    return deadline(int(left) / 1000) if left.isascii() and left.isdigit() and len(left) < 16 else nullcontext()


def exit_code_rule(only: frozenset[int] | None) -> Callable[[Exception], Ruling | None]:
    """Return the rule for failed attempts; with `only`, only these codes are retried.

    >>> from abate.cli.command_process import CommandFailed
    >>> [exit_code_rule(None)(CommandFailed.ended(code)) is not None for code in (1, 75, 64, 127, -9, -15)]
    [True, True, False, False, True, False]
    """
    from abate.cli.command_process import CommandFailed

    def judge(error: Exception) -> Ruling | None:
        if not isinstance(error, CommandFailed):
            return None
        if error.shortage or error.code in OVERLOADED:
            ruling = Ruling.overload()
        else:
            ruling = Ruling.blip()
        retried = error.shortage or (error.code in only if only is not None else error.code not in FINAL)
        return ruling if retried else None

    return judge


class Job:
    """A command, its policy, its stdin and its signals."""

    def __init__(self, command: list[str], policy: Policy, stdin: ReplayedStdin, signals: SignalClock) -> None:
        self.command = command
        self.policy = policy
        self.stdin = stdin
        self.signals = signals
        self.environment = {name: value for name, value in os.environ.items() if name != DEADLINE}

    def perform(self) -> int:
        """Run the command with retries, and return the exit code."""
        from abate.cli import command_process

        try:
            for attempt in self.policy.attempts():
                with attempt:
                    left = remaining()
                    told = {"ABATE_ATTEMPT": str(attempt.number)}
                    if left is not None:
                        told[DEADLINE] = str(int(left * 1000))
                    command_process.run(
                        self.command, {**self.environment, **told}, self.signals, stdin=self.stdin.file(), timeout=left
                    )
        except command_process.CommandFailed as failed:
            return failed.code
        except AttemptTimeout:
            return TIMED_OUT
        return 0

    def repeat(self, every: float, tell: Callable[[str], object]) -> None:
        """Run the command at a fixed interval, at the offset of this host and command, until a signal ends it."""
        from socket import gethostname
        from time import localtime, strftime

        name, key, now = self.policy.name, f"{gethostname()}/{self.policy.name}", self.signals.wall()
        first = now + (consistent_jitter(key, every) - now) % every
        tell(f"{name}: every {every:g} s, first at {strftime('%Y-%m-%d %H:%M:%S', localtime(first))}")
        for tick in ticks(every, key=key, clock=self.signals):
            if tick.missed:
                tell(f"{name}: {tick.missed} runs skipped, as the last one took too long")
            self.perform()


class StderrSink:
    """A sink that prints failed attempts, give-ups and recoveries to stderr."""

    def __init__(self, tell: Callable[[str], object], attempts: int) -> None:
        self.tell = tell
        self.attempts = attempts

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Retry(name, attempt, delay, _, _, error):
                self.tell(f"{name}: {error} on attempt {attempt} of {self.attempts}, next in {delay:.3g} s")
            case events.GaveUp(name, "fatal", error=error):
                self.tell(f"{name}: {error}, which is not retried")
            case events.GaveUp(name, "cancelled", error=error):
                self.tell(f"{name}: {error}")
            case events.GaveUp(name, reason, attempts, waited, error):
                self.tell(f"{Report(name, attempts, waited, reason)} ({error})")
            case events.Recovered(name, attempts, waited):
                self.tell(f"{name}: succeeded on attempt {attempts} after {waited:.3g} s of waiting")
            case _:
                pass  # the lines above cover the rest


def run(options: argparse.Namespace) -> int:
    """Run the command until it succeeds, or retries end."""
    if os.name != "posix":
        return _failed("exec needs a system with POSIX signals")
    from abate.cli.command_process import NOT_FOUND, SignalClock, StoppedBySignal
    from abate.cli.terminal import say

    def tell(line: str) -> None:
        if not options.quiet:
            say(line)

    command: list[str] = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        options.refuse("no command: write it after --")
    if options.every is not None and shutil.which(command[0]) is None:
        return _failed(f"{command[0]}: no such command", NOT_FOUND)  # now, not at the first run
    budget = _budget(options, tell)
    try:
        with SignalClock() as signals:
            policy = _policy(options, command, budget, signals)
            return _run_job(options, command, policy, signals, tell)
    except StoppedBySignal as ended:
        return 0 if options.every is not None else ended.code
    except AttemptTimeout:
        return _failed("stdin did not end within the timeout", TIMED_OUT)
    except (AbateError, OSError) as error:
        return _failed(error)
    finally:
        if budget is not None:
            budget.close()


def _run_job(
    options: argparse.Namespace,
    command: list[str],
    policy: Policy,
    signals: SignalClock,
    tell: Callable[[str], object],
) -> int:
    from abate.cli.replayed_stdin import ReplayedStdin

    sink = event_sinks.install(StderrSink(tell, options.max_attempts))
    try:
        repeated = policy.attempt_limit > 1 or options.every is not None
        with ReplayedStdin(signals, repeated, policy.timeout) as stdin:
            job = Job(command, policy, stdin, signals)
            if options.every is not None:
                job.repeat(options.every, tell)
            with inherited_deadline():
                return job.perform()
    finally:
        event_sinks.remove(sink)


def _budget(options: argparse.Namespace, tell: Callable[[str], object]) -> SharedBudget | None:
    """Return the budget of the options; refuse invalid ones."""
    if options.budget is None:
        if (options.ratio, options.reserve, options.store) != (None, None, None):
            options.refuse("--ratio, --reserve and --store need --budget")
        return None
    from abate.cli.shared_budget import RATIO, RESERVE, SharedBudget
    from abate.stores.encoding import MAX_KEY_BYTES, checked_text

    ratio = RATIO if options.ratio is None else options.ratio
    reserve = RESERVE if options.reserve is None else options.reserve
    try:
        name = checked_text("--budget", options.budget, MAX_KEY_BYTES, empty=False)
        return SharedBudget(name, options.store, ratio, reserve, tell)
    except ValueError as error:
        options.refuse(str(error))
        raise


def _policy(
    options: argparse.Namespace, command: list[str], budget: SharedBudget | None, signals: SignalClock
) -> Policy:
    """Return the policy of the options; refuse invalid ones."""
    try:
        if options.every is not None:
            number("--every", options.every, above=0)
        return Policy(
            on=exit_code_rule(options.on),
            name=options.name or os.path.basename(command[0]),
            max_attempts=options.max_attempts,
            timeout=options.timeout,
            attempt_timeout=options.attempt_timeout,
            backoff=Backoff(options.base, options.cap),
            budget=budget,
            clock=signals,
        )
    except ValueError as error:
        options.refuse(str(error))
        raise


def _failed(why: object, code: int = OUR_OWN) -> int:
    from abate.cli.terminal import say

    say(str(why))
    return code
