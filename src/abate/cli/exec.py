"""``abate exec``: runs a command, and again when it fails, by the rules of a policy.

What is retried: every exit code but 0 and those that say that another attempt would end the same way (64, a wrong
use; 126 and 127, no such program) or that somebody wanted it to end (SIGINT, SIGTERM). With ``--on``, these codes only.
75 and 69 (sysexits' "try again later" and "unavailable") are an overload, and wait longer; so does an attempt
whose time was up.

What it ends with: the command's last exit code; 124 where our timeout has ended it, 125 for our own errors, 128 + n
after signal n.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from abate import events
from abate.call import Policy
from abate.decide import Ruling
from abate.errors import AbateError, AttemptTimeout, Report, number
from abate.schedule import Backoff, consistent_jitter, deadline, remaining, ticks

if TYPE_CHECKING:
    from abate.cli.budget import SharedBudget
    from abate.cli.child import Signals
    from abate.cli.stdin import Stdin

DEADLINE = "ABATE_DEADLINE"
"""Tells a command how many milliseconds it has."""
TIMED_OUT, OUR_OWN = 124, 125
OVERLOADED = frozenset({69, 75})
FINAL = frozenset({64, 126, 127, 130, 143})
"""Not retried unless asked for; a shell gives 130 and 143 for what SIGINT and SIGTERM have ended."""
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
    add("--attempts", type=int, default=3, metavar="N", help="how many at most, the first included (3)")
    add("--timeout", type=period, metavar="TIME", help="for all attempts and waits together")
    add("--attempt-timeout", type=period, metavar="TIME", help="for one attempt: SIGTERM, then SIGKILL")
    add("--base", type=period, default=0.2, metavar="TIME", help="the first wait, before jitter (0.2)")
    add("--cap", type=period, default=30.0, metavar="TIME", help="the longest wait (30)")
    add("--on", type=exit_codes, metavar="CODES", help="retry these exit codes only, such as 69,75")
    add("--budget", metavar="NAME", help="share a retry budget with all commands that name it")
    add("--ratio", type=float, metavar="SHARE", help="retries that a success pays for (0.2)")
    add("--reserve", type=float, metavar="RATE", help="retries per second beside that (0.2)")
    add(
        "--store",
        metavar="URL",
        help="where budgets are kept, or env:NAME, file:PATH ($ABATE_STORE, or a file of this user)",
    )
    add("--every", type=period, metavar="TIME", help="again and again, at this host's own offset: 30s, 5m, 1h, 1d")
    add("--name", help="what the command is called in messages (its file name)")
    add("--quiet", action="store_true", help="say nothing about retries")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=run, refuse=parser.error)


def period(text: str) -> float:
    """Seconds, written with a unit or without.

    >>> period("90"), period("1.5m"), period("1h")
    (90.0, 90.0, 3600.0)
    """
    number, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1.0)
    try:
        return float(number) * unit
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be seconds, or a number with s, m, h or d, not {text!r}") from None


def exit_codes(text: str) -> frozenset[int]:
    """Exit codes, separated by commas.

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


def inherited() -> AbstractContextManager[object]:
    """The deadline of the `abate exec` that runs this one, if there is one; it can only shorten ours."""
    left = os.environ.get(DEADLINE, "")
    return deadline(int(left) / 1000) if left.isascii() and left.isdigit() and len(left) < 16 else nullcontext()


def rule(only: frozenset[int] | None) -> Callable[[Exception], Ruling | None]:
    """What the exit code of a failed attempt is worth; with `only`, these codes alone are retried.

    >>> from abate.cli.child import CommandFailed
    >>> [rule(None)(CommandFailed.ended(code)) is not None for code in (1, 75, 64, 127, -9, -15)]
    [True, True, False, False, True, False]
    """
    from abate.cli.child import CommandFailed

    def worth(error: Exception) -> Ruling | None:
        if not isinstance(error, CommandFailed):
            return None
        if error.shortage or error.code in OVERLOADED:
            ruling = Ruling.overload()
        else:
            ruling = Ruling.blip()
        retried = error.shortage or (error.code in only if only is not None else error.code not in FINAL)
        return ruling if retried else None

    return worth


