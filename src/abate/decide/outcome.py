"""What an attempt produced (`Outcome`), and what was decided about it (`Ruling`)."""

from __future__ import annotations

from typing import final

from abate.errors import number
from abate.frozen import ComparedByFields, Frozen


@final
class Outcome(ComparedByFields):
    """What one attempt produced: an error, or else a result.

    `elapsed` is the time since the call's first outcome, in seconds.

    >>> Outcome(error=TimeoutError()).elapsed
    0.0
    """

    __slots__ = __match_args__ = ("error", "result", "elapsed")

    def __init__(self, error: Exception | None = None, result: object = None, elapsed: float = 0.0) -> None:
        self.error = error
        self.result = result
        self.elapsed = elapsed


class Ruling(Frozen):
    """The decision about an outcome: whether to retry, why, the server's hint, and whether the request reached it.

    The reason is ``blip`` (reset, refused, conflict), ``overload`` (429, 503, timeouts), ``fatal``, or ``layer``
    (an inner policy has given up on it). `safe` says whether the request may be repeated, if that is known (from an
    HTTP method; None for most errors). `answered` says that the server itself answered with the failure: it is up, and
    unless it is overloaded, the failure may concern this request only (a 500).

    >>> Ruling.overload(hint=2.0)
    Ruling(retry=True, reason='overload', hint=2.0, reached=True, safe=None, answered=False)
    """

    retry: bool
    reason: str
    hint: float | None = None
    reached: bool = True
    safe: bool | None = None
    answered: bool = False

    def validate(self) -> None:
        if self.hint is not None:
            number("hint", self.hint, least=0, infinite=True)

    @staticmethod
    def blip(hint: float | None = None, *, reached: bool = True, answered: bool = False) -> Ruling:
        """Return a ruling to retry soon: something broke, and nothing says that the server is overloaded."""
        return Ruling(True, "blip", hint, reached, None, answered)

    @staticmethod
    def overload(hint: float | None = None, *, reached: bool = True, answered: bool = False) -> Ruling:
        """Return a ruling to retry later: the server is overloaded."""
        return Ruling(True, "overload", hint, reached, None, answered)

    @staticmethod
    def fatal(*, reached: bool = True) -> Ruling:
        """Return a ruling not to retry: another attempt would fail the same way."""
        return FATAL if reached else Ruling(False, "fatal", None, False)

    @property
    def overloaded(self) -> bool:
        """Whether this outcome says that the server is overloaded."""
        return self.reason == "overload"

    @property
    def taken(self) -> bool:
        """Whether the server took the request and answered it, whatever the answer.

        >>> Ruling.blip(answered=True).taken, Ruling.overload(answered=True).taken, Ruling.blip().taken
        (True, False, False)
        """
        return not self.retry or (self.answered and not self.overloaded)


FATAL = Ruling(False, "fatal")
LAYER = Ruling(False, "layer")
BLIP = Ruling(True, "blip")
OVERLOAD = Ruling(True, "overload")
OVERLOAD_UNREACHED = Ruling.overload(reached=False)
ANSWERED = Ruling.blip(answered=True)
UNREACHED = Ruling(True, "blip", None, False)
