"""The budget that all commands of this machine share, by its name in a store.

A store that is broken, locked or missing never stops a command: it uses a local budget with the same settings, and says
so once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from abate.admit import Budget
from abate.cli.store_url import store_url
from abate.clock import current

if TYPE_CHECKING:
    from abate.stores import Store

RATIO = 0.2
RESERVE = 0.2
WINDOW = 60.0
"""Seconds: commands take seconds, so that successes count for a minute; the reserve is 12 retries a minute."""
PATIENCE = 2.0
"""Seconds to wait for other writers of this user's file."""
RETRY_STORE_AFTER = 60.0
"""Seconds until a failed store is tried again."""


def default_store() -> str:
    """Return the default store: ``ABATE_STORE``, or a file in this user's state directory.

    >>> default_store().startswith(("sqlite:///", os.environ.get("ABATE_STORE", "sqlite:///")))
    True
    """
    named = os.environ.get("ABATE_STORE")
    if named:
        return named
    state = os.environ.get("XDG_STATE_HOME", "")
    # XDG: ignore relative paths
    folder = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    folder = folder / "abate"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return f"sqlite:///{quote(str(folder / 'budgets.db'))}?timeout={PATIENCE:g}"


class SharedBudget(Budget):
    """The budget of this name in a store; if the store fails, a local one for `RETRY_STORE_AFTER` seconds."""

    __slots__ = ("_ask_again_at", "_said", "_say", "_store", "_url")

    def __init__(self, name: str, url: str | None, ratio: float, reserve: float, say: Callable[[str], object]) -> None:
        super().__init__(ratio, reserve, WINDOW, name=name)
        self._url = url
        self._store: Store | None = None
        self._say = say
        self._said = False
        self._ask_again_at = -math.inf

    def close(self) -> None:
        """Close the store; its errors are printed, and don't fail the command."""
        store, self._store = self._store, None
        try:
            if store is not None:
                store.close()
        except Exception as error:
            self._say(f"budget {self.name}: {error}")

    def deposit(self) -> None:
        self._ask("deposit", super().deposit)

    def try_withdraw(self, now: float | None = None) -> bool:
        return bool(self._ask("try_withdraw", super().try_withdraw))

    def refund(self) -> None:
        self._ask("refund", super().refund)

    def balance(self) -> float:
        return float(self._ask("balance", super().balance))

    def _ask(self, what: str, here: Callable[[], Any]) -> Any:
        """Call a method of the shared budget; if the store fails, and for a while after, call `here`."""
        now = current().now()
        if now < self._ask_again_at:
            return here()
        try:
            if self._store is None:
                self._store = _open(self._url)
            shared = self._store.ledger(self.name, self.ratio, self.reserve, self.window)
            return getattr(shared, what)()
        except Exception as error:  # an error of the store must not fail the command
            self._ask_again_at = now + RETRY_STORE_AFTER
            if not self._said:
                self._said = True
                self._say(f"budget {self.name} is not shared for now: {error}")
            return here()


def _open(url: str | None) -> Store:
    from abate.stores import open_store

    return open_store(store_url(url or default_store()))
