"""What an attempt produced (`Outcome`), and what was decided about it (`Ruling`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

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
    """The decision about an outcome: whether to retry, why, the server's hint, and what became of the request.

    * `reason`: ``blip`` (reset, refused, conflict), ``overload`` (429, 503, timeouts), ``fatal``, or ``layer`` (an
      inner policy has given up on it).
    * `hint`: the seconds that the server asked for.
    * `reached`: whether the server may have begun to work on the request. False for a refused connection, and for an
      answer that refuses the request before taking it (a 429): it may be sent again, whatever it does.
    * `safe`: whether the request may be repeated, if that is known (from an HTTP method; None for most errors).
    * `answered`: the server itself answered with the failure: it is up, and unless it is overloaded, the failure may
      concern this request only (a 500).

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
        self.__dict__["unconditional"] = self.retry and self.hint is None and self.safe is not False

    if TYPE_CHECKING:
        unconditional: ClassVar[bool]
        """Whether it asks for a retry without a hint, of a request that may be repeated as far as is known.

        No field: `validate` derives it, because each failure reads it.
        """

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
        """Return a ruling not to retry: another attempt would fail the same way.

        If it has not `reached` the server (a bad URL, a certificate that is not trusted), it says nothing about it.
        """
        return FATAL if reached else FATAL_UNREACHED

    @property
    def overloaded(self) -> bool:
        """Whether this outcome says that the server is overloaded."""
        return self.reason == "overload"

    @property
    def taken(self) -> bool | None:
        """Whether the server took the request and answered it, whatever the answer; None if that is not known.

        It is not known if an inner policy gave up, or if nothing was sent for a reason that is not the server's.

        >>> Ruling.blip(answered=True).taken, Ruling.overload(answered=True).taken, Ruling.blip().taken
        (True, False, False)
        >>> Ruling.fatal().taken, Ruling.fatal(reached=False).taken
        (True, None)
        """
        if not self.retry:
            return True if self.reached and self.reason != "layer" else None
        return self.answered and not self.overloaded


FATAL = Ruling(False, "fatal")
FATAL_UNREACHED = Ruling(False, "fatal", None, False)
LAYER = Ruling(False, "layer")
BLIP = Ruling(True, "blip")
OVERLOAD = Ruling(True, "overload")
OVERLOAD_UNREACHED = Ruling.overload(reached=False)
ANSWERED = Ruling.blip(answered=True)
UNREACHED = Ruling(True, "blip", None, False)
