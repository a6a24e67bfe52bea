"""abate for the storm referee: its `--adapter` takes this file.

    python storm.py --adapter .../benchmarks/storm/referee_adapter.py --only abate

One policy per member of the fleet, each with a shelter of its own. The referee's settings are kept: attempts, base,
cap. What its libraries may wait in all is the call's timeout here.
"""

import abate


def storm(c, errors):
    """A decorator for ``async def fn(req)``, as the referee wants it."""
    patience = max(1.0, sum(min(c.cap, c.base * 2**n + c.jitter) for n in range(c.attempts - 1)))
    return abate.Policy(
        name="storm",
        on=(abate.http.transient, *errors),
        max_attempts=c.attempts,
        timeout=patience,
        backoff=abate.Backoff(base=c.base, cap=c.cap),
        shelter=abate.Shelter(patience=patience),
    )
