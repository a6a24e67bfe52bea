"""Reports of a study: one HTML page that opens offline, and the same pictures as PNG or SVG.

* **The page** is one file, with pictures, tables and style inside. It has no script and loads nothing.
* **Text from files is escaped**: names, descriptions and notes.
* **The same study gives the same bytes**: no dates, no random numbers.
* **Pictures**: load over time and the herd if there are few cases; lines if a number is swept; recovery map and
  hysteresis if given.

Pictures need matplotlib, which is part of the extra ``abate[sim]``.
"""

from __future__ import annotations

from abate.sim.report.files import write_picture, write_report
from abate.sim.surveys import Hysteresis, RecoveryMap, hysteresis, recovery_map

__all__ = ["Hysteresis", "RecoveryMap", "hysteresis", "recovery_map", "write_picture", "write_report"]


def __dir__() -> list[str]:
    return sorted(__all__)
