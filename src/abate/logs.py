"""Logging that never raises into the code that logs, and whose messages cannot be forged by logged values.

The standard library's handlers report their own errors and go on. Other handlers and filters may raise into the code
that logs. Here such an error goes to stderr, as with the standard library's handlers.

Every argument passes through `abate.redact`: one call is one line, without control characters and without the secrets
in error messages. A traceback follows in indented lines, so that none of them looks like a log message; the error
itself is in the record's `exc_info`, unchanged.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from abate.redact import one_line, short_repr, trace

if TYPE_CHECKING:
    from logging import Logger

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
"""Levels, as `logging` numbers them."""
MAX_ARGUMENT = 2000
"""The most characters of one argument."""
INDENT = "  "


class Log:
    r"""A logger whose methods never raise an `Exception`.

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
        import logging  # on first use: importing it takes longer than importing the core

        given = tuple(arg if type(arg) in (int, float, bool) else LazyText(arg) for arg in args)
        try:
            logger = logging.getLogger(self.name)
            if logger.isEnabledFor(level):
                _write(logger, level, text, given, error)
        except Exception:
            report_error(text, given)


class LazyText:
    """A logged argument; its text is computed when a handler needs it."""

    __slots__ = ("_thing",)

    def __init__(self, thing: object) -> None:
        self._thing = thing

    def __str__(self) -> str:
        try:
            return one_line(str(self._thing), MAX_ARGUMENT)
        except Exception:
            return short_repr(self._thing, MAX_ARGUMENT)

    def __repr__(self) -> str:
        return short_repr(self._thing, MAX_ARGUMENT)


def _write(logger: Logger, level: int, text: str, args: tuple[object, ...], error: BaseException | None) -> None:
    """Pass on a record with its traceback as text, which formatters use instead of formatting their own."""
    file, number, function, _ = logger.findCaller(stacklevel=4)
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    record = logger.makeRecord(logger.name, level, file, number, text, args, exc_info, function)
    if error is not None:
        record.exc_text = trace(error, INDENT)
    logger.handle(record)


def report_error(text: str, args: tuple[Any, ...] = ()) -> None:
    """Print to stderr what could not be logged, and why, unless the program has switched that off."""
    import logging

    # a signal handler or a finalizer that interrupted the import of `logging` finds an incomplete module
    if not getattr(logging, "raiseExceptions", True):
        return
    error = sys.exc_info()[1]
    try:
        why = "" if error is None else trace(error, INDENT)
        sys.stderr.write(f"--- logging failed on {text!r} {args!r}\n{why}\n")
    except Exception:  # stderr is closed
        pass
