"""Defines the results that a handler of a controller or consumer can return or raise.

return None            done; its failures are forgotten
return Again(5.0)      done for now, and once more in five seconds
raise SilentSuccess    done, and counted separately: there was nothing to do
raise Recoverable      failed: retry after a delay
raise PermanentFailure failed for good: bury the message with the reason
"""

from __future__ import annotations

from typing import Any

from abate.errors import AbateError, number
from abate.frozen import Frozen


class Again(Frozen):
    """Done for now: the key comes back after `after` seconds, without counting as failed.

    >>> import abate
    >>> @abate.controller()
    ... def reconcile(key):
    ...     return abate.Again(after=5.0)
    >>> reconcile("orders/42")
    Again(after=5.0)
    """

    after: float

    def validate(self) -> None:
        number("after", self.after, least=0)


class PermanentFailure(AbateError):
    """A retry would fail the same way: the key is parked, or the message is buried, with this reason.

    >>> raise PermanentFailure("order 42 has no address")
    Traceback (most recent call last):
    abate.work.handler_results.PermanentFailure: order 42 has no address
    """


class Recoverable(AbateError):
    """A retry may succeed: the message goes back to the queue, for at least `after` seconds if that is given.

    >>> Recoverable("the ledger is locked", after=30.0).after
    30.0
    """

    def __init__(self, *args: object, after: float | None = None) -> None:
        super().__init__(*args)
        self.after = None if after is None else number("after", after, least=0)

    def __reduce__(self) -> tuple[type[Recoverable], tuple[Any, ...], dict[str, Any]]:
        return type(self), self.args, self.__dict__


class SilentSuccess(AbateError):
    """There was nothing to do: the message is done, and counted separately.

    >>> raise SilentSuccess("order 42 was shipped before")
    Traceback (most recent call last):
    abate.work.handler_results.SilentSuccess: order 42 was shipped before
    """
