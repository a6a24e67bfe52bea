"""The shelter: while a dependency is down, calls wait instead of failing, and few are sent instead of all.

Calls ask the dispatcher of their clock (`abate.admit.dispatcher`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Any

from abate import forks
from abate.admit.dispatcher import Dispatcher
from abate.clock import Clock, before_first_virtual_clock, ever_used
from abate.errors import number, suggests_settings, whole
from abate.events import ShelterState
from abate.frozen import Shared, refuse_own_clock
from abate.per_clock import PerClock
from abate.schedule.backoff import RandomSource


class Shelter(Shared):
    """Lets calls wait while a dependency is down; shared by the policies of that dependency.

    * In calm it costs almost nothing and holds no call back.
    * In a storm first attempts and retries wait for their turn. While everything fails, one probe is sent at a time;
      when answers come again, the limit on attempts in flight rises step by step.
    * `capacity`: the maximum number of waiting calls; further ones are `Refused`.
    * `patience`: the maximum seconds that a call waits for its turn, at most until its deadline. A call that cannot be
      sent in time ends at once, with reason ``shelter``.
    * `name`: the dependency's name in events and errors.
    * `clock`, `rng`: its own clock and random source. Without a clock it follows the context's, and keeps separate
      state for each virtual clock.

    >>> import abate
    >>> shelter = Shelter(name="orders")
    >>> policy = abate.Policy(on=ConnectionError, max_attempts=4, shelter=shelter)
    >>> with abate.testing.VirtualClock() as clock:
    ...     policy.call(abate.testing.Script(ConnectionError(), ConnectionError(), "fine"))
    'fine'
    >>> shelter.state, shelter.waiters
    ('calm', 0)
    """

    __slots__ = (
        "__weakref__",
        "_calls",
        "_dispatchers",
        "calm",
        "capacity",
        "name",
        "patience",
        "random_source",
        "rng",
    )

    @suggests_settings
    def __init__(
        self,
        capacity: int = 1000,
        patience: float = 10.0,
        *,
        name: str = "shelter",
        clock: Clock | Callable[[], float] | None = None,
        rng: RandomSource | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name must be a string, not {name!r}")
        self.name = name
        self.capacity = whole("capacity", capacity, least=1)
        self.patience = number("patience", patience, above=0)
        self.rng = rng
        self.random_source: RandomSource = random if rng is None else rng
        self.calm = False
        """Whether a wrapper may send an attempt without asking the dispatcher; always False on other clocks than the
        machine's."""
        self._calls = count()
        self._dispatchers: PerClock[Dispatcher] = PerClock(self._make_dispatcher, clock)

    def _make_dispatcher(self, clock: Clock) -> Dispatcher:
        # virtual clocks hold their dispatchers, which must not keep the shelter alive: only the first one refers to it
        own = None if hasattr(self, "_dispatchers") else self._on_calm_change
        return Dispatcher(self.name, self.capacity, self.patience, self.random_source, clock, own)

    def _on_calm_change(self, calm: bool) -> None:
        self.calm = calm and not ever_used.virtual

    @property
    def follows_context(self) -> bool:
        """Return whether this has no clock of its own and follows the context's."""
        return self._dispatchers.follows_context

    def sample_every_16th(self) -> None:
        """Call `sample` for one call of sixteen."""
        if not next(self._calls) % 16:
            self.sample()

    def sample(self) -> None:
        """Let the next call of a wrapper ask the dispatcher, if a latency sample is due."""
        main = self._dispatchers.main
        if self.calm and not main.admits_freely(main.clock.now()):
            self.calm = False

    def dispatcher(self) -> Dispatcher:
        """Return the dispatcher of the current clock."""
        return self._dispatchers.here() if ever_used.virtual else self._dispatchers.main

    @property
    def state(self) -> ShelterState:
        """The state: ``calm``, ``storm``, ``probing`` or ``recovering``."""
        return self.dispatcher().state

    @property
    def waiters(self) -> int:
        """The number of calls that wait."""
        return self.dispatcher().waiters

    @property
    def limit(self) -> float:
        """The maximum number of attempts in flight; infinite in calm."""
        return self.dispatcher().limit

    def apart(self) -> Shelter:
        """Return a shelter with the same settings for another key, in this process only (see `Policy.keyed`).

        >>> Shelter(capacity=20, name="hooks").apart()
        Shelter(capacity=20, patience=10, name='hooks')
        """
        return Shelter(self.capacity, self.patience, name=self.name, clock=self._dispatchers.clock, rng=self.rng)

    def _pickled_settings(self) -> dict[str, Any]:
        refuse_own_clock(self, not self.follows_context)
        return {"capacity": self.capacity, "patience": self.patience, "name": self.name, "rng": self.rng}

    def __repr__(self) -> str:
        return f"Shelter(capacity={self.capacity}, patience={self.patience:g}, name={self.name!r})"


def _disable_fast_paths() -> None:
    for state in forks.registered():
        if isinstance(state, Dispatcher):
            state.disable_fast_path()


before_first_virtual_clock.append(_disable_fast_paths)
