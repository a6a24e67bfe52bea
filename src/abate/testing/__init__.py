"""For tests: a virtual clock, scripted functions, a recorder of events, an off switch, and runs of services."""

from abate.testing.off import off
from abate.testing.recorder import Recorder
from abate.testing.run_services import arun_for, run_for
from abate.testing.script import Script, after
from abate.testing.virtual_clock import VirtualClock

__all__ = ["Recorder", "Script", "VirtualClock", "after", "arun_for", "off", "run_for"]


def __dir__() -> list[str]:
    return sorted(__all__)
