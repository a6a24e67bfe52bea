"""What a policy attaches to an error that it gave up on: a report for people, and a mark for outer policies.

Only one layer retries: a policy does not retry an error if a policy inside its attempt has retried that work already,
because attempts would multiply. Four conditions must hold. A successful call pays for none of them:

* The inner call made more than one attempt; or nothing may repeat it (`forbids_repeating`); or it stopped because
  of another inner layer.
* Its first retry came after the outer attempt began: calls that retry are numbered, and an attempt stores the last
  number.
* The error is the same, or derived from it: raised ``from`` it, a member of a group, a translation (`is_translation`),
  or raised for the response that an HTTP client gave up on. An error that a fallback raises later is a different one.
* The inner call ran in the task and thread of the outer attempt; or the error's traceback leads through the inner call.
  Which policies the two calls belong to does not matter.

The traceback of an error object that is raised repeatedly leads through every call that raised it. If the inner call
got the same object in two attempts in a row, its mark counts in its own task and thread only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from threading import get_ident
from types import FrameType, TracebackType

from abate.clock import in_trio
from abate.decide.responses import forbids_repeating, read, report_on
from abate.errors import Report, RetryExhausted

NOTE = "abate: "
MAX_CHAIN = 100
"""The most errors of one chain that are checked."""
NO_LAYER = 0
"""The serial of a give-up that does not concern outer layers."""


class GiveUp:
    """The mark on an error: the report, the serial of the call's first retry, and where the call ran."""

    __slots__ = ("advice", "report", "serial", "thread_and_task", "trace")

    def __init__(self, report: Report, serial: int, trace: TracebackType | None = None, advice: str = "") -> None:
        self.report = report
        self.serial = serial
        self.thread_and_task = thread_and_task()
        self.trace = trace
        """The traceback at the time of the give-up; None for an object that is raised repeatedly."""
        self.advice = advice
        """What to do about it, for the note."""

    @property
    def note(self) -> str:
        """What the traceback of the error shows."""
        return f"{NOTE}{self.report} ({self.advice})" if self.advice else f"{NOTE}{self.report}"

    def __reduce__(self) -> tuple[type[_UnpickledGiveUp], tuple[Report, str]]:
        return _UnpickledGiveUp, (self.report, self.advice)


class _UnpickledGiveUp(GiveUp):
    """The mark on an error from another process: it has a report, and belongs to no call here."""

    def __init__(self, report: Report, advice: str = "") -> None:
        self.report = report
        self.advice = advice
        self.trace = None
        self.thread_and_task = (0, 0)
        self.serial = NO_LAYER


class RetrySerials:
    """Numbers the calls of this process that retry, to tell whether one lies within an attempt or before it.

    An attempt stores `last` when it begins: the only cost of the success path. A call that was retried before
    the attempt began has a lower number, and so has an error object that is raised again later.
    """

    __slots__ = ("last", "numbers")

    def __init__(self) -> None:
        self.last = 0
        self.numbers: Iterator[int] = count(1)


retry_serials = RetrySerials()


class ExhaustedFlag:
    """Whether a policy has given up on anything here."""

    __slots__ = ("exhausted",)

    def __init__(self) -> None:
        self.exhausted = False


_exhausted_flag: ContextVar[ExhaustedFlag | None] = ContextVar("abate_watch", default=None)


@contextmanager
def watch_for_exhausted() -> Generator[ExhaustedFlag]:
    """Watch the block, and the tasks started in it, for calls that gave up after retries.

    >>> import abate
    >>> with watch_for_exhausted() as watch:
    ...     policy = abate.Policy(on=OSError, max_attempts=2, backoff=[0.0])
    ...     try: policy.call(abate.testing.Script(OSError(), OSError()))
    ...     except OSError: pass
    >>> watch.exhausted
    True
    """
    watch, outer = ExhaustedFlag(), _exhausted_flag.get()
    _exhausted_flag.set(watch)
    try:
        yield watch
    finally:
        if _exhausted_flag.get() is watch:  # else the block ends in another context, like a response's body
            _exhausted_flag.set(outer)


def flag_exhausted() -> None:
    """Tell the watching block that a policy has retried and given up."""
    watch = _exhausted_flag.get()
    if watch is not None:
        watch.exhausted = True


def mark(error: BaseException, give_up: GiveUp) -> None:
    """Attach the report to the error, for `abate.report`, tracebacks and outer layers."""
    earlier, report = _mark_of(error), give_up.report
    notes: list[str] | None = error.__dict__.get("__notes__")
    if earlier is not None and notes is not None:
        try:
            notes.remove(earlier.note)
        except ValueError:
            pass  # another thread that gave up on the same error has removed it
    _put(error, "__abate__", give_up)
    if isinstance(error, RetryExhausted) and error.report is report and not give_up.advice:
        return  # its text is this report
    if report.reason != "fatal" or report.attempts > 1:
        if notes is None:
            _put(error, "__notes__", [give_up.note])
        else:
            notes.append(give_up.note)


