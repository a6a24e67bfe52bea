"""What a policy leaves on an error that it gave up on: a report for people, a mark for the layers around it.

One layer retries: a policy does not retry an error if a policy inside its attempt has retried that work already, as
the attempts would multiply. Four things must hold for that. A call that succeeds pays for none of them:

* The inner call made more than one attempt; or nothing may repeat it (`FOR_ALL`); or it stopped for a layer further in.
* Its first retry came after the attempt around it had begun: calls that retry are numbered, and an attempt notes the
  last number.
* The error is that one, or was made of it: raised ``from`` it, a member of a group, or a translation (`translated`).
  What a fallback raises after it is an error of its own.
* The inner call ran in the task and thread of the attempt around it. If it ran elsewhere, the error has come out of it:
  the traceback leads through the inner call. Which policies the two calls belong to does not matter.

The traceback of an error object that is raised again and again leads through every call that it was raised in. If the
inner call met one object in two attempts in a row, its mark counts in its own task and thread only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from threading import get_ident
from types import FrameType, TracebackType

from abate.errors import Report

NOTE = "abate: "
DEEPEST = 100
"""How many errors of one chain are looked at."""
FOR_ALL = frozenset({"unsafe", "hint", "budget"})
"""Reasons that hold for whoever would repeat the work, also where it was tried once only."""
ALONE = 0
"""The number of a give-up that concerns no layer around it."""


class GiveUp:
    """The mark on an error: the report, the number of the call's first retry, and where the call ran."""

    __slots__ = ("place", "report", "serial", "trace")

    def __init__(self, report: Report, serial: int, trace: TracebackType | None = None) -> None:
        self.report = report
        self.serial = serial
        self.place = place()
        self.trace = trace
        """The traceback at the time of the give-up; None for an object that is raised again and again."""

    def __reduce__(self) -> tuple[type[_Travelled], tuple[Report]]:
        return _Travelled, (self.report,)


