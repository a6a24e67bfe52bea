"""For tests: a virtual clock, scripted functions, a recorder of events, and an off switch."""

from abate.testing.off import off
from abate.testing.recorder import Recorder
from abate.testing.script import Script, after
from abate.testing.virtual_clock import VirtualClock

__all__ = ["Recorder", "Script", "VirtualClock", "after", "off"]


def __dir__() -> list[str]:
    return sorted(__all__)
