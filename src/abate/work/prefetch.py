"""Decides how many messages a run receives ahead of its free workers, so that no worker waits for the source.

A message that is received ahead waits in this process, while another process may be idle. So only as many are received
as keep the workers busy for `AHEAD_SECONDS` (or for the `ahead_seconds` of the source), by the measured time of the
handler: none for a slow handler.
"""

from __future__ import annotations

from math import inf

from abate.work.source import Source

AHEAD_SECONDS = 0.02
"""Seconds for which the messages received ahead keep the workers busy: several round trips to a store."""
MAX_AHEAD = 64
"""The maximum without a number of the user's; more would not make the workers faster."""
LEASES_AHEAD = 1 / 3
"""With a number of the user's, the messages received ahead begin within this part of their lease."""
MAX_WAIT = 1.0
"""Seconds without the end of a handler after which the messages that wait for a worker go back to the source."""
WEIGHT = 0.25
"""The weight of the latest handler in the mean time: after one slow handler, nothing is received ahead for a while."""


def limit_for(source: Source, prefetch: int | None) -> int | None:
    """Return how many messages of a source may be received ahead: 0 if it can't; raise if it has to, and can't.

    >>> import abate
    >>> limit_for(abate.open_store("memory:").queue("orders"), 16)
    16
    """
    # by its type: a wrapper with a `receive` of its own that passes on attributes does not take the argument
    if getattr(type(source), "receives_ahead", False):
        return prefetch
    if prefetch:
        raise ValueError(f"prefetch={prefetch} needs a queue of a store, and {source.name!r} is none: leave it out")
    return 0


class Prefetch:
    """Measures handlers: how many messages a run receives ahead: up to `limit`, or up to `MAX_AHEAD` if that is None.

    >>> prefetch = Prefetch(workers=4, limit=None, lease=30.0)
    >>> prefetch.size()
    0
    >>> prefetch.record(0.01)
    >>> prefetch.size()
    8
    >>> prefetch.record(2.0)
    >>> prefetch.size()
    0
    """

    __slots__ = ("_limit", "_mean", "_work")

    def __init__(
        self, workers: int, limit: int | None, lease: float | None, ahead_seconds: float = AHEAD_SECONDS
    ) -> None:
        self._limit = MAX_AHEAD if limit is None else limit
        self._work = workers * (ahead_seconds if limit is None else LEASES_AHEAD * (inf if lease is None else lease))
        self._mean: float | None = None

    def record(self, seconds: float) -> None:
        """Note how long a handler took."""
        self._mean = seconds if self._mean is None else self._mean + WEIGHT * (seconds - self._mean)

    def size(self) -> int:
        """Return how many messages may wait for a worker; none before the first handler has ended."""
        if self._mean is None:
            return 0
        return int(self._work / self._mean) if self._work < self._limit * self._mean else self._limit