class _Travelled(GiveUp):
    """The mark on an error that came from another process: it tells its report, and belongs to no call here."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.trace = None
        self.place = (0, 0)
        self.serial = ALONE


class GiveUps:
    """Numbers the calls of this process that retry, so that one can be told to lie within an attempt or before it.

    An attempt notes `last` when it begins, which is all that the success path pays. A call that was retried before
    the attempt began has a lower number, and so has an error object that is raised again later.
    """

    __slots__ = ("last", "next")

    def __init__(self) -> None:
        self.last = 0
        self.next: Callable[[], int] = count(1).__next__


give_ups = GiveUps()


class Watch:
    """Whether a policy has given up on anything here."""

    __slots__ = ("exhausted",)

    def __init__(self) -> None:
        self.exhausted = False


_watch: ContextVar[Watch | None] = ContextVar("abate_watch", default=None)


@contextmanager
def watching() -> Generator[Watch]:
    """Watch the block, and the tasks started in it, for calls that have retried, and ended all the same.

    >>> import abate
    >>> with watching() as watch:
    ...     try: abate.Policy(on=OSError, attempts=2, backoff=[0.0]).call(abate.testing.Script(OSError(), OSError()))
    ...     except OSError: pass
    >>> watch.exhausted
    True
    """
    watch, outer = Watch(), _watch.get()
    _watch.set(watch)
    try:
        yield watch
    finally:
        if _watch.get() is watch:  # else it ends in another context, as a response's body may
            _watch.set(outer)


def tell_watch() -> None:
    """Tell who watches here that a policy has retried, and given up."""
    watch = _watch.get()
    if watch is not None:
        watch.exhausted = True


def mark(error: BaseException, give_up: GiveUp) -> None:
    """Leave the report on the error, for `abate.report`, for tracebacks, and for the layers around."""
    earlier, report = _mark_of(error), give_up.report
    notes: list[str] | None = error.__dict__.get("__notes__")
    if earlier is not None and notes is not None:
        try:
            notes.remove(NOTE + str(earlier.report))
        except ValueError:
            pass  # it had none, or another thread that gave up on the same error has just taken it away
    _put(error, "__abate__", give_up)
    if report.reason != "fatal" or report.attempts > 1:
        if notes is None:
            _put(error, "__notes__", [NOTE + str(report)])
        else:
            notes.append(NOTE + str(report))


_put = BaseException.__setattr__
"""Sets an attribute of errors whose class refuses that as well, such as frozen dataclasses."""


def _mark_of(error: BaseException) -> GiveUp | None:
    return error.__dict__.get("__abate__")  # not by getattr: there are errors with an answer to every name


def report(error: BaseException) -> Report | None:
    """The report that a policy left on `error`, or on an error that it was raised from or after; None without one.

    >>> import abate
    >>> try:
    ...     abate.Policy(on=ConnectionError, attempts=1, name="orders").call(abate.testing.Script(ConnectionError()))
    ... except ConnectionError as error:
    ...     report(error)
    Report(policy='orders', attempts=1, waited=0.0, reason='attempts', inner=None)
    """
    if not isinstance(error, BaseException):
        raise TypeError(f"report() takes the exception that a call raised, not a {type(error).__name__}")
    for found in chain(error):
        give_up = _mark_of(found)
        if give_up is not None:
            return give_up.report
    return None


def given_up_within(error: BaseException, since: int) -> GiveUp | None:
    """Return the mark that a policy inside the attempt left on this error, or on one that it was made of.

    `since` is the last number when the attempt began.
    """
    if (
        _mark_of(error) is None
        and error.__context__ is None
        and error.__cause__ is None
        and not isinstance(error, BaseExceptionGroup)
    ):
        return None  # the usual case, without a walk
    for found in chain(error, translated):
        give_up = _mark_of(found)
        if give_up is not None and give_up.serial > since and _within(give_up, found):
            return give_up
    return None


def _within(give_up: GiveUp, error: BaseException) -> bool:
    """Return whether the error came to this attempt through the call that gave up on it."""
    if give_up.place == place():
        return True
    trace = error.__traceback__
    while trace is not None and trace is not give_up.trace:
        trace = trace.tb_next
    return trace is not None


def _always(error: BaseException, context: BaseException) -> bool:
    return True


def chain(
    error: BaseException, follow: Callable[[BaseException, BaseException], bool] = _always
) -> Iterator[BaseException]:
    """An error, the errors it was raised from or within, and those it groups; each once.

    `follow` is asked about an error and the one that was being handled when it was raised.
    """
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < DEEPEST:
        found = waiting.pop(0)
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        cause, context = found.__cause__, found.__context__
        if cause is not None:
            waiting.append(cause)
        if context is not None and context is not cause and follow(found, context):
            waiting.append(context)
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions


EXITS = frozenset({"__exit__", "__aexit__"})


def translated(error: BaseException, context: BaseException) -> bool:
    """Return whether `error` was made of `context`, which was being handled when it was raised.

    It was, if it was raised

    * by a ``raise`` statement in the function that caught `context`;
    * by a ``raise`` statement in a function called from there that has `context` at hand, as an argument or a variable;
    * by a context manager that was left because of `context`: there is no fallback in ``__exit__``.

    Anything else comes from what was done next, which may have failed by itself.
    """
    caught, trace = context.__traceback__, error.__traceback__
    if caught is None:
        return False
    catching = raising = None
    while trace is not None:
        if trace.tb_frame is caught.tb_frame:
            catching = trace
        raising, trace = trace, trace.tb_next
    if catching is None or raising is None:
        return False
    called = catching.tb_next
    if called is not None and called.tb_frame.f_code.co_name in EXITS:
        return True
    return _is_raise(raising) and (called is None or _has_at_hand(raising.tb_frame, context))


def _is_raise(trace: TracebackType) -> bool:
    from opcode import opmap

    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == opmap["RAISE_VARARGS"]


def _has_at_hand(frame: FrameType, error: BaseException) -> bool:
    """Return whether one of the function's variables is the error, or a tuple with it, such as ``sys.exc_info()``."""
    for value in list(frame.f_locals.values()):
        if value is error or (type(value) is tuple and any(item is error for item in value)):
            return True
    return False


def place() -> tuple[int, int]:
    """Which thread and which task this code runs in."""
    return get_ident(), _task()


def _task() -> int:
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return id(trio.lowlevel.current_task())
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return 0
    try:
        return id(asyncio.current_task())
    except RuntimeError:  # no loop runs in this thread
        return 0
