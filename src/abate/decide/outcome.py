"""The two values that deciding is about: what an attempt produced, and what was decided."""

from __future__ import annotations

from typing import final

from abate.errors import number
from abate.values import Fields, Value


@final
class Outcome(Fields):
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


class Ruling(Value):
    """The answer to an outcome: retry or not, why, the server's hint, and whether it may have seen the request.

    The reason is ``blip`` (reset, refused, conflict), ``overload`` (429, 503, timeouts), ``fatal``, or ``layer``
    (somebody further in has given up on it). `safe` is what the request itself says about being repeated (an HTTP
    method does, most errors don't: None). `answered` says that the failure is the server's own answer: it is up, and
    where it is not overloaded, the failure may be this request's alone (a 500).

    >>> Ruling.overload(hint=2.0)
    Ruling(retry=True, reason='overload', hint=2.0, reached=True, safe=None, answered=False)
    """

    retry: bool
    reason: str
    hint: float | None = None
    reached: bool = True
    safe: bool | None = None
    answered: bool = False

    def checked(self) -> None:
        if self.hint is not None:
            number("hint", self.hint, least=0, infinite=True)

    @staticmethod
    def blip(hint: float | None = None, *, reached: bool = True, answered: bool = False) -> Ruling:
        """Worth another attempt soon: something broke, and nothing says that the server is overloaded."""
        return Ruling(True, "blip", hint, reached, None, answered)

    @staticmethod
    def overload(hint: float | None = None, *, reached: bool = True, answered: bool = False) -> Ruling:
        """Worth another attempt later: the server has too much to do."""
        return Ruling(True, "overload", hint, reached, None, answered)

    @staticmethod
    def fatal(*, reached: bool = True) -> Ruling:
        """Another attempt would fail the same way."""
        return FATAL if reached else Ruling(False, "fatal", None, False)

    @property
    def overloaded(self) -> bool:
        """Is the server overloaded, as far as this outcome tells?"""
        return self.reason == "overload"

    @property
    def taken(self) -> bool:
        """Has the server taken the request, and answered it, whatever the answer? Then it has refused nothing.

        >>> Ruling.blip(answered=True).taken, Ruling.overload(answered=True).taken, Ruling.blip().taken
        (True, False, False)
        """
        return not self.retry or (self.answered and not self.overloaded)


FATAL = Ruling(False, "fatal")
LAYER = Ruling(False, "layer")
BLIP = Ruling(True, "blip")
OVERLOAD = Ruling(True, "overload")
ANSWERED = Ruling.blip(answered=True)
UNREACHED = Ruling(True, "blip", None, False)
