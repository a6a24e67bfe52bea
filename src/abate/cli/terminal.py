"""Terminal output: escaped text, tables, durations, a status line, a progress bar.

Keys, reasons and errors may come from other machines. They are redacted and escaped before they are printed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

from abate.clock import current
from abate.errors import AbateError
from abate.redact import escaped, redacted

REDRAW = 0.25
"""Minimum seconds between two updates of the status line."""
INTERVAL = " ± "
MEAN = re.compile(f"{INTERVAL}|, ")
"""Where the mean of a figure ends."""
BAR = 24
"""Letters of the progress bar."""


def say(text: str) -> None:
    """Print a line to stderr, with the prefix ``abate:``."""
    print(f"abate: {escape(text)}", file=sys.stderr, flush=True)


def escape(text: object) -> str:
    r"""Return text on one line, with secrets redacted and unprintable characters escaped.

    >>> escape("two\nlines\x1b[2J")
    'two\\nlines\\x1b[2J'
    """
    return escaped(redacted(str(text)))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], figures_from: int | None = None) -> str:
    """Format rows under their headings, in columns. Columns from `figures_from` on are aligned at the end of the mean.

    >>> print(table(["queue", "ready"], [["orders", 12], ["mail", 0]]))
    queue   ready
    orders  12
    mail    0
    >>> print(table(["variant", "p50 (s)"], [["none", "12.5 ± 0.1"], ["full", "7 ± 0.05"]], figures_from=1))
    variant  p50 (s)
    none     12.5 ± 0.1
    full        7 ± 0.05
    """
    lines = [list(map(escape, row)) for row in (headings, *rows)]
    for column in range(len(headings) if figures_from is None else figures_from, len(headings)):
        means = [MEAN.split(line[column], maxsplit=1)[0] for line in lines[1:]]
        width = max(map(len, means), default=0)
        for line, mean in zip(lines[1:], means, strict=True):
            line[column] = mean.rjust(width) + line[column].removeprefix(mean)
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def format_seconds(value: float | None) -> str:
    """Format a duration.

    >>> format_seconds(0.25), format_seconds(75), format_seconds(7500), format_seconds(200_000), format_seconds(None)
    ('0.2 s', '75 s', '125 min', '56 h', '-')
    """
    if value is None:
        return "-"
    if value < 10:
        return f"{value:.1f} s"
    if value < 150:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 150 * 60 else f"{value / 3600:.0f} h"


class StatusLine:
    """A line on a terminal that is redrawn in place, at most four times a second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = 0.0
        self._drawn = False

    def draw(self, text: str) -> None:
        """Replace the line, unless it was drawn less than `REDRAW` seconds ago."""
        now = current().now()
        if now < self._next:
            return
        self._next = now + REDRAW
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r{escape(text)[:width]}\x1b[K")
        self._stream.flush()
        self._drawn = True

    def clear(self) -> None:
        """Remove the line."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn, self._next = False, 0.0


class Progress:
    """A progress bar, if stderr is a terminal.

    >>> with Progress("herd") as progress:
    ...     progress(1, 30)
    """

    def __init__(self, name: str, unit: str = "runs") -> None:
        self._name, self._unit = name, unit
        self._status = StatusLine(sys.stderr) if sys.stderr.isatty() else None
        self._began = current().now()

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.draw(f"{self._name} …")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.clear()

    def __call__(self, done: int, total: int) -> None:
        if self._status is not None:
            self._status.draw(self.line(done, total))

    def line(self, done: int, total: int) -> str:
        """Return the text of the bar."""
        full = BAR * done // total
        left = (current().now() - self._began) / done * (total - done)
        bar = f"{'█' * full}{'░' * (BAR - full)}"
        return f"{self._name} {bar} {done:,} of {total:,} {self._unit}, {format_seconds(left)} left"


def check_writable(option: str, name: str) -> None:
    """Raise an error if a file can't be written, before the work is done.

    >>> check_writable("--report", "no/such/folder/out.html")
    Traceback (most recent call last):
    abate.errors.AbateError: --report no/such/folder/out.html can't be written: there is no folder no/such/folder
    """
    file, refused = Path(name), f"{option} {name} can't be written"
    if not file.parent.is_dir():
        raise AbateError(f"{refused}: there is no folder {file.parent}")
    if file.is_dir():
        raise AbateError(f"{refused}: it is a folder")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise AbateError(f"{refused}: permission denied")
