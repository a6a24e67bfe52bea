"""What a handler answers with, beside returning nothing: the words of controllers and consumers.

return None            done, and its failures are forgotten
return Again(5.0)      done for now, and once more in five seconds
raise SilentSuccess    done, counted apart: there was nothing to do
raise Recoverable      not done: back, after a delay
raise PermanentFailure not done, and never will be: away from the queue, with the reason
"""

from __future__ import annotations

from typing import Any

from abate.errors import AbateError, number
from abate.values import Value


class Again(Value):
    """Done for now: the key comes back after so many seconds, without having failed.

    >>> import abate
    >>> @abate.controller()
    ... def reconcile(key):
    ...     return abate.Again(after=5.0)
    >>> reconcile("orders/42")
    Again(after=5.0)
    """

    after: float

    def checked(self) -> None:
        number("after", self.after, least=0)


class PermanentFailure(AbateError):
    """Another try would fail the same way: a key is parked, a message goes to the dead letters, with this reason.

    >>> raise PermanentFailure("order 42 has no address")
    Traceback (most recent call last):
    abate.work.answers.PermanentFailure: order 42 has no address
    """


class Recoverable(AbateError):
    """Another try may succeed: back into the queue, not earlier than `after` seconds from now where that is known.

    >>> Recoverable("the ledger is locked", after=30.0).after
    30.0
    """

    def __init__(self, *args: object, after: float | None = None) -> None:
        super().__init__(*args)
        self.after = None if after is None else number("after", after, least=0)

    def __reduce__(self) -> tuple[type[Recoverable], tuple[Any, ...], dict[str, Any]]:
        return type(self), self.args, self.__dict__


class SilentSuccess(AbateError):
    """There was nothing to do: done, and counted apart from work that was done.

    >>> raise SilentSuccess("order 42 was shipped before")
    Traceback (most recent call last):
    abate.work.answers.SilentSuccess: order 42 was shipped before
    """
