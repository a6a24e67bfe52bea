"""The fleet engine: a hundred thousand to ten million clients, as arrays, in buckets of 10 ms.

What happens within a bucket happens at once: first what is sent, then what the service makes of it, then what has timed
out, then the decisions about what has failed. Every event keeps its own instant, so that nothing is rounded up and
delays don't add up to a drift; what falls into the bucket at hand, or before it, is done with the next one.

    wheel ──► sends ──► server ──► successes           a request's fate is known when it is started
      ▲                    └──────► failures ──► decide, schedule, admit ──┐
      └────────────────────────────────────────────────────────────────────┘

The rules are the array forms of the production ones (`abate.sim.arrays`). A world that holds something without an array
form is run by the exact engine, and its run says so.
"""

from __future__ import annotations

try:
    import numpy as _numpy  # noqa: F401
except ImportError as missing:
    raise ImportError("the engine 'fleet' needs NumPy: pip install 'abate[sim]'") from missing

from abate.sim.fleet.engine import run

__all__ = ["run"]
