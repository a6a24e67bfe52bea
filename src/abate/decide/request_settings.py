"""What a program says about single HTTP requests: whether they may be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from abate.redact import short_repr
from abate.scopes import Scope, Scopes

SETTING = "idempotent"


class _RequestScope(Scope):
    __slots__ = ("idempotent",)

    def __init__(self, owner: object, idempotent: bool) -> None:
        super().__init__(owner)
        self.idempotent = idempotent


_scopes: Scopes[_RequestScope] = Scopes("abate_http_request")


class request:
    """Say whether the HTTP requests in the block may be repeated, whatever their method and the policy say.

    It counts for requests by all of abate's HTTP clients in this thread or task and in tasks started in the block,
    until the block ends; of nested blocks the innermost counts. For httpx a request can say the same for itself, by its
    extension ``extensions={"abate": {"idempotent": True}}``, which wins.

    >>> with request(idempotent=True):
    ...     declared_idempotent()
    True
    >>> request(idempotent="yes")
    Traceback (most recent call last):
    TypeError: idempotent must be True or False, not 'yes'
    """

    __slots__ = ("_entered", "_idempotent")

    def __init__(self, *, idempotent: bool) -> None:
        self._idempotent = _check(idempotent)
        self._entered: list[_RequestScope] = []

    def __enter__(self) -> Self:
        scope = _RequestScope(self, self._idempotent)
        self._entered.append(scope)
        _scopes.enter(scope)  # last: no signal handler runs between this and the block
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # a generator may be closed in another context
        scope = _scopes.entered_by(self) or self._entered[-1]
        _scopes.leave(scope)
        self._entered.remove(scope)


def declared_idempotent() -> bool | None:
    """Return what the innermost `request` block around this code says; None without one."""
    scope = _scopes.nearest()
    return None if scope is None else scope.idempotent


def idempotent_by_extension(extension: object) -> bool | None:
    """Return what the extension "abate" of an httpx request says.

    >>> idempotent_by_extension({"idempotent": False}), idempotent_by_extension({})
    (False, None)
    """
    expected = 'the extension "abate" of a request must be {"idempotent": True} or {"idempotent": False}'
    if not isinstance(extension, Mapping):
        raise TypeError(f"{expected}, not {short_repr(extension)}")
    for key in extension:
        if key != SETTING:
            raise ValueError(f"{expected}: it has no {short_repr(key)}")
    return _check(extension[SETTING]) if SETTING in extension else None


def _check(idempotent: object) -> bool:
    if not isinstance(idempotent, bool):
        raise TypeError(f"idempotent must be True or False, not {short_repr(idempotent)}")
    return idempotent