class Job:
    """One command and how it is run: by which policy, with what to read, until which signal."""

    def __init__(self, command: list[str], policy: Policy, stdin: Stdin, signals: Signals) -> None:
        self.command = command
        self.policy = policy
        self.stdin = stdin
        self.signals = signals
        self.environment = {name: value for name, value in os.environ.items() if name != DEADLINE}

    def perform(self) -> int:
        """Run the command, with retries; the exit code of it all."""
        from abate.cli import child

        try:
            for attempt in self.policy.attempts():
                with attempt:
                    left = remaining()
                    told = {"ABATE_ATTEMPT": str(attempt.number)}
                    if left is not None:
                        told[DEADLINE] = str(int(left * 1000))
                    child.run(
                        self.command, {**self.environment, **told}, self.signals, stdin=self.stdin.file(), timeout=left
                    )
        except child.CommandFailed as failed:
            return failed.code
        except AttemptTimeout:
            return TIMED_OUT
        return 0

    def repeat(self, every: float, tell: Callable[[str], object]) -> None:
        """Run the command at each beat that is this host's and this command's own, until a signal ends it."""
        from socket import gethostname
        from time import localtime, strftime

        name, key, now = self.policy.name, f"{gethostname()}/{self.policy.name}", self.signals.wall()
        first = now + (consistent_jitter(key, every) - now) % every
        tell(f"{name}: every {every:g} s, first at {strftime('%Y-%m-%d %H:%M:%S', localtime(first))}")
        for tick in ticks(every, key=key, clock=self.signals):
            if tick.missed:
                tell(f"{name}: beats left out, as the last run took longer: {tick.missed}")
            self.perform()


class Lines:
    """A sink that says on stderr what becomes of the attempts."""

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
                pass  # what else there is to say is in the lines above


def run(options: argparse.Namespace) -> int:
    """Run the command until it succeeds or is given up on."""
    if os.name != "posix":
        return _failed("exec needs a system with POSIX signals")
    from abate.cli.child import NOT_FOUND, Ended, Signals
    from abate.cli.stdin import Stdin
    from abate.cli.terminal import say

    def tell(line: str) -> None:
        if not options.quiet:
            say(line)

    command: list[str] = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        options.refuse("what is to be run? Write it behind --")
    if options.every is not None and shutil.which(command[0]) is None:
        return _failed(f"{command[0]}: no such command", NOT_FOUND)  # not only when the first beat comes
    budget = _budget(options, tell)
    try:
        with Signals() as signals:
            policy = _policy(options, command, budget, signals)
            sink = events.install(Lines(tell, policy.max_attempts))
            try:
                repeated = policy.max_attempts > 1 or options.every is not None
                with Stdin(signals, repeated, policy.timeout) as stdin:
                    job = Job(command, policy, stdin, signals)
                    if options.every is not None:
                        job.repeat(options.every, tell)
                    with inherited():
                        return job.perform()
            finally:
                events.remove(sink)
                if budget is not None:
                    budget.close()
    except Ended as ended:
        return 0 if options.every is not None else ended.code
    except AttemptTimeout:
        return _failed("stdin did not end within the timeout", TIMED_OUT)
    except (AbateError, OSError) as error:
        return _failed(error)


def _budget(options: argparse.Namespace, tell: Callable[[str], object]) -> SharedBudget | None:
    """The budget that the options name; what cannot be is a wrong use."""
    if options.budget is None:
        if (options.ratio, options.reserve, options.store) != (None, None, None):
            options.refuse("--ratio, --reserve and --store are a budget's: name it with --budget")
        return None
    from abate.cli.budget import RATIO, RESERVE, SharedBudget
    from abate.stores.input import LONGEST_KEY, text

    ratio = RATIO if options.ratio is None else options.ratio
    reserve = RESERVE if options.reserve is None else options.reserve
    try:
        name = text("--budget", options.budget, LONGEST_KEY, empty=False)
        return SharedBudget(name, options.store, ratio, reserve, tell)
    except ValueError as error:
        options.refuse(str(error))
        raise


def _policy(options: argparse.Namespace, command: list[str], budget: SharedBudget | None, signals: Signals) -> Policy:
    """The policy that the options describe; what cannot be is a wrong use."""
    try:
        if options.every is not None:
            number("--every", options.every, above=0)
        return Policy(
            on=rule(options.on),
            name=options.name or os.path.basename(command[0]),
            attempts=options.attempts,
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
