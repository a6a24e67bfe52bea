"""Logging that can't break what logs, and whose lines nobody else can write.

The standard library's handlers report their own errors and go on. A handler or filter of somebody else's may raise
instead, into the code that logs. Here such an error goes to stderr, as the standard library does with its own.

Every argument passes through `abate.redact`: one call is one line, without control characters and without the secrets
that stand in errors. A traceback follows in lines that are indented, so that none of them looks like a line of the log;
the error itself is in the record's `exc_info`, as it is.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from abate.redact import line, shown, trace

if TYPE_CHECKING:
    from logging import Logger

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
"""Levels, as `logging` numbers them."""
LONGEST = 2000
"""Characters of one argument."""
INDENT = "  "


class Log:
    r"""The logger of that name; none of the methods raises an `Exception`.

    >>> import logging, sys
    >>> handler = logging.StreamHandler(sys.stdout)
    >>> logging.getLogger("abate.doc").addHandler(handler)
    >>> Log("abate.doc").warning("%s failed", "http://me:secret@cache/\nERROR forged")
    http://***@cache/\nERROR forged failed
    >>> logging.getLogger("abate.doc").removeHandler(handler)
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

        given = tuple(arg if type(arg) in (int, float, bool) else Shown(arg) for arg in args)
        try:
            logger = logging.getLogger(self.name)
            if logger.isEnabledFor(level):
                _write(logger, level, text, given, error)
        except Exception:
            if logging.raiseExceptions:
                _complain(text, given)


class Shown:
    """A thing in a line of the log; its text is made when a handler asks for it."""

    __slots__ = ("_thing",)

    def __init__(self, thing: object) -> None:
        self._thing = thing

    def __str__(self) -> str:
        try:
            return line(str(self._thing), LONGEST)
        except Exception:
            return shown(self._thing, LONGEST)

    def __repr__(self) -> str:
        return shown(self._thing, LONGEST)


def _write(logger: Logger, level: int, text: str, args: tuple[object, ...], error: BaseException | None) -> None:
    """Hand over a record that has its traceback as text: formatters take that before they make one of their own."""
    file, number, function, _ = logger.findCaller(stacklevel=4)
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    record = logger.makeRecord(logger.name, level, file, number, text, args, exc_info, function)
    if error is not None:
        record.exc_text = trace(error, INDENT)
    logger.handle(record)


def _complain(text: str, args: tuple[Any, ...]) -> None:
    """Show on stderr what could not be logged, and why."""
    error = sys.exc_info()[1]
    try:
        why = "" if error is None else trace(error, INDENT)
        sys.stderr.write(f"--- logging failed on {text!r} {args!r}\n{why}\n")
    except Exception:  # stderr is closed
        pass
