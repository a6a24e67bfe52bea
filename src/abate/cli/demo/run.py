"""Both ways one after the other: shown as it happens, and then as a table and a report."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from abate.cli.demo.children import ChildLost
from abate.cli.demo.live import Live
from abate.cli.demo.passage import Passage, go
from abate.cli.demo.picture import LABELS, picture
from abate.cli.demo.report import report
from abate.cli.demo.scenario import FAST, FULL, Scenario
from abate.cli.demo.table import headline, table
from abate.cli.terminal import StatusLine, say

LOOK = 0.25
"""Seconds between two looks at how far it is."""
LINE = 2.0
"""Seconds between two lines where there is no terminal."""
MISSING = "not installed; pip install 'abate[page]' brings it"
WRONG, FAILED = 2, 1
"""Exit codes: what was asked for can't be done; the demo broke down."""


def show(fast: bool, report_file: str | None, picture_file: str | None) -> int:
    """Run the demo; the exit code."""
    for name in filter(None, (report_file, picture_file)):
        if trouble := unwritable(Path(name)):
            say(trouble)
            return WRONG
    stage = Stage(FAST if fast else FULL)
    try:
        asyncio.run(stage.play())
    except asyncio.CancelledError:
        return 128 + stage.signal
    except ChildLost as error:
        say(f"the demo has failed: {error}")
        return FAILED
    naive, abated = stage.passages
    print(f"{headline(stage.scenario)}\n\n{table(naive, abated)}\n")
    print(f"report: {saved(report(naive, abated), report_file)}")
    if picture_file is not None:
        print(f"picture: {saved(picture([naive, abated]), picture_file)}")
    return 0


def unwritable(file: Path) -> str | None:
    """Why a file can't be written, if so: a minute is a long time to wait for that."""
    if not file.parent.is_dir():
        return f"{file} can't be written: there is no folder {file.parent}"
    if file.is_dir():
        return f"{file} can't be written: it is a folder"
    return None if os.access(file if file.exists() else file.parent, os.W_OK) else f"{file} can't be written"


def saved(text: str, name: str | None) -> Path:
    """Write it to that file, or to a temporary one that stays."""
    if name is None:
        number, name = tempfile.mkstemp(prefix="abate-demo-", suffix=".html")
        os.close(number)
    Path(name).write_text(text, encoding="utf-8")
    return Path(name).absolute()


class Stage:
    """Where both ways are played, and watched."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.passages = [Passage("naive", scenario)]
        self.signal = 0

    async def play(self) -> None:
        """Play both."""
        self._cancelled_by(signal.SIGTERM, signal.SIGHUP)
        live = Live(self.view)
        say(f"{headline(self.scenario)}; live at {await live.start()}")
        watching = asyncio.ensure_future(self._watch())
        try:
            await go(self.passages[0])
            self.passages.append(Passage("abate", self.scenario))
            await go(self.passages[1])
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            await live.stop()

    def view(self) -> dict[str, object]:
        """What the live page shows."""
        return {
            "words": words(self.passages[-1]),
            "picture": picture(self.passages),
            "page": self.passages[-1].page,
        }

    async def _watch(self) -> None:
        """Say how far it is: on a terminal in one line that is redrawn, elsewhere in a line now and then."""
        status, told = StatusLine(sys.stderr) if sys.stderr.isatty() else None, False
        try:
            while True:
                await asyncio.sleep(LINE if status is None else LOOK)
                passage = self.passages[-1]
                if passage.way == "abate" and passage.arrivals and not told:
                    told = True
                    if status is not None:
                        status.clear()
                    say(f"abate's own live page: {passage.page or MISSING}")
                if status is None:
                    say(words(passage))
                else:
                    status.draw(words(passage))
        finally:
            if status is not None:
                status.clear()

    def _cancelled_by(self, *signals: signal.Signals) -> None:
        """End in good order by these signals too; SIGINT is asyncio's."""
        playing = asyncio.current_task()
        assert playing is not None

        def cancel(number: signal.Signals, cancelled: asyncio.Task[object] = playing) -> None:
            self.signal = number
            cancelled.cancel()

        for number in signals:
            if signal.getsignal(number) is signal.SIG_IGN:  # by nohup
                continue
            asyncio.get_running_loop().add_signal_handler(number, cancel, number)


def words(passage: Passage) -> str:
    """How far one way is, in a line."""
    if not passage.arrivals:
        return f"with {LABELS[passage.way]}: the processes start"
    since = passage.now - passage.scenario.outage
    if passage.recovered is not None:
        weather = "all in step"
    elif since >= 0:
        weather = "API up again"
    else:
        weather = "API answers 503" if passage.now > 0 else "calm"
    return (
        f"with {LABELS[passage.way]}, {passage.now:+.1f} s: {weather}; {passage.attempts} attempts, "
        f"{passage.lately}/s; {passage.written} written"
    )
