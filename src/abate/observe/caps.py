"""Has a policy's backoff grown to its cap? A retry's delay doesn't tell: jitter makes it anything up to there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from abate import census, events
from abate.schedule.backoff import Backoff


def _unknown() -> None:
    """Stands for a policy that nobody has looked for."""


MOST = 1_000
"""Names that are remembered; then it begins anew."""


class Caps:
    """Looks up policies by name, once.

    >>> import abate
    >>> policy = abate.Policy(name="capped", on=OSError, backoff=abate.Backoff(1.0, cap=2.0))
    >>> caps = Caps()
    >>> [caps.reached(events.Retry("capped", attempt, 0.1, "blip", None, None)) for attempt in (1, 2, 3)]
    [False, True, True]
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, Callable[[], Any] | None] = {}

    def reached(self, retry: events.Retry) -> bool:
        """May this retry have waited as long as any will? Never of a backoff that does not grow."""
        policy = self._policy(retry.policy)
        if policy is None:
            return False
        plan = policy.overload_backoff if retry.reason == "overload" else policy.backoff
        return isinstance(plan, Backoff) and plan.base < plan.cap and plan.ceiling(retry.attempt) >= plan.cap

    def _policy(self, name: str) -> Any:
        known = self._known.get(name, _unknown)
        policy = None if known is None else known()
        if known is None or policy is not None:
            return policy
        if len(self._known) >= MOST:
            self._known.clear()
        policy = next((policy for policy in census.policies.alive() if policy.name == name), None)
        self._known[name] = None if policy is None else ref(policy)
        return policy
