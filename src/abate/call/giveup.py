"""What a policy leaves on an error that it gave up on: a report for people, a mark for the layers around it."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from threading import get_ident

from abate.errors import Report

NOTE = "abate: "
DEEPEST = 100
"""How many errors of one chain are looked at."""


class GiveUp:
    """The mark on an error: who gave up on it, and when."""

    __slots__ = ("owner", "place", "report", "serial")

    def __init__(self, report: Report, owner: object) -> None:
        self.report = report
        self.owner = owner
        self.place = place()
        self.serial = give_ups.last = next(give_ups.serials)

    def __reduce__(self) -> tuple[type[_Travelled], tuple[Report]]:
        return _Travelled, (self.report,)


class _Travelled(GiveUp):
    """The mark on an error that came from another process: it tells its report, and belongs to no call here."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.owner = None
        self.place = (0, 0)
        self.serial = 0


class GiveUps:
    """Numbers the give-ups of this process, so that one can be told to lie within an attempt or before it.

    An attempt notes `last` when it begins, which is all that the success path pays. An error object that is
    raised again by a later call carries an older number, and is not mistaken for one from within.
    """

    __slots__ = ("last", "serials")

    def __init__(self) -> None:
        self.last = 0
        self.serials = count(1)


give_ups = GiveUps()


class Watch:
    """Whether a policy has given up on anything here."""

    __slots__ = ("exhausted",)

    def __init__(self) -> None:
        self.exhausted = False


_watch: ContextVar[Watch | None] = ContextVar("abate_watch", default=None)


@contextmanager
def watching() -> Generator[Watch]:
    """Watch the block, and the tasks started in it, for calls that end with their retries used up.

    >>> import abate
    >>> with watching() as watch:
    ...     try: abate.Policy(on=OSError, attempts=1).call(abate.testing.Script(OSError()))
    ...     except OSError: pass
    >>> watch.exhausted
    True
    """
    watch = Watch()
    token = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(token)


def tell_watch() -> None:
    """Tell who watches here that a policy has given up."""
    watch = _watch.get()
    if watch is not None:
        watch.exhausted = True


def mark(error: BaseException, report: Report, owner: object) -> None:
    """Leave the report on the error, for `abate.report`, for tracebacks, and for the layers around."""
    earlier = getattr(error, "__abate__", None)
    notes: list[str] | None = getattr(error, "__notes__", None)
    if earlier is not None and notes is not None:
        try:
            notes.remove(NOTE + str(earlier.report))
        except ValueError:
            pass  # it had none, or another thread that gave up on the same error has just taken it away
    try:
        error.__abate__ = GiveUp(report, owner)  # type: ignore[attr-defined]
    except AttributeError:
        return  # an error that takes no attributes keeps its own counsel
    if report.reason != "fatal" or report.attempts > 1:
        error.add_note(NOTE + str(report))


def report(error: BaseException) -> Report | None:
    """The report that a policy left on `error`, or on an error that it was raised from; None without one.

    >>> import abate
    >>> try:
    ...     abate.Policy(on=ConnectionError, attempts=1, name="orders").call(abate.testing.Script(ConnectionError()))
    ... except ConnectionError as error:
    ...     report(error)
    Report(policy='orders', attempts=1, waited=0.0, reason='attempts', inner=None)
    """
    for found in chain(error):
        give_up = getattr(found, "__abate__", None)
        if give_up is not None:
            return give_up.report  # type: ignore[no-any-return]
    return None


def given_up_within(error: BaseException, since: int, owner: object) -> Report | None:
    """The report of a policy that gave up on this error, or on one behind it, since the attempt began.

    An error that a policy would not retry at all (``fatal``) is nobody's: the layer around may still retry it.
    """
    if (
        getattr(error, "__abate__", None) is None
        and error.__context__ is None
        and error.__cause__ is None
        and not isinstance(error, BaseExceptionGroup)
    ):
        return None  # the usual case, without a walk
    for found in chain(error):
        give_up = getattr(found, "__abate__", None)
        if (
            give_up is not None
            and give_up.serial > since
            and give_up.report.reason != "fatal"
            # a policy around itself is a layer too, but one error object in two calls at once is not
            and (give_up.owner is not owner or give_up.place == place())
        ):
            return give_up.report  # type: ignore[no-any-return]
    return None


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error, the errors it was raised from or within, and those it groups; each once."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < DEEPEST:
        found = waiting.pop(0)
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        waiting += [other for other in (found.__cause__, found.__context__) if other is not None]
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions


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
