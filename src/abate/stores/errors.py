"""Errors of stores."""

from __future__ import annotations

from abate.errors import AbateError


class StoreError(AbateError):
    """A store failed: it is missing, corrupt, locked, full, or of another version.

    Nothing was changed, unless a server stopped answering: then its last operation may have been carried out.

    >>> import abate.stores
    >>> abate.stores.open_store("sqlite:////")
    Traceback (most recent call last):
    abate.stores.errors.StoreError: / is a directory: expected a file, or a path at which to create one
    """


class StoreUnreachable(StoreError):
    """A store's server can't be reached or doesn't answer. A later call may succeed.

    >>> issubclass(StoreUnreachable, StoreError)
    True
    """
