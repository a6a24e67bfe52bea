"""What a study found, for people: one page that opens offline, and the same pictures as PNG or SVG.

* **A page** is one file: pictures, tables and style are inside it. It has no script and asks for nothing from anywhere.
* **Everything that came from a file is escaped**: names, texts and notes are shown as they are, and do nothing.
* **The same study gives the same bytes**: no dates, no chance.
* **The pictures that fit are drawn**: load over time and the herd where cases are few; lines where a number is swept;
  the recovery map, the hysteresis and the front of a tuning where they are given.

matplotlib draws; it is the extra ``abate[sim]``, and nothing else imports it.
"""

from __future__ import annotations

from abate.sim.report.files import write_picture, write_report
from abate.sim.report.surveys import Hysteresis, RecoveryMap, hysteresis, recovery_map

__all__ = ["Hysteresis", "RecoveryMap", "hysteresis", "recovery_map", "write_picture", "write_report"]
