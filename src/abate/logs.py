"""Logging that can't break what logs.

The standard library's handlers report their own errors and go on. A handler or filter of somebody else's may raise
instead, into the code that logs. Here such an error goes to stderr, as the standard library does with its own.
"""

from __future__ import annotations

import sys
from typing import Any

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
"""Levels, as `logging` numbers them."""


class Log:
    """The logger of that name; none of the methods raises an `Exception`.

    >>> Log("abate.work").warning("%s: most messages fail", "orders")
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def debug(self, text: str, *args: object) -> None:
        """Log at the level DEBUG."""
        self._log(DEBUG, text, args)

    def info(self, text: str, *args: object) -> None:
        """Log at the level INFO."""
        self._log(INFO, text, args)

    def warning(self, text: str, *args: object) -> None:
        """Log at the level WARNING."""
        self._log(WARNING, text, args)

    def error(self, text: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Log at the level ERROR, with a traceback if there is an error to show."""
        self._log(ERROR, text, args, exc_info)

    def exception(self, text: str, *args: object) -> None:
        """Log at the level ERROR, with the error that is being handled."""
        self._log(ERROR, text, args, sys.exc_info()[1])

    def log(self, level: int, text: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Log at a level, with a traceback if there is an error to show."""
        self._log(level, text, args, exc_info)

    def _log(self, level: int, text: str, args: tuple[object, ...], error: BaseException | None = None) -> None:
        import logging  # when there is something to say: importing it takes longer than importing the core

        try:
            logging.getLogger(self.name).log(level, text, *args, exc_info=error, stacklevel=3)
        except Exception:
            if logging.raiseExceptions:
                _complain(text, args)


def _complain(text: str, args: tuple[Any, ...]) -> None:
    """Show on stderr what could not be logged, and why."""
    from traceback import format_exc

    try:
        sys.stderr.write(f"--- logging failed on {text!r} {args!r}\n{format_exc()}")
    except Exception:  # stderr is closed, or an argument has no repr
        pass
