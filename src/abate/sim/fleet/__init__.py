"""The fleet engine: 100,000 to 10,000,000 clients as NumPy arrays, in steps (buckets) of 10 ms.

A bucket is processed at once: attempts that are sent, the service, timeouts, then the decisions about failures. Every
event keeps its own instant, so that rounding errors don't add up; an event that falls into the current bucket or before
is processed with the next one.

    wheel ──► sends ──► server ──► successes           the outcome of a request is known when it is started
      ▲                    └──────► failures ──► decide, schedule, admit ──┐
      └────────────────────────────────────────────────────────────────────┘

The rules are vectorized forms of the production ones (`abate.sim.fleet.vector_rules`). A world that has a feature
without such a form is run by the exact engine, and a note says so.
"""

from __future__ import annotations

try:
    import numpy as _numpy  # noqa: F401
except ImportError as missing:
    raise ImportError("the engine 'fleet' needs NumPy: pip install 'abate[sim]'") from missing

from abate.sim.fleet.engine import run

__all__ = ["run"]
