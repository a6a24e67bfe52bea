"""Both runs one after the other: progress while they run, then a table and a report."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from abate.cli.demo.child_processes import ChildExited
from abate.cli.demo.html_report import report
from abate.cli.demo.measured_run import DemoRun, run_once
from abate.cli.demo.picture import LABELS, picture
from abate.cli.demo.settings import FAST, FULL, DemoSettings
from abate.cli.demo.table import comparison, headline
from abate.cli.terminal import StatusLine, check_writable, say
from abate.errors import AbateError

REFRESH = 0.25
"""Seconds between two updates of the status line."""
LINE = 2.0
"""Seconds between two lines where stderr is not a terminal."""
MISSING = "not installed; pip install 'abate[page]' adds it"
REFUSED, FAILED = 2, 1
"""Exit codes: wrong input; a child process has ended too early."""


def run_demo(fast: bool, report_file: str | None, picture_file: str | None) -> int:
    """Run the demo, and return the exit code."""
    try:
        for option, name in (("--report", report_file), ("--picture", picture_file)):
            if name is not None:
                check_writable(option, name)
    except AbateError as error:
        say(str(error))
        return REFUSED
    demo = Demo(FAST if fast else FULL)
    try:
        asyncio.run(demo.run())
    except asyncio.CancelledError:
        return 128 + demo.signal
    except ChildExited as error:
        say(f"the demo has failed: {error}")
        return FAILED
    naive, abated = demo.runs
    print(f"{headline(demo.settings)}\n\n{comparison(naive, abated)}\n")
    print(f"report: {save(report(naive, abated), report_file)}")
    if picture_file is not None:
        print(f"picture: {save(picture([naive, abated]), picture_file)}")
    return 0


def save(text: str, name: str | None) -> Path:
    """Write text to a file, or to a temporary file that stays; return its path."""
    if name is None:
        number, name = tempfile.mkstemp(prefix="abate-demo-", suffix=".html")
        os.close(number)
    Path(name).write_text(text, encoding="utf-8")
    return Path(name).absolute()


class Demo:
    """Makes both runs, and shows their progress."""

    def __init__(self, settings: DemoSettings) -> None:
        self.settings = settings
        self.runs = [DemoRun("naive", settings)]
        self.signal = 0

    async def run(self) -> None:
        """Make both runs."""
        self._cancel_on(signal.SIGTERM, signal.SIGHUP)
        say(headline(self.settings))
        watching = asyncio.ensure_future(self._watch())
        try:
            await run_once(self.runs[0])
            self.runs.append(DemoRun("abate", self.settings))
            await run_once(self.runs[1])
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _watch(self) -> None:
        """Show progress: on a terminal in a line that is redrawn, elsewhere in a line every two seconds."""
        status, told = StatusLine(sys.stderr) if sys.stderr.isatty() else None, False
        try:
            while True:
                await asyncio.sleep(LINE if status is None else REFRESH)
                run = self.runs[-1]
                if run.way == "abate" and run.arrivals and not told:
                    told = True
                    if status is not None:
                        status.clear()
                    say(f"abate's live page: {run.page or MISSING}")
                if status is None:
                    say(progress(run))
                else:
                    status.draw(progress(run))
        finally:
            if status is not None:
                status.clear()

    def _cancel_on(self, *signals: signal.Signals) -> None:
        """Cancel the demo on these signals; asyncio handles SIGINT."""
        task = asyncio.current_task()
        assert task is not None

        def cancel(number: signal.Signals, cancelled: asyncio.Task[object] = task) -> None:
            self.signal = number
            cancelled.cancel()

        for number in signals:
            if signal.getsignal(number) is signal.SIG_IGN:  # by nohup
                continue
            asyncio.get_running_loop().add_signal_handler(number, cancel, number)


def progress(run: DemoRun) -> str:
    """Return the progress of a run in a line."""
    if not run.arrivals:
        return f"with {LABELS[run.way]}: processes start"
    since = run.now - run.settings.outage
    if run.recovered is not None:
        state = "all in step"
    elif since >= 0:
        state = "API up again"
    else:
        state = "API answers 503" if run.now > 0 else "API up"
    return (
        f"with {LABELS[run.way]}, {run.now:+.1f} s: {state}; {run.attempts} attempts, "
        f"{run.last_second}/s; {run.written} written"
    )
