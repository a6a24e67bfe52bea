"""Has a backoff grown to its cap? A delay doesn't tell: jitter makes it anything up to there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from abate import events, registry
from abate.schedule.backoff import Backoff

MOST = 1_000
"""Names that are remembered; then it begins anew."""


class Caps:
    """Looks at the backoffs of policies, controllers and consumers.

    >>> import abate
    >>> policy = abate.Policy(name="capped", on=OSError, backoff=abate.Backoff(1.0, cap=2.0))
    >>> caps = Caps()
    >>> [caps.call_reaches_cap(events.Retry("capped", attempt, 0.1, "blip", None, None)) for attempt in (1, 2, 3)]
    [False, True, False]
    """

    __slots__ = ("_policies", "_services")

    def __init__(self) -> None:
        self._policies = _Known(registry.policies)
        self._services = _Known(registry.services)

    def call_reaches_cap(self, retry: events.Retry) -> bool:
        """Is this the first retry of its call that may have waited as long as any will?

        A retry doesn't say of which call it is, so the one before it is taken to have been of the same nature: a call
        whose failures are now blips and now overloads may be told twice there, or not at all.
        """
        policy = self._policies.named(retry.policy)
        if policy is None:
            return False
        plan = policy.overload_backoff if retry.reason == "overload" else policy.backoff
        return _at_cap(plan, retry.attempt) and not _at_cap(plan, retry.attempt - 1)

    def key_is_at_cap(self, worked: events.Worked) -> bool:
        """May this key stay away as long as any will? After an overload it may be so earlier, which isn't told."""
        service = self._services.named(worked.policy)
        return service is not None and _at_cap(service.backoff, worked.receives)


def _at_cap(plan: object, retry: int) -> bool:
    """Never of a backoff that does not grow."""
    return isinstance(plan, Backoff) and plan.base < plan.cap and plan.ceiling(retry) >= plan.cap


def _unknown() -> None:
    """Stands for something that nobody has looked for."""


class _Known:
    """Things of one kind by name, each looked for once."""

    __slots__ = ("_found", "_registry")

    def __init__(self, kind: registry.Registry[Any]) -> None:
        self._registry = kind
        self._found: dict[str, Callable[[], Any] | None] = {}

    def named(self, name: str) -> Any:
        found = self._found.get(name, _unknown)
        thing = None if found is None else found()
        if found is None or thing is not None:
            return thing
        if len(self._found) >= MOST:
            self._found.clear()
        thing = next((thing for thing in self._registry.alive() if thing.name == name), None)
        self._found[name] = None if thing is None else ref(thing)
        return thing
