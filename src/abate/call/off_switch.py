"""The off switch: while it is on in a context, calls there make one attempt only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from abate.clock import ever_used
from abate.scopes import Scope, Scopes

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_off: Scopes[Scope] = Scopes("abate_off")


def switch_off() -> Scope:
    """Let calls in this context make one attempt only, until `switch_on`."""
    ever_used.off = True
    return _off.enter(Scope())


def switch_on(scope: Scope) -> None:
    """Undo `switch_off`, also in copies of the context."""
    _off.leave(scope)


def off_shared_in_thread() -> AbstractContextManager[None]:
    """Switch retries off in all contexts of this thread too, for a block, if they are off here."""
    return _off.shared_in_thread()


def adopt_shared_off() -> None:
    """Take the off switch that is shared in this thread into this context."""
    _off.adopt()


def is_off() -> bool:
    """Return whether retries are switched off here. Hot paths read `ever_used.off` first."""
    return _off.nearest() is not None
