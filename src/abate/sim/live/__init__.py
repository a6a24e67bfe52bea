"""A world on real sockets: the services in a process of their own, the clients' production code in this one.

`run_live` gives a `Run` like any engine's; `compare_live` puts it beside the simulated ones.
"""

from __future__ import annotations

from abate.sim.live.runs import TOLERANCE, Beside, Figure, compare_live, compared, run_live, table

__all__ = ["TOLERANCE", "Beside", "Figure", "compare_live", "compared", "run_live", "table"]
