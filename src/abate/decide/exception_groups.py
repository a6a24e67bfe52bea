"""The bounds of the exception groups that rules judge."""

from __future__ import annotations

MAX_GROUP_DEPTH = 100
"""The deepest nesting of exception groups; a deeper one is fatal."""
MAX_GROUP_MEMBERS = 10_000
"""The most errors and groups in a group; a larger one is fatal."""


def is_bounded(group: ExceptionGroup[Exception]) -> bool:
    """Return whether a group is small enough to be judged."""
    level: list[ExceptionGroup[Exception]] = [group]
    members = 0
    for _ in range(MAX_GROUP_DEPTH):
        inner: list[ExceptionGroup[Exception]] = []
        for found in level:
            members += len(found.exceptions)
            if members > MAX_GROUP_MEMBERS:
                return False
            inner += [error for error in found.exceptions if isinstance(error, ExceptionGroup)]
        if not inner:
            return True
        level = inner
    return False
