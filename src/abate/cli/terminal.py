"""What people read: text without control characters, tables, one line that is redrawn.

Keys, reasons and errors come from elsewhere. Nothing of them reaches a terminal as it is (see `abate.redact`).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from abate.clock import current
from abate.redact import quoted, redacted

REDRAW = 0.25
"""Seconds between two drawings of the status line, at least."""


def say(text: str) -> None:
    """One line of our own on stderr, told apart from what others write there."""
    print(f"abate: {plain(text)}", file=sys.stderr, flush=True)


def plain(text: object) -> str:
    r"""The text on one line, with secrets hidden and everything that is not printable escaped.

    >>> plain("two\nlines\x1b[2J")
    'two\\nlines\\x1b[2J'
    """
    return quoted(redacted(str(text)))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The rows under their headings, in columns; the last column may be as wide as it likes.

    >>> print(table(["queue", "ready"], [["orders", 12], ["mail", 0]]))
    queue   ready
    orders  12
    mail    0
    """
    lines = [list(map(plain, row)) for row in (headings, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def seconds(value: float | None) -> str:
    """A duration for people.

    >>> seconds(0.25), seconds(75), seconds(7500), seconds(200_000), seconds(None)
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
    """One line on a terminal, redrawn in place, at most four times a second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = 0.0
        self._drawn = False

    def draw(self, text: str) -> None:
        """Show the text in place of what was there, unless that was drawn a moment ago."""
        now = current().now()
        if now < self._next:
            return
        self._next = now + REDRAW
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r{plain(text)[:width]}\x1b[K")
        self._stream.flush()
        self._drawn = True

    def clear(self) -> None:
        """Take the line away."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn, self._next = False, 0.0