_put = BaseException.__setattr__
"""Sets attributes even if the class refuses, as frozen dataclasses do."""


def _mark_of(error: BaseException) -> GiveUp | None:
    return error.__dict__.get("__abate__")  # not getattr: some errors have an attribute for every name


def report(source: object) -> Report | None:
    """Return the report of a call that was given up; None without one.

    `source` is the error that the call raised, or one that was raised from it or from its response; or the response
    that an HTTP client of abate returned.

    >>> import abate
    >>> policy = abate.Policy(on=ConnectionError, max_attempts=1, name="orders")
    >>> try:
    ...     policy.call(abate.testing.Script(ConnectionError()))
    ... except ConnectionError as error:
    ...     report(error)
    Report(policy='orders', attempts=1, waited=0.0, reason='attempts', inner=None)
    """
    if not isinstance(source, BaseException):
        if not _is_response(source):
            raise TypeError(
                "report() takes the exception that a call raised, or the response of an HTTP client, not a"
                f" {type(source).__name__}"
            )
        return report_on(source)
    for found in error_chain(source):
        give_up = _mark_of(found)
        attached = report_on(_response_of(found)) if give_up is None else give_up.report
        if attached is not None:
            return attached
    return None


def _is_response(source: object) -> bool:
    return any(isinstance(read(source, name), int) for name in ("status_code", "status"))


def given_up_within(error: BaseException, since: int) -> GiveUp | None:
    """Return the mark that a policy inside the attempt attached to this error, or to one that it is derived from.

    `since` is the last serial when the attempt began; there have been retries since. An error about a response
    (``raise_for_status``) has the mark of the client that gave up on that response.
    """
    if (
        _mark_of(error) is None
        and error.__context__ is None
        and error.__cause__ is None
        and not isinstance(error, BaseExceptionGroup)
    ):
        return given_up_on(_response_of(error))  # the usual case, without a walk
    for found in error_chain(error, is_translation):
        give_up = _mark_of(found) or given_up_on(_response_of(found))
        if give_up is not None and give_up.serial > since and _came_through(give_up, found):
            return give_up
    return None


def _response_of(error: BaseException) -> object:
    response = read(error, "response")
    return error if response is None else response


def given_up_on(response: object) -> GiveUp | None:
    """Return the mark of the client that gave up on this response after retries; None for anything else."""
    report = report_on(response)
    return None if report is None or not forbids_repeating(report) else GiveUp(report, retry_serials.last)


def _came_through(give_up: GiveUp, error: BaseException) -> bool:
    """Return whether the error came to this attempt through the call that gave up on it."""
    if give_up.thread_and_task == thread_and_task():
        return True
    trace = error.__traceback__
    while trace is not None and trace is not give_up.trace:
        trace = trace.tb_next
    return trace is not None


def _always(error: BaseException, context: BaseException) -> bool:
    return True


def error_chain(
    error: BaseException, follow: Callable[[BaseException, BaseException], bool] = _always
) -> Iterator[BaseException]:
    """Yield an error, the errors it was raised from or during, and those it groups; each once.

    ``follow(error, context)`` returns whether to go on to `context`, which was being handled when it was raised.
    """
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < MAX_CHAIN:
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


def is_translation(error: BaseException, context: BaseException) -> bool:
    """Return whether `error` is derived from `context`, which was being handled when it was raised.

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
    return _is_raise(raising) and (called is None or _references(raising.tb_frame, context))


def _is_raise(trace: TracebackType) -> bool:
    from opcode import opmap

    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == opmap["RAISE_VARARGS"]


def _references(frame: FrameType, error: BaseException) -> bool:
    """Return whether one of the function's variables is the error, or a tuple with it, such as ``sys.exc_info()``."""
    for value in list(frame.f_locals.values()):
        if value is error or (type(value) is tuple and any(item is error for item in value)):
            return True
    return False


def thread_and_task() -> tuple[int, int]:
    """Return the ids of the thread and the task that this code runs in."""
    return get_ident(), _task()


def _task() -> int:
    if in_trio():
        return id(sys.modules["trio"].lowlevel.current_task())
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return 0
    try:
        return id(asyncio.current_task())
    except (RuntimeError, AttributeError):  # no loop runs in this thread, or another thread is importing asyncio
        return 0
